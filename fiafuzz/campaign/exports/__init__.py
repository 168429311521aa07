"""Cases in forms for people without fiafuzz: programs, tests and the operator's own case files.

It stands on the campaign's floor beside the imports, whose inverse it partly is, since it needs entries, predictions and the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from .common import CannotExport, Exported, Item, Remarks
from .cpp import export_cpp
from .pytest_file import export_pytest
from .python_torch import export_python
from .tables import export_table


@dataclass(frozen=True)
class Program:
    """A format that makes one file for one case. ``file_of`` gives the file's name; ``export(item, file, beside=...)`` its text."""

    title: str
    extension: str
    prefix: str
    export: Callable[..., Exported]

    def file_of(self, item: Item) -> str:
        """The usual name of the file for an item."""
        return f"{self.prefix}{item.stem}{self.extension}"


PROGRAMS: Mapping[str, Program] = MappingProxyType({
    "python": Program("a standalone torch_npu script", ".py", "", export_python),
    "cpp": Program("a standalone aclnn program", ".cpp", "", export_cpp),
    "pytest": Program("a test file that uses fiafuzz", ".py", "test_", export_pytest),
})
"""Formats of one file a case."""

TABLES: Mapping[str, str] = MappingProxyType({
    "atk": "an ATK case file",
    "ut-csv": "a table of the operator's unit tests",
})
"""Formats of one file for any number of cases (``export_table``)."""

__all__ = ["PROGRAMS", "TABLES", "CannotExport", "Exported", "Item", "Program", "Remarks", "export_table"]
