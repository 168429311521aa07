"""The documents' quantisation tables, as data: antiquant modes and the kinds of full quantisation.

Sources: the V5 document lines 255-286 (antiquant), 288-357 (full quantisation), its parameter table, and spec ids
v5.quant.*; what only the operator's source of August 2026 states is marked so.
"""

from __future__ import annotations

from dataclasses import dataclass

INT4 = "INT4"
"""INT4, also as it stands packed eight to a word in INT32 tensors (Scene.k_dtype names both INT4)."""

FLOAT_KV: tuple[str, ...] = ("FLOAT8_E4M3FN", "HIFLOAT8", "FLOAT4_E2M1")


@dataclass(frozen=True)
class AntiquantMode:
    """One row of the antiquant table: a mode pair (split by the scale's shape for mode 0).

    ``kind`` is the word of Scene.antiquant_kind; ``kv`` the key/value dtypes; ``scale`` the dtype of both scales:
    "query" means that of query, None that the two differ and have rules of their own. ``documented`` is False for what
    the source alone states. ``cite`` is the tail of the spec ids; ``wrong_kv`` a dtype that the row refuses, for
    faults; ``v3_scale`` the statements of the V3 document (A2, A3) that say the same.
    """

    number: int
    kind: str
    title: str
    pair: tuple[int, int]
    kv: tuple[str, ...]
    scale: str | None
    cite: str
    wrong_kv: str
    documented: bool = True
    v3_scale: tuple[str, ...] = ()


def _v3(*tails: str) -> tuple[str, ...]:
    return tuple(f"v3.quant.{tail}" for tail in tails)


_V3_KEY_TABLES = _v3("single.key_antiquant_scale_table", "single.value_antiquant_scale_table")

ANTIQUANT_MODES: tuple[AntiquantMode, ...] = (
    AntiquantMode(
        1, "per_tensor", "per-tensor", (0, 0), ("INT8",), "query", "per_tensor", "FLOAT8_E4M3FN",
        v3_scale=_v3("cross.qs_eq1_a2_per_tensor_scale_dtype"),
    ),
    AntiquantMode(
        2, "per_channel", "per-channel", (0, 0), ("INT8", INT4, "HIFLOAT8", "FLOAT8_E4M3FN"), "query", "per_channel",
        "FLOAT4_E2M1",
        v3_scale=(*_v3("cross.qs_eq1_a2_per_channel_scale_dtype", "consistency.qs_gt1_a2_sep_per_channel_scale_dtype"),
                  *_V3_KEY_TABLES),
    ),
    AntiquantMode(
        3, "per_token", "per-token", (1, 1), ("INT8", INT4, "FLOAT8_E4M3FN"), "FLOAT32", "per_token", "HIFLOAT8",
        v3_scale=(*_v3("consistency.qs_eq1_a2_per_token_scale_dtype",
                       "consistency.qs_gt1_a2_sep_per_token_scale_dtype"),
                  *_V3_KEY_TABLES),
    ),
    AntiquantMode(
        4, "tensor_head", "per-tensor with head", (2, 2), ("INT8",), "query", "per_tensor_head", "FLOAT8_E4M3FN",
        v3_scale=_v3("cross.qs_eq1_a2_per_tensor_head_scale_dtype"),
    ),
    AntiquantMode(
        5, "token_head", "per-token with head", (3, 3), ("INT8", INT4), "FLOAT32", "per_token_head", "FLOAT8_E4M3FN",
        v3_scale=_v3("consistency.qs_eq1_a2_token_head_scale_dtype"),
    ),
    AntiquantMode(
        6, "token_paged", "per-token, paged scales", (4, 4), ("INT8", "FLOAT8_E4M3FN"), "FLOAT32", "per_token_paged",
        "HIFLOAT8",
        v3_scale=_v3("consistency.qs_eq1_a2_token_pa_scale_dtype"),
    ),
    AntiquantMode(
        7, "token_head_paged", "per-token with head, paged scales", (5, 5), ("INT8",), "FLOAT32",
        "per_token_head_paged",
        "FLOAT8_E4M3FN", documented=False,
    ),
    AntiquantMode(8, "mixed", "key per-channel, value per-token", (0, 1), ("INT8", INT4), None,
                  "key_channel_value_token",
                  "FLOAT8_E4M3FN"),
    AntiquantMode(9, "group", "per-token-group", (6, 6), ("FLOAT4_E2M1",), "FLOAT8_E8M0", "per_token_group",
                  "FLOAT8_E4M3FN"),
)

