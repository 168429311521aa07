"""The HTML report: what it says, that nothing in it comes from elsewhere or runs, logs that end anywhere, several runs."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from lxml import html

from fiafuzz.campaign.corpus import Got
from fiafuzz.campaign.events import Event, Note, RunResumed, WorkerRestarted, decode_event
from fiafuzz.campaign.results import Element, Picture
from fiafuzz.campaign.triage import Signature
from fiafuzz.campaign.verdict import Foreseen, Verdict
from reports.html import html_report
from reports.html_data import BUCKETS, FAILING_LISTED, NOTABLE, Timeline, labels_of, view_run
from reports.html_findings import AGAIN, FIXED, FLAKY, KNOWN, NEW, OPEN, findings_of
from reports.html_verdict import headline
from reports.run_data import RunError

from .run_logs import NASTY, RULE, case, entry, finished, flaky, found, full_log, invalid, kept, leg, phase, started, words, write_log

BEGIN: Sequence[Event] = (started(), leg(torch="2.0"), phase())
MAP = Picture(
    "error", "attentionOut", "batch 0, query head 1", "query token", "element of the head", (3, 4), ("..9.", "0-.N", "U..1"), (0, 2)
)
MASK = Picture("mask", "attenMask", "batch 0", "query token", "key token", (3, 3), (".##", "..#", "+.-"))


def page_of(*runs: Path) -> Any:
    """The page, parsed."""
    return html.fromstring(html_report(runs).decode())


def text_of(element: Any) -> str:
    """Its text with single blanks."""
    return " ".join(" ".join(element.itertext()).split())


def said(tmp_path: Path, *events: Event, end: bool = True) -> str:
    """The sentence on top."""
    view = view_run(write_log(tmp_path / "run", [*BEGIN, *events], end=end), "run")
    return headline([view], findings_of([view])).text


# ---- the verdict ------------------------------------------------------------------------------------------------------


def test_clean(tmp_path: Path) -> None:
    assert said(tmp_path, case(1), invalid(2)) == "Clean: no finding in 2 cases."


def test_nothing_run(tmp_path: Path) -> None:
    log = write_log(tmp_path / "run", [*BEGIN, case(1, "skipped", got="")], end=False)
    with open(log / "events.ndjson", "ab") as file:
        from fiafuzz.campaign.events import encode_event

        end = finished([])
        summary = {**json.loads(encode_event(end)), "summary": {**json.loads(encode_event(end))["summary"], "status": "nothing"}}
        file.write(json.dumps(summary).encode() + b"\n")
    view = view_run(log, "run")
    assert headline([view], []).text == "Nothing was run."


def test_new_and_again(tmp_path: Path) -> None:
    other = entry("F201", RULE)
    first = [invalid(1, agreed=False), found(1, "F201", RULE), kept(1, other)]
    text = said(tmp_path, *first, case(2, "finding"), found(2), kept(2, entry(), new=False))
    assert text == "1 new finding in 2 cases, 1 again."


def test_again_is_neither_new_nor_known(tmp_path: Path) -> None:
    text = said(tmp_path, case(1, "finding"), found(1), kept(1, entry(), new=False))
    assert text == "1 finding again in 1 case, none of them new."


def test_known_by_an_issue_is_not_new(tmp_path: Path) -> None:
    assert said(tmp_path, case(1), kept(1, entry(), known="ISSUE-1")) == "No new finding in 1 case; 1 known."


def test_flaky(tmp_path: Path) -> None:
    assert said(tmp_path, case(1), flaky()) == "Clean: no finding in 1 case; 1 flaky."


def test_broken_says_why(tmp_path: Path) -> None:
    text = said(tmp_path, case(1), Note(level="problem", text="backend cpu: no worker starts"))
    assert text == "fiafuzz itself failed, the result does not count: backend cpu: no worker starts."


def test_partial_says_so(tmp_path: Path) -> None:
    text = said(tmp_path, case(1), end=False)
    assert text == "No finding so far in 1 case. Partial report: the log ends before the run did."
    text = said(tmp_path, case(1, verdict=Verdict("finding", "F302", text="hang")), found(1, "F302"), end=False)
    assert text.startswith("1 new finding in 1 case. Partial report")


def test_resumed_run_is_partial_again(tmp_path: Path) -> None:
    events = [*BEGIN, case(1)]
    resumed = RunResumed(resumed="2026-03-02", version="9", cases=1, findings=0)
    log = write_log(tmp_path / "run", [*events, finished(events), resumed, case(2)], end=False)
    view = view_run(log, "run")
    assert "Partial report" in headline([view], []).text and view.data.cases == 2


def test_a_log_of_two_runs_is_about_the_last(tmp_path: Path) -> None:
    log = write_log(tmp_path / "run", [*BEGIN, found(1), *BEGIN, case(1), case(2)], end=False)
    view = view_run(log, "run")
    assert view.data.cases == 2 and not findings_of([view]) and sum(view.outcomes.values()) == 2


# ---- what stands in the page ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The page of a run in which everything happens."""
    events = full_log()
    events[7:7] = [WorkerRestarted(worker=0, reason="killed by SIGSEGV")]
    return page_of(write_log(tmp_path_factory.mktemp("full") / "run", events))


