"""Case files of the operator's own suites, turned into cases (facts: spec/vendor_formats.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Union

from .atk import read_atk
from .common import Imported, Unmapped
from .rdv import read_rdv
from .ut_csv import read_ut_csv

Reader = Callable[[str, str, str], Iterator[Union[Imported, Unmapped]]]

FORMATS: Mapping[str, Reader] = MappingProxyType({"ut-csv": read_ut_csv, "atk": read_atk, "rdv": read_rdv})
"""Format name -> reader(path, api, product). ``jsonl`` is the project's own form and read by fiafuzz.model.records."""

__all__ = ["FORMATS", "Imported", "Reader", "Unmapped"]
