"""The stand-in's host, looking whether a call is the one that was exported, bit for bit."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from fiafuzz.model.case import Case, TensorSpec
from fiafuzz.model.tensors import materialize, named_specs
from tests.standin_cann import host, records

WANTED: list[Case] = []
"""The case that the next call must be."""
DIFFERENCES: list[str] = []
CALLS: list[str] = []


def bare(spec: TensorSpec | None) -> TensorSpec | None:
    """A tensor without values, dense strides left out."""
    if spec is None:
        return None
    strides = None if spec.contiguous or spec.empty else spec.strides
    return TensorSpec(spec.shape, spec.dtype, spec.format, strides, spec.offset)


def differences(record: records.Record, wanted: Case) -> list[str]:
    """What a call has that the case has not."""
    found = records.case_of(record, host.soc(), with_values=False)
    lines = []
    for part in (wanted.inputs, wanted.attrs, wanted.outputs):
        for name in part.__struct_fields__:
            one, other = wanted.get(name), found.get(name)
            if isinstance(one, tuple) and name in ("key", "value"):
                one, other = tuple(map(bare, one)), tuple(map(bare, other))  # type: ignore[arg-type, call-overload]
            elif isinstance(one, TensorSpec):
                one, other = bare(one), bare(other)  # type: ignore[arg-type]
            if name == "softmaxLse" and one is None and not wanted.attrs.softmaxLseFlag:
                continue  # torch sends an empty one
            if one != other and not (isinstance(one, TensorSpec) and same_but_format(one, other)):
                lines.append(f"{name}: {one} became {other}")
    tensors, sent = materialize(wanted), records.tensors_of(record)
    for name, index, _, _ in named_specs(wanted):
        pair = (tensors.many(name)[index], sent.many(name)[index]) if name in ("key", "value") else (tensors.one(name), sent.one(name))
        if pair[0] is None or pair[1] is None or pair[0].tobytes() != pair[1].tobytes():
            lines.append(f"{name}.{index}: other bits")
    return lines


def same_but_format(one: TensorSpec, other: object) -> bool:
    """torch chooses the format by the number of axes."""
    return isinstance(other, TensorSpec) and TensorSpec(one.shape, one.dtype, other.format, one.strides, one.offset) == other


def workspace(text: str) -> Any:
    """First phase."""
    record = records.parse(text)
    CALLS.append(record.entry)
    if WANTED:
        try:
            DIFFERENCES.extend(differences(record, WANTED[0]))
        except Exception as error:
            DIFFERENCES.append(repr(error))
    with np.errstate(all="ignore"):
        status, *rest = host.workspace(text)
    other = os.environ.get("EXPORTED_STATUS")  # what every refusal says instead of its own number
    return (int(other) if other and status else status, *rest)


launch = host.launch
