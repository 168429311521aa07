"""A2 and A3: what the older prefill and decode routes check of post-quantisation."""

from __future__ import annotations

from collections.abc import Callable

from fiafuzz.model.case import TensorSpec
from fiafuzz.model.scene import Scene

from ..changes import cast, drop, put, reshape, together, where, widen
from ..routes import DECODE, PREFILL, PREFILL_ROUTE
from ..rule import ALL_A2A3, Basis, Break, Level, Rule, Words
from .older import batches, int8_offset, rows_used
from .rules import GROUP, OFFSET, SCALE

ALSO = {
    PREFILL: "001 002 003 004 005 006 009 011 031",
    DECODE: "001 002 003 004 005 006 009 011 015",
}
"""Numbers of the rules of this room that hold on these routes too."""

_INT8: Words = {"scenario": "full_per_tensor", "out_dtype": "INT8"}
_V3 = "v3.post_quant."


def _quantised(s: Scene) -> bool:
    return s.quant_kind in ("full", "antiquant") and s.out_dtype == "INT8" and not s.rope_on


def _full(s: Scene) -> bool:
    return s.quant_kind == "full" and s.out_dtype == "INT8" and not s.rope_on


def _scaled(s: Scene) -> bool:
    return _full(s) and s.given(SCALE)


def _channels(s: Scene) -> bool:
    spec = s.inputs.quantScale2
    return _quantised(s) and spec is not None and spec.numel > 1


def _counted(s: Scene) -> bool:
    spec = s.inputs.quantScale2
    return spec is None or s.Q_D is None or spec.numel in (1, s.Q_N * s.Q_D)


def _like_scale(s: Scene) -> bool:
    scale, offset = s.inputs.quantScale2, s.inputs.quantOffset2
    return scale is None or offset is None or (scale.dtype == offset.dtype and scale.numel == offset.numel)


def _longer(s: Scene) -> bool:
    return any(q > kv for q, kv in batches(s))


def _rule(number: int, title: str, level: Level, cite: str, when: Callable[[Scene], bool],
          requires: Callable[[Scene], bool], *breaks: Break) -> Rule:
    return Rule(f"FIA-PQ-{number}", title, GROUP, level, ALL_A2A3, (_V3 + cite,), when, requires, basis=Basis.SOURCE,
                routes=PREFILL_ROUTE, enforced_by="CheckPostQuantParams", breaks=breaks)


RULES: tuple[Rule, ...] = (
    _rule(201, "INT8 query and output need a quantScale2 with elements", Level.EXISTENCE, "single.quant_scale2_table",
          _full, lambda s: (t := s.inputs.quantScale2) is not None and not t.empty, Break("absent", drop(SCALE), _INT8),
          Break("below", together(reshape(SCALE, (0,)), put(quantOffset2=None)), _INT8, ("FIA-PQ-203",))),
    _rule(202, "INT8 query and output: quantScale2 is FLOAT32", Level.SINGLE, "single.quant_scale2_table", _scaled,
          lambda s: s.dtype(SCALE) == "FLOAT32",
          Break("dtype", where(lambda s: not s.given(OFFSET), cast("BFLOAT16", SCALE)), _INT8)),
    _rule(203, "INT8 query and output: quantScale2 holds 1 number or Q_N x D", Level.CONSISTENCY,
          "consistency.per_channel_other", _scaled, _counted,
          Break("axis", where(lambda s: not s.given(OFFSET), widen(SCALE, -1)), _INT8)),
    _rule(204, "INT8 query and output: quantOffset2 has the dtype and count of quantScale2", Level.CONSISTENCY,
          "single.quant_offset2_table", _full, _like_scale, Break("axis", widen(OFFSET, -1), _INT8),
          Break("dtype", cast("BFLOAT16", OFFSET), _INT8)),
    _rule(205, "quantised call with INT8 output: a scale per channel goes without softmaxLse", Level.CROSS,
          "cross.qs_gt1_per_channel_no_lse", _channels, lambda s: not s.lse_on,
          Break("present", where(lambda s: s.B is not None and s.Q_S is not None, lambda s: {
              "softmaxLseFlag": True, "softmaxLse": TensorSpec((s.B or 0, s.Q_N, s.Q_S or 0, 1), "FLOAT32")}),
              {**_INT8, "lse": "off"})),
    _rule(206, "quantised call with INT8 output: a scale per channel goes without left padding", Level.CROSS,
          "cross.qs_gt1_per_channel_no_left_padding", _channels,
          lambda s: not s.given("queryPaddingSize") and not s.given("kvPaddingSize"),
          Break("present", put(queryPaddingSize=TensorSpec((1,), "INT64", values=(0,))),
                {**_INT8, "q_lengths": ("per_batch", "longer", "one"), "left_padding": "none"})),
    _rule(207, "quantised call with INT8 output: the tokens of sparseMode 4 are not negative", Level.CROSS,
          "cross.qs_gt1_band_tokens", lambda s: _quantised(s) and s.sparse_mode == 4,
          lambda s: s.attrs.preTokens >= 0 and s.attrs.nextTokens >= 0,
          Break("below", put(sparseMode=4, preTokens=-1, nextTokens=1 << 20), {
              **_INT8, "mask_shape": ("2048/2", "2048/3", "2048/4"), "post_quant": ("tensor", "channel")})),
    _rule(208, "INT8 query and output with an offset refuse unused rows", Level.CROSS,
          "cross.qs_gt1_intercept_rule", lambda s: _full(s) and int8_offset(s), rows_used,
          Break("value", where(_longer, put(sparseMode=3)), {
              **_INT8, "post_quant": ("tensor+offset", "channel+offset"),
              "mask_shape": ("2048/2", "2048/3", "2048/4")})),
)
