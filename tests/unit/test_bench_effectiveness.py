"""The effectiveness bench: its statistics are right, and its shortcuts change no answer."""

from __future__ import annotations

import json
import zlib
from math import erfc, inf, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fiafuzz.backends.faults import all_faults, fault_by_name
from fiafuzz.backends.faulty import faulty_backend
from fiafuzz.campaign.execute import Executor
from fiafuzz.campaign.plan import Plan
from fiafuzz.campaign.proposals import proposals
from fiafuzz.campaign.triage import plain_case
from fiafuzz.campaign.verdict import decide
from fiafuzz.campaign.wire import Job
from fiafuzz.model.case import Case
from fiafuzz.model.profiles import PROFILES
from fiafuzz.model.scene import Scene
from fiafuzz.model.tensors import Tensors, materialize
from oracles.constraints.predict import predict
from strategies.cases import generate
from tests.benchmarks import bench_effectiveness as bench
from tests.benchmarks.effectiveness_hunt import Hunt, in_child
from tests.benchmarks.effectiveness_report import Runs, collect, duel, duels, overview
from tests.benchmarks.effectiveness_statistics import a12, censored_median, p_value, size_class
from tests.benchmarks.effectiveness_tools import TOOLS, EvenSource, changed, even_case

PROFILE = "950-v5"


def cases(count: int, seed: int = 3, mode: str = "valid") -> list[Case]:
    return [item.case for item in generate(PROFILE, mode, count, seed)]


# ---- statistics -------------------------------------------------------------------------------


def normal_p(u: float, n: int, m: int, ties: tuple[int, ...]) -> float:
    """The two-sided p of U by the textbook: normal approximation, continuity, and the variance without what ties take."""
    total = n + m
    variance = n * m / 12 * (total + 1 - sum(t**3 - t for t in ties) / (total * (total - 1)))
    return erfc((abs(u - n * m / 2) - 0.5) / sqrt(2 * variance))


@pytest.mark.parametrize(
    "first, second, u, ties",
    [
        ([1, 2, 3], [4, 5, 6], 0, ()),
        ([1, 1, 2, 5], [1, 3, 3, 9, 9], 5, (3, 2, 2)),
        ([3, 4, inf, inf], [7, inf, inf, inf], 5, (5,)),
        ([2, 4, 6, 8, 10], [1, 3, 5, 7, 9], 15, ()),
    ],
)
def test_p_is_that_of_the_textbook_with_ties_and_without(first: list[float], second: list[float], u: float, ties: tuple[int, ...]) -> None:
    wanted = normal_p(u, len(first), len(second), ties)
    assert p_value(first, second) == pytest.approx(wanted, rel=1e-12)
    assert p_value(second, first) == pytest.approx(wanted, rel=1e-12)


def test_how_far_off_infinity_is_does_not_count() -> None:
    assert p_value([1, 2, inf], [3, inf, inf]) == p_value([1, 2, 501], [3, 501, 501])
    assert p_value([inf] * 3, [inf] * 5) == 1.0
    with pytest.raises(ValueError, match="no values"):
        p_value([], [1])


def test_a12_counts_pairs_and_halves_ties() -> None:
    assert a12([1, 2], [3, 4]) == 1.0
    assert a12([3, inf], [1, 2]) == 0.0
    assert a12([1, inf], [1, inf]) == 0.5
    assert a12([1, 2, 3], [2, 2]) == pytest.approx(0.5)
    assert a12([1, 5], [2, 4, inf]) == pytest.approx(4 / 6)
    with pytest.raises(ValueError, match="no values"):
        a12([1], [])


def test_classes_begin_where_vargha_and_delaney_say() -> None:
    assert [size_class(a) for a in (0.5, 0.55, 0.56, 0.63, 0.64, 0.70, 0.71, 1.0)] == [
        "negligible", "negligible", "small", "small", "medium", "medium", "large", "large",
    ]
    assert [size_class(1 - a) for a in (0.55, 0.56, 0.64, 0.71)] == ["negligible", "small", "medium", "large"]


def test_a_median_is_not_made_up() -> None:
    assert censored_median([5, 1, inf]) == 5
    assert censored_median([1, 2, 3, inf]) == 2.5
    assert censored_median([1, 2, inf, inf]) == inf
    assert censored_median([inf, 1]) == inf
    with pytest.raises(ValueError, match="empty"):
        censored_median([])


# ---- the hunt ---------------------------------------------------------------------------------


