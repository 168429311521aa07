"""Left padding in the V3 document (A2 and A3), which speaks of several query tokens and of a single one apart."""

from __future__ import annotations

from typing import Optional

from msgspec.structs import replace

from fiafuzz.model.scene import Scene

from ..changes import cast, put, reshape
from ..rule import DOC_A2A3_V3, Basis, Boundary, Break, Change, Effect, Level, Rule, Words, never
from .rules import GROUP, PADDING, with_padding

_V3 = "v3.left_padding."
PACKED = ("TND", "TND_NTD", "NTD_TND")


def many(s: Scene) -> bool:
    """Whether some batch has more than one query token."""
    return s.Q_S is not None and s.Q_S > 1


def padded(s: Scene) -> bool:
    """Whether a padding tensor is given that the document says has an effect: the query's with several tokens alone."""
    return s.given("kvPaddingSize") or (s.given("queryPaddingSize") and many(s))


def section(s: Scene) -> bool:
    """Whether the call belongs to the MLA or packed sections, which exclude left padding as such."""
    return s.rope_on or s.layout_name in PACKED


def _plain(s: Scene) -> bool:
    return padded(s) and not section(s)


def _starts(s: Scene) -> bool:
    """Whether literal padding leaves every batch its tokens: S - padding - length >= 0."""
    for name, full, lens in (("queryPaddingSize", s.Q_S, s.q_lens), ("kvPaddingSize", s.KV_S, s.kv_lens)):
        spec = s.tensor(name)
        if spec is None or not spec.values or full is None or lens is None:
            continue
        size = spec.values[0]
        if isinstance(size, int) and any(full - max(0, size) - n < 0 for n in lens):
            return False
    return True


def _too_much(name: str, extra: int = 1) -> Change:
    """Padding of ``extra`` tokens more than the longest batch leaves, with the lengths it needs."""
    add = with_padding(name)

    def change(s: Scene) -> Optional[dict[str, object]]:
        full, lens = (s.Q_S, s.q_lens) if name == "query" else (s.KV_S, s.kv_lens)
        found = add(s)
        if full is None or not lens or found is None:
            return None
        return {**found, f"{name}PaddingSize": replace(PADDING, values=(full - max(lens) + extra,))}

    return change


_BATCH: Words = {"storage": "contiguous", "prefix": "none", "post_quant": "none", "scenario": ("gqa", "antiquant"),
                 "layout": ("BSH", "BSND", "BNSD", "BNSD_BSND")}
_MANY: Words = {**_BATCH, "scenario": "gqa", "q_s": ("2-16", "17+")}
_INT4 = frozenset({"INT4"})

