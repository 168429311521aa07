"""The wire between driver and worker: frames, limits, nonsense."""

from __future__ import annotations

import os
import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fiafuzz.campaign.results import Broken, Element, Judged, Result, Seconds, clean, in_words, number
from fiafuzz.campaign.triage import plain_case
from fiafuzz.campaign.wire import Done, FrameReader, Hello, Job, Refused, Setup, WireError, WorkerWire, pack

RESULT = Result(
    "ok", judged=Judged(False, "F101", 12.5, 128, 2, 1, 3, (Element("attentionOut", (0, 1), 1.0, "nan", 0.1),), "off"),
    same=True, broken=Broken("layout", "differs"), seconds=Seconds(1.0, 2.0, 3.0, 4.0))
MESSAGES = [Hello("cpu", "title", "emulated", {"torch": "2"}, {"masked_row": "zero"}, False, ("950-v5",)),
            Done(7, RESULT), Refused("unavailable", "no device"), Done(8, Result("crash", signal=11, stage_at="run"))]


STREAM = b"".join(pack(m) for m in MESSAGES)  # type: ignore[arg-type]


@given(st.lists(st.sampled_from(MESSAGES), max_size=6), st.lists(st.integers(0, 2 * len(STREAM)), max_size=40))
def test_frames_survive_any_cut(messages: list[object], cuts: list[int]) -> None:
    stream = b"".join(pack(m) for m in messages)  # type: ignore[arg-type]
    reader, found = FrameReader(), []
    for begin, end in pairwise(sorted([0, *(min(cut, len(stream)) for cut in cuts), len(stream)])):
        found += reader.feed(stream[begin:end])
    assert found == messages


def test_frames_survive_a_cut_at_every_byte() -> None:
    for cut in range(len(STREAM) + 1):
        reader = FrameReader()
        assert reader.feed(STREAM[:cut]) + reader.feed(STREAM[cut:]) == MESSAGES, cut
    reader = FrameReader()
    assert [m for byte in STREAM for m in reader.feed(bytes([byte]))] == MESSAGES


def test_jobs_arrive_as_they_were_sent() -> None:
    read, write = os.pipe()
    jobs = [Setup("cpu", "950-v5", "mixed-2026-09", 1 << 30), Job(1, plain_case("950", "v5"), runs=2, backend="faulty:x")]
    os.write(write, b"".join(pack(j) for j in jobs))
    os.close(write)
    wire = WorkerWire(read, 0)
    assert [wire.read(), wire.read(), wire.read()] == [*jobs, None]


@pytest.mark.parametrize("frame", [
    struct.pack("<I", 5) + b"nonse", struct.pack("<I", 1 << 31), struct.pack("<I", 1) + b"\xc1",
    pack(Job(1, plain_case("950", "v5"))),
])
def test_what_is_no_message_of_a_worker_is_refused(frame: bytes) -> None:
    reader = FrameReader()
    assert reader.feed(pack(MESSAGES[0]) + frame + pack(MESSAGES[1])) == MESSAGES[:1], "what stood before still counts"  # type: ignore[arg-type]
    assert isinstance(reader.error, WireError) and "\n" not in str(reader.error)
    assert reader.feed(pack(MESSAGES[1])) == []  # type: ignore[arg-type]


@given(st.binary(max_size=200))
def test_random_bytes_never_do_more_than_be_refused(data: bytes) -> None:
    reader = FrameReader()
    reader.feed(data)
    assert reader.error is None or "\n" not in str(reader.error)


@given(st.text())
def test_cleaned_text_is_short_and_cannot_move_a_terminal(text: str) -> None:
    found = clean(text, 50)
    assert len(found) <= 50
    assert all(c.isprintable() or c == "\n" for c in found)
    found.encode("utf-8")


def test_texts_of_exceptions() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert in_words(ValueError("x")) == "ValueError: x"
    assert in_words(KeyboardInterrupt()) == "KeyboardInterrupt"
    assert in_words(Mute()) == "Mute: (no text)"


@pytest.mark.parametrize("value, written", [(1.5, 1.5), (float("nan"), "nan"), (float("inf"), "inf"), (-float("inf"), "-inf")])
def test_numbers_without_json_form_are_words(value: float, written: object) -> None:
    assert number(value) == written
