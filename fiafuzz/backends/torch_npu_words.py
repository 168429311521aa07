"""torch_npu's words: its two operators, which argument of each carries which parameter, and its numbers for dtypes and formats.

Sources: spec/torch_npu.md 2.1, 2.2, 2.5, 2.6.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from fiafuzz.model.parameters import BY_NAME

OPERATORS: Mapping[str, str] = MappingProxyType(
    {
        "v1": "npu_fused_infer_attention_score",
        "v2": "npu_fused_infer_attention_score_v2",
    }
)

_BOTH = {
    "query": "query",
    "key": "key",
    "value": "value",
    "pseShift": "pse_shift",
    "attenMask": "atten_mask",
    "blockTable": "block_table",
    "queryRope": "query_rope",
    "keyRope": "key_rope",
    "preTokens": "pre_tokens",
    "nextTokens": "next_tokens",
    "inputLayout": "input_layout",
    "numKeyValueHeads": "num_key_value_heads",
    "sparseMode": "sparse_mode",
    "innerPrecise": "inner_precise",
    "blockSize": "block_size",
}

WORDS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "v1": MappingProxyType(
            {
                **_BOTH,
                "actualSeqLengths": "actual_seq_lengths",
                "actualSeqLengthsKv": "actual_seq_lengths_kv",
                "deqScale1": "dequant_scale1",
                "quantScale1": "quant_scale1",
                "deqScale2": "dequant_scale2",
                "quantScale2": "quant_scale2",
                "quantOffset2": "quant_offset2",
                "antiquantScale": "antiquant_scale",
                "antiquantOffset": "antiquant_offset",
                "keyAntiquantScale": "key_antiquant_scale",
                "keyAntiquantOffset": "key_antiquant_offset",
                "valueAntiquantScale": "value_antiquant_scale",
                "valueAntiquantOffset": "value_antiquant_offset",
                "queryPaddingSize": "query_padding_size",
                "kvPaddingSize": "kv_padding_size",
                "keySharedPrefix": "key_shared_prefix",
                "valueSharedPrefix": "value_shared_prefix",
                "actualSharedPrefixLen": "actual_shared_prefix_len",
                "keyRopeAntiquantScale": "key_rope_antiquant_scale",
                "numHeads": "num_heads",
                "scaleValue": "scale",
                "antiquantMode": "antiquant_mode",
                "softmaxLseFlag": "softmax_lse_flag",
                "keyAntiquantMode": "key_antiquant_mode",
                "valueAntiquantMode": "value_antiquant_mode",
            }
        ),
        "v2": MappingProxyType(
            {
                **_BOTH,
                "actualSeqLengths": "actual_seq_qlen",
                "actualSeqLengthsKv": "actual_seq_kvlen",
                "quantScale1": "quant_scale_p",
                "quantScale2": "quant_scale_out",
                "quantOffset2": "quant_offset_out",
                "keyAntiquantScale": "dequant_scale_key",
                "keyAntiquantOffset": "dequant_offset_key",
                "valueAntiquantScale": "dequant_scale_value",
                "valueAntiquantOffset": "dequant_offset_value",
                "keyRopeAntiquantScale": "dequant_scale_key_rope",
                "dequantScaleQuery": "dequant_scale_query",
                "learnableSink": "learnable_sink",
                "numHeads": "num_query_heads",
                "scaleValue": "softmax_scale",
                "softmaxLseFlag": "return_softmax_lse",
                "keyAntiquantMode": "key_quant_mode",
                "valueAntiquantMode": "value_quant_mode",
                "queryQuantMode": "query_quant_mode",
            }
        ),
    }
)
"""C parameter -> argument, by operator. What is not listed has no argument: torch_npu passes null or 0 for it."""

DTYPE_ARGUMENTS: Mapping[str, str] = MappingProxyType(
    {
        "query": "query_dtype",
        "key": "key_dtype",
        "value": "value_dtype",
        "queryRope": "query_rope_dtype",
        "keyRope": "key_rope_dtype",
        "dequantScaleQuery": "dequant_scale_query_dtype",
        "keyAntiquantScale": "dequant_scale_key_dtype",
        "valueAntiquantScale": "dequant_scale_value_dtype",
        "attentionOut": "out_dtype",
    }
)
"""Parameters whose dtype the second operator takes as a number beside the tensor."""

DTYPE_NUMBERS: Mapping[str, int] = MappingProxyType(
    {
        "INT4": 285,
        "HIFLOAT8": 290,
        "FLOAT8_E5M2": 291,
        "FLOAT8_E4M3FN": 292,
        "FLOAT8_E8M0": 293,
        "FLOAT4_E2M1": 296,
        "FLOAT4_E1M2": 297,
    }
)
"""Those numbers: 256 and the C interface's own."""

TORCH_DTYPES: Mapping[str, str] = MappingProxyType(
    {
        "FLOAT16": "float16",
        "BFLOAT16": "bfloat16",
        "FLOAT32": "float32",
        "DOUBLE": "float64",
        "INT8": "int8",
        "UINT8": "uint8",
        "BOOL": "bool",
        "INT16": "int16",
        "UINT16": "uint16",
        "INT32": "int32",
        "UINT32": "uint32",
        "INT64": "int64",
        "UINT64": "uint64",
        "FLOAT8_E4M3FN": "float8_e4m3fn",
        "FLOAT8_E5M2": "float8_e5m2",
        "FLOAT8_E8M0": "float8_e8m0fnu",
        "FLOAT4_E2M1": "float4_e2m1fn_x2",
        "COMPLEX64": "complex64",
        "COMPLEX128": "complex128",
    }
)
"""torch's own dtype for a format, where it has one (older versions lack some)."""

SCALAR_TYPES: Mapping[str, int] = MappingProxyType(
    {
        "UINT8": 0,
        "INT8": 1,
        "INT16": 2,
        "INT32": 3,
        "INT64": 4,
        "FLOAT16": 5,
        "FLOAT32": 6,
        "DOUBLE": 7,
        "BOOL": 11,
        "BFLOAT16": 15,
        "FLOAT8_E5M2": 23,
        "FLOAT8_E4M3FN": 24,
    }
)
"""The number of a dtype that torch puts in when a dtype is given for a number, as in ``out_dtype=torch.bfloat16``."""

PLAIN_FORMATS: Mapping[int, str] = MappingProxyType({3: "NCL", 4: "NCHW", 5: "NCDHW"})
"""The format that torch_npu puts on a plain tensor by its rank; ND for every other rank."""

LEAST_ITEM = -(1 << 62)
"""The least item of an integer list that torch holds as a plain number; for smaller ones it holds a pointer, and torch_npu takes
that for the number."""

assert all(name in BY_NAME for table in WORDS.values() for name in table)
