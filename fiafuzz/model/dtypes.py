"""Every number format that the operator's documents name, as plain data: widths, limits, storage.

Importing this module needs neither numpy nor anything else; the conversions live in ``codecs``. Limits are
exact Python numbers. Sources: spec/numerics.md 18 and 18.1; FLOAT4_E1M2 has bias 1 (its listed values are
0, .25 .. 1.75).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, Union

Kind = Literal["float", "int", "uint", "bool", "complex", "scale"]


@dataclass(frozen=True)
class DType:
    """One number format.

    ``bits`` is the width of one element in the interface. ``storage`` is the numpy dtype that holds one
    element in dumps and materialised tensors, ``itemsize`` its bytes: FLOAT16, FLOAT32, DOUBLE, BOOL, the
    integers and the complex formats as they are, BFLOAT16 as bit patterns (uint16), all formats of 8 bits
    and FLOAT4 as one code per uint8, INT4 as one value -8..7 per int8. (INT4 packed by eights into words is
    the format INT32.)

    ``lowest`` and ``max_finite`` are the ends of the finite range, ints for integers; of a complex format,
    these and the float fields speak of one part. ``mantissa_bits`` counts the stored fraction bits;
    ``tapered`` marks HIFLOAT8, which has 3 near 1 and fewer farther out. ``min_normal`` and
    ``min_subnormal`` are the smallest positive normal and positive value (0.0 for integers).
    """

    name: str
    bits: int
    kind: Kind
    storage: str
    itemsize: int
    lowest: Union[int, float]
    max_finite: Union[int, float]
    exponent_bits: int = 0
    mantissa_bits: int = 0
    bias: int = 0
    min_normal: float = 0.0
    min_subnormal: float = 0.0
    has_inf: bool = False
    has_nan: bool = False
    has_zero: bool = True
    tapered: bool = False

    @property
    def signed(self) -> bool:
        """Whether the format has negative values."""
        return self.lowest < 0

    @property
    def is_float(self) -> bool:
        """Whether elements are real floating-point data (not E8M0 scales, not complex)."""
        return self.kind == "float"

    @property
    def is_integer(self) -> bool:
        """Whether elements are integers (BOOL is not counted)."""
        return self.kind in ("int", "uint")

    @property
    def is_float8(self) -> bool:
        """Whether the documents call it FP8: E4M3FN and E5M2, not HIFLOAT8 and not E8M0."""
        return self.name in ("FLOAT8_E4M3FN", "FLOAT8_E5M2")

    @property
    def is_coded(self) -> bool:
        """Whether the storage holds codes or bit patterns that have to be decoded to become numbers."""
        return self.kind in ("float", "scale") and self.storage.startswith("uint")

    @property
    def min_exponent(self) -> int:
        """Exponent of the smallest normal (float formats and E8M0): min_normal is 2 to this power."""
        return -15 if self.tapered else -127 if self.kind == "scale" else 1 - self.bias

    @property
    def epsilon(self) -> float:
        """Machine epsilon: distance from 1 to the next larger value (1.0 for integers)."""
        return 2.0**-self.mantissa_bits


def _float(
    name: str, exponent_bits: int, mantissa_bits: int, storage: str, itemsize: int, *, bias: int,
    specials: Literal["ieee", "nan", "none"], kind: Kind = "float", parts: int = 1,
) -> DType:
    # "ieee": the top exponent is inf and NaN; "nan": only the all-ones code is NaN; "none": every code is a number.
    top = (1 << exponent_bits) - 1 - (specials == "ieee") - bias
    ulps = (1 << mantissa_bits) - 1 - (specials == "nan")
    # Not 2.0 ** (top + 1) - ..., which overflows for the widest format.
    largest = (1.0 + ulps * 2.0**-mantissa_bits) * 2.0**top
    return DType(
        name, parts * (1 + exponent_bits + mantissa_bits), kind, storage, itemsize, -largest, largest,
        exponent_bits, mantissa_bits, bias, 2.0 ** (1 - bias), 2.0 ** (1 - bias - mantissa_bits),
        has_inf=specials == "ieee", has_nan=specials != "none",
    )


def _integer(name: str, bits: int, kind: Literal["int", "uint"]) -> DType:
    storage = "int8" if bits == 4 else f"{kind}{bits}"
    lowest, largest = (-(1 << bits - 1), (1 << bits - 1) - 1) if kind == "int" else (0, (1 << bits) - 1)
    return DType(name, bits, kind, storage, max(bits, 8) // 8, lowest, largest)


DTYPES: Mapping[str, DType] = MappingProxyType({
    d.name: d
    for d in (
        _float("FLOAT16", 5, 10, "float16", 2, bias=15, specials="ieee"),
        _float("BFLOAT16", 8, 7, "uint16", 2, bias=127, specials="ieee"),
        _float("FLOAT32", 8, 23, "float32", 4, bias=127, specials="ieee"),
        _float("DOUBLE", 11, 52, "float64", 8, bias=1023, specials="ieee"),
        _integer("INT8", 8, "int"),
        _integer("UINT8", 8, "uint"),
        DType("BOOL", 8, "bool", "bool", 1, 0, 1),
        _integer("INT16", 16, "int"),
        _integer("UINT16", 16, "uint"),
        _integer("INT32", 32, "int"),
        _integer("UINT32", 32, "uint"),
        _integer("INT64", 64, "int"),
        _integer("UINT64", 64, "uint"),
        _integer("INT4", 4, "int"),
        _float("FLOAT8_E4M3FN", 4, 3, "uint8", 1, bias=7, specials="nan"),
        _float("FLOAT8_E5M2", 5, 2, "uint8", 1, bias=15, specials="ieee"),
        # No sign and no zero: code c is 2 ** (c - 127), 255 is NaN.
        DType("FLOAT8_E8M0", 8, "scale", "uint8", 1, 2.0**-127, 2.0**127, 8, 0, 127, 2.0**-127, 2.0**-127,
              has_nan=True, has_zero=False),
        _float("FLOAT4_E2M1", 2, 1, "uint8", 1, bias=1, specials="none"),
        _float("FLOAT4_E1M2", 1, 2, "uint8", 1, bias=1, specials="none"),
        # Exponents -15 .. 15 by a prefix code, below them the powers of two down to 2 ** -22.
        DType("HIFLOAT8", 8, "float", "uint8", 1, -32768.0, 32768.0, 0, 3, 0, 2.0**-15, 2.0**-22,
              has_inf=True, has_nan=True, tapered=True),
        _float("COMPLEX64", 8, 23, "complex64", 8, bias=127, specials="ieee", kind="complex", parts=2),
        _float("COMPLEX128", 11, 52, "complex128", 16, bias=1023, specials="ieee", kind="complex", parts=2),
    )
})
"""Format by the name that the operator's documents use, in a stable order."""

FLOAT_QUERY: frozenset[str] = frozenset({"FLOAT16", "BFLOAT16"})
"""Dtypes of a query, and of an output, that is not quantised."""


def dtype(name: str) -> DType:
    """The format of that name; ValueError names the known ones."""
    try:
        return DTYPES[name]
    except KeyError:
        raise ValueError(f"unknown dtype {name!r}; known: {', '.join(DTYPES)}") from None
