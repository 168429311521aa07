"""The 13 input layouts and the 3 cache layouts, as axes.

Axis letters: B batch, S sequence, N heads, D head size, H = N*D, T packed tokens of all batches.
``X_Y`` reads: inputs in X, attentionOut in Y (spec/numerics.md 1.1, spec/v5_common_notes.md 4).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Layout:
    """Axes of query, key and value (``inputs``) and of attentionOut (``output``) under one inputLayout."""

    name: str
    inputs: str
    output: str

    @property
    def packed(self) -> bool:
        """Whether batches stand back to back on one T axis (TND and NTD families)."""
        return "T" in self.inputs

    @property
    def transposed(self) -> bool:
        """Whether the output has another axis order than the inputs."""
        return self.inputs != self.output


def _layout(name: str) -> Layout:
    inputs, _, output = name.partition("_")
    return Layout(name, inputs, output or inputs)


LAYOUTS: Mapping[str, Layout] = MappingProxyType({
    n: _layout(n)
    for n in ("BSH", "BSND", "BNSD", "TND", "NTD", "BNSD_BSND", "BSND_BNSD", "BSH_BNSD",
              "BNSD_NBSD", "BSND_NBSD", "BSH_NBSD", "NTD_TND", "TND_NTD")
})

CACHE_LAYOUTS: tuple[str, ...] = ("BnBsH", "BnNBsD", "NZ")
"""Paged caches: (blocks, blockSize, KV_N*D), (blocks, KV_N, blockSize, D), (blocks, KV_N, D/D0, blockSize, D0)."""

MASK_COMPRESSED = 2048
"""Edge of the fixed mask of sparseMode 2, 3 and 4."""

ROPE_D = 64
"""Head size of queryRope and keyRope."""
DECODE_MLA_D = 512
"""Head size of query and key beside rope that makes a call MLA decode."""
PREFILL_MLA_D = 128
"""Head size of query and key beside rope in MLA prefill."""
COMBINED_MLA_D = (192, 128)
"""Head sizes of query and of value in MLA prefill without separate rope."""


def axis_sizes(axes: str, shape: tuple[int, ...]) -> dict[str, int] | None:
    """Name the axes of ``shape``: axis letter -> size. None when the rank does not fit."""
    if len(axes) != len(shape):
        return None
    return dict(zip(axes, shape))


def tensor_shape(axes: str, *, B: int = 0, S: int = 0, N: int = 0, D: int = 0, T: int = 0) -> tuple[int, ...]:
    """The shape of a tensor with those axes; H counts as N*D."""
    sizes = {"B": B, "S": S, "N": N, "D": D, "T": T, "H": N * D}
    return tuple(sizes[a] for a in axes)


def lse_shape(layout: Layout, *, B: int, N: int, S: int, T: int) -> tuple[int, ...]:
    """Shape of softmaxLse: (B, Q_N, Q_S, 1), or (T, Q_N, 1) for packed layouts, whatever the output layout."""
    return (T, N, 1) if layout.packed else (B, N, S, 1)


def cache_shape(cache: str, *, blocks: int, block_size: int, N: int, D: int, D0: int = 16) -> tuple[int, ...]:
    """Shape of a paged cache in one of the three cache layouts (D0: elements of one 32-byte row in NZ)."""
    if cache == "BnBsH":
        return (blocks, block_size, N * D)
    if cache == "BnNBsD":
        return (blocks, N, block_size, D)
    if cache == "NZ":
        return (blocks, N, D // D0, block_size, D0)
    raise ValueError(f"unknown cache layout {cache!r}; known: {', '.join(CACHE_LAYOUTS)}")
