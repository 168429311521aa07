"""Left padding in the V5 document and the operator's source of Ascend 950."""

from __future__ import annotations

from typing import Optional

from fiafuzz.model.case import TensorSpec
from fiafuzz.model.scene import Scene

from ..changes import cast, drop, put, reshape, together, where
from ..pse.slopes import slopes
from ..rule import ALL_950, DOC_950, DOC_A2A3_V5, SRC_A2A3, Basis, Boundary, Break, Change, Level, Rule, Words, never

GROUP = "left_padding"
V5 = ALL_950 | DOC_A2A3_V5 | SRC_A2A3
PADDING = TensorSpec((1,), "INT64")
BANNED = ("BSH_BNSD", "BSND_BNSD", "TND", "NTD", "NTD_TND", "TND_NTD")
LENGTHS = {"query": "actualSeqLengths", "kv": "actualSeqLengthsKv"}
PLAIN: Words = {"storage": "contiguous", "prefix": "none", "sink": "off", "left_padding": "none"}
BATCH: Words = {**PLAIN, "scenario": ("gqa", "mla_prefill_split", "mla_prefill_combined"),
                "layout": ("BSH", "BSND", "BNSD", "BNSD_BSND")}


def decode_mla(s: Scene) -> bool:
    """Whether the call is Decode MLA, quantised or not."""
    return s.mla_kind == "decode"


def _on(s: Scene) -> bool:
    """Whether left padding is in force in a call without paging (with paging the tensors themselves are refused)."""
    return not s.paged and s.left_padding_on


def _plainly_on(s: Scene) -> bool:
    """Left padding in force where no rule about the whole kind of call forbids it."""
    return _on(s) and s.layout_name not in BANNED and not decode_mla(s)


def _checked(s: Scene, name: str, on: bool) -> bool:
    return s.quant_kind == "none" and on and s.given(name)


def with_padding(name: str, spec: TensorSpec = PADDING) -> Change:
    """Left padding of query or kv with the lengths it needs; no place where the call has no way to give them."""
    parameter, lengths = f"{name}PaddingSize", LENGTHS[name]

    def change(s: Scene) -> Optional[dict[str, object]]:
        if s.B is None or not 0 < s.B <= 4096:
            return None
        values: dict[str, object] = {parameter: spec}
        if not s.case.get(lengths):
            full = s.Q_S if name == "query" else s.KV_S
            if full is None or s.packed:
                return None
            values[lengths] = (full,) * s.B
        return values

    return change


def _shape_rule(number: str, name: str, cite: str) -> Rule:
    parameter = f"{name}PaddingSize"
    needs: Words = {**PLAIN, "scenario": ("gqa", "mla_prefill_split", "mla_prefill_combined"),
                    "left_padding": (name, "both")}
    return Rule(
        number, f"{parameter} holds one element", GROUP, Level.SINGLE, V5,
        (f"v5.left_padding.single.{cite}", "v5.interface.single.empty_padding_size"),
        lambda s: _checked(s, parameter, s.q_padding_on if name == "query" else s.kv_padding_on),
        lambda s: s.shape(parameter) == (1,), enforced_by="CheckShapeAndDim", limit="shape (1)",
        note="looked at without quantisation alone, and not where the padding is ignored",
        breaks=(Break("rank", reshape(parameter, (1, 1)), needs), Break("above", reshape(parameter, (2,)), needs),
                Break("below", where(lambda s: (s.kv_padding_on and s.Q_S != 1) or name == "query",
                                     reshape(parameter, (0,))),
                      needs),
                Break("rank", reshape(parameter, ()), needs)),
        boundaries=(Boundary(put(), reshape(parameter, (2,)), needs, limit="1 element"),))


def _lengths_rule(number: str, name: str, cite: str) -> Rule:
    parameter, lengths = f"{name}PaddingSize", LENGTHS[name]
    return Rule(
        number, f"{parameter} needs {lengths}", GROUP, Level.CROSS, V5, (f"v5.left_padding.cross.{cite}",),
        lambda s: _plainly_on(s) and (s.q_padding_on if name == "query" else s.kv_padding_on),
        lambda s: s.case.get(lengths) is not None, enforced_by="CheckFeatureActualLen",
        breaks=(Break("absent", drop(lengths), {**BATCH, "left_padding": (name, "both"), "q_s": ("2-16", "17+")}),
                Break("present", together(put(**{parameter: PADDING}), put(**{lengths: None})),
                      {**BATCH, "scenario": "gqa", "q_s": ("2-16", "17+")})))


def _padded_slopes(s: Scene) -> Optional[dict[str, object]]:
    """Slopes and query left padding, with equal lengths given for both sides."""
    found = slopes(queryPaddingSize=PADDING)(s)
    if found is None or not (found.get("actualSeqLengths") or s.inputs.actualSeqLengths):
        return None
    return dict(found)


