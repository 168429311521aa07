"""The events of a run as clean NDJSON: what can be read of the log, one event a line, as ``fiafuzz schema events`` has it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fiafuzz.campaign.events import encode_event

from .run_data import read_events


def ndjson_report(runs: Sequence[Path]) -> bytes:
    """The readable events of one run; half-written or damaged lines are left out. RunError when there is no log."""
    (run,) = runs
    return b"".join(encode_event(event) for event in read_events(run))
