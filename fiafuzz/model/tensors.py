"""Case to tensors, deterministically: each tensor from the case's seed, its own name and its list index alone.

Tensors are in storage form (``DType.storage``) and dense, whatever the strides of the case; ``strided_buffer`` and
``strided_view`` lay a dense tensor out as the case says.
"""

from __future__ import annotations

import math
from typing import Any, Union

import numpy as np
from numpy.typing import NDArray

from .case import Case, CaseError, TensorSpec
from .dtypes import DTYPES, DType
from .filling import Target, make
from .fills import PACKED_PARAMETERS, PATTERN_PARAMETERS, default_fill
from .parameters import TENSOR_INPUTS, TENSOR_LISTS
from .scalars import encode_fill, encode_number, encode_numbers
from .streams import stream_key

MAX_ELEMENTS = 1 << 28
"""Elements that one tensor, and all tensors of a case together, may have."""

MAX_BYTES = 1 << 30
"""Bytes that all tensors of a case together may take in storage form."""

MAX_OVERLAPPING = 1 << 24
"""Elements of a tensor whose strides make elements share places in a way beyond stride 0."""

GAP = 77.0
"""What stands between strided elements: a number that shows when it is read (clipped to the format)."""

Array = NDArray[Any]


class Tensors(dict[str, Union[Array, "list[Array | None]"]]):
    """Tensors of a case in storage form, by C parameter name; null tensors are left out.

    A tensor parameter holds an array, ``key`` and ``value`` a list of arrays, with None for a null entry.
    """

    def one(self, name: str) -> Array | None:
        """The array of a tensor parameter, None when it is null."""
        found = self.get(name)
        if isinstance(found, list):
            raise TypeError(f"{name} is a list of tensors")
        return found

    def many(self, name: str) -> list[Array | None]:
        """The arrays of a tensor list parameter, empty when it is null."""
        found = self.get(name, [])
        if not isinstance(found, list):
            raise TypeError(f"{name} is one tensor")
        return found


def named_specs(case: Case) -> list[tuple[str, int, TensorSpec, str]]:
    """Every input tensor that is not null: parameter, list index (0 for single tensors), spec, JSON path."""
    found = []
    for name in TENSOR_INPUTS:
        spec = getattr(case.inputs, name)
        if spec is not None:
            found.append((name, 0, spec, f"$.inputs.{name}"))
    for name in TENSOR_LISTS:
        for index, spec in enumerate(getattr(case.inputs, name) or ()):
            if spec is not None:
                found.append((name, index, spec, f"$.inputs.{name}[{index}]"))
    return found


def check_sizes(case: Case) -> None:
    """CaseError with the JSON path when a shape is negative or enormous; allocates nothing."""
    elements = stored = 0
    for _, _, spec, path in named_specs(case):
        numel = _checked_numel(spec, path)
        elements += numel
        stored += numel * DTYPES[spec.dtype].itemsize
        if elements > MAX_ELEMENTS or stored > MAX_BYTES:
            raise CaseError(f"the tensors up to here have {elements} elements in {stored} bytes, over the limit of "
                            f"{MAX_ELEMENTS} elements or {MAX_BYTES} bytes", path)


def _checked_numel(spec: TensorSpec, path: str) -> int:
    for axis, size in enumerate(spec.shape):
        if size < 0:
            raise CaseError(f"axis of size {size}", f"{path}.shape[{axis}]")
    numel = math.prod(spec.shape)
    # numpy counts the other axes even where one of them is 0.
    if math.prod(size or 1 for size in spec.shape) > MAX_ELEMENTS:
        raise CaseError(f"{numel} elements of shape {list(spec.shape)} are over the limit of {MAX_ELEMENTS}",
                        f"{path}.shape")
    return numel


def materialize(case: Case) -> Tensors:
    """All input tensors of a case in storage form, dense, null ones left out.

    CaseError with the JSON path when a shape is negative or enormous (before anything is allocated), when a fill does
    not suit dtype or shape, or when literal values do not fit. Shared causal triangles are read-only arrays.
    """
    check_sizes(case)
    tensors = Tensors()
    for name in TENSOR_LISTS:
        items = getattr(case.inputs, name)
        if items is not None:
            tensors[name] = [None] * len(items)
    for name, index, spec, path in named_specs(case):
        array = _make(case, name, index, spec, path)
        if name in TENSOR_LISTS:
            tensors.many(name)[index] = array
        else:
            tensors[name] = array
    return tensors


def materialize_one(case: Case, name: str, index: int = 0) -> Array:
    """One input tensor (``index`` into a tensor list), the same bits as ``materialize`` gives.

    KeyError when ``name`` is no tensor input or the tensor is null, IndexError beyond the list, CaseError as there.
    """
    if name not in TENSOR_INPUTS and name not in TENSOR_LISTS:
        raise KeyError(name)
    spec, path = getattr(case.inputs, name), f"$.inputs.{name}"
    if index < 0 or index >= (len(spec or ()) if name in TENSOR_LISTS else 1):
        raise IndexError(f"{name} has no tensor {index}")
    if name in TENSOR_LISTS:
        spec, path = spec[index], f"{path}[{index}]"
    if spec is None:
        raise KeyError(name)
    _checked_numel(spec, path)
    return _make(case, name, index, spec, path)


