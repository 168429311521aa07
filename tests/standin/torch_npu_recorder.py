"""An operator for the stand-in that takes every call, keeps what it was given, and writes known bytes into the outputs."""

from __future__ import annotations

from typing import Any

import numpy as np

from fiafuzz.model.dtypes import DTYPES
from fiafuzz.model.tensors import Tensors
from tests.standin_cann import host, records

last: dict[str, Any] = {}
"""The last call: ``record``, ``case``, ``tensors`` (as they lie on the device), ``before`` and ``after`` (outputs)."""


def start() -> None:
    """Nothing has to be made ready."""


def workspace(text: str) -> tuple[int, int, str, Any]:
    """First phase: everything is taken."""
    record = records.parse(text)
    last.clear()
    last["record"] = record
    last["case"] = records.case_of(record, host.soc(), with_values=False)
    return 0, 4096, "", record


def launch(record: records.Record) -> tuple[int, str, int, str]:
    """Second phase: read the inputs, note what the outputs hold, and write them."""
    tensors: Tensors = records.tensors_of(record)
    last["tensors"] = tensors
    last["before"], last["after"] = {}, {}
    for name in ("attentionOut", "softmaxLse"):
        data = record.args[name]
        if data is None:
            continue
        last["before"][name] = records.array_of(data).copy()
        last["after"][name] = known_bytes(records.CODES[data["dtype"]], tuple(data["dims"]))
        records.put_array(data, last["after"][name])
    return 0, "", 0, ""


def known_bytes(name: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """An array in storage form with values that differ from place to place and are codes of the format."""
    fmt = DTYPES[name]
    count = int(np.prod(shape))
    if name == "INT4":
        return (np.arange(count) % 16 - 8).astype(np.int8).reshape(shape)
    if fmt.bits == 4:
        return (np.arange(count) % 16).astype(np.uint8).reshape(shape)
    if fmt.storage == "bool":
        return (np.arange(count) % 2).astype(np.bool_).reshape(shape)
    raw = (np.arange(count * fmt.itemsize, dtype=np.uint32) * 37 % 251).astype(np.uint8)
    return raw.view(fmt.storage).reshape(shape)
