"""Resuming: from wherever a run was cut off, the whole gives the cases and findings of a run that was not."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any, Optional

import msgspec
import pytest

import fiafuzz.campaign.explore as explore
import fiafuzz.campaign.proposals as proposals_module
from fiafuzz import __version__
from fiafuzz.campaign.corpus import Corpus, Entry
from fiafuzz.campaign.effort import Effort
from fiafuzz.campaign.engine import run_campaign, summarise
from fiafuzz.campaign.events import (
    CaseDone,
    Event,
    FindingFound,
    FindingKept,
    Note,
    PhaseFinished,
    RoundDone,
    RunFinished,
    RunResumed,
    RunStarted,
    decode_event,
    encode_event,
)
from fiafuzz.campaign.plan import Plan
from fiafuzz.campaign.results import Judged, Result
from fiafuzz.campaign.resume import ResumeError, read_past
from fiafuzz.campaign.rundir import RunDirError, log_lines
from fiafuzz.campaign.stopping import StopFlag
from fiafuzz.model.case import Case
from fiafuzz.model.scene import Scene
from reports.run_data import read_run

from .quick_runs import Quick, cases_of, kept_ids, make_quick, nothing_is_wrong, plan_in, quick, run

__all__ = ["quick"]
Install = Callable[..., list[Quick]]
PLAN: dict[str, Any] = {"phases": ("replay", "sweep", "pairwise", "explore", "bulk"), "max_cases": 70}


def logged(path: Path) -> list[Event]:
    """The events of a log."""
    return [decode_event(line) for _, line in log_lines(path / "events.ndjson")]


def cut(root: Path, to: Path, length: int) -> None:
    """Copy a finished run as if it had been killed after so many bytes of its log: what was kept later is not there yet."""
    shutil.copytree(root, to)
    with open(to / "run" / "events.ndjson", "r+b") as log:
        log.truncate(length)
    there = {e.entry.id for e in whole_events(to / "run") if isinstance(e, FindingKept)}
    for path in (to / "corpus" / "found").glob("*.json"):
        if path.stem not in there:
            path.unlink()
    data = (to / "run" / "events.ndjson").read_bytes().replace(str(root).encode(), str(to).encode())
    (to / "run" / "events.ndjson").write_bytes(data)
    (to / "run" / "run.json").write_bytes((to / "run" / "run.json").read_bytes().replace(str(root).encode(), str(to).encode()))


def whole_events(path: Path) -> list[Event]:
    """The events of a log up to its half-written line."""
    return [decode_event(line) for _, line in log_lines(path / "events.ndjson") if line.endswith(b"\n")]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Event]]:
    """A run that was not interrupted."""
    root = tmp_path_factory.mktemp("whole") / "it"
    with pytest.MonkeyPatch.context() as patch:
        make_quick(patch)()
        events, summary = run(plan_in(root, **PLAN))
    assert summary.status == "findings" and len(summary.findings) >= 2, summary
    assert {e.phase for e in events if isinstance(e, CaseDone)} >= {"sweep", "pairwise", "explore", "bulk"}
    return root, events


def resumed(to: Path, **options: Any) -> tuple[list[Event], Any]:
    """Go on with a run; the events that this adds, and the summary."""
    past = read_past(to / "run")
    return run(past.plan, past=past, **options)


def same_as(whole: tuple[Path, list[Event]], to: Path) -> None:
    """The log of a resumed run tells the cases and the findings of the whole one, each once."""
    events = logged(to / "run")
    assert cases_of(events) == cases_of(whole[1])
    assert kept_ids(events) == kept_ids(whole[1])
    finished = [e for e in whole[1] if isinstance(e, RunFinished)][-1].summary
    ends = [e for e in events if isinstance(e, RunFinished)]
    summary = ends[-1].summary
    assert {f.id: f.new for f in summary.findings} == {f.id: f.new for f in finished.findings}
    assert (summary.status, summary.cases, summary.phases, summary.verdicts) == (
        finished.status, finished.cases, finished.phases, finished.verdicts)
    assert {f.id: f.count for f in summary.findings} == {f.id: f.count for f in finished.findings}
    assert {e.id for e in Corpus(to / "corpus").entries() if isinstance(e, Entry)} == kept_ids(whole[1])
    assert [e.n for e in events if isinstance(e, CaseDone)] == list(range(1, len(cases_of(events)) + 1)), "numbering goes on"
    assert [e.at for e in events] == sorted(e.at for e in events), "the clock goes on"
    found = [e.number for e in events if isinstance(e, FindingFound)]
    assert len(found) == len(set(found))
    data = read_run(to / "run")
    assert (data.cases, data.verdicts) == (len(cases_of(events)), summary.verdicts)
    assert len(data.legs) == 1 and len(data.phases) == len({p.phase for p in data.phases})
    assert sum(p.cases for p in data.phases) == summary.cases


def offsets(root: Path, step: int, start: int) -> list[int]:
    """Places to cut a log at: after and inside of each so many-th line."""
    ends = [end for end, _ in log_lines(root / "run" / "events.ndjson")]
    found = []
    for i in range(start, len(ends) - 1, step):
        found += [ends[i], ends[i] + (ends[i + 1] - ends[i]) // 2]
    return found


def test_cut_anywhere(quick: Install, whole: tuple[Path, list[Event]], tmp_path: Path) -> None:
    root, _ = whole
    for number, length in enumerate([*offsets(root, 17, 3), *near_findings(root)]):
        to = tmp_path / str(number)
        cut(root, to, length)
        made = quick()
        before = {(phase, place) for phase, place, _ in cases_of(whole_events(to / "run"))}
        events, _ = resumed(to)
        assert isinstance(events[0], (RunResumed, RunStarted))
        again = [(phase, place) for phase, place, _ in cases_of(events) if (phase, place) in before]
        assert len(again) <= 1, "nothing that is recorded is run again, but for a failing case whose finding was not told"
        assert len(made) == 1
        same_as(whole, to)
        shutil.rmtree(to)


def near_findings(root: Path) -> list[int]:
    """After each event that is about a finding."""
    found = []
    for end, line in log_lines(root / "run" / "events.ndjson"):
        event = decode_event(line)
        if isinstance(event, (FindingFound, FindingKept)) or (isinstance(event, CaseDone) and event.verdict.failed and not event.repeats):
            found.append(end)
    return found


@pytest.fixture(scope="module")
def explored(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Event]]:
    """A run in which Hypothesis finds the faults, over several of its rounds."""
    root = tmp_path_factory.mktemp("explored") / "it"
    with pytest.MonkeyPatch.context() as patch:
        make_quick(patch)()
        short_rounds(patch)
        events, summary = run(plan_in(root, phases=("explore",), mode="valid", max_cases=45, shrink_runs=8))
    assert summary.status == "findings" and sum(isinstance(e, RoundDone) for e in events) >= 2
    assert any((root / "run" / "hypothesis").iterdir()), "what fails is remembered"
    return root, events


def short_rounds(patch: pytest.MonkeyPatch) -> None:
    """Rounds of a few calls."""
    patch.setattr(explore, "ROUND", 12)
    patch.setattr(explore, "SHRINK_CALLS", 6)


def test_cut_anywhere_in_explore(
    quick: Install, explored: tuple[Path, list[Event]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, _ = explored
    short_rounds(monkeypatch)
    quick()
    for number, length in enumerate([*offsets(root, 12, 4)[::2], *near_findings(root)[:4], *round_ends(root)[:2]]):
        to = tmp_path / str(number)
        cut(root, to, length)
        resumed(to)
        same_as(explored, to)


def several_are_wrong(case: Case) -> Optional[Result]:
    """Faults of several kinds, so that what explains a failure depends on what is known by then."""
    scene = Scene(case)
    keys, rows = scene.KV_S or 0, scene.Q_S or 0
    if keys % 8 == 7:
        return Result("crash", signal=6, message="killed by SIGABRT")
    if keys % 8 == 5:
        return Result("ok", judged=Judged(False, "F103", text="wrong shape"))
    if rows % 4 == 3:
        return Result("error", message="ArithmeticError: rows")
    return Result("ok", judged=Judged(False, "F101", 4.0, compared=8, text="off")) if rows % 4 == 2 else None


def test_cut_while_the_failures_of_a_round_are_told(quick: Install, tmp_path: Path) -> None:
    """They come one by one once a round is over, each after a shrink perhaps. A run that goes on in between must not ask anew what
    explains them: more has been shrunk by now, and Hypothesis would be told something else and go elsewhere."""
    root = tmp_path / "it"
    settings: dict[str, Any] = {"phases": ("pairwise", "explore"), "mode": "valid", "max_cases": 120, "shrink_runs": 40}
    quick(several_are_wrong)
    events, summary = run(plan_in(root, seed=1, **settings))
    told = [i for i, e in enumerate(events) if isinstance(e, CaseDone) and e.sought]
    assert len(told) > 20 and len(summary.findings) == 5
    ends = [end for end, _ in log_lines(root / "run" / "events.ndjson")]
    for i in [told[0] - 1, *told[:24:3], told[-2]]:
        to = tmp_path / str(i)
        cut(root, to, ends[i])
        resumed(to)
        same_as((root, events), to)


def test_the_plainest_failure_of_a_round_may_be_its_last_case(quick: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told first, and what is like it afterwards in the same order, also by a run that goes on in between."""
    monkeypatch.setattr(explore, "SHRINK_CALLS", 6)
    monkeypatch.setattr(explore, "ROUND", 25)
    root = tmp_path / "it"
    quick(several_are_wrong)
    events, _ = run(plan_in(root, seed=32, phases=("pairwise", "explore"), mode="valid", max_cases=100, shrink_runs=20))
    explored = [(i, e) for i, e in enumerate(events) if isinstance(e, CaseDone) and e.phase == "explore"]
    first = next((i, e) for i, e in explored if e.sought and e.place >> 20 == explored[-1][1].place >> 20)
    assert first[1].place == max(e.place for _, e in explored) and explored[-1][0] >= first[0] + 2
    to = tmp_path / "again"
    cut(root, to, [end for end, _ in log_lines(root / "run" / "events.ndjson")][first[0]])
    resumed(to)
    same_as((root, events), to)
    order = [e.place for e in logged(to / "run") if isinstance(e, CaseDone) and e.phase == "explore"]
    assert order == [e.place for _, e in explored]


