"""The events of a campaign: one stream that progress display, log and every report consume.

Each event is a struct with its name in the field ``event`` and ``at``, seconds since the start of the run. As JSON, one
a line, they are the log of the run (events.ndjson).
"""

from __future__ import annotations

from typing import Optional, Union

import msgspec

from fiafuzz.model.case import Case

from .corpus import Entry
from .plan import Plan
from .results import Picture
from .verdict import Foreseen, Verdict

LOG_VERSION = 1


class _Event(msgspec.Struct, frozen=True, tag_field="event", kw_only=True):
    at: float = 0.0


class RunStarted(_Event, frozen=True, tag=True):
    """The run begins. ``factors`` names the columns of CaseDone.factors; ``directory`` is the run directory."""

    plan: Plan
    started: str
    version: str
    directory: str
    factors: tuple[str, ...]
    log: int = LOG_VERSION


class RunResumed(_Event, frozen=True, tag=True):
    """A run that was killed or interrupted goes on. What stands before it in the log counts on; a RunFinished before it
    was not the end. ``cases`` and ``findings``: how many were in the log."""

    resumed: str
    version: str
    cases: int
    findings: int


class LegStarted(_Event, frozen=True, tag=True):
    """A backend is loaded and will run under a profile."""

    backend: str
    title: str
    profile: str
    checks: str
    versions: dict[str, str]
    policies: dict[str, str]


class CanaryDone(_Event, frozen=True, tag=True):
    """The self-test at the start: planted faults must be seen, a correct run must pass, a shrink must shrink."""

    passed: bool
    text: str
    seconds: float


class PhaseStarted(_Event, frozen=True, tag=True):
    """A phase begins. ``seconds`` and ``cases`` are its budget (None: none)."""

    phase: str
    backend: str
    profile: str
    seconds: Optional[float] = None
    cases: Optional[int] = None


class CaseDone(_Event, frozen=True, tag=True, omit_defaults=True):
    """One case is done. ``n`` counts cases over the run. ``mode`` is valid, invalid, boundary, disputed or replay;
    ``rule`` and ``side`` say what was broken or held on purpose. ``factors``: words joined by "|". ``repeats``: id of
    the entry that explains it. ``ratio``: largest error as a share of what is allowed. ``place``: where the case stands
    among the proposals of its phase, from 1 on (0: it is not one of them); a resumed run knows by it what is done.
    ``judged``: whether its outputs were handed to the reference. ``codes`` and ``rules``: the status codes that were due and
    the rules that the call breaks. ``got`` and ``got_code``: kind of outcome ("" when it was not run) and status. ``held``: rules whose
    condition this accepted call meets and whose demand it keeps, each named by the first such call of a leg. ``effort``, for
    failing cases: runs that had gone into looking at failures (all, proofs that a repeat is one, shrinking). ``sought``: a
    failure for which the explore phase has looked for plainer ones."""

    n: int
    phase: str
    mode: str
    digest: str
    verdict: Verdict
    foreseen: str
    rule: Optional[str] = None
    side: Optional[str] = None
    factors: str = ""
    seconds: float = 0.0
    ratio: float = 0.0
    untestable: int = 0
    compared: int = 0
    repeats: Optional[str] = None
    place: int = 0
    judged: bool = False
    codes: tuple[int, ...] = ()
    rules: tuple[str, ...] = ()
    got: str = ""
    got_code: Optional[int] = None
    effort: tuple[int, ...] = ()
    sought: bool = False
    held: tuple[str, ...] = ()


class FindingFound(_Event, frozen=True, tag=True):
    """Something is wrong, and a second run said so too. The case is here in full, before it is shrunk, with pictures of wrong
    values. ``before``: the cases that the same process must run first for it to go wrong."""

    number: int
    phase: str
    backend: str
    profile: str
    case: Case
    verdict: Verdict
    foreseen: Foreseen
    pictures: tuple[Picture, ...] = ()
    before: tuple[Case, ...] = ()


class FindingKept(_Event, frozen=True, tag=True):
    """A finding is shrunk and has its corpus entry. ``new`` is false when the corpus had the signature before; ``path``
    is where it is kept, None when it could not be written (then this event is the only copy, and ``problem`` says
    why). ``known``: the issue of corpus/known.toml that covers it, or "baseline"; such a finding does not fail the run.
    ``interrupted``: the run was asked to stop before it was shrunk. When the run is resumed, the finding comes to another end
    under its number (FindingKept, FindingRepeated), and this entry goes."""

    number: int
    entry: Entry
    new: bool
    path: Optional[str]
    runs: int
    seconds: float
    problem: str = ""
    known: Optional[str] = None
    effort: tuple[int, ...] = ()
    interrupted: bool = False


