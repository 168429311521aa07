"""The formats in which a run can be written down, by name; each is loaded when it is asked for.

A format is one line of ``FORMATS``: what its file is called in the run directory, and the function that makes it. That
function takes the paths of one or several runs (directories, or event logs) and returns the file as bytes (a format that
is a folder of files: their names and bytes). It raises RunError, one line, for a run that cannot be read, and MissingExtra
when it needs a package that is not installed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType

Made = bytes | Mapping[str, bytes]
Writer = Callable[[Sequence[Path]], Made]


class MissingExtra(RuntimeError):
    """A format needs a package that is not installed; the text is one line with the command that installs it."""


@dataclass(frozen=True)
class Format:
    """One format. ``file``: name in the run directory. ``maker``: "module:function". ``text``: what it is, in a few words.
    ``several``: whether it can join several runs in one file. ``shown``: whether it is printed rather than put in a file.
    ``folder``: whether it is a folder of files. ``needs``: the package that it cannot do without."""

    name: str
    file: str
    maker: str
    text: str
    several: bool = True
    shown: bool = False
    folder: bool = False
    needs: str = ""

    def check(self) -> None:
        """MissingExtra when the format cannot be made here; ask before the run rather than after it."""
        if self.needs and find_spec(self.needs) is None:
            raise MissingExtra(f"the format {self.name} needs {self.needs}; install it with: pip install 'fiafuzz[{self.name}]'")

    @property
    def make(self) -> Writer:
        """The function that makes the file."""
        module, function = self.maker.split(":")
        found: Writer = getattr(import_module(module), function)
        return found

    def save(self, runs: Sequence[Path], target: Path) -> None:
        """Make the report and put it at ``target``, each file whole or not at all. RunError, MissingExtra, or OSError when it
        cannot be written."""
        from fiafuzz.campaign.whole_files import write_whole

        made = self.make(runs)
        if isinstance(made, bytes):
            write_whole(target, made)
            return
        target.mkdir(parents=True, exist_ok=True)
        for name, data in made.items():
            write_whole(target / name, data)


def _by_name(*formats: Format) -> Mapping[str, Format]:
    return MappingProxyType({f.name: f for f in formats})


FORMATS: Mapping[str, Format] = _by_name(
    Format("html", "report.html", "reports.html:html_report", "one page for people, without any external file"),
    Format("junit", "junit.xml", "reports.junit:junit_report", "one test case a rule and corpus entry, for CI systems", several=False),
    Format("sarif", "report.sarif", "reports.sarif:sarif_report", "findings in SARIF 2.1.0, for code scanning"),
    Format("github", "annotations.txt", "reports.github:github_report", "findings as annotations of a GitHub workflow", shown=True),
    Format("csv", "csv", "reports.tables:csv_report", "a folder of tables: cases, verdicts, rules, coverage, findings", folder=True),
    Format(
        "parquet", "parquet", "reports.tables:parquet_report", "the same tables as Parquet (needs pyarrow)", folder=True, needs="pyarrow"
    ),
    Format("ndjson", "report.ndjson", "reports.ndjson:ndjson_report", "the readable events, one JSON object a line", several=False),
)
"""Format name -> format, in the order of the help text."""
