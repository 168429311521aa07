"""Left padding: where the valid rows and columns of each batch begin (spec/numerics.md 11)."""

from __future__ import annotations

import numpy as np

from fiafuzz.model.scene import Scene

from .expected import ReferenceError, Tensors


def padding_size(tensors: Tensors, name: str) -> int:
    """The first element of queryPaddingSize or kvPaddingSize; a negative size counts as 0."""
    stored = tensors.get(name)
    if stored is None or isinstance(stored, list) or stored.size == 0:
        raise ReferenceError(f"{name} has no element")
    return max(0, int(np.asarray(stored).reshape(-1)[0]))


def query_begins(scene: Scene, tensors: Tensors, lens: tuple[int, ...], legacy: bool) -> tuple[int, ...]:
    """First valid query row of each batch; negative where padding and length exceed the axis."""
    if not scene.q_padding_on or legacy or scene.packed or scene.Q_S is None:
        return (0,) * len(lens)
    size = padding_size(tensors, "queryPaddingSize")
    return tuple(scene.Q_S - n - size for n in lens)


def key_begins(scene: Scene, tensors: Tensors, lens: tuple[int, ...]) -> tuple[int, ...]:
    """First valid key column of each batch; negative where padding and length exceed the axis.

    Paged caches and tensor lists fall back to right padding (v3.left_padding.cross.qs_eq1_pa_tensorlist_fallback).
    """
    if not scene.kv_padding_on or scene.packed or scene.storage != "contiguous" or scene.KV_S is None:
        return (0,) * len(lens)
    size = padding_size(tensors, "kvPaddingSize")
    return tuple(scene.KV_S - n - size for n in lens)
