"""Head sizes and axes of the two rope tensors, as the host derives them."""

from __future__ import annotations

from typing import Optional

from fiafuzz.model.dtypes import FLOAT_QUERY
from fiafuzz.model.layouts import axis_sizes
from fiafuzz.model.scene import Scene

from ..facts import scene_fact
from ..rule import ALL_950, DOC_A2A3_V3, DOC_A2A3_V5, SRC_A2A3, Words

GROUP = "rope"
V5 = ALL_950 | DOC_A2A3_V5 | SRC_A2A3
ALL = V5 | DOC_A2A3_V3
ROPE: Words = {"scenario": ("mla_decode", "mla_prefill_split", "full_decode_mla")}
SPLIT: Words = {"scenario": ("mla_decode", "mla_prefill_split")}
PAGED: Words = {"storage": ("BnBsH", "BnNBsD", "NZ")}


def _last(shape: Optional[tuple[int, ...]], axes: Optional[str], heads: int) -> Optional[int]:
    """D of a tensor; of an H axis H // heads, which the host rounds down."""
    found = axis_sizes(axes, shape) if axes is not None and shape is not None else None
    if found is None:
        return None
    if "D" in found:
        return found["D"]
    return found["H"] // heads if heads > 0 else None


@scene_fact
def query_rope_d(s: Scene) -> Optional[int]:
    """Head size of queryRope, None when its rank does not fit the layout."""
    return _last(s.shape("queryRope"), s.layout.inputs if s.layout is not None else None, s.Q_N)


@scene_fact
def key_rope_d(s: Scene) -> Optional[int]:
    """Head size of keyRope, by the layout or by the rank of its cache; None when its rank does not fit."""
    shape = s.shape("keyRope")
    if not s.paged:
        return _last(shape, s.layout.inputs if s.layout is not None else None, s.KV_N)
    if shape is None or len(shape) != len(s.key_shape or ()):
        return None
    if len(shape) == 3:
        return shape[2] // s.KV_N if s.KV_N > 0 else None
    return {4: shape[-1], 5: shape[2] * shape[-1]}.get(len(shape)) if len(shape) in (4, 5) else None


def float_rope(s: Scene, name: str) -> bool:
    """Whether a rope tensor has a dtype that is legal by itself."""
    return s.dtype(name) in FLOAT_QUERY


def decode(s: Scene) -> bool:
    """Whether the call is Decode MLA, quantised or not."""
    return s.mla_kind == "decode"
