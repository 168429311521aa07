"""Quantisation: dtypes of query, key and value, kinds of antiquant parameters, offsets."""

from __future__ import annotations

from fiafuzz.model.limits import ANTIQUANT, OFFSET_DTYPES

from .diagram import Words, choice
from .ground import Ground

FLOATS = ("FLOAT16", "BFLOAT16")


@choice
def q_dtype(ground: Ground, scenario: str, form: str, store: str, single: bool) -> Words:
    if scenario == "full_per_tensor":
        return ("INT8",)
    if scenario == "full_decode_mla":
        return _decode_mla_dtypes(ground, form, store)
    if scenario.startswith("full_"):
        return ("FLOAT8_E4M3FN",)
    if not ground.is_950:
        if form == "NTD_TND" and ground.v3_document:
            return ("BFLOAT16",)
        if scenario == "antiquant" and not single and store == "BnBsH":
            return ("FLOAT16",)
    return FLOATS


def _decode_mla_dtypes(ground: Ground, form: str, store: str) -> Words:
    int8 = ("INT8",) if store == "NZ" and form not in ("BNSD", "BNSD_NBSD") else ()
    return ("FLOAT8_E4M3FN", "HIFLOAT8", *int8) if ground.is_950 else int8


@choice
def kv_dtype(ground: Ground, scenario: str, form: str, store: str, paged: bool, q_dtype: str, single: bool,
             q_s: str, left_padding: str, prefix: str) -> Words:
    if scenario != "antiquant":
        return (q_dtype,)
    if not ground.is_950:
        # INT4 in a paged cache: not in the V3 document, BSH and BSND by the source.
        cached = not ground.v3_document and store == "BnBsH" and form in ("BSH", "BSND")
        if single and (not paged or cached) and prefix == "none":
            return {"INT8": 4, "INT4": 1}
        return ("INT8",)
    words = {}
    if form != "TND" and (single or _int8_tokens(q_dtype, store, q_s, left_padding)):
        words["INT8"] = 6
    if single:
        words["INT4"] = 4
    if prefix == "none":
        words |= {"FLOAT8_E4M3FN": 4, "HIFLOAT8": 2, "FLOAT4_E2M1": 2}
    return words


def _int8_tokens(q_dtype: str, store: str, q_s: str, left_padding: str) -> bool:
    """Whether INT8 keys and several query tokens go together (v5.quant.cross.antiquant_int8_qs_gt1_*)."""
    return q_dtype == "BFLOAT16" and store == "contiguous" and q_s == "2-16" and left_padding == "none"


@choice
def antiquant(ground: Ground, scenario: str, form: str, store: str, paged: bool, q_dtype: str, kv_dtype: str,
              single: bool, q_s: str, prefix: str) -> Words:
    if scenario != "antiquant":
        return ("none",)
    if not ground.is_950:
        return _antiquant_a2(ground, form, store, paged, q_dtype, kv_dtype, single, q_s, prefix)
    words = {word: 2 for word, kind in ANTIQUANT.items() if kv_dtype in kind.kv_dtypes}
    if not single and kv_dtype == "INT8":
        words = {word: n for word, n in words.items() if word in ("per_tensor", "per_channel", "per_token")}
    if not ground.source_only:
        # token_head_paged is in no document; for mixed, document and source want another dtype of the key scale.
        words.pop("token_head_paged", None)
        words.pop("mixed", None)
    if kv_dtype == "INT8" and q_dtype != "FLOAT16":
        words.pop("mixed", None)
    if not paged:
        words.pop("token_paged", None)
        words.pop("token_head_paged", None)
    return words


def _antiquant_a2(ground: Ground, form: str, store: str, paged: bool, q_dtype: str, kv_dtype: str, single: bool,
                  q_s: str, prefix: str) -> Words:
    merged = {"merged": 3} if prefix == "none" and (ground.api < 5 or not ground.document) else {}
    if not single:
        if paged:
            return ("per_channel",)
        # With several query tokens combined parameters want FLOAT16, separate ones BFLOAT16.
        if q_dtype == "FLOAT16":
            return merged
        if q_s != "2-16":
            return ()
        return ("per_channel", "per_token") if prefix == "none" else ("per_channel",)
    if kv_dtype == "INT4":
        if store == "tensor_list":
            return ("per_channel",)
        return ("per_channel", "per_token", "token_head", "mixed")
    if store == "tensor_list":
        return {"per_tensor": 2, "per_channel": 2, "tensor_head": 2, **merged}
    words = {"per_tensor": 2, "per_channel": 2, "tensor_head": 2}
    if prefix != "none":
        # Per-token parameters behind a prefix: nobody says for A2 and A3 whether their axis counts the prefix.
        return words
    words |= {"per_token": 2, "token_head": 2, **merged}
    if q_dtype == "FLOAT16":
        words["mixed"] = 2
    if paged:
        words |= {"token_paged": 2, "token_head_paged": 2}
    return words


@choice
def antiquant_offset(antiquant: str, kv_dtype: str) -> Words:
    if antiquant == "none":
        return ("none",)
    return {"symmetric": 2, "offset": 2} if kv_dtype in OFFSET_DTYPES else ("symmetric",)
