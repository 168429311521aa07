"""Dumped tensors as .npz files: what a device was given and what it gave back.

Arrays are named ``in:<parameter>`` (lists ``in:key.0``, ``in:key.1``), ``out:attentionOut``, ``out:softmaxLse`` and
``compare:<output>`` (bool: which elements may be compared), in storage form (``DType.storage``); INT4 also as packed
int32. Integer arrays (lengths) belong to the case and are not dumped.

Reading trusts nothing: the zip directory and every array header are checked before an array is allocated, and
nothing is ever unpickled.
"""

from __future__ import annotations

import ast
import contextlib
import difflib
import errno
import math
import os
import stat
import struct
import uuid
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Union

import numpy as np
from numpy.typing import NDArray

from .case import MAX_LIST, MAX_RANK, Case, TensorSpec
from .codecs import check_storage, unpack_int4
from .dtypes import DTYPES
from .parameters import INT_ARRAYS, OUTPUTS, TENSOR_INPUTS, TENSOR_LISTS
from .tensors import Tensors, materialize_one

Array = NDArray[Any]
PathLike = Union[str, "os.PathLike[str]"]

MAX_BYTES = 1 << 31
"""Bytes that the arrays of one dump may take unpacked."""

MAX_ARRAYS = 2 * MAX_LIST + 64
_MAX_HEADER = 10_000
_MAX_DIRECTORY = MAX_ARRAYS * 512
_MAGIC = b"\x93NUMPY"
_STORED = frozenset(np.dtype(d.storage) for d in DTYPES.values())
_OUTPUT_NAMES = tuple(p.name for p in OUTPUTS)
_FIXED = {"out:softmaxLse": "float32", **{f"compare:{name}": "bool" for name in _OUTPUT_NAMES}}


class DumpError(ValueError):
    """A dump that cannot be used: one line that says what and where."""


def dump_key(name: str, index: int | None = None) -> str:
    """The array name of an input (``index`` into a tensor list)."""
    return f"in:{name}" if index is None else f"in:{name}.{index}"


def dump_inputs(tensors: Mapping[str, Union[Array, list[Array | None]]]) -> dict[str, Array]:
    """Materialised tensors under the names of the dump convention; null entries of lists are left out."""
    arrays: dict[str, Array] = {}
    for name, found in tensors.items():
        if isinstance(found, list):
            arrays.update({dump_key(name, i): array for i, array in enumerate(found) if array is not None})
        else:
            arrays[dump_key(name)] = found
    return arrays


def save_dump(path: PathLike, arrays: Mapping[str, Array], *, compress: bool = False) -> None:
    """Write arrays to an .npz file under exactly that path, by renaming a finished temporary file.

    The same arrays give the same bytes. DumpError for a name outside the convention, for an array of objects or of a
    dtype that no storage has, and when the file cannot be written.
    """
    target = Path(path)
    for key, array in arrays.items():
        _check_key(key, target)
        _check_dtype(array.dtype, key, target)
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
    try:
        with open(temporary, "xb") as file:
            (np.savez_compressed if compress else np.savez)(file, **dict(arrays))  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except OSError as error:
        raise DumpError(f"cannot write {target}: {error.strerror or error}") from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


# -- reading ----------------------------------------------------------------------------------------------------


def load_dump(path: PathLike, *, max_bytes: int = MAX_BYTES) -> dict[str, Array]:
    """Read all arrays of a dump, by name.

    DumpError for anything but a readable .npz of the convention: unknown names, pickled objects, dtypes that no storage
    has (or another than softmaxLse and compare arrays must have), headers that do not match the data, more than
    ``max_bytes`` in all.
    """
    source = Path(path)
    try:
        state = os.stat(source)
        if not stat.S_ISREG(state.st_mode):
            raise DumpError(f"{source} is not a file")
        if state.st_size > max_bytes + _MAX_DIRECTORY:
            raise DumpError(f"{source} has {state.st_size} bytes, over the limit of {max_bytes}")
        with open(source, "rb") as file, zipfile.ZipFile(file) as archive:
            return _read(archive, source, max_bytes)
    except OSError as error:
        if error.errno == errno.EINVAL:  # an offset of the directory that lies before the file
            raise DumpError(f"{source} is not an .npz file, or is damaged") from None
        raise DumpError(f"cannot read {source}: {error.strerror or error}") from None
    except (zipfile.BadZipFile, zlib.error, EOFError, struct.error):
        raise DumpError(f"{source} is not an .npz file, or is damaged") from None
    except (NotImplementedError, RuntimeError, UnicodeDecodeError):
        raise DumpError(f"{source} uses a zip feature that no .npz has (encryption, unknown compression)") from None