def round_ends(root: Path) -> list[int]:
    """After each round of the explore phase."""
    return [end for end, line in log_lines(root / "run" / "events.ndjson") if isinstance(decode_event(line), RoundDone)]


def test_twice_and_with_damage(quick: Install, whole: tuple[Path, list[Event]], tmp_path: Path) -> None:
    """Cut, go on, stop in good order, damage the log, go on: still the same."""
    root, _ = whole
    to = tmp_path / "it"
    cut(root, to, offsets(root, 25, 10)[1])
    quick()
    stop = StopFlag()
    past = read_past(to / "run")
    for event in run_campaign(past.plan, past=past, stop=stop):
        if isinstance(event, CaseDone) and event.n == 40:
            stop.set("SIGINT")
    assert isinstance(event, RunFinished) and event.summary.interrupted and event.summary.resumed == 1
    path = to / "run" / "events.ndjson"
    lines = path.read_bytes().splitlines(keepends=True)
    at = next(i for i, line in enumerate(lines) if isinstance(e := decode_event(line), CaseDone) and e.phase == "sweep" and not e.held)
    lines[at] = b"\x00\xff" + lines[at][:20] + b"\n"
    path.write_bytes(b"".join(lines) + b'{"event": "CaseDo')
    events, summary = resumed(to)
    assert any(isinstance(e, Note) and "1 lines of the log could not be read" in e.text for e in events)
    assert summary.resumed == 2
    path.write_bytes(b"".join(line for line in path.read_bytes().splitlines(keepends=True) if not line.startswith(b"\x00")))
    assert cases_of(logged(to / "run")) == cases_of(whole[1]) and kept_ids(logged(to / "run")) == kept_ids(whole[1])
    assert read_past(to / "run").complete


