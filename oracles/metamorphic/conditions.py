"""Conditions that several relations share, as facts of a scene."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fiafuzz.model.scene import Scene

from .call import Call

COMPRESSED = (2, 3, 4)


def computed(s: Scene) -> bool:
    """A call that computes something and whose sizes are known."""
    known = s.layout is not None and s.B and s.G and s.Q_S and s.q_lens and s.kv_lens and s.Q_D and s.V_D and s.out_axes
    return bool(known) and not s.empty_case and len(s.q_lens or ()) == len(s.kv_lens or ()) == s.B


def plain(s: Scene) -> bool:
    """Computed, and query, key and value of one 16-bit type."""
    return computed(s) and s.quant_kind == "none"


def shared_scales(s: Scene) -> bool:
    """Plain, or antiquant whose parameters know nothing of batch, token and head layout: one number for a tensor, a channel or
    a head (spec/numerics.md 15.1 modes 0 and 2)."""
    if plain(s):
        return True
    return computed(s) and not s.merged_antiquant and s.antiquant_kind in ("per_tensor", "per_channel", "tensor_head")


def legacy(s: Scene) -> bool:
    """The single-token path that does not read the sparse parameters (spec/numerics.md 6.1)."""
    return s.single_token and s.layout_name in ("BSH", "BSND", "BNSD") and not s.rope_on and s.Q_D == s.V_D


def unmasked(s: Scene) -> bool:
    """No mask, bias, slopes, sink or padding: columns and rows know nothing of their place."""
    return s.inputs.attenMask is None and s.inputs.pseShift is None and not s.alibi_on and not s.sink_on and not padded(s)


def padded(s: Scene) -> bool:
    """Whether a left padding is given, in force or not."""
    return s.given("queryPaddingSize") or s.given("kvPaddingSize")


def full_mask(s: Scene) -> bool:
    """A mask that is read element by element (mode 0 or 1)."""
    return s.mask_on and s.sparse_mode in (0, 1)


def mask_batches(s: Scene) -> bool:
    """Whether the mask has a batch axis of its own (axis 0) of more than one batch."""
    shape = s.shape("attenMask")
    if shape is None or not s.mask_on or s.sparse_mode in COMPRESSED or (s.B or 0) < 2:
        return False
    return shape[0] == s.B and (len(shape) > 2 or s.single_token)


def mask_2d(call: Call, batch: int) -> NDArray[np.bool_]:
    """The full mask of a batch as (rows, columns), True where masked (spec/numerics.md 5)."""
    mask = call.one("attenMask") != 0
    if mask_batches(call.scene):
        return np.asarray(mask[batch].reshape(-1, mask.shape[-1]))
    return np.asarray(mask.reshape(-1, mask.shape[-1])) if mask.ndim > 2 else mask


def kept(call: Call, batch: int) -> NDArray[np.bool_]:
    """Which columns [0, P + Lk) each row [0, Lq) of a batch sees (spec/numerics.md 6). For calls without left padding."""
    s = call.scene
    rows, columns = call.q_lens[batch], call.kv_lens[batch] + s.prefix_len
    if not s.mask_on:
        return np.ones((rows, columns), np.bool_)
    if s.sparse_mode in (0, 1):
        return np.asarray(~mask_2d(call, batch)[:rows, :columns])
    i, j = np.arange(rows, dtype=np.int64)[:, None], np.arange(columns, dtype=np.int64)
    pre, after = s.tokens
    shift = 0 if s.sparse_mode == 2 else columns - rows
    return np.asarray((j <= i + shift + after) & (j >= i + shift - pre))