def _read(archive: zipfile.ZipFile, source: Path, max_bytes: int) -> dict[str, Array]:
    members = archive.infolist()
    if len(members) > MAX_ARRAYS:
        raise DumpError(f"{source} has {len(members)} arrays, over the limit of {MAX_ARRAYS}")
    total = sum(member.file_size for member in members)
    if total > max_bytes:
        raise DumpError(f"{source} unpacks to {total} bytes, over the limit of {max_bytes}")
    keys: dict[str, zipfile.ZipInfo] = {}
    for member in members:
        key = member.filename.removesuffix(".npy")
        if key == member.filename:
            raise DumpError(f"{member.filename!r} in {source} is not an array")
        if key in keys:
            raise DumpError(f"{key} stands twice in {source}")
        _check_key(key, source)
        keys[key] = member
    # All headers first: nothing is allocated for a file that is refused.
    for key, member in keys.items():
        with archive.open(member) as stream:
            _header(stream, member.file_size, key, source)
    arrays = {}
    for key, member in keys.items():
        with archive.open(member) as stream:
            arrays[key] = _array(stream, member.file_size, key, source)
    return arrays


def _header(stream: IO[bytes], size: int, key: str, source: Path) -> tuple[np.dtype[Any], tuple[int, ...], bool]:
    """dtype, shape and Fortran order of an .npy stream of ``size`` bytes, left at the first byte of the data."""
    start = stream.read(8)
    if len(start) < 8 or not start.startswith(_MAGIC) or start[6] not in (1, 2, 3):
        raise DumpError(f"{key} in {source} is not a numpy array")
    width = 2 if start[6] == 1 else 4
    length = int.from_bytes(stream.read(width), "little")
    if length > _MAX_HEADER:
        raise DumpError(f"{key} in {source} has a header of {length} bytes")
    text = stream.read(length)
    try:
        header = ast.literal_eval(text.decode("latin-1" if start[6] < 3 else "utf-8").strip())
        kind, order, shape = header["descr"], header["fortran_order"], header["shape"]
    except (ValueError, SyntaxError, TypeError, KeyError, RecursionError, MemoryError):
        raise DumpError(f"{key} in {source} has a damaged header") from None
    if not isinstance(kind, str):
        raise DumpError(f"{key} in {source} is a record array")
    try:
        dtype = np.dtype(kind)
    except (TypeError, ValueError, SyntaxError, KeyError, OverflowError, MemoryError):
        raise DumpError(f"{key} in {source} has the unknown dtype {kind!r}") from None
    _check_dtype(dtype, key, source)
    if (
        not isinstance(shape, tuple) or len(shape) > MAX_RANK or not all(type(n) is int and n >= 0 for n in shape)
        # numpy counts the other axes even where one of them is 0.
        or (0 in shape and math.prod(n or 1 for n in shape) > MAX_BYTES)
    ):
        raise DumpError(f"{key} in {source} has the impossible shape {shape!r}")
    expected = 8 + width + length + math.prod(shape) * dtype.itemsize
    if expected != size:
        raise DumpError(f"{key} in {source} has {size} bytes where its header says {expected}")
    return dtype, shape, bool(order)


def _array(stream: IO[bytes], size: int, key: str, source: Path) -> Array:
    dtype, shape, fortran = _header(stream, size, key, source)
    data = bytearray(math.prod(shape) * dtype.itemsize)
    view, filled = memoryview(data), 0
    while filled < len(data):
        count = stream.readinto(view[filled:])  # type: ignore[attr-defined]
        if not count:
            raise EOFError
        filled += count
    if stream.read(1):  # also makes zipfile compare the checksum
        raise DumpError(f"{key} in {source} has bytes behind its data")
    array: Array = np.frombuffer(data, dtype).reshape(shape, order="F" if fortran else "C")
    return np.ascontiguousarray(array.astype(dtype.newbyteorder("="), copy=False)).reshape(shape)


