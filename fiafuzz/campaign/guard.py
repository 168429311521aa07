"""The guard: waits until its driver is gone and ends whatever the driver's workers left behind.

Run as ``python -I -S guard.py FD MARK [DIRECTORY]``: FD is the reading end of a pipe that the driver holds open as long as it
lives. A temporary directory of the driver's is removed in the end.
It leaves its launcher at once, so that it is nobody's child, and imports next to nothing, so that it is small.
"""

import contextlib
import os
import select
import signal
import sys
import time

DRIVER_MARK = "FIAFUZZ_DRIVER"
TEMPORARY = "fiafuzz-ray-"
"""How the names of directories begin that it may remove."""
LOOK = 1.0
"""Seconds between two looks at what a driver of a cluster has running."""
SWEEPS = 400
PAUSE = 0.025
QUIET_SWEEPS = 4
"""Sweeps without a find after which it believes that nothing is left (a process that is just starting shows no
environment)."""


def carriers(entry: bytes) -> list[int]:
    """Living processes with an entry NAME=VALUE in the environment that they were started with, and all below them (a process
    may write its title over its environment)."""
    found: list[int] = []
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
            with open(f"/proc/{name}/environ", "rb") as file:
                environment = file.read()
        except OSError:
            continue
        if fields[0] in (b"Z", b"X"):
            continue
        children.setdefault(int(fields[1]), []).append(int(name))
        if entry in environment.split(b"\0"):
            found.append(int(name))
    known = set(found)
    for pid in found:  # grows while it is walked
        below = [child for child in children.get(pid, ()) if child not in known]
        known.update(below)
        found.extend(below)
    return found


def start_of(pid: int) -> bytes:
    """When a living process was started, on the kernel's clock; together with its number that names it for good."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return b""
    return b"" if fields[0] in (b"Z", b"X") else fields[19]


def main() -> None:
    """Detach, wait, sweep."""
    fd, mark = int(sys.argv[1]), sys.argv[2]
    if os.fork():
        os._exit(0)
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    entry = f"{DRIVER_MARK}={mark}".encode()
    seen: dict[int, bytes] = {}
    while not select.select([fd], [], [], LOOK if sys.argv[3:] else None)[0]:
        # What hides its environment and loses its parent together with the driver would not be found afterwards.
        seen = {pid: start_of(pid) for pid in carriers(entry)}
    quiet = 0
    for _ in range(SWEEPS):
        left = [*carriers(entry), *(pid for pid, start in seen.items() if start and start_of(pid) == start)]
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        quiet = 0 if left else quiet + 1
        if quiet == QUIET_SWEEPS:
            break
        time.sleep(PAUSE)
    for directory in sys.argv[3:]:
        if os.path.basename(directory).startswith(TEMPORARY):
            import shutil

            shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
