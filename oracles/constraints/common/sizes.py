"""Limits of B, S and T, and calls with empty tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Optional

from fiafuzz.model.scene import Scene

from ..changes import resize
from ..documents import ALL_DOCUMENTS, V5_CHECKED, V5_LINE
from ..rule import ALL_950, DOC_A2A3_V3, Basis, Boundary, Break, Effect, Level, Stage, Words, never
from .recipes import NO_LENGTHS, PLAIN, axis_everywhere, common_rule, query_heads

LARGEST_BATCH = 65536
LONGEST = 20971520
"""20 x 2**20 tokens."""

_BATCH = ("query", "key", "value", "attentionOut")
_BATCH_LAYOUTS = ("BSH", "BSND", "BNSD")
_PLAIN_BATCH: Words = {**NO_LENGTHS, "storage": "contiguous", "layout": _BATCH_LAYOUTS}


def _negative(s: Scene) -> bool:
    for axes in (s.q_axes, s.k_axes):
        if axes is not None and (axes.get("T", 0) < 0 or (axes is s.k_axes and axes.get("S", 0) < 0)):
            return True
    return False


def _long(s: Scene) -> bool:
    return any(axes is not None and axes.get("S", 0) > LONGEST for axes in (s.q_axes, s.k_axes))


def _enormous(s: Scene) -> Optional[Mapping[str, object]]:
    if s.KV_N != 1:
        return None
    named = Scene(s.case.replace(numKeyValueHeads=1))
    heads = query_heads(LARGEST_BATCH)(named)
    if heads is None:
        return None
    batch = axis_everywhere("B", LARGEST_BATCH, *_BATCH)(Scene(named.case.replace(**heads)))
    return None if batch is None else {"numKeyValueHeads": 1, **heads, **batch}


RULES = (
    common_rule(
        71, "the batch size is 1 to 65536", level=Level.CONSISTENCY, profiles=V5_LINE | DOC_A2A3_V3,
        cites=("v5.common.consistency.batch_limit", "v3.common.single.qs_gt1_b_max", "v3.common.single.qs_eq1_b_max"),
        enforced_by="CheckAxis, CheckTensorList", when=lambda s: s.B is not None and s.B != 0,
        requires=lambda s: s.B is not None and 0 < s.B <= LARGEST_BATCH, limit="1 .. 65536",
        breaks=(Break("above", axis_everywhere("B", LARGEST_BATCH + 1, *_BATCH), _PLAIN_BATCH),),
        boundaries=(Boundary(axis_everywhere("B", LARGEST_BATCH, *_BATCH),
                             axis_everywhere("B", LARGEST_BATCH + 1, *_BATCH), _PLAIN_BATCH, limit="65536"),
                    Boundary(axis_everywhere("B", 1, *_BATCH), None, _PLAIN_BATCH, limit="1")),
        note="A batch of 0 makes query empty.",
    ),
    common_rule(
        72, "S of key and the packed token counts are not negative", level=Level.CONSISTENCY, profiles=ALL_950,
        cites=("v5.common.consistency.t_axis",), enforced_by="CheckAxis",
        when=lambda s: s.q_axes is not None, requires=lambda s: not _negative(s), limit="0",
        breaks=(Break("below", axis_everywhere("S", -1, "key", "value"), _PLAIN_BATCH),),
        boundaries=(Boundary(axis_everywhere("S", 0, "key", "value"), axis_everywhere("S", -1, "key", "value"),
                             _PLAIN_BATCH, limit="0 (an empty call)"),),
    ),
    common_rule(
        73, "a negative S of query keeps the host busy for minutes", level=Level.SINGLE, profiles=ALL_950, cites=(),
        stage=Stage.TILING, basis=Basis.SOURCE, effect=Effect.HANG, enforced_by="loop over S in tiling",
        when=lambda s: s.q_axes is not None and s.q_axes.get("S", 0) < 0, requires=never,
        breaks=(Break("below", axis_everywhere("S", -1, "query", "attentionOut"),
                      {**NO_LENGTHS, "layout": ("BSH", "BSND", "BNSD")}),),
        note="Measured with some hundred batches. A real tensor can hardly have such a shape.",
    ),
    common_rule(
        74, "an enormous B x numHeads keeps the host busy for minutes", level=Level.CONSISTENCY, profiles=ALL_950,
        cites=(), stage=Stage.TILING, basis=Basis.SOURCE, effect=Effect.HANG, enforced_by="loop over B x N in tiling",
        when=lambda s: s.B is not None and s.Q_N > 0 and s.B * s.Q_N >= 1 << 32, requires=never,
        breaks=(Break("above", _enormous, {**NO_LENGTHS, "layout": _BATCH_LAYOUTS,
                                                   "storage": "contiguous"}),),
        note="Measured with 65536 x 65536.",
    ),
    common_rule(
        75, "query and attentionOut are empty together", level=Level.EXISTENCE, profiles=V5_CHECKED,
        cites=("v5.common.existence.query_out_empty_together",), stage=Stage.PARSER,
        enforced_by="GetEmptyTensorFlag", when=lambda s: s.query is not None and s.out is not None,
        requires=lambda s: s.empty_query == s.empty_out,
        breaks=(Break("pair", resize("attentionOut", 0, 0), {**PLAIN, "layout": _BATCH_LAYOUTS}),
                Break("pair", resize("query", 1, 0), {**PLAIN, "layout": ("BSH", "BSND"), "q_lengths": "absent"})),
    ),
    common_rule(
        76, "sequences are at most 20971520 tokens long", level=Level.SINGLE, profiles=ALL_DOCUMENTS,
        cites=("v5.common.consistency.seq_limit_20m", "v3.common.single.qs_gt1_s_max"), basis=Basis.DOCUMENTED,
        effect=Effect.UNSPECIFIED, enforced_by="nothing (a warning)",
        when=lambda s: s.q_axes is not None and not s.single_token, requires=lambda s: not _long(s), limit="20971520",
        breaks=(Break("above", axis_everywhere("S", LONGEST + 1, "key", "value"),
                      {**NO_LENGTHS, "storage": "contiguous", "layout": ("BSH", "BSND", "BNSD"),
                       "q_s": ("2-16", "17+")}),),
        boundaries=(Boundary(axis_everywhere("S", LONGEST, "key", "value"),
                             axis_everywhere("S", LONGEST + 1, "key", "value"),
                             {**NO_LENGTHS, "storage": "contiguous", "layout": ("BSH", "BSND", "BNSD"),
                              "q_s": ("2-16", "17+")}, limit="20971520"),),
        note="Very long sequences may end in a time-out of the kernel.",
    ),
)