def alone(name: str, stream: list[Case]) -> tuple[int, str] | None:
    """After how many cases a fault is found, and how, without any shortcut."""
    backend = faulty_backend(name, PROFILE)
    executor = Executor(backend, "", profile=PROFILE, setup=Hunt(PROFILE, (), 1).sound.setup)
    for number, case in enumerate(stream, 1):
        result = executor.execute(Job(number, case, foresee=True))
        assert result.about is not None
        verdict = decide(result.about.foreseen, result)
        if verdict.failed:
            return number, verdict.code or ""
    return None


VALID = tuple(f for f in all_faults() if f.profile == PROFILE and f.mode == "valid" and f.kind != "process" and f.expect != "F105")


@pytest.fixture(scope="module")
def stream() -> list[Case]:
    return cases(16)


@pytest.fixture(scope="module")
def hunted(stream: list[Case]) -> Hunt:
    hunt = Hunt(PROFILE, VALID, len(stream))
    for case in stream:
        hunt.take(case)
    return hunt


def test_scopes_hide_nothing(stream: list[Case]) -> None:
    wide, hunted = (Hunt(PROFILE, VALID, 5, scoped=scoped) for scoped in (False, True))
    for case in stream[:5]:
        wide.take(case)
        hunted.take(case)
    # A kernel of another kind may trip over a fault that is not meant for it (F301): no sign of the fault itself.
    tripped = {n for n, f in wide.found.items() if f.code == "F301"}
    found = [{n: (f.cases, f.code) for n, f in hunt.found.items() if n not in tripped} for hunt in (wide, hunted)]
    assert found[0] == found[1] and len(tripped) < 8
    assert len(hunted.found) > 20
    assert hunted.seen.alarms == [] and hunted.seen.accepted == 5


@pytest.mark.parametrize("name", ["scale-twice", "lse-sign", "rejects-packed-sink", "table-ignored", "whole-sixteens"])
def test_a_fault_is_found_when_a_worker_alone_finds_it(name: str, stream: list[Case], hunted: Hunt) -> None:
    find = hunted.found.get(name)
    assert (None if find is None else (find.cases, find.code)) == alone(name, stream)


@pytest.mark.parametrize(
    "name, change, pure", [("heads-code", {"numKeyValueHeads": 3}, 1), ("inner-precise-unchecked", {"innerPrecise": -1}, 2)]
)
def test_checks_are_found_on_invalid_calls_as_a_worker_alone_finds_them(name: str, change: dict[str, int], pure: int) -> None:
    fault, plain = fault_by_name(name), plain_case("950", "v5")
    tried = [plain, plain.replace(sparseMode=9), plain.replace(**change)]
    hunt = Hunt(PROFILE, (fault,), 9)
    for case in tried:
        hunt.take(case)
    find = hunt.found[name]
    assert (find.cases, find.code) == alone(name, tried) == (3, fault.expect)
    assert (hunt.seen.accepted, hunt.seen.refused, hunt.seen.pure, hunt.seen.alone) == (1, 2, pure, pure)


def test_no_fault_alters_the_tensors_that_all_share(stream: list[Case]) -> None:
    hunt = Hunt(PROFILE, VALID, 12)
    for case in stream[:12]:
        hunt.take(case)
        assert checksums(hunt.sound.kept.tensors) == checksums(materialize(case)), case.digest
    assert len(hunt.found) > 30


def checksums(tensors: Tensors) -> list[int]:
    items = [a for value in tensors.values() for a in (value if isinstance(value, list) else [value])]
    return [0 if a is None else zlib.crc32(np.ascontiguousarray(a).tobytes()) for a in items]


def test_the_clock_is_the_tools_own(stream: list[Case], hunted: Hunt) -> None:
    assert hunted.seen.working > 0 and hunted.seen.making >= 0
    spent = [hunted.found[n].seconds for n in sorted(hunted.found, key=lambda n: hunted.found[n].cases)]
    assert spent == sorted(spent) and spent[-1] <= hunted.seconds


def test_a_false_alarm_is_told_and_finds_no_fault(stream: list[Case]) -> None:
    hunt = Hunt(PROFILE, (fault_by_name("scale-twice"),), 9)
    hunt.sound.backend = faulty_backend("scale-twice", PROFILE)
    for case in stream[:4]:
        hunt.take(case)
    assert len(hunt.seen.alarms) >= 2 and hunt.seen.alarms[0].startswith("F101") and not hunt.found


