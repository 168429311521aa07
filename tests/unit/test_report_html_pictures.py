"""Pictures of wrong outputs: the wrong elements stand where they are, beside the mask, in every layout and kind of output."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

import numpy as np
import pytest

from fiafuzz.campaign.execute import Executor
from fiafuzz.campaign.results import Judged
from fiafuzz.campaign.triage import plain_case
from fiafuzz.campaign.wire import Job
from fiafuzz.model.case import Case
from fiafuzz.model.codecs import encode
from fiafuzz.model.scene import Scene
from fiafuzz.model.tensors import materialize
from oracles.picture import EDGE, Grid, error_pictures
from oracles.poison import poison
from oracles.precision import judge_outputs
from oracles.reference import reference
from strategies.cases import build_valid
from strategies.source import SeededSource

PROFILE = "950-v5"


def case_with(seed: int = 1, **needs: Any) -> Case:
    """A valid call with those factor words, of a size that is quick to compute."""
    return build_valid(SeededSource(seed), PROFILE, {"scenario": "gqa", "empty": "none", "post_quant": "none", **needs})


def pictures(case: Case, spoil: Any) -> tuple[tuple[Grid, ...], dict[str, Any]]:
    """Pictures of the expected outputs after ``spoil(outputs, scene)`` has changed them, and those outputs."""
    scene, tensors = Scene(case), materialize(case)
    expected = reference(case, tensors, scene=scene)
    outputs: dict[str, Any] = {}
    for name, wanted in expected.outputs.items():
        spec = scene.tensor(name)
        assert spec is not None
        outputs[name] = encode(spec.dtype, wanted, overflow="saturate")
    spoil(outputs, scene)
    judgement = judge_outputs(case, scene, expected, outputs)
    return error_pictures(scene, tensors, expected, outputs, judgement), outputs


def coarse(place: int, size: int) -> int:
    """The cell of an element on an axis."""
    cells = min(size, EDGE)
    return next(i for i in reversed(range(cells)) if i * size // cells <= place)


def spoil_one(value: float, at: tuple[int, ...]) -> Any:
    """Change one element of attentionOut."""

    def spoil(outputs: dict[str, Any], scene: Scene) -> None:
        dtype = scene.out_dtype
        assert dtype in ("FLOAT16", "BFLOAT16")
        if dtype == "BFLOAT16":
            outputs["attentionOut"][at] = np.float32(value).view(np.uint32) >> 16
        else:
            outputs["attentionOut"][at] = value

    return spoil


SCENARIOS = ("gqa", "mla_prefill_split", "mla_prefill_combined", "mla_decode", "unequal_d")
PLAIN = plain_case("950", "v5")


def test_right_outputs_have_no_picture() -> None:
    assert pictures(PLAIN, lambda outputs, scene: None)[0] == ()


def test_one_wrong_element_is_one_cell() -> None:
    grids, _ = pictures(PLAIN, spoil_one(100.0, (0, 0, 1, 37)))
    error, mask = grids
    column = coarse(37, 64)
    assert (error.kind, error.output, error.where, error.shape) == ("error", "attentionOut", "batch 0, query head 0", (2, 64))
    assert error.worst == (1, column) and error.cells[1][column] in "789"
    assert sum(sign != "." for line in error.cells for sign in line) == 1
    assert (mask.kind, mask.cells) == ("mask", ("..", ".."))


@pytest.mark.parametrize("value, sign", [(np.nan, "N"), (np.inf, "N")])
def test_not_finite(value: float, sign: str) -> None:
    (error, _), _ = pictures(PLAIN, spoil_one(value, (0, 0, 0, 5)))
    assert error.cells[0][coarse(5, 64)] == sign


def test_unwritten_rows() -> None:
    def spoil(outputs: dict[str, Any], scene: Scene) -> None:
        outputs["attentionOut"][0, 0, 1] = poison("FLOAT16", (64,))

    (error, _), _ = pictures(PLAIN, spoil)
    assert error.cells == ("." * EDGE, "U" * EDGE)


def test_levels_rise_with_the_error() -> None:
    levels = []
    for error in (0.01, 0.1, 1.0, 10.0):

        def spoil(outputs: dict[str, Any], scene: Scene, error: float = error) -> None:
            outputs["attentionOut"][0, 0, 0, 0] += error

        (grid, _), _ = pictures(PLAIN, spoil)
        levels.append(grid.cells[0][0])
    assert levels == sorted(levels) and len(set(levels)) == 4 and all(sign in "123456789" for sign in levels)


@pytest.mark.parametrize("layout", ["BNSD", "BSND", "BSH", "TND", "NTD", "BSH_BNSD", "BNSD_NBSD", "NTD_TND", "TND_NTD"])
def test_every_layout_shows_the_head_of_the_worst_element(layout: str) -> None:
    """The worst element, found by its own arithmetic from the flat index, is in the batch, head, row and column that are shown."""
    for seed in range(1, 30):
        case = case_with(seed, layout=layout, scenario=SCENARIOS, batch=("2", "1"))
        scene = Scene(case)
        expected = reference(case, materialize(case), scene=scene)
        free = expected.compare["attentionOut"].copy()
        if expected.fixed is not None:
            free &= ~expected.fixed
        if free.any() and scene.Q_N > 1:
            break
    else:
        pytest.fail(f"no call with several heads under {layout}")
    at = tuple(int(n) for n in np.argwhere(free)[-1])
    grids, _ = pictures(case, spoil_one(3000.0, at))
    error = grids[0]
    axes = scene.layout.output if scene.layout is not None else ""
    where = dict(zip(axes, at))
    head, column = (where["N"], where["D"]) if "H" not in where else divmod(where["H"], scene.V_D or 1)
    if scene.packed:
        lens = scene.q_lens or ()
        starts = np.cumsum([0, *lens])
        batch = max(b for b in range(len(lens)) if starts[b] <= where["T"] and lens[b])
        row, rows = where["T"] - int(starts[batch]), lens[batch]
    else:
        batch, row, rows = where["B"], where["S"], scene.Q_S or 0
    assert error.where == f"batch {batch}, query head {head}"
    assert error.shape == (rows, scene.V_D)
    assert error.worst == (coarse(row, rows), coarse(column, scene.V_D or 1))
    assert error.cells[error.worst[0]][error.worst[1]] in "56789"


@pytest.mark.parametrize("layout", ["BSND", "TND"])
def test_lse_shows_rows_over_heads(layout: str) -> None:
    case = case_with(layout=layout, lse="on", group=("gqa", "mha"), q_s="2-16", batch=("2", "1"), length_relation=("equal", "q_shorter"))
    scene = Scene(case)
    expected = reference(case, materialize(case), scene=scene)
    free = np.argwhere(expected.compare["softmaxLse"] & np.isfinite(expected.outputs["softmaxLse"]))
    at = tuple(int(n) for n in free[len(free) // 2])

    def spoil(outputs: dict[str, Any], scene: Scene) -> None:
        outputs["softmaxLse"][at] += 50.0

    (error, *_), _ = pictures(case, spoil)
    assert error.output == "softmaxLse" and error.columns == "query head" and error.where.endswith("all query heads")
    head = at[1]
    assert error.shape[1] == scene.Q_N and error.worst is not None and error.worst[1] == coarse(head, scene.Q_N)
    assert sum(sign in "123456789" for line in error.cells for sign in line) == 1


def test_causal_mask_is_a_triangle() -> None:
    needs = {"q_lengths": "absent", "kv_lengths": "absent", "storage": "contiguous", "prefix": "none", "pse": "none"}
    case = case_with(layout="BNSD", sparse_mode="3", q_s="2-16", length_relation="equal", **needs)
    scene = Scene(case)
    grids, _ = pictures(case, spoil_one(3000.0, (0, 0, 1, 0)))
    mask = grids[-1]
    rows, columns = scene.Q_S or 0, scene.KV_S or 0
    assert mask.kind == "mask" and rows == columns <= EDGE
    assert mask.cells == tuple("." * (i + 1) + "#" * (columns - i - 1) for i in range(rows))


def test_rows_without_a_computation_are_told_apart() -> None:
    case = case_with(layout="BNSD", q_lengths="zero", batch=("2", "3+"), q_s="2-16")
    scene = Scene(case)
    expected = reference(case, materialize(case), scene=scene)
    assert expected.fixed is not None and expected.fixed.any()
    batch = int(np.argwhere(expected.fixed)[0][0])
    grids, _ = pictures(case, spoil_one(5.0, (batch, 0, 0, 0)))
    assert {sign for line in grids[0].cells for sign in line} >= {"0"}


def test_large_heads_are_coarse_and_keep_the_worst() -> None:
    case = case_with(layout="BNSD", q_s="17+", head_size="128", batch="1")
    scene = Scene(case)
    rows = scene.Q_S or 0
    grids, _ = pictures(case, spoil_one(3000.0, (0, 0, rows - 1, 127)))
    error = grids[0]
    assert error.shape == (rows, 128) and len(error.cells) == min(rows, EDGE) and all(len(line) == EDGE for line in error.cells)
    assert error.worst == (min(rows, EDGE) - 1, EDGE - 1)


# ---- on their way ---------------------------------------------------------------------------------------------------


def executor_of(name: str) -> Executor:
    from fiafuzz.backends.registry import get_backend

    return Executor(get_backend(name, PROFILE), "", profile=PROFILE)


def job_for(case: Case, **fields: Any) -> Job:
    return Job(1, case, **fields)


def test_executor_draws_on_demand_only() -> None:
    pytest.importorskip("torch")
    executor = executor_of("faulty:scale-twice")
    case: Optional[Case] = None
    for seed in range(1, 20):
        case = case_with(seed, layout="BNSD", q_s="2-16", mask="none")
        if not (executor.execute(job_for(case)).judged or Judged(True)).passed:
            break
    assert case is not None
    assert executor.execute(job_for(case)).pictures == ()
    drawn = executor.execute(job_for(case, pictures=True)).pictures
    assert drawn and drawn[0].kind == "error" and any(sign in "123456789" for line in drawn[0].cells for sign in line)
    assert executor_of("cpu").execute(job_for(case, pictures=True)).pictures == ()


def test_a_picture_that_cannot_be_drawn_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    import oracles.picture

    def broken(*_: Any) -> Any:
        raise RuntimeError("no")

    monkeypatch.setattr(oracles.picture, "error_pictures", broken)
    executor = executor_of("faulty:scale-twice")
    for seed in range(1, 20):
        found = executor.execute(job_for(case_with(seed, layout="BNSD", q_s="2-16", mask="none"), pictures=True))
        if found.judged is not None and not found.judged.passed:
            break
    assert found.kind == "ok" and found.judged is not None and found.judged.code and found.pictures == ()


def test_fields_travel() -> None:
    """What the oracle draws and what events carry have the same fields."""
    from fiafuzz.campaign.results import Picture

    assert tuple(f.name for f in dataclasses.fields(Grid)) == Picture.__struct_fields__
