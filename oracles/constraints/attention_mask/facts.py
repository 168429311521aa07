"""Facts of the mask rules."""

from __future__ import annotations

from typing import Optional

from fiafuzz.model.scene import Scene

from ..facts import legacy_decode, scene_fact
from ..rule import Rule

FULL_MODES = (0, 1)
"""Modes that take a mask for every query and key token."""

FLAT_LAYOUTS = ("BSH", "BSND", "BNSD", "BNSD_BSND")
"""Layouts in which A2 and A3 take a mask of 2 axes."""

FIXED_MODES = (2, 3, 4)
"""Modes that take the fixed 2048 x 2048 mask."""


def mask_rule(number: int, title: str, **more: object) -> Rule:
    """A rule of the room attention_mask."""
    return Rule(id=f"FIA-AM-{number:03d}", title=title, group="attention_mask", **more)  # type: ignore[arg-type]


@scene_fact
def mask_rank(s: Scene) -> int:
    """Rank of attenMask, 0 when there is none (or one without elements)."""
    shape = s.shape("attenMask")
    return len(shape) if s.mask_on and shape is not None else 0


@scene_fact
def full_mask(s: Scene) -> Optional[tuple[int, ...]]:
    """Shape of a mask that is read for every token (sparseMode 0 and 1; any mode where A2/A3 ignore it), None otherwise.

    Rank 3 or 4; a mask of 2 axes, which A2 and A3 take, counts as one batch.
    """
    if s.sparse_mode not in FULL_MODES and not legacy_decode(s):
        return None
    rank, shape = mask_rank(s), s.shape("attenMask")
    if rank == 2 and shape is not None and not s.is_950 and flat_allowed(s):
        return (1, *shape)
    return shape if rank in (3, 4) else None


def flat_allowed(s: Scene) -> bool:
    """Whether A2 and A3 take a mask of 2 axes for sparseMode 0 and 1: no rope, equal head sizes, a batch layout."""
    return not s.rope_on and s.Q_D is not None and s.Q_D == s.V_D and s.layout_name in FLAT_LAYOUTS


@scene_fact
def needed_columns(s: Scene) -> Optional[int]:
    """Columns that a full mask needs without paging: the longest key length (else KV_S) and the shared prefix."""
    if s.paged:
        return None
    lens = s.kv_lens if s.inputs.actualSeqLengthsKv is not None else None
    longest = max(lens) if lens else s.KV_S
    return None if longest is None or longest < 0 else longest + s.prefix_len


def columns_by_document(s: Scene) -> Optional[int]:
    """Columns that the document asks for without paging: KV_S and the shared prefix."""
    return None if s.paged or s.KV_S is None or s.KV_S < 0 else s.KV_S + s.prefix_len
