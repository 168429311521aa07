"""Facts that several rules ask for and that the host derives in its own way; cached on the scene like its own facts.

``scene_fact`` makes a function of a scene a cached fact. Everything here is total: what cannot be derived is None or
False.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Optional, TypeVar

from fiafuzz.model.case import TensorSpec
from fiafuzz.model.layouts import COMBINED_MLA_D, DECODE_MLA_D, axis_sizes
from fiafuzz.model.scene import Scene

T = TypeVar("T")


def scene_fact(function: Callable[[Scene], T]) -> Callable[[Scene], T]:
    """A function of a scene whose answer is kept on the scene, so that all rules share one derivation."""
    key = f"{function.__module__}.{function.__qualname__}"

    def cached(scene: Scene) -> T:
        store: dict[str, Any] = scene.__dict__
        if key in store:
            found: T = store[key]
            return found
        value = store[key] = function(scene)
        return value

    cached.__name__, cached.__doc__ = function.__name__, function.__doc__
    return cached


# ---- head sizes -----------------------------------------------------------------------------


@scene_fact
def unequal_d(s: Scene) -> bool:
    """Whether query and value head sizes differ and are not 192/128, rope or not."""
    return s.Q_D is not None and s.V_D is not None and s.Q_D != s.V_D and (s.Q_D, s.V_D) != COMBINED_MLA_D


@scene_fact
def decode_mla(s: Scene) -> bool:
    """Whether queryRope and keyRope are given with query head size 512."""
    return s.rope_on and s.Q_D == DECODE_MLA_D


@scene_fact
def plain(s: Scene) -> bool:
    """Whether the call is unquantised, without rope and not 192/128: GQA in the words of the documents."""
    return s.quant_kind == "none" and s.mla_kind is None


@scene_fact
def antiquant_decode(s: Scene) -> bool:
    """Whether only key and value are quantised and no query is longer than one token."""
    return s.quant_kind == "antiquant" and s.single_token


# ---- tensor lists ---------------------------------------------------------------------------


@scene_fact
def key_items(s: Scene) -> tuple[Optional[dict[str, int]], ...]:
    """Axis letter -> size of every key tensor under the layout, INT4 counted in elements; () for an unknown layout."""
    return _items(s, s.keys)


@scene_fact
def value_items(s: Scene) -> tuple[Optional[dict[str, int]], ...]:
    """Axis letter -> size of every value tensor, as ``key_items``."""
    return _items(s, s.values)


def _items(s: Scene, found: tuple[Optional[TensorSpec], ...]) -> tuple[Optional[dict[str, int]], ...]:
    if s.layout is None:
        return ()
    items = []
    for spec in found:
        axes = axis_sizes(s.layout.inputs, spec.shape) if spec is not None else None
        if axes is not None and s.int4_carrier:
            last = s.layout.inputs[-1]
            axes[last] *= 8
        items.append(axes)
    return tuple(items)


# ---- routes of A2 and A3 --------------------------------------------------------------------


@scene_fact
def legacy_decode(s: Scene) -> bool:
    """Whether an A2/A3 call takes the plain single-token route, which ignores query lengths, sparseMode and tokens: one
    query token, no rope, equal head sizes, BSH, BSND or BNSD (v5.actual_seq_len.cross.legacy_decode_q_ignored_a2)."""
    return (not s.is_950 and s.single_token and not s.rope_on and s.layout_name in ("BSH", "BSND", "BNSD")
            and s.Q_D == s.V_D)


@scene_fact
def fast_tnd(s: Scene) -> bool:
    """Whether an A2/A3 call takes the fast TND route, which checks next to nothing (spec/host_behaviour.md 3.5)."""
    if s.is_950 or s.layout_name != "TND" or s.quant_kind != "none" or s.given("queryRope") or s.given("keyRope"):
        return False
    if s.Q_D is None or s.Q_D != s.V_D or not 0 < s.Q_D <= 256 or s.given("quantScale2"):
        return False
    if s.sparse_mode not in (0, 3, 4):
        return False
    if s.storage == "tensor_list" or s.cache_layout == "BnNBsD" or (s.cache_layout == "NZ" and s.Q_D in (64, 128)):
        return False
    if s.KV_N != s.Q_N:
        return s.inner_precise == 0
    return not (s.q_dtype == "BFLOAT16" and s.inner_precise == 1) and not (s.sparse_mode == 0 and s.mask_on)


@scene_fact
def older_route(s: Scene) -> bool:
    """Whether an A2/A3 call takes one of the older prefill and decode routes: anything quantised."""
    return not s.is_950 and s.quant_kind in ("antiquant", "full")
