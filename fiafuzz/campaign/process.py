"""One worker process seen from the driver: start it, hand it jobs, read its results, notice that it died or hangs, end
it.

A worker is always spawned (never forked), in a session of its own so that a Ctrl-C at the terminal does not reach it,
and with marks in its environment so that whatever it starts can be killed with it (offspring.py).
"""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from time import monotonic, sleep
from typing import Optional

import msgspec

from fiafuzz.model.case import Case

from .guard import DRIVER_MARK
from .offspring import WORKER_MARK, driver_mark, end_offspring, new_mark
from .results import Result, clean
from .starvation import Starvation
from .wire import MAX_OUTPUT_FRAME, Back, Done, FrameReader, FromWorker, Hello, Job, Part, Refused, Setup, pack
from .worker import MARK, RECALLED

READ_SIZE = 1 << 18
NOISE_KEPT = 4096
"""Bytes of a worker's own stdout and stderr that are kept for the text of a crash."""
ABORT_GRACE = 0.3
"""Seconds that a hanging worker gets to print where it hangs before it is killed."""
PATIENCE = 2.0
"""How many times its limit a case may take longer on a machine that has no core for it."""
WATCH_FROM = 0.1
"""Share of its limit after which a case is asked whether it waits for a core."""
RECENT = 8
"""Cases that are remembered of what a process has run."""
NOT_RUN = frozenset({"skipped", "unsupported", "untestable", "internal"})
"""Kinds of result that leave no trace in the backend."""