class FindingRepeated(_Event, frozen=True, tag=True):
    """A finding turned out to be a known one, once it was shrunk."""

    number: int
    entry: str
    effort: tuple[int, ...] = ()


class FlakyFound(_Event, frozen=True, tag=True):
    """A failure that did not come again. ``failed`` of ``tries`` runs failed; ``number`` is that of FindingFound, 0
    without one."""

    number: int
    case: Case
    verdict: Verdict
    failed: int
    tries: int
    effort: tuple[int, ...] = ()


class Replayed(_Event, frozen=True, tag=True):
    """A corpus entry was run again: failing, fixed, passing, new, flaky, unsupported or untestable. ``known``: the issue
    that covers it."""

    entry: str
    status: str
    text: str = ""
    known: Optional[str] = None


class KnownIssue(_Event, frozen=True, tag=True):
    """What a run has to say about a known issue, beside the findings that it covers. ``status``: "passes" (its entries
    were run and all of them are fixed: it must be removed, and the run is not clean) or "expired" (it covers nothing any
    more)."""

    issue: str
    status: str
    text: str


class RoundDone(_Event, frozen=True, tag=True):
    """The explore phase has finished one of its rounds, from 0 on; the next one begins."""

    backend: str
    profile: str
    round: int


class Disagreement(_Event, frozen=True, tag=True):
    """F401, once per rule and side: documents and source differ, and the backend took a side."""

    rule: str
    side: str
    text: str


class WorkerRestarted(_Event, frozen=True, tag=True):
    """A worker was replaced."""

    worker: int
    reason: str


class Note(_Event, frozen=True, tag=True):
    """Something that people should know. ``level`` is info, warning or problem (a problem makes the run unclean)."""

    level: str
    text: str


class PhaseFinished(_Event, frozen=True, tag=True):
    """A phase is over: how many cases, how long, and why it ended (done, time, cases, findings, stopped)."""

    phase: str
    backend: str
    profile: str
    cases: int
    seconds: float
    reason: str


class FindingLine(msgspec.Struct, frozen=True):
    """One finding in the summary. ``count`` cases showed it; ``known`` is the issue that covers it, or "baseline"."""

    id: str
    code: str
    title: str
    rule: Optional[str]
    new: bool
    path: Optional[str]
    count: int
    reproduce: str
    known: Optional[str] = None


class Summary(msgspec.Struct, frozen=True):
    """What a run came to. ``status``: clean, findings, interrupted, nothing (not one case was run) or broken (fiafuzz
    itself failed). ``cases``: those that were run; what the backend cannot express and what was skipped count apart.
    ``known``: how many of the findings a known issue or the baseline covers; they do not make the status "findings".
    ``passing_issues``: known issues that pass now, a line each; they do. ``expired_issues``: those that are past their
    date, a line each. ``resumed``: how often the run was resumed. ``refused``: nothing was run, since no
    backend can run here.
    """

    status: str
    seed: int
    seconds: float
    cases: int
    phases: dict[str, int]
    verdicts: dict[str, int]
    codes: dict[str, int]
    findings: tuple[FindingLine, ...]
    flaky: int
    restarts: int
    replayed: dict[str, int]
    skipped: dict[str, int]
    elements: dict[str, int]
    problems: tuple[str, ...]
    interrupted: bool = False
    directory: str = ""
    known: int = 0
    passing_issues: tuple[str, ...] = ()
    expired_issues: tuple[str, ...] = ()
    resumed: int = 0
    refused: bool = False


class RunFinished(_Event, frozen=True, tag=True):
    """The run is over."""

    summary: Summary


Event = Union[
    RunStarted,
    RunResumed,
    LegStarted,
    CanaryDone,
    PhaseStarted,
    CaseDone,
    FindingFound,
    FindingKept,
    FindingRepeated,
    FlakyFound,
    Replayed,
    KnownIssue,
    RoundDone,
    Disagreement,
    WorkerRestarted,
    Note,
    PhaseFinished,
    RunFinished,
]

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Event)


def encode_event(event: Event) -> bytes:
    """One line of the log, with its line end."""
    return _encoder.encode(event) + b"\n"


def decode_event(line: Union[bytes, str]) -> Event:
    """One event from a line of the log; msgspec.DecodeError when it is none."""
    found: Event = _decoder.decode(line)
    return found
