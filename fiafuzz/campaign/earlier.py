"""Runs of one case at several places of a sequence must give the same bits; this keeps the first ones to compare with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from fiafuzz.model.case import Case

from .wire import Job

Arrays = Mapping[str, NDArray[Any]]


class Earlier:
    """The outputs of those cases of a job that come more than once in it, as their first run gave them."""

    def __init__(self, job: Job) -> None:
        counts = Counter(case.digest for case in (*job.before, job.case))
        self._wanted = {digest for digest, count in counts.items() if count > 1}
        self._first: dict[str, dict[str, NDArray[Any]]] = {}

    def same(self, case: Case, got: Arrays, where: Optional[Arrays], otherwise: Optional[bool]) -> Optional[bool]:
        """Whether a run gave the bits of the first run of its case, wherever a value is defined (``where``); ``otherwise`` when
        there is nothing to compare with."""
        if not self._wanted or case.digest not in self._wanted:
            return otherwise
        first = self._first.get(case.digest)
        if first is None:
            self._first[case.digest] = {name: np.array(array) for name, array in got.items()}
            return otherwise
        places = where or {}
        return all(name in got and same_bits(array, got[name], places.get(name)) for name, array in first.items())


def same_bits(one: NDArray[Any], other: NDArray[Any], where: Optional[NDArray[Any]]) -> bool:
    """Whether two arrays are equal bit for bit, at the places marked in ``where`` (all without it)."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    bits = np.dtype(f"u{one.dtype.itemsize}")
    equal = np.ascontiguousarray(one).view(bits) == np.ascontiguousarray(other).view(bits)
    if where is not None and where.shape == equal.shape:
        equal = equal | ~where
    return bool(equal.all())