GROUP = 32
"""Elements of D that share one scale in mode 6."""

FULL_MODES: dict[str, tuple[int, int, int]] = {
    "mla": (3, 0, 0), "per_tensor": (0, 0, 0), "mxfp8": (6, 6, 8), "gqa_fp8": (3, 3, 2), "per_block": (7, 7, 7),
}
"""(queryQuantMode, keyAntiquantMode, valueAntiquantMode) of each kind of full quantisation."""

FULL_TITLES: dict[str, str] = {
    "mla": "Decode MLA", "per_tensor": "INT8 per-tensor", "mxfp8": "MXFP8", "gqa_fp8": "GQA FP8",
    "none": "no quantisation",
    "antiquant": "antiquant",
}


@dataclass(frozen=True)
class ScaleTensor:
    """One scale of one kind of full quantisation: dtypes, whether it must be given, and the spec ids about it."""

    number: int
    kind: str
    name: str
    dtypes: tuple[str, ...]
    dtype_cites: tuple[str, ...]
    required: bool = True
    required_cites: tuple[str, ...] = ()
    wrong: str = "FLOAT16"


_QUERY_DTYPE = "v5.interface.single.dequant_scale_query_dtype"
_DEQ_DTYPE = "v5.interface.single.deq_scale_dtypes"

FULL_SCALES: tuple[ScaleTensor, ...] = (
    ScaleTensor(1, "mla", "dequantScaleQuery", ("FLOAT32",), ("v5.quant.single.mla_query_scale_dtype", _QUERY_DTYPE),
                True, ("v5.quant.existence.mla_query_scale_required",)),
    ScaleTensor(2, "mla", "keyAntiquantScale", ("FLOAT32",), ("v5.quant.single.mla_key_scale_dtype",),
                True, ("v5.quant.existence.mla_key_scale_required",)),
    ScaleTensor(3, "mla", "valueAntiquantScale", ("FLOAT32",), ("v5.quant.single.mla_value_scale_dtype",),
                True, ("v5.quant.existence.mla_value_scale_required",)),
    ScaleTensor(4, "per_tensor", "deqScale1", ("UINT64", "FLOAT32"),
                ("v5.quant.single.per_tensor_deq_scale1_dtype", _DEQ_DTYPE),
                True, ("v5.quant.existence.per_tensor_deq_scale1_required",)),
    ScaleTensor(5, "per_tensor", "quantScale1", ("FLOAT32",),
                ("v5.quant.single.per_tensor_quant_scale1_dtype", "v5.interface.single.quant_scale1_dtype"),
                True, ("v5.quant.existence.per_tensor_quant_scale1_required",)),
    ScaleTensor(6, "per_tensor", "deqScale2", ("UINT64", "FLOAT32"),
                ("v5.quant.single.per_tensor_deq_scale2_dtype", _DEQ_DTYPE),
                True, ("v5.quant.existence.per_tensor_deq_scale2_required",)),
    ScaleTensor(7, "mxfp8", "dequantScaleQuery", ("FLOAT8_E8M0",), ("v5.quant.single.mxfp8_query_scale_dtype",),
                True, ("v5.quant.existence.mxfp8_scales_required",), "FLOAT32"),
    ScaleTensor(8, "mxfp8", "keyAntiquantScale", ("FLOAT8_E8M0",), ("v5.quant.single.mxfp8_key_scale_dtype",),
                True, ("v5.quant.existence.mxfp8_scales_required",), "FLOAT32"),
    ScaleTensor(9, "mxfp8", "valueAntiquantScale", ("FLOAT8_E8M0",), ("v5.quant.single.mxfp8_value_scale_dtype",),
                True, ("v5.quant.existence.mxfp8_scales_required",), "FLOAT32"),
    ScaleTensor(10, "mxfp8", "quantScale1", ("FLOAT32",), ("v5.quant.single.mxfp8_quant_scale1",), False),
    ScaleTensor(11, "gqa_fp8", "dequantScaleQuery", ("FLOAT32",), ("v5.quant.single.gqa_fp8_scale_dtypes",
                                                                   _QUERY_DTYPE),
                True, ("v5.quant.existence.gqa_fp8_scales_required",)),
    ScaleTensor(12, "gqa_fp8", "keyAntiquantScale", ("FLOAT32",), ("v5.quant.single.gqa_fp8_scale_dtypes",),
                True, ("v5.quant.existence.gqa_fp8_scales_required",)),
    ScaleTensor(13, "gqa_fp8", "valueAntiquantScale", ("FLOAT32",), ("v5.quant.single.gqa_fp8_scale_dtypes",),
                True, ("v5.quant.existence.gqa_fp8_scales_required",)),
    ScaleTensor(14, "gqa_fp8", "quantScale1", ("FLOAT32",), ("v5.quant.existence.gqa_fp8_quant_scale1",), False),
)


