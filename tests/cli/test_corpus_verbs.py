"""fiafuzz corpus, fuzz --resume, known issues and baselines as command lines."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fiafuzz.campaign.corpus import encode_entry
from tests.robustness.plugin import install
from tests.unit.kept_entries import entry_of

from .conftest import ROOT, Ran, fiafuzz_in

Run = Callable[..., Ran]
WRONG, RIGHT = "nasty-wrong-shape", "nasty-good"


def corpus_in(path: Path) -> Path:
    """A small corpus."""
    found = path / "found"
    found.mkdir(parents=True)
    for entry in (entry_of(), entry_of("F104")):
        (found / f"{entry.id}.json").write_bytes(encode_entry(entry))
    return path


def test_list_and_show(fiafuzz: Run, tmp_path: Path) -> None:
    corpus_in(tmp_path / "corpus")
    ran = fiafuzz("corpus", "list")
    assert ran.code == 0 and entry_of().id in ran.out and "2 entries in corpus" in ran.err and len(ran.out.splitlines()) == 2
    data = json.loads(fiafuzz("corpus", "list", "--json").out)
    assert [e["id"] for e in data["entries"]] == sorted([entry_of().id, entry_of("F104").id]) and data["unreadable"] == []
    ran = fiafuzz("corpus", "show", entry_of().id)
    assert ran.code == 0 and "expected   accept" in ran.out and "reproduce" in ran.out
    assert json.loads(fiafuzz("corpus", "show", entry_of().id, "--json").out)["fiafuzz_entry"] == 1
    ran = fiafuzz("corpus", "show", "F101-0000000000")
    assert ran.code == 2 and "neither a file nor an entry" in ran.complaint
    assert "no such corpus" in fiafuzz("corpus", "list", "--corpus", "none").complaint


def test_verify(fiafuzz: Run, tmp_path: Path) -> None:
    found = corpus_in(tmp_path / "corpus") / "found"
    assert fiafuzz("corpus", "verify").code == 0
    (found / "a\x1b[31m.txt").write_text("")
    ran = fiafuzz("corpus", "verify")
    assert ran.code == 1 and ran.out.startswith("stray file") and "\x1b" not in ran.out
    (found / "half.json").write_text("{")
    ran = fiafuzz("corpus", "verify", "--json")
    data = json.loads(ran.out)
    assert ran.code == 2 and data["good"] == 2 and {t["kind"] for t in data["troubles"]} == {"stray file", "unreadable"}


def test_merge_and_min(fiafuzz: Run, tmp_path: Path) -> None:
    corpus_in(tmp_path / "a")
    other = entry_of(seed=5)
    (tmp_path / "b" / "found").mkdir(parents=True)
    (tmp_path / "b" / "found" / f"{other.id}.json").write_bytes(encode_entry(other))
    ran = fiafuzz("corpus", "merge", "a", "b")
    assert ran.code == 0 and "2 added, 1 kept apart" in ran.err and "apart  corpus/found/" in ran.out
    assert "3 there already" in fiafuzz("corpus", "merge", "a", "b").err
    (tmp_path / "b" / "found" / "bad.json").write_text("{")
    ran = fiafuzz("corpus", "merge", "b", "nowhere.json", "--json")
    assert ran.code == 2 and json.loads(ran.out)["counts"] == {"there": 1, "bad": 2}
    assert len([line for line in ran.err.splitlines() if line.startswith("fiafuzz: ")]) == 2
    assert fiafuzz("corpus", "merge", "corpus").code == 2

    assert "say what to do" in fiafuzz("corpus", "min").complaint
    ran = fiafuzz("corpus", "min", "--dry-run")
    assert ran.code == 0 and "1 redundant" in ran.err
    assert len(os.listdir(tmp_path / "corpus" / "found")) == 3, "nothing is lost without being asked"
    assert fiafuzz("corpus", "min", "--into", "small").code == 0
    assert len(os.listdir(tmp_path / "small" / "found")) == 2
    ran = fiafuzz("corpus", "min", "--in-place", "--json")
    assert ran.code == 0 and len(json.loads(ran.out)["redundant"]) == 1
    assert len(os.listdir(tmp_path / "corpus" / "found")) == 2


def test_known_issues_and_the_baseline_decide_the_exit_code(tmp_path: Path) -> None:
    """On a backend without torch: its workers start at once, and there are many."""
    (tmp_path / "site").mkdir()
    install(tmp_path / "site")
    bad = {"PYTHONPATH": f"{tmp_path / 'site'}{os.pathsep}{ROOT}"}
    plain = fiafuzz_in(tmp_path)

    def fiafuzz(*arguments: str) -> Ran:
        return plain(*arguments, env=bad)

    fuzz = ("fuzz", "--backend", WRONG, "--mode", "valid", "--phases", "bulk", "--seed", "7", "-n", "20")
    assert "--baseline-update makes one" in fiafuzz(*fuzz, "--baseline", "base.json").complaint
    ran = fiafuzz(*fuzz, "--baseline", "base.json", "--baseline-update")
    assert ran.code == 0 and "known (baseline)" in ran.err
    ids = list(json.loads((tmp_path / "base.json").read_text())["signatures"])
    assert ids
    ran = fiafuzz("fuzz", "--backend", WRONG, "--phases", "replay", "-n", "30", "--baseline", "base.json", "--json")
    assert ran.code == 0 and json.loads(ran.out)["known"] == len(ids)

    known = tmp_path / "corpus" / "known.toml"
    known.write_text("".join(f'[[known]]\nsignature = "{one}"\nissue = "ISSUE-12"\n' for one in ids))
    ran = fiafuzz("replay")
    assert ran.code == 0 and "known (ISSUE-12)" in ran.out and f"{len(ids)} known" in ran.err
    assert fiafuzz("replay", ids[0]).code == 1, "an entry that is asked for by name fails all the same"
    known.write_text(known.read_text() + "expires = 2020-01-01\n")
    ran = fiafuzz("replay")
    assert ran.code == 1 and "ISSUE-12 expired on 2020-01-01" in ran.err
    known.write_text(f'[[known]]\nsignature = "{ids[0]}"\nissu = "ISSUE-12"\n')
    for verb in (("replay",), fuzz):
        assert fiafuzz(*verb).complaint == "fiafuzz: corpus/known.toml:1: unknown key 'issu'; did you mean 'issue'?"

    for name in os.listdir(tmp_path / "corpus" / "found"):
        path = tmp_path / "corpus" / "found" / name
        path.write_text(path.read_text().replace(f'"backend": "{WRONG}"', f'"backend": "{RIGHT}"'))
    known.write_text('[[known]]\ncode = "F103"\nissue = "ISSUE-12"\n')
    ran = fiafuzz("replay", "--backend", RIGHT)
    assert ran.code == 1 and "ISSUE-12 passes now" in ran.err and "remove it" in ran.err
    ran = fiafuzz("fuzz", "--backend", RIGHT, "-n", "3", "--phases", "replay", "--seed", "1")
    assert ran.code == 1 and "1 known issue passes now and must be removed" in ran.err


def test_resume(fiafuzz: Run, tmp_path: Path) -> None:
    options = ("--phases", "sweep,bulk", "--seed", "3", "-n", "40")
    assert fiafuzz("fuzz", *options, "--out", "run").code == 0
    ran = fiafuzz("fuzz", "--resume", "run", "--json")
    assert ran.code == 0 and "has finished" in ran.err and json.loads(ran.out)["cases"] == 40
    log = tmp_path / "run" / "events.ndjson"
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join(lines[:20]) + lines[20][:30])
    ran = fiafuzz("fuzz", "--resume", "run", "--seed", "4")
    assert ran.code == 2 and "--seed is 4 here and 3 in the run that is resumed" in ran.complaint
    assert fiafuzz("fuzz", "--resume", "run", "--out", "other").code == 2
    assert fiafuzz("fuzz", "--resume", "nowhere").code == 2
    ran = fiafuzz("fuzz", "--resume", "run", *options, "-w", "2", "--report", "junit")
    assert ran.code == 0 and "resumed after " in ran.err and (tmp_path / "run" / "junit.xml").is_file()
    events = [json.loads(line) for line in log.read_text().splitlines()]
    done = [(e["phase"], e["place"]) for e in events if e["event"] == "CaseDone"]
    assert len(done) == len(set(done)) == 40
    whole = [json.loads(line) for line in lines]
    assert sorted(done) == sorted((e["phase"], e["place"]) for e in whole if e["event"] == "CaseDone")


@pytest.mark.parametrize("where, told", [
    ("ftp://host/1", "unknown kind of database 'ftp'"), ("redis://:secret@host/0", "FIAFUZZ_REDIS_PASSWORD"), ("redis://", "names no host"),
])
def test_example_databases_that_make_no_sense(fiafuzz: Run, where: str, told: str) -> None:
    ran = fiafuzz("fuzz", "-n", "3", "--examples", where)
    assert ran.code == 2 and told in ran.complaint and "secret" not in ran.complaint