def test_deaths_are_looked_for_in_a_child() -> None:
    case = plain_case("950", "v5")
    tensors = materialize(case)
    assert in_child(faulty_backend("scale-twice", PROFILE), case, tensors).kind == "ok"
    causal = next(c for c in cases(200) if c.attrs.sparseMode == 3)
    assert in_child(faulty_backend("hang", PROFILE), causal, materialize(causal), limit=2.0).kind == "hang"
    biased = next(c for c in cases(200) if c.inputs.pseShift is not None)
    assert in_child(faulty_backend("raises", PROFILE), biased, materialize(biased)).kind == "error"
    masked = next(c for c in cases(200) if c.inputs.attenMask is not None and c.attrs.sparseMode == 0)
    assert in_child(faulty_backend("oom", PROFILE), masked, materialize(masked)).kind == "oom"
    odd = next(c for c in cases(200) if (Scene(c).KV_S or 0) % 2 and c.inputs.query is not None and not c.inputs.query.empty)
    assert in_child(faulty_backend("crash", PROFILE), odd, materialize(odd)).signal == 11


# ---- the tools --------------------------------------------------------------------------------


def played(tool: str, mode: str, limit: int, seed: int = 5) -> list[Case]:
    """The stream of a tool."""
    taken: list[Case] = []

    class Listening(Hunt):
        def take(self, case: Case, number: int = 0) -> Any:
            taken.append(case)
            return super().take(case, number)

    TOOLS[tool][0](Listening(PROFILE, (), limit, least=limit), mode, seed)
    return taken


@pytest.mark.parametrize("tool, mode", [("random", "valid"), ("random", "invalid"), ("hypothesis", "invalid"), ("hypothesis", "disputed")])
def test_a_seed_gives_one_stream_of_the_right_length(tool: str, mode: str) -> None:
    first = played(tool, mode, 12)
    assert len(first) == 12 and first == played(tool, mode, 12) and first != played(tool, mode, 12, seed=6)


def test_fiafuzz_plays_the_phases_of_a_campaign() -> None:
    taken = played("fiafuzz", "valid", 40)
    plan = Plan(seed=5, mode="valid")
    pairwise = [p.case for _, p in zip(range(8), proposals("pairwise", plan, PROFILE))]
    bulk = [p.case for _, p in zip(range(26), proposals("bulk", plan, PROFILE))]
    assert len(taken) == 40 and taken[:8] == pairwise and taken[14:] == bulk
    assert all(predict(case, PROFILE).verdict == "accept" for case in taken)


def test_faults_do_not_change_the_stream_of_fiafuzz() -> None:
    taken: list[str] = []

    class Listening(Hunt):
        def take(self, case: Case, number: int = 0) -> Any:
            taken.append(case.digest)
            return super().take(case, number)

    TOOLS["fiafuzz"][0](Listening(PROFILE, VALID, 40, least=40), "valid", 5)
    assert taken == [case.digest for case in played("fiafuzz", "valid", 40)]


def test_uniform_draws_know_all_words_and_make_calls_of_all_kinds() -> None:
    source = EvenSource("t")
    made = [even_case(source, PROFILE, "valid") for _ in range(300)]
    verdicts = [predict(case, PROFILE).verdict for case in made]
    assert verdicts.count("accept") >= 3 and verdicts.count("reject") >= 100
    assert len({case.attrs.inputLayout for case in made}) == 13 and len({case.attrs.sparseMode for case in made}) == 5
    assert all(changed(case, source) != case for case in made)


@pytest.mark.parametrize("profile", ["950-v5", "950-v5-2026.08", "a2-v3"])
def test_uniform_draws_reach_every_profile_of_a_fault(profile: str) -> None:
    case = even_case(EvenSource("t"), profile, "valid")
    assert (case.api, case.product) == (PROFILES[profile].api, PROFILES[profile].product)


# ---- store and report -------------------------------------------------------------------------


def line(tool: str, seed: int, found: dict[str, list[Any]], hidden: list[str]) -> dict[str, Any]:
    counts = {"cases": 10, "accepted": 8, "refused": 2, "pure": 1, "alone": 1, "making": 0.1, "working": 0.2, "alarms": []}
    told = {"found": found, "hidden": hidden, "coverage": {"100": [0.5, 0.25, 0.125]}}
    streams = [{"profile": PROFILE, "mode": "valid", **counts, **told}]
    return {"format": bench.FORMAT, "tool": tool, "seed": seed, "limit": 10, "streams": streams, "cpu": 1, "machine": "m", "versions": "v"}


