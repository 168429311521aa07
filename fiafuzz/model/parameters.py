"""What the operator takes and gives: 31 inputs, 15 attributes and 2 outputs, by their C names.

Names are the C parameter names without the suffix ``Optional``, in the order of the C signature of
aclnnFusedInferAttentionScoreV5 (the user's V5 document; order as in spec/vendor_formats.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

INT_MAX = 2147483647
"""Largest 32-bit integer; the default of preTokens and nextTokens ("no bound")."""


def as_int32(value: int) -> int:
    """The value that is left when an int64 attribute is cut to 32 bits (host_behaviour.md 4.1)."""
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


class Kind(str, Enum):
    """How a parameter travels over the C interface."""

    TENSOR = "tensor"
    TENSOR_LIST = "tensor list"
    INT_ARRAY = "int array"
    ATTRIBUTE = "attribute"
    OUTPUT = "output"


GROUPS: tuple[str, ...] = (
    "interface",
    "common",
    "pse",
    "attention_mask",
    "actual_seq_len",
    "quant",
    "post_quant",
    "paged_attention",
    "left_padding",
    "shared_prefix",
    "rope",
    "learnable_sink",
    "softmax_lse",
    "inner_precise",
)
"""The parameter groups: one room of this name on every floor that has something to do for it."""


@dataclass(frozen=True)
class Parameter:
    """One parameter of the operator.

    ``since`` is the first API version that has it (1..5), ``required`` whether the C interface
    refuses a null pointer, ``default`` the attribute's documented default (None for tensors).
    """

    name: str
    kind: Kind
    group: str
    since: int
    required: bool = False
    default: object = None


def _t(name: str, group: str, since: int, required: bool = False) -> Parameter:
    return Parameter(name, Kind.TENSOR, group, since, required)


INPUTS: tuple[Parameter, ...] = (
    _t("query", "common", 1, True),
    Parameter("key", Kind.TENSOR_LIST, "common", 1, True),
    Parameter("value", Kind.TENSOR_LIST, "common", 1, True),
    _t("pseShift", "pse", 1),
    _t("attenMask", "attention_mask", 1),
    Parameter("actualSeqLengths", Kind.INT_ARRAY, "actual_seq_len", 1),
    Parameter("actualSeqLengthsKv", Kind.INT_ARRAY, "actual_seq_len", 1),
    _t("deqScale1", "quant", 1),
    _t("quantScale1", "quant", 1),
    _t("deqScale2", "quant", 1),
    _t("quantScale2", "post_quant", 1),
    _t("quantOffset2", "post_quant", 1),
    _t("antiquantScale", "quant", 1),
    _t("antiquantOffset", "quant", 1),
    _t("blockTable", "paged_attention", 1),
    _t("queryPaddingSize", "left_padding", 1),
    _t("kvPaddingSize", "left_padding", 1),
    _t("keyAntiquantScale", "quant", 2),
    _t("keyAntiquantOffset", "quant", 2),
    _t("valueAntiquantScale", "quant", 2),
    _t("valueAntiquantOffset", "quant", 2),
    _t("keySharedPrefix", "shared_prefix", 2),
    _t("valueSharedPrefix", "shared_prefix", 2),
    Parameter("actualSharedPrefixLen", Kind.INT_ARRAY, "shared_prefix", 2),
    _t("queryRope", "rope", 3),
    _t("keyRope", "rope", 3),
    _t("keyRopeAntiquantScale", "quant", 3),
    _t("dequantScaleQuery", "quant", 4),
    _t("learnableSink", "learnable_sink", 4),
    Parameter("qStartIdx", Kind.INT_ARRAY, "pse", 5),
    Parameter("kvStartIdx", Kind.INT_ARRAY, "pse", 5),
)


def _a(name: str, group: str, since: int, default: object) -> Parameter:
    return Parameter(name, Kind.ATTRIBUTE, group, since, False, default)


ATTRIBUTES: tuple[Parameter, ...] = (
    Parameter("numHeads", Kind.ATTRIBUTE, "common", 1, True, None),
    _a("scaleValue", "common", 1, 1.0),
    _a("preTokens", "attention_mask", 1, INT_MAX),
    _a("nextTokens", "attention_mask", 1, INT_MAX),
    _a("inputLayout", "common", 1, "BSH"),
    _a("numKeyValueHeads", "common", 1, 0),
    _a("sparseMode", "attention_mask", 1, 0),
    _a("innerPrecise", "inner_precise", 1, 1),
    _a("blockSize", "paged_attention", 1, 0),
    _a("antiquantMode", "quant", 1, 0),
    _a("softmaxLseFlag", "softmax_lse", 1, False),
    _a("keyAntiquantMode", "quant", 2, 0),
    _a("valueAntiquantMode", "quant", 2, 0),
    _a("queryQuantMode", "quant", 4, 0),
    _a("pseType", "pse", 5, 0),
)

OUTPUTS: tuple[Parameter, ...] = (
    Parameter("attentionOut", Kind.OUTPUT, "common", 1, True),
    Parameter("softmaxLse", Kind.OUTPUT, "softmax_lse", 1),
)

BY_NAME: dict[str, Parameter] = {p.name: p for p in (*INPUTS, *ATTRIBUTES, *OUTPUTS)}
TENSOR_INPUTS: tuple[str, ...] = tuple(p.name for p in INPUTS if p.kind is Kind.TENSOR)
TENSOR_LISTS: tuple[str, ...] = tuple(p.name for p in INPUTS if p.kind is Kind.TENSOR_LIST)
INT_ARRAYS: tuple[str, ...] = tuple(p.name for p in INPUTS if p.kind is Kind.INT_ARRAY)

INDEX_PARAMETERS: frozenset[str] = frozenset({"blockTable", "queryPaddingSize", "kvPaddingSize"})
"""Tensors whose values are indices or sizes: a case gives them as literal ``values``."""
