"""Scenario, layout, storage, sizes and dtypes: the choices of the common group, and the main tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping

from fiafuzz.model.case import TensorSpec
from fiafuzz.model.limits import (
    ANTIQUANT_LAYOUTS,
    BSH_BSND_FAMILY,
    DECODE_MLA_INT8_LAYOUTS,
    DECODE_MLA_LAYOUTS,
    FEATURE_LAYOUTS,
    FIXED_D_LAYOUTS,
    GQA_LAYOUTS,
    NZ_D0,
    NZ_D0_ONE_BYTE,
    PAGED_LAYOUTS,
    PER_TENSOR_LAYOUTS,
    PLAIN_LAYOUTS,
    UNEQUAL_D_LAYOUTS,
)

from .diagram import Words, choice, derived
from .draft import Draft
from .ground import Ground
from .source import Table

CACHES = ("BnBsH", "BnNBsD", "NZ")
FLOATS = ("FLOAT16", "BFLOAT16")
PACKED = frozenset({"TND", "NTD", "NTD_TND", "TND_NTD"})


@choice
def scenario(ground: Ground) -> Words:
    words = {"gqa": 30, "mla_prefill_split": 8, "mla_prefill_combined": 8, "mla_decode": 10, "antiquant": 22,
             "full_per_tensor": 5}
    if ground.is_950:
        words |= {"unequal_d": 6, "full_decode_mla": 9}
        if ground.source_only:
            # Younger than the V5 document: MXFP8 and FP8 GQA exist in the source only.
            words |= {"full_gqa_fp8": 5, "full_mxfp8": 6}
    elif ground.api >= 5:
        words["full_decode_mla"] = 5
    return words


@choice
def layout(ground: Ground, scenario: str) -> Words:
    if scenario == "unequal_d":
        return UNEQUAL_D_LAYOUTS
    if scenario == "full_gqa_fp8":
        return ("NTD_TND",)
    if scenario == "full_mxfp8":
        return ("TND",)
    if scenario == "full_per_tensor":
        return PER_TENSOR_LAYOUTS
    if scenario == "full_decode_mla":
        return DECODE_MLA_LAYOUTS if ground.is_950 else DECODE_MLA_INT8_LAYOUTS
    if scenario == "mla_decode":
        return DECODE_MLA_LAYOUTS
    if scenario == "antiquant":
        return ANTIQUANT_LAYOUTS if ground.is_950 else ("BNSD", "BSND", "BSH")
    if not ground.v3_document:
        return GQA_LAYOUTS
    # The V3 document has no NTD, BSH_BNSD and BSND_BNSD, and prefill MLA only for packed tokens.
    if scenario == "gqa":
        return ("BNSD", "BSND", "BSH", "TND", "BNSD_BSND", "NTD_TND")
    return ("TND", "NTD_TND")


@derived
def packed(layout: str) -> bool:
    return layout in PACKED


@choice
def storage(ground: Ground, scenario: str, layout: str, packed: bool) -> Words:
    if ground.is_950:
        return _storage_950(ground, scenario, layout, packed)
    if scenario == "full_decode_mla":
        return ("NZ",)
    if scenario == "mla_decode":
        return _storage_decode_mla_a2(ground, layout)
    if scenario == "antiquant":
        return ("contiguous", *_caches_v3(layout), "tensor_list")
    if scenario != "gqa":
        return ("contiguous",)
    if layout in PLAIN_LAYOUTS:
        return ("contiguous", *_caches_v3(layout), "tensor_list")
    if layout == "TND":
        # The V3 document allows BnBsH to packed tokens; the source takes every cache on one of its routes.
        return ("contiguous", "BnBsH") if ground.v3_document else ("contiguous", *CACHES)
    return ("contiguous",)


def _caches_v3(layout: str) -> tuple[str, ...]:
    return ("BnBsH", "BnNBsD") if layout == "BNSD" else ("BnBsH",)


def _storage_decode_mla_a2(ground: Ground, layout: str) -> Words:
    found: tuple[str, ...]
    if layout in BSH_BSND_FAMILY:
        found = ("BnBsH", "NZ")
    elif layout in PACKED or not ground.v3_document:
        found = ("BnBsH", "BnNBsD", "NZ")
    else:
        found = ("BnBsH", "BnNBsD")
    # The V3 document makes paging mandatory here.
    return found if ground.v3_document else ("contiguous", *found)


def _storage_950(ground: Ground, scenario: str, layout: str, packed: bool) -> Words:
    if scenario == "unequal_d":
        return ("contiguous",)
    if scenario == "full_per_tensor":
        return ("contiguous",)
    if scenario == "full_gqa_fp8":
        return ("BnNBsD",)
    if scenario == "full_mxfp8":
        return ("contiguous", "BnNBsD", "NZ")
    if scenario in ("mla_decode", "full_decode_mla"):
        if scenario == "full_decode_mla" and layout in BSH_BSND_FAMILY:
            return ("contiguous", "BnBsH", "NZ")
        return ("contiguous", *CACHES)
    caches: tuple[str, ...]
    lists = ("tensor_list",) if layout in FEATURE_LAYOUTS else ()
    if scenario == "antiquant":
        caches = CACHES if layout in ("BNSD", "BNSD_BSND", "TND") else ("BnBsH", "NZ")
        return ("contiguous", *caches, *lists)
    caches = CACHES if layout in PAGED_LAYOUTS or ground.source_only else ()
    return ("contiguous", *caches, *lists)


@derived
def paged(storage: str) -> bool:
    return storage in CACHES


@derived
def feature_layout(layout: str) -> bool:
    return layout in FEATURE_LAYOUTS


@choice
def q_s(ground: Ground, scenario: str, layout: str, storage: str, packed: bool) -> Words:
    several = {"2-16": 10, "17+": 8}
    if scenario == "full_per_tensor":
        return several
    if scenario == "full_decode_mla":
        return {"1": 8, "2-16": 10}
    if scenario == "antiquant":
        if ground.is_950:
            return several if layout == "BNSD_BSND" else {"1": 12, **several}
        if storage == "BnBsH" and layout in ("BSH", "BSND") and not ground.document:
            # One narrow route of the source takes INT8 caches and many query tokens; documents forbid it.
            return {"1": 12, "17+": 3}
        return {"1": 20, **several} if storage == "contiguous" else {"1": 1}
    if ground.is_950:
        empty = scenario == "gqa" and storage == "contiguous" and layout not in FIXED_D_LAYOUTS
        return {"1": 9, **several, **({"0": 1} if empty else {})}
    if scenario == "mla_decode":
        if ground.v3_document and layout.endswith("NBSD"):
            return ("2-16",)
        return {"1": 8, "2-16": 10} if ground.v3_document else {"1": 8, **several}
    if layout == "BNSD_BSND":
        return several
    empty = scenario == "gqa" and storage == "contiguous" and layout in PLAIN_LAYOUTS
    return {"1": 9, **several, **({"0": 1} if empty else {})}


@derived
def single(q_s: str) -> bool:
    return q_s == "1"


@derived
def form(ground: Ground, scenario: str, layout: str) -> str:
    """A layout that all later choices treat like the chosen one."""
    inputs = layout if layout in ("BNSD_BSND", "BSH_BNSD", "BSND_BNSD", "TND_NTD", "NTD_TND") else layout.split("_")[0]
    if inputs in ("BSND", "BSH"):
        return "BSH" if scenario == "full_decode_mla" or (scenario == "antiquant" and not ground.is_950) else "BNSD"
    return {"BSND_BNSD": "BSH_BNSD", "NTD": "NTD_TND"}.get(inputs, inputs)


@derived
def store(storage: str) -> str:
    """A storage that all later choices treat like the chosen one."""
    return "BnBsH" if storage == "BnNBsD" else storage


@choice
def empty(scenario: str, store: str, form: str, packed: bool, q_s: str) -> Words:
    if q_s == "0":
        return ("query",)
    if scenario != "gqa" or store != "contiguous" or form in FIXED_D_LAYOUTS:
        return ("none",)
    # A batch axis of 0 needs batches that are counted by an axis.
    return {"none": 60, "kv": 1} if packed else {"none": 60, "query": 1, "kv": 1}


@choice
def batch(store: str, empty: str, q_s: str) -> Words:
    if empty == "query" and q_s != "0":
        return ("0",)
    if store == "tensor_list":
        return {"2": 2, "3+": 3}
    return {"1": 3, "2": 4, "3+": 5}


@derived
def batches(batch: str) -> str:
    """"0", "1" or "more"."""
    return batch if batch in ("0", "1") else "more"


@derived
def group_menu(ground: Ground, scenario: str, packed: bool) -> str:
    """Allowed words, in one string."""
    if scenario == "mla_decode" and packed and ground.v3_document:
        return "mqa"
    return "mha mqa" if scenario in ("mla_decode", "full_decode_mla") else "mha gqa mqa"


@choice
def group(group_menu: str) -> Words:
    return {word: {"mha": 3, "gqa": 4, "mqa": 4}[word] for word in group_menu.split()}


_FIXED_D = {"mla_decode": "512", "full_decode_mla": "512", "mla_prefill_split": "128", "mla_prefill_combined": "192",
            "full_gqa_fp8": "128"}


@derived
def size_menu(ground: Ground, scenario: str, form: str, store: str, single: bool, kv_dtype: str,
              out_dtype: str) -> str:
    """Allowed words of the head size, in one string."""
    if scenario in _FIXED_D:
        return _FIXED_D[scenario]
    if scenario == "full_mxfp8" or (scenario == "gqa" and form in FIXED_D_LAYOUTS):
        return "128" if ground.v3_document else "64 128"
    if scenario == "unequal_d":
        return "64 128 16k odd"
    if scenario == "antiquant" and not ground.is_950 and not single and store == "BnBsH":
        return "64 128"
    if not ground.is_950 and form == "TND":
        if store == "NZ":
            return "64 128"
        # The fast route of packed tokens takes any multiple of 16 up to 256, the common one these three.
        return "64 128 192 16k" if ground.v3_document else "64 128 192"
    words = "64 128 192 512 16k"
    free = _free_head_size(ground, scenario, form, store, single, kv_dtype, out_dtype)
    return f"{words} odd" if free else words


@choice
def head_size(size_menu: str) -> Words:
    weights = {"64": 6, "128": 6, "192": 3, "512": 1, "16k": 4, "odd": 4}
    return {word: weights[word] for word in size_menu.split()}


def _free_head_size(ground: Ground, scenario: str, form: str, store: str, single: bool, kv_dtype: str,
                    out_dtype: str) -> bool:
    """Whether D need not be a multiple of 16."""
    if store == "NZ" or form == "BNSD_BSND" or kv_dtype in ("INT4", "FLOAT4_E2M1"):
        return False
    if ground.is_950:
        return True
    return single and scenario == "gqa" and form in PLAIN_LAYOUTS and out_dtype in FLOATS


# ---- building ---------------------------------------------------------------------------------

_SCALES = Table(("1/sqrt", 84), (1.0, 3), (0.125, 3), (0.0, 2), (-0.0625, 3), (0.037, 5))


def axes_shape(axes: str, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The shape of a tensor with those axes, by axis letter."""
    return tuple([sizes[a] for a in axes])


