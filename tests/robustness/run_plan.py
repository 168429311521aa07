"""A campaign in a process of its own, for tests that signal it: a plan as JSON on the command line, one line a finding
on stdout; one line an event where that is asked for in the environment. With --resume the run of the plan goes on."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec

from fiafuzz.campaign.engine import run_campaign
from fiafuzz.campaign.events import CaseDone, FindingKept, RunFinished
from fiafuzz.campaign.plan import Plan
from fiafuzz.campaign.resume import read_past

EVENT_COUNT = "FIAFUZZ_TEST_EVENTS"

def main() -> None:
    """Run it and report."""
    plan = msgspec.json.decode(sys.argv[1], type=Plan)
    past = read_past(Path(str(plan.out))) if "--resume" in sys.argv else None
    for event in run_campaign(plan, past=past):
        if EVENT_COUNT in os.environ:
            print(f"EVENT {type(event).__name__}", flush=True)
        if isinstance(event, CaseDone) and event.n == 5:
            print("RUNNING", flush=True)
        elif isinstance(event, FindingKept):
            print(f"KEPT {event.entry.id} {event.path}", flush=True)
        elif isinstance(event, RunFinished):
            print(f"FINISHED {event.summary.status} {event.summary.interrupted} {event.summary.cases}", flush=True)


if __name__ == "__main__":
    main()
