"""Ranks and axes: the shapes of query, key, value and attentionOut under each inputLayout, and how they agree."""

from __future__ import annotations

from typing import Optional

from fiafuzz.model.layouts import LAYOUTS
from fiafuzz.model.scene import Scene

from ..changes import add_axis, head_size, merge_axes, resize, widen
from ..documents import ALL_PROFILES, V5_CHECKED, V5_DOCUMENTS, V5_LINE
from ..facts import scene_fact
from ..rule import DOC_A2A3_V3, SRC_A2A3_V3, Basis, Break, Level, Stage, Words
from .head_size import within
from .recipes import PLAIN, common_rule

_LAYOUT_CITES = tuple(f"v5.interface.consistency.layout_{n.lower()}" for n in LAYOUTS)
"""The thirteen statements that spell out the shapes of one layout each."""

_FREE_B = frozenset({"BSH_BNSD", "BSH_NBSD"})
"""Layouts whose attentionOut the host reads at its N and D axes only."""

_CONTIGUOUS: Words = {**PLAIN, "storage": "contiguous"}
_ALL = tuple(LAYOUTS)
_SAME = tuple(n for n in LAYOUTS if "_" not in n)
_TRANSPOSED = tuple(n for n in LAYOUTS if "_" in n)


def _combined_or_unequal(s: Scene) -> bool:
    return s.Q_D != s.V_D


@scene_fact
def expected_out(s: Scene) -> Optional[dict[str, int]]:
    """Axis letter -> size that attentionOut should have, None when it cannot be derived."""
    if s.layout is None or s.q_axes is None or s.V_D is None or s.Q_D is None or s.Q_N <= 0:
        return None
    found = {"N": s.q_axes.get("N", s.Q_N), "D": s.V_D, "H": s.Q_N * s.V_D}
    for axis in ("B", "S", "T"):
        if axis in s.q_axes:
            found[axis] = s.q_axes[axis]
    return found if all(a in found for a in s.layout.output) else None


def _known_out(s: Scene) -> bool:
    return s.out is not None and s.layout is not None and s.q_axes is not None and not s.empty_out and not s.empty_query


def _out_rank(s: Scene) -> bool:
    assert s.out is not None and s.layout is not None
    rank = len(s.layout.output)
    return s.out.rank >= rank if s.layout_name in _FREE_B else s.out.rank == rank


def _out_comparable(s: Scene) -> bool:
    return _known_out(s) and _out_rank(s) and expected_out(s) is not None and within(s)


def _same_axes(s: Scene) -> bool:
    """Whether attentionOut agrees with query; its last axis only where value is not compared with it anyway."""
    wanted, shape, layout = expected_out(s), s.shape("attentionOut"), s.layout
    assert wanted is not None and shape is not None and layout is not None
    axes = layout.output
    if s.storage == "contiguous" or _combined_or_unequal(s):
        axes, shape = axes[:-1], shape[:-1]
    return all(wanted[a] == n for a, n in zip(axes, shape))


def _transposed_axes(s: Scene) -> bool:
    wanted, shape, layout = expected_out(s), s.shape("attentionOut"), s.layout
    assert wanted is not None and shape is not None and layout is not None
    if s.layout_name in _FREE_B:
        heads, d = shape[layout.output.index("N")], shape[3]
        if s.storage == "contiguous" or _combined_or_unequal(s):
            return heads == s.Q_N
        return heads * d == s.Q_N * wanted["D"]
    return all(wanted[a] == n for a, n in zip(layout.output, shape) if a not in "BD")


def _out_d(s: Scene) -> Optional[int]:
    shape, layout = s.shape("attentionOut"), s.layout
    if shape is None or layout is None or len(shape) < len(layout.output):
        return None
    size = shape[len(layout.output) - 1]
    if layout.output[-1] == "D":
        return size
    return size // s.Q_N if s.Q_N > 0 and size % s.Q_N == 0 else -1


def _comparable_kv(s: Scene) -> bool:
    return s.storage == "contiguous" and s.k_axes is not None and s.v_axes is not None and s.KV_N > 0


def _kv_agree(s: Scene) -> bool:
    k, v = s.key_shape, s.value_shape
    return k is not None and v is not None and k[:-1] == v[:-1]


def _free_axes_agree(s: Scene) -> bool:
    wanted, out, layout = expected_out(s), s.out_axes, s.layout
    if wanted is None or out is None or layout is None:
        return out is not None
    free = "BS" if s.layout_name in _FREE_B else "B"
    free += "D" if s.storage != "contiguous" and s.layout_name not in _FREE_B else ""
    return all(wanted[a] == n for a, n in out.items() if a in free)


