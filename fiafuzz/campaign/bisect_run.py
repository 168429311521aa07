"""How a bisection asks a build: a command a build, without a shell, with a time limit, judged by its exit code.

The codes are those of ``git bisect run`` with those of fiafuzz beside them:

    0            good
    1, 6..124    bad
    125          this build cannot be tested (skip)
    4            the backend cannot run here: the build is broken
    3, 126, 127  fiafuzz or the command failed: the build is broken; so it is when a signal ends the command, when it
                 takes too long, or when it cannot be started
    2, 5         the command itself is wrong (usage, unreadable input, nothing selected): the search stops
    130          interrupted: the search stops
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, Optional

import msgspec

from .bisect import BAD, BROKEN, GOOD, SKIP, Answer, BisectError
from .results import clean

TAIL = 64 * 1024
"""How much of the end of a command's output is looked at and kept."""
GRACE_SECONDS = 3.0
UNTOLD: frozenset[str] = frozenset({"unsupported", "untestable", "skipped"})
"""Statuses of ``fiafuzz replay --json`` in which nothing was tested, although nothing failed either."""
_PLACE = re.compile(r"\{build\}|\{case\}")
_STOPPING = {2: "usage or unreadable input", 5: "nothing was selected"}
_BROKEN = {3: "an internal error", 4: "it cannot run here", 126: "the command cannot be executed", 127: "the command was not found"}


class Stopped(Exception):
    """The search was interrupted."""


@dataclass(frozen=True)
class Ran:
    """One run of a command. ``code`` is None when it did not end by itself; ``why`` says what happened then. ``output``:
    the end of what it printed on both streams."""

    code: Optional[int]
    output: str
    seconds: float
    why: str = ""


@dataclass(frozen=True)
class Command:
    """The template of a command: words, in which {build} and {case} are replaced."""

    words: tuple[str, ...]

    @staticmethod
    def parse(text: str) -> Command:
        """Split a template as a shell would, without one. BisectError when that cannot be done, or nothing is left."""
        try:
            words = tuple(shlex.split(text))
        except ValueError as error:
            raise BisectError(f"the command cannot be split into words: {error}") from None
        if not words:
            raise BisectError("the command is empty")
        return Command(words)

    @property
    def names_build(self) -> bool:
        """Whether {build} stands in it."""
        return any("{build}" in word for word in self.words)

    @property
    def names_case(self) -> bool:
        """Whether {case} stands in it."""
        return any("{case}" in word for word in self.words)

    def filled(self, build: str, case: str) -> tuple[str, ...]:
        """The words for one build; what is put in is never split or looked at again."""
        words = {"{build}": build, "{case}": case}
        return tuple(_PLACE.sub(lambda found: words[found[0]], word) for word in self.words)


def answer_of(ran: Ran) -> Answer:
    """What the end of a command says about its build. BisectError when the command itself is wrong, Stopped when it was
    interrupted."""
    seconds = round(ran.seconds, 3)
    last = _last_line(ran.output)
    if ran.code is None:
        return Answer(BROKEN, ran.why, None, seconds=seconds)
    if ran.code == 130:
        raise Stopped
    if ran.code in _STOPPING:
        raise BisectError(f"the command ended with {ran.code} ({_STOPPING[ran.code]}): {last}")
    if ran.code == 125:
        return Answer(SKIP, last, 125, seconds=seconds)
    if ran.code in _BROKEN:
        return Answer(BROKEN, f"{_BROKEN[ran.code]}: {last}" if last else _BROKEN[ran.code], ran.code, seconds=seconds)
    if ran.code < 0 or ran.code > 127:
        number = -ran.code if ran.code < 0 else ran.code - 128
        return Answer(BROKEN, f"the command was ended by {_signal_name(number)}", ran.code, seconds=seconds)
    if ran.code == 0:
        untold = _untold(ran.output)
        if untold:
            return Answer(SKIP, f"nothing failed, but the case is {untold}", 0, seconds=seconds)
        return Answer(GOOD, last, 0, seconds=seconds)
    return Answer(BAD, last, ran.code, failed=1, seconds=seconds)


