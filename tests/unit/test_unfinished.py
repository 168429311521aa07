"""A finding that was kept before it was shrunk, since the run was asked to stop: the corpus, and everything that reads logs, has it
until the resumed run has shrunk it, and then what came of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fiafuzz.campaign.corpus import Corpus, Entry, content_of, decode_entry, encode_entry
from fiafuzz.campaign.corpus_merge import Source, sources_of
from fiafuzz.campaign.events import Event, FindingRepeated, RunResumed
from fiafuzz.campaign.tally import summarise
from fiafuzz.campaign.triage import Signature
from fiafuzz.campaign.unfinished import Unfinished, whose
from fiafuzz.campaign.verdict import Verdict
from reports.finding_list import findings_of
from reports.history_leg import read_record
from reports.html_data import RunView
from reports.run_data import gather

from .run_logs import case, entry, found, kept, leg, phase, phase_end, started, write_log

BEGAN = "2026-03-01T01:00:00+00:00"
ROUGH = entry(signature=Signature("cpu", "F101", None, (("mask", "BOOL"), ("pse", "bias"))), interrupted=True, original="00aa")
SMALL = entry(original="00aa")
OTHER = entry("F103", original="00bb")


def run_of(*end: Event) -> list[Event]:
    """A run that was asked to stop while it shrank its second finding, and what came after that."""
    failed = Verdict("finding", "F101", text="it is off")
    return [
        started(), leg(), phase(), case(1, verdict=Verdict("finding", "F103")), found(1, "F103"), kept(1, OTHER), case(2, verdict=failed),
        found(2), msgspec.structs.replace(kept(2, ROUGH), interrupted=True), phase_end(2), *end,
    ]


def resumed(*end: Event) -> list[Event]:
    """The same run, gone on with."""
    return run_of(RunResumed(resumed=BEGAN, version="1", cases=2, findings=2), leg(), *end)


def by_summary(events: list[Event], folder: Path) -> set[str]:
    return {line.id for line in summarise(events).findings}


def by_list(events: list[Event], folder: Path) -> set[str]:
    return {finding.id for finding in findings_of(gather(events))}


def by_history(events: list[Event], folder: Path) -> set[str]:
    (record,) = read_record(write_log(folder, events)).legs.values()
    return set(record.failing)


def by_page(events: list[Event], folder: Path) -> set[str]:
    view = RunView("run", "run")
    for event in events:
        view.add(event)
    return {entry_id for _, entry_id in view.timeline.marks}


def by_frame(events: list[Event], folder: Path) -> set[str]:
    pytest.importorskip("pandas")
    from reports.frames import load_run

    return set(load_run(write_log(folder, events)).findings["id"])


def by_merge(events: list[Event], folder: Path) -> set[str]:
    return {source.entry.id for source in sources_of(write_log(folder, events)) if isinstance(source, Source)}


@pytest.mark.parametrize("read", [by_summary, by_list, by_history, by_page, by_frame, by_merge])
def test_what_reads_logs_takes_the_last_word(read: Callable[[list[Event], Path], set[str]], tmp_path: Path) -> None:
    ends: dict[str, tuple[list[Event], set[str]]] = {
        "not resumed": (run_of(), {OTHER.id, ROUGH.id}),
        "shrunk": (resumed(kept(2, SMALL)), {OTHER.id, SMALL.id}),
        "a repeat": (resumed(FindingRepeated(number=2, entry=OTHER.id)), {OTHER.id}),
        "stopped again": (resumed(msgspec.structs.replace(kept(2, SMALL), interrupted=True)), {OTHER.id, SMALL.id}),
    }
    for name, (events, wanted) in ends.items():
        assert read(events, tmp_path / name) == wanted, name


def test_an_entry_says_that_it_is_unfinished() -> None:
    assert decode_entry(encode_entry(ROUGH)) == ROUGH
    assert b"interrupted" not in encode_entry(SMALL)
    assert content_of(ROUGH) == content_of(msgspec.structs.replace(ROUGH, interrupted=False))


def names(root: Path) -> dict[str, Entry]:
    """The files of a corpus."""
    return {path.name: found for path, found in Corpus(root).files() if isinstance(found, Entry)}


def unfinished(root: Path, told: list[Entry] | None = None, **run: Any) -> Unfinished:
    """Those of the run, found again."""
    return Unfinished(Corpus(root), **{"seed": 5, "began": BEGAN, **run}, told=[] if told is None else told)


def test_what_takes_its_place_is_there_before_it_goes(tmp_path: Path) -> None:
    Unfinished(Corpus(tmp_path), 5, BEGAN).keep(ROUGH)
    again = unfinished(tmp_path, [ROUGH])
    again.keep(SMALL)
    assert names(tmp_path) == {f"{ROUGH.id}.json": ROUGH, f"{SMALL.id}.json": SMALL}
    again.settle(whose(SMALL))
    assert names(tmp_path) == {f"{SMALL.id}.json": SMALL}
    again.settle(whose(SMALL))
    assert names(tmp_path) == {f"{SMALL.id}.json": SMALL}


def test_the_same_signature_takes_its_place_at_once(tmp_path: Path) -> None:
    rough = msgspec.structs.replace(SMALL, interrupted=True, runs=3)
    Unfinished(Corpus(tmp_path), 5, BEGAN).keep(rough)
    again = unfinished(tmp_path)
    again.keep(SMALL)
    again.settle(whose(SMALL))
    assert names(tmp_path) == {f"{SMALL.id}.json": SMALL}


@pytest.mark.parametrize("run", [{"seed": 6}, {"began": "2026-03-01T01:00:01+00:00"}, {"told": [msgspec.structs.replace(ROUGH, runs=99)]}])
def test_those_of_others_stay(tmp_path: Path, run: dict[str, Any]) -> None:
    """Another seed, another start, another content than the log has."""
    Unfinished(Corpus(tmp_path), 5, BEGAN).keep(ROUGH)
    unfinished(tmp_path, **run).settle(whose(ROUGH))
    assert names(tmp_path) == {f"{ROUGH.id}.json": ROUGH}


def test_a_finding_of_another_run_is_kept_beside_it(tmp_path: Path) -> None:
    """Else it would be lost with the unfinished one."""
    rough = msgspec.structs.replace(SMALL, interrupted=True)
    Unfinished(Corpus(tmp_path), 5, BEGAN).keep(rough)
    mine = msgspec.structs.replace(SMALL, seed=9, original="00cc")
    Unfinished(Corpus(tmp_path), 9, BEGAN).keep(mine)
    unfinished(tmp_path, [rough]).settle(whose(rough))
    assert list(names(tmp_path).values()) == [mine]
    with pytest.raises(FileExistsError):
        Corpus(tmp_path).put("found", next(iter(names(tmp_path))), mine)


def test_one_that_people_keep_counts_as_there(tmp_path: Path) -> None:
    Corpus(tmp_path).put("regressions", f"{SMALL.id}.json", msgspec.structs.replace(SMALL, interrupted=True))
    with pytest.raises(FileExistsError):
        Unfinished(Corpus(tmp_path), 5, BEGAN).keep(SMALL)
