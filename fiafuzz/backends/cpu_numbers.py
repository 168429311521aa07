"""Storage arrays as torch tensors, and the roundings of the working precision.

Arithmetic is done in float32; a value that the operator holds in a narrower format is rounded to that format and
widened again. Sources: spec/numerics.md 2, 16 and 18.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fiafuzz.model.codecs import code_values

from .cpu_problem import CannotRun

FLOAT_TYPES = {"FLOAT16": torch.float16, "BFLOAT16": torch.bfloat16, "FLOAT32": torch.float32}
FP8_TYPES = {"FLOAT8_E4M3FN": torch.float8_e4m3fn, "FLOAT8_E5M2": torch.float8_e5m2}
FP8_MAX = {"FLOAT8_E4M3FN": 448.0, "FLOAT8_E5M2": 57344.0}
HIF8_MAX = 32768.0

_KNOWN = frozenset(np.dtype(n) for n in ("float16", "float32", "int8", "uint8", "bool", "int32", "int64"))


def as_torch(array: np.ndarray[Any, Any], dtype: str) -> Tensor:
    """A storage array as a tensor over the same memory: FLOAT16/BFLOAT16/FLOAT32 and integers as such, coded formats
    as uint8 codes. A read-only array is copied, since torch has no read-only tensors."""
    if not array.flags.writeable:
        array = array.copy()
    if dtype == "BFLOAT16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    if array.dtype not in _KNOWN:
        raise CannotRun(f"{dtype} tensors cannot be computed with")
    return torch.from_numpy(array)


@cache
def code_table(dtype: str) -> Tensor:
    """float32 value of each code of an 8-bit or 4-bit format."""
    values = np.asarray(code_values(dtype), np.float32)
    return torch.from_numpy(np.resize(values, 256))


def widen(x: Tensor, dtype: str) -> Tensor:
    """Storage to float32, exactly: floats and integers by value, coded formats by their table."""
    if x.dtype != torch.uint8 or dtype in ("UINT8", "BOOL"):
        return x.float()
    if dtype in FP8_TYPES:
        return x.view(FP8_TYPES[dtype]).float()
    return code_table(dtype)[x.int()]


def unpack_int4(words: Tensor) -> Tensor:
    """INT4 packed in INT32 to int8: eight values a word along the last axis, lowest nibble first, two's complement."""
    pairs = words.contiguous().view(torch.int8)
    if sys.byteorder == "big":
        pairs = pairs.view(*pairs.shape[:-1], -1, 4).flip(-1).flatten(-2)
    # Shifting signed bytes keeps the sign of the nibble that ends up on top.
    return torch.stack(((pairs << 4) >> 4, pairs >> 4), dim=-1).flatten(-2)


def to_half(x: Tensor) -> Tensor:
    """float32 rounded to FLOAT16, ties to even, as float32."""
    return x.half().float()


def to_bfloat(x: Tensor) -> Tensor:
    """float32 rounded to BFLOAT16, ties to even, as float32."""
    return x.bfloat16().float()


def to_fp8(x: Tensor, dtype: str) -> Tensor:
    """float32 rounded to an FP8 format, ties to even, saturating, as float32."""
    limit = FP8_MAX[dtype]
    return x.clamp(-limit, limit).to(FP8_TYPES[dtype]).float()


def to_hif8(x: Tensor) -> Tensor:
    """float32 rounded to HIFLOAT8, ties away from zero, saturating, as float32 (spec/numerics.md 18.1, ROUND)."""
    exponent = torch.frexp(x).exponent - 1
    size = exponent.abs()
    kept = 3 - (size > 3).int() - (size > 7).int() - ((size > 15) | (exponent < -15)).int()
    # Below 2**-22 one step is left: from 2**-23 on a value goes up to it, what is smaller goes to zero.
    step = (exponent - kept).clamp_min(-22).float().exp2()
    return (torch.copysign((x.abs() / step + 0.5).floor() * step, x)).clamp(-HIF8_MAX, HIF8_MAX)


def to_float_type(dtype: str) -> Callable[[Tensor], Tensor]:
    """The rounding of float32 to FLOAT16 or BFLOAT16."""
    return to_half if dtype == "FLOAT16" else to_bfloat
