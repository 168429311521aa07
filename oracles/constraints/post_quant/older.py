"""Post-quantisation in the V3 document (A2 and A3): INT8 output, and what several query tokens forbid."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Optional

from msgspec.structs import replace

from fiafuzz.model.case import TensorSpec
from fiafuzz.model.scene import Scene

from ..changes import put
from ..routes import OLDER_ROUTES
from ..rule import DOC_A2A3_V3, DOC_A2A3_V5, SRC_A2A3, Basis, Boundary, Break, Change, Level, Rule, Words, never
from .rules import CHANNELS, GROUP, OFFSET, ON, SCALE, active, channel_form, out_as, scaled

_V3 = "v3.post_quant."
PACKED = ("TND", "TND_NTD", "NTD_TND")


def _many(s: Scene) -> bool:
    return s.Q_S is not None and s.Q_S > 1


def _plain(s: Scene) -> bool:
    """Post-quantisation outside the MLA and packed sections, which exclude it as such."""
    return active(s) and s.out_dtype == "INT8" and not s.rope_on and s.layout_name not in PACKED


def per_channel(s: Scene) -> bool:
    """Whether the scale has more than one number."""
    return scaled(s) and s.inputs.quantScale2 is not None and s.inputs.quantScale2.numel > 1


def _counts(s: Scene) -> bool:
    spec = s.inputs.quantScale2
    return spec is None or s.V_D is None or spec.numel == s.Q_N * s.V_D


def int8_offset(s: Scene) -> bool:
    """INT8 output with an offset that has elements, of several query tokens and known lengths."""
    offset = s.inputs.quantOffset2
    return (_many(s) and s.out_dtype == "INT8" and offset is not None and not offset.empty and s.q_lens is not None
            and s.kv_lens is not None and len(s.q_lens) == len(s.kv_lens))


def batches(s: Scene) -> Iterator[tuple[int, int]]:
    """Query length and key length with the prefix, batch by batch."""
    for q, kv in zip(s.q_lens or (), s.kv_lens or ()):
        yield q, kv + s.prefix_len


def _rows_0(s: Scene) -> bool:
    pre, after = s.attrs.preTokens, s.attrs.nextTokens
    return after >= 0 and all(q - kv - pre <= 0 for q, kv in batches(s))


def _rows_3(s: Scene) -> bool:
    return all(kv - q >= 0 for q, kv in batches(s))


def _rows_4(s: Scene) -> bool:
    pre, after = s.attrs.preTokens, s.attrs.nextTokens
    return pre >= 0 and all(after + kv - q >= 0 for q, kv in batches(s))


def rows_used(s: Scene) -> bool:
    """The host's test in left-up tokens: next >= 0 and pre + kv - q >= 0 in every batch."""
    if s.sparse_mode == 0 and s.mask_on:
        return _rows_0(s)
    return _rows_3(s) if s.sparse_mode == 3 else _rows_4(s) if s.sparse_mode == 4 else True


def _sparse(mode: int, pre: int, after: int) -> Change:
    """INT8 output with offset under a mask mode; for mode 0 with a full mask."""

    def change(s: Scene) -> Optional[dict[str, object]]:
        q, k = s.q_axes, s.k_axes
        if s.out is None or q is None or k is None or "S" not in q or "S" not in k or s.prefix_on or s.lse_on:
            return None
        mask = TensorSpec((1, 1, q["S"], k["S"]), "BOOL") if mode == 0 else TensorSpec((2048, 2048), "BOOL")
        one = TensorSpec((1,), "FLOAT32")
        return {"attentionOut": replace(s.out, dtype="INT8"), SCALE: one, OFFSET: one, "attenMask": mask,
                "sparseMode": mode,
                "preTokens": pre, "nextTokens": after}

    return change


def _band(pre: int, after: int) -> Change:
    """INT8 output without offset in a band."""

    def change(s: Scene) -> Optional[dict[str, object]]:
        found = _sparse(4, pre, after)(s)
        return None if found is None else {**found, OFFSET: None}

    return change


def _lse(s: Scene) -> Optional[dict[str, object]]:
    if s.B is None or s.Q_S is None or s.packed:
        return None
    return {"softmaxLseFlag": True, "softmaxLse": TensorSpec((s.B, s.Q_N, s.Q_S, 1), "FLOAT32")}


def _channels_of_80(s: Scene) -> Optional[dict[str, object]]:
    """INT8 output with a scale per channel, for a head size that is no multiple of 32."""
    if s.out is None or s.V_D is None or s.V_D % 32 == 0:
        return None
    return {"attentionOut": replace(s.out, dtype="INT8"), SCALE: TensorSpec((s.Q_N, s.V_D), "FLOAT32")}


def _longer(s: Scene) -> bool:
    return any(q > kv for q, kv in batches(s))