def tensors(d: Draft) -> None:
    """Put query, key, value, attentionOut and the attributes of the common group into the call."""
    words, inputs, axes = d.words, d.inputs, d.layout.inputs
    q_dtype, kv_dtype, fill = words["q_dtype"], words["kv_dtype"], d.data_fill
    query = {"B": d.B, "S": d.Q_S, "N": d.Q_N, "D": d.D, "H": d.Q_N * d.D, "T": d.T}
    inputs["query"] = TensorSpec(axes_shape(axes, query), q_dtype, fill=fill if q_dtype in FLOATS else None)
    stored = "INT32" if d.int4_carrier else kv_dtype
    kv_fill = fill if kv_dtype in FLOATS else None
    inputs["key"] = tuple([TensorSpec(s, stored, fill=kv_fill) for s in key_shapes(d, d.D)])
    inputs["value"] = tuple([TensorSpec(s, stored, fill=kv_fill) for s in key_shapes(d, d.DV)])
    query["D"], query["H"] = d.DV, d.Q_N * d.DV
    d.outputs["attentionOut"] = TensorSpec(axes_shape(d.layout.output, query), words["out_dtype"])
    attrs, source = d.attrs, d.source
    attrs["numHeads"] = d.Q_N
    # 0 means "as numHeads"; decode MLA wants the literal 1, and packed tokens on A2 and A3 bring the host down with 0.
    zero = d.G == 1 and d.scenario not in ("mla_decode", "full_decode_mla") and (d.ground.is_950 or not d.packed)
    attrs["numKeyValueHeads"] = 0 if zero and source.chance(30) else d.KV_N
    attrs["inputLayout"] = d.layout.name
    scale = _SCALES.of(source)
    attrs["scaleValue"] = _inverse_root(d.D + (64 if "queryRope" in inputs else 0)) if scale == "1/sqrt" else scale


