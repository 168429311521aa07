"""What comes back from running one case: compact structs that travel over the pipe, never tensors unless asked for."""

from __future__ import annotations

import math
from typing import Optional

import msgspec

from fiafuzz.model.case import Number

MAX_TEXT = 2000
MAX_ELEMENTS_SHOWN = 8


def clean(text: object, limit: int = MAX_TEXT) -> str:
    """Text that is safe to store and print: control characters become blanks, length at most ``limit``."""
    plain = str(text)
    if len(plain) > limit:
        plain = plain[: limit - 1] + "…"
    return "".join(c if c.isprintable() or c == "\n" else " " for c in plain).encode("utf-8", "replace").decode()


def in_words(error: BaseException, limit: int = MAX_TEXT) -> str:
    """Class and text of an exception, clean; also of one whose text cannot be made."""
    try:
        text = str(error)
    except Exception:
        text = "(no text)"
    return clean(f"{type(error).__name__}: {text}" if text else type(error).__name__, limit)


def number(value: float) -> Number:
    """A float as a case writes it: "nan", "inf" and "-inf" in words (JSON has no numbers for them)."""
    value = float(value)
    if math.isfinite(value):
        return value
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"


class Foreseen(msgspec.Struct, frozen=True, omit_defaults=True):
    """A prediction as data: verdict, status codes (sorted), rules broken (host order), stage and basis.

    For unspecified ground ``document`` and ``source`` hold the two sides' verdicts.
    """

    verdict: str
    codes: tuple[int, ...] = ()
    rules: tuple[str, ...] = ()
    stage: Optional[str] = None
    basis: str = "both"
    document: Optional[str] = None
    source: Optional[str] = None


class About(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a worker found out about a case before it ran it: what must happen, the factor words joined by "|", whether the
    outputs were compared with the reference, and how often the case was run in all."""

    foreseen: Foreseen
    factors: str = ""
    judged: bool = False
    runs: int = 1
    held: tuple[str, ...] = ()
    """Rules to which a call that was accepted and passed has held, and that this worker had not named before."""


class Element(msgspec.Struct, frozen=True):
    """One element of an output that is off: where, what was expected and got, and how far it may be off."""

    output: str
    index: tuple[int, ...]
    expected: Number
    got: Number
    allowed: Number


class Judged(msgspec.Struct, frozen=True, omit_defaults=True):
    """The judgement on the outputs of one run.

    ``code`` is F101..F104 or None; ``error_ratio`` is the largest error as a share of what is allowed (1 is the edge,
    finite); ``compared``, ``excluded`` and ``untestable`` count elements; ``worst`` shows the worst elements first.
    """

    passed: bool
    code: Optional[str] = None
    error_ratio: float = 0.0
    compared: int = 0
    excluded: int = 0
    untestable: int = 0
    failed: int = 0
    worst: tuple[Element, ...] = ()
    text: str = ""


class Picture(msgspec.Struct, frozen=True, omit_defaults=True):
    """A small picture of a wrong output or of its mask, one string a row of cells; oracles/picture.py says what the fields
    and characters mean."""

    kind: str
    output: str
    where: str
    rows: str
    columns: str
    shape: tuple[int, int]
    cells: tuple[str, ...]
    worst: Optional[tuple[int, int]] = None


class Broken(msgspec.Struct, frozen=True):
    """A metamorphic relation that did not hold, in words."""

    relation: str
    text: str


class RawArray(msgspec.Struct, frozen=True):
    """An array as bytes (row-major, storage form) with its numpy dtype name."""

    shape: tuple[int, ...]
    dtype: str
    data: bytes


class Seconds(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where the time of one case went: making tensors, the backend, the reference and the judgement, in seconds."""

    make: float = 0.0
    run: float = 0.0
    reference: float = 0.0
    judge: float = 0.0

    @property
    def total(self) -> float:
        """All of it."""
        return self.make + self.run + self.reference + self.judge


class Result(msgspec.Struct, frozen=True, omit_defaults=True):
    """What happened to one case.

    ``kind`` is one of the backend protocol's ("ok", "reject", "unsupported", "crash", "hang", "oom", "lost", "error")
    or "untestable" (no reference or no tensors could be had: ``message`` says why). ``same`` tells whether a second run
    gave the same bits (None: not asked). ``related`` is the metamorphic relation that was tried, ``broken`` how it does not
    hold. ``stage_at`` is where a process was when it died: make, run, reference or judge. ``pictures`` show wrong values, where
    the job asked for them. ``fatal``: the backend says that its process must not be used again, so the worker was replaced.
    ``about`` comes with jobs that let the worker foresee the answer; such a case may also be "skipped" (``message`` says why).
    ``before`` are the results of the cases that the job had before its own; where there are fewer than that, the result is that of the
    first case which is not among them, and what was to come after it has not been run.
    """

    kind: str
    code: Optional[int] = None
    stage: Optional[str] = None
    message: str = ""
    signal: Optional[int] = None
    stage_at: str = ""
    judged: Optional[Judged] = None
    same: Optional[bool] = None
    related: Optional[str] = None
    broken: Optional[Broken] = None
    seconds: Seconds = Seconds()
    outputs: Optional[dict[str, RawArray]] = None
    pictures: tuple[Picture, ...] = ()
    fatal: bool = False
    about: Optional[About] = None
    before: tuple[Result, ...] = ()

    @property
    def took(self) -> float:
        """Seconds of the case and of those before it."""
        return self.seconds.total + sum(result.seconds.total for result in self.before)

    @property
    def deadly(self) -> bool:
        """Whether the process is gone or must be thrown away after this result."""
        return self.kind in ("crash", "hang", "oom", "lost")
