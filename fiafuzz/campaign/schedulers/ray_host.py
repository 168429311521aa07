"""What runs in a Ray actor: a local scheduler with one worker process, spoken to in frames of bytes.

The worker process keeps the actor safe from crashes, hangs, floods and memory; what crosses the cluster is msgpack on both
ways, never an object of ours.
"""

from __future__ import annotations

import socket
from typing import Optional, Union

import msgspec

from fiafuzz.campaign.results import Result, clean
from fiafuzz.campaign.wire import Hello, Job, Refused, Setup

from .local import LocalScheduler
from .protocol import BackendRefused, SchedulerError


class Here(msgspec.Struct, frozen=True, tag=True):
    """The worker is up: what its backend says, and the node."""

    hello: Hello
    node: str


class Ran(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """A job was run. ``restarts``: why the worker process was replaced meanwhile; ``end``: why this place takes no more
    work ("": it does). ``result`` is None when the job was not run at all."""

    id: int
    result: Optional[Result] = None
    seconds: float = 0.0
    restarts: tuple[str, ...] = ()
    end: str = ""


Reply = Union[Here, Refused, Ran]
_encoder = msgspec.msgpack.Encoder()
_setup = msgspec.msgpack.Decoder(Setup)
_job = msgspec.msgpack.Decoder(Job)
_reply = msgspec.msgpack.Decoder(Reply)


def encoded(message: Union[Setup, Job, Reply]) -> bytes:
    """A message as bytes."""
    return _encoder.encode(message)


def decoded(data: object) -> Reply:
    """A message from an actor; ValueError when it is none."""
    if not isinstance(data, bytes):
        raise ValueError(f"{type(data).__name__} instead of a message")
    try:
        found: Reply = _reply.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ValueError(f"not a message: {error}") from None
    return found


class Host:
    """The actor. One worker process; a device, if any, is the one that Ray has set in the environment."""

    def __init__(self, setup: bytes, time_limit: float) -> None:
        self._local = LocalScheduler(_setup.decode(setup), 1, time_limit=time_limit)

    def start(self) -> bytes:
        """Load the backend: Here, or Refused."""
        try:
            return encoded(Here(self._local.start(), clean(socket.gethostname(), 80)))
        except SchedulerError as error:
            kind = "unavailable" if isinstance(error, BackendRefused) else "error"
            return encoded(Refused(kind, clean(str(error), 500)))

    def run(self, job: bytes, fresh: bool = False, time_limit: float = 0.0) -> bytes:
        """Run one job alone: Ran."""
        wanted = _job.decode(job)
        try:
            done = self._local.run(wanted, fresh=fresh, time_limit=time_limit or None)
            end = self._local.given_up(done.worker) if done.result.deadly or done.result.fatal else ""
        except SchedulerError as error:
            return encoded(Ran(wanted.id, restarts=self._restarts(), end=clean(str(error), 500)))
        return encoded(Ran(wanted.id, done.result, done.seconds, self._restarts(), end))

    def _restarts(self) -> tuple[str, ...]:
        return tuple(restart.reason for restart in self._local.restarts() if not restart.given_up)