def _check_key(key: str, source: Path) -> None:
    known = [*(f"in:{name}" for name in TENSOR_INPUTS), *(f"out:{name}" for name in _OUTPUT_NAMES),
             *(f"compare:{name}" for name in _OUTPUT_NAMES)]
    if key in known:
        return
    name, _, index = key.removeprefix("in:").partition(".")
    if key.startswith("in:") and name in TENSOR_LISTS:
        if index.isascii() and index.isdigit() and str(int(index[:6])) == index and int(index) < MAX_LIST:
            return
        raise DumpError(f"{key!r} in {source}: {name} is a list, its arrays are named in:{name}.0, in:{name}.1, ...")
    if key.startswith("in:") and name in INT_ARRAYS:
        raise DumpError(f"{key!r} in {source}: {name} is a list of integers and belongs to the case")
    near = difflib.get_close_matches(key, [*known, *(f"in:{name}.0" for name in TENSOR_LISTS)], 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise DumpError(f"unknown array {key[:80]!r} in {source}{hint}")


def _check_dtype(dtype: np.dtype[Any], key: str, source: Path) -> None:
    if dtype.hasobject:
        raise DumpError(f"{key} in {source} holds pickled objects, which are never read")
    if dtype.kind == "V" and dtype.itemsize in (1, 2):
        raise DumpError(f"{key} in {source} has the raw dtype {dtype.str}; save BFLOAT16 as its uint16 bit patterns "
                        f"and 8-bit floats as their uint8 codes")
    if dtype.newbyteorder("=") not in _STORED:
        raise DumpError(f"{key} in {source} has the dtype {dtype}, which no tensor of the operator is stored in")
    # The reference writes every expected output as float64; outputs_from_dump still asks a backend's dump for the case's own dtype.
    exact = key.startswith("out:") and dtype.newbyteorder("=") == np.dtype(np.float64)
    if key in _FIXED and not exact and dtype.newbyteorder("=") != np.dtype(_FIXED[key]):
        raise DumpError(f"{key} in {source} is {dtype}, it must be {_FIXED[key]}")


# -- against a case ---------------------------------------------------------------------------------------------


def inputs_from_dump(case: Case, dump: Mapping[str, Array]) -> Tensors:
    """The input tensors of a case: those of the dump where it has them, materialised ones elsewhere.

    DumpError when the dump has a tensor that is null in the case, or another shape or storage dtype than the case says;
    CaseError as ``materialize`` where a tensor has to be made.
    """
    tensors = Tensors()
    used = set()
    for name in TENSOR_INPUTS:
        spec = getattr(case.inputs, name)
        if spec is not None:
            key = dump_key(name)
            used.add(key)
            tensors[name] = _fitting(dump[key], spec, key) if key in dump else materialize_one(case, name)
    for name in TENSOR_LISTS:
        items = getattr(case.inputs, name)
        if items is None:
            continue
        arrays: list[Array | None] = []
        for index, spec in enumerate(items):
            key = dump_key(name, index)
            if spec is None:
                arrays.append(None)
                continue
            used.add(key)
            arrays.append(_fitting(dump[key], spec, key) if key in dump else materialize_one(case, name, index))
        tensors[name] = arrays
    for key in dump:
        if key.startswith("in:") and key not in used:
            raise DumpError(f"{key} is in the dump, but null in the case")
    return tensors


def outputs_from_dump(case: Case, dump: Mapping[str, Array]) -> dict[str, Array]:
    """The outputs that a dump holds, by name, each with the shape and storage dtype that the case says.

    DumpError when attentionOut is missing, softmaxLse is missing although softmaxLseFlag asks for it, or an output does
    not fit or is null in the case.
    """
    outputs = {}
    for name in _OUTPUT_NAMES:
        key, spec = f"out:{name}", getattr(case.outputs, name)
        if spec is None:
            if key in dump:
                raise DumpError(f"{key} is in the dump, but null in the case")
        elif key in dump:
            outputs[name] = _fitting(dump[key], spec, key)
        elif name == "attentionOut" or case.attrs.softmaxLseFlag:
            raise DumpError(f"{key} is missing in the dump")
    return outputs


def _fitting(array: Array, spec: TensorSpec, key: str) -> Array:
    fmt = DTYPES[spec.dtype]
    if spec.dtype == "INT4" and array.dtype == np.int32 and array.ndim:
        array = unpack_int4(array)
    if array.shape != spec.shape:
        raise DumpError(f"{key} has shape {list(array.shape)}, the case says {list(spec.shape)}")
    try:
        check_storage(fmt, array)
    except ValueError as error:
        raise DumpError(f"{key}: {error}") from None
    return array
