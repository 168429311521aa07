"""Random bits that depend on a seed, a name and an index, and on nothing else.

Word i of a stream is the SplitMix64 output function of ``key + (i + 1) * gamma`` (Steele, Lea and Flood 2014), the key
being 8 bytes of BLAKE2b over "seed/name/index". Only 64-bit integer arithmetic and little-endian lanes take part:
the same bits on every machine and library version, and any part of a stream without the part before it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

CHUNK = 1 << 13
"""Words made at a time: two arrays of them stay in the second-level cache."""

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31 = np.uint64(30), np.uint64(27), np.uint64(31)


def stream_key(seed: int, name: str, index: int) -> int:
    """The 64-bit key of the stream of one tensor."""
    digest = hashlib.blake2b(f"{seed}/{name}/{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


@cache
def _steps() -> NDArray[np.uint64]:
    steps: NDArray[np.uint64] = np.arange(1, CHUNK + 1, dtype=np.uint64) * np.uint64(_GAMMA)
    steps.flags.writeable = False
    return steps


def words(key: int, start: int, count: int) -> NDArray[np.uint64]:
    """Words ``start`` .. ``start + count - 1`` of a stream; at most CHUNK of them."""
    mixed: NDArray[np.uint64] = np.add(_steps()[:count], np.uint64((key + start * _GAMMA) & _MASK))
    shifted: NDArray[np.uint64] = np.right_shift(mixed, _S30)
    mixed ^= shifted
    mixed *= _FIRST
    np.right_shift(mixed, _S27, out=shifted)
    mixed ^= shifted
    mixed *= _SECOND
    np.right_shift(mixed, _S31, out=shifted)
    mixed ^= shifted
    return mixed


def fill_from(
    out: NDArray[Any], key: int, width: Literal[16, 32, 64], convert: Callable[[NDArray[Any], NDArray[Any]], None]
) -> None:
    """Fill a flat array piece by piece: element i comes from lane i of the stream.

    A word has 64 / ``width`` lanes, the lowest bits first. ``convert(lanes, part)`` writes ``part``, a slice of
    ``out``, from as many unsigned lanes.
    """
    per_word = 64 // width
    for begin in range(0, out.size, CHUNK * per_word):
        part = out[begin : begin + CHUNK * per_word]
        bits = words(key, begin // per_word, -(-part.size // per_word))
        convert(bits.astype("<u8", copy=False).view(f"<u{width // 8}")[: part.size], part)
