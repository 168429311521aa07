"""What a stranger may put into a corpus, a case file or a run directory, and a way to run verbs on it that cannot hang."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import stat
import sys
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fiafuzz.campaign.corpus import encode_entry
from fiafuzz.cli.main import main
from tests.unit.kept_entries import entry_of

PATIENCE = 120
"""Seconds after which a verb is said to hang."""

TEXTS = (
    "\x1b]0;owned\x07\x1b[2J\x1b[31mred",
    "\x9b31m\x84\x90",
    "safe\u202egnp.exe\u2066\u200f",
    "</script><script>alert(1)</script><img src=x onerror=alert(1)>",
    "]]><evil/>&lt;&#0;",
    "=HYPERLINK(\"http://evil\",\"x\")",
    "+cmd|' /C calc'!A0",
    "@SUM(1+1)",
    "-2+3",
    "line\n::error file=x::owned\r\n::set-output name=a::b",
    "{{ 7*7 }}{% raw %}<%= 1 %>${7*7}",
    "$(touch owned)`touch owned`; touch owned & '\"",
    "\ud7ff\uffff\x00\x7f",
    "x" * 100_000,
)
"""Texts that mean something to a terminal, a page, a table, a workflow log, a template or a shell."""


@dataclass(frozen=True)
class Told:
    """What a verb said and how it left."""

    code: int
    out: str
    err: str


class Hangs(BaseException):
    """A verb did not come back."""


def ran(*words: str) -> Told:
    """Run a verb in this process, with an alarm. Fails on an internal error."""
    def late(*_: Any) -> None:
        raise Hangs(words)

    out, err, code = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO(), -1
    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(PATIENCE)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                main(list(words))
            except SystemExit as stop:
                code = int(stop.code or 0)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    out.flush()
    told = Told(code, out.buffer.getvalue().decode("utf-8", "surrogateescape"), err.getvalue())  # type: ignore[attr-defined]
    assert told.code in (0, 1, 2, 5), told
    assert "Traceback" not in told.err and "internal error" not in told.err, told.err[:2000]
    return told


def moves_a_terminal(text: str) -> str:
    """The first character that could move a cursor, colour or turn text round; "" when there is none."""
    return next((repr(c) for c in text if c not in "\n\t" and unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co", "Cn")), "")


def is_quiet(told: Told, *, json_out: bool = False) -> None:
    """Nothing foreign in what was said reaches a terminal, or begins a command of a workflow log. JSON escapes for itself."""
    assert not moves_a_terminal(told.err), (moves_a_terminal(told.err), told.err[:1000])
    assert "\x1b" not in told.out and "\x00" not in told.out
    if not json_out:
        assert not moves_a_terminal(told.out), (moves_a_terminal(told.out), told.out[:1000])
    for line in (*told.out.splitlines(), *told.err.splitlines()):
        assert not line.startswith(("::", "##[")), line[:200]


def tree(root: Path) -> dict[str, tuple[Any, ...]]:
    """Everything below a directory: kind, size, time of change. Links are not followed."""
    found = {}
    for path in sorted(root.rglob("*")):
        state = os.lstat(path)
        inside = (state.st_size, state.st_mtime_ns) if stat.S_ISREG(state.st_mode) else (0, 0)
        found[str(path.relative_to(root))] = (state.st_mode, *inside)
    return found


def entry_json(**changes: Any) -> bytes:
    """An entry with some of its fields (dotted paths, with __ for the dots) changed to anything."""
    data = json.loads(encode_entry(entry_of()))
    for path, value in changes.items():
        *way, last = path.split("__")
        at = data
        for word in way:
            at = at[int(word)] if isinstance(at, list) else at[word]
        at[last] = value
    return json.dumps(data).encode("utf-8", "surrogatepass")


def strings_in(data: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where texts stand in JSON data."""
    if isinstance(data, dict):
        for key, value in data.items():
            yield from strings_in(value, (*way, key))
    elif isinstance(data, list):
        for i, value in enumerate(data):
            yield from strings_in(value, (*way, i))
    elif isinstance(data, str):
        yield way


def put(data: Any, way: tuple[Any, ...], value: Any) -> None:
    """Replace what stands there."""
    for step in way[:-1]:
        data = data[step]
    data[way[-1]] = value


def make(function: Callable[[Path], None]) -> Callable[[Path], None]:
    """Register a hostile file."""
    FILES[function.__name__.replace("_", "-")] = function
    return function