def _inverse_root(size: int) -> float:
    return round(1 / math.sqrt(size), 6) if size else 1.0


def key_shapes(d: Draft, head_size: int) -> list[tuple[int, ...]]:
    """The shapes of the key list (or, with its head size, of the value list), packed INT4 counted in words."""
    last = 8 if d.int4_carrier else 1
    if d.paged:
        return [cache_of(d, head_size, last)]
    sizes = {"B": d.B, "S": d.KV_S, "N": d.KV_N, "D": head_size // last, "H": d.KV_N * head_size // last, "T": d.KV_T}
    if d.storage != "tensor_list":
        return [axes_shape(d.layout.inputs, sizes)]
    sizes["B"] = 1
    found = []
    for s in d.item_s:
        sizes["S"] = s
        found.append(axes_shape(d.layout.inputs, sizes))
    return found


def cache_of(d: Draft, head_size: int, per_word: int = 1, d0: int = 0) -> tuple[int, ...]:
    """The shape of a paged cache."""
    if d.storage == "BnBsH":
        return (d.blocks, d.block_size, d.KV_N * head_size // per_word)
    if d.storage == "BnNBsD":
        return (d.blocks, d.KV_N, d.block_size, head_size // per_word)
    row = d0 or (NZ_D0_ONE_BYTE if d.scenario in ("full_decode_mla", "full_mxfp8") else NZ_D0)
    return (d.blocks, d.KV_N, head_size // row, d.block_size, row // per_word)
