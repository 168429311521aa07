"""Tensors of a case as torch tensors, on a device or on "meta", and outputs back into storage form.

The bytes go up as they are and are named there: nothing is converted on the device. 4-bit elements stand two a byte, the
first in the low half.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from fiafuzz.model.dtypes import DTYPES
from fiafuzz.model.tensors import strided_buffer, strided_view

from .torch_npu_arguments import TensorUse

Array = np.ndarray[Any, Any]


def dtype_of(use: TensorUse) -> torch.dtype:
    """torch's dtype of a tensor."""
    found: torch.dtype = getattr(torch, use.dtype)
    return found


def geometry(use: TensorUse) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Shape, strides and offset in torch's elements (bytes for packed ones)."""
    spec = use.spec
    strides = spec.strides if spec.strides is not None else dense_strides(spec.shape)
    if not use.packed:
        return spec.shape, strides, spec.offset
    return (*spec.shape[:-1], spec.shape[-1] // 2), (*(n // 2 for n in strides[:-1]), 1), spec.offset // 2


def dense_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides as torch counts them (an axis of size 0 counts as 1)."""
    steps: list[int] = []
    step = 1
    for size in reversed(shape):
        steps.append(step)
        step *= max(size, 1)
    return tuple(reversed(steps))


def on_meta(use: TensorUse) -> torch.Tensor:
    """A tensor without values: shape, strides and dtype."""
    shape, strides, _ = geometry(use)
    return torch.empty_strided(shape, strides, dtype=dtype_of(use), device="meta")


def upload(use: TensorUse, dense: Array, device: torch.device) -> torch.Tensor:
    """A tensor with its values, laid out with the strides and the offset of the case. ``dense``: storage form."""
    shape, strides, offset = geometry(use)
    flat = strided_buffer(use.spec, dense)
    if use.packed:
        flat = pack_halves(flat)
    if not flat.size:
        return torch.empty_strided(shape, strides, dtype=dtype_of(use), device=device)
    there = torch.from_numpy(np.ascontiguousarray(flat).view(np.uint8)).to(device).view(dtype_of(use))
    return torch.as_strided(there, shape, strides, offset)


def download(use: TensorUse, tensor: torch.Tensor) -> Array:
    """The values of an uploaded tensor in storage form, dense, after the operator wrote to it."""
    spec = use.spec
    fmt = DTYPES[spec.dtype]
    if not math.prod(spec.shape):
        return np.zeros(spec.shape, fmt.storage)
    whole = torch.as_strided(tensor, (tensor.untyped_storage().nbytes() // tensor.element_size(),), (1,), 0)
    return strided_view(spec, _stored(use, whole)).copy()


def contents(use: TensorUse, tensor: torch.Tensor) -> Array:
    """The values of a dense tensor that torch allocated itself, in storage form."""
    if not tensor.numel():
        return np.zeros(use.spec.shape, DTYPES[use.spec.dtype].storage)
    return _stored(use, tensor.reshape(-1)).reshape(use.spec.shape)


def _stored(use: TensorUse, flat: torch.Tensor) -> Array:
    raw = flat.view(torch.uint8).cpu().numpy()
    fmt = DTYPES[use.spec.dtype]
    return unpack_halves(raw, signed=fmt.is_integer) if use.packed else raw.view(fmt.storage)


def pack_halves(flat: Array) -> Array:
    """4-bit elements (one a byte in storage form, 1-D) two a byte; an odd last one is followed by a 0."""
    codes = np.ascontiguousarray(flat).view(np.uint8) & 15
    if codes.size % 2:
        codes = np.append(codes, np.uint8(0))
    packed: Array = codes[0::2] | codes[1::2] << 4
    return packed


def unpack_halves(raw: Array, *, signed: bool) -> Array:
    """The reverse of ``pack_halves``: codes as uint8, or values -8..7 as int8 when ``signed``."""
    codes = np.stack((raw & 15, raw >> 4), axis=-1).reshape(-1)
    if not signed:
        return codes
    return ((codes ^ 8).astype(np.int8) - np.int8(8)).astype(np.int8)
