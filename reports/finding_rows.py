"""The rows of the data frame ``findings``: what was kept, what is still open, what is flaky, what was fixed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd

from fiafuzz.campaign.codes import title
from fiafuzz.campaign.events import FindingFound, FindingKept, FlakyFound
from fiafuzz.campaign.verdict import Foreseen

from .frame_columns import FINDINGS

if TYPE_CHECKING:
    from .gathered import Found

Leg = tuple[str, str]


def finding_frame(found: Found, legs: Iterable[Leg], repeats: Mapping[str, int]) -> pd.DataFrame:
    """One row a finding. ``repeats``: how many cases each entry explains."""
    from .frames import typed

    rows = [*_kept(found, repeats), *_open(found), *_flaky(found), *_fixed(found)]
    return typed(pd.DataFrame(rows, columns=list(FINDINGS)), FINDINGS)


def _kept(found: Found, repeats: Mapping[str, int]) -> Iterable[dict[str, Any]]:
    whole: dict[str, list[FindingKept]] = {}
    for kept, _ in found.kept:
        whole.setdefault(kept.entry.id, []).append(kept)
    for entry_id, several in whole.items():
        kept = several[0]
        entry, number = kept.entry, kept.number
        first = found.found.get(number)
        issue = next((k.known for k in several if k.known), None)
        yield {
            "id": entry_id,
            "state": "known" if issue or not any(k.new for k in several) else "new",
            "issue": issue,
            "number": number,
            "code": entry.signature.code,
            "rule": entry.signature.rule,
            "title": entry.title,
            "backend": entry.signature.backend,
            "profile": entry.profile,
            "phase": first.phase if first is not None else None,
            **_foreseen(entry.expected),
            "got": entry.got.kind,
            "got_code": None if entry.got.code is None else str(entry.got.code),
            "text": entry.got.text,
            "error_ratio": entry.got.error_ratio or None,
            "differences": "\n".join(entry.differences),
            # The case of a replayed entry is among those that it explains.
            "cases": repeats.get(entry_id, 0) + sum(k.number in found.found for k in several),
            "shrink_runs": sum(k.runs for k in several),
            "shrink_seconds": sum(k.seconds for k in several),
            "digest": entry.case.digest,
            "reproduce": entry.reproduce,
            "path": kept.path,
        }


def _open(found: Found) -> Iterable[dict[str, Any]]:
    closed = {k.number for k, _ in found.kept} | set(found.repeated) | {f.number for f, _, _ in found.flaky}
    for number, event in found.found.items():
        if number not in closed:
            yield {**_loose(event, (event.backend, event.profile), "open", 1), "phase": event.phase, **_foreseen(event.foreseen)}


def _flaky(found: Found) -> Iterable[dict[str, Any]]:
    for event, leg, entry in found.flaky:
        first = found.found.get(event.number) if event.number else None
        yield {**_loose(event, leg, "flaky", event.failed), "id": entry, "phase": first.phase if first is not None else None}


def _fixed(found: Found) -> Iterable[dict[str, Any]]:
    for again, leg in found.replayed:
        if again.status == "fixed":
            yield _replayed(again.entry, "fixed", again.text, leg)


def _loose(event: FindingFound | FlakyFound, leg: Leg, state: str, cases: int) -> dict[str, Any]:
    verdict = event.verdict
    return {
        "state": state,
        "number": event.number,
        "code": verdict.code,
        "rule": verdict.rule,
        "title": title(verdict.code or ""),
        "backend": leg[0],
        "profile": leg[1],
        "text": verdict.text,
        "cases": cases,
        "shrink_runs": 0,
        "shrink_seconds": 0.0,
        "digest": event.case.digest,
    }


def _replayed(entry: str, state: str, text: str, leg: Leg) -> dict[str, Any]:
    return {
        "id": entry,
        "state": state,
        "number": 0,
        "code": entry[:4],
        "title": title(entry[:4]),
        "backend": leg[0],
        "profile": leg[1],
        "text": text,
        "cases": 1,
        "shrink_runs": 0,
        "shrink_seconds": 0.0,
    }


def _foreseen(expected: Foreseen) -> dict[str, Any]:
    codes = expected.codes if expected.verdict != "accept" else ()
    return {"expected": expected.verdict, "expected_codes": " ".join(str(c) for c in codes)}