@dataclass(frozen=True)
class Foreign:
    """A quantisation tensor that some scenarios refuse: kinds of the V5 document, and ``newer`` ones of August 2026."""

    number: int
    name: str
    documented: tuple[str, ...] = ()
    newer: tuple[str, ...] = ()


FOREIGN: tuple[Foreign, ...] = (
    Foreign(1, "deqScale1", ("mla",), ("mxfp8", "gqa_fp8")),
    Foreign(2, "quantScale1", ("mla",)),
    Foreign(3, "deqScale2", ("mla",), ("mxfp8", "gqa_fp8")),
    Foreign(4, "antiquantScale", ("mla", "per_tensor", "antiquant"), ("mxfp8", "gqa_fp8")),
    Foreign(5, "antiquantOffset", ("mla", "per_tensor", "antiquant"), ("mxfp8", "gqa_fp8")),
    Foreign(6, "keyAntiquantOffset", ("mla", "per_tensor"), ("mxfp8", "gqa_fp8")),
    Foreign(7, "valueAntiquantOffset", ("mla", "per_tensor"), ("mxfp8", "gqa_fp8")),
    Foreign(8, "keyRopeAntiquantScale", ("mla", "per_tensor"), ("mxfp8", "gqa_fp8")),
    Foreign(9, "dequantScaleQuery", ("per_tensor",)),
    Foreign(10, "keyAntiquantScale", ("per_tensor",)),
    Foreign(11, "valueAntiquantScale", ("per_tensor",)),
    Foreign(12, "quantScale2", (), ("mxfp8", "gqa_fp8")),
    Foreign(13, "quantOffset2", (), ("mxfp8", "gqa_fp8")),
)

NO_QUANT_FOREIGN: tuple[tuple[str, str], ...] = (
    ("deqScale1", "no_quant_forbids_bmm_scales"), ("quantScale1", "no_quant_forbids_bmm_scales"),
    ("deqScale2", "no_quant_forbids_bmm_scales"), ("keyAntiquantScale", "no_quant_forbids_kv_antiquant"),
    ("keyAntiquantOffset", "no_quant_forbids_kv_antiquant"), ("valueAntiquantScale", "no_quant_forbids_kv_antiquant"),
    ("valueAntiquantOffset", "no_quant_forbids_kv_antiquant"), ("dequantScaleQuery", "no_quant_forbids_query_scale"),
    ("antiquantScale", "no_quant_forbids_merged_antiquant"), ("antiquantOffset", "no_quant_forbids_merged_antiquant"),
)
"""Quantisation tensors that the source refuses when nothing is quantised, and the spec statement about each."""

ANTIQUANT_LAYOUTS = frozenset({"BSH", "BNSD", "BSND", "BNSD_BSND", "TND"})
PER_TENSOR_LAYOUTS = frozenset({"BSH", "BNSD", "BSND", "BNSD_BSND"})
MLA_LAYOUTS = frozenset({"BSH", "BSND", "BNSD", "TND", "BSH_NBSD", "BSND_NBSD", "BNSD_NBSD", "TND_NTD"})
MLA_INT8_LAYOUTS = MLA_LAYOUTS - {"BNSD", "BNSD_NBSD"}
