"""The fill of a tensor that has neither ``fill`` nor ``values``, per parameter, with the reason.

One idea runs through the numbers: default data times default scale lies in about -2 .. 2, whatever the format, so
that scores are neither all alike nor one-hot and every parameter is visible in the output. Scales have at most three
significant bits (deqScale2: eight), so that products with them are exact in float16 and in UINT64 patterns.
Defaults never fail on an odd dtype, since mutated calls have them: values are rounded and clipped instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from .case import Case, Grid, TensorSpec, Triu
from .dtypes import DTYPES
from .filling import AnyFill, Enumeration, Steps
from .layouts import MASK_COMPRESSED

PACKED_PARAMETERS: frozenset[str] = frozenset({"key", "value", "keySharedPrefix", "valueSharedPrefix"})
"""Where dtype INT32 means eight INT4 a word (spec/numerics.md 15.3)."""

PATTERN_PARAMETERS: frozenset[str] = frozenset({"deqScale1", "deqScale2"})
"""Where dtype UINT64 means a float32 pattern in the low half (spec/numerics.md 16.1)."""

FULL_SCALE = {"INT8": -9, "UINT8": -9, "INT4": -5, "INT32": -5}
"""Exponent that brings 4 .. 8 times the full range of the integers down to about -2 .. 2."""


@dataclass(frozen=True)
class Default:
    """The default fill of a parameter and the reason for it."""

    why: str
    choose: Callable[[Case, TensorSpec], AnyFill]


def _dtype_of(case: Case, name: str) -> str:
    spec = getattr(case.inputs, name)
    if isinstance(spec, tuple):
        spec = next((item for item in spec if item is not None), None)
    return spec.dtype if spec is not None else ""


def _data(case: Case, spec: TensorSpec) -> AnyFill:
    # Integers: everything the format has, extremes included. Floats: few exact values, sums without rounding.
    if spec.dtype in ("INT8", "INT4"):
        fmt = DTYPES[spec.dtype]
        return Grid(float(fmt.lowest), float(fmt.max_finite))
    return Grid()


def _kv_data(case: Case, spec: TensorSpec) -> AnyFill:
    return Grid(-8.0, 7.0) if spec.dtype == "INT32" else _data(case, spec)


def _scale(spec: TensorSpec, data: str) -> AnyFill:
    if spec.dtype == "FLOAT8_E8M0":
        return Grid(0.25, 1.0)
    if DTYPES[spec.dtype].is_integer:
        return Steps(1, 1, 0)
    return Steps(4, 8, FULL_SCALE.get(data, -3))


def _kv_scale(case: Case, spec: TensorSpec) -> AnyFill:
    return _scale(spec, _dtype_of(case, "key"))


def _value_scale(case: Case, spec: TensorSpec) -> AnyFill:
    return _scale(spec, _dtype_of(case, "value"))


def _query_scale(case: Case, spec: TensorSpec) -> AnyFill:
    return _scale(spec, _dtype_of(case, "query"))


def _rope_scale(case: Case, spec: TensorSpec) -> AnyFill:
    return _scale(spec, _dtype_of(case, "keyRope"))


def _quantised(case: Case) -> bool:
    return _dtype_of(case, "query") in FULL_SCALE


def _query_rope(case: Case, spec: TensorSpec) -> AnyFill:
    return Steps(-16, 16, 10) if _quantised(case) else Grid()


def _pse(case: Case, spec: TensorSpec) -> AnyFill:
    return Steps(4, 8, -6) if case.attrs.pseType in (2, 3) else Grid()


def _mask(case: Case, spec: TensorSpec) -> AnyFill:
    fixed = spec.shape[-2:] == (MASK_COMPRESSED, MASK_COMPRESSED) and len(spec.shape) <= 4
    if fixed and all(n == 1 for n in spec.shape[:-2]) and DTYPES[spec.dtype].has_zero:
        return Triu(diagonal=1)
    return Steps(0, 0, 0)


def _deq_scale1(case: Case, spec: TensorSpec) -> AnyFill:
    return Steps(4, 8, -14 if _quantised(case) else -3)


def _quant_scale1(case: Case, spec: TensorSpec) -> AnyFill:
    return Steps(127, 127, 0) if _quantised(case) else Steps(1, 1, 7)


def _deq_scale2(case: Case, spec: TensorSpec) -> AnyFill:
    return Steps(129, 129, -20) if _quantised(case) else Steps(1, 1, -7)


def _block_table(case: Case, spec: TensorSpec) -> AnyFill:
    key = next((item for item in case.inputs.key or () if item is not None), None)
    blocks = key.shape[0] if key is not None and key.shape else 0
    return Enumeration(blocks if blocks > 0 else max(spec.numel, 1))


def _zero(case: Case, spec: TensorSpec) -> AnyFill:
    return Steps(0, 0, 0)


def _post_scale(case: Case, spec: TensorSpec) -> AnyFill:
    return Steps(4, 8, 2)


_DATA = "data: floats in eighths of -2 .. 2, exact in every format with 3 fraction bits; INT8 and INT4 over their range"
_ANTIQUANT = "stored data times scale within -2 .. 2: up to 1/64 for INT8, 1/4 for INT4, 1 for 8- and 4-bit floats"

DEFAULTS: Mapping[str, Default] = MappingProxyType({
    "query": Default(_DATA, _data),
    "key": Default(_DATA + "; INT32 holds random nibbles", _kv_data),
    "value": Default(_DATA + "; INT32 holds random nibbles", _kv_data),
    "pseShift": Default("data on the scale of the scores; slopes of alibi (pseType 2, 3) 1/16 .. 1/8, so that "
                        "distances of a hundred keys still differ", _pse),
    "attenMask": Default("the fixed 2048 x 2048 mask of sparseMode 2, 3, 4 is the upper triangle without diagonal; any "
                         "other mask keeps everything", _mask),
    "deqScale1": Default("product of the scales of query and key: INT8 2**-12 .. 2**-11", _deq_scale1),
    "quantScale1": Default("INT8: 127 takes probabilities to the whole range; FP8 and HIFLOAT8: the factor on the "
                           "probabilities, at least 1, and 128 keeps small ones out of the subnormals", _quant_scale1),
    "deqScale2": Default("scale of value divided by quantScale1 (spec/numerics.md 16.2): 1/64/127 to eight bits for "
                         "INT8, 1/128 otherwise", _deq_scale2),
    "quantScale2": Default("an output within -2 .. 2 becomes up to 64: most of INT8, inside FP8 and HIFLOAT8",
                           _post_scale),
    "quantOffset2": Default("no offset", _zero),
    "antiquantScale": Default(_ANTIQUANT, _kv_scale),
    "antiquantOffset": Default("no offset", _zero),
    "blockTable": Default("entry i (row-major) is block i, modulo the number of blocks of the cache: every block "
                          "once while they last, never one outside", _block_table),
    "queryPaddingSize": Default("no padding", _zero),
    "kvPaddingSize": Default("no padding", _zero),
    "keyAntiquantScale": Default(_ANTIQUANT + "; E8M0 1/4 .. 1", _kv_scale),
    "keyAntiquantOffset": Default("no offset", _zero),
    "valueAntiquantScale": Default(_ANTIQUANT + "; E8M0 1/4 .. 1", _value_scale),
    "valueAntiquantOffset": Default("no offset", _zero),
    "keySharedPrefix": Default("as key", _kv_data),
    "valueSharedPrefix": Default("as value", _kv_data),
    "queryRope": Default("data; beside an INT8 query it is divided by both scales beforehand (spec/numerics.md 16.4): "
                         "2**13 times as large there, or it would vanish beside the other half", _query_rope),
    "keyRope": Default(_DATA, _data),
    "keyRopeAntiquantScale": Default("positive, as any scale; nothing is known to read it", _rope_scale),
    "dequantScaleQuery": Default("as the scale of key, by the dtype of query", _query_scale),
    "learnableSink": Default("a logit among the scores", _data),
})
"""Every tensor input of the operator."""


def default_fill(case: Case, name: str, spec: TensorSpec) -> AnyFill:
    """The fill of a tensor that has neither fill nor values. Never raises on any known dtype."""
    return DEFAULTS[name].choose(case, spec)
