"""The columns of the data frames of a run: name, dtype and meaning, in order. ``reports.frames`` makes the frames."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

Columns = Mapping[str, tuple[str, str]]

FACTOR = "factor:"
"""Column names of scene factors begin like this; there is one for each factor that the log names."""

CASES: Columns = MappingProxyType(
    {
        "n": ("int64", "number of the case in the run, from 1"),
        "at": ("float64", "seconds since the start of the run when its result came"),
        "backend": ("category", "backend that ran it"),
        "profile": ("category", "profile that was held"),
        "phase": ("category", "replay, sweep, pairwise, explore or bulk"),
        "mode": ("category", "valid, invalid, boundary, disputed or replay"),
        "digest": ("string", "digest of the case's content"),
        "foreseen": ("category", "prediction: accept, reject, unspecified, crash or hang"),
        "due": ("category", "status codes of a foreseen rejection, with blanks between; missing when none was due"),
        "breaks": ("category", "rules that the call breaks, first stage first, with blanks between"),
        "got": ("category", "kind of outcome (ok, reject, crash, ...); missing for a case that was not run"),
        "got_code": ("category", "status code that came, as text"),
        "status": ("category", "pass, finding, info, flaky, untestable, unsupported, skipped or internal"),
        "code": ("category", "verdict code F101 .. F401; missing when there is none"),
        "about": ("category", "rule or relation that the verdict is about"),
        "text": ("category", "the verdict in words; missing when there is nothing to say"),
        "rule": ("category", "rule that was broken or held on purpose"),
        "side": ("category", "side on which it was broken or held"),
        "seconds": ("float64", "seconds from making the tensors to the judgement"),
        "ratio": ("float64", "largest error as a share of what is allowed; 1 is the edge"),
        "compared": ("int64", "output elements that were compared"),
        "untestable": ("int64", "output elements that were too ill-conditioned to compare"),
        "repeats": ("category", "corpus entry that explains the failure"),
    }
)
VERDICTS: Columns = MappingProxyType(
    {
        "backend": ("category", "backend"),
        "profile": ("category", "profile"),
        "phase": ("category", "phase"),
        "mode": ("category", "kind of calls"),
        "foreseen": ("category", "prediction"),
        "status": ("category", "verdict"),
        "code": ("category", "verdict code; missing when there is none"),
        "cases": ("int64", "cases with all of these"),
        "seconds": ("float64", "seconds spent in them"),
        "compared": ("int64", "output elements compared"),
        "untestable": ("int64", "output elements too ill-conditioned to compare"),
    }
)
RULES: Columns = MappingProxyType(
    {
        "backend": ("string", "backend"),
        "profile": ("string", "profile"),
        "rule": ("string", "rule id; every rule of the profile has a row, reached or not"),
        "group": ("string", "parameter group; missing for a rule that this version does not know"),
        "title": ("string", "what the rule demands"),
        "level": ("string", "single, existence, consistency or cross"),
        "stage": ("string", "stage of the host that answers"),
        "state": ("string", "disagreed, exercised (all that can happen to it did), partly, never, or apart (counts in no share)"),
        "reached": ("bool", "whether anything happened to it"),
        "held_by": ("int64", "first accepted call that meets its condition and keeps its demand; 0 for none"),
        "alone": ("int64", "calls that break it and no other rule"),
        "together": ("int64", "calls that break it along with others"),
        "below": ("Int64", "calls made for it below its limit; missing where it has no such side"),
        "at": ("Int64", "calls at the limit, the last accepted value"),
        "above": ("Int64", "calls above the limit"),
        "sides": ("string", "calls made for it by side, as side=number with blanks between"),
        "agreed": ("int64", "calls made for it that were answered as predicted"),
        "disagreed": ("int64", "calls that were accepted, refused, given another status, crashed or hung against the prediction"),
        "disputed": ("int64", "calls on ground where documents and source differ"),
        "not_run": ("int64", "calls made for it that were skipped or cannot be expressed by the backend"),
        "findings": ("int64", "findings whose signature names the rule"),
        "cites": ("string", "statements that it rests on, with blanks between"),
        "lines": ("string", "where these stand in the documents"),
    }
)
COVERAGE: Columns = MappingProxyType(
    {
        "backend": ("string", "backend"),
        "profile": ("string", "profile; one without a single valid call has no row"),
        "t": ("int64", "words joined: 1, 2 or 3"),
        "cases": ("int64", "cases counted: run, and foreseen to be accepted"),
        "covered": ("int64", "feasible combinations that were met"),
        "feasible": ("int64", "combinations that a valid call of the profile can have"),
        "outside": ("int64", "combinations met that no planned valid call has"),
        "ratio": ("float64", "covered / feasible"),
    }
)
FINDINGS: Columns = MappingProxyType(
    {
        "id": ("string", "corpus entry, named by its signature; missing for one that was not kept"),
        "state": ("string", "new, known, flaky, fixed, or open (found, but the log ends before it was kept)"),
        "issue": ("string", "issue or baseline that accounts for it"),
        "number": ("int64", "number of the finding in the run; 0 for a replayed entry"),
        "code": ("string", "verdict code"),
        "rule": ("string", "rule or relation in the signature"),
        "title": ("string", "title"),
        "backend": ("string", "backend"),
        "profile": ("string", "profile"),
        "phase": ("string", "phase in which it was found; missing for a replayed entry"),
        "expected": ("string", "prediction"),
        "expected_codes": ("string", "status codes of a foreseen rejection, with blanks between"),
        "got": ("string", "kind of outcome"),
        "got_code": ("string", "status code that came"),
        "text": ("string", "what came, in words"),
        "error_ratio": ("float64", "largest error as a share of what is allowed; missing where nothing was compared"),
        "differences": ("string", "fields in which the case differs from the plainest valid call, one a line"),
        "cases": ("int64", "cases that showed it"),
        "shrink_runs": ("int64", "runs that shrinking took"),
        "shrink_seconds": ("float64", "seconds that shrinking took"),
        "digest": ("string", "digest of the case, shrunk where the finding was kept"),
        "reproduce": ("string", "shell line that runs it again"),
        "path": ("string", "file in the corpus"),
    }
)
FRAMES: Mapping[str, Columns] = MappingProxyType(
    {"cases": CASES, "verdicts": VERDICTS, "rules": RULES, "coverage": COVERAGE, "findings": FINDINGS}
)
"""Frame name -> its columns. ``cases`` has in addition one category column for each scene factor (``FACTOR``)."""


def described() -> dict[str, Any]:
    """All columns as plain data: frame -> column -> dtype and text."""
    found: dict[str, Any] = {
        frame: {name: {"dtype": dtype, "text": text} for name, (dtype, text) in columns.items()} for frame, columns in FRAMES.items()
    }
    found["cases"][f"{FACTOR}NAME"] = {"dtype": "category", "text": "word of the scene factor NAME; a column for each"}
    return found
