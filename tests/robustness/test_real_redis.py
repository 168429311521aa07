"""The example database of a fleet in a real Redis server: shared, kept apart, with a password, full, frozen, and gone in the middle."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Optional

import pytest

import fiafuzz.campaign.examples as examples_module
import fiafuzz.campaign.explore as explore
from fiafuzz.campaign.events import CaseDone, Event, Note, Summary
from fiafuzz.campaign.examples import MAX_EXAMPLE_BYTES, PASSWORD, Examples, open_examples
from fiafuzz.campaign.plan import Plan
from fiafuzz.campaign.results import Result
from fiafuzz.model.case import Case
from tests.unit.quick_runs import Quick, kept_ids, odd_keys_are_wrong, plan_in, quick, run
from tests.unit.wheels import wheel

from .small_disks import ROOT

wheel("redis", "redis (pip install 'fiafuzz[redis]')")
__all__ = ["quick"]
Install = Callable[..., list[Quick]]
TRIES = 5
LOCAL = ""
"""No database that is shared: that of the run, which begins empty. (Without any, Hypothesis draws other cases.)"""


class Server:
    """A server of this test alone: on a free port of this machine, in memory."""

    def __init__(self, directory: Path, *options: str, password: str = "") -> None:
        self.password = password
        secret = ["--requirepass", password] if password else []
        for _ in range(TRIES):  # somebody else may take the port
            with socket.create_server(("127.0.0.1", 0)) as free:
                self.port = free.getsockname()[1]
            command = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
            self.process = subprocess.Popen([*command, "--dir", str(directory), *secret, *options], stdout=subprocess.DEVNULL)
            if self._answers():
                return
            self.end()
        raise RuntimeError("redis-server does not start")

    def _answers(self) -> bool:
        import redis

        for _ in range(200):
            if self.process.poll() is not None:
                return False
            try:
                return bool(self.client.ping())
            except redis.ConnectionError:
                time.sleep(0.05)
        return False

    @property
    def client(self) -> Any:
        """A connection of the test's own."""
        import redis

        return redis.Redis("127.0.0.1", self.port, password=self.password or None, socket_timeout=10)

    def url(self, prefix: str = "") -> str:
        """The address as a user gives it."""
        return f"redis://127.0.0.1:{self.port}/0" + (f"?prefix={prefix}" if prefix else "")

    def end(self) -> None:
        """Kill it, as a machine goes down."""
        self.process.kill()
        self.process.wait(10)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Starts servers that end with the test."""
    if shutil.which("redis-server") is None:
        if os.environ.get("FIAFUZZ_REQUIRE_ALL") == "1":
            pytest.fail("redis-server is not installed (.ci/system installs it), and FIAFUZZ_REQUIRE_ALL=1 lets nothing be skipped")
        pytest.skip("redis-server is not installed (.ci/system installs it)")
    made: list[Server] = []

    def start(*options: str, password: str = "") -> Server:
        made.append(Server(tmp_path, *options, password=password))
        return made[-1]

    yield start
    for server in made:
        server.end()


@pytest.fixture(autouse=True)
def short_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several rounds, and so several commits, in a short run."""
    monkeypatch.setattr(explore, "ROUND", 12)
    monkeypatch.setattr(explore, "SHRINK_CALLS", 5)
    monkeypatch.delenv(PASSWORD, raising=False)


def explored(root: Path, name: str, where: str, **changes: Any) -> tuple[list[Event], Summary]:
    """A run of the explore phase alone, with a corpus of its own."""
    settings: dict[str, Any] = {"mode": "valid", "phases": ("explore",), "max_cases": 40, "seed": 5, **changes}
    return run(plan_in(root, out=str(root / name), examples=where, corpus=str(root / f"corpus-{name}"), **settings))


def first_fails(events: list[Event]) -> bool:
    """Whether the first case of a run failed: with its seed that is so only where it was told of it."""
    return next(e for e in events if isinstance(e, CaseDone)).verdict.failed


def notes(events: list[Event]) -> list[str]:
    """What the run remarked."""
    return [e.text for e in events if isinstance(e, Note)]


