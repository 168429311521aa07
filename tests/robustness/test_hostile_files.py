"""Files from a stranger: a corpus, case files, run directories, vendor tables and dumps run no code, write nothing outside, follow no
link out, take bounded memory and time, and cannot speak to a terminal, a page, a table or a workflow log."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fiafuzz.campaign.corpus import Corpus, Entry, encode_entry
from tests.unit.kept_entries import entry_of
from tests.unit.run_logs import full_log_bytes

from .hostile import FILES, TEXTS, corpus_with, entry_json, is_quiet, moves_a_terminal, put, ran, strings_in, tree

MEMORY = 1 << 30
"""Bytes that a verb may take for hostile files, beyond those that it starts with."""
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a directory of its own, beside which nothing may change."""
    place = tmp_path / "work"
    place.mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_text("untouched")
    monkeypatch.chdir(place)
    monkeypatch.setenv("NO_COLOR", "1")
    return place


def ran_apart(*words: str) -> subprocess.CompletedProcess[bytes]:
    """Run a verb in a process of its own that may not take much memory."""
    script = (
        f"import resource, sys\nresource.setrlimit(resource.RLIMIT_DATA, ({MEMORY}, {MEMORY}))\n"
        "from fiafuzz.cli.main import main\nmain(sys.argv[1:])\n"
    )
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(p or os.getcwd() for p in [str(ROOT), *sys.path]), NO_COLOR="1")
    return subprocess.run([sys.executable, "-c", script, *words], capture_output=True, env=env, timeout=300, check=False)


# ---- the corpus ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_hostile_entry_is_told_and_nothing_else_happens(name: str, here: Path, tmp_path: Path) -> None:
    corpus = corpus_with(here / "corpus", [name])
    before, good = tree(tmp_path), entry_of().id
    for words in (("list",), ("list", "--json"), ("verify",), ("show", good), ("show", "F101-0000000000"), ("min", "--dry-run")):
        told = ran("corpus", *words, *(() if "--corpus" in words else ("--corpus", str(corpus))))
        is_quiet(told, json_out="--json" in words)
    listed = ran("corpus", "list", "--corpus", str(corpus)).out
    assert good in listed, "one bad file hides no other"
    assert "secret" not in listed, "no link is followed"
    is_quiet(ran("predict", str(corpus / "found" / "F101-0000000000.json")))
    is_quiet(ran("export", "F101-0000000000", "--corpus", str(corpus)))
    assert tree(tmp_path) == before, "reading changes nothing"
    merged = ran("corpus", "merge", str(corpus), "--into", str(here / "mine"))
    is_quiet(merged)
    assert good in {e.id for e in Corpus(here / "mine").entries() if isinstance(e, Entry)}
    assert all(isinstance(e, Entry) for e in Corpus(here / "mine").entries())
    for path in (here / "mine").rglob("*"):
        assert not path.is_symlink() and (path.is_dir() or path.parent.parent == here / "mine"), path
    assert {k: v for k, v in tree(tmp_path).items() if not k.startswith("work/mine")} == before


@pytest.mark.slow
def test_hostile_entries_are_replayed_by_workers_and_nothing_else_happens(here: Path, tmp_path: Path) -> None:
    """All of them at once, on a backend that computes; those that are calls are run, in bounded memory and time."""
    corpus = corpus_with(here / "corpus", sorted(FILES))
    before = tree(tmp_path)
    told = ran("replay", "--corpus", str(corpus), "--backend", "nasty-good", "--time-limit", "5s")
    is_quiet(told)
    assert entry_of().id in told.out and told.code == 2
    assert {k: v for k, v in tree(tmp_path).items() if not k.startswith("work/.fiafuzz")} == before


