"""The tensors of a case as they lie in device memory: bytes.

A buffer holds what ``strided_buffer`` lays out: elements at the places of strides and offset, a recognisable number in the gaps.
Elements of four bits lie two to a byte, the first in the low half.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from fiafuzz.campaign.results import clean
from fiafuzz.model.case import CaseError, TensorSpec
from fiafuzz.model.dtypes import DTYPES
from fiafuzz.model.tensors import Tensors, buffer_elements, strided_buffer
from oracles.precision import poison

from .common import CannotExport


@dataclass(frozen=True)
class Buffer:
    """One tensor in memory. ``label`` is the parameter, with the index into a tensor list behind a dot; ``elements`` is the size
    of the buffer in elements; ``data`` its bytes, None when it holds no particular data."""

    label: str
    spec: TensorSpec
    elements: int
    data: Optional[bytes]

    @property
    def strides(self) -> tuple[int, ...]:
        """Strides in elements, dense ones where the case gives none."""
        return self.spec.strides if self.spec.strides is not None else dense_strides(self.spec.shape)

    @property
    def dense(self) -> bool:
        """Whether the elements lie row-major from the start of the buffer, without gaps."""
        return self.spec.contiguous and self.spec.offset == 0


def dense_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides of a shape; sizes below one count as one."""
    found, step = [], 1
    for size in reversed(shape):
        found.append(step)
        step *= max(size, 1)
    return tuple(reversed(found))


def packed(dtype: str, flat: NDArray[Any]) -> bytes:
    """The bytes of a flat array in storage form, little-endian; four-bit elements by twos, the first in the low half."""
    if DTYPES[dtype].bits == 4:
        codes = flat.astype(np.uint8) & np.uint8(15)
        if codes.size % 2:
            codes = np.append(codes, np.uint8(0))
        return bytes((codes[0::2] | codes[1::2] << np.uint8(4)).tobytes())
    little = flat.astype(flat.dtype.newbyteorder("<"), copy=False)
    return np.ascontiguousarray(little).tobytes()


def input_buffer(label: str, spec: TensorSpec, tensors: Optional[Tensors]) -> Buffer:
    """An input tensor in memory. CannotExport when its strides cannot lie in a buffer."""
    name, _, index = label.partition(".")
    if tensors is None:
        return Buffer(label, spec, _elements(spec, label, forgiving=True), None)
    array = tensors.many(name)[int(index)] if index else tensors.one(name)
    if array is None:
        raise CannotExport(f"{label} has no data")
    try:
        flat = strided_buffer(spec, array)
    except (CaseError, ValueError) as error:
        raise CannotExport(f"{label}: {clean(error)}") from None
    return Buffer(label, spec, flat.size, packed(spec.dtype, flat))


def output_buffer(label: str, spec: TensorSpec) -> Buffer:
    """An output tensor in memory, filled with the pattern that stands for "not written". CannotExport as above."""
    return Buffer(label, spec, _elements(spec, label, forgiving=False), None)


def poison_bytes(spec: TensorSpec) -> bytes:
    """The bytes of the pattern for one element (two elements where they share a byte)."""
    return packed(spec.dtype, poison(spec.dtype, (2,) if DTYPES[spec.dtype].bits == 4 else (1,)).reshape(-1))


def _elements(spec: TensorSpec, label: str, *, forgiving: bool) -> int:
    try:
        return buffer_elements(spec)
    except CaseError as error:
        if forgiving:
            return 0
        raise CannotExport(f"{label}: {clean(error)}") from None


def place_of(spec: TensorSpec, index: int) -> int:
    """Where the element of a flat row-major index lies in the buffer, in elements."""
    strides = spec.strides if spec.strides is not None else dense_strides(spec.shape)
    place = spec.offset
    for size, stride in zip(reversed(spec.shape), reversed(strides)):
        index, at = divmod(index, size)
        place += at * stride
    return place


def axes_of(shape: tuple[int, ...], index: int) -> tuple[int, ...]:
    """The index of every axis for a flat row-major index."""
    found = []
    for size in reversed(shape):
        index, at = divmod(index, size)
        found.append(at)
    return tuple(reversed(found))


def byte_size(spec: TensorSpec, elements: int) -> int:
    """Bytes of a number of elements."""
    bits = DTYPES[spec.dtype].bits
    return math.ceil(elements * bits / 8) if bits < 8 else elements * DTYPES[spec.dtype].itemsize