def _make(case: Case, name: str, index: int, spec: TensorSpec, path: str) -> Array:
    fmt = DTYPES[spec.dtype]
    if spec.values is not None:
        if len(spec.values) != math.prod(spec.shape):
            raise CaseError(f"{len(spec.values)} values for {math.prod(spec.shape)} elements", f"{path}.values")
        dense = encode_numbers(fmt, spec.values, f"{path}.values").reshape(spec.shape)
    else:
        fill = spec.fill if spec.fill is not None else default_fill(case, name, spec)
        dense = make(fill, Target(
            spec.shape, fmt, stream_key(case.seed, name, index), f"{path}.fill",
            pattern=spec.dtype == "UINT64" and name in PATTERN_PARAMETERS,
            packed=spec.dtype == "INT32" and name in PACKED_PARAMETERS,
        ))
    if spec.strides is not None and _may_overlap(spec):
        return _settled(spec, dense, path)
    return dense


# -- strides ----------------------------------------------------------------------------------------------------


def buffer_elements(spec: TensorSpec, path: str = "$") -> int:
    """Elements of the smallest buffer that holds a tensor with its strides and offset.

    CaseError at ``path`` when strides do not fit the rank, when strides or offset are negative, or when the buffer
    would have more than MAX_ELEMENTS.
    """
    numel = _checked_numel(spec, path)
    if spec.offset < 0:
        raise CaseError(f"offset {spec.offset} is negative", f"{path}.offset")
    if spec.strides is None:
        needed = spec.offset + numel
    else:
        if len(spec.strides) != len(spec.shape):
            raise CaseError(f"{len(spec.strides)} strides for {len(spec.shape)} axes", f"{path}.strides")
        if any(stride < 0 for stride in spec.strides):
            raise CaseError(f"negative stride in {list(spec.strides)}", f"{path}.strides")
        reach = sum((size - 1) * stride for size, stride in zip(spec.shape, spec.strides))
        needed = spec.offset + (reach + 1 if numel else 0)
    if needed > MAX_ELEMENTS:
        raise CaseError(f"a buffer of {needed} elements is over the limit of {MAX_ELEMENTS}", f"{path}.strides")
    return needed


def strided_view(spec: TensorSpec, buffer: Array) -> Array:
    """The elements of a tensor inside a flat buffer, as a view with the strides and the offset of the spec.

    ``buffer``: one axis, storage dtype. CaseError for impossible strides, ValueError for a buffer that is too small.
    """
    needed = buffer_elements(spec)
    if buffer.ndim != 1 or buffer.size < needed:
        raise ValueError(f"a buffer of shape {buffer.shape} does not hold {needed} elements")
    if spec.strides is None or not math.prod(spec.shape):
        view: Array = buffer[spec.offset : spec.offset + math.prod(spec.shape)].reshape(spec.shape)
        return view
    step = buffer.itemsize
    strides = tuple(stride * step for stride in spec.strides)
    strided: Array = np.ndarray(spec.shape, buffer.dtype, buffer, spec.offset * step, strides)
    return strided


def strided_buffer(spec: TensorSpec, dense: Array, gap_fill: int | float | str | None = None) -> Array:
    """A flat buffer that holds ``dense`` (shape and dtype of the spec) at the places its strides and offset say.

    The gaps hold ``gap_fill``, by default a finite 77 clipped to the format. ``strided_view(spec, buffer)`` equals
    ``dense`` as ``materialize`` made it, overlapping strides included.
    """
    fmt = DTYPES[spec.dtype]
    needed = buffer_elements(spec)
    if dense.shape != spec.shape or dense.dtype != np.dtype(fmt.storage):
        raise ValueError(f"a dense tensor of shape {spec.shape} and dtype {fmt.storage} is wanted, "
                         f"not {dense.shape} and {dense.dtype}")
    buffer = np.full(needed, _gap(fmt, gap_fill))
    strided_view(spec, buffer)[...] = dense
    return buffer


def _gap(fmt: DType, gap_fill: int | float | str | None) -> Any:
    if gap_fill is None:
        return encode_fill(fmt, np.array([GAP]), pattern=False)[0]
    return encode_number(fmt, gap_fill, "gap_fill")[0]


def _may_overlap(spec: TensorSpec) -> bool:
    """Whether two elements could share a place: not when every axis steps over all smaller ones."""
    if spec.strides is None or len(spec.strides) != len(spec.shape):
        return False
    reach = 0
    for stride, size in sorted((stride, size) for stride, size in zip(spec.strides, spec.shape) if size > 1):
        if stride <= reach:
            return True
        reach += (size - 1) * stride
    return False


def _settled(spec: TensorSpec, dense: Array, path: str) -> Array:
    """A dense tensor whose elements agree where the strides give them one place.

    The last index of an axis of stride 0 wins, then the last element in row-major order.
    """
    needed = buffer_elements(spec, path)
    if not dense.size:
        return dense
    shape = [1 if stride == 0 else size for size, stride in zip(spec.shape, spec.strides or ())]
    once = dense[tuple(slice(-1, None) if stride == 0 else slice(None) for stride in spec.strides or ())]
    reduced = TensorSpec(tuple(shape), spec.dtype, strides=spec.strides)
    if _may_overlap(reduced):
        if once.size > MAX_OVERLAPPING:
            raise CaseError(f"{once.size} elements share places, over the limit of {MAX_OVERLAPPING}",
                            f"{path}.strides")
        buffer = np.empty(needed, dense.dtype)
        places = np.zeros((), np.int64)
        for size, stride in zip(shape, spec.strides or ()):
            places = places[..., None] + np.arange(size, dtype=np.int64) * stride
        buffer[places.reshape(-1)] = once.reshape(-1)
        once = buffer[places]
    settled: Array = np.broadcast_to(once, spec.shape).copy()
    return settled
