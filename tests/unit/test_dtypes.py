"""The number formats as data: limits against numpy and against the values of their codes."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from fiafuzz.model.codecs import code_values, decode
from fiafuzz.model.dtypes import DTYPES, DType, dtype

NUMPY_FLOATS = {"FLOAT16": np.float16, "FLOAT32": np.float32, "DOUBLE": np.float64}
CODED = [d.name for d in DTYPES.values() if d.is_coded and d.bits <= 8]
EXPECTED = [
    "FLOAT16", "BFLOAT16", "FLOAT32", "DOUBLE", "INT8", "UINT8", "BOOL", "INT16", "UINT16", "INT32", "UINT32", "INT64",
    "UINT64", "INT4", "FLOAT8_E4M3FN", "FLOAT8_E5M2", "FLOAT8_E8M0", "FLOAT4_E2M1", "FLOAT4_E1M2", "HIFLOAT8",
    "COMPLEX64", "COMPLEX128",
]


def test_the_formats_and_their_order() -> None:
    assert list(DTYPES) == EXPECTED
    assert all(isinstance(d, DType) and d.name == name for name, d in DTYPES.items())


@pytest.mark.parametrize("name", EXPECTED)
def test_storage_and_itemsize_agree_with_numpy(name: str) -> None:
    d = DTYPES[name]
    assert np.dtype(d.storage).itemsize == d.itemsize
    assert d.itemsize * 8 >= d.bits


@pytest.mark.parametrize("name", NUMPY_FLOATS)
def test_limits_of_the_ieee_formats_are_numpys(name: str) -> None:
    d, info = DTYPES[name], np.finfo(NUMPY_FLOATS[name])
    assert (d.max_finite, d.lowest) == (float(info.max), float(info.min))
    assert (d.min_normal, d.min_subnormal) == (float(info.tiny), float(info.smallest_subnormal))
    assert (d.epsilon, d.bits, d.mantissa_bits) == (float(info.eps), info.bits, info.nmant)
    assert d.has_inf and d.has_nan and d.has_zero and d.signed and d.is_float


def test_limits_of_the_integers_are_numpys() -> None:
    for name in EXPECTED:
        d = DTYPES[name]
        if d.is_integer and d.bits >= 8:
            info = np.iinfo(d.storage)
            assert (d.lowest, d.max_finite, d.bits) == (info.min, info.max, info.bits)
            assert not (d.has_inf or d.has_nan or d.is_float or d.is_coded)
    assert (DTYPES["INT4"].lowest, DTYPES["INT4"].max_finite, DTYPES["INT4"].storage) == (-8, 7, "int8")


def test_limits_of_bfloat16() -> None:
    d = DTYPES["BFLOAT16"]
    every = decode("BFLOAT16", np.arange(1 << 16, dtype=np.uint16))
    finite = every[np.isfinite(every)]
    assert (d.max_finite, d.lowest) == (finite.max(), finite.min())
    assert d.min_subnormal == finite[finite > 0].min() == 2.0**-133
    assert d.min_normal == 2.0**-126 and d.epsilon == 2.0**-7 and d.bits == 16


@pytest.mark.parametrize("name", CODED)
def test_limits_of_the_coded_formats_are_those_of_their_codes(name: str) -> None:
    d, values = DTYPES[name], code_values(name)
    assert values.size == 1 << d.bits
    finite = values[np.isfinite(values)]
    assert (d.max_finite, d.lowest) == (finite.max(), finite.min())
    assert d.min_subnormal == finite[finite > 0].min()
    assert d.has_inf == bool(np.isinf(values).any())
    assert d.has_nan == bool(np.isnan(values).any())
    assert d.has_zero == bool((finite == 0).any())
    assert d.signed == bool((finite < 0).any())
    assert d.min_normal == 2.0**d.min_exponent
    assert d.epsilon == finite[finite > 1].min() - 1


@pytest.mark.parametrize(
    ("name", "largest", "normal", "subnormal"),
    [  # the figures of spec/numerics.md 18
        ("FLOAT8_E4M3FN", 448.0, 2.0**-6, 2.0**-9),
        ("FLOAT8_E5M2", 57344.0, 2.0**-14, 2.0**-16),
        ("FLOAT8_E8M0", 2.0**127, 2.0**-127, 2.0**-127),
        ("FLOAT4_E2M1", 6.0, 1.0, 0.5),
        ("FLOAT4_E1M2", 1.75, 1.0, 0.25),
        ("HIFLOAT8", 32768.0, 2.0**-15, 2.0**-22),
        ("FLOAT16", 65504.0, 2.0**-14, 2.0**-24),
    ],
)
def test_documented_limits(name: str, largest: float, normal: float, subnormal: float) -> None:
    d = DTYPES[name]
    assert (d.max_finite, d.min_normal, d.min_subnormal) == (largest, normal, subnormal)


def test_kinds() -> None:
    assert [n for n, d in DTYPES.items() if d.is_float8] == ["FLOAT8_E4M3FN", "FLOAT8_E5M2"]
    assert [n for n, d in DTYPES.items() if d.kind == "complex"] == ["COMPLEX64", "COMPLEX128"]
    assert not DTYPES["FLOAT8_E8M0"].is_float and DTYPES["HIFLOAT8"].is_float
    assert {n for n, d in DTYPES.items() if d.is_coded} == {*CODED, "BFLOAT16"}


def test_an_unknown_name_is_refused_and_the_known_ones_are_listed() -> None:
    with pytest.raises(ValueError, match=r"unknown dtype 'FLOAT'; known: FLOAT16, BFLOAT16, .*COMPLEX128$"):
        dtype("FLOAT")
    assert dtype("FLOAT16") is DTYPES["FLOAT16"]


def test_reading_cases_does_not_import_numpy() -> None:
    code = "import sys, fiafuzz.model.case; print('numpy' in sys.modules or 'ml_dtypes' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
