"""The worker process: loads one backend and runs jobs until the driver goes away.

Started as ``python -m fiafuzz.campaign.worker IN OUT MARK`` with three file descriptors: jobs come in on the first,
results go out on the second, and the third is a page of shared memory in which the worker leaves the job and the stage
that it is in, so that the driver can tell after a crash or a hang what was being done. On the same page the driver leaves
how many jobs it has recalled: those that the worker had not begun go back unrun.
"""

from __future__ import annotations

import ctypes
import faulthandler
import mmap
import os
import resource
import signal
import struct
import sys
from typing import TYPE_CHECKING, Optional

from fiafuzz import __version__

from .results import clean, in_words
from .wire import PROTOCOL, Back, Done, Hello, Job, Part, Refused, Setup, WireError, WorkerWire

if TYPE_CHECKING:
    from fiafuzz.backends.protocol import Backend

MARK = struct.Struct("<qB")
"""Job id and stage number on the shared page."""
RECALLED = 8
"""Place on the shared page, in steps of eight bytes, of the number of jobs up to which the driver has recalled what is not
begun."""
PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4


def _die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when the driver's thread ends; elsewhere than on Linux the closed pipe must
    do."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    except (OSError, AttributeError):
        return
    if os.getppid() != parent:  # it died before the kernel was asked
        os._exit(1)


def _limit_memory(extra: int) -> None:
    """Let private memory grow by at most ``extra`` bytes over what is used now (Linux 4.7+: RLIMIT_DATA counts private
    mappings)."""
    if extra <= 0:
        return
    used = 0
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:
            for line in status:
                if line.startswith("VmData:"):
                    used = int(line.split()[1]) * 1024
    except (OSError, ValueError):
        return
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = used + extra
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))


def _load(setup: Setup) -> Backend:
    from fiafuzz.backends.registry import get_backend

    return get_backend(setup.backend, setup.profile)


def _one_thread() -> None:
    """Keep native libraries to one thread each: workers share the machine."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"):
        os.environ.setdefault(name, "1")


def main(arguments: Optional[list[str]] = None) -> int:
    """Serve jobs. Returns 0 when the driver has gone, 1 when the worker could not start."""
    read_fd, write_fd, mark_fd, parent = (int(a) for a in (arguments or sys.argv[1:]))
    _die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.enable()
    _one_thread()
    for fd in (read_fd, write_fd, mark_fd):
        os.set_inheritable(fd, False)
    page = mmap.mmap(mark_fd, mmap.PAGESIZE)
    wire = WorkerWire(read_fd, write_fd)
    try:
        return _serve(wire, page)
    except (BrokenPipeError, ConnectionResetError):
        return 0


def _serve(wire: WorkerWire, page: mmap.mmap) -> int:
    setup = wire.read()
    if not isinstance(setup, Setup):
        return 1
    if setup.protocol != PROTOCOL:
        wire.write(Refused("error", f"the driver speaks protocol {setup.protocol}, this worker {PROTOCOL}"))
        return 1
    try:
        backend = _load(setup)
        info = backend.info
        from .execute import Executor
    except BaseException as error:
        # By name: importing the class would import a backend package that may be what is broken.
        kind = "unavailable" if type(error).__name__ == "BackendUnavailable" else "error"
        wire.write(Refused(kind, in_words(error).partition(": ")[2] or in_words(error)))
        return 1
    job_id = 0

    def mark(stage: int) -> None:
        MARK.pack_into(page, 0, job_id, stage)

    executor = Executor(
        backend,
        setup.standard,
        lambda name, profile: _load(Setup(name, profile or setup.profile)),
        mark,
        setup.profile,
        setup,
    )
    executor.warm_up()
    _limit_memory(setup.memory)
    wire.write(
        Hello(
            info.name,
            info.title,
            info.checks,
            {k: clean(v, 200) for k, v in info.versions.items()},
            {k: clean(v, 200) for k, v in info.policies.items()},
            info.deterministic,
            tuple(info.profiles),
            info.device,
            info.devices,
            __version__,
        )
    )
    recalled = memoryview(page).cast("Q")
    taken = 0
    while True:
        try:
            job = wire.read()
        except WireError:
            return 1
        if not isinstance(job, Job):
            return 0 if job is None else 1
        taken += 1
        if taken <= recalled[RECALLED]:
            wire.write(Back(job.id))
            continue
        job_id = job.id
        for place, result in enumerate(executor.run_through(job)):
            more = place < len(job.before) and not result.fatal
            wire.write(Part(job.id, result) if more else Done(job.id, result))
            if result.fatal:  # what is left of the backend might wait for a device that no longer answers
                os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
