"""Corpus entries made up for tests; their ids are those of their signatures."""

from __future__ import annotations

from typing import Any, Optional

from fiafuzz.campaign.corpus import Entry, Got
from fiafuzz.campaign.triage import Signature, plain_case
from fiafuzz.campaign.verdict import Foreseen


def entry_of(
    code: str = "F101",
    *,
    rule: Optional[str] = None,
    features: tuple[tuple[str, str], ...] = (("lse", "on"),),
    backend: str = "quick",
    seed: int = 0,
    profile: str = "950-v5",
    **changes: Any,
) -> Entry:
    """An entry of the plainest call (``seed`` makes another call of it)."""
    signature = Signature(backend, code, rule, features)
    settings: dict[str, Any] = {
        "id": signature.id, "title": "wrong values", "signature": signature, "profile": profile,
        "case": plain_case("950", "v5").replace(seed=seed), "original": "00", "expected": Foreseen("accept", (0,)), "got": Got("ok"),
        "differences": (), "environment": {"torch": "2"}, "seed": 7, "first_seen": "2026-01-01T00:00:00+00:00",
        "reproduce": f"fiafuzz replay {signature.id} --backend {backend}",
    }
    return Entry(**{**settings, **changes})
