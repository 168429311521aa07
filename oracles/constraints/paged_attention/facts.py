"""What the paging rules ask for besides the scene, and moves of a whole paged call to another block size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Optional, Union

from msgspec.structs import replace

from fiafuzz.model.case import TensorSpec
from fiafuzz.model.layouts import tensor_shape
from fiafuzz.model.scene import Scene

from ..changes import resize, size_of
from ..facts import scene_fact
from ..rule import ALL_950, DOC_A2A3_V3, DOC_A2A3_V5, SRC_A2A3, Change, Words

GROUP = "paged_attention"
V5 = ALL_950 | DOC_A2A3_V5 | SRC_A2A3
"""Profiles of what the V5 document says for all products."""
ALL = V5 | DOC_A2A3_V3
"""Profiles of what both documents say."""
EIGHT_BIT = frozenset({"INT8", "HIFLOAT8", "FLOAT8_E4M3FN"})
FOUR_BIT = frozenset({"INT4", "FLOAT4_E2M1"})

PAGED: Words = {"storage": ("BnBsH", "BnNBsD", "NZ")}
NO_WIDTHS: Words = {"pse": "none", "mask_shape": ("none", "2048/2", "2048/3", "2048/4")}
"""Factor words of calls in which nothing has to be as wide as the blocks."""
UNSCALED: Words = {**PAGED, "scenario": ("gqa", "mla_decode", "mla_prefill_split", "mla_prefill_combined")}
"""Factor words of unquantised paged calls."""

Number = Union[int, Callable[[Scene], Optional[int]]]


@scene_fact
def used_blocks(s: Scene) -> Optional[int]:
    """Blocks of all sequences together when no two share one; None when the lengths or the block size are unknown."""
    if not s.paged or s.block_size <= 0 or not s.inputs.actualSeqLengthsKv or s.kv_lens is None:
        return None
    return sum(-(-max(0, n) // s.block_size) for n in s.kv_lens)


def table_columns(s: Scene) -> Optional[int]:
    """Second axis of blockTable, None when it has no two axes."""
    shape = s.shape("blockTable")
    return shape[1] if shape is not None and len(shape) == 2 else None


def newer_route(s: Scene) -> bool:
    """Whether the newer checks answer: always on Ascend 950; on A2/A3 for unquantised calls but TND without rope
    (spec/host_behaviour.md 3.5)."""
    return s.is_950 or (s.quant_kind == "none" and (s.rope_on or s.layout_name != "TND"))


def half_rope(s: Scene) -> bool:
    """Whether only one of the two rope tensors is given: the call is then not what it is meant to be."""
    return s.given("queryRope") != s.given("keyRope")


def caches(s: Scene) -> tuple[str, ...]:
    """The parameters that are caches of this call."""
    return ("key", "value", "keyRope") if s.given("keyRope") else ("key", "value")


def block_size_to(value: Number) -> Change:
    """Page the same call with another block size: block axis of the caches, the attribute and, where the lengths need
    more columns, the block table; scales that are paged themselves follow.
    """

    def change(s: Scene) -> Optional[dict[str, object]]:
        size = value(s) if callable(value) else value
        if size is None or size == s.block_size or size <= 0 or not s.paged or not s.kv_lens:
            return None
        found = resize(caches(s), "Bs", size)(s)
        scales = _paged_scales(s, size)
        have = table_columns(s)
        if found is None or scales is None or have is None:
            return None
        table = s.inputs.blockTable
        values = {**found, **scales, "blockSize": size}
        if table is not None and table.values is not None:
            values["blockTable"] = replace(table, values=None)
        columns = max(1, -(-max(s.kv_lens) // size))
        if columns > have:
            values.update(resize("blockTable", 1, columns)(s) or {})
        values.update(_enough_blocks(s, size, values))
        return values

    return change


def _enough_blocks(s: Scene, size: int, values: dict[str, object]) -> dict[str, object]:
    """Smaller blocks must be more: the blocks axis of the caches that ``values`` reshapes."""
    blocks = sum(-(-max(0, n) // size) for n in s.kv_lens or ())
    if s.cache_blocks is None or blocks <= s.cache_blocks or s.full_kind in ("mxfp8", "gqa_fp8"):
        return {}
    moved = Scene(s.case.replace(**values))
    return dict(resize(caches(s), "Bn", blocks)(moved) or {})


def _paged_scales(s: Scene, size: int) -> Optional[dict[str, object]]:
    if s.quant_kind == "antiquant":
        return {} if s.antiquant_kind in ("per_tensor", "per_channel", "tensor_head") else None
    steps: tuple[tuple[str, int, int], ...] = ()
    if s.full_kind == "gqa_fp8":
        steps = (("keyAntiquantScale", 2, size),)
    elif s.full_kind == "mxfp8" and s.cache_layout == "NZ":
        steps = (("keyAntiquantScale", 2, -(-size // 16)), ("valueAntiquantScale", 3, -(-size // 64)))
    elif s.full_kind == "mxfp8":
        steps = (("keyAntiquantScale", 2, size), ("valueAntiquantScale", 2, -(-size // 64)))
    values: dict[str, object] = {}
    for name, axis, wanted in steps:
        if size_of(s, name, axis) != wanted:
            values.update(resize(name, axis, wanted)(s) or {})
    return values


def to_paged(s: Scene) -> Optional[dict[str, object]]:
    """A contiguous call with its key, value and keyRope cut into (blocks, KV_N, 128, D) caches of 128 rows."""
    if s.storage != "contiguous" or s.B is None or not 0 < s.B <= 4096 or s.KV_N <= 0 or s.int4_carrier:
        return None
    if s.K_D is None or s.V_D is None or not s.kv_lens or len(s.kv_lens) != s.B:
        return None
    columns = max(1, -(-max(s.kv_lens) // 128))
    values: dict[str, object] = {"blockTable": TensorSpec((s.B, columns), "INT32"), "blockSize": 128,
                                 "actualSeqLengthsKv": s.kv_lens}
    for name, d in (("key", s.K_D), ("value", s.V_D), ("keyRope", 64)):
        spec = s.tensor(name)
        if spec is not None:
            cache = TensorSpec((s.B * columns, s.KV_N, 128, d), spec.dtype)
            values[name] = cache if name == "keyRope" else (cache,)
    return values


def unpaged(s: Scene) -> Optional[dict[str, object]]:
    """A paged batch call with its key, value and keyRope contiguous, as long as the longest sequence."""
    if not s.paged or s.layout is None or s.packed or s.B is None or not s.kv_lens or s.KV_N <= 0:
        return None
    if s.K_D is None or s.V_D is None or max(s.kv_lens) <= 0:
        return None
    values: dict[str, object] = {"blockTable": None, "blockSize": 0}
    for name, d in (("key", s.K_D), ("value", s.V_D), ("keyRope", 64)):
        spec = s.tensor(name)
        if spec is not None:
            own = TensorSpec(tensor_shape(s.layout.inputs, B=s.B, S=max(s.kv_lens), N=s.KV_N, D=d), spec.dtype)
            values[name] = own if name == "keyRope" else (own,)
    return values
