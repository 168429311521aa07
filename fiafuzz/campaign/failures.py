"""A failure, and what looking into it can come to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Union

from fiafuzz.model.case import Case

from .corpus import Entry
from .results import Result
from .triage import Signature
from .verdict import Foreseen, Verdict, error_of


@dataclass(frozen=True)
class Failure:
    """One failing case as it came from the first run."""

    case: Case
    foreseen: Foreseen
    verdict: Verdict
    result: Result
    runs: int = 1
    gone: str = ""
    """Why the device that ran it was given up afterwards; "" when it was not."""
    before: tuple[Case, ...] = ()
    """Cases that the same process was made to run just before it."""
    recent: tuple[Case, ...] = ()
    """Cases that the process happens to have run before that."""

    @property
    def error(self) -> str:
        """What tells failures of one code apart."""
        return error_of(self.result)


@dataclass
class Known:
    """A signature that has been seen, and the cases that it explains."""

    signature: Signature
    entry: str
    count: int = 0
    proved: int = 0


@dataclass(frozen=True)
class Flaky:
    """A failure that did not come again."""

    failure: Failure
    failed: int
    tries: int


@dataclass(frozen=True)
class Confirmed:
    """A failure that came again, and that nothing known explains."""

    failure: Failure


@dataclass(frozen=True)
class Repeat:
    """A failure that shrank to a known signature."""

    failure: Failure
    known: Known


@dataclass(frozen=True)
class Kept:
    """A finding with its entry. ``new``: the corpus did not have it. ``problem``: why it could not be written. ``interrupted``: the
    run was asked to stop before it was shrunk."""

    failure: Failure
    entry: Entry
    new: bool
    path: Optional[str]
    runs: int
    seconds: float
    problem: str = ""
    interrupted: bool = False


Step = Union[Flaky, Confirmed, Repeat, Kept]
