"""Files that are there whole or not at all, and what writers that were killed leave."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fiafuzz.campaign.whole_files import clear_left, write_once, write_whole


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "run.json"
    write_whole(target, b"one")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError):
        write_whole(target, b"two")
    assert target.read_bytes() == b"one" and os.listdir(tmp_path) == ["run.json"]


@pytest.mark.parametrize("writer", ["write_once(folder, 'a.json', b'x')", "write_whole(folder / 'a.json', b'x')"])
def test_what_a_killed_writer_leaves_is_taken_away_and_nothing_else(writer: str, tmp_path: Path) -> None:
    """Killed while the data goes to disk; another writer is still at it, a third one was on another machine."""
    script = (
        "import os, sys\nfrom pathlib import Path\nfrom fiafuzz.campaign.whole_files import write_once, write_whole\n"
        "folder = Path(sys.argv[1])\n"
        "os.fsync = lambda fd: (print('writing', flush=True), sys.stdin.read())\n"
        f"{writer}\n"
    )
    killed, living = (
        subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(2)
    )
    try:
        for process in (killed, living):
            assert process.stdout is not None and process.stdout.readline() == b"writing\n"
        names = set(os.listdir(tmp_path))
        (of_the_living,) = (name for name in names if f"-{living.pid}-" in name)
        here = of_the_living.split(".")[3].split("-")[0]
        others = {of_the_living.replace(f".{here}-", f".{int(here, 16) ^ 1:08x}-").replace(f"-{living.pid}-", "-1-"), ".a.json.x.tmp",
                  "b.json", ".gitignore"}
        for name in others:
            (tmp_path / name).touch()
        assert clear_left(tmp_path) == []  # both live
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        assert clear_left(tmp_path) == [*(names - {of_the_living})]
        assert set(os.listdir(tmp_path)) == {of_the_living, *others}
        living.communicate(timeout=30)
        assert living.returncode == 0 and set(os.listdir(tmp_path)) == {"a.json", *others}
    finally:
        for process in (killed, living):
            process.kill()
            process.communicate()


def test_a_number_that_another_process_has_by_now_is_no_sign_of_life(tmp_path: Path) -> None:
    write_once(tmp_path, "a.json", b"x")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "unlink", lambda path: None)
        write_whole(tmp_path / "b.json", b"x")  # renamed, so nothing is left
        with pytest.raises(FileExistsError):
            write_once(tmp_path, "a.json", b"x")
    (left,) = (name for name in os.listdir(tmp_path) if name.endswith(".tmp"))
    assert clear_left(tmp_path) == []  # this process lives
    head, _, tail = left.rpartition("-")
    head, _, start = head.rpartition("-")
    again = f"{head}-{int(start) - 1}-{tail}"
    os.rename(tmp_path / left, tmp_path / again)
    assert clear_left(tmp_path) == [again] and clear_left(tmp_path / "nowhere") == []
