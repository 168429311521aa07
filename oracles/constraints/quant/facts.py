"""Facts that several quantisation rules ask for, each computed once per scene (kept in the scene's ``__dict__``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Optional, Union

from fiafuzz.model.case import TensorSpec
from fiafuzz.model.layouts import DECODE_MLA_D
from fiafuzz.model.scene import Scene

from ..facts import scene_fact
from .tables import FULL_MODES


def ceil_div(a: int, b: int) -> int:
    """a / b rounded up."""
    return -(-a // b)


def antiquant(s: Scene) -> bool:
    """Whether key/value are quantised and query is not (dtypes differ)."""
    return s.quant_kind == "antiquant"


Needs = Mapping[str, Union[str, tuple[str, ...]]]
"""Factor words that a fault wants its base to have."""

FULL_KINDS = {triple: kind for kind, triple in FULL_MODES.items()}


@scene_fact
def full_intent(s: Scene) -> Optional[str]:
    """Which full quantisation a call aims at: mla, mxfp8, gqa_fp8, per_tensor, per_block; None without one.

    The exact mode triple decides, as in the operator (Decode MLA also needs rope). With another triple the tensors
    decide, so that one wrong mode is one fault: rope and D 512 mean Decode MLA, a FLOAT8_E8M0 query scale MXFP8, any
    other query scale GQA FP8.
    """
    if s.quant_kind != "full":
        return None
    triple = (s.attrs.queryQuantMode, s.attrs.keyAntiquantMode, s.attrs.valueAntiquantMode)
    kind = FULL_KINDS.get(triple)
    rope = s.inputs.queryRope is not None or s.inputs.keyRope is not None
    if kind in ("per_block", "mxfp8", "gqa_fp8"):
        return kind
    if rope and (kind == "mla" or s.Q_D == DECODE_MLA_D):
        return "mla"
    if kind == "per_tensor":
        return kind
    scale = s.inputs.dequantScaleQuery
    if scale is None:
        return "per_tensor"
    return "mxfp8" if scale.dtype == "FLOAT8_E8M0" else "gqa_fp8"


@scene_fact
def scenario(s: Scene) -> Optional[str]:
    """"none", "antiquant" or the intent of the full quantisation: the words of the tables."""
    return full_intent(s) if s.quant_kind == "full" else s.quant_kind


@scene_fact
def q_s_over_1(s: Scene) -> bool:
    """Whether some batch has more than one query token."""
    return s.Q_S is not None and s.Q_S > 1


@scene_fact
def int8_prefill(s: Scene) -> bool:
    """Separate scales, INT8 key, several query tokens, key mode 0 or 1, no paging, no TND: the most restricted case."""
    return (s.quant_kind == "antiquant" and s.k_dtype == "INT8" and q_s_over_1(s) and s.attrs.keyAntiquantMode in (0, 1)
            and both_scales(s) and not s.paged and not s.packed)


@scene_fact
def both_scales(s: Scene) -> bool:
    """Whether the separate key and value scales are both given."""
    return s.inputs.keyAntiquantScale is not None and s.inputs.valueAntiquantScale is not None


@scene_fact
def old_paged_prefill(s: Scene) -> bool:
    """A2/A3: antiquant with a paged cache and several query tokens. The V3 document refuses it; the source has a route
    with few checks for it, so that no further demand is known there."""
    return s.quant_kind == "antiquant" and not s.is_950 and s.paged and q_s_over_1(s)


def float_kv(dtype: Optional[str]) -> bool:
    """Whether a key/value dtype is one of the small float formats, which know no offset."""
    return dtype in ("FLOAT8_E4M3FN", "HIFLOAT8", "FLOAT4_E2M1")


@scene_fact
def channel_forms(s: Scene) -> Optional[frozenset[tuple[int, ...]]]:
    """The shapes of a per-channel scale, whatever the layout; None when KV_N or D is unknown."""
    n, d = s.KV_N, s.Q_D
    if d is None or n <= 0:
        return None
    return frozenset({(1, n, 1, d), (1, 1, n, d), (1, n, d), (n, 1, d), (1, n * d), (n, d), (n * d,)})


def token_form(s: Scene, shape: tuple[int, ...]) -> bool:
    """Whether a shape is [B, L] or [1, B, L], for any L."""
    b = s.B
    return b is None or (len(shape) in (2, 3) and shape[-2] == b and shape[:-2] in ((), (1,)))


def value_blocks(s: Scene, rows: int = 64) -> Optional[int]:
    """Blocks of 64 rows of a packed value, counted batch by batch (each batch rounds up)."""
    lens = s.kv_lens
    return None if lens is None else sum(ceil_div(max(n, 0), rows) for n in lens)


def dense_from(spec: TensorSpec, axis: int) -> bool:
    """Whether a tensor is dense from an axis on: outer axes may have any stride."""
    if spec.strides is None:
        return True
    if len(spec.strides) != len(spec.shape):
        return False
    step = 1
    for i in range(len(spec.shape) - 1, axis - 1, -1):
        if spec.strides[i] != step:
            return False
        step *= spec.shape[i]
    return True

