"""Which devices workers get, and whether the workers of a run are alike.

A device backend runs one worker a device. The variable of the CANN runtime says which physical devices a process sees;
in the process they count from 0 again (spec/torch_npu.md, 3.4).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Optional

from fiafuzz.campaign.wire import Hello

VISIBLE = "ASCEND_RT_VISIBLE_DEVICES"
DEVICE_DIRECTORY = "/dev"
_NODE = re.compile(r"davinci([0-9]+)")
OWN_KEYS = frozenset({"device", "device index", "node", "host", "serial"})
"""Versions that may differ between the workers of one run: they tell workers apart, not builds."""


def visible_devices(environment: Optional[Mapping[str, str]] = None, directory: str = DEVICE_DIRECTORY) -> tuple[str, ...]:
    """Ids of the devices that a worker started here may use: those of the variable, or else those of the machine.

    The variable is read as the runtime reads it: up to the first entry that is no number.
    """
    said = (os.environ if environment is None else environment).get(VISIBLE)
    if said is not None:
        found = []
        for word in said.split(","):
            if not word.isascii() or not word.isdigit():
                break
            found.append(word)
        return tuple(found)
    try:
        nodes = [match.group(1) for name in os.listdir(directory) if (match := _NODE.fullmatch(name))]
    except OSError:
        return ()
    return tuple(sorted(nodes, key=int))


def environment_for(device: Optional[str]) -> dict[str, str]:
    """What a worker on that device gets in its environment."""
    return {} if device is None else {VISIBLE: device}


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1


def dealt(devices: Sequence[str], workers: int) -> list[Optional[str]]:
    """The device of each worker: one each, in order; more workers than devices share them in turn."""
    if not devices:
        return [None] * workers
    return [devices[i % len(devices)] for i in range(workers)]


def difference(first: Hello, other: Hello) -> str:
    """Where two workers are not of one build, in words; "" when they are. A run mixes neither versions nor products."""
    for name, mine, theirs in (
        ("fiafuzz", first.fiafuzz, other.fiafuzz),
        ("backend", first.title, other.title),
        ("checks", first.checks, other.checks),
        ("profiles", ", ".join(first.profiles), ", ".join(other.profiles)),
        ("device", first.device, other.device),
    ):
        if mine != theirs:
            return f"{name} {mine or 'none'} and {theirs or 'none'}"
    for key in sorted({*first.versions, *other.versions} - OWN_KEYS):
        here, there = (h.versions.get(key, "not there") for h in (first, other))
        if here != there:
            return f"{key} {here} and {there}"
    return ""
