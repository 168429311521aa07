"""Merging, thinning out and verifying corpora."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fiafuzz.campaign.corpus import MAX_ENTRY_BYTES, BadEntry, Corpus, CorpusError, Entry, content_of, encode_entry, variant_name
from fiafuzz.campaign.corpus_merge import ADDED, APART, BAD, THERE, Merged, merge, sources_of
from fiafuzz.campaign.corpus_min import covers, subset
from fiafuzz.campaign.corpus_verify import KNOWN, LEFTOVER, LINK, NAME, PREDICTION, PROFILE, STRAY, TWICE, UNREADABLE, Trouble, verify
from fiafuzz.campaign.events import FindingKept, RunStarted, encode_event
from fiafuzz.campaign.plan import Plan
from fiafuzz.campaign.verdict import Foreseen

from .kept_entries import entry_of

OTHER_RULE = entry_of("F201", rule="FIA-PA-007", features=(), expected=Foreseen("reject", (161002,), ("FIA-PA-007",)))


def put(root: Path, *entries: Entry, folder: str = "found") -> Path:
    """Write entries into a corpus."""
    for entry in entries:
        name = f"{entry.id}.json"
        Corpus(root).put(folder, variant_name(entry) if (root / folder / name).exists() else name, entry)
    return root


def run_in(path: Path, *entries: Entry) -> Path:
    """A run directory whose log has kept these findings."""
    path.mkdir()
    events = [RunStarted(plan=Plan(), started="2026", version="1", directory=str(path), factors=())]
    kept = [FindingKept(number=n, entry=e, new=True, path=None, runs=0, seconds=0.0) for n, e in enumerate(entries, 1)]
    (path / "events.ndjson").write_bytes(b"".join(map(encode_event, [*events, *kept])))
    return path


def merged(into: Path, *sources: Path, dry: bool = False) -> list[Merged]:
    """Merge sources one after the other."""
    return list(merge((s for source in sources for s in sources_of(source)), Corpus(into), dry=dry))


def contents(root: Path) -> set[tuple[str, str]]:
    """What a corpus holds, whatever its files are called."""
    return {(e.id, content_of(e)) for e in Corpus(root).entries() if isinstance(e, Entry)}


# ---- merge ------------------------------------------------------------------------------------


def test_entries_of_corpora_runs_and_files(tmp_path: Path) -> None:
    one, two, three, four = (entry_of(features=(("lse", word),)) for word in "abcd")
    a = put(tmp_path / "a", one)
    put(a, two, folder="regressions")
    run = run_in(tmp_path / "run", one, three)
    file = tmp_path / "file.json"
    file.write_bytes(encode_entry(four))
    found = merged(tmp_path / "into", a, run, file)
    assert [(m.outcome, m.name) for m in found] == [
        (ADDED, two.id), (ADDED, one.id), (THERE, one.id), (ADDED, three.id), (ADDED, four.id)]
    assert contents(tmp_path / "into") == {(e.id, content_of(e)) for e in (one, two, three, four)}
    assert (tmp_path / "into" / "regressions" / f"{two.id}.json").read_bytes() == encode_entry(two)
    assert {m.outcome for m in merged(tmp_path / "into", a, run, file)} == {THERE}


def test_who_found_it_and_when_makes_no_other_entry(tmp_path: Path) -> None:
    first = entry_of()
    again = msgspec.structs.replace(first, first_seen="2027", environment={"torch": "3"}, runs=9, original="ff", title="other")
    assert content_of(first) == content_of(again)
    put(tmp_path / "into", first)
    assert [m.outcome for m in merged(tmp_path / "into", put(tmp_path / "a", again))] == [THERE]
    assert list(Corpus(tmp_path / "into").entries()) == [first]


def test_the_same_id_with_another_call_is_kept_apart_and_told(tmp_path: Path) -> None:
    first, other = entry_of(seed=1), entry_of(seed=2)
    put(tmp_path / "into", first)
    (found,) = merged(tmp_path / "into", put(tmp_path / "a", other))
    assert found.outcome == APART and "another call" in found.text
    assert Path(found.path).name == variant_name(other)
    assert list(Corpus(tmp_path / "into").entries()) == [other, first] or list(Corpus(tmp_path / "into").entries()) == [first, other]
    assert Corpus(tmp_path / "into").find(first.id) == first
    assert [m.outcome for m in merged(tmp_path / "into", tmp_path / "a")] == [THERE]


@settings(max_examples=15, deadline=None)
@given(st.lists(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 2)), max_size=4), min_size=2, max_size=4), st.randoms())
def test_the_order_of_sources_does_not_matter(tmp_path_factory: pytest.TempPathFactory, corpora: Any, rng: random.Random) -> None:
    root = tmp_path_factory.mktemp("order")
    sources = []
    for number, words in enumerate(corpora):
        sources.append(root / str(number))
        put(sources[-1], *(entry_of(features=(("lse", word),), seed=seed) for word, seed in dict.fromkeys(words)))
        (sources[-1] / "found").mkdir(parents=True, exist_ok=True)
    mixed = list(sources)
    rng.shuffle(mixed)
    merged(root / "x", *sources)
    merged(root / "y", *mixed)
    assert contents(root / "x") == contents(root / "y") == set().union(*map(contents, sources))
    assert all(not isinstance(t, Trouble) or t.kind != NAME for t in verify_if_there(root / "x")), "names are those of the contents"


def verify_if_there(root: Path) -> list[Any]:
    """The troubles of a corpus that may be empty."""
    return list(verify(Corpus(root))) if root.is_dir() else []


def test_hostile_files_are_refused_one_by_one(tmp_path: Path) -> None:
    good = entry_of()
    found = put(tmp_path / "a", good) / "found"
    raw = encode_entry(entry_of("F104"))
    (found / "half.json").write_bytes(raw[:99])
    (found / "id.json").write_bytes(raw.replace(entry_of("F104").id.encode(), b"../../evil"))
    (found / "link.json").symlink_to("/etc/passwd")
    os.mkfifo(found / "pipe.json")
    with open(found / "big.json", "wb") as file:
        file.truncate(MAX_ENTRY_BYTES + 1)
    bad = run_in(tmp_path / "run", msgspec.structs.replace(good, id="../../evil"))
    with open(bad / "events.ndjson", "ab") as log:
        log.write(b'{"event":"FindingKept","at":1}\n{"event":"FindingKept",')
    nothing = tmp_path / "empty"
    nothing.mkdir()
    told = merged(tmp_path / "into", tmp_path / "a", bad, nothing, tmp_path / "missing.json")
    assert [m.outcome for m in told].count(BAD) == 9 and [m.outcome for m in told].count(ADDED) == 1
    assert all(m.text and "\n" not in m.text for m in told if m.outcome == BAD)
    assert sorted(p.name for p in (tmp_path / "into").rglob("*")) == [f"{good.id}.json", "found"]


def test_a_dry_run_writes_nothing_and_says_the_same(tmp_path: Path) -> None:
    source = put(tmp_path / "a", entry_of(seed=1), entry_of(seed=2))
    dry = merged(tmp_path / "into", source, dry=True)
    assert not (tmp_path / "into").exists()
    assert dry == merged(tmp_path / "into", source)


def test_a_damaged_file_in_the_way_stays_and_the_entry_stands_beside_it(tmp_path: Path) -> None:
    entry = entry_of()
    way = tmp_path / "into" / "found" / f"{entry.id}.json"
    way.parent.mkdir(parents=True)
    way.write_bytes(b"{")
    (found,) = merged(tmp_path / "into", put(tmp_path / "a", entry))
    assert found.outcome == APART and way.read_bytes() == b"{"
    assert [e for e in Corpus(tmp_path / "into").entries() if isinstance(e, Entry)] == [entry]


def test_a_corpus_that_cannot_be_written_is_told_for_each_entry(tmp_path: Path) -> None:
    (tmp_path / "into").mkdir()
    (tmp_path / "into" / "found").write_text("a file")
    told = merged(tmp_path / "into", put(tmp_path / "a", entry_of()))
    assert [m.outcome for m in told] == [BAD] and "not a directory" in told[0].text


# ---- min --------------------------------------------------------------------------------------


def test_a_subset_covers_the_same(tmp_path: Path) -> None:
    wide = entry_of(seed=3)
    same = [entry_of(seed=n) for n in range(1, 4)]
    other = entry_of("F104", seed=9)
    put(tmp_path, *same, other, OTHER_RULE)
    put(tmp_path, wide, folder="regressions")
    found = subset(Corpus(tmp_path))
    assert {k.entry.signature for k in found.kept} == {e.signature for e in (*same, other, OTHER_RULE)}
    assert found.kept[0].why == "regressions"
    entries = [e for e in Corpus(tmp_path).entries() if isinstance(e, Entry)]
    every = frozenset[tuple[str, ...]]().union(*map(covers, entries))
    assert frozenset[tuple[str, ...]]().union(*(covers(k.entry) for k in found.kept)) == every
    assert len(found.redundant) == 3 and len(found.kept) + len(found.redundant) == len(entries)
    assert found == subset(Corpus(tmp_path)), "the same files give the same subset"


def test_an_entry_stays_for_its_rule_or_its_pairs(tmp_path: Path) -> None:
    first = entry_of(seed=1)
    expected = Foreseen("reject", (161002,), ("FIA-PA-007",))
    ruled = msgspec.structs.replace(first, case=first.case.replace(scaleValue=0.75), expected=expected)
    put(tmp_path, first, ruled)
    found = subset(Corpus(tmp_path))
    assert len(found.kept) == 2 and not found.redundant
    assert {k.why for k in found.kept} == {"signature", "rule"}
    wide = put(tmp_path / "pairs", first, msgspec.structs.replace(first, case=first.case.replace(softmaxLseFlag=True, sparseMode=3)))
    assert {k.why for k in subset(Corpus(wide)).kept} == {"signature", "pairs"}


ROW = st.tuples(st.sampled_from("abc"), st.integers(0, 2), st.sets(st.sampled_from(["R1", "R2", "R3"])), st.booleans())


@settings(max_examples=40, deadline=None)
@given(st.lists(ROW, min_size=2, max_size=7))
@example([("a", 0, set(), False), ("b", 0, set(), False), ("b", 1, {"R1"}, False)])
def test_thinning_out_never_loses_coverage(tmp_path_factory: pytest.TempPathFactory, rows: list[Any]) -> None:
    root = tmp_path_factory.mktemp("min")
    for word, seed, rules, protected in rows:
        entry = entry_of(features=(("lse", word),), seed=seed, expected=Foreseen("accept", (0,), tuple(sorted(rules))))
        folder = "regressions" if protected else "found"
        if not (root / folder / variant_name(entry)).exists():
            Corpus(root).put(folder, variant_name(entry), entry)
    entries = [e for e in Corpus(root).entries() if isinstance(e, Entry)]
    found = subset(Corpus(root))
    kept = [k.entry for k in found.kept]
    assert {e.signature for e in kept} == {e.signature for e in entries}
    assert {r for e in kept for r in e.expected.rules} == {r for e in entries for r in e.expected.rules}
    assert all(path.parent.name == "found" for path, _ in found.redundant), "regressions always stay"
    again = put(root / "again", *kept)
    assert not [e for e in subset(Corpus(again)).redundant if e[1] not in kept]


# ---- verify -----------------------------------------------------------------------------------


def good_corpus(tmp_path: Path) -> Path:
    """A corpus without a trouble."""
    put(tmp_path, entry_of(), entry_of("F104"))
    (tmp_path / "README.md").write_text("what it is")
    return tmp_path


def kinds(root: Path) -> list[str]:
    """What is wrong with a corpus."""
    return [t.kind for t in verify(Corpus(root)) if isinstance(t, Trouble)]


def test_a_good_corpus(tmp_path: Path) -> None:
    found = list(verify(Corpus(good_corpus(tmp_path))))
    assert len(found) == 2 and all(isinstance(f, Path) for f in found)
    with pytest.raises(CorpusError):
        list(verify(Corpus(tmp_path / "none")))


def test_each_trouble_is_told_once(tmp_path: Path) -> None:
    root = good_corpus(tmp_path)
    found = root / "found"
    entry = entry_of("F102")
    (found / "half.json").write_bytes(b"{")
    (found / "link.json").symlink_to("half.json")
    (found / ".F101-0123456789.json.abc.tmp").write_bytes(b"{")
    (found / "notes.txt").write_text("x")
    (root / "lost.json").write_bytes(encode_entry(entry))
    put(root, entry_of(), folder="regressions")
    (found / "named otherwise.json").write_bytes(encode_entry(entry))
    (found / "F105-0123456789.json").write_bytes(encode_entry(msgspec.structs.replace(entry, id="F105-0123456789")))
    put(root, entry_of("F103", profile="970-v9"), entry_of("F201", expected=Foreseen("reject", (161002,), ("FIA-PA-007",), "x")))
    (root / "known.toml").write_text('[[known]]\nsignature = "F101-0000000000"\nissue = "OPS-1"\n')
    assert sorted(kinds(root)) == sorted([UNREADABLE, LINK, LEFTOVER, STRAY, STRAY, TWICE, NAME, NAME, PROFILE, PREDICTION, KNOWN])
    texts = [t.text for t in verify(Corpus(root)) if isinstance(t, Trouble) and t.kind == PREDICTION]
    assert texts == ["verdict reject -> accept; codes 161002 -> 0; rules FIA-PA-007 -> none"]
    (root / "known.toml").write_text("[[known]\n")
    assert kinds(root).count(UNREADABLE) == 2


def test_a_folder_that_is_a_link(tmp_path: Path) -> None:
    root = good_corpus(tmp_path / "x")
    shutil.move(root / "found", tmp_path / "elsewhere")
    (root / "found").symlink_to(tmp_path / "elsewhere")
    assert kinds(root) == [LINK]


def test_more_files_than_are_read_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fiafuzz.campaign.corpus as corpus_module

    monkeypatch.setattr(corpus_module, "MAX_ENTRIES", 1)
    bad = [e for e in Corpus(good_corpus(tmp_path)).entries() if isinstance(e, BadEntry)]
    assert len(bad) == 1 and "those after the first 1 are not read" in str(bad[0])