def test_a_lost_first_line_is_made_up_for_by_the_record(quick: Install, whole: tuple[Path, list[Event]], tmp_path: Path) -> None:
    root, _ = whole
    to = tmp_path / "it"
    cut(root, to, offsets(root, 30, 20)[0])
    path = to / "run" / "events.ndjson"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"{}\n" + b"".join(lines[1:]))
    quick()
    resumed(to)
    assert cases_of(whole_after_damage(path)) == cases_of(whole[1])


def whole_after_damage(path: Path) -> list[Event]:
    """The events of a log whose first line is damaged."""
    return [decode_event(line) for line in path.read_bytes().splitlines()[1:]]


@pytest.mark.parametrize("log", [b"", b'{"event":"RunSta'])
def test_killed_before_the_first_event(quick: Install, tmp_path: Path, log: bytes) -> None:
    quick(nothing_is_wrong)
    plan = plan_in(tmp_path, max_cases=5, phases=("bulk",))
    events, _ = run(plan)
    (tmp_path / "run" / "events.ndjson").write_bytes(log)
    again, summary = resumed(tmp_path)
    assert isinstance(again[0], RunStarted) and isinstance(again[1], RunResumed)
    assert cases_of(again) == cases_of(events) and summary.status == "clean"
    assert summarise(logged(tmp_path / "run")) == summary


