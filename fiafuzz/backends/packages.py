"""Which of the packages that a backend needs are not here, or too old; nothing is imported."""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec


def missing(needs: Iterable[str]) -> list[str]:
    """Those of some needs ("torch", "onnxruntime>=1.32") that do not hold, in their own words; with the version that is here where
    that is too old."""
    found = []
    for need in needs:
        name, _, least = need.partition(">=")
        if find_spec(name) is None:
            found.append(need)
        elif least and (here := _version(name)) is not None and _numbers(here) < _numbers(least):
            found.append(f"{need} ({here} is here)")
    return found


def _version(name: str) -> str | None:
    """The version of an installed package; None where nothing tells (another distribution may bring the module)."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _numbers(text: str) -> tuple[int, ...]:
    plain = re.split(r"[^0-9.]", text, maxsplit=1)[0]
    return tuple(int(number) for number in plain.split(".") if number)
