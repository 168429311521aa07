"""What all export formats share: the item to be exported, what comes out, and text that is safe inside programs."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Optional

from fiafuzz.backends.aclnn_signature import not_in
from fiafuzz.campaign.corpus import Entry
from fiafuzz.campaign.results import clean
from fiafuzz.model.case import Case, case_to_dict

if TYPE_CHECKING:
    from jinja2 import Template

MAX_TITLE = 200
_LINE = 118


class CannotExport(ValueError):
    """A case says something that the format cannot say without changing the call. The text is one line."""


@dataclass(frozen=True)
class Item:
    """One case to be exported: its name, the profile under which it is judged, and the corpus entry it comes from."""

    name: str
    case: Case
    profile: str
    entry: Optional[Entry] = None

    @property
    def title(self) -> str:
        """What it is, in one line of at most 200 characters without control characters."""
        text = f"{self.entry.id}: {self.entry.title}" if self.entry is not None else self.name
        return " ".join(clean(text, MAX_TITLE).split())

    @property
    def stem(self) -> str:
        """A file name without extension that is safe everywhere, and a Python identifier behind ``test_``."""
        name = self.entry.id if self.entry is not None else self.name
        plain = re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_")[:60]
        return f"fia_{plain or self.case.digest}"


@dataclass(frozen=True)
class Exported:
    """The text of one file, the bytes of the file beside it ("" and b"" without one), and remarks for people on what is lost."""

    text: str
    side_name: str = ""
    side: bytes = b""
    remarks: tuple[str, ...] = ()


@dataclass
class Remarks:
    """Collects remarks, each once, in order; remarks of one kind about several parameters become one line."""

    _about: dict[str, list[str]] = field(default_factory=dict)

    def add(self, line: str, *about: str) -> None:
        """Keep a remark; ``{}`` in it stands for the parameters that it is about."""
        known = self._about.setdefault(line, [])
        known += [name for name in about if name not in known]

    @property
    def lines(self) -> list[str]:
        """All remarks."""
        return [line.replace("{}", ", ".join(names)) if names else line for line, names in self._about.items()]

    @property
    def kinds(self) -> list[tuple[str, tuple[str, ...]]]:
        """All remarks as they were given, with what each is about."""
        return [(line, tuple(names)) for line, names in self._about.items()]


def shown_name(file: str, usual: str) -> str:
    """The file's name for comments and command lines inside it: the usual one where its own might break out of them."""
    return file if re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,120}", file) else usual


def refuse_outside_api(case: Case) -> None:
    """CannotExport when the case sets a parameter that its API version does not have: no call can carry it."""
    found = not_in(case, case.api)
    if found:
        raise CannotExport(f"{case.api.upper()} has no {', '.join(found)}")


def scale_value(case: Case) -> float:
    """scaleValue as a double. CannotExport for an integer beyond its range."""
    try:
        return float(case.attrs.scaleValue)
    except OverflowError:
        raise CannotExport("scaleValue is beyond the range of a double") from None


def case_line(case: Case) -> str:
    """The case as one line of ASCII JSON."""
    return json.dumps(case_to_dict(case), separators=(",", ":"))


# ---- text inside programs -------------------------------------------------------------------------


def comment(text: object) -> str:
    """Text for a line comment of Python or C++: one line, printable ASCII, no backslash and no trigraph."""
    plain = " ".join(clean(text, 4 * MAX_TITLE).split()).encode("ascii", "backslashreplace").decode()
    return plain.replace("\\", "/").replace("??", "? ?")


def comment_lines(text: object, mark: str) -> str:
    """Text as line comments behind ``mark``, broken between words."""
    import textwrap

    return "\n".join(f"{mark} {line}" for line in textwrap.wrap(comment(text), _LINE, break_on_hyphens=False) or [""])


def c_string(text: str) -> str:
    """A C string literal of the text's UTF-8 bytes. CannotExport for a NUL character or half a surrogate pair."""
    try:
        data = text.encode()
    except UnicodeEncodeError:
        raise CannotExport(f"{text!r:.80} is no valid Unicode text") from None
    if 0 in data:
        raise CannotExport(f"{text!r:.80} holds a NUL character, which ends a C string")
    # Octal escapes take three digits at most, so that no following digit can join them; "?" would begin trigraphs.
    safe = set(range(32, 127)) - set(b'"\\?')
    return '"' + "".join(chr(b) if b in safe else f"\\{b:03o}" for b in data) + '"'


def python_literal(value: Any) -> str:
    """Plain data (str, int, float, bool, None, tuples, lists) as an ASCII Python expression; nan and inf as float("...")."""
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return f'float("{value}")'
    if isinstance(value, (tuple, list)):
        inner = ", ".join(python_literal(v) for v in value)
        if isinstance(value, list):
            return f"[{inner}]"
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    return ascii(value)


@cache
def template(name: str) -> Template:
    """A template of this package by file name."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("fiafuzz.campaign.exports"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # programs, not markup: every foreign text goes through one of these filters
    )
    environment.filters.update(py=python_literal, c=c_string, comment=comment, comments=comment_lines)
    return environment.get_template(name)
