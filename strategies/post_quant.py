"""Post-quantisation: the dtype of attentionOut decides, quantScale2 and quantOffset2 follow."""

from __future__ import annotations

from fiafuzz.model.case import Grid
from fiafuzz.model.limits import FEATURE_LAYOUTS

from .diagram import Words, choice, derived
from .draft import Draft
from .ground import Ground

FLOATS = ("FLOAT16", "BFLOAT16")
MATCHING = ("INT8", "FLOAT8_E4M3FN", "HIFLOAT8")


@choice
def out_dtype(ground: Ground, scenario: str, form: str, store: str, q_dtype: str, kv_dtype: str, antiquant: str,
              prefix: str, single: bool, empty: str) -> Words:
    if scenario in ("full_gqa_fp8", "full_mxfp8"):
        return FLOATS
    if scenario == "full_decode_mla":
        return ("BFLOAT16",)
    if scenario == "full_per_tensor":
        # 950: the source registers BFLOAT16 alone; V3 document: FLOAT16 and INT8.
        return ("BFLOAT16",) if ground.is_950 else ("FLOAT16", "INT8")
    own = {q_dtype: 8}
    if empty != "none":
        return own
    if scenario == "antiquant":
        return own | _beside_antiquant(ground, kv_dtype, antiquant, prefix, single)
    if scenario == "unequal_d" or (scenario == "mla_decode" and form == "TND_NTD"):
        return own
    if not ground.is_950:
        packed = form == "TND" and store == "contiguous" and not ground.v3_document
        return own | ({"INT8": 2} if scenario == "gqa" and (form in FEATURE_LAYOUTS or packed) else {})
    return own | ({"INT8": 2} if prefix != "none" else dict.fromkeys(MATCHING, 1))


def _beside_antiquant(ground: Ground, kv_dtype: str, antiquant: str, prefix: str, single: bool) -> dict[str, int]:
    if antiquant == "mixed" or kv_dtype in ("INT4", "FLOAT4_E2M1"):
        return {}
    if kv_dtype == "INT8":
        return {"INT8": 3} if single else {}
    return {kv_dtype: 3} if antiquant == "per_channel" and prefix == "none" else {}


@derived
def rows_certain(hollow: bool, over: bool, q_given: bool, left_padding: str, scenario: str) -> bool:
    """Whether every output row has keys, so that an offset is added to every row in the same way.

    Rows without keys become 0 or the rounded offset, depending on the path (numerics corrections 9).
    """
    return not hollow and left_padding == "none" and not (scenario == "antiquant" and q_given)


@derived
def post_menu(ground: Ground, scenario: str, out_dtype: str, rows_certain: bool, left_padding: str) -> str:
    """Allowed words, in one string."""
    if out_dtype in FLOATS:
        return "none"
    # V3 document: parameters per channel exclude left padding.
    words = "tensor channel" if ground.is_950 or left_padding == "none" else "tensor"
    return words + "".join(f" {word}+offset" for word in words.split()) if rows_certain else words


@choice
def post_quant(post_menu: str) -> Words:
    return {word: 1 if word.endswith("offset") else 2 for word in post_menu.split()}


# ---- building ---------------------------------------------------------------------------------


def tensors(d: Draft) -> None:
    """Put quantScale2 and quantOffset2 into the call."""
    word, _, offset = d.words["post_quant"].partition("+")
    if word == "none":
        return
    dtype = "BFLOAT16" if d.words["q_dtype"] == "BFLOAT16" and d.source.chance(40) else "FLOAT32"
    shape = (1,) if word == "tensor" else _channel_shape(d)
    d.tensor("quantScale2", shape, dtype)
    if offset:
        d.tensor("quantOffset2", shape, dtype, Grid(-6.0, 6.0))


def _channel_shape(d: Draft) -> tuple[int, ...]:
    n, v, h = d.Q_N, d.DV, d.Q_N * d.DV
    if d.layout.name not in FEATURE_LAYOUTS:
        return (n, v)
    return d.source.choice(((n, v), (h,), (1, h), (1, n, v), (n, 1, v), (1, n, 1, v), (1, 1, h)))