def test_the_report_counts_what_was_found_and_what_not() -> None:
    faults = [fault_by_name("scale-twice"), fault_by_name("lse-sign")]
    lines = [line("fiafuzz", seed, {"scale-twice": [seed, 0.5, "F101"], "lse-sign": [2, 0.1, "F101"]}, []) for seed in range(1, 7)]
    lines += [line("random", seed, {"lse-sign": [2, 0.1, "F101"]}, ["scale-twice"]) for seed in range(1, 7)]
    lines += [line("tables", 0, {"scale-twice": [3, 0.2, "F101"]}, ["lse-sign"])]
    runs = collect(lines)
    view = overview(runs, faults, (100,), PROFILE).splitlines()
    assert "| faults found in every run | 2 | 1 | 1 |" in view and "| faults found at all | 2 | 1 | 1 |" in view
    assert "| accepted of the calls meant to be valid | 80.0 % | 80.0 % | 80.0 % |" in view
    assert "| 1/2/3-way coverage after 100 cases | 50.0 / 25.0 / 12.5 % | 50.0 / 25.0 / 12.5 % | 50.0 / 25.0 / 12.5 % |" in view
    one = duel("scale-twice", runs["fiafuzz"], runs["random"])
    assert (one.first, one.second, one.effect, one.won, one.lost) == (3.5, inf, 1.0, True, False)
    other = duel("scale-twice", runs["fiafuzz"], runs["tables"])
    assert (other.second, other.won, other.lost) == (3.0, False, False) and other.effect == pytest.approx(2.5 / 6)
    told = duels(runs, faults)
    assert "| fiafuzz against random | cases | 1 | 1 | 0 | 1 | 0 | 1 / 0 / 0 | 0.75 |" in told
    assert "| fiafuzz against tables | seconds | 1 | 0 | 1 | 1 | 1 | 1 / 0 / 0 | 0.50 |" in told
    assert "Later than tables: scale-twice (3.5 : 3.0, p" in told and "Median as that of random: lse-sign (2.0)." in told


def test_a_run_that_stands_for_many_is_as_many() -> None:
    once = Runs()
    once.add(line("tables", 0, {"lse-sign": [4, 0.1, "F101"]}, []))
    assert once.of("lse-sign", 5) == [4, 4, 4, 4, 4]


def test_the_bench_goes_on_where_it_stopped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "e.md"
    arguments = ["--faults", "scale-twice", "--limit", "6", "--tools", "random", "--out", str(out), "--seeds"]
    bench.main([*arguments, "1"])
    first = out.with_suffix(".jsonl").read_text()
    with out.with_suffix(".jsonl").open("a") as store:
        store.write(first[: len(first) // 2] + "\n")
    bench.main([*arguments, "2"])
    kept = [json.loads(text) for text in out.with_suffix(".jsonl").read_text().splitlines() if text.endswith("}")]
    assert [(one["tool"], one["seed"]) for one in kept] == [("random", 1), ("random", 2)] and json.loads(first) == kept[0]
    assert kept[0]["streams"][0]["cases"] == 6
    capsys.readouterr()
    bench.main([*arguments, "2", "--report"])
    assert "| runs | 2 |" in capsys.readouterr().out and "| scale-twice | 950-v5 valid |" in out.read_text()


def test_runs_of_another_bench_are_not_counted(tmp_path: Path) -> None:
    faults = [fault_by_name("lse-sign")]
    store = tmp_path / "s.jsonl"
    good, other = line("random", 1, {}, ["lse-sign"]), line("random", 2, {}, ["scale-twice"])
    store.write_text("".join(json.dumps(one) + "\n" for one in (good, other, {**good, "limit": 11}, {**good, "format": 0})))
    assert bench.read_store(store, 10, faults) == [good]
    left = bench.missing(("fiafuzz", "random", "tables"), (1, 2), [good])
    assert left == [("tables", 0), ("fiafuzz", 1), ("fiafuzz", 2), ("random", 2)]


def test_every_fault_is_in_one_stream_of_each_tool() -> None:
    for tool in TOOLS:
        names = [fault.name for _, _, group in bench.streams(tool, all_faults()) for fault in group]
        assert sorted(names) == sorted(fault.name for fault in all_faults())
