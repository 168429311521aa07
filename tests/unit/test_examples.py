"""The example database of the explore phase: local, shared, and one that fails."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import fiafuzz.campaign.explore as explore
from fiafuzz.campaign.events import CaseDone, Note
from fiafuzz.campaign.examples import MAX_EXAMPLE_BYTES, Examples, key_of, open_examples
from fiafuzz.campaign.plan import Plan, PlanError, check

from .quick_runs import Quick, nothing_is_wrong, odd_keys_are_wrong, plan_in, quick, run

__all__ = ["quick"]
Install = Callable[..., list[Quick]]


def opened(where: str, tmp_path: Path, **changes: Any) -> Examples:
    """The database of a plan."""
    found = open_examples(Plan(examples=where, **changes), "cpu", "950-v5", tmp_path / "local")
    assert found is not None
    return found


class Redis:
    """As much of a Redis server as the database needs: sets of bytes, spoken over a socket."""

    def __init__(self) -> None:
        self.sets: dict[bytes, set[bytes]] = {}
        self.said: list[bytes] = []
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        queue: list[bytes] | None = None
        with connection, connection.makefile("rwb") as stream:
            while line := stream.readline():
                words = []
                for _ in range(int(line[1:])):
                    length = int(stream.readline()[1:])
                    words.append(stream.read(length + 2)[:-2])
                verb = words[0].upper()
                if verb == b"MULTI":
                    queue = []
                    answer = b"+OK\r\n"
                elif verb == b"EXEC" and queue is not None:
                    answer = b"*%d\r\n" % len(queue) + b"".join(queue)
                    queue = None
                elif queue is not None:
                    queue.append(self._answer(verb, words[1:]))
                    answer = b"+QUEUED\r\n"
                else:
                    answer = self._answer(verb, words[1:])
                stream.write(answer)
                stream.flush()

    def _answer(self, verb: bytes, words: list[bytes]) -> bytes:
        self.said.append(verb)
        if verb == b"SADD":
            before = len(self.sets.setdefault(words[0], set()))
            self.sets[words[0]].update(words[1:])
            return b":%d\r\n" % (len(self.sets[words[0]]) - before)
        if verb == b"SREM":
            there = self.sets.get(words[0], set())
            gone = there & set(words[1:])
            there -= gone
            return b":%d\r\n" % len(gone)
        if verb == b"SMEMBERS":
            found = sorted(self.sets.get(words[0], set()))
            return b"*%d\r\n" % len(found) + b"".join(b"$%d\r\n%s\r\n" % (len(v), v) for v in found)
        if verb in (b"EXPIRE", b"PUBLISH"):
            return b":1\r\n"
        if verb == b"HELLO":
            return b"%%2\r\n$6\r\nserver\r\n$5\r\nredis\r\n$5\r\nproto\r\n:%d\r\n" % int(words[0])
        return b"+OK\r\n" if verb in (b"CLIENT", b"SELECT") else b"-ERR unknown command %s\r\n" % verb


@pytest.fixture
def redis() -> Iterator[Redis]:
    """A server that ends with the test."""
    pytest.importorskip("redis")
    server = Redis()
    yield server
    server.socket.close()


def test_what_is_saved_is_handed_on_with_the_commit(tmp_path: Path) -> None:
    one = opened(str(tmp_path / "shared"), tmp_path)
    one.save(b"k", b"v")
    one.save(b"k", b"w")
    one.delete(b"k", b"w")
    assert list(one.fetch(b"k")) == [b"v"]
    assert list(opened(str(tmp_path / "shared"), tmp_path).fetch(b"k")) == []
    one.commit()
    other = opened(f"file://{tmp_path / 'shared'}", tmp_path)
    assert list(other.fetch(b"k")) == [b"v"]
    assert list(one.fetch(b"k")) == [], "a run has looked into its own examples already"
    other.delete(b"k", b"v")
    other.commit()
    assert list(opened(str(tmp_path / "shared"), tmp_path).fetch(b"k")) == []


def test_keys_carry_what_the_strategy_depends_on(tmp_path: Path) -> None:
    plans = [Plan(), Plan(mode="invalid"), Plan(select=("pse",)), Plan(ignore=("pse",))]
    keys = [key_of(p, "cpu", "950-v5") for p in plans] + [key_of(Plan(), "torch-npu", "950-v5"), key_of(Plan(), "cpu", "a2-v5")]
    assert len(set(keys)) == len(keys)
    one = opened(str(tmp_path / "shared"), tmp_path)
    one.save(b"k", b"v")
    one.commit()
    assert list(opened(str(tmp_path / "shared"), tmp_path, mode="invalid").fetch(b"k")) == []


def test_the_local_one_is_only_written_and_none_is_none(tmp_path: Path) -> None:
    one = opened("", tmp_path)
    one.save(b"k", b"v")
    one.commit()
    assert list(one.fetch(b"k")) == [] and list(opened("", tmp_path).fetch(b"k")) == []
    assert list(opened(str(tmp_path / "local"), tmp_path).fetch(b"k")) == [b"v"], "another run can be given it"
    assert open_examples(Plan(examples="none"), "cpu", "950-v5", tmp_path / "local") is None


def test_a_directory_is_read_as_from_a_stranger(tmp_path: Path) -> None:
    one = opened(str(tmp_path / "shared"), tmp_path)
    one.save(b"k", b"v")
    one.commit()
    (value,) = [p for p in (tmp_path / "shared").rglob("*") if p.is_file() and p.read_bytes() == b"v"]
    os.mkfifo(value.parent / "pipe")
    (value.parent / "link").symlink_to("/etc/hostname")
    with open(value.parent / "huge", "wb") as file:
        file.truncate(MAX_EXAMPLE_BYTES + 1)
    assert list(opened(str(tmp_path / "shared"), tmp_path).fetch(b"k")) == [b"v"]


def test_redis(redis: Redis, tmp_path: Path) -> None:
    url = f"redis://127.0.0.1:{redis.port}/0?prefix=team:"
    one = opened(url, tmp_path)
    one.save(b"k", b"v")
    assert not redis.sets
    one.commit()
    assert one.problem is None and [k for k in redis.sets if k.startswith(b"team:1/cpu/950-v5/")]
    other = opened(url, tmp_path)
    assert list(other.fetch(b"k")) == [b"v"]
    assert list(opened(f"redis://127.0.0.1:{redis.port}/0?prefix=others:", tmp_path).fetch(b"k")) == []
    other.delete(b"k", b"v")
    other.commit()
    assert list(opened(url, tmp_path).fetch(b"k")) == []


def test_a_server_that_is_not_there_is_told_once_and_then_left_alone(tmp_path: Path) -> None:
    pytest.importorskip("redis")
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    one = opened(f"redis://127.0.0.1:{port}/0", tmp_path)
    assert list(one.fetch(b"k")) == []
    assert one.problem is not None and "\n" not in one.problem
    one.problem = None
    one.save(b"k", b"v")
    one.commit()
    assert list(one.fetch(b"k")) == [] and one.problem is None


def explored(tmp_path: Path, name: str, where: str, **changes: Any) -> tuple[list[Any], Any]:
    """A run of the explore phase alone."""
    plan = plan_in(tmp_path, mode="valid", phases=("explore",), max_cases=30, out=str(tmp_path / name), examples=where,
                   corpus=str(tmp_path / f"corpus-{name}"), **changes)
    return run(plan)


def test_what_a_phase_finds_is_handed_on_when_it_ends(quick: Install, tmp_path: Path) -> None:
    quick(odd_keys_are_wrong)
    explored(tmp_path, "one", str(tmp_path / "shared"))
    assert any(p.is_file() for p in (tmp_path / "shared").rglob("*")), "though its round was not over"


def test_runs_share_what_they_have_found(quick: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explore, "ROUND", 12)
    monkeypatch.setattr(explore, "SHRINK_CALLS", 5)
    quick(odd_keys_are_wrong)
    _, first = explored(tmp_path, "one", str(tmp_path / "shared"))
    assert first.status == "findings" and any((tmp_path / "shared").iterdir())
    events, second = explored(tmp_path, "two", str(tmp_path / "shared"), seed=99)
    assert second.status == "findings"
    assert next(e for e in events if isinstance(e, CaseDone)).verdict.failed, "the first case of the other run is what the first has found"
    alone, _ = explored(tmp_path, "three", "", seed=99)
    assert not next(e for e in alone if isinstance(e, CaseDone)).verdict.failed


@pytest.mark.parametrize("kind", ["file in the way", "gone server"])
def test_a_database_that_fails_is_a_warning(quick: Install, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explore, "ROUND", 12)
    quick(nothing_is_wrong)
    where = str(tmp_path / "file" / "below")
    (tmp_path / "file").write_text("")
    if kind == "gone server":
        pytest.importorskip("redis")
        with socket.create_server(("127.0.0.1", 0)) as unused:
            where = f"redis://127.0.0.1:{unused.getsockname()[1]}/0"
    events, summary = explored(tmp_path, "run", where)
    assert summary.status == "clean" and summary.cases == 30
    warnings = [e.text for e in events if isinstance(e, Note)]
    assert len(warnings) == 1 and warnings[0].startswith("example database: ")


@pytest.mark.parametrize("where, told", [
    ("ftp://host", "unknown kind"), ("redis://", "no host"), ("redis://u:secret@host", "FIAFUZZ_REDIS_PASSWORD"),
    ("redis://host:x", "examples: "),
])
def test_addresses_that_make_no_sense(where: str, told: str) -> None:
    with pytest.raises(PlanError) as caught:
        check(Plan(examples=where))
    assert told in str(caught.value) and "secret" not in str(caught.value)
