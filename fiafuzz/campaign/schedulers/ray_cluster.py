"""The connection to a Ray cluster: found, or started on this machine, without noise and without traces."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Optional

from fiafuzz.campaign.guard import DRIVER_MARK, TEMPORARY
from fiafuzz.campaign.offspring import driver_mark, guard_directory

from .devices import cores
from .protocol import BackendRefused

INSTALL = "pip install 'fiafuzz[ray]'"
OBJECT_STORE = 128 << 20
"""Bytes for objects on a cluster that is started here: what crosses it are cases and results of a few kilobytes."""
CONNECT_SECONDS = 10.0
LONGEST_TEMPORARY = 40
"""Characters of a directory in which Ray's sockets still get names that the kernel takes."""


def is_there() -> bool:
    """Whether Ray is installed."""
    return find_spec("ray") is not None


def module() -> Any:
    """The package ray, imported when it is used."""
    return import_module("ray")


class Cluster:
    """A connection to the cluster at ``address``: HOST:PORT, "auto" (the one that this machine is part of, or a new one) or
    "local" (a new one). ``ours``: it was made here, and ends with ``close``."""

    def __init__(self, address: str) -> None:
        if not is_there():
            raise BackendRefused(f"Ray is not installed: {INSTALL}")
        self.address = address
        self.ours = False
        self._temporary: Optional[str] = None

    def connect(self) -> None:
        """Connect, or start a cluster of this machine when "auto" finds none. BackendRefused when there is no way."""
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a test tool sends nothing anywhere
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        ray = module()

        if ray.is_initialized():
            return
        _mute()
        with _quietly():
            if self.address not in ("auto", "local"):
                self._join(ray, self.address)
            elif "local" in (self.address, os.environ.get("RAY_ADDRESS")) or not self._find(ray):
                self._start(ray)

    def _find(self, ray: Any) -> bool:
        """Connect to the cluster that this machine is part of, if it is part of one."""
        try:
            ray.init(address="auto", **_settings())
        except ConnectionError:
            return False
        self.ours = True
        return True

    def _join(self, ray: Any, address: str) -> None:
        unreachable = _unreachable(address)
        if unreachable:
            raise BackendRefused(f"no Ray cluster at {address}: {unreachable}; start one with 'ray start --head'")
        try:
            ray.init(address=address, **_settings())
        except Exception as error:
            line = " ".join(str(error).split())[:200]
            raise BackendRefused(f"no Ray cluster at {address}: {line}; start one with 'ray start --head'") from None
        self.ours = True

    def _start(self, ray: Any) -> None:
        """A cluster of this machine alone. Its processes carry the mark of this driver, so that the guard ends them too."""
        extra: dict[str, Any] = {}
        directory = tempfile.mkdtemp(prefix=TEMPORARY)
        guard_directory(directory)
        if len(directory) <= LONGEST_TEMPORARY:
            extra["_temp_dir"] = directory
        self._temporary = directory
        before = os.environ.get(DRIVER_MARK)
        os.environ[DRIVER_MARK] = driver_mark()
        try:
            ray.init(address="local", num_cpus=cores(), object_store_memory=OBJECT_STORE, **extra, **_settings())
        except Exception as error:
            self.close()
            raise BackendRefused(f"Ray does not start here: {' '.join(str(error).split())[:300]}") from None
        finally:
            if before is None:
                del os.environ[DRIVER_MARK]
            else:
                os.environ[DRIVER_MARK] = before
        self.ours = True

    def amount(self, resource: str) -> int:
        """How much of a resource the whole cluster has."""
        ray = module()

        return int(ray.cluster_resources().get(resource, 0))

    def on_this_machine(self) -> bool:
        """Whether all nodes run here, so that they can read the files that this process reads."""
        ray = module()

        nodes = [node["NodeManagerAddress"] for node in ray.nodes() if node.get("Alive")]
        return set(nodes) <= {"127.0.0.1", ray.util.get_node_ip_address()}

    def close(self) -> None:
        """Leave the cluster, and end it when it was started here."""
        ray = module()

        if self.ours:
            with _quietly(), contextlib.suppress(Exception):
                ray.shutdown()
        self.ours = False
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
            self._temporary = None


def _unreachable(address: str) -> str:
    """Why nobody answers at HOST:PORT; "" when somebody does. Ray itself would try for minutes."""
    host, colon, port = address.rpartition("://")[2].partition("/")[0].rpartition(":")
    if not colon or not port.isdigit():
        return "not of the form HOST:PORT"
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        return getattr(error, "strerror", None) or str(error)
    return ""


def _settings() -> dict[str, Any]:
    return {"include_dashboard": False, "log_to_driver": False, "logging_level": logging.CRITICAL, "ignore_reinit_error": True}


def _mute() -> None:
    """Ray prints what its daemons complain of (each actor that dies) on the standard output of the driver, whatever it is told
    about logging; that belongs to the results. Actors that die are told as restarts."""
    with contextlib.suppress(ImportError):
        worker: Any = import_module("ray._private.worker")
        if hasattr(worker, "print_to_stdstream"):
            worker.print_to_stdstream = lambda *_, **__: None


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Nothing of Ray's reaches standard output, and the handlers of signals stay ours."""
    main = threading.current_thread() is threading.main_thread()
    handlers = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)} if main else {}
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        for number, handler in handlers.items():
            if handler is not None and signal.getsignal(number) is not handler:
                signal.signal(number, handler)