def opened(where: str) -> Examples:
    """The database of a plan."""
    found = open_examples(Plan(examples=where), "cpu", "950-v5", Path("unused"))
    assert found is not None
    return found


@pytest.mark.slow
def test_two_command_lines_of_a_fleet(serve: Callable[..., Server], nasty_backends: Path, tmp_path: Path) -> None:
    """The second begins with what the first has found. The server wants a password, which is nowhere to be seen."""
    server = serve(password="tell-nobody")

    def ran(name: str, seed: str, prefix: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
        env = {**os.environ, "PYTHONPATH": f"{nasty_backends}:{ROOT}", PASSWORD: "tell-nobody"}
        command = [sys.executable, "-m", "fiafuzz.cli.main", "fuzz", "--backend", "nasty-wrong-shape", "--seed", seed, "-n", "12"]
        command += ["--mode", "valid", "--phases", "explore", "--examples", server.url(prefix), "--out", name, "--corpus", f"corpus-{name}"]
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=240, check=False)
        return done, (tmp_path / name / "events.ndjson").read_text().splitlines()

    first, _ = ran("one", "5", "team:")
    assert first.returncode == 1 and "warning" not in first.stderr, first.stderr
    second, log = ran("two", "99", "team:")
    assert second.returncode == 1 and "warning" not in second.stderr, second.stderr
    assert '"finding"' in next(line for line in log if '"CaseDone"' in line)
    for text in (first.stderr, second.stderr, *(p.read_text() for p in tmp_path.rglob("*.json*") if "site" not in p.parts), *log):
        assert "tell-nobody" not in text


def test_runs_share_what_they_have_found(quick: Install, serve: Callable[..., Server], tmp_path: Path) -> None:
    server = serve()
    quick(odd_keys_are_wrong)
    one, _ = explored(tmp_path, "one", server.url("team:"))
    assert kept_ids(one) and not first_fails(one)
    keys = server.client.keys()
    assert keys and all(k.startswith(b"team:1/quick/950-v5/") for k in keys)
    assert all(server.client.ttl(k) > 7 * 24 * 3600 for k in keys), "what nobody looks at any more goes by itself"
    two, _ = explored(tmp_path, "two", server.url("team:"), seed=99)
    assert first_fails(two) and notes(two) == []
    before = server.client.smembers(keys[0])
    apart, _ = explored(tmp_path, "apart", server.url("others:"), seed=99)
    alone, _ = explored(tmp_path, "alone", LOCAL, seed=99)
    assert not first_fails(apart) and not first_fails(alone) and kept_ids(apart) == kept_ids(alone)
    assert server.client.smembers(keys[0]) == before, "another prefix is another team"
    assert any(k.startswith(b"others:") for k in server.client.scan_iter())


def test_what_is_saved_and_forgotten(serve: Callable[..., Server]) -> None:
    """Bytes of any kind come back as they were, and only what was handed on."""
    server, odd = serve(), bytes(range(256)) + b"\r\n$-1\r\n"
    one = opened(server.url())
    one.save(b"k", odd)
    assert server.client.dbsize() == 0
    one.commit()
    other = opened(server.url())
    assert list(other.fetch(b"k")) == [odd] and list(one.fetch(b"k")) == []
    other.delete(b"k", odd)
    other.commit()
    assert list(opened(server.url()).fetch(b"k")) == [] and one.problem is None and other.problem is None