FILES: dict[str, Callable[[Path], None]] = {}
"""Hostile files by name: each makes one at a path whose directory is there."""


@make
def link_out(path: Path) -> None:
    secret = path.parents[2] / "secret.json"
    secret.write_bytes(encode_entry(entry_of(backend="secret")))
    path.symlink_to(secret)


@make
def link_to_passwd(path: Path) -> None:
    path.symlink_to("/etc/passwd")


@make
def link_to_itself(path: Path) -> None:
    path.symlink_to(path)


@make
def link_to_zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


@make
def link_to_terminal(path: Path) -> None:
    path.symlink_to("/dev/tty")


@make
def pipe(path: Path) -> None:
    os.mkfifo(path)


@make
def directory(path: Path) -> None:
    path.mkdir()


@make
def sparse_giant(path: Path) -> None:
    with open(path, "wb") as file:
        file.truncate(1 << 40)


@make
def deep_lists(path: Path) -> None:
    path.write_bytes(b"[" * 1_000_000)


@make
def deep_objects(path: Path) -> None:
    path.write_bytes(b'{"fiafuzz_entry":1,"case":' + b'{"a":' * 200_000 + b"1" + b"}" * 200_000 + b"}")


@make
def no_utf8(path: Path) -> None:
    path.write_bytes(encode_entry(entry_of()).replace(b"wrong values", b"\xff\xfe\xc0\x80"))


@make
def nothing(path: Path) -> None:
    path.write_bytes(b"")


@make
def zeros(path: Path) -> None:
    path.write_bytes(bytes(4096))


@make
def id_up(path: Path) -> None:
    path.write_bytes(entry_json(id="../../../../tmp/owned"))


@make
def id_absolute(path: Path) -> None:
    path.write_bytes(entry_json(id="/tmp/owned"))


@make
def id_of_another(path: Path) -> None:
    path.write_bytes(entry_json(id="F101-0123456789"))


@make
def huge_shape(path: Path) -> None:
    path.write_bytes(entry_json(case__inputs__query__shape=[1 << 62, 1 << 62, 1 << 62, 1]))


@make
def endless_rank(path: Path) -> None:
    path.write_bytes(entry_json(case__inputs__query__shape=[1] * 1_000_000))


@make
def long_lists(path: Path) -> None:
    path.write_bytes(entry_json(differences=["x"] * 200_000, expected__codes=[1] * 200_000))


@make
def huge_number(path: Path) -> None:
    path.write_bytes(entry_json(seed=0).replace(b'"seed": 0', b'"seed": ' + b"9" * 100_000))


@make
def no_number(path: Path) -> None:
    path.write_bytes(entry_json(got__error_ratio=1.5).replace(b"1.5", b"NaN"))


@make
def overlapping_tensor(path: Path) -> None:
    """One element that says it is a terabyte."""
    path.write_bytes(entry_json(case__inputs__key=[{"shape": [1 << 20, 1 << 20, 1, 1], "strides": [0, 0, 0, 0], "dtype": "FLOAT16"}]))


@make
def fill_bomb(path: Path) -> None:
    """Patches within patches."""
    fill: Any = {"kind": "uniform", "low": 0, "high": 1}
    for _ in range(500):
        fill = {"kind": "patched", "base": fill, "patches": [{"at": [0, 0, 0, 0], "value": "nan"}] * 50}
    data = json.loads(encode_entry(entry_of()))
    data["case"]["inputs"]["query"]["fill"] = fill
    path.write_text(_nested_text(data))


def _nested_text(data: Any) -> str:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    try:
        return json.dumps(data)
    finally:
        sys.setrecursionlimit(before)


def _texts(number: int) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        """Every text of an entry that is free is a hostile one."""
        text = TEXTS[number]
        path.write_bytes(entry_json(
            title=text, original=text, reproduce=text, first_seen=text, got__kind=text, got__text=text, differences=[text],
            profile=text, environment={text: text}, signature__backend=text, signature__features=[[text, text]],
            signature__error=text, expected__rules=[text],
        ))

    return write


for _number in range(len(TEXTS)):
    FILES[f"text-{_number}"] = _texts(_number)


def corpus_with(root: Path, names: list[str], folder: str = "found") -> Path:
    """A corpus with a good entry and hostile ones."""
    place = root / folder
    place.mkdir(parents=True, exist_ok=True)
    good = entry_of()
    (place / f"{good.id}.json").write_bytes(encode_entry(good))
    for i, name in enumerate(names):
        FILES[name](place / f"F101-{i:010x}.json")
    return root