_ANY: Words = {**PLAIN, "layout": BANNED, "scenario": ("gqa", "mla_prefill_split", "mla_prefill_combined")}

RULES: tuple[Rule, ...] = (
    _shape_rule("FIA-LP-001", "query", "query_padding_size_shape"),
    _shape_rule("FIA-LP-002", "kv", "kv_padding_size_shape"),
    Rule("FIA-LP-003", "padding sizes are INT64", GROUP, Level.SINGLE, DOC_950 | DOC_A2A3_V5,
         ("v5.left_padding.single.dtype",), lambda s: s.given("queryPaddingSize") or s.given("kvPaddingSize"),
         lambda s: s.dtype("queryPaddingSize") in (None, "INT64") and s.dtype("kvPaddingSize") in (None, "INT64"),
         basis=Basis.DOCUMENTED, limit="INT64", note="the operator takes any dtype",
         breaks=(Break("dtype", cast("INT32", "queryPaddingSize"), {"left_padding": ("query", "both")}),
                 Break("dtype", cast("INT32", "kvPaddingSize"), {"left_padding": ("kv", "both")}))),
    Rule("FIA-LP-004", "no left padding in transposed and packed layouts", GROUP, Level.CROSS, V5,
         (*(f"v5.left_padding.cross.no_layout_{n.lower()}" for n in BANNED),
          "v5.left_padding.cross.full_quant_forbidden"),
         lambda s: _on(s) and not decode_mla(s), lambda s: s.layout_name not in BANNED,
         enforced_by="CheckFeatureLayout",
         limit="not " + ", ".join(BANNED), note="MXFP8 and FP8 GQA are packed and fall under it",
         breaks=tuple(Break("value", with_padding(name), {**_ANY, "layout": layout})
                      for layout in BANNED[:5] for name in ("query", "kv"))),
    _lengths_rule("FIA-LP-005", "query", "q_needs_actual_seq_lengths"),
    _lengths_rule("FIA-LP-006", "kv", "kv_needs_actual_seq_lengths_kv"),
    Rule("FIA-LP-007", "Decode MLA takes no left padding", GROUP, Level.CROSS, V5,
         ("v5.left_padding.cross.decode_mla_forbidden", "v5.rope.cross.decode_no_left_padding",
          "v5.common.cross.decode_mla_no_left_padding", "v5.quant.cross.mla_no_left_padding",
          "v5.left_padding.cross.full_quant_forbidden", "v5.left_padding.cross.no_layout_tnd_ntd"),
         lambda s: decode_mla(s) and _on(s), never, enforced_by="CheckFeatureDecodeMLA",
         breaks=tuple(Break("present", with_padding(name), {**PLAIN, "scenario": kind})
                      for name, kind in (("query", "mla_decode"), ("kv", "mla_decode"),
                                         ("kv", ("full_decode_mla", "mla_decode"))))),
    Rule("FIA-LP-008", "INT8 caches of mode 0 and 1 take no left padding with several query tokens", GROUP, Level.CROSS,
         ALL_950,
         ("v5.left_padding.cross.antiquant_int8_prefill_modes", "v5.quant.cross.antiquant_int8_qs_gt1_no_left_padding"),
         lambda s: _plainly_on(s) and s.quant_kind == "antiquant" and s.k_dtype == "INT8"
         and s.Q_S is not None and s.Q_S > 1 and s.attrs.keyAntiquantMode in (0, 1), never,
         enforced_by="CheckFeatureQueryS",
         breaks=tuple(Break("present", with_padding(name), {**PLAIN, "scenario": "antiquant", "kv_dtype": "INT8",
                                                           "q_s": ("2-16", "17+")}) for name in ("query", "kv"))),
    Rule("FIA-LP-009", "different head sizes of query and value take no left padding", GROUP, Level.CROSS, ALL_950,
         ("v5.left_padding.cross.d_unequal_forbidden", "v5.common.cross.d_unequal_only_mask"),
         lambda s: _plainly_on(s) and s.unequal_d, never, enforced_by="CheckCrossFeature",
         breaks=tuple(Break("present", with_padding(name), {**PLAIN, "scenario": "unequal_d",
                                                           "layout": ("BSH", "BSND", "BNSD")}) for name in ("query",
                                                                                                            "kv"))),
    Rule("FIA-LP-010", "left padding takes pseType 0", GROUP, Level.CROSS, DOC_950 | DOC_A2A3_V5,
         ("v5.left_padding.cross.no_alibi",), lambda s: _plainly_on(s) and s.alibi_on, never,
         enforced_by="CheckFeatureAlibiPse",
         breaks=(Break("value", _padded_slopes, {**BATCH, "pse": "none", "scenario": "gqa"}),)),
)
