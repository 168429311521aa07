"""Small file systems in a mount namespace that nobody else sees, and fiafuzz run on them.

``Disks`` starts this module as a process of its own (``unshare -m``), which mounts what it is told to and runs command lines: whole
ones with workers, or *quick* ones, forked off a process that has everything imported, whose calls are answered at once by a rule with
three faults. The namespace and what is mounted in it end with that process, however the test ends.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT = 120.0


def why_not() -> str:
    """Why nothing can be mounted here; "" where it can. It is a right that the machine gives (root with CAP_SYS_ADMIN, or user
    namespaces), nothing that could be installed."""
    if shutil.which("unshare") is None:
        return "there is no unshare (util-linux)"
    probe = [*_unshare(), "mount", "-t", "tmpfs", "-o", "size=64k", "none", "/tmp"]
    done = subprocess.run(probe, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else " ".join(done.stderr.split()) or f"unshare -m mount ended with {done.returncode}"


def _unshare() -> list[str]:
    return ["unshare", "-m", *([] if os.geteuid() == 0 else ["-r"])]


@dataclass(frozen=True)
class Ran:
    """What a command line ended with and printed."""

    code: int
    out: str
    err: str

    @property
    def told(self) -> list[str]:
        """Lines that begin with the name of the program."""
        return [line for line in self.err.splitlines() if line.startswith("fiafuzz: ")]


class Disks:
    """The other process. Paths are as it sees them; ``seen`` gives those by which this process gets there."""

    def __init__(self, root: Path) -> None:
        self.root = root
        env = dict(os.environ, PYTHONPATH=os.pathsep.join([*(p or os.getcwd() for p in sys.path), str(ROOT)]), PYTHONDONTWRITEBYTECODE="1")
        self._process = subprocess.Popen(
            [*_unshare(), sys.executable, "-m", "tests.robustness.small_disks", str(root)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env, cwd=ROOT,
        )

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)

    def _ask(self, **order: Any) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def mount(self, place: Path, options: str) -> None:
        """A tmpfs at a place, which is made; ``remount`` among the options changes the one that is there."""
        failed = self._ask(mount=str(place), options=options)
        assert not failed, failed

    def run(
        self, *words: str, quick: bool = True, env: Optional[dict[str, str]] = None, at: int = 0, deed: Optional[list[str]] = None,
        where: Optional[Path] = None, full: str = "",
    ) -> Ran:
        """``fiafuzz WORDS``, in the directory ``where``. A quick one does ``deed``, a command, when it comes to its ``at``-th call;
        ``full``: "out" or "err", that stream of it cannot be written."""
        streams = {full: "/dev/full"} if full else {}
        order = {"quick": quick, "env": env or {}, "at": at, "deed": deed or [], "where": str(where or self.root), **streams}
        return Ran(**self._ask(run=list(words), **order))

    def seen(self, path: Path) -> Path:
        """The path by which this process sees a path of the other."""
        return Path(f"/proc/{self._process.pid}/root{path}")


# ---- the other process ------------------------------------------------------------------------------------


def wrong(case: Any) -> Any:
    """Three faults, so that several findings are kept."""
    from fiafuzz.campaign.results import Judged, Result
    from fiafuzz.model.scene import Scene

    scene = Scene(case)
    if (scene.KV_S or 0) % 2:
        return Result("ok", judged=Judged(False, "F103", text="wrong shape"))
    if case.attrs.softmaxLseFlag:
        return Result("ok", judged=Judged(False, "F101", 4.0, compared=8, text="off"))
    return Result("crash", message="killed by SIGSEGV", signal=11) if (scene.Q_S or 0) > 2 else None


def _mount(place: str, options: str) -> str:
    os.makedirs(place, exist_ok=True)
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", place], capture_output=True, text=True, check=False)
    return done.stderr if done.returncode else ""


def _forked(order: dict[str, Any]) -> int:
    """The exit code of a quick command line, run in a copy of this process."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    code: Any = 99
    signal.alarm(int(TIMEOUT))
    try:
        os.chdir(order["where"])
        os.environ.update(order["env"])
        for fd, name in ((0, os.devnull), (1, order["out"]), (2, order["err"])):
            os.dup2(os.open(name, os.O_RDWR), fd)
        calls = 0

        def answered(case: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == order["at"]:
                subprocess.run(order["deed"], check=True)
            return wrong(case)

        import pytest

        from tests.unit.quick_runs import make_quick

        make_quick(pytest.MonkeyPatch())(answered)
        from fiafuzz.cli.main import main

        main(order["run"])
    except SystemExit as stop:
        code = stop.code
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code if isinstance(code, int) else 98)


def _whole(order: dict[str, Any]) -> int:
    """The exit code of a command line as a user runs it."""
    with open(order["out"], "wb") as out, open(order["err"], "wb") as err:
        command = [sys.executable, "-m", "fiafuzz.cli.main", *order["run"]]
        env = {**os.environ, **order["env"]}
        return subprocess.run(
            command, cwd=order["where"], env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=err, timeout=TIMEOUT, check=False
        ).returncode


def _serve(scratch: Path) -> None:
    import pytest

    from fiafuzz.campaign import canary

    canary.sing = lambda *_: (True, "left out")  # it is about workers, and quick runs have none
    import fiafuzz.cli.display
    import fiafuzz.cli.fuzz  # noqa: F401
    from tests.unit.quick_runs import make_quick, plan_in, run

    with pytest.MonkeyPatch.context() as patch:  # what a first run makes once is there for all
        make_quick(patch)(wrong)
        run(plan_in(scratch / "first", phases=("sweep", "explore", "bulk"), max_cases=8, shrink_runs=2))
    out, err = scratch / "stdout", scratch / "stderr"
    for line in sys.stdin:
        order = json.loads(line)
        if "mount" in order:
            answer: Any = _mount(order["mount"], order["options"])
        else:
            out.write_bytes(b"")
            err.write_bytes(b"")
            order = {"out": str(out), "err": str(err), **order}
            code = _forked(order) if order["quick"] else _whole(order)
            answer = {"code": code, "out": out.read_text(errors="replace"), "err": err.read_text(errors="replace")}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