def test_every_state_is_shown_with_words(full: Any) -> None:
    chips = [text_of(c) for c in full.xpath('//details[@data-state]//span[contains(@class, "chip")]')]
    states = {c.split()[1] for c in chips}
    assert states == {NEW, OPEN, AGAIN, FLAKY, KNOWN, FIXED}
    assert "● known (ISSUE-12)" in chips
    order = [d.get("data-state") for d in full.xpath('//details[contains(@class, "finding")]')]
    assert order == sorted(order, key=[NEW, OPEN, AGAIN, FLAKY, KNOWN, FIXED].index)


def test_finding_tells_what_a_person_needs(full: Any) -> None:
    finding = next(d for d in full.xpath('//details[@data-state="new"]') if "F201" in text_of(d))
    text = text_of(finding)
    assert "reject with 161001" in text and "accepted" in text
    assert RULE in text and "v5.interface.existence.query_not_null" in text and "line V5" in text
    assert finding.xpath('.//div[@class="line"]/code/text()')[0].startswith("fiafuzz replay F201-")
    assert json.loads(finding.xpath(".//pre/text()")[0])["fiafuzz"] == 1


def test_sections_and_headings(full: Any) -> None:
    ids = [s.get("id") for s in full.xpath("//main/section")]
    assert ids == ["findings", "rules", "combinations", "answers", "time", "cases", "environment"]
    for link in full.xpath('//a[starts-with(@href, "#")]'):
        assert full.xpath(f'//*[@id="{link.get("href")[1:]}"]'), link.get("href")
    for heading in full.xpath("//th"):
        assert heading.get("scope") in ("col", "row"), html.tostring(heading)
    for table in full.xpath("//table"):
        assert table.xpath("./thead/tr/th"), html.tostring(table)[:200]


def test_ids_are_unique(full: Any) -> None:
    ids = full.xpath("//@id")
    assert len(ids) == len(set(ids))


def test_rules_have_cites_and_states(full: Any) -> None:
    (row,) = [r for r in full.xpath('//details[@id="rules-0-interface"]//tbody/tr') if RULE in text_of(r.xpath("./th")[0])]
    assert row.get("data-state") == "disagreed" and "✗ disagreed" in text_of(row)
    assert "v5.interface.existence.query_not_null" in text_of(row) and "line V5" in text_of(row)
    rows = full.xpath('//div[@id="rule-list"]//tbody/tr')
    assert len(rows) > 350 and all("stated in" in text_of(r) for r in rows)