def test_a_finished_run_is_complete_and_an_interrupted_one_is_not(quick: Install, tmp_path: Path) -> None:
    quick(nothing_is_wrong)
    run(plan_in(tmp_path, max_cases=5, phases=("bulk",)))
    past = read_past(tmp_path / "run")
    assert past.complete and past.finished is not None and past.finished.status == "clean"
    stop = StopFlag()
    plan = plan_in(tmp_path, max_cases=50, phases=("bulk",), out=str(tmp_path / "other"))
    for event in run_campaign(plan, stop=stop):
        if isinstance(event, CaseDone):
            stop.set("SIGTERM")
    past = read_past(tmp_path / "other")
    assert not past.complete and past.tally.interrupted is False
    events, summary = run(past.plan, past=past)
    assert (summary.status, summary.cases, summary.interrupted) == ("clean", 50, False)
    ended = [e for e in events if isinstance(e, PhaseFinished)]
    assert [e.cases for e in ended] == [50], "the phase tells all of its cases"


def test_the_time_of_a_run_is_what_was_left(quick: Install, tmp_path: Path) -> None:
    quick(nothing_is_wrong)
    run(plan_in(tmp_path, max_cases=None, max_time=1.0, phases=("bulk",)))
    path = tmp_path / "run" / "events.ndjson"
    events = logged(tmp_path / "run")
    third = [e for e in events if isinstance(e, CaseDone)][2]
    kept = events[: events.index(third)]
    path.write_bytes(b"".join(map(encode_event, [*kept, msgspec.structs.replace(third, at=1.5)])))
    past = read_past(tmp_path / "run")
    assert past.elapsed == 1.5 and not past.complete
    again, summary = run(past.plan, past=past)
    assert summary.cases == 3 and summary.seconds >= 1.5, "no time was left"
    assert not any(isinstance(e, CaseDone) for e in again)