RULES: tuple[Rule, ...] = (
    Rule("FIA-LP-020", "kvPaddingSize holds one INT64", GROUP, Level.SINGLE, DOC_A2A3_V3,
         (_V3 + "single.kv_padding_table",), lambda s: s.given("kvPaddingSize"),
         lambda s: s.shape("kvPaddingSize") == (1,) and s.dtype("kvPaddingSize") == "INT64", basis=Basis.DOCUMENTED,
         limit="INT64, shape (1)", note="the dtype is never looked at, the shape by some routes alone",
         breaks=(Break("rank", reshape("kvPaddingSize", (1, 1)), {"left_padding": ("kv", "both")}),
                 Break("above", reshape("kvPaddingSize", (2,)), {"left_padding": ("kv", "both")}),
                 Break("dtype", cast("INT32", "kvPaddingSize"), {"left_padding": ("kv", "both")})),
         boundaries=(Boundary(put(), reshape("kvPaddingSize", (2,)), {"left_padding": ("kv", "both")},
                              limit="1 element"),)),
    Rule("FIA-LP-021", "MLA with rope takes no left padding", GROUP, Level.CROSS, DOC_A2A3_V3,
         tuple(_V3 + f"cross.{n}_no_left_padding" for n in ("tnd512", "mla512_a2", "mla128_a2")),
         lambda s: padded(s) and s.rope_on, never, enforced_by="CheckFeatureSupport",
         breaks=tuple(Break("present", put(**{name: PADDING}), {"scenario": kind, "q_s": ("2-16", "17+")})
                      for name in ("queryPaddingSize", "kvPaddingSize") for kind in ("mla_decode",
                                                                                     "mla_prefill_split"))),
    Rule("FIA-LP-022", "TND and NTD_TND take no left padding", GROUP, Level.CROSS, DOC_A2A3_V3,
         (_V3 + "cross.tnd_no_left_padding",), lambda s: padded(s) and not s.rope_on,
         lambda s: s.layout_name not in PACKED,
         basis=Basis.DOCUMENTED, note="the fast TND route ignores both tensors",
         breaks=tuple(Break("present", put(**{name: PADDING}),
                            {"scenario": "gqa", "layout": "TND", "q_s": ("2-16", "17+")})
                      for name in ("queryPaddingSize", "kvPaddingSize"))),
    Rule("FIA-LP-023", "with several query tokens left padding goes without paging", GROUP, Level.CROSS, DOC_A2A3_V3,
         (_V3 + "cross.qs_gt1_q_no_pa", _V3 + "cross.qs_gt1_kv_no_pa",
          "v3.paged_attention.cross.qs_gt1_no_left_padding"),
         lambda s: _plain(s) and many(s), lambda s: not s.paged, enforced_by="CheckFeatureSupport",
         breaks=tuple(Break("present", put(**{name: PADDING}), {**_MANY, "storage": ("BnBsH", "BnNBsD")})
                      for name in ("queryPaddingSize", "kvPaddingSize"))),
    Rule("FIA-LP-024", "with one query token paging ignores key left padding, or is not supported", GROUP, Level.CROSS,
         DOC_A2A3_V3, ("v3.paged_attention.cross.qs_eq1_no_left_padding",),
         lambda s: _plain(s) and s.Q_S == 1, lambda s: not s.paged, effect=Effect.UNSPECIFIED, basis=Basis.DOCUMENTED,
         note="the document says both",
         breaks=(Break("present", put(kvPaddingSize=PADDING),
                       {**_BATCH, "q_s": "1", "storage": ("BnBsH", "BnNBsD")}),)),
    Rule("FIA-LP-025", "INT4 caches take no left padding", GROUP, Level.CROSS, DOC_A2A3_V3,
         (_V3 + "cross.qs_gt1_q_no_int4_a2", _V3 + "cross.qs_gt1_kv_no_int4_a2", _V3 + "cross.qs_eq1_int4_a2"),
         lambda s: _plain(s) and not s.paged and s.quant_kind == "antiquant", lambda s: s.k_dtype not in _INT4,
         basis=Basis.DOCUMENTED, limit="not INT4 (INT32)",
         breaks=(Break("present", with_padding("kv"), {**_BATCH, "scenario": "antiquant", "kv_dtype": "INT4"}),)),
    Rule("FIA-LP-026", "with several query tokens left padding goes without a tensor list", GROUP, Level.CROSS,
         DOC_A2A3_V3,
         (_V3 + "cross.qs_gt1_no_tensorlist",), lambda s: _plain(s) and many(s), lambda s: s.storage != "tensor_list",
         basis=Basis.SOURCE, enforced_by="CheckSupportKVLeftPadding", note="not written in the document",
         breaks=(Break("present", with_padding("kv"), {**_MANY, "storage": "tensor_list"}),)),
    Rule("FIA-LP-027", "with several query tokens left padding needs the lengths of its side", GROUP, Level.EXISTENCE,
         DOC_A2A3_V3, (_V3 + "existence.qs_gt1_q_needs_lengths", _V3 + "existence.qs_gt1_kv_needs_lengths"),
         lambda s: _plain(s) and many(s) and s.storage == "contiguous",
         lambda s: not (s.given("queryPaddingSize") and s.inputs.actualSeqLengths is None)
         and not (s.given("kvPaddingSize") and s.inputs.actualSeqLengthsKv is None), basis=Basis.SOURCE,
         enforced_by="CheckFeatureActualLen", note="by the document such a call pads on the right",
         breaks=(Break("absent", put(queryPaddingSize=PADDING, actualSeqLengths=None), _MANY),
                 Break("absent", put(kvPaddingSize=PADDING, actualSeqLengthsKv=None), _MANY))),
    Rule("FIA-LP-028", "left padding leaves every batch its tokens", GROUP, Level.CONSISTENCY, DOC_A2A3_V3,
         (_V3 + "consistency.qs_gt1_q_start", _V3 + "consistency.qs_gt1_q_end", _V3 + "consistency.qs_gt1_kv_start",
          _V3 + "consistency.qs_gt1_kv_end"),
         lambda s: _plain(s) and many(s) and s.storage == "contiguous", _starts, effect=Effect.UNSPECIFIED,
         basis=Basis.DOCUMENTED, limit="S - padding - length >= 0",
         note="the sizes live on the device; a negative size counts as 0, so the end never lies behind the row",
         breaks=(Break("below", _too_much("query"), _MANY), Break("below", _too_much("kv"), _MANY)),
         boundaries=(Boundary(_too_much("kv", 0), _too_much("kv"), _MANY, limit="S - length"),)),
)