@pytest.mark.parametrize("given, told", [
    ("", "the server wants a password; give it in FIAFUZZ_REDIS_PASSWORD"),
    ("wrong-one", "the server does not take the password in FIAFUZZ_REDIS_PASSWORD"),
])
def test_a_password_that_is_not_right(
    quick: Install, serve: Callable[..., Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, told: str
) -> None:
    server = serve(password="right-one")
    quick(odd_keys_are_wrong)
    monkeypatch.setenv(PASSWORD, given)
    events, summary = explored(tmp_path, "run", server.url())
    assert notes(events) == [f"example database: {told}"]
    as_without(tmp_path, events, summary)


def as_without(root: Path, events: list[Event], summary: Summary) -> None:
    """The run is what it would have been with nothing shared."""
    wanted, whole = explored(root, "wanted", LOCAL)
    assert len(kept_ids(wanted)) >= 1
    assert kept_ids(events) == kept_ids(wanted) and summary.status == whole.status == "findings"
    assert summary.cases == whole.cases and not summary.problems
    assert [e.digest for e in events if isinstance(e, CaseDone)] == [e.digest for e in wanted if isinstance(e, CaseDone)]


@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_a_server_that_goes_away_in_the_middle(
    quick: Install, serve: Callable[..., Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """One note, the same findings; a server that does not answer costs the time limit once."""
    monkeypatch.setattr(examples_module, "SECONDS", 1.0)
    server, calls = serve(), 0

    def wrong(case: Case) -> Optional[Result]:
        nonlocal calls
        calls += 1
        if calls == 8:
            server.end() if how == "killed" else os.kill(server.process.pid, signal.SIGSTOP)
        return odd_keys_are_wrong(case)

    quick(wrong)
    began = time.monotonic()
    events, summary = explored(tmp_path, "run", server.url())
    took = time.monotonic() - began
    assert calls > 8
    (note,) = notes(events)
    assert note.startswith("example database: ") and ("Timeout" if how == "frozen" else "Connection") in note and "\n" not in note
    as_without(tmp_path, events, summary)
    again = time.monotonic()
    explored(tmp_path, "timed", LOCAL)
    assert how == "killed" or took < (time.monotonic() - again) * 4 + 8, "not a time limit for each example"


def test_a_server_that_is_full(quick: Install, serve: Callable[..., Server], tmp_path: Path) -> None:
    """It refuses to write: a note that says why, without the bytes of the example."""
    server = serve("--maxmemory", "1", "--maxmemory-policy", "noeviction")
    quick(odd_keys_are_wrong)
    events, summary = explored(tmp_path, "run", server.url())
    assert notes(events) == ["example database: OutOfMemoryError: command not allowed when used memory > 'maxmemory'."]
    assert server.client.dbsize() == 0
    as_without(tmp_path, events, summary)


def test_a_server_that_fills_up_in_the_middle(quick: Install, serve: Callable[..., Server], tmp_path: Path) -> None:
    """What is written by then stays, whole."""
    server = serve("--maxmemory-policy", "noeviction")

    def wrong(case: Case) -> Optional[Result]:
        if server.client.dbsize():
            server.client.config_set("maxmemory", 1)
        return odd_keys_are_wrong(case)

    quick(wrong)
    events, summary = explored(tmp_path, "run", server.url())
    assert server.client.dbsize() and len(notes(events)) == 1 and "OutOfMemoryError" in notes(events)[0]
    as_without(tmp_path, events, summary)
    server.client.config_set("maxmemory", 0)
    quick(odd_keys_are_wrong)
    other, _ = explored(tmp_path, "other", server.url(), seed=99)
    assert first_fails(other) and notes(other) == []


def test_what_strangers_put_there(quick: Install, serve: Callable[..., Server], tmp_path: Path) -> None:
    """Bytes that are hardly an example, and a huge one, do no harm; a key of another kind is told."""
    server = serve()
    quick(odd_keys_are_wrong)
    explored(tmp_path, "one", server.url())
    keys = server.client.keys()
    server.client.flushall()
    for key in keys:
        server.client.sadd(key, b"\xff" * 40, b"", b"\x00", b"x" * (MAX_EXAMPLE_BYTES + 1))
    events, summary = explored(tmp_path, "run", server.url())
    assert notes(events) == [] and kept_ids(events) and summary.status == "findings" and summary.cases == 40
    server.client.flushall()
    for key in keys:
        server.client.set(key, "text")
    events, summary = explored(tmp_path, "other", server.url())
    (note,) = notes(events)
    assert note.startswith("example database: ") and "WRONGTYPE" in note
    as_without(tmp_path, events, summary)
