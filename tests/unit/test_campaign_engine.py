"""Campaigns on the CPU kernel: events, logs, counts, the same cases for the same seed, explore, canary, replay."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

import fiafuzz.campaign.engine as engine
from fiafuzz.campaign.canary import sing
from fiafuzz.campaign.corpus import Corpus, Entry
from fiafuzz.campaign.engine import run_campaign, summarise
from fiafuzz.campaign.events import (
    CanaryDone,
    CaseDone,
    Event,
    FindingFound,
    FindingKept,
    LegStarted,
    Note,
    PhaseFinished,
    PhaseStarted,
    RunFinished,
    RunStarted,
    Summary,
    decode_event,
    encode_event,
)
from fiafuzz.campaign.plan import Plan, PlanError
from fiafuzz.campaign.replay import Item, disagreement, entry_item, replay
from fiafuzz.campaign.results import Result
from fiafuzz.campaign.schedulers.protocol import Completed
from fiafuzz.campaign.stopping import StopFlag
from fiafuzz.campaign.triage import plain_case
from fiafuzz.campaign.verdict import Foreseen
from fiafuzz.campaign.wire import Job, Setup
from fiafuzz.model.factors import FACTORS

from .in_process import InProcess

PROFILE = "950-v5"


def plan_in(tmp_path: Path, name: str = "run", **changes: Any) -> Plan:
    settings: dict[str, Any] = {"corpus": str(tmp_path / "corpus"), "out": str(tmp_path / name), "seed": 5, "canary": False,
                                "max_time": None, "max_cases": 60, "time_limit": 60.0, "profiles": (PROFILE,)}
    return Plan(**{**settings, **changes})


def run(plan: Plan, **options: Any) -> tuple[list[Event], Summary]:
    events = list(run_campaign(plan, **options))
    finished = events[-1]
    assert isinstance(finished, RunFinished)
    return events, finished.summary


def cases(events: list[Event]) -> list[CaseDone]:
    return [e for e in events if isinstance(e, CaseDone)]


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Campaigns without workers, for what the engine does itself."""
    monkeypatch.setattr(engine, "scheduler_of", lambda plan, backend, profile: InProcess(Setup(backend, profile)))


@pytest.fixture(scope="module")
def clean_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Event], Summary]:
    root = tmp_path_factory.mktemp("clean")
    events, summary = run(plan_in(root, max_cases=160, canary=True, repeat_every=10))
    return root, events, summary


def test_a_clean_run(clean_run: tuple[Path, list[Event], Summary]) -> None:
    root, events, summary = clean_run
    assert summary.status == "clean", summary
    assert isinstance(events[0], RunStarted) and isinstance(events[1], LegStarted) and isinstance(events[2], CanaryDone)
    assert events[2].passed, events[2].text
    done = cases(events)
    assert [e.n for e in done] == list(range(1, len(done) + 1))
    run_ones = [e for e in done if e.verdict.status not in ("skipped", "unsupported")]
    assert summary.cases == len(run_ones) >= 140
    assert summary.phases == Counter(e.phase for e in run_ones)
    assert set(summary.phases) == {"sweep", "pairwise", "explore", "bulk"}
    assert all(len(e.factors.split("|")) == len(FACTORS) for e in done)
    assert {e.mode for e in done} >= {"valid", "invalid"}
    assert [e.at for e in events] == sorted(e.at for e in events)
    assert not list(Corpus(root / "corpus").entries())


def test_the_log_is_the_stream(clean_run: tuple[Path, list[Event], Summary]) -> None:
    root, events, summary = clean_run
    logged = [decode_event(line) for line in (root / "run" / "events.ndjson").read_bytes().splitlines()]
    assert logged[:-1] == events[:-1]
    assert summarise(logged) == summary
    unfinished = summarise(logged[:-1])
    assert (unfinished.cases, unfinished.verdicts, unfinished.phases) == (summary.cases, summary.verdicts, summary.phases)
    assert decode_event(encode_event(events[0])) == events[0]
    record = msgspec.json.decode((root / "run" / "run.json").read_bytes())
    assert record["status"] == "clean" and record["plan"]["seed"] == 5 and record["summary"]["cases"] == summary.cases
    assert (root / "run" / ".gitignore").read_text() == "*\n"


def test_the_same_seed_gives_the_same_cases_on_any_number_of_workers(tmp_path: Path) -> None:
    def digests(name: str, seed: int, workers: int) -> Counter[tuple[str, str]]:
        plan = plan_in(tmp_path, name, phases=("sweep", "pairwise", "bulk"), seed=seed, workers=workers, max_cases=80)
        return Counter((e.phase, e.digest) for e in cases(run(plan)[0]))

    one = digests("one", 5, 1)
    assert digests("two", 5, 2) == one
    assert digests("three", 6, 1) != one


def test_a_planted_fault_is_found_shrunk_kept_and_replayed(tmp_path: Path) -> None:
    plan = plan_in(tmp_path, backends=("faulty:causal-one-too-many",), phases=("bulk",), mode="valid", max_cases=150)
    events, summary = run(plan)
    assert summary.status == "findings"
    kept = [e for e in events if isinstance(e, FindingKept)]
    assert kept and kept[0].new
    entry = kept[0].entry
    assert entry.signature.code == "F101" and dict(entry.signature.features)["sparse_mode"] in ("2", "3")
    assert len(entry.differences) <= 4 and kept[0].runs <= 150
    assert entry.got.error_ratio > 1 and entry.got.worst and entry.environment["torch"]
    assert entry.reproduce == f"fiafuzz replay {entry.id} --backend faulty:causal-one-too-many --corpus {tmp_path / 'corpus'}"
    assert next(e.case.digest for e in events if isinstance(e, FindingFound)) == entry.original
    entries = [e for e in Corpus(plan.corpus).entries() if isinstance(e, Entry)]
    assert entry in entries
    items = [entry_item(entry), Item("plain", plain_case("950", "v5"), None, None, {"verdict": "reject"})]
    assert [r.status for r in replay(items, "faulty:causal-one-too-many")] == ["failing", "passing"]
    found = list(replay(items, "cpu", make=InProcess))
    assert [r.status for r in found] == ["passing", "passing"]
    assert [r.disagrees for r in found] == ["", "expected reject, predicted accept"]
    fixed = msgspec.structs.replace(entry, signature=msgspec.structs.replace(entry.signature, backend="cpu"))
    assert [r.status for r in replay([entry_item(fixed)], "cpu", make=InProcess)] == ["fixed"]
    bare = [Item("bare", entry.case)]
    assert [r.status for r in replay(bare, "faulty:causal-one-too-many", make=InProcess)] == ["new"]


