"""Does a campaign find planted faults, and what does it leave behind? One short run a fault, end to end.

Here a few faults of every kind (values, checks, the process); ``fiafuzz selftest`` hunts all of them. Those of the process, and one of
values and one of checks, are hunted in real workers, the others in the test's own process: what runs a call does not change its
answer, and a worker spends its time on loading torch. The campaign
knows nothing of the fault. It must find it, keep one entry for it, shrunk to little more than what the fault needs, and
the entry must fail again on the faulty backend and pass on the correct one.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Optional

import pytest

import fiafuzz.campaign.engine as engine
from fiafuzz.backends.faults import fault_by_name
from fiafuzz.campaign.corpus import Corpus, Entry
from fiafuzz.campaign.engine import run_campaign
from fiafuzz.campaign.events import CaseDone, FindingKept
from fiafuzz.campaign.plan import Plan
from fiafuzz.campaign.replay import entry_item, replay
from fiafuzz.campaign.schedulers.protocol import Scheduler
from fiafuzz.campaign.stopping import StopFlag
from fiafuzz.campaign.wire import Setup
from tests.unit.in_process import InProcess

PROFILE = "950-v5"
IN_WORKERS = ("scale-twice", "heads-code", "crash", "raises")
MORE_THAN_NEEDED = 2
"""Fields by which the shrunk case may differ from the plainest call beyond what the fault needs, and those that follow
from it."""


def hunt(name: str, corpus: Path, out: Path, *, phases: tuple[str, ...], mode: str) -> tuple[FindingKept, int]:
    """The first finding of a campaign on the faulty backend, and the cases that it took."""
    plan = Plan(backends=(f"faulty:{name}",), profiles=(PROFILE,), seed=2, max_time=120.0, phases=phases, mode=mode, canary=False,
                corpus=str(corpus), out=str(out), time_limit=8.0, memory_limit=1 << 30)
    stop, cases, found = StopFlag(), 0, None
    for event in run_campaign(plan, stop=stop):
        cases += isinstance(event, CaseDone)
        if isinstance(event, FindingKept) and found is None:
            found = event
            stop.set("found")
    assert found is not None, f"{name} is not seen in {cases} cases"
    return found, cases


@pytest.mark.parametrize("name, phases, mode, needs", [
    ("scale-twice", ("bulk",), "valid", 0),
    ("causal-one-too-many", ("bulk",), "valid", 2),
    ("gqa-tiled", ("bulk",), "valid", 2),
    ("table-of-other-batch", ("bulk",), "valid", 3),
    ("sink-ignored", ("bulk",), "valid", 1),
    ("lse-sign", ("bulk",), "valid", 1),
    ("bias-twice", ("bulk",), "valid", 1),
    ("inner-precise-unchecked", ("sweep",), "invalid", 1),
    ("heads-code", ("sweep",), "invalid", 2),
    ("rejects-nz-lse", ("bulk",), "valid", 3),
    ("crash", ("bulk",), "valid", 1),
    ("raises", ("bulk",), "valid", 1),
])
def test_a_planted_fault_ends_as_a_small_entry(
    name: str, phases: tuple[str, ...], mode: str, needs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make: Optional[Callable[[Setup], Scheduler]] = None
    if name not in IN_WORKERS:
        make = InProcess
        monkeypatch.setattr(engine, "scheduler_of", lambda plan, backend, profile: InProcess(Setup(backend, profile)))
    fault = fault_by_name(name)
    found, _ = hunt(name, tmp_path / "corpus", tmp_path / "run", phases=phases, mode=mode)
    entry = found.entry
    assert entry.signature.code == fault.expect
    assert found.runs <= 150
    assert len(entry.differences) <= max(needs, fault.interaction) + MORE_THAN_NEEDED, entry.differences
    assert [e for e in Corpus(tmp_path / "corpus").entries() if isinstance(e, Entry)] == [entry]
    item = entry_item(entry)
    assert [r.status for r in replay([item], f"faulty:{name}", time_limit=8.0, make=make)] == ["failing"]
    assert [r.status for r in replay([item], "cpu", time_limit=8.0, make=make)] == ["passing"]


@pytest.mark.slow
@pytest.mark.parametrize("name, code", [("hang", "F302"), ("oom", "F301")])
def test_slow_faults_of_the_process(name: str, code: str, tmp_path: Path) -> None:
    found, _ = hunt(name, tmp_path / "corpus", tmp_path / "run", phases=("bulk",), mode="valid")
    assert found.entry.signature.code == code
    assert len(found.entry.differences) <= fault_by_name(name).interaction + MORE_THAN_NEEDED