def _shared_page() -> int:
    """A file descriptor of one page of memory that outlives the worker."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("fiafuzz-mark")
    else:  # other systems than Linux
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, mmap.PAGESIZE)
    return fd


def _environment(mark: str, extra: Mapping[str, str]) -> dict[str, str]:
    """The worker sees the modules that the driver sees, and nothing of the current directory besides."""
    env = {**os.environ, **extra, WORKER_MARK: mark, DRIVER_MARK: driver_mark()}
    env["PYTHONPATH"] = os.pathsep.join(p or os.getcwd() for p in sys.path)
    env["PYTHONSAFEPATH"] = "1"
    env["PYTHONUNBUFFERED"] = "1"
    env.setdefault("OMP_NUM_THREADS", "1")
    return env


@dataclass(frozen=True)
class Answer:
    """What a worker answered to a job that it held: a result, or None for one that it gives back unrun. ``recalled``: the
    driver had asked for it back. ``seconds``: since its last case was begun, as far as the driver can tell. ``recent``: the last few
    cases that the process had run before the job, the latest last."""

    job: Job
    result: Optional[Result]
    recalled: bool
    seconds: float
    recent: tuple[Case, ...] = ()


class WorkerProcess:
    """A running worker. ``pending`` holds the jobs that it has not answered yet, the one in work first.

    ``since`` is when the case in work was begun, as far as the driver can tell. ``hello`` is None until the backend is
    loaded. ``environment`` is added to that of this process. ``spent``: it has said itself that it must not go on. ``recent``: the last
    few cases that it has run, the latest last.
    """

    def __init__(self, setup: Setup, environment: Optional[Mapping[str, str]] = None) -> None:
        self.setup = setup
        self.spent = False
        self.mark = new_mark()
        self._sent = 0
        self._recalled = (0, 0)
        """Jobs from the first number up to the second have been asked back (numbers count from 1)."""
        self.pending: deque[Job] = deque()
        self.since = monotonic()
        self.hello: Optional[Hello] = None
        self.refused: Optional[Refused] = None
        self.ran = 0
        self.recent: deque[Case] = deque(maxlen=RECENT)
        self._parts: list[Result] = []
        """Results of the cases before that of the job in work."""
        self._outgoing = bytearray()
        self._reader = FrameReader(MAX_OUTPUT_FRAME)
        self._noise: deque[bytes] = deque(maxlen=2)
        self._killed_for = ""
        self.lost = False
        job_read, job_write = os.pipe()
        result_read, result_write = os.pipe()
        noise_read, noise_write = os.pipe()
        mark = _shared_page()
        self._page = mmap.mmap(mark, mmap.PAGESIZE)
        handed = (job_read, result_write, mark)
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "fiafuzz.campaign.worker", *map(str, handed), str(os.getpid())],
                pass_fds=handed,
                stdin=subprocess.DEVNULL,
                stdout=noise_write,
                stderr=noise_write,
                start_new_session=True,
                env=_environment(self.mark, environment or {}),
                close_fds=True,
            )
        except BaseException:
            for fd in (job_write, result_read, noise_read):
                os.close(fd)
            raise
        finally:
            for fd in (*handed, noise_write):
                os.close(fd)
        self._starvation = Starvation(self.process.pid)
        self.job_fd, self.result_fd, self.noise_fd = job_write, result_read, noise_read
        for fd in (job_write, result_read, noise_read):
            os.set_blocking(fd, False)
        self._outgoing += pack(setup)
        self.flush()

    # ---- jobs out, results in -------------------------------------------------------------------

    def send(self, job: Job) -> None:
        """Queue a job; what the pipe does not take at once goes out with ``flush``."""
        if not self.pending:
            self.since = monotonic()
        self._sent += 1
        self.pending.append(job)
        self._outgoing += pack(job)
        self.flush()

    def flush(self) -> None:
        """Write as much as the pipe takes."""
        while self._outgoing:
            try:
                with memoryview(self._outgoing) as view:
                    sent = os.write(self.job_fd, view)
            except BlockingIOError:
                return
            except OSError:  # the worker is gone: reading will tell
                self._outgoing.clear()
                return
            del self._outgoing[:sent]

    @property
    def wants_to_write(self) -> bool:
        """Whether bytes wait for room in the pipe."""
        return bool(self._outgoing)

    def recall(self) -> list[Job]:
        """Ask for the jobs behind the one in work back; they may be given to others at once. Should the worker begin one of
        them all the same, its answer comes marked as recalled."""
        if len(self.pending) < 2 or any(self._is_recalled(i) for i in range(len(self.pending))):
            return []
        self._recalled = (self._sent - len(self.pending) + 2, self._sent)
        with memoryview(self._page).cast("Q") as page:
            page[RECALLED] = self._sent
        return list(self.pending)[1:]

    def _is_recalled(self, place: int) -> bool:
        """Whether the job at a place of ``pending`` has been asked back."""
        first, last = self._recalled
        return first <= self._sent - len(self.pending) + 1 + place <= last

    def leave(self) -> tuple[Optional[Job], list[Job], list[Job]]:
        """Take everything that is pending, after the worker was lost: the job in work (None when it had been asked back),
        those behind it that had not been, and those that had."""
        recalled = [self._is_recalled(i) for i in range(len(self.pending))]
        pending = list(self.pending)
        self.pending.clear()
        first = pending[0] if pending and not recalled[0] else None
        kept = [job for job, asked in zip(pending[1:], recalled[1:]) if not asked]
        return first, kept, [job for job, asked in zip(pending, recalled) if asked]

    def receive(self) -> list[Answer]:
        """Answers that have come in; sets ``hello``, ``refused`` and, at the end of the stream, ``lost``."""
        found: list[Answer] = []
        try:
            data = os.read(self.result_fd, READ_SIZE)
        except BlockingIOError:
            return found
        except OSError:
            data = b""
        if not data:
            self.lost = True
            return found
        for message in self._reader.feed(data):
            answer = self._take(message)
            if answer is not None:
                found.append(answer)
        if self._reader.error is not None and not self.lost:
            self._killed_for = f"sent nonsense: {self._reader.error}"
            self.lost = True
        return found

    def _take(self, message: FromWorker) -> Optional[Answer]:
        if isinstance(message, Hello):
            self.hello = message
            self.since = monotonic()
        elif isinstance(message, Refused):
            self.refused = message
        elif isinstance(message, (Part, Done, Back)):
            if self.pending and self.pending[0].id == message.id:
                if isinstance(message, Part):
                    self._parts.append(message.result)
                    self.since = monotonic()
                    return None
                result = self._with_parts(message.result) if isinstance(message, Done) else None
                job = self.pending[0]
                answer = Answer(job, result, self._is_recalled(0), self.busy_seconds, tuple(self.recent))
                self.pending.popleft()
                self._parts.clear()
                self.since = monotonic()
                if result is not None:
                    self.ran += 1
                    self._remember(job, result)
                    if result.fatal:
                        self.spent = self.lost = True
                return answer
            self._killed_for = f"answered job {message.id} out of turn"
            self.lost = True
        return None

    def _with_parts(self, result: Result) -> Result:
        return msgspec.structs.replace(result, before=tuple(self._parts)) if self._parts else result

    def _remember(self, job: Job, result: Result) -> None:
        if job.backend is None:
            done = zip((*job.before, job.case), (*result.before, result)) if job.before else ((job.case, result),)
            self.recent.extend(case for case, one in done if one.kind not in NOT_RUN)

    def drain_noise(self) -> bool:
        """Take what the worker printed; only the end is kept, and a flood never blocks it. False when nothing more can
        come."""
        try:
            data = os.read(self.noise_fd, READ_SIZE)
        except BlockingIOError:
            return True
        except OSError:
            return False
        if data:
            self._noise.append(data[-NOISE_KEPT:])
        return bool(data)

    # ---- how it is --------------------------------------------------------------------------------

    @property
    def busy_seconds(self) -> float:
        """How long the case in work has been running (0 when there is none)."""
        return monotonic() - self.since if self.pending else 0.0

    def hangs(self, limit: float) -> bool:
        """Whether the case in work has taken longer than so many seconds. Time that the process spent waiting for a core is not
        held against it, up to ``PATIENCE`` times the limit. To be asked now and then from the start of a case on."""
        busy = self.busy_seconds
        if busy < limit * WATCH_FROM:
            return False
        return busy - min(self._starvation.seconds(self.since), PATIENCE * limit) > limit

    @property
    def stage(self) -> int:
        """Number of the stage of the job in work (execute.STAGES); 0 when the page speaks of another job."""
        job_id, stage = MARK.unpack_from(self._page, 0)
        return int(stage) if self.pending and job_id == self.pending[0].id and 0 <= stage <= 4 else 0

    def rss(self) -> int:
        """Resident memory in bytes, 0 when it cannot be read."""
        try:
            with open(f"/proc/{self.process.pid}/statm", encoding="ascii") as file:
                return int(file.read().split()[1]) * mmap.PAGESIZE
        except (OSError, ValueError, IndexError):
            return 0

    # ---- its end ------------------------------------------------------------------------------------

    def kill(self, reason: str, *, ask_where: bool = False) -> None:
        """End the worker and everything that it started. With ``ask_where`` it gets a moment to print its Python
        stack."""
        self._killed_for = reason
        if ask_where and not self._ended(0.0):
            with contextlib.suppress(OSError):
                os.kill(self.process.pid, signal.SIGABRT)
            self._ended(ABORT_GRACE)
        self._kill_group()
        self.lost = True

    @property
    def ended(self) -> bool:
        """Whether the process is gone (a pipe that one of its children holds open does not tell)."""
        return self._ended(0.0)

    def _ended(self, seconds: float) -> bool:
        """Wait for the process to end, without reaping it; whether it did."""
        end = monotonic() + seconds
        while self.process.returncode is None:
            self.drain_noise()
            try:
                if os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                    return True
            except ChildProcessError:
                return True
            if monotonic() >= end:
                return False
            sleep(0.005)
        return True

    def _kill_group(self) -> None:
        """Kill the worker and its children. Only before it is reaped: until then its group id cannot belong to a
        stranger."""
        if self.process.returncode is None:
            with contextlib.suppress(OSError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def death(self) -> Result:
        """How the case in work ended, after the worker was lost: a result of kind crash, hang or oom."""
        return self._with_parts(self._death())

    def _death(self) -> Result:
        from .execute import STAGES

        stage = STAGES[self.stage]
        self._reap()
        self.drain_noise()
        tail = clean(self.noise(), 1500)
        code = self.process.returncode
        if self._killed_for in ("hang", "oom"):
            what = {"hang": f"no answer after {self.busy_seconds:.1f} s", "oom": "over the memory limit"}[
                self._killed_for
            ]
            return Result(self._killed_for, message=_joined(what, tail), stage_at=stage)
        if not self._killed_for and code is not None and code < 0:
            name = signal.Signals(-code).name if -code in list(signal.Signals) else f"signal {-code}"
            hint = " (killed from outside, perhaps for want of memory)" if code == -signal.SIGKILL else ""
            return Result("crash", message=_joined(f"killed by {name}{hint}", tail), signal=-code, stage_at=stage)
        reason = self._killed_for or f"the process ended with status {code}"
        return Result("crash", message=_joined(reason, tail), stage_at=stage)

    def noise(self) -> str:
        """The end of what the worker printed."""
        return b"".join(self._noise)[-NOISE_KEPT:].decode("utf-8", "replace")

    def _reap(self) -> None:
        self._ended(1.0)
        self._kill_group()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(5.0)

    def close(self) -> None:
        """End the worker (it has nothing to lose) and give back everything that the driver holds of it."""
        self._kill_group()
        end_offspring(self.mark)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(5.0)
        for fd in (self.job_fd, self.result_fd, self.noise_fd):
            with contextlib.suppress(OSError):
                os.close(fd)
        with contextlib.suppress(BufferError, ValueError):
            self._page.close()


def _joined(first: str, rest: str) -> str:
    rest = rest.strip()
    return f"{first}\n{rest}" if rest else first


def versions_of(hello: Optional[Hello]) -> Mapping[str, str]:
    """Versions that a worker reported."""
    return hello.versions if hello else {}
