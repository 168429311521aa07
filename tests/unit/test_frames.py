"""The data frames of a run: columns, counts, partial and damaged logs, CSV and Parquet."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fiafuzz
from fiafuzz.campaign.events import RunResumed, encode_event
from reports.coverage import rule_coverage
from reports.formats import FORMATS, MissingExtra
from reports.frame_columns import FACTOR, FRAMES
from reports.frames import load_run
from reports.run_data import RunError, read_events
from reports.tables import csv_tables, harmless, joined, parquet_tables
from reports.tway import Coverage

from .run_logs import NASTY, PROFILE, RULE, case, entry, full_log, full_log_bytes, kept, leg, phase, started, words, write_log


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_log(tmp_path_factory.mktemp("frames") / "run", full_log())


def test_columns_are_as_documented(run: Path) -> None:
    for name, frame in load_run(run).frames().items():
        wanted = {column: dtype for column, (dtype, _) in FRAMES[name].items()}
        assert {c: str(frame[c].dtype) for c in frame.columns if not c.startswith(FACTOR)} == wanted, name
    factors = [c for c in load_run(run).cases.columns if c.startswith(FACTOR)]
    assert factors == [FACTOR + name for name in started().factors]


def test_an_empty_log_has_the_same_columns(tmp_path: Path, run: Path) -> None:
    empty = load_run(write_log(tmp_path / "run", [], end=False))
    assert not empty.complete and empty.started is None
    for name, frame in empty.frames().items():
        assert len(frame) == 0
        assert list(frame.columns) == list(load_run(run).frames()[name].columns)


def test_cases(run: Path) -> None:
    cases = load_run(run).cases.set_index("n")
    assert len(cases) == 13 and list(cases.index) == list(range(1, 14))
    assert cases.loc[6, "code"] == "F201" and cases.loc[6, "about"] == RULE and cases.loc[6, "due"] == "161001"
    assert cases.loc[5, "got"] == "reject" and cases.loc[5, "got_code"] == "161001" and cases.loc[5, "breaks"] == RULE
    assert pd.isna(cases.loc[1, "code"]) and pd.isna(cases.loc[1, "due"]) and cases.loc[1, "compared"] == 100
    assert cases.loc[8, "repeats"] == entry().id and cases.loc[7, "ratio"] == 3.5
    assert cases.loc[12, "text"] == NASTY
    assert set(cases["backend"]) == {"cpu"} and set(cases["profile"]) == {PROFILE}
    given_words = dict(zip(started().factors, words(2).split("|")))
    assert {name: cases.loc[3, FACTOR + name] for name in given_words} == given_words
    assert pd.isna(cases.loc[8, FACTOR + "layout"])


def test_verdicts_count_the_cases(run: Path) -> None:
    loaded = load_run(run)
    verdicts = loaded.verdicts
    assert verdicts["cases"].sum() == 13 and verdicts["compared"].sum() == 400
    assert verdicts.loc[verdicts["status"] == "finding", "cases"].sum() == 5
    assert dict(verdicts.groupby("status", observed=True)["cases"].sum()) == loaded.summary.verdicts


def test_rules_are_those_of_rule_coverage(run: Path) -> None:
    rules = load_run(run).rules.set_index("rule")
    use = rule_coverage(read_events(run)).legs[("cpu", PROFILE)].rules[RULE]
    row = rules.loc[RULE]
    assert (
        (row["alone"], row["agreed"], row["disagreed"], row["held_by"]) == (use.alone, use.agreed, use.disagreed, use.held) == (2, 1, 1, 1)
    )
    assert row["state"] == "disagreed" and row["findings"] == 1 and row["sides"] == "absent=2" and row["reached"]
    assert row["group"] == "interface" and row["cites"] and row["lines"]
    others = rules.drop(RULE)
    assert len(others) > 300 and not others["reached"].any()


def test_coverage_counts_accepted_calls_that_were_run(run: Path) -> None:
    coverage = load_run(run).coverage
    again = Coverage(PROFILE)
    for index in (0, 1, 2, 3, 5):
        again.add(dict(zip(started().factors, words(index).split("|"))))
    assert list(coverage["covered"]) == [s.covered for s in again.shares()]
    assert list(coverage["feasible"]) == [s.feasible for s in again.shares()]
    assert list(coverage["cases"]) == [5, 5, 5]


def test_findings(run: Path) -> None:
    findings = load_run(run).findings
    states = dict(zip(findings["id"].fillna(""), findings["state"]))
    assert states[entry("F201", RULE).id] == "new" and states[entry().id] == "known"
    assert states["F105-00000000cc"] == "flaky" and states["F202-00000000aa"] == "fixed"
    assert sorted(findings["state"]) == ["fixed", "flaky", "flaky", "known", "known", "new", "open"]
    by_id = findings.set_index("id")
    assert by_id.loc[entry().id, "cases"] == 2 and by_id.loc[entry("F201", RULE).id, "expected_codes"] == "161001"
    assert list(findings.loc[findings["issue"].notna(), "issue"]) == ["ISSUE-12"]
    (open_one,) = findings.loc[findings["state"] == "open"].to_dict("records")
    assert open_one["code"] == "F302" and pd.isna(open_one["id"])


def test_a_replayed_entry_counts_its_case_once(tmp_path: Path) -> None:
    old = entry()
    log = [
        started(),
        leg(),
        phase("replay"),
        case(1, "finding", repeats=old.id),
        kept(1, old, new=False),
        case(2, "finding", repeats=old.id),
    ]
    findings = load_run(write_log(tmp_path / "run", log)).findings
    assert list(findings["cases"]) == [2]


def test_several_legs_and_a_resumed_run(tmp_path: Path) -> None:
    first = [started(("950-v5", "a3-v3"), ("cpu", "torch-sdpa")), leg(), phase(), case(1)]
    rest = [RunResumed(resumed="2026-03-01T02:00:00+00:00", version="9.9", cases=1, findings=0), leg(), phase(), case(2)]
    other = [leg("torch-sdpa", "a3-v3"), phase("bulk", "torch-sdpa", "a3-v3"), case(3)]
    path = write_log(tmp_path / "run", first)  # with an end that was none
    with open(path / "events.ndjson", "ab") as log:
        log.write(b"".join(encode_event(e) for e in [*rest, *other]))
    loaded = load_run(path)
    assert list(loaded.cases["n"]) == [1, 2, 3] and not loaded.complete
    assert list(loaded.cases["profile"]) == ["950-v5", "950-v5", "a3-v3"]
    assert [(x.backend, x.profile) for x in loaded.legs] == [("cpu", "950-v5"), ("torch-sdpa", "a3-v3")]
    assert set(loaded.rules["profile"]) == {"950-v5", "a3-v3"}


def test_a_log_of_two_runs_is_about_the_last(tmp_path: Path) -> None:
    log = [started(), leg(), phase(), case(1), kept(1, entry()), started(), leg("torch-sdpa"), phase(), case(1), case(2)]
    loaded = load_run(write_log(tmp_path / "run", log))
    assert list(loaded.cases["n"]) == [1, 2] and len(loaded.findings) == 0 and [x.backend for x in loaded.legs] == ["torch-sdpa"]


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_log_cut_anywhere_gives_what_it_holds(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    whole = full_log_bytes()
    cut = whole[: data.draw(st.integers(0, len(whole)))]
    folder = tmp_path_factory.mktemp("cut")
    (folder / "events.ndjson").write_bytes(cut)
    loaded = load_run(folder)
    lines = whole.split(b"\n")[: cut.count(b"\n")]
    # A last line that lacks only its line end is whole, too.
    lines += [cut.rsplit(b"\n", 1)[-1]] if cut.rsplit(b"\n", 1)[-1] in whole.split(b"\n") else []
    assert len(loaded.cases) == sum(b'"CaseDone"' in line for line in lines)
    assert loaded.complete == any(b'"RunFinished"' in line for line in lines)
    assert loaded.verdicts["cases"].sum() == len(loaded.cases)
    assert len(loaded.findings) <= 7


@settings(max_examples=25, deadline=None)
@given(junk=st.binary(min_size=1, max_size=60), place=st.floats(0, 1))
def test_random_bytes_in_a_log_cost_at_most_their_lines(tmp_path_factory: pytest.TempPathFactory, junk: bytes, place: float) -> None:
    whole = full_log_bytes()
    at = int(place * (len(whole) - len(junk)))
    (folder := tmp_path_factory.mktemp("junk")).joinpath("events.ndjson").write_bytes(whole[:at] + junk + whole[at + len(junk) :])
    loaded = load_run(folder)
    assert len(loaded.cases) >= 13 - 2 - junk.count(b"\n") - whole[at : at + len(junk)].count(b"\n")
    assert loaded.verdicts["cases"].sum() == len(loaded.cases) and len(loaded.findings) <= 7


def test_no_log_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(RunError) as error:
        load_run(tmp_path / "nowhere")
    assert "nowhere" in str(error.value) and "\n" not in str(error.value)


def test_numbers_out_of_range_and_unknown_names_are_data(tmp_path: Path) -> None:
    log = [
        started(("no-such-profile",)),
        leg("b", "no-such-profile"),
        case(1 << 70, compared=1 << 66, factors="a|b", rule="FIA-XX-999", side="x"),
    ]
    loaded = load_run(write_log(tmp_path / "run", log))
    assert loaded.cases.loc[0, "n"] == np.iinfo(np.int64).max
    assert list(loaded.rules["rule"]) == ["FIA-XX-999"] and len(loaded.coverage) == 0


def test_many_cases_take_little_memory(tmp_path: Path) -> None:
    told = [words(i) for i in range(20)]
    log = [started(), leg(), phase(), *(case(n + 1, factors=told[n % 20]) for n in range(5000))]
    cases = load_run(write_log(tmp_path / "run", log)).cases
    assert cases.memory_usage(deep=True).sum() / len(cases) < 250


# ---- as files --------------------------------------------------------------------------------------------------------


def test_csv_reads_back(run: Path) -> None:
    loaded = load_run(run)
    tables = {name: pd.read_csv(io.BytesIO(data)) for name, data in csv_tables(loaded.frames()).items()}
    assert set(tables) == {f"{name}.csv" for name in FRAMES}
    for name, frame in loaded.frames().items():
        assert list(tables[f"{name}.csv"].columns) == list(frame.columns) and len(tables[f"{name}.csv"]) == len(frame)
    assert list(tables["cases.csv"]["n"]) == list(loaded.cases["n"])
    assert tables["cases.csv"].loc[11, "text"].startswith("'=cmd")


FORMULAS = ("=", "+", "-", "@", "\t", "\r", "\n", "|", "%")


@settings(max_examples=80, deadline=None)
@given(
    texts=st.lists(st.one_of(st.text(max_size=12), st.builds("{}{}".format, st.sampled_from(FORMULAS), st.text(max_size=6))), min_size=1)
)
def test_no_text_cell_is_a_formula(texts: list[str]) -> None:
    frame = pd.DataFrame({"=text": pd.array(texts, dtype="string"), "word": pd.Categorical(texts), "number": [-1.5] * len(texts)})
    found = harmless(frame)
    assert list(found["number"]) == [-1.5] * len(texts) and found.columns[0] == "'=text"
    for column in ("'=text", "word"):
        for text, cell in zip(texts, found[column]):
            assert not cell.lstrip(" ").startswith(FORMULAS)
            assert all(c.isprintable() or c == "\n" for c in cell)
            assert not text.isprintable() or cell in (text, f"'{text}")
    csv_tables({"x": frame})["x.csv"].decode("utf-8")


def test_parquet_reads_back(run: Path) -> None:
    pytest.importorskip("pyarrow", reason="needs pyarrow")
    loaded = load_run(run)
    tables = parquet_tables(loaded.frames())
    for name, frame in loaded.frames().items():
        again = pd.read_parquet(io.BytesIO(tables[f"{name}.parquet"]))
        assert list(again.columns) == list(frame.columns) and len(again) == len(frame), name
    cases = pd.read_parquet(io.BytesIO(tables["cases.parquet"]))
    assert isinstance(cases["status"].dtype, pd.CategoricalDtype) and list(cases["text"].dropna())[-2] == NASTY


def test_parquet_without_pyarrow(monkeypatch: pytest.MonkeyPatch, run: Path) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setattr("reports.formats.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"pip install 'fiafuzz\[parquet\]'"):
        FORMATS["parquet"].make([run])
    with pytest.raises(MissingExtra, match=r"pip install 'fiafuzz\[parquet\]'"):
        FORMATS["parquet"].check()
    FORMATS["csv"].check()


def test_files_are_written_whole(run: Path, tmp_path: Path) -> None:
    paths = load_run(run).to_csv(tmp_path / "tables")
    assert [p.name for p in paths] == [f"{name}.csv" for name in FRAMES]
    FORMATS["csv"].save([run], tmp_path / "again")
    assert {p.name: p.read_bytes() for p in paths} == {p.name: p.read_bytes() for p in (tmp_path / "again").iterdir()}


def test_several_runs_lie_one_below_the_other(run: Path, tmp_path: Path) -> None:
    other = write_log(tmp_path / "other", [started(), leg(), phase(), case(1)])
    frames = joined([load_run(run), load_run(other)])
    assert frames["cases"].columns[0] == "run" and len(frames["cases"]) == 14
    assert list(frames["cases"]["run"])[-1] == "other" and isinstance(frames["cases"]["status"].dtype, pd.CategoricalDtype)
    assert FORMATS["csv"].make([run, other])["cases.csv"].count(b"\n") >= 15


def test_load_run_is_loaded_when_it_is_asked_for() -> None:
    assert fiafuzz.load_run is load_run
    with pytest.raises(AttributeError, match="no_such_thing"):
        fiafuzz.no_such_thing  # noqa: B018
    code = "import sys, fiafuzz; assert not {'pandas', 'torch', 'reports'} & set(sys.modules); assert callable(fiafuzz.load_run)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# ---- logs of strangers -----------------------------------------------------------------------------------------------


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "events.ndjson")
    with pytest.raises(RunError, match="not a regular file"):
        load_run(tmp_path)
    with pytest.raises(RunError, match="not a regular file"):
        load_run("/dev/zero")


def test_a_line_without_end_is_one_damaged_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reports.run_data.MAX_LINE_BYTES", 4096)
    path = write_log(tmp_path / "run", [started(), leg(), case(1)], end=False)
    with open(path / "events.ndjson", "ab") as log:
        log.write(b'{"event":"CaseDone","x":"' + b"y" * 20_000 + b'"}\n' + encode_event(case(2)))
    loaded = load_run(path)
    assert list(loaded.cases["n"]) == [1, 2] and loaded.damaged_lines == 1