def _untold(output: str) -> str:
    """The status with which ``fiafuzz replay --json`` tells that a case was not tested; "" when any was, or another
    command ran."""
    statuses = []
    for line in output.splitlines():
        if line.startswith("{"):
            with contextlib.suppress(msgspec.DecodeError, RecursionError):
                data: Any = msgspec.json.decode(line)
                if isinstance(data, dict) and {"name", "status", "backend", "profile"} <= set(data):
                    statuses.append(str(data["status"]))
    return statuses[0] if statuses and set(statuses) <= UNTOLD else ""


def _last_line(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return clean(lines[-1], 300) if lines else ""


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


@dataclass
class Asker:
    """Asks builds. ``case`` and ``canary`` are files ("" for none): the case, and a call that must work on every build.

    A build that fails the case ``tries`` times at most is bad as soon as it fails once; before that is believed, the canary
    is run: a build that fails it too is broken. ``limit`` in seconds bounds each run.
    """

    command: Command
    case: str
    canary: str
    limit: float
    tries: int = 1
    run: Callable[[Sequence[str], float], Ran] = lambda words, limit: run_command(words, limit)
    keep: Callable[[str, str, Ran], None] = lambda build, what, ran: None

    def __call__(self, build: str) -> Answer:
        """The answer of one build."""
        answer = self.case_on(build)
        if answer.answer == BAD and self.canary:
            must = self.canary_on(build)
            if must.answer != GOOD:
                return _taken_back(answer, BROKEN, f"the call that must work gives {must.answer} too: {must.text}", must.seconds)
        return answer

    def case_on(self, build: str) -> Answer:
        """The case alone, up to ``tries`` times."""
        seconds = 0.0
        for number in range(1, self.tries + 1):
            answer = self._once(build, self.case, "case" if number == 1 else f"case-{number}")
            seconds += answer.seconds
            if answer.answer != GOOD:
                break
        flaky = f"failed in run {number} of {self.tries}; " if answer.answer == BAD and number > 1 else ""
        return msgspec.structs.replace(answer, tries=number, seconds=round(seconds, 3), text=flaky + answer.text)

    def canary_on(self, build: str) -> Answer:
        """The call that must work."""
        return self._once(build, self.canary, "must-work")

    def _once(self, build: str, case: str, what: str) -> Answer:
        ran = self.run(self.command.filled(build, case), self.limit)
        self.keep(build, what, ran)
        return answer_of(ran)


def _taken_back(answer: Answer, kind: str, text: str, seconds: float) -> Answer:
    """An answer taken back for another one."""
    return msgspec.structs.replace(answer, answer=kind, text=clean(text, 400), seconds=round(answer.seconds + seconds, 3))


def run_command(words: Sequence[str], limit: float) -> Ran:
    """Run a command to its end or the time limit, in a process group of its own; the whole group is ended with it.

    Standard input is empty; of the output only the end is kept. A KeyboardInterrupt ends the group and goes on.
    """
    began = monotonic()
    try:
        process = subprocess.Popen(
            list(words), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
        )
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        return Ran(None, "", 0.0, f"{clean(words[0], 200)} cannot be started: {reason}")
    tail = _Tail(process)
    tail.start()
    try:
        code: Optional[int] = process.wait(limit)
        why = ""
    except subprocess.TimeoutExpired:
        code, why = None, f"it took longer than {limit:g} s"
    finally:
        _end(process)
        tail.join(GRACE_SECONDS)  # a child that left the group may still hold the other end
        if not tail.is_alive() and process.stdout is not None:
            process.stdout.close()
    return Ran(code, tail.text(), monotonic() - began, why)


class _Tail(threading.Thread):
    """Reads what a process prints and keeps the end of it."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        super().__init__(daemon=True)
        assert process.stdout is not None
        self._fd = process.stdout.fileno()
        self._process = process
        self._kept = b""

    def run(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            while data := os.read(self._fd, 1 << 16):
                self._kept = (self._kept + data)[-TAIL:]

    def text(self) -> str:
        """What was kept."""
        return self._kept.decode("utf-8", "replace")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End what is left of the process group: politely, then for good."""
    for number, seconds in ((signal.SIGTERM, GRACE_SECONDS), (signal.SIGKILL, GRACE_SECONDS)):
        if process.poll() is None:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(seconds)
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)  # children that it left behind