def test_matrix_of_answers(full: Any) -> None:
    table = full.xpath('//section[@id="answers"]//table')[0]
    columns = [text_of(c) for c in table.xpath("./thead/tr/th")][1:]
    rows = {text_of(r.xpath("./th")[0]): [text_of(c) for c in r.xpath("./td")] for r in table.xpath("./tbody/tr")}
    assert rows["accept"][columns.index("ok")] == "✗ 6 (1 ✗)"  # the hang of the log says "ok" in its field
    assert rows["accept"][columns.index("ok, F101")] == "✗ 3"
    assert rows["reject 161001"][columns.index("reject 161001")] == "✓ 1"
    assert rows["reject 161001"][columns.index("ok")] == "✗ 1"


def test_environment_and_restarts(full: Any) -> None:
    text = text_of(full.xpath('//section[@id="environment"]')[0])
    assert "torch 2.0" in text and "cann 9.1" in text and "seed 5" in text and "fiafuzz 9.9" in text
    assert "1 worker restart: killed by SIGSEGV" in text_of(full.xpath('//section[@id="time"]')[0])


def test_least_covered_pairs_come_first(full: Any) -> None:
    section = full.xpath('//section[@id="combinations"]')[0]
    assert "not met" in text_of(section)
    counts = [int(text_of(td)) for td in section.xpath('.//table[contains(@class, "sortable")]//td[contains(@class, "n")]')]
    assert counts == sorted(counts) and counts[0] == 0


# ---- nothing from outside runs or loads --------------------------------------------------------------------------------


def check_policy(page: Any, source: str) -> None:
    """One style, one script, both named in the policy by their hashes; nothing refers to anything outside."""
    policy = page.xpath('//meta[@http-equiv="Content-Security-Policy"]/@content')[0]
    assert policy.startswith("default-src 'none'; ")
    for tag in ("style", "script"):
        (text,) = re.findall(f"<{tag}>(.*?)</{tag}>", source, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
        assert len(page.xpath(f"//{tag}")) == 1
    assert "unsafe" not in policy
    assert not page.xpath("//@src | //@style | //@action | //link | //iframe | //object | //embed | //img | //base | //form")
    assert all(h.startswith("#") for h in page.xpath("//@href"))
    assert not [a for e in page.iter() if isinstance(e.tag, str) for a in e.attrib if a.startswith("on")]
    assert len(re.findall("<script>.*</script>", source, re.DOTALL)[0]) < 15_000


def test_policy(tmp_path: Path) -> None:
    source = html_report([write_log(tmp_path / "run", full_log())]).decode()
    check_policy(html.fromstring(source), source)


def test_markup_in_every_field_is_text(tmp_path: Path) -> None:
    pictures = (
        Picture("error", NASTY, NASTY, NASTY, NASTY, (2, 2), ("<b", '">'), (9, 9)),
        Picture(NASTY, "a", "b", "c", "d", (1, 1), (NASTY,)),
    )
    wrong = Verdict("finding", "F201", NASTY, NASTY)
    bad = entry(
        title=NASTY,
        differences=(NASTY,),
        environment={NASTY: NASTY},
        reproduce=NASTY,
        first_seen=NASTY,
        expected=Foreseen(NASTY, (1,), (NASTY,)),
        got=Got(NASTY, text=NASTY, worst=(Element(NASTY, (0,), "nan", "inf", 1.0),), pictures=pictures),
        signature=Signature(NASTY, "F101", NASTY, ((NASTY, NASTY),)),
        profile=NASTY,
    )
    events = [
        started(backends=(NASTY,), profiles=(NASTY,)),
        leg(backend=NASTY, profile=NASTY, torch=NASTY),
        leg(backend=NASTY),
        phase(NASTY),
        case(1, digest=NASTY, phase=NASTY, mode=NASTY, factors=NASTY, ratio=0.5),
        case(2, verdict=wrong, foreseen=NASTY, rule=NASTY, side=NASTY, rules=(NASTY,), got=NASTY, repeats=NASTY),
        case(3, verdict=Verdict("skipped", text=NASTY), got=""),
        case(4, verdict=Verdict(NASTY, NASTY, NASTY, NASTY)),
        found(1, backend=NASTY, profile=NASTY, pictures=pictures),
        kept(1, bad, known=NASTY, path=NASTY),
        found(2, NASTY, NASTY, backend=NASTY, profile=NASTY),
        Note(level=NASTY, text=NASTY),
        Note(level="problem", text=NASTY),
        WorkerRestarted(worker=0, reason=NASTY),
    ]
    source = html_report([write_log(tmp_path / NASTY.replace("/", "_"), events)]).decode()
    page = html.fromstring(source)
    check_policy(page, source)
    assert "</script><b>" not in source and source.count("</script>") == 1
    assert "&lt;/script&gt;&lt;b&gt;" in source
    assert not page.xpath("//b[starts-with(text(), '&%0A')]")
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202e]", source)