@pytest.mark.parametrize("folder", ["found", "regressions", "imported", "."])
def test_a_folder_that_leads_elsewhere_is_not_followed(folder: str, here: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "found").mkdir()
    secret = entry_of(seed=3)
    for place in (outside, outside / "found"):
        (place / f"{secret.id}.json").write_bytes(encode_entry(secret))
    corpus = here / "corpus"
    if folder == ".":
        corpus.mkdir()
        (corpus / "known.toml").symlink_to(outside / "file")
    else:
        corpus.mkdir()
        (corpus / folder).symlink_to(outside)
    before = tree(tmp_path)
    for verb in ("list", "verify"):
        told = ran("corpus", verb, "--corpus", str(corpus))
        assert secret.id not in told.out
    ran("corpus", "merge", str(corpus), "--into", str(here / "mine"))
    assert not list((here / "mine").rglob("*.json")) if (here / "mine").exists() else True
    source = here / "other" / "found"
    source.mkdir(parents=True)
    (source / f"{entry_of().id}.json").write_bytes(encode_entry(entry_of()))
    told = ran("corpus", "merge", str(here / "other"), "--into", str(corpus))
    is_quiet(told)
    after = tree(tmp_path)
    assert {k: v for k, v in after.items() if k.startswith("outside")} == {k: v for k, v in before.items() if k.startswith("outside")}


def test_names_of_files_cannot_speak(here: Path) -> None:
    place = here / "corpus" / "found"
    place.mkdir(parents=True)
    for text in TEXTS[:-1]:
        name = text.replace("/", "_").replace("\0", "_")[:80] + ".json"
        (place / name).write_bytes(b"no entry")
        (place / f"x{name}").write_bytes(entry_json())
    (place / os.fsdecode(b"\xff\xfe.json")).write_bytes(b"no entry")
    for words in (("list",), ("verify",), ("merge", "corpus", "--into", "mine"), ("min", "--dry-run")):
        is_quiet(ran("corpus", *words))


