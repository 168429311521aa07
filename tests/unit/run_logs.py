"""Small logs of runs, written event by event, for the tests of reports."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from fiafuzz.campaign.corpus import Entry, Got
from fiafuzz.campaign.events import (
    CaseDone,
    Disagreement,
    Event,
    FindingFound,
    FindingKept,
    FlakyFound,
    KnownIssue,
    LegStarted,
    PhaseFinished,
    PhaseStarted,
    Replayed,
    RunFinished,
    RunStarted,
    encode_event,
)
from fiafuzz.campaign.plan import Plan
from fiafuzz.campaign.tally import summarise
from fiafuzz.campaign.triage import Signature, plain_case
from fiafuzz.campaign.verdict import Foreseen, Verdict
from fiafuzz.model.factors import FACTORS, factors_of
from fiafuzz.model.scene import Scene
from strategies.cases import generate

PROFILE = "950-v5"
RULE = "FIA-IF-001"
NASTY = '=cmd|"/C calc"!A0 \x1b[31m</script><b>&%0A::error::x\ny,\u202e'
"""Text that means something to a spreadsheet, a terminal, a page and a workflow log."""


def started(profiles: Sequence[str] = (PROFILE,), backends: Sequence[str] = ("cpu",), at: str = "2026-03-01T01:00:00+00:00") -> RunStarted:
    """The beginning of a run."""
    plan = Plan(backends=tuple(backends), profiles=tuple(profiles), seed=5, max_cases=10)
    return RunStarted(plan=plan, started=at, version="9.9", directory="run", factors=tuple(FACTORS))


def leg(backend: str = "cpu", profile: str = PROFILE, checks: str = "own", **versions: str) -> LegStarted:
    """The beginning of a leg."""
    return LegStarted(backend=backend, title="a kernel", profile=profile, checks=checks, versions=versions, policies={})


def phase(name: str = "bulk", backend: str = "cpu", profile: str = PROFILE, at: float = 1.0) -> PhaseStarted:
    """The beginning of a phase."""
    return PhaseStarted(phase=name, backend=backend, profile=profile, at=at)


def phase_end(cases: int, name: str = "bulk", backend: str = "cpu", profile: str = PROFILE, seconds: float = 2.0) -> PhaseFinished:
    """The end of a phase."""
    return PhaseFinished(phase=name, backend=backend, profile=profile, cases=cases, seconds=seconds, reason="done", at=1.0 + seconds)


def case(n: int, status: str = "pass", **fields: Any) -> CaseDone:
    """A case. Without more it is a valid one that passes."""
    verdict = fields.pop("verdict", Verdict(status))
    told = {"phase": "bulk", "mode": "valid", "digest": f"{n:016x}", "foreseen": "accept", "seconds": 0.25, "got": "ok", **fields}
    return CaseDone(n=n, verdict=verdict, **told)


def invalid(n: int, rule: str = RULE, agreed: bool = True, **fields: Any) -> CaseDone:
    """A case that breaks one rule, answered as predicted or accepted all the same."""
    verdict = Verdict("pass", rule=rule) if agreed else Verdict("finding", "F201", rule, "accepted, but 161001 was due")
    told = {"mode": "invalid", "foreseen": "reject", "rule": rule, "side": "absent", "codes": (161001,), "rules": (rule,), **fields}
    return case(n, verdict=verdict, got="reject" if agreed else "ok", got_code=161001 if agreed else None, **told)


def words(index: int = 0, profile: str = PROFILE) -> str:
    """Factor words of a generated valid call, joined as in the log."""
    return _all_words(profile)[index]


@cache
def _all_words(profile: str) -> list[str]:
    return ["|".join(factors_of(Scene(item.case)).values()) for item in generate(profile, "valid", 20, 1)]


def entry(code: str = "F101", rule: str | None = None, backend: str = "cpu", **fields: Any) -> Entry:
    """A corpus entry about the plainest call."""
    signature = fields.pop("signature", None) or Signature(backend, code, rule, () if rule else (("mask", "BOOL"),))
    plain = plain_case("950", "v5")
    told: dict[str, Any] = {
        "id": signature.id,
        "title": "a title",
        "signature": signature,
        "profile": PROFILE,
        "case": plain,
        "original": plain.digest,
        "expected": Foreseen("accept", (0,)) if code != "F201" else Foreseen("reject", (161001,), (rule or RULE,)),
        "got": Got("ok", text="36 of 64 elements off", error_ratio=3.5),
        "differences": ("sparseMode: 3 (plain: 0)",),
        "environment": {"torch": "2.0"},
        "seed": 5,
        "first_seen": "2026-03-01T01:00:00+00:00",
        "reproduce": f"fiafuzz replay {signature.id} --backend {backend}",
        **fields,
    }
    return Entry(**told)


def found(number: int, code: str = "F101", rule: str | None = None, **fields: Any) -> FindingFound:
    """A finding before it is shrunk."""
    told = {"phase": "bulk", "backend": "cpu", "profile": PROFILE, "case": plain_case("950", "v5"), **fields}
    return FindingFound(number=number, verdict=Verdict("finding", code, rule, "it is off"), foreseen=Foreseen("accept", (0,)), **told)


def kept(number: int, what: Entry, new: bool = True, known: str | None = None, path: str | None = "corpus") -> FindingKept:
    """A finding with its entry."""
    place = f"{path}/found/{what.id}.json" if path is not None else None
    return FindingKept(number=number, entry=what, new=new, path=place, runs=12, seconds=0.5, known=known)


def flaky(number: int = 0, code: str = "F105") -> FlakyFound:
    """A failure that did not come again."""
    return FlakyFound(number=number, case=plain_case("950", "v5"), verdict=Verdict("finding", code, text="other bits"), failed=1, tries=3)


def finished(events: Iterable[Event]) -> RunFinished:
    """The end of a run with these events."""
    return RunFinished(summary=summarise(events), at=9.0)


def write_log(folder: Path, events: Sequence[Event], *, end: bool = True) -> Path:
    """A run directory with these events, and their end."""
    folder.mkdir(parents=True, exist_ok=True)
    whole = [*events, finished(events)] if end else list(events)
    (folder / "events.ndjson").write_bytes(b"".join(encode_event(e) for e in whole))
    return folder


@cache
def full_log_bytes() -> bytes:
    """That log, as bytes."""
    events = full_log()
    return b"".join(encode_event(e) for e in [*events, finished(events)])


def full_log() -> list[Event]:
    """A run in which everything happens that a report can tell."""
    wrong, accepted, accounted = (
        entry(),
        entry("F201", RULE),
        entry("F101", backend="cpu", signature=Signature("cpu", "F101", None, (("pse", "bias"),))),
    )
    return [
        started(),
        leg(torch="2.0", cann="9.1"),
        phase("replay"),
        Replayed(entry="F202-00000000aa", status="fixed"),
        Replayed(entry="F202-00000000bb", status="failing", text="refused"),
        Replayed(entry="F105-00000000cc", status="flaky", text="other bits"),
        flaky(),
        Replayed(entry="F101-00000000dd", status="unsupported", text="no such dtype"),
        phase_end(4, "replay"),
        phase(),
        *(case(n, factors=words(n - 1), compared=100, ratio=0.25, held=(RULE,) if n == 1 else ()) for n in range(1, 5)),
        invalid(5),
        invalid(6, agreed=False),
        found(1, "F201", RULE),
        kept(1, accepted),
        case(7, verdict=Verdict("finding", "F101", text="36 of 64 elements off"), factors=words(5), ratio=3.5),
        found(2),
        kept(2, wrong, new=False),
        case(8, verdict=Verdict("finding", "F101", text="off"), repeats=wrong.id),
        case(9, verdict=Verdict("finding", "F101", text="off")),
        found(3),
        kept(3, accounted, known="ISSUE-12"),
        case(10, "unsupported", got="unsupported"),
        case(11, "skipped", got=""),
        case(12, verdict=Verdict("finding", "F302", text=NASTY)),
        found(4, "F302"),
        case(13, verdict=Verdict("flaky", "F105", text="other bits")),
        flaky(),
        Disagreement(rule="FIA-PA-007", side="document", text="document: reject, source: accept, backend: reject"),
        KnownIssue(issue="ISSUE-9", status="passes", text="ISSUE-9 passes now: remove it"),
        phase_end(13),
    ]