def test_hostile_pictures_stay_small(tmp_path: Path) -> None:
    huge = Picture("error", "attentionOut", "w", "r", "c", (1, 1), tuple("19" * 5000 for _ in range(5000)))
    log = write_log(tmp_path / "run", [*BEGIN, case(1, "finding"), kept(1, entry(got=Got("ok", pictures=(huge,))))])
    assert len(html_report([log])) < 1_000_000


def test_pictures_are_drawn_with_words(tmp_path: Path) -> None:
    log = write_log(tmp_path / "run", [*BEGIN, case(1, "finding"), found(1, pictures=(MAP, MASK)), kept(1, entry())])
    page = page_of(log)
    error, mask = page.xpath('//svg[@role="img" and contains(@class, "map")]')
    assert text_of(error.xpath("./title")[0]).startswith("attentionOut, batch 0, query head 1: 3 x 4; 6 cells inside its tolerance")
    assert "1 cells left unwritten" in text_of(error.xpath("./title")[0])
    assert error.xpath('./rect[@class="worst"]') and not mask.xpath('./rect[@class="worst"]')
    assert "3 cells masked" in text_of(mask.xpath("./title")[0])
    legend = [text_of(item) for item in page.xpath('//ul[@class="legend"]/li')]
    assert "masked" in legend and "not finite" in legend and "more than 1,000 times" in legend


