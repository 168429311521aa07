"""History: what is new, back, known, fixed, flaky and unseen from run to run; flips, builds, the page."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fiafuzz.campaign.events import Disagreement, Event, Replayed, RunResumed, encode_event
from reports.history import MARKS, Row, compare, history
from reports.history_leg import LegRecord, RunRecord, Seen
from reports.history_page import history_page
from reports.run_data import RunError

from .run_logs import (
    NASTY,
    PROFILE,
    RULE,
    case,
    entry,
    finished,
    flaky,
    found,
    full_log,
    invalid,
    kept,
    leg,
    phase,
    phase_end,
    started,
    words,
    write_log,
)

A, B = entry(), entry("F201", RULE)


def night(folder: Path, day: int, *events: Event, versions: dict[str, str] | None = None, end: bool = True) -> Path:
    """The run of one night."""
    begin = [started(at=f"2026-03-{day:02d}T01:00:00+00:00"), leg(**(versions or {})), phase()]
    return write_log(folder / f"night{day}", [*begin, *events, phase_end(10, seconds=4.0)] if end else [*begin, *events], end=end)


def marked(row: Row) -> dict[str, list[str]]:
    """The ids under each mark that has any."""
    return {mark: [line.id for line in getattr(row, mark)] for mark in MARKS if getattr(row, mark)}


def test_the_life_of_a_finding(tmp_path: Path) -> None:
    paths = [
        night(tmp_path, 1, case(1)),
        night(tmp_path, 2, case(1, "finding"), kept(1, A)),
        night(tmp_path, 3, Replayed(entry=A.id, status="failing"), kept(1, A, new=False)),
        night(tmp_path, 4, case(1)),
        night(tmp_path, 5, Replayed(entry=A.id, status="flaky"), flaky()),
        night(tmp_path, 6, Replayed(entry=A.id, status="fixed")),
        night(tmp_path, 7, Replayed(entry=A.id, status="fixed")),
        night(tmp_path, 8, kept(1, A, new=False), kept(2, B, known="ISSUE-1")),
    ]
    rows = history(reversed(paths))
    assert [row.run for row in rows] == [f"night{day}" for day in range(1, 9)]
    assert [marked(row) for row in rows] == [
        {},
        {"new": [A.id]},
        {"known": [A.id]},
        {"unseen": [A.id]},
        {"flaky": [A.id]},
        {"fixed": [A.id]},
        {},
        {"back": [A.id], "known": [B.id]},
    ]
    assert [row.failing for row in rows] == [0, 1, 1, 0, 0, 0, 0, 2]
    assert rows[-1].known[0].issue == "ISSUE-1" and rows[1].new[0].reproduce.startswith("fiafuzz replay")


def test_a_finding_that_the_corpus_had_is_not_new(tmp_path: Path) -> None:
    (row,) = history([night(tmp_path, 1, kept(1, A, new=False))])
    assert marked(row) == {"known": [A.id]}
    # Another corpus, in which it is new, does not make it new again.
    rows = history([night(tmp_path, 1, kept(1, A)), night(tmp_path, 2, kept(1, A, new=True))])
    assert [marked(r) for r in rows] == [{"new": [A.id]}, {"known": [A.id]}]


def test_a_fixed_entry_in_the_first_run_counts_as_fixed(tmp_path: Path) -> None:
    (row,) = history([night(tmp_path, 1, Replayed(entry=A.id, status="fixed"), Replayed(entry=B.id, status="passing"))])
    assert marked(row) == {"fixed": [A.id]}


def test_backends_and_profiles_are_compared_apart(tmp_path: Path) -> None:
    for day, events in (
        (1, [started(("950-v5", "a3-v3"), at="2026-03-01T00:00:00+00:00"), leg(), kept(1, A), leg("cpu", "a3-v3"), case(1)]),
        (2, [started(("950-v5", "a3-v3"), at="2026-03-02T00:00:00+00:00"), leg("cpu", "a3-v3"), kept(1, A), leg(), case(1)]),
    ):
        write_log(tmp_path / f"n{day}", events)
    rows = history([tmp_path / "n1", tmp_path / "n2"])
    assert [(r.run, r.profile, marked(r)) for r in rows] == [
        ("n1", "950-v5", {"new": [A.id]}),
        ("n1", "a3-v3", {}),
        ("n2", "a3-v3", {"new": [A.id]}),
        ("n2", "950-v5", {"unseen": [A.id]}),
    ]


def test_flips_of_labels(tmp_path: Path) -> None:
    rows = history(
        [
            night(
                tmp_path, 1, invalid(1), invalid(2, "FIA-IF-002", agreed=False), Disagreement(rule="FIA-PA-007", side="document", text="")
            ),
            night(tmp_path, 2, case(1)),  # says nothing about these rules
            night(tmp_path, 3, invalid(1, agreed=False), invalid(2, "FIA-IF-002"), Disagreement(rule="FIA-PA-007", side="source", text="")),
            night(tmp_path, 4, invalid(1, agreed=False), invalid(2, "FIA-IF-002")),
        ]
    )
    assert [[(f.rule, f.before, f.after, f.since) for f in row.flips] for row in rows] == [
        [],
        [],
        [
            (RULE, "agreed", "disagreed", "night1"),
            ("FIA-IF-002", "disagreed", "agreed", "night1"),
            ("FIA-PA-007", "document", "source", "night1"),
        ],
        [],
    ]
    assert rows[2].flips[0].title


def test_wrong_values_do_not_flip_a_rule(tmp_path: Path) -> None:
    from fiafuzz.campaign.verdict import Verdict

    held = {"mode": "boundary", "rule": RULE, "side": "inside"}
    rows = history([night(tmp_path, 1, case(1, **held)), night(tmp_path, 2, case(1, verdict=Verdict("finding", "F101"), **held))])
    assert rows[1].flips == ()


def test_figures(tmp_path: Path) -> None:
    told = [case(n, factors=words(n), held=(RULE,) if n == 1 else ()) for n in range(1, 9)]
    (row,) = history([night(tmp_path, 1, *told, invalid(9), case(10, "skipped"), case(11, "unsupported"))])
    assert (row.cases, row.seconds, row.rate) == (9, 4.0, 2.25)
    from reports.frames import load_run

    coverage = load_run(tmp_path / "night1").coverage.set_index("t")
    assert (row.pairs_met, row.pairs) == (coverage.loc[2, "covered"], coverage.loc[2, "feasible"])
    rules = load_run(tmp_path / "night1").rules
    assert row.rules == (rules["state"] != "apart").sum() and row.rules_reached == rules["reached"].sum() == 1


def test_a_killed_run_lasts_until_its_last_event(tmp_path: Path) -> None:
    path = night(tmp_path, 1, case(1, at=3.5), found(1, at=5.0), end=False)
    (row,) = history([path])
    assert not row.complete and row.status == "incomplete" and row.seconds == 4.0
    assert [line.code for line in row.new] == ["F101"]  # found, though not kept


def test_a_resumed_run_is_one_run(tmp_path: Path) -> None:
    path = night(tmp_path, 1, kept(1, A))
    with open(path / "events.ndjson", "ab") as log:
        events: Sequence[Event] = [RunResumed(resumed="x", version="9", cases=0, findings=1), leg(), phase(at=20.0), case(1, at=21.0)]
        log.write(b"".join(encode_event(e) for e in events))
    (row,) = history([path])
    assert not row.complete and row.seconds == 5.0 and marked(row) == {"new": [A.id]}


def test_a_resumed_phase_tells_all_of_its_time(tmp_path: Path) -> None:
    again = RunResumed(resumed="x", version="9", cases=1, findings=0)
    log = [started(), leg(), phase(at=1.0), case(1, at=3.0), again, leg(), phase(at=3.0), case(2, at=6.0), phase_end(2, seconds=5.0)]
    (row,) = history([write_log(tmp_path / "n", log)])
    assert (row.cases, row.seconds) == (2, 5.0)


def test_a_log_of_two_runs_is_about_the_last(tmp_path: Path) -> None:
    log = [started(), leg(), kept(1, A), started(at="2026-03-05T00:00:00+00:00"), leg(), phase(), case(1)]
    (row,) = history([write_log(tmp_path / "n", log)])
    assert marked(row) == {} and row.cases == 1 and row.started.startswith("2026-03-05")


def test_names_of_builds(tmp_path: Path) -> None:
    def names(nights: list[dict[str, str]], labels: dict[str, str] | None = None) -> list[str]:
        paths = [night(tmp_path, day, case(1), versions=versions) for day, versions in enumerate(nights, 1)]
        return [row.build for row in history(paths, labels)]

    npu = {"torch": "2.7", "torch_npu": "2.7.1", "CANN": "9.1.RC1", "device": "0", "operators mine": "3"}
    assert names([npu]) == ["CANN 9.1.RC1, operators mine 3, torch_npu 2.7.1"]
    assert names([{"torch": "2.0", "numpy": "2.4"}, {"torch": "2.1", "numpy": "2.4"}]) == ["torch 2.0", "torch 2.1"]
    assert names([{"torch": "2.0"}, {"torch": "2.0"}]) == ["night1", "night2"]
    assert names([npu, npu], {"night2": "RC2"}) == ["CANN 9.1.RC1, operators mine 3, torch_npu 2.7.1", "RC2"]
    (tmp_path / "night1" / "run.json").write_text('{"build": "nightly 17", "plan": {}}')
    assert history([tmp_path / "night1"])[0].build == "nightly 17"
    for junk in ("{", "[]", '{"build": 5}', "\xff"):
        (tmp_path / "night1" / "run.json").write_text(junk, encoding="latin-1")
        assert history([tmp_path / "night1"])[0].build.startswith("CANN")


def test_no_log_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="nowhere"):
        history([tmp_path / "nowhere"])


@settings(max_examples=60, deadline=None)
@given(
    nights=st.lists(
        st.dictionaries(st.sampled_from(["F101-a", "F201-b", "F202-c"]), st.sampled_from(["fails", "passes", "flaky"])),
        min_size=1,
        max_size=9,
    )
)
def test_marks_follow_from_what_each_run_saw(nights: list[dict[str, str]]) -> None:
    """Against a small model: each finding by itself, with nothing but what was last known of it."""
    records = []
    for day, seen in enumerate(nights):
        record = RunRecord(Path(f"n{day}"), f"n{day}", f"2026-03-{day + 1:02d}")
        record.legs[("cpu", PROFILE)] = LegRecord(
            "cpu",
            PROFILE,
            failing={i: Seen(i, i[:4], "", new=True) for i, what in seen.items() if what == "fails"},
            passing={i: "passing" for i, what in seen.items() if what == "passes"},
            flaky={i: Seen(i, i[:4], "") for i, what in seen.items() if what == "flaky"},
        )
        records.append(record)
    rows = compare(records, {})
    last: dict[str, str] = {}
    for seen, row in zip(nights, rows):
        wanted: dict[str, set[str]] = {}
        for name in {*seen, *last}:
            now, before = seen.get(name), last.get(name)
            mark = {
                "fails": {None: "new", "fails": "known", "passes": "back"}[before],
                "passes": "fixed" if before == "fails" else None,
                "flaky": "flaky",
                None: "unseen" if before == "fails" else None,
            }[now]
            if mark:
                wanted.setdefault(mark, set()).add(name)
            if now in ("fails", "passes"):
                last[name] = str(now)
        assert {mark: set(ids) for mark, ids in marked(row).items()} == wanted


# ---- the page -------------------------------------------------------------------------------------------------------


def page_of(tmp_path: Path, *more: Event, **versions: str) -> str:
    """A page of three nights."""
    write_log(tmp_path / "full", full_log())
    paths = [tmp_path / "full", night(tmp_path, 2, *more, versions=versions), night(tmp_path, 3, kept(1, A), end=False)]
    return history_page(history(paths))


def test_the_page_needs_nothing_from_outside(tmp_path: Path) -> None:
    page = page_of(tmp_path, case(1))
    assert not re.search(r"<script|<link|<img|url\(|@import|https?:", page)
    (style,) = re.findall(r"<style>(.*?)</style>", page, re.S)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"style-src &#39;sha256-{digest}&#39;" in page or f"style-src 'sha256-{digest}'" in page
    assert "default-src" in page and "style=" not in page
    assert page.count("<svg") == 4 and page.count('role="img"') == 4 and "cases a second: from" in page


def test_the_page_escapes_what_is_foreign(tmp_path: Path) -> None:
    wrong = entry(title=NASTY, reproduce=NASTY)
    page = page_of(tmp_path, kept(1, wrong), torch=NASTY, opp='"><script>alert(1)</script>')
    assert "<script" not in page and "</script><b>" not in page and "&lt;/script&gt;" in page


def test_the_page_tells_what_changed(tmp_path: Path) -> None:
    page = page_of(tmp_path, kept(1, A, new=False), invalid(3), cann="9.2")
    assert A.id in page and "cann 9.2" in page and "Rules that changed sides" in page and 'scope="col"' in page


def test_a_page_without_a_run() -> None:
    assert "No run has begun" in history_page([])


def test_finished_counts_like_the_campaign(tmp_path: Path) -> None:
    events: list[Any] = [started(), leg(), phase(), case(1), kept(1, A)]
    assert finished(events).summary.status == "findings"
    assert history([write_log(tmp_path / "n", events)])[0].status == "findings"
