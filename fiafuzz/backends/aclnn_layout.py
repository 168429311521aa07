"""Where the tensors of one call lie in device memory: one block for the whole call, guard bytes around each tensor.

One block means one copy to the device and one back, which is what small calls spend most of their time on. Guard bytes are what a
kernel must neither write nor let into its results: read as a float of any format they are NaN, as an integer -1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from fiafuzz.model.case import Case, CaseError, TensorSpec
from fiafuzz.model.dtypes import DTYPES
from fiafuzz.model.parameters import OUTPUTS
from fiafuzz.model.tensors import Tensors, buffer_elements, named_specs, strided_buffer, strided_view

ALIGNMENT = 512
"""Bytes: what aclrtMalloc gives; the operator asks for 32."""
GUARD = 256
"""Least number of guard bytes before and behind a tensor."""
GUARD_BYTE = 0xFF
UNIT = 32
"""Bytes that the device moves at a time."""
WHOLE = 1 << 20
"""Blocks up to this size are read back whole, so that a write to an input is seen; of larger ones only the outputs."""
BLIND = 64
"""Bytes that stand in for the data of a tensor that cannot be made."""

Bytes = NDArray[np.uint8]
_GUARDS: Bytes = np.full(2 * ALIGNMENT, GUARD_BYTE, np.uint8)
"""More than lies between two tensors."""
_GUARDS.flags.writeable = False
Arrays = Mapping[str, NDArray[Any]]


def slack(size: int) -> int:
    """Bytes behind ``size`` bytes of data that a kernel may write: it moves whole units, and aclrtMalloc rounds every size up to
    them (acl_rt.h)."""
    return -size % UNIT


def is_packed(dtype: str) -> bool:
    """Whether two elements share a byte in memory (4-bit formats)."""
    return DTYPES[dtype].bits == 4


def to_memory(dtype: str, stored: NDArray[Any]) -> Bytes:
    """Elements in storage form, flat, as the operator reads them: bytes, the even element of a 4-bit pair in the low half."""
    flat = np.ascontiguousarray(stored).reshape(-1)
    if not is_packed(dtype):
        return flat.view(np.uint8)
    codes = flat.view(np.uint8) & 0x0F
    if codes.size % 2:
        codes = np.append(codes, np.uint8(0))
    packed: Bytes = codes[0::2] | (codes[1::2] << 4)
    return packed


def from_memory(dtype: str, memory: Bytes, count: int) -> NDArray[Any]:
    """``count`` elements in storage form (flat) from bytes as the operator writes them; the inverse of ``to_memory``."""
    storage = np.dtype(DTYPES[dtype].storage)
    if not is_packed(dtype):
        return memory[: count * storage.itemsize].view(storage)
    pairs = memory[: (count + 1) // 2]
    codes = np.empty(2 * pairs.size, np.uint8)
    codes[0::2], codes[1::2] = pairs & 0x0F, pairs >> 4
    codes = codes[:count]
    if storage.kind == "i":  # the sign of a 4-bit integer
        return ((codes ^ 8).view(np.int8) - 8).astype(storage)
    return codes


@dataclass
class Place:
    """One tensor of the call in the block.

    ``begin``: bytes from the start of the block to the tensor's storage; ``size``: bytes of the storage; ``elements``: elements of the
    storage, gaps of strided tensors included (None: no memory can hold them); ``known``: whether ``memory`` holds the tensor's data
    (False: nothing can be made of it, and only the host's checks may look at the call).
    """

    name: str
    index: int
    spec: TensorSpec
    begin: int = 0
    size: int = 0
    elements: Optional[int] = None
    known: bool = True
    output: bool = False
    memory: Optional[Bytes] = None

    @property
    def title(self) -> str:
        """Its name in messages."""
        return f"{self.name}[{self.index}]" if self.name in ("key", "value") else self.name


class Layout:
    """The tensors of one call, laid out. ``places`` by (parameter, list index); ``total`` bytes of the block; outputs stand last, from
    ``outputs_begin`` on. ``complete`` tells whether every tensor's data is there, so that the call may be launched."""

    def __init__(self, case: Case, tensors: Tensors, outputs: Arrays) -> None:
        self.places: dict[tuple[str, int], Place] = {}
        for name, index, spec, _ in named_specs(case):
            found = tensors.get(name)
            if isinstance(found, list):
                found = found[index] if index < len(found) else None
            self._add(Place(name, index, spec), found)
        inputs = list(self.places.values())
        for parameter in OUTPUTS:
            spec = getattr(case.outputs, parameter.name)
            if spec is not None:
                self._add(Place(parameter.name, 0, spec, output=True), outputs.get(parameter.name))
        end = 0
        for place in inputs:
            end = self._put(place, end)
        self.outputs_begin = end = -(-end // ALIGNMENT) * ALIGNMENT
        for place in self.outputs:
            end = self._put(place, end)
        self.total = end + GUARD + ALIGNMENT
        self.complete = all(place.known for place in self.places.values())

    @property
    def outputs(self) -> list[Place]:
        """The output tensors that the call gives."""
        return [place for place in self.places.values() if place.output]

    def _add(self, place: Place, stored: Optional[NDArray[Any]]) -> None:
        self.places[place.name, place.index] = place
        spec = place.spec
        try:
            place.elements = buffer_elements(spec)
        except CaseError:
            stored = None
        if stored is None and place.output and place.name == "softmaxLse":
            stored = self._unasked(spec)
        if stored is None or stored.shape != spec.shape or stored.dtype != np.dtype(DTYPES[spec.dtype].storage):
            place.known, place.size, place.memory = False, BLIND, None
            return
        place.memory = to_memory(spec.dtype, stored if _plain(spec) else strided_buffer(spec, stored))
        place.size = place.memory.size

    @staticmethod
    def _unasked(spec: TensorSpec) -> Optional[NDArray[Any]]:
        """Memory for a softmaxLse that the call gives without asking for it."""
        if any(axis < 0 for axis in spec.shape) or math.prod(axis or 1 for axis in spec.shape) > WHOLE:
            return None
        return np.zeros(spec.shape, np.dtype(DTYPES[spec.dtype].storage))

    def _put(self, place: Place, end: int) -> int:
        place.begin = -(-(end + GUARD) // ALIGNMENT) * ALIGNMENT
        return place.begin + place.size + slack(place.size)

    def pieces(self, start: int, stop: int) -> Iterator[tuple[int, Bytes]]:
        """The call's memory from one byte of the block to another (neither within a tensor), tensors and guard bytes in turn: where
        each piece begins, and its bytes."""
        end = start
        for place in self.places.values():
            if start <= place.begin < stop:
                yield end, _GUARDS[: place.begin - end]
                if place.memory is not None:
                    yield place.begin, place.memory
                end = place.begin + (0 if place.memory is None else place.size)
        while end < stop:
            yield end, _GUARDS[: stop - end]
            end += _GUARDS.size

    def fill(self, block: Bytes, start: int = 0) -> None:
        """Write the call's memory from ``start`` on into a host block."""
        for begin, piece in self.pieces(start, self.total):
            block[begin - start : begin - start + piece.size] = piece

    def window(self) -> tuple[int, int]:
        """First and last byte (exclusive) of the block to read back after the run."""
        return (0 if self.total <= WHOLE else self.outputs_begin, self.total)

    def take(self, before: Bytes, after: Bytes, outputs: dict[str, NDArray[Any]]) -> str:
        """Copy what the run wrote into the output arrays, and look for writes elsewhere.

        ``before`` and ``after``: the window as it was sent and as it came back. Gives what was changed that is no output, in words; ""
        when nothing was.
        """
        start, _ = self.window()
        expected = before.copy()
        for place in self.outputs:
            begin, end = place.begin - start, place.begin - start + place.size
            back = after[begin:end]
            expected[end : end + slack(place.size)] = after[end : end + slack(place.size)]
            view = self._read(place, back)
            if place.name in outputs:
                outputs[place.name][...] = view
            if _plain(place.spec) or is_packed(place.spec.dtype):
                expected[begin:end] = back
            else:
                storage = np.dtype(DTYPES[place.spec.dtype].storage)
                strided_view(place.spec, expected[begin:end].view(storage))[...] = view
        changed = np.flatnonzero(expected != after)
        return self._words(changed + start) if changed.size else ""

    @staticmethod
    def _read(place: Place, memory: Bytes) -> NDArray[Any]:
        flat = from_memory(place.spec.dtype, memory, place.elements or 0)
        return flat.reshape(place.spec.shape) if _plain(place.spec) else strided_view(place.spec, flat)

    def _words(self, changed: NDArray[Any]) -> str:
        first = int(changed[0])
        near = min(self.places.values(), key=lambda p: _distance(p, first))
        end = near.begin + near.size
        if first >= end:
            where = f"{count(first - end + 1)} behind the end of {near.title}"
        elif first < near.begin:
            where = f"{count(near.begin - first)} before the start of {near.title}"
        elif near.output:
            where = f"in a gap between the elements of {near.title}, byte {first - near.begin}"
        else:
            where = f"in the input {near.title}, byte {first - near.begin}"
        return f"{count(changed.size)} that belong{'s' * (changed.size == 1)} to no output changed, the first {where}"


def count(size: int) -> str:
    """A number of bytes in words."""
    return "1 byte" if size == 1 else f"{size} bytes"


def _plain(spec: TensorSpec) -> bool:
    return spec.strides is None and not spec.offset


def _distance(place: Place, at: int) -> int:
    return max(place.begin - at, at - (place.begin + place.size - 1), 0)