def test_cells_of_a_picture_are_all_drawn(tmp_path: Path) -> None:
    log = write_log(tmp_path / "run", [*BEGIN, case(1, "finding"), found(1, pictures=(MAP,)), kept(1, entry())])
    (svg,) = page_of(log).xpath('//svg[contains(@class, "map")]')
    width = 18
    cells = sum(int(n) for path in svg.xpath("./g/path/@d") for n in re.findall(r"h(\d+)", path))
    cells += sum(int(n) // width for path in svg.xpath("./path/@d") for n in re.findall(r"h(\d+)v", path))
    assert cells == 12


# ---- logs that end anywhere -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["cut", "cut and garbage", "garbage in the middle"])
def test_logs_cut_at_any_byte(tmp_path: Path, damage: str) -> None:
    whole = b"".join((write_log(tmp_path / "whole", full_log()) / "events.ndjson").read_bytes().splitlines(keepends=True))
    path = tmp_path / "events.ndjson"
    offsets = sorted({*range(0, len(whole), 211), *range(0, 40), *range(len(whole) - 40, len(whole) + 1)})
    for offset in offsets:
        data = {
            "cut": whole[:offset],
            "cut and garbage": whole[:offset] + b'\xff\x00{"event":"CaseDone","n":[[[',
            "garbage in the middle": whole[:offset] + b"\x80\x00" + whole[offset:],
        }[damage]
        path.write_bytes(data)
        events, bad = [], 0
        for line in data.splitlines(keepends=True) if damage != "garbage in the middle" else data.split(b"\n"):
            try:
                events.append(decode_event(line))
            except Exception:
                bad += bool(line)
        view = view_run(path, "run")
        told = headline([view], findings_of([view])).text
        assert view.data.cases == sum(type(e).__name__ == "CaseDone" for e in events)
        ended = any(type(e).__name__ == "RunFinished" for e in events)
        assert ("Partial report" in told) == (not ended), (offset, told)
        assert (view.data.damaged_lines > 0) == (bad > 0)


@pytest.mark.parametrize("share", [0.0, 0.02, 0.35, 0.8, 0.999])
def test_pages_of_cut_logs(tmp_path: Path, share: float) -> None:
    log = write_log(tmp_path / "run", full_log())
    data = (log / "events.ndjson").read_bytes()
    (log / "events.ndjson").write_bytes(data[: int(share * len(data))])
    page = page_of(log)
    assert "Partial report" in text_of(page.xpath("//h1")[0])
    assert ("could not be read" in text_of(page.xpath("//header")[0])) == (share > 0)


def test_log_of_an_earlier_version(tmp_path: Path) -> None:
    log = write_log(tmp_path / "run", full_log())
    lines = [json.loads(line) for line in (log / "events.ndjson").read_text().splitlines()]
    for line in lines:
        for name in ("codes", "rules", "got", "got_code", "held", "place", "judged", "pictures", "known"):
            if line["event"] != "RunFinished":
                line.pop(name, None)
    (log / "events.ndjson").write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = page_of(log)
    assert "not recorded" in text_of(page.xpath('//section[@id="answers"]')[0])
    assert "line of the log" not in text_of(page)


def test_second_run_in_one_log_counts_alone(tmp_path: Path) -> None:
    first = [*BEGIN, case(1, "finding"), found(1), kept(1, entry()), phase()]
    view = view_run(write_log(tmp_path / "run", [*first, finished(first), *BEGIN, case(1)]), "run")
    assert headline([view], findings_of([view])).text == "Clean: no finding in 1 case."


def test_no_log(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="No such file"):
        html_report([tmp_path])


def test_cases_of_a_finding_are_counted_once(tmp_path: Path) -> None:
    """Kept under two profiles, and shown by three more cases: five in all."""
    more = [case(n, "finding", repeats=entry().id) for n in (2, 3, 5)]
    events = [*BEGIN, case(1, "finding"), found(1), kept(1, entry()), *more[:2], leg(profile="a2-v3"), case(4, "finding"), found(2)]
    view = view_run(write_log(tmp_path / "run", [*events, kept(2, entry(), new=False), more[2]]), "run")
    (finding,) = findings_of([view])
    assert (finding.cases, finding.state) == (5, NEW)


def test_replayed_finding_is_one_case(tmp_path: Path) -> None:
    events = [*BEGIN, case(1, "finding", mode="replay", repeats=entry().id), kept(1, entry(), new=False)]
    view = view_run(write_log(tmp_path / "run", events), "run")
    (finding,) = findings_of([view])
    assert (finding.cases, finding.state) == (1, AGAIN)


# ---- several runs -----------------------------------------------------------------------------------------------------


def test_several_runs_are_merged(tmp_path: Path) -> None:
    same, other = entry(), entry("F201", RULE)
    one = write_log(tmp_path / "a" / "run", [*BEGIN, case(1, "finding"), found(1), kept(1, same, new=False), invalid(2)])
    more = [invalid(2, agreed=False), found(2, "F201", RULE), kept(2, other)]
    two = write_log(tmp_path / "b" / "run", [*BEGIN, case(1, "finding"), found(1), kept(1, same), *more])
    part = write_log(tmp_path / "c" / "run", [*BEGIN, case(1)], end=False)
    page = page_of(one, two, part)
    assert text_of(page.xpath("//h1")[0]) == "2 new findings in 5 cases of 3 runs; 1 of 3 logs end before their run did."
    merged = next(d for d in page.xpath('//details[contains(@class, "finding")]') if same.id in text_of(d))
    assert merged.get("data-state") == "new" and "2 cases" in text_of(merged)
    assert "runs a/run, b/run" in text_of(merged)
    rows = [text_of(r) for r in page.xpath('//section[@id="runs"]//tbody/tr')]
    assert [r.split()[0] for r in rows] == ["a/run", "b/run", "c/run"] and "partial" in rows[2]
    (row,) = [r for r in page.xpath('//details[@id="rules-0-interface"]//tbody/tr') if RULE in text_of(r.xpath("./th")[0])]
    assert [text_of(td) for td in row.xpath("./td")][-2:] == ["1", "1"]
    ids = page.xpath("//@id")
    assert len(ids) == len(set(ids))


def test_many_legs_list_only_what_is_left_to_do(tmp_path: Path) -> None:
    events: list[Event] = [started()]
    for number in range(20):
        events += [leg(backend=f"cpu{number}"), phase(backend=f"cpu{number}"), case(2 * number + 1, held=(RULE,))]
        events += [invalid(2 * number + 2, agreed=number > 0)]
    page = page_of(write_log(tmp_path / "run", events))
    assert "only these rules are listed: disagreed" in text_of(page)
    assert not page.xpath('//div[@id="rule-list"]//tr[@data-state="exercised"]')
    assert len(page.xpath('//table[contains(@class, "heat")]/thead/tr/th')) == 21
    assert len(html.tostring(page)) < 8_000_000


def test_labels() -> None:
    assert labels_of([Path("a/run"), Path("b/run")]) == ["a/run", "b/run"]
    assert labels_of([Path("x/one"), Path("x/two")]) == ["one", "two"]
    assert labels_of([Path("only")]) == ["only"]


# ---- scale ------------------------------------------------------------------------------------------------------------


def test_size_does_not_grow_with_the_cases(tmp_path: Path) -> None:
    texts = [words(n) for n in range(8)]

    def log(count: int) -> bytes:
        events: list[Event] = [*BEGIN, case(1, "finding", ratio=2.0, factors=texts[0]), found(1), kept(1, entry())]
        for n in range(2, count):
            told: dict[str, Any] = {"factors": texts[n % 8], "ratio": (n % 97) / 100, "at": n / 50}
            if n % 5 == 0:
                told |= {"verdict": Verdict("finding", "F101", text="off"), "repeats": entry().id}
            events.append(case(n, **told))
        return html_report([write_log(tmp_path / str(count), events)])

    small, large = log(2_000), log(8_000)
    assert len(large) < 1.05 * len(small)
    page = html.fromstring(large.decode())
    assert len(page.xpath('//div[starts-with(@id, "failing-")]//tbody/tr')) == FAILING_LISTED
    assert f"the first {FAILING_LISTED} of 1,600" in text_of(page.xpath('//section[@id="cases"]')[0])


def test_notable_cases(tmp_path: Path) -> None:
    cases = [case(n, ratio=(n * 37 % 101) / 101, seconds=(n * 53 % 103) / 10) for n in range(1, 101)]
    view = view_run(write_log(tmp_path / "run", [*BEGIN, *cases]), "run")
    by_ratio, by_time = sorted(cases, key=lambda c: -c.ratio), sorted(cases, key=lambda c: -c.seconds)
    assert [e.n for e in view.nearest_misses] == [c.n for c in by_ratio[:NOTABLE]]
    assert [e.n for e in view.slowest] == [c.n for c in by_time[:NOTABLE]]


def test_timeline_keeps_every_case() -> None:
    line = Timeline()
    for n in range(5000):
        line.add(n * 0.37, "sweep" if n < 100 else "bulk")
    line.add(float("nan"), "bulk")
    line.add(-1.0, "bulk")
    assert sum(sum(b.values()) for b in line.buckets) == 5000
    assert len(line.buckets) <= BUCKETS and line.width * len(line.buckets) >= 4999 * 0.37
    assert line.buckets[0]["sweep"] and line.phases == ["sweep", "bulk"]
