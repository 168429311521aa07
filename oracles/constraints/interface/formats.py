"""Storage formats, strides and optional tensors without elements."""

from __future__ import annotations

from typing import Any, Optional

from fiafuzz.model.case import TensorSpec
from fiafuzz.model.scene import Scene

from ..changes import relabel, resize, stretch
from ..documents import ALL_DOCUMENTS, V5_LINE
from ..facts import scene_fact
from ..rule import ALL_950, DOC_A2A3_V3, SRC_A2A3_V3, SRC_A2A3_V5, Basis, Break, Change, Level, Rule, Stage, always

RELABELLED = frozenset({"ND", "NCHW", "NHWC", "NCDHW", "NCL", "DHWCN"})
"""Formats that the entry takes for ND."""

_MATCHED = ("query", "key", "value", "attentionOut")


def _rule(number: int, title: str, **more: Any) -> Rule:
    return Rule(id=f"FIA-IF-{number:03d}", title=title, group="interface", **more)


@scene_fact
def matched_formats(s: Scene) -> frozenset[str]:
    """Formats of query, key[0], value[0] and attentionOut (that of softmaxLse does not matter: measured)."""
    found = [s.query, *s.keys[:1], *s.values[:1], s.out]
    return frozenset(t.format for t in found if t is not None)


def dense(items: tuple[Optional[TensorSpec], ...]) -> bool:
    """Whether no tensor of a list has strides other than the dense ones; a tensor without elements counts as dense."""
    return all(t is None or t.strides is None or t.empty or t.contiguous for t in items)


_STRIDED = ("keyRope", "keyAntiquantScale", "valueAntiquantScale")


@scene_fact
def no_zero_stride(s: Scene) -> bool:
    """Whether key, value, keyRope and the separate scales have one stride per axis and none below 1."""
    found = [*s.keys, *s.values, *(s.tensor(n) for n in _STRIDED)]
    return all(t is None or t.strides is None or t.empty
               or (len(t.strides) == t.rank and min(t.strides, default=1) > 0) for t in found)


def _zero_stride(name: str) -> Change:
    def change(s: Scene) -> Optional[dict[str, object]]:
        wide = stretch(name, axis=0)(s)
        if wide is None:
            return None
        spec = wide[name][0] if isinstance(wide[name], tuple) else wide[name]  # type: ignore[index]
        assert isinstance(spec, TensorSpec) and spec.strides is not None
        new = put_strides(spec, (0, *spec.strides[1:]))
        return {name: (new, *s.keys[1:])} if name == "key" else {name: new}

    return change


def put_strides(spec: TensorSpec, strides: tuple[int, ...]) -> TensorSpec:
    """The tensor with these strides."""
    return TensorSpec(spec.shape, spec.dtype, spec.format, strides, spec.offset, spec.fill, spec.values)


