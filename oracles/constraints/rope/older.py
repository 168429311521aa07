"""Rope and MLA in the V3 document (A2 and A3)."""

from __future__ import annotations

from typing import Optional

from msgspec.structs import replace

from fiafuzz.model.case import TensorSpec
from fiafuzz.model.layouts import DECODE_MLA_D
from fiafuzz.model.scene import Scene

from ..changes import drop, head_size, put
from ..rule import DOC_A2A3_V3, Basis, Boundary, Break, Change, Level, Rule, Words, never
from .facts import GROUP

_V3 = "v3.rope."
HEADS = frozenset({1, 2, 4, 8, 16, 32, 64, 128})


def _decode(s: Scene) -> bool:
    """Decode MLA outside the packed layouts, which have a section of their own (common room)."""
    return s.mla_kind == "decode" and s.quant_kind == "none" and not s.packed


def query_rows(rows: int) -> Change:
    """A batch call of Decode MLA with so many query tokens."""

    def change(s: Scene) -> Optional[dict[str, object]]:
        if s.layout is None or "S" not in s.layout.inputs or s.inputs.actualSeqLengths or s.lse_on or s.out is None:
            return None
        values: dict[str, object] = {}
        for name, axes in (("query", s.layout.inputs), ("queryRope", s.layout.inputs),
                           ("attentionOut", s.layout.output)):
            spec = s.tensor(name)
            if spec is None or len(spec.shape) != len(axes):
                return None
            at = axes.index("S")
            values[name] = replace(spec, shape=(*spec.shape[:at], rows, *spec.shape[at + 1:]), strides=None)
        return values

    return change


_DECODE: Words = {"scenario": "mla_decode", "layout": ("BSH", "BSND", "BNSD"),
                  "mask_shape": ("none", "2048/2", "2048/3", "2048/4"),
                  "lse": "off", "q_s": ("2-16",)}

RULES: tuple[Rule, ...] = (
    Rule("FIA-RO-040", "packed calls with head size 512 need rope", GROUP, Level.EXISTENCE, DOC_A2A3_V3,
         (_V3 + "existence.tnd512_required",),
         lambda s: s.layout_name in ("TND", "TND_NTD") and s.Q_D == DECODE_MLA_D
         and s.given("queryRope") == s.given("keyRope"),
         lambda s: s.rope_on, enforced_by="CheckFAIQKV",
         breaks=(Break("absent", drop("queryRope", "keyRope"), {"scenario": "mla_decode", "layout": ("TND", "TND_NTD")},
                       entails=("FIA-CO-016", "FIA-CO-017", "FIA-CO-021")),)),
    Rule("FIA-RO-041", "keyRopeAntiquantScale is reserved", GROUP, Level.SINGLE, DOC_A2A3_V3,
         (_V3 + "single.key_rope_antiquant_scale_reserved",),
         lambda s: s.given("keyRopeAntiquantScale") and s.quant_kind in ("none", "antiquant"), never,
         basis=Basis.SOURCE, enforced_by="CheckExistenceNoquant", note="the document says that it has no effect",
         breaks=(Break("present", put(keyRopeAntiquantScale=TensorSpec((1,), "FLOAT16")),
                       {"scenario": ("gqa", "mla_decode"), "q_s": ("2-16", "17+")}),)),
    Rule("FIA-RO-043", "Decode MLA has 1 to 16 query tokens", GROUP, Level.CROSS, DOC_A2A3_V3,
         (_V3 + "cross.mla512_a2_q_s",),
         lambda s: _decode(s) and s.Q_S is not None, lambda s: (s.Q_S or 0) <= 16, limit="1..16",
         enforced_by="CheckMlaAttrs",
         note="V5 knows no limit without quantisation",
         breaks=(Break("above", query_rows(17), _DECODE),),
         boundaries=(Boundary(query_rows(16), query_rows(17), _DECODE, limit="16"),)),
    Rule("FIA-RO-044", "Decode MLA has 1, 2, 4, ... 128 query heads", GROUP, Level.CROSS, DOC_A2A3_V3,
         (_V3 + "cross.mla512_a2_q_n",), _decode, lambda s: s.Q_N in HEADS, enforced_by="CheckNSize",
         limit="1, 2, 4, 8, 16, 32, 64, 128",
         breaks=(Break("value", lambda s: _heads(s, 3), _DECODE), Break("above", lambda s: _heads(s, 256), _DECODE)),
         boundaries=(Boundary(lambda s: _heads(s, 128), lambda s: _heads(s, 129), _DECODE, limit="128"),)),
    Rule("FIA-RO-045", "Decode MLA has head size 512 in key too", GROUP, Level.CROSS, DOC_A2A3_V3,
         (_V3 + "cross.mla512_a2_key_d",), lambda s: s.mla_kind == "decode" and s.cache_layout in ("BnBsH",
                                                                                                   "BnNBsD")
         and s.K_D is not None,
         lambda s: s.K_D == DECODE_MLA_D, enforced_by="CheckPAKeyValue", limit="512",
         breaks=(Break("axis", head_size(528, "key"), {"scenario": "mla_decode", "storage": ("BnBsH", "BnNBsD")}),),
         note="contiguous: FIA-CO-060, NZ: FIA-PA-047"),
)


def _heads(s: Scene, heads: int) -> Optional[dict[str, object]]:
    """The call with another number of query heads."""
    if s.Q_N <= 0 or s.layout is None:
        return None
    values: dict[str, object] = {"numHeads": heads}
    for name, axes in (("query", s.layout.inputs), ("queryRope", s.layout.inputs), ("attentionOut", s.layout.output)):
        spec = s.tensor(name)
        if spec is None or len(spec.shape) != len(axes):
            return None
        shape = tuple(n // s.Q_N * heads if a == "H" else heads if a == "N" else n for a, n in zip(axes, spec.shape))
        values[name] = replace(spec, shape=shape, strides=None)
    return values
