"""A campaign in a process of its own, for tests that signal it: a plan as JSON on the command line, one line a finding
on stdout."""

from __future__ import annotations

import sys

import msgspec

from fiafuzz.campaign.engine import run_campaign
from fiafuzz.campaign.events import CaseDone, FindingKept, RunFinished
from fiafuzz.campaign.plan import Plan


def main() -> None:
    """Run it and report."""
    plan = msgspec.json.decode(sys.argv[1], type=Plan)
    for event in run_campaign(plan):
        if isinstance(event, CaseDone) and event.n == 5:
            print("RUNNING", flush=True)
        elif isinstance(event, FindingKept):
            print(f"KEPT {event.entry.id} {event.path}", flush=True)
        elif isinstance(event, RunFinished):
            print(f"FINISHED {event.summary.status} {event.summary.interrupted} {event.summary.cases}", flush=True)


if __name__ == "__main__":
    main()
