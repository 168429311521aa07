"""The wire between driver and worker: length-prefixed msgpack frames over pipes of their own, with size limits.

A frame is four bytes of length (little endian) and one message. Standard output and error are left to native noise.
Nothing here can construct anything but the message structs below, so a worker gone mad can only send nonsense that is
refused.
"""

from __future__ import annotations

import os
import struct
from typing import Optional, Union

import msgspec

from fiafuzz.model.case import MAX_JSON_BYTES, Case

from .results import Result

PROTOCOL = 3
MAX_FRAME = 2 * MAX_JSON_BYTES
"""Largest frame of jobs and ordinary results in bytes."""
MAX_OUTPUT_FRAME = 1 << 30
"""Largest frame of a result that carries outputs."""
DEFAULT_MEMORY = 2 << 30
"""Bytes that one case may take unless told otherwise: more than the largest case that is judged needs."""
_HEAD = struct.Struct("<I")


class WireError(RuntimeError):
    """A frame that cannot be read: too long, cut off or not a message."""


class Setup(msgspec.Struct, frozen=True, tag=True):
    """First message to a worker: which backend to load, for which profile, and under which standard and limits.

    ``memory`` is the limit in bytes on top of what the loaded worker uses (0: none). The rest is for jobs that are foreseen by
    the worker: one valid case in ``repeat_every`` is run twice and one in ``relate_every`` is tried on a relation (0: none);
    the case itself decides, so that neither order nor number of workers does. ``dare``: run calls that are known to kill
    the host. ``giant``: cases that are likely to take longer than so many seconds are not judged (0: no bound).
    """

    backend: str
    profile: str
    standard: str = ""
    memory: int = DEFAULT_MEMORY
    repeat_every: int = 0
    relate_every: int = 0
    dare: bool = False
    giant: float = 0.0
    protocol: int = PROTOCOL


class Job(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """One case to run.

    ``judge``: whether outputs are compared with the reference. ``runs``: how often the case is run in all (2:
    determinism). ``relations``: whether a metamorphic relation is tried; ``relation``: which one (None: the case's own turn).
    ``outputs``: whether outputs come back. ``pictures``: whether wrong values are drawn.
    ``backend``: another backend than the worker's own, standing for ``profile``. ``foresee``: the worker predicts the case
    and decides itself whether and how it is run (``judge``, ``runs`` and ``relations`` are not looked at). ``before``: cases that
    the same process runs first, one after the other; each is foreseen, and run once. ``turns``: whether a foreseen case may be run
    twice or tried on a relation when it is its turn.
    """

    id: int
    case: Case
    judge: bool = True
    runs: int = 1
    relations: bool = False
    relation: Optional[str] = None
    outputs: bool = False
    pictures: bool = False
    backend: Optional[str] = None
    profile: Optional[str] = None
    foresee: bool = False
    before: tuple[Case, ...] = ()
    turns: bool = True


class Hello(msgspec.Struct, frozen=True, tag=True):
    """First message of a worker: it is ready, and this is its backend. ``device`` is what it occupies ("npu"; "": none),
    ``devices`` how many of them it can see (0: it does not say)."""

    name: str
    title: str
    checks: str
    versions: dict[str, str] = {}
    policies: dict[str, str] = {}
    deterministic: bool = True
    profiles: tuple[str, ...] = ()
    device: str = ""
    devices: int = 0
    fiafuzz: str = ""
    protocol: int = PROTOCOL


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The worker cannot start: "unavailable" (the backend is not for this machine) or "error"."""

    kind: str
    text: str


class Part(msgspec.Struct, frozen=True, tag=True):
    """The result of a case that a job has before its own; more of the job comes."""

    id: int
    result: Result


class Done(msgspec.Struct, frozen=True, tag=True):
    """The result of one job: of its own case, or of the one before it that ended the process's usefulness."""

    id: int
    result: Result


class Back(msgspec.Struct, frozen=True, tag=True):
    """A job that the worker gives back unrun, since the driver has recalled it."""

    id: int


ToWorker = Union[Setup, Job]
FromWorker = Union[Hello, Refused, Part, Done, Back]

_encoder = msgspec.msgpack.Encoder()
_to_worker = msgspec.msgpack.Decoder(ToWorker)
_from_worker = msgspec.msgpack.Decoder(FromWorker)


def pack(message: Union[ToWorker, FromWorker]) -> bytes:
    """One message as a frame."""
    body = _encoder.encode(message)
    return _HEAD.pack(len(body)) + body


def _decoded(decoder: msgspec.msgpack.Decoder[object], body: bytes) -> object:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise WireError(f"not a message: {error}") from None


class FrameReader:
    """Cuts a stream of bytes from a worker into messages. ``error`` is set once the stream makes no sense; what stood
    before still counts."""

    def __init__(self, limit: int = MAX_FRAME) -> None:
        self.limit = limit
        self.error: Optional[WireError] = None
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[FromWorker]:
        """The messages that are complete with these bytes."""
        buffer = self._buffer
        buffer += data
        found: list[FromWorker] = []
        start = 0
        while self.error is None and len(buffer) - start >= 4:
            (length,) = _HEAD.unpack_from(buffer, start)
            if length > self.limit:
                self.error = WireError(f"frame of {length} bytes is over the limit of {self.limit}")
                break
            if len(buffer) - start - 4 < length:
                break
            body = bytes(memoryview(buffer)[start + 4 : start + 4 + length])
            try:
                found.append(_decoded(_from_worker, body))  # type: ignore[arg-type]
            except WireError as error:
                self.error = error
            start += 4 + length
        del buffer[:start]
        return found


class WorkerWire:
    """The worker's end: blocking reads of jobs, blocking writes of results."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self._in = os.fdopen(read_fd, "rb", buffering=1 << 16)
        self._out = write_fd

    def read(self) -> Optional[ToWorker]:
        """The next message; None when the driver has gone. WireError when the stream makes no sense."""
        head = self._in.read(4)
        if len(head) < 4:
            return None
        (length,) = _HEAD.unpack(head)
        if length > MAX_FRAME:
            raise WireError(f"frame of {length} bytes is over the limit of {MAX_FRAME}")
        body = self._in.read(length)
        if len(body) < length:
            return None
        return _decoded(_to_worker, body)  # type: ignore[return-value,arg-type]

    def write(self, message: FromWorker) -> None:
        """Send one message. OSError (EPIPE) when the driver has gone."""
        view = memoryview(pack(message))
        while view:
            view = view[os.write(self._out, view) :]