def test_an_entry_that_could_not_be_written_is_tried_again(quick: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fiafuzz.campaign.corpus as corpus_module

    quick()
    stop = StopFlag()
    plan = plan_in(tmp_path, mode="valid", phases=("bulk",))
    with monkeypatch.context() as patch:
        patch.setattr(corpus_module, "write_once", full)
        for event in run_campaign(plan, stop=stop):
            if isinstance(event, FindingKept):
                assert event.path is None
                stop.set("SIGINT")
    assert isinstance(event, RunFinished) and any("not in the corpus" in p for p in event.summary.problems)
    events, summary = resumed(tmp_path)
    assert not summary.problems and summary.status == "findings"
    assert all(f.path and Path(f.path).is_file() for f in summary.findings)
    numbers = [e.number for e in logged(tmp_path / "run") if isinstance(e, FindingKept)]
    first = [e.number for e in events if isinstance(e, FindingKept)]
    assert first[0] == 1 and numbers.count(1) == 2, "the finding keeps its number"


def full(*_: Any) -> Path:
    """No room on the disk."""
    raise OSError(28, "No space left on device")


def test_what_cannot_be_resumed_is_refused_in_one_line(quick: Install, tmp_path: Path) -> None:
    quick(nothing_is_wrong)
    stop = StopFlag()
    stop.set("SIGINT")
    list(run_campaign(plan_in(tmp_path, max_cases=20), stop=stop))
    path = tmp_path / "run" / "events.ndjson"
    good = path.read_bytes()

    def refusal(directory: Path = tmp_path / "run") -> str:
        with pytest.raises(ResumeError) as caught:
            read_past(directory)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "No such file" in refusal(tmp_path / "nowhere")
    path.write_bytes(good.replace(f'"version":"{__version__}"'.encode(), b'"version":"0.0.1"'))
    assert "made by fiafuzz 0.0.1" in refusal()
    path.write_bytes(good.replace(b'"mode":"all"', b'"mode":"al"'))
    assert "did you mean 'all'" in refusal()
    path.write_bytes(good)
    shutil.move(tmp_path / "corpus", tmp_path / "away")
    assert "is not here" in refusal()
    shutil.move(tmp_path / "away", tmp_path / "corpus")
    path.write_bytes(b"nonsense\n" * 3)
    os.remove(tmp_path / "run" / "run.json")
    assert "run.json" in refusal()


def test_another_build_is_refused_and_the_run_stays_resumable(quick: Install, tmp_path: Path) -> None:
    quick(nothing_is_wrong, {"torch": "1"})
    stop = StopFlag()
    plan = plan_in(tmp_path, max_cases=30, phases=("bulk",))
    for event in run_campaign(plan, stop=stop):
        if isinstance(event, CaseDone):
            stop.set("SIGINT")
    quick(nothing_is_wrong, {"torch": "2"})
    with pytest.raises(ResumeError, match="torch 1 -> 2"):
        resumed(tmp_path)
    quick(nothing_is_wrong, {"torch": "1"})
    assert not read_past(tmp_path / "run").complete
    _, summary = resumed(tmp_path)
    assert (summary.cases, summary.status) == (30, "clean")


def test_other_cases_than_in_the_log_are_refused(quick: Install, tmp_path: Path) -> None:
    quick(nothing_is_wrong)
    stop = StopFlag()
    for event in run_campaign(plan_in(tmp_path, max_cases=30, phases=("bulk",)), stop=stop):
        if isinstance(event, CaseDone) and event.n == 5:
            stop.set("SIGINT")
    path = tmp_path / "run" / "events.ndjson"
    last = [e for e in logged(tmp_path / "run") if isinstance(e, CaseDone)][-1]
    path.write_bytes(path.read_bytes().replace(last.digest.encode(), b"0123456789abcdef"))
    with pytest.raises(ResumeError, match="other cases now"):
        resumed(tmp_path)


def test_a_log_is_written_by_one_run_at_a_time(quick: Install, tmp_path: Path) -> None:
    quick(nothing_is_wrong)
    plan = plan_in(tmp_path, max_cases=20, phases=("bulk",))
    stream = run_campaign(plan)
    next(stream)
    with pytest.raises(RunDirError, match="a run is writing there right now"):
        run_campaign(plan)
    past = read_past(tmp_path / "run")
    with pytest.raises(RunDirError, match="a run is writing there right now"):
        run_campaign(past.plan, past=past)
    list(stream)
    with pytest.raises(RunDirError, match="changed while it was read"):
        run_campaign(past.plan, past=past)
    assert isinstance(logged(tmp_path / "run")[-1], RunFinished), "nothing was cut off"


def test_a_new_run_sets_the_log_of_an_old_one_aside(quick: Install, tmp_path: Path) -> None:
    quick(nothing_is_wrong)
    first, _ = run(plan_in(tmp_path, max_cases=6, phases=("explore", "bulk")))
    second, _ = run(plan_in(tmp_path, max_cases=6, phases=("explore", "bulk")))
    assert cases_of(first) == cases_of(second), "what the first has remembered does not change the second"
    assert cases_of(logged(tmp_path / "run")) == cases_of(second)
    aside = [decode_event(line) for line in (tmp_path / "run" / "events-1.ndjson").read_bytes().splitlines()]
    assert cases_of(aside) == cases_of(first)


def test_readers_of_a_log_with_two_runs_count_the_last(quick: Install, tmp_path: Path) -> None:
    quick(nothing_is_wrong)
    _, first = run(plan_in(tmp_path, max_cases=6, phases=("bulk",)))
    events, second = run(plan_in(tmp_path, max_cases=9, phases=("bulk",)))
    path = tmp_path / "run" / "events.ndjson"
    path.write_bytes((tmp_path / "run" / "events-1.ndjson").read_bytes() + path.read_bytes())
    assert summarise(logged(tmp_path / "run")).cases == 9 == read_run(tmp_path / "run").cases
    assert (first.cases, second.cases, len(cases_of(events))) == (6, 9, 9)


def test_the_effort_that_decides_what_is_looked_into_goes_on(quick: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is bound by cases alone decides by counted runs; a resumed one must count on."""
    quick()
    stop = StopFlag()
    for event in run_campaign(plan_in(tmp_path, mode="valid", phases=("bulk",)), stop=stop):
        if isinstance(event, FindingKept):
            stop.set("SIGINT")
    past = read_past(tmp_path / "run")
    (leg,) = past.legs.values()
    last = [e.effort for e in logged(tmp_path / "run") if isinstance(e, (CaseDone, FindingKept)) and e.effort][-1]
    assert leg.effort == last and last[0] >= last[2] > 0
    before, recalled = Effort.recall, []

    def recall(self: Effort, recorded: tuple[int, ...]) -> None:
        before(self, recorded)
        recalled.append(self.recorded)

    monkeypatch.setattr(Effort, "recall", recall)
    resumed(tmp_path)
    assert recalled == [last]


def test_killed_between_the_entry_and_its_event(quick: Install, whole: tuple[Path, list[Event]], tmp_path: Path) -> None:
    """The finding is in the corpus, and the log does not say so yet: it is still this run that has found it."""
    root, events = whole
    ends = [end for end, _ in log_lines(root / "run" / "events.ndjson")]
    to = tmp_path / "it"
    cut(root, to, ends[next(i for i, e in enumerate(events) if isinstance(e, FindingFound))])
    shutil.rmtree(to / "corpus")
    shutil.copytree(root / "corpus", to / "corpus")
    quick()
    resumed(to)
    same_as(whole, to)


@pytest.mark.parametrize("mode", ["all", "invalid", "disputed"])
def test_cases_far_into_the_bulk_phase_need_not_be_made_again(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proposals_module, "BLOCK", 12)
    plan = Plan(seed=3, mode=mode)
    whole = list(islice(proposals_module.proposals("bulk", plan, "950-v5"), 40))
    assert len({p.case.digest for p in whole}) > 30
    assert [proposals_module.skippable("bulk", n) for n in (0, 11, 12, 30)] == [0, 0, 12, 24]
    assert proposals_module.skippable("sweep", 30) == 0
    assert list(islice(proposals_module.proposals("bulk", plan, "950-v5", skip=24), 16)) == whole[24:]


def test_resuming_far_into_the_bulk_phase(quick: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proposals_module, "BLOCK", 12)
    quick()
    root = tmp_path / "whole"
    whole = (root, run(plan_in(root, phases=("bulk",), shrink_runs=8))[0])
    for number, length in enumerate(offsets(root, 21, 18)):
        cut(root, tmp_path / str(number), length)
        resumed(tmp_path / str(number))
        same_as(whole, tmp_path / str(number))
