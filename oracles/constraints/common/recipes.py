"""Changes that turn several tensors together, so that only one demand is left broken."""

from __future__ import annotations

from typing import Optional

from fiafuzz.model.case import TensorSpec
from fiafuzz.model.layouts import LAYOUTS, tensor_shape
from fiafuzz.model.scene import Scene

from ..changes import axis_index, specs, with_shape
from ..rule import Change, Rule, Words

PLAIN: Words = {"scenario": "gqa", "pse": "none", "sink": "off", "lse": "off", "post_quant": "none", "prefix": "none",
         "left_padding": "none", "mask": "none"}
"""Words of a base case without features, so that a changed size concerns few rules."""

SIZED: Words = {"scenario": "gqa", "sink": "off", "prefix": "none", "post_quant": ("none", "tensor", "tensor+offset"),
                "storage": "contiguous"}
"""Needs of a contiguous base case whose head size may change: only query, key, value and attentionOut depend on it."""

NO_LENGTHS: Words = {**PLAIN, "q_lengths": "absent", "kv_lengths": "absent"}


def query_heads(heads: int) -> Change:
    """Give a call another number of query heads (numHeads and the tensors), where numKeyValueHeads is given."""

    def change(s: Scene) -> Optional[dict[str, object]]:
        if s.num_heads <= 0 or s.attrs.numKeyValueHeads <= 0 or heads == s.num_heads:
            return None
        values: dict[str, object] = {"numHeads": heads}
        for name in ("query", "queryRope", "attentionOut"):
            found = specs(s, name)
            if not found:
                continue
            new = _with_heads(s, name, found[0], heads)
            if new is None:
                return None
            values[name] = new
        scale = s.inputs.dequantScaleQuery
        if scale is not None:
            index = axis_index(s, "query", "N")
            at = len(scale.shape) - 1 if index is None else index
            if at >= len(scale.shape) or scale.shape[at] != s.num_heads:
                return None
            values["dequantScaleQuery"] = with_shape(scale, (*scale.shape[:at], heads, *scale.shape[at + 1:]))
        return values

    return change


def _with_heads(s: Scene, name: str, spec: TensorSpec, heads: int) -> Optional[TensorSpec]:
    index = axis_index(s, name, "N")
    size = heads
    if index is None:
        index = axis_index(s, name, "H")
        if index is None or spec.shape[index] % s.num_heads:
            return None
        size = spec.shape[index] // s.num_heads * heads
    return with_shape(spec, (*spec.shape[:index], size, *spec.shape[index + 1:]))


def axis_everywhere(axis: str, size: int, *names: str) -> Change:
    """Give all named tensors the same size on one axis."""

    def change(s: Scene) -> Optional[dict[str, object]]:
        values: dict[str, object] = {}
        for name in names:
            index, found = axis_index(s, name, axis), specs(s, name)
            if index is None:
                return None
            new = tuple(with_shape(t, (*t.shape[:index], size, *t.shape[index + 1:])) for t in found)
            values[name] = new if name in ("key", "value") else new[0]
        return values if values else None

    return change


def relayout(name: str) -> Change:
    """Give a call another inputLayout of the same input axes, and attentionOut the shape that goes with it."""

    def change(s: Scene) -> Optional[dict[str, object]]:
        target = LAYOUTS[name]
        if s.layout is None or s.layout.inputs != target.inputs or s.layout_name == name or s.out is None:
            return None
        if s.V_D is None or (s.B is None or s.Q_S is None) or s.Q_N <= 0:
            return None
        shape = tensor_shape(target.output, B=s.B, S=s.Q_S, N=s.Q_N, D=s.V_D, T=s.T or 0)
        return {"inputLayout": name, "attentionOut": with_shape(s.out, shape)}

    return change


def as_list(s: Scene) -> Optional[dict[str, object]]:
    """Key and value as lists of B tensors of batch 1 each (batch layouts), or of two equal tensors (packed layouts)."""
    if len(s.keys) != 1 or len(s.values) != 1 or s.keys[0] is None or s.values[0] is None or s.paged:
        return None
    if s.packed:
        return {"key": s.keys * 2, "value": s.values * 2}
    if s.B is None or not 2 <= s.B <= 64 or s.keys[0].rank < 3 or s.values[0].rank < 3:
        return None
    return {n: (with_shape(t, (1, *t.shape[1:])),) * s.B for n, t in (("key", s.keys[0]), ("value", s.values[0]))}


def one_scale(s: Scene) -> Optional[dict[str, object]]:
    """A quantScale2 of one element, as a per-tensor post-quantisation has it."""
    return {"quantScale2": TensorSpec((1,), "FLOAT32")} if s.inputs.quantScale2 is None else None


def common_rule(number: int, title: str, **more: object) -> Rule:
    """A rule of the room common."""
    return Rule(id=f"FIA-CO-{number:03d}", title=title, group="common", **more)  # type: ignore[arg-type]