def _if(condition: Change, *, longer: bool) -> Change:
    return lambda s: condition(s) if _longer(s) == longer else None


_MANY: Words = {"q_s": ("2-16", "17+")}
_PLAIN: Words = {"scenario": "gqa", "layout": ("BSH", "BSND", "BNSD", "BNSD_BSND"), "post_quant": "none", "sink": "off",
                 "lse": "off", "prefix": "none", "left_padding": "none", "storage": "contiguous",
                 "head_size": ("64", "128"), **_MANY}
_FORM: Words = {**CHANNELS, **_MANY, "lse": "off", "left_padding": "none"}
BIG = 2147483647

RULES: tuple[Rule, ...] = (
    Rule("FIA-PQ-020", "a quantScale2 per channel holds Q_N x V_D numbers", GROUP, Level.CONSISTENCY, DOC_A2A3_V3,
         (_V3 + "consistency.per_channel_bsh", _V3 + "consistency.per_channel_other", _V3 + "single.quant_scale2_table",
          _V3 + "single.scale2_modes"),
         lambda s: _plain(s) and per_channel(s) and s.V_D is not None, _counts, enforced_by="CheckPostQuantParams",
         limit="Q_N x V_D (H of the output)",
         breaks=(Break("above", channel_form("pair", 1), {**ON, "out_dtype": "INT8"}),
                 Break("below", channel_form("pair", -1), {**ON, "out_dtype": "INT8"})),
         boundaries=(Boundary(channel_form("pair"), channel_form("pair", 1), {**ON, "out_dtype": "INT8", "lse": "off",
                                                                            "left_padding": "none",
                                                                              "head_size": ("64", "128")},
                              limit="Q_N x V_D"),)),
    Rule("FIA-PQ-021", "quantScale2 and quantOffset2 are null when the output is not INT8", GROUP, Level.EXISTENCE,
         DOC_A2A3_V3 | SRC_A2A3,
         (_V3 + "existence.fp_in_fp_out_scale2",), lambda s: s.out_dtype in ("FLOAT16", "BFLOAT16"),
         lambda s: not s.given(SCALE) and not s.given(OFFSET), basis=Basis.SOURCE, routes=OLDER_ROUTES,
         enforced_by="CheckPostQuantParams",
         note="not written in the document; the newer route ignores them",
         breaks=(Break("present", put(quantScale2=TensorSpec((1,), "FLOAT32")),
                       {"post_quant": "none", "scenario": ("antiquant", "full_per_tensor")}),)),
    Rule("FIA-PQ-022", "MLA with rope takes no post-quantisation", GROUP, Level.CROSS, DOC_A2A3_V3,
         tuple(_V3 + f"cross.{n}_no_post_quant" for n in ("tnd512", "mla512_a2", "mla128_a2")),
         lambda s: active(s) and s.rope_on, never, enforced_by="CheckFeatureSupport",
         breaks=tuple(Break("dtype", out_as("INT8"), {"scenario": kind, "post_quant": "none"})
                      for kind in ("mla_decode", "mla_prefill_split"))),
    Rule("FIA-PQ-023", "TND and NTD_TND take no post-quantisation", GROUP, Level.CROSS, DOC_A2A3_V3,
         (_V3 + "cross.tnd_no_post_quant",), lambda s: active(s) and not s.rope_on,
         lambda s: s.layout_name not in PACKED,
         basis=Basis.DOCUMENTED, breaks=(Break("dtype", out_as("INT8"),
                                               {"scenario": "gqa", "post_quant": "none", "layout": "TND"}),)),
    Rule("FIA-PQ-024", "with several query tokens a scale per channel goes without left padding", GROUP, Level.CROSS,
         DOC_A2A3_V3,
         (_V3 + "cross.qs_gt1_per_channel_no_left_padding",),
         lambda s: _plain(s) and _many(s) and per_channel(s) and _counts(s),
         lambda s: not s.given("queryPaddingSize") and not s.given("kvPaddingSize"), basis=Basis.DOCUMENTED,
         breaks=(Break("present", put(queryPaddingSize=TensorSpec((1,), "INT64")),
                       {**_FORM, "storage": "contiguous", "prefix": "none", "q_lengths": ("one", "per_batch")}),)),
    Rule("FIA-PQ-025", "with several query tokens a scale per channel goes without softmaxLse", GROUP, Level.CROSS,
         DOC_A2A3_V3,
         (_V3 + "cross.qs_gt1_per_channel_no_lse",), lambda s: _plain(s) and _many(s) and per_channel(s) and _counts(s),
         lambda s: not s.lse_on, basis=Basis.DOCUMENTED,
         breaks=(Break("present", _lse, _FORM),)),
    Rule("FIA-PQ-026", "with several query tokens a scale per channel wants a head size in steps of 32", GROUP,
         Level.CROSS,
         DOC_A2A3_V3, (_V3 + "cross.qs_gt1_per_channel_d_align",),
         lambda s: _plain(s) and _many(s) and per_channel(s) and _counts(s) and s.V_D is not None,
         lambda s: (s.V_D or 0) % 32 == 0, basis=Basis.DOCUMENTED, limit="multiple of 32",
         breaks=(Break("value", _channels_of_80, {**_PLAIN, "head_size": "16k"}, entails=("FIA-CO-111",)),)),
    Rule("FIA-PQ-027", "with several query tokens an INT8 output wants band tokens of at least 0", GROUP, Level.CROSS,
         DOC_A2A3_V3,
         (_V3 + "cross.qs_gt1_band_tokens",),
         lambda s: _plain(s) and _many(s) and s.sparse_mode == 4 and not int8_offset(s),
         lambda s: s.attrs.preTokens >= 0 and s.attrs.nextTokens >= 0, limit=">= 0", basis=Basis.DOCUMENTED,
         note="the newer route takes them",
         breaks=(Break("below", _band(-1, 5), _PLAIN, entails=("FIA-AM-074",)),
                 Break("below", _band(5, -1), _PLAIN, entails=("FIA-AM-074",))),
         boundaries=(Boundary(_band(0, 5), _band(-1, 5), _PLAIN, entails=("FIA-AM-074",), limit="preTokens 0"),
                     Boundary(_band(5, 0), _band(5, -1), _PLAIN, entails=("FIA-AM-074",), limit="nextTokens 0"))),
    Rule("FIA-PQ-028", "INT8 output with an offset refuses unused rows under a full mask", GROUP, Level.CROSS,
         DOC_A2A3_V3,
         (_V3 + "cross.qs_gt1_intercept_rule", _V3 + "cross.qs_gt1_intercept_sparse0"),
         lambda s: _plain(s) and int8_offset(s) and s.sparse_mode == 0 and s.mask_on, _rows_0,
         enforced_by="CheckFeatureRowValid", limit="nextTokens >= 0, q - kv - preTokens <= 0",
         breaks=(Break("below", _sparse(0, BIG, -1), _PLAIN),
                 Break("below", _if(_sparse(0, 0, BIG), longer=True), _PLAIN)),
         boundaries=(Boundary(_sparse(0, BIG, 0), _sparse(0, BIG, -1), _PLAIN, limit="nextTokens 0"),)),
    Rule("FIA-PQ-029", "INT8 output with an offset refuses unused rows under mode 3", GROUP, Level.CROSS, DOC_A2A3_V3,
         (_V3 + "cross.qs_gt1_intercept_rule", _V3 + "cross.qs_gt1_intercept_sparse3"),
         lambda s: _plain(s) and int8_offset(s) and s.sparse_mode == 3, _rows_3, enforced_by="CheckFeatureRowValid",
         limit="q <= kv in every batch",
         breaks=(Break("pair", _if(_sparse(3, BIG, BIG), longer=True), _PLAIN),)),
    Rule("FIA-PQ-030", "INT8 output with an offset refuses unused rows under mode 4", GROUP, Level.CROSS, DOC_A2A3_V3,
         (_V3 + "cross.qs_gt1_intercept_rule", _V3 + "cross.qs_gt1_intercept_sparse4",
          _V3 + "cross.qs_gt1_band_tokens"),
         lambda s: _plain(s) and int8_offset(s) and s.sparse_mode == 4, _rows_4, enforced_by="CheckFeatureRowValid",
         limit="preTokens >= 0, nextTokens + kv - q >= 0",
         breaks=(Break("below", _sparse(4, -1, BIG), _PLAIN, entails=("FIA-AM-074",)),
                 Break("pair", _if(_sparse(4, BIG, 0), longer=True), _PLAIN)),
         boundaries=(Boundary(_sparse(4, 0, BIG), _sparse(4, -1, BIG), _PLAIN, entails=("FIA-AM-074",),
                              limit="preTokens 0"),)),
    Rule("FIA-PQ-031", "INT8 output with an offset refuses unused rows", GROUP, Level.CROSS,
         DOC_A2A3_V5 | SRC_A2A3,
         ("v5.post_quant.cross.int8_offset_needs_valid_rows",),
         lambda s: active(s) and int8_offset(s) and not s.rope_on,
         rows_used, basis=Basis.SOURCE, enforced_by="CheckFeatureRowValid",
         limit="every row of every batch sees a column",
         breaks=(Break("below", _sparse(0, BIG, -1), _PLAIN),
                 Break("pair", _if(_sparse(3, BIG, BIG), longer=True), _PLAIN))),
)