@pytest.mark.slow
def test_a_million_files_are_bounded(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More files than are read: told, and no more than the limit are looked at. (A thousandth of a million, and of the limit.)"""
    import fiafuzz.campaign.corpus as corpus_module

    monkeypatch.setattr(corpus_module, "MAX_ENTRIES", 100)
    place = here / "corpus" / "found"
    place.mkdir(parents=True)
    for i in range(1000):
        (place / f"F101-{i:010x}.json").write_bytes(b"{}")
    told = ran("corpus", "list")
    assert told.code == 2 and "more unreadable" in told.err
    assert len(list(Corpus("corpus").entries())) == 101
    assert len(told.err.splitlines()) < 40


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_any_text_of_an_entry_may_be_anything(data: st.DataObject) -> None:
    content: Any = json.loads(encode_entry(entry_of(rule=None)))
    ways = sorted(strings_in(content), key=str)
    for way in data.draw(st.lists(st.sampled_from(ways), min_size=1, max_size=4)):
        put(content, way, data.draw(st.sampled_from(TEXTS[:-1]) | st.text(max_size=20)))
    with tempfile.TemporaryDirectory() as name:
        place = Path(name) / "corpus" / "found"
        place.mkdir(parents=True)
        (place / "F101-0000000000.json").write_bytes(json.dumps(content).encode("utf-8", "surrogatepass"))
        for words in (("list",), ("verify",), ("min", "--dry-run")):
            is_quiet(ran("corpus", *words, "--corpus", str(place.parent)))
        is_quiet(ran("corpus", "show", str(place / "F101-0000000000.json"), "--corpus", str(place.parent)))


# ---- case files, tables and dumps ------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["ut-csv", "atk", "rdv", "jsonl"])
@pytest.mark.parametrize("name", ["pipe", "link-to-zeros", "sparse-giant", "deep-lists", "zeros", "nothing", "directory", "no-utf8"])
def test_hostile_tables_are_refused_in_bounded_memory(form: str, name: str, here: Path) -> None:
    (here / "a" / "b").mkdir(parents=True)
    path = here / "a" / "b" / "table"
    FILES[name](path)
    done = ran("import", "--from", form, str(path)) if name not in ("link-to-zeros", "sparse-giant") else None
    if done is not None:
        is_quiet(done)
        assert done.code in (2, 5)
    else:
        apart = ran_apart("import", "--from", form, str(path))
        assert apart.returncode in (2, 5), apart
        assert apart.stderr.startswith(b"fiafuzz: ") and b"internal error" not in apart.stderr


@pytest.mark.parametrize("form", ["ut-csv", "atk", "rdv", "jsonl"])
@pytest.mark.parametrize("text", TEXTS[:-1], ids=range(len(TEXTS) - 1))
def test_texts_of_tables_cannot_speak(form: str, text: str, here: Path) -> None:
    path = here / "table"
    if form == "ut-csv":
        with open(path, "w", newline="", encoding="utf-8", errors="surrogatepass") as file:
            csv.writer(file).writerows([["case_name", "query_shape", "inputLayout"], [text, text, text], [text, "1,2", text]])
    else:
        rows: Any = {
            "atk": [
                {"name": text, "inputs": [{"name": text, "shape": text, "dtype": text}]},
                {"name": text, "aclnn_name": text, "inputs": []},
            ],
            "rdv": [{"case_name": text, "b": text, "storage": text}, {"case_name": text, "b": 1, "dtype": text}],
            "jsonl": {"name": text, "profile": text, "case": {"fiafuzz": 1, text: text}},
        }[form]
        path.write_bytes(json.dumps(rows).encode())
    told = ran("import", "--from", form, str(path))
    is_quiet(told, json_out=True)
    for line in told.out.splitlines():
        assert json.loads(line)


@pytest.mark.parametrize("verb", [("predict",), ("coverage",), ("export",), ("import", "--from", "jsonl")], ids=lambda v: v[0])
def test_case_files_that_would_eat_memory(verb: tuple[str, ...], here: Path) -> None:
    """A small file that unpacks to gigabytes, one line without an end, a million small records that are wrong."""
    bomb = here / "bomb.jsonl.gz"
    with gzip.open(bomb, "wb", compresslevel=9) as file:
        for _ in range(32):
            file.write(b" " * (1 << 22))
        file.write(b'{"fiafuzz":1,' + b'"a":[' + b"[" * (1 << 22))
    many = here / "many.jsonl"
    many.write_bytes(b'{"case":{},"profile":"\\u001b[31m"}\n' * 20_000)
    for path in (bomb, many):
        done = ran_apart(*verb, str(path))
        assert done.returncode in (2, 5), (done.returncode, done.stderr[-500:])
        assert b"internal error" not in done.stderr and b"\x1b" not in done.stderr
        assert len(done.stderr.splitlines()) < 60, done.stderr[:2000]


def test_huge_shapes_are_predicted_and_never_made(here: Path) -> None:
    FILES["huge-shape"](here / "case.json")
    case = json.loads((here / "case.json").read_bytes())["case"]
    (here / "case.json").write_text(json.dumps(case))
    assert ran_apart("predict", str(here / "case.json")).returncode in (0, 2)
    done = ran_apart("reference", str(here / "case.json"))
    assert done.returncode == 2 and b"internal error" not in done.stderr, done


def dump(path: Path, name: str, array: Any = None, header: bytes | None = None, claims: int = 0) -> Path:
    """A dump with one array, or with what says that it is one; ``claims``: the size that the directory of the file tells."""
    buffer = io.BytesIO()
    if header is None:
        np.save(buffer, array, allow_pickle=True)
    else:
        buffer.write(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{name}.npy", buffer.getvalue())
        if claims:
            archive.infolist()[0].file_size = claims
    return path


class Bomb:
    """Unpickling it leaves a file."""

    def __reduce__(self) -> Any:
        return (os.mkdir, ("owned",))


def test_dumps_run_no_code_and_are_bounded(here: Path) -> None:
    case = json.loads(encode_entry(entry_of()))["case"]
    (here / "case.json").write_text(json.dumps(case))
    pickled = dump(here / "pickled.npz", "out:attentionOut", np.array([Bomb()], dtype=object))
    start = b"{'descr': '<f2', 'fortran_order': False, 'shape': "
    code = dump(here / "code.npz", "out:attentionOut", header=start + b"(__import__('os').mkdir('owned'),)}\n")
    giant = dump(here / "giant.npz", "out:attentionOut", header=start + b"(1, 1, 1099511627776, 64)}\n")
    zeros = dump(here / "zeros.npz", "out:attentionOut", np.zeros(1 << 22, np.float16), claims=1 << 40)
    little = dump(here / "little.npz", "out:attentionOut", np.zeros(1 << 22, np.float16), claims=100)
    named = dump(here / "named.npz", "../../\x1b[31mowned", np.zeros(2, np.float16))
    os.mkfifo(here / "pipe.npz")
    (here / "zero.npz").symlink_to("/dev/zero")
    for path in (pickled, code, giant, named, zeros, little, here / "pipe.npz", here / "zero.npz"):
        told = ran("judge", "case.json", "--outputs", str(path))
        assert told.code == 2, told
        is_quiet(told)
    assert not (here / "owned").exists()


# ---- run directories ---------------------------------------------------------------------------------------------


class Page(HTMLParser):
    """Collects what a page would run or load."""

    def __init__(self) -> None:
        super().__init__()
        self.active: list[str] = []
        self.scripts = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        for name, value in attrs:
            if name.startswith("on") or (name in ("src", "href") and (value or "").lower().startswith(("http", "//", "javascript"))):
                self.active.append(f"{tag} {name}={value}")
        if tag in ("img", "iframe", "object", "embed", "evil", "base"):
            self.active.append(tag)


def hostile_run(place: Path, text: str, kinds: tuple[str, ...] = ()) -> Path:
    """A run whose every free text is a hostile one; the names of events stay."""
    place.mkdir(parents=True, exist_ok=True)
    lines = []
    for line in full_log_bytes().splitlines():
        event = json.loads(line)
        for way in list(strings_in(event)):
            fixed = ("event", "id", "entry", "case", "expected", "foreseen", "kind", "status", "started", "original", "digest", "version")
            if not any(step in fixed for step in way) or way[-1] in kinds:
                put(event, way, text)
        lines.append(json.dumps(event).encode("utf-8", "surrogatepass"))
    (place / "events.ndjson").write_bytes(b"\n".join(lines) + b"\n")
    return place


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_reports_of_a_hostile_run(text: str, here: Path, tmp_path: Path) -> None:
    run = hostile_run(here / "run", text)
    (here / "made").mkdir()
    told = ran("report", str(run), "--format", "html,junit,sarif,github,csv,ndjson", "-o", "made")
    is_quiet(told)
    assert told.code == 0, told
    made = {path.name: path for path in (here / "made").rglob("*") if path.is_file()}
    honest = Page()
    plain = ran("report", str(hostile_run(here / "plain", "text")), "--format", "html", "-o", "plain.html")
    assert plain.code == 0
    honest.feed((here / "plain.html").read_text())
    page = Page()
    page.feed(next(path for name, path in made.items() if name.endswith(".html")).read_text())
    assert not page.active and page.scripts == honest.scripts
    from lxml import etree

    etree.parse(str(next(p for n, p in made.items() if n.endswith(".xml"))), etree.XMLParser(resolve_entities=False, no_network=True))
    json.loads(next(p for n, p in made.items() if n.endswith((".sarif", ".sarif.json"))).read_bytes())
    for name, path in made.items():
        if name.endswith(".csv"):
            for row in csv.reader(io.StringIO(path.read_text())):
                for cell in row:
                    assert not re.match(r"[=+@\t\r]|-[^0-9.]", cell), (name, cell[:80])
                    assert not moves_a_terminal(cell), (name, cell[:80])
    github = next(p for n, p in made.items() if "github" in n or n.endswith(".txt")).read_text()
    for line in github.splitlines():
        assert re.match(r"::(error|warning|notice) [a-z]+=", line) and not moves_a_terminal(line), line[:200]
    assert (tmp_path / "outside" / "file").read_text() == "untouched"
    assert {p.name for p in tmp_path.iterdir()} == {"work", "outside", "site"}


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_history_and_coverage_of_a_hostile_run(text: str, here: Path) -> None:
    runs = [str(hostile_run(here / name, text, ("backend", "title"))) for name in ("one", "two")]
    told = ran("history", *runs, "--html", "trend.html")
    is_quiet(told)
    page = Page()
    page.feed((here / "trend.html").read_text())
    assert not page.active
    is_quiet(ran("coverage", runs[0]))
    is_quiet(ran("corpus", "merge", *runs, "--into", "mine"))


@pytest.mark.parametrize("name", ["pipe", "link-to-zeros", "sparse-giant", "deep-lists", "zeros", "nothing", "directory", "no-utf8"])
@pytest.mark.parametrize("file", ["events.ndjson", "run.json"])
def test_run_directories_of_anything(name: str, file: str, here: Path, tmp_path: Path) -> None:
    run = here / "runs" / "run"
    run.mkdir(parents=True)
    if file == "run.json":
        (run / "events.ndjson").write_bytes(full_log_bytes())
    FILES[name](run / file)
    before = tree(tmp_path)
    verbs = (
        ("report", str(run), "-o", "-"), ("history", str(run)), ("coverage", str(run)), ("corpus", "merge", str(run), "--into", "mine"),
        ("fuzz", "--resume", str(run)),
    )
    for words in verbs:
        if words[0] == "fuzz" and file == "run.json":
            continue  # its log is whole, and finished
        is_quiet(ran(*words), json_out=True)
    after = {k: v for k, v in tree(tmp_path).items() if not k.startswith("work/mine")}
    assert after == before


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_logs_cut_or_overwritten_anywhere_are_read_as_far_as_they_go(data: st.DataObject) -> None:
    whole = full_log_bytes()
    at = data.draw(st.integers(0, len(whole)))
    junk = data.draw(st.binary(max_size=40))
    text = whole[:at] + junk + (b"" if data.draw(st.booleans()) else whole[at + len(junk):])
    with tempfile.TemporaryDirectory() as name:
        run = Path(name) / "run"
        run.mkdir()
        (run / "events.ndjson").write_bytes(text)
        for words in (("report", str(run), "-o", "-", "--format", "github"), ("history", str(run)), ("coverage", str(run))):
            told = ran(*words)
            assert "::error file=x" not in told.err
        assert (run / "events.ndjson").read_bytes() == text


# ---- no way to run anything ------------------------------------------------------------------------------------------


def test_no_shell_no_eval_no_pickle() -> None:
    """The sources start programs from lists of words only, and evaluate nothing that they read."""
    import ast

    forbidden = {
        "os": {"system", "popen", "execl", "execlp", "spawnlp", "spawnl"}, "subprocess": {"getoutput", "getstatusoutput"},
        "torch": {"load"}, "numpy": {"load"}, "np": {"load"}, "yaml": {"load"},
    }
    seen = 0
    for folder in ("fiafuzz", "oracles", "strategies", "reports"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            seen += 1
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                where = f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
                if isinstance(node, (ast.Import, ast.ImportFrom)):
                    names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
                    assert not {n.partition(".")[0] for n in names} & {"pickle", "marshal", "shelve", "dill", "cloudpickle", "pty"}, where
                elif isinstance(node, ast.Call):
                    called = node.func
                    assert not (isinstance(called, ast.Name) and called.id in ("eval", "exec", "compile", "__import__")), where
                    if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name):
                        assert called.attr not in forbidden.get(called.value.id, set()), where
                    for keyword in node.keywords:
                        assert keyword.arg not in ("shell", "allow_pickle") or (
                            isinstance(keyword.value, ast.Constant) and keyword.value.value is False
                        ), where
    assert seen > 100
