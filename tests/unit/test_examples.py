"""The example database of the explore phase: local, in a shared directory, and one that fails. tests/robustness/test_real_redis.py
has a Redis server."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fiafuzz.campaign.explore as explore
import fiafuzz.campaign.whole_files as whole_files
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


def test_an_example_that_was_cut_off_is_written_again(tmp_path: Path) -> None:
    """Earlier versions could leave a part of one; a killed run leaves a temporary file, which nobody reads and the next one removes."""
    def saved() -> list[Path]:
        one = opened(str(tmp_path / "shared"), tmp_path)
        one.save(b"k", b"value")
        one.commit()
        return [p for p in (tmp_path / "shared").rglob("*") if p.is_file()]

    (path,) = saved()
    assert path.read_bytes() == b"value" and path.stat().st_mode & 0o777 == 0o644
    path.write_bytes(b"va")
    left = path.parent / f".{path.name}.{whole_files._here()}-4194305-1-abcdefgh.tmp"
    left.write_bytes(b"val")
    assert list(opened(str(tmp_path / "shared"), tmp_path).fetch(b"k")) == [b"va"]
    assert saved() == [path] and path.read_bytes() == b"value"


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
