"""Rope: the separate rope halves of query and key in MLA."""

from __future__ import annotations

from fiafuzz.model.layouts import ROPE_D
from fiafuzz.model.limits import NZ_D0

from .common import axes_shape, cache_of
from .draft import Draft

_SPLIT = frozenset({"mla_decode", "mla_prefill_split", "full_decode_mla"})


def tensors(d: Draft) -> None:
    """Put queryRope and keyRope into the call where the scenario has them (MXFP8: sometimes)."""
    if d.scenario == "full_mxfp8":
        # Rope goes with BFLOAT16 output only (v5.quant.cross.mxfp8_rope_bf16).
        if d.words["out_dtype"] != "BFLOAT16" or not d.source.chance(40):
            return
    elif d.scenario not in _SPLIT:
        return
    dtype = "BFLOAT16" if d.scenario.startswith("full_") else d.words["q_dtype"]
    axes = d.layout.inputs
    query = {"B": d.B, "S": d.Q_S, "N": d.Q_N, "D": ROPE_D, "H": d.Q_N * ROPE_D, "T": d.T}
    d.tensor("queryRope", axes_shape(axes, query), dtype)
    if d.paged:
        shape = cache_of(d, ROPE_D, d0=NZ_D0)
    else:
        # Beside a tensor list keyRope is one tensor with a batch axis.
        s = d.item_s[0] if d.item_s else d.KV_S
        key = {"B": d.B, "S": s, "N": d.KV_N, "D": ROPE_D, "H": d.KV_N * ROPE_D, "T": d.KV_T}
        shape = axes_shape(axes, key)
    d.tensor("keyRope", shape, dtype)