RULES: tuple[Rule, ...] = (
    _rule(
        41, "query, key, value and attentionOut have a format that counts as ND", level=Level.SINGLE,
        profiles=V5_LINE - SRC_A2A3_V3, cites=("v5.interface.single.query_format_nd", "v5.common.single.format_support"),
        stage=Stage.DTYPES, enforced_by="match of dtype columns (CheckSocVersionAndParam)",
        when=always, requires=lambda s: matched_formats(s) <= RELABELLED,
        limit="ND, NCHW, NHWC, NCDHW, NCL, DHWCN",
        breaks=tuple(Break("format", relabel("FRACTAL_NZ", n)) for n in _MATCHED),
        note="The NZ cache is passed as a 5-dimensional ND tensor.",
    ),
    _rule(
        42, "query, key, value and attentionOut have format ND by the documents", level=Level.SINGLE,
        profiles=ALL_DOCUMENTS, basis=Basis.DOCUMENTED,
        cites=("v5.interface.single.query_format_nd", "v3.common.single.query_table", "v3.common.single.key_table",
               "v3.common.single.value_table", "v3.common.single.attention_out_table",
               "v3.interface.single.return_param_invalid"),
        stage=Stage.DTYPES, enforced_by="nothing (relabelled ND; V1 to V4 relabel every format)",
        when=lambda s: s.api < 5 or matched_formats(s) <= RELABELLED,
        requires=lambda s: matched_formats(s) <= frozenset({"ND"}),
        limit="ND", breaks=tuple(Break("format", relabel("NCHW", n)) for n in _MATCHED),
    ),
    _rule(
        43, "key and value are contiguous unless they are a paged cache", level=Level.SINGLE, profiles=V5_LINE - SRC_A2A3_V3,
        cites=("v5.interface.single.non_contiguous_key_value",), enforced_by="CheckMultiParaConsistency",
        when=lambda s: not s.paged, requires=lambda s: (dense(s.keys) and dense(s.values)) or not no_zero_stride(s),
        breaks=(
            Break("strides", stretch("key", axis=0), {"storage": "contiguous"}),
            Break("strides", stretch("value", axis=0), {"storage": "contiguous"}),
            Break("strides", stretch("value", axis=-1, item=-1), {"storage": "tensor_list"}),
        ),
    ),
    _rule(
        44, "strides of key, value, keyRope and scales are positive", level=Level.SINGLE, profiles=ALL_950 | SRC_A2A3_V5,
        cites=("v5.interface.single.non_contiguous_key_value", "v5.interface.single.non_contiguous_key_rope"),
        stage=Stage.PARSER, basis=Basis.SOURCE, enforced_by="ValidateStrideLocal",
        when=always, requires=no_zero_stride, limit="every stride at least 1",
        breaks=(Break("strides", _zero_stride("key"), {"storage": "contiguous"}),
                Break("strides", _zero_stride("keyRope"), entails=("FIA-RO-014", "FIA-PA-082", "FIA-PA-083"))),
    ),
    _rule(
        45, "keyAntiquantScale and valueAntiquantScale are contiguous", level=Level.SINGLE,
        profiles=ALL_DOCUMENTS - DOC_A2A3_V3, basis=Basis.DOCUMENTED,
        cites=("v5.interface.single.non_contiguous_kv_antiquant_scale",
               "v5.quant.single.antiquant_scale_contiguous"),
        enforced_by="nothing (an older base package only)",
        when=lambda s: s.quant_kind == "antiquant",
        requires=lambda s: dense((s.inputs.keyAntiquantScale, s.inputs.valueAntiquantScale)) or not no_zero_stride(s),
        breaks=tuple(Break("strides", stretch(n, axis=0), {"scenario": "antiquant"}) for n in _STRIDED[1:]),
    ),
    _rule(
        46, "query, key and value are contiguous by the V3 document", level=Level.SINGLE, profiles=DOC_A2A3_V3,
        basis=Basis.DOCUMENTED,
        cites=("v3.common.single.query_table", "v3.common.single.key_table", "v3.common.single.value_table"),
        enforced_by="nothing (made contiguous first)", when=always,
        requires=lambda s: dense((s.query, *s.keys, *s.values)),
        breaks=tuple(Break("strides", stretch(n, axis=0)) for n in ("query", "key", "value")),
    ),
    _rule(
        47, "attenMask has elements when it is passed, by the V3 document", level=Level.SINGLE,
        profiles=DOC_A2A3_V3, basis=Basis.DOCUMENTED, cites=("v3.common.single.tensor_not_empty_optionals",),
        enforced_by="nothing (counts as absent)", when=lambda s: s.inputs.attenMask is not None and s.sparse_mode == 0,
        requires=lambda s: s.mask_on,
        breaks=(Break("value", resize("attenMask", -1, 0), {"sparse_mode": "0", "storage": "contiguous"}),),
        note="What follows from other optional tensors without elements, see the rules of their groups.",
    ),
)