def _written_out(s: Scene) -> bool:
    wanted, out = expected_out(s), s.out_axes
    return wanted is not None and out is not None and all(wanted[a] == n for a, n in out.items())


RULES = (
    common_rule(
        51, "query has the rank of its layout", level=Level.SINGLE, profiles=ALL_PROFILES,
        cites=("v5.common.single.query_dim_num", *_LAYOUT_CITES, "v3.common.single.query_table"),
        stage=Stage.PARSER, enforced_by="CheckHasAxis, CheckDimNum",
        when=lambda s: s.query is not None and s.layout is not None, requires=lambda s: s.q_axes is not None,
        limit="BSH, TND, NTD: 3; BSND, BNSD: 4",
        breaks=(Break("rank", add_axis("query"), PLAIN), Break("rank", merge_axes("query"), PLAIN)),
    ),
    common_rule(
        52, "key has the rank of the layout", level=Level.SINGLE, profiles=ALL_PROFILES,
        cites=("v5.common.single.key_dim_num", *_LAYOUT_CITES, "v3.common.single.key_table"),
        enforced_by="CheckDimNum",
        when=lambda s: s.storage == "contiguous" and s.key_shape is not None and s.layout is not None,
        requires=lambda s: s.k_axes is not None, limit="as query",
        breaks=(Break("rank", add_axis("key"), _CONTIGUOUS), Break("rank", merge_axes("key"), _CONTIGUOUS)),
    ),
    common_rule(
        53, "value has the rank of the layout", level=Level.SINGLE, profiles=ALL_PROFILES,
        cites=("v5.common.single.key_dim_num", *_LAYOUT_CITES, "v3.common.single.value_table"),
        stage=Stage.PARSER, enforced_by="CheckHasAxis",
        when=lambda s: s.storage == "contiguous" and s.value_shape is not None and s.layout is not None,
        requires=lambda s: s.v_axes is not None, limit="as query",
        breaks=(Break("rank", add_axis("value"), _CONTIGUOUS), Break("rank", merge_axes("value"), _CONTIGUOUS)),
    ),
    common_rule(
        54, "attentionOut has the rank of its layout", level=Level.CONSISTENCY, profiles=V5_CHECKED,
        cites=("v5.common.consistency.out_rank", *_LAYOUT_CITES), enforced_by="CheckQueryOutConsistency",
        when=_known_out, requires=_out_rank, limit="as the output layout; BSH_BNSD and BSH_NBSD: at least 4",
        breaks=(Break("rank", add_axis("attentionOut"), {**PLAIN, "layout": _SAME}),
                Break("rank", merge_axes("attentionOut"), {**PLAIN, "layout": _ALL})),
    ),
    common_rule(
        55, "attentionOut has the axes of query", level=Level.CONSISTENCY, profiles=V5_CHECKED,
        cites=("v5.common.consistency.out_axes_equal", "v5.interface.consistency.num_heads_vs_query_n",
               "v5.common.consistency.out_d_equals_value_d", *_LAYOUT_CITES),
        enforced_by="CheckQueryOutConsistency",
        when=lambda s: _out_comparable(s) and s.layout is not None and not s.layout.transposed, requires=_same_axes,
        breaks=(
            *(Break("axis", widen("attentionOut", a), {**PLAIN, "layout": _SAME}) for a in ("B", "S", "N", "T")),
            Break("axis", widen("attentionOut", -1), {**PLAIN, "layout": _SAME, "storage": "tensor_list"}),
        ),
        note="The last axis is compared with value where storage is contiguous, with nothing where head sizes differ.",
    ),
    common_rule(
        56, "attentionOut of a transposed layout has the axes of query", level=Level.CONSISTENCY, profiles=V5_CHECKED,
        cites=("v5.common.consistency.out_axes_equal_transposed", *_LAYOUT_CITES),
        enforced_by="CheckQueryOutConsistency",
        when=lambda s: _out_comparable(s) and s.layout is not None and s.layout.transposed, requires=_transposed_axes,
        breaks=(Break("axis", widen("attentionOut", "N"), {"layout": _TRANSPOSED}),
                Break("axis", widen("attentionOut", "S"), {"layout": tuple(n for n in _TRANSPOSED if "BSH" not in n)}),
                Break("axis", widen("attentionOut", "T"), {"layout": ("NTD_TND", "TND_NTD")})),
    ),
    common_rule(
        57, "attentionOut has the head size of value", level=Level.CONSISTENCY, profiles=V5_CHECKED,
        cites=("v5.common.consistency.out_d_equals_value_d", "v5.common.consistency.prefill_mla_head_dims",
               *_LAYOUT_CITES),
        enforced_by="CheckValueOutDConsistency",
        when=lambda s: s.storage == "contiguous" and _out_comparable(s), requires=lambda s: _out_d(s) == s.V_D,
        breaks=(Break("axis", widen("attentionOut", -1), {"storage": "contiguous"}),
                Break("axis", head_size(lambda _, d: d * 2, "attentionOut"), {"storage": "contiguous"})),
    ),
    common_rule(
        58, "the other axes of a transposed attentionOut agree too, by the document", level=Level.CONSISTENCY,
        profiles=V5_DOCUMENTS, basis=Basis.DOCUMENTED, cites=_LAYOUT_CITES, enforced_by="nothing",
        when=lambda s: (_out_comparable(s) and s.layout is not None and s.layout.transposed and _transposed_axes(s)
                        and (s.storage != "contiguous" or _out_d(s) == s.V_D)),
        requires=_free_axes_agree,
        breaks=(Break("axis", widen("attentionOut", "B"), {"layout": _TRANSPOSED}),
                Break("axis", widen("attentionOut", "D"), {"layout": ("BNSD_BSND", "BSND_BNSD", "BNSD_NBSD"),
                                                           "storage": ("BnNBsD", "BnBsH")})),
        note="B, in BSH_BNSD and BSH_NBSD also S, and with a paged cache or a tensor list also D.",
    ),
    common_rule(
        59, "key has the batch size of query", level=Level.CONSISTENCY, profiles=V5_LINE | DOC_A2A3_V3,
        cites=("v5.common.consistency.key_batch_equals_query", "v3.common.single.key_table"),
        enforced_by="CheckQueryKeyConsistency",
        when=lambda s: s.storage == "contiguous" and not s.packed and s.B is not None and s.k_axes is not None,
        requires=lambda s: s.k_axes is not None and s.k_axes["B"] == s.B,
        breaks=(Break("axis", widen(("key", "value"), "B"), _CONTIGUOUS),
                Break("axis", widen(("key", "value"), "B", -1), {**_CONTIGUOUS, "batch": ("2", "3+")})),
    ),
    common_rule(
        60, "key has the head size of query", level=Level.CONSISTENCY, profiles=V5_LINE | DOC_A2A3_V3,
        cites=("v5.common.consistency.key_d_equals_query_d", "v5.common.consistency.tensor_list_key_d",
               "v3.common.single.key_table", "v3.common.cross.tnd_d_no_rope"),
        enforced_by="CheckKeyDVaild, CheckQueryKeyConsistency, CheckQueryKeyTensorlistConsistency",
        when=lambda s: not s.paged and s.Q_D is not None and s.K_D is not None and within(s),
        requires=lambda s: s.K_D == s.Q_D,
        breaks=(Break("axis", head_size(lambda _, d: d + 1, "key"), _CONTIGUOUS),
                Break("axis", head_size(lambda _, d: d + 16, "key"), {**PLAIN, "storage": "tensor_list"})),
    ),
    common_rule(
        61, "key and value have the same shape but for the last axis", level=Level.CONSISTENCY,
        profiles=V5_LINE | DOC_A2A3_V3,
        cites=("v5.common.consistency.key_value_same_shape", "v5.common.consistency.key_value_same_shape_but_d",
               "v5.common.existence.only_key_empty", "v3.common.consistency.kv_shapes_identical"),
        enforced_by="CheckKeyValueConsistency", when=_comparable_kv, requires=_kv_agree,
        breaks=(
            Break("axis", widen("value", "S"), _CONTIGUOUS), Break("axis", widen("value", "N"), _CONTIGUOUS),
            Break("axis", widen("value", "B"), _CONTIGUOUS), Break("axis", widen("value", "T"), _CONTIGUOUS),
            Break("below", resize("value", "S", 0), _CONTIGUOUS, note="only value without elements"),
        ),
        note="The last axis follows from the head sizes: those of query and key are equal, that of value may differ.",
    ),
    # ---- V3: the output is compared when the result is copied -----------------------------------
    common_rule(
        65, "attentionOut has the shape that follows from query, value and inputLayout", level=Level.CONSISTENCY,
        profiles=DOC_A2A3_V3 | SRC_A2A3_V3, cites=("v3.common.single.attention_out_table",), stage=Stage.OUTPUT,
        enforced_by="copy of the result", when=lambda s: _known_out(s) and expected_out(s) is not None,
        requires=_written_out,
        breaks=(Break("axis", widen("attentionOut", -1), PLAIN), Break("axis", widen("attentionOut", 0), PLAIN),
                Break("rank", add_axis("attentionOut"), PLAIN)),
    ),
)