@pytest.mark.usefixtures("in_process")
def test_explore_finds_faults_and_hands_them_on(tmp_path: Path) -> None:
    plan = plan_in(tmp_path, backends=("faulty:scale-twice",), phases=("explore",), max_cases=60)
    events, summary = run(plan)
    assert summary.status == "findings" and len(summary.findings) == 1
    done = cases(events)
    assert len(done) >= summary.cases >= 40 and all(e.phase == "explore" for e in done)
    assert (tmp_path / "run" / "hypothesis").is_dir(), "its database is in the run directory"
    ended = [e for e in events if isinstance(e, PhaseFinished)]
    assert [e.reason for e in ended] == ["cases"]


def test_backends_without_checks_get_no_invalid_call(tmp_path: Path) -> None:
    """None is made, so that the time goes into calls that they can take."""
    plan = plan_in(tmp_path, backends=("torch-sdpa-math",), phases=("sweep", "explore", "sequences", "bulk"), sequences=3, max_cases=80)
    events, summary = run(plan)
    done = cases(events)
    assert {e.phase for e in done} == {"sweep", "explore", "sequences"} and all(e.foreseen == "accept" for e in done)
    assert "the backend has no parameter checks" not in summary.skipped and summary.status == "clean"


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("mode", ["invalid", "disputed"])
def test_a_mode_without_calls_for_a_backend_ends_at_once(mode: str, tmp_path: Path) -> None:
    """A number of cases bounds the run, and none of them is ever run: it must end all the same."""
    events, summary = run(plan_in(tmp_path, backends=("torch-sdpa-math",), mode=mode, max_cases=5))
    assert [e.phase for e in events if isinstance(e, PhaseStarted)] == ["replay"] and summary.status == "nothing"
    (note,) = (e for e in events if isinstance(e, Note))
    assert note.level == "warning" and f"no parameter checks, so that no call of mode {mode} is made" in note.text


@pytest.mark.usefixtures("in_process")
def test_a_profile_without_valid_calls_has_nothing_to_run(tmp_path: Path) -> None:
    _, summary = run(plan_in(tmp_path, profiles=("950-v3",), phases=("pairwise", "bulk")))
    assert summary.cases == 0 and summary.status == "nothing"


def test_the_caller_can_stop_a_run(tmp_path: Path) -> None:
    stop = StopFlag()
    seen = 0
    for event in run_campaign(plan_in(tmp_path, max_cases=100_000, phases=("bulk",)), stop=stop):
        if isinstance(event, CaseDone):
            seen += 1
            if seen == 20:
                stop.set("caller")
        last = event
    assert isinstance(last, RunFinished) and 20 <= last.summary.cases < 500
    assert not last.summary.interrupted


@pytest.mark.usefixtures("in_process")
def test_legs_share_the_cases(tmp_path: Path) -> None:
    events, summary = run(plan_in(tmp_path, profiles=("950-v5", "a2-v3"), phases=("bulk",), max_cases=60))
    legs = [e.profile for e in events if isinstance(e, LegStarted)]
    assert legs == ["950-v5", "a2-v3"]
    assert 50 <= summary.cases <= 60


def test_plans_are_checked_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(PlanError):
        run_campaign(plan_in(tmp_path, mode="nonsense"))
    assert not (tmp_path / "run").exists()


class _DeadScheduler:
    """A scheduler whose judge is blind: everything passes."""

    def run(self, job: Job, **_: Any) -> Completed:
        return Completed(job, Result("ok"))


def test_a_blind_judge_kills_the_canary() -> None:
    passed, text = sing(_DeadScheduler(), 1)  # type: ignore[arg-type]
    assert not passed and "not seen" in text


@pytest.mark.usefixtures("in_process")
def test_a_run_without_a_canary_is_not_clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fiafuzz.campaign.leg.sing", lambda *_: (False, "the judge is blind"))
    _, summary = run(plan_in(tmp_path, canary=True))
    assert summary.status == "broken" and summary.cases == 0
    assert summary.problems == ("canary: the judge is blind",)


@pytest.mark.parametrize("found, expected, words", [
    (Foreseen("accept", (0,)), None, ""), (Foreseen("accept", (0,)), {"verdict": "accept", "codes": [0]}, ""),
    (Foreseen("reject", (561002,), ("R",)), {"verdict": "accept"}, "expected accept, predicted reject (R)"),
    (Foreseen("reject", (561002,)), {"verdict": "reject", "codes": [561002, 561103]}, ""),
    (Foreseen("reject", (561002,)), {"verdict": "reject", "codes": [161002]}, "expected status [161002], predicted [561002]"),
    (Foreseen("accept", (0,)), {"why": "no verdict"}, ""),
])
def test_what_a_file_expects(found: Foreseen, expected: dict[str, Any] | None, words: str) -> None:
    assert disagreement(found, expected) == words
