"""The tensors and modes of quantisation, kind by kind (spec/v5_quant_rope_notes.md 3 and 4, spec/v3_notes.md)."""

from __future__ import annotations

from collections.abc import Callable

from fiafuzz.model.case import Constant, Fill, Grid
from fiafuzz.model.limits import ANTIQUANT, FULL_QUANT_MODES, GROUP_SIZE, MX_GROUP, per_channel_shapes

from .common import axes_shape
from .draft import Draft

_P_SCALES = (128.0, 1.0, 448.0, 16.0)


def tensors(d: Draft) -> None:
    """Put scales, offsets and modes into the call."""
    if d.scenario == "antiquant":
        _antiquant(d)
    elif d.scenario.startswith("full_"):
        kind = d.scenario.removeprefix("full_")
        query, key, value = FULL_QUANT_MODES[kind]
        d.attrs.update(queryQuantMode=query, keyAntiquantMode=key, valueAntiquantMode=value)
        _FULL[kind](d)


# ---- antiquant --------------------------------------------------------------------------------


def _offset_fill(d: Draft) -> Fill:
    return Grid(-3.0, 3.0) if d.words["kv_dtype"] == "INT4" else Grid(-20.0, 20.0)


def _antiquant(d: Draft) -> None:
    kind = d.words["antiquant"]
    offset = d.words["antiquant_offset"] == "offset"
    if kind == "merged":
        _merged(d, offset)
        return
    modes = ANTIQUANT[kind].modes
    d.attrs["keyAntiquantMode"], d.attrs["valueAntiquantMode"] = modes
    scale = ANTIQUANT[kind].scale
    key_dtype = d.words["q_dtype"] if scale == "query" else scale
    value_dtype = key_dtype
    key_shape = value_shape = _SEPARATE[kind](d)
    if kind == "mixed":
        value_shape, value_dtype = _per_token(d), "FLOAT32"
    d.tensor("keyAntiquantScale", key_shape, key_dtype)
    d.tensor("valueAntiquantScale", value_shape, value_dtype)
    if offset:
        d.tensor("keyAntiquantOffset", key_shape, key_dtype, _offset_fill(d))
        d.tensor("valueAntiquantOffset", value_shape, value_dtype, _offset_fill(d))


def _channel_shapes(d: Draft) -> tuple[tuple[int, ...], ...]:
    """Forms of per-channel parameters that go with the call."""
    n, head = d.KV_N, d.D
    if d.ground.is_950:
        shapes = per_channel_shapes(n, head)
        # Behind a prefix a flat scale counts as per-tensor, which INT4 does not have.
        return shapes[1:] if d.words["prefix"] != "none" and d.words["kv_dtype"] == "INT4" else shapes
    if d.single:
        return ((1, n, 1, head), (1, n, head), (1, n * head))
    if d.paged:
        return ((1, n * head),) if d.layout.name == "BSH" else ((1, n, head),)
    return ((n, head), (n, 1, head), (n * head,))


def _per_channel(d: Draft) -> tuple[int, ...]:
    return d.source.choice(_channel_shapes(d))


def _mixed_key(d: Draft) -> tuple[int, ...]:
    # [1, 1, N, D] is not among the key forms of this pair.
    shapes = _channel_shapes(d)
    return d.source.choice(shapes[:-1] if d.ground.is_950 else shapes)


def _axis(d: Draft) -> int:
    """The token axis of per-token parameters: exactly prefix and key columns (spec/numerics.md 12, 15.1)."""
    return d.width


def _per_token(d: Draft) -> tuple[int, ...]:
    flat, leading = (d.B, _axis(d)), (1, d.B, _axis(d))
    if d.ground.is_950:
        return d.source.choice((flat, leading))
    return leading if d.single else flat


_SEPARATE: dict[str, Callable[[Draft], tuple[int, ...]]] = {
    "per_tensor": lambda d: (1,),
    "per_channel": _per_channel,
    "per_token": _per_token,
    "tensor_head": lambda d: (d.KV_N,),
    "token_head": lambda d: (d.B, d.KV_N, _axis(d)),
    "token_paged": lambda d: (d.blocks, d.block_size),
    "token_head_paged": lambda d: (d.blocks, d.KV_N, d.block_size),
    "mixed": _mixed_key,
    "group": lambda d: (1, d.B, d.KV_N, _axis(d), d.D // GROUP_SIZE),
}


def _merged(d: Draft, offset: bool) -> None:
    """The combined parameters of the V3 interface: first axis 0 for key, 1 for value (spec/numerics.md 15.2)."""
    n, head, source = d.KV_N, d.D, d.source
    q_dtype = d.words["q_dtype"]
    if not d.single:
        by_layout = {"BNSD": (2, n, 1, head), "BSND": (2, n, head), "BSH": (2, n * head)}
        shape, mode = source.choice(((2,), by_layout[d.layout.name])), 0
    elif d.storage != "tensor_list" and source.chance(40):
        shape, mode = (2, d.B, _axis(d)), 1
    else:
        shape, mode = source.choice(((2,), (2, n, 1, head), (2, n, head), (2, n * head))), 0
    dtype = "FLOAT32" if mode else q_dtype
    d.attrs["antiquantMode"] = mode
    d.tensor("antiquantScale", shape, dtype)
    if offset:
        d.tensor("antiquantOffset", shape, dtype, _offset_fill(d))


# ---- full quantisation ------------------------------------------------------------------------


def _per_tensor(d: Draft) -> None:
    carrier = d.source.choice(("FLOAT32", "UINT64"))
    d.tensor("deqScale1", (1,), carrier)
    d.tensor("quantScale1", (1,), "FLOAT32")
    d.tensor("deqScale2", (1,), carrier)


def _decode_mla(d: Draft) -> None:
    axes = d.layout.inputs
    if "H" in axes:
        shape: tuple[int, ...] = (d.B, d.Q_S, d.Q_N)
    else:
        shape = axes_shape(axes.replace("D", ""), {"B": d.B, "S": d.Q_S, "N": d.Q_N, "T": d.T})
    d.tensor("dequantScaleQuery", shape, "FLOAT32")
    d.tensor("keyAntiquantScale", (1,), "FLOAT32")
    d.tensor("valueAntiquantScale", (1,), "FLOAT32")


def _gqa_fp8(d: Draft) -> None:
    d.tensor("dequantScaleQuery", (d.Q_N, d.T), "FLOAT32")
    d.tensor("keyAntiquantScale", (d.blocks, d.KV_N, d.block_size), "FLOAT32")
    d.tensor("valueAntiquantScale", (d.KV_N,), "FLOAT32")
    # The document asks for quantScale1, the source can do without: always given.
    d.tensor("quantScale1", (1,), "FLOAT32", Constant(d.source.choice(_P_SCALES)))


def _mxfp8(d: Draft) -> None:
    groups = -(-d.D // MX_GROUP)
    # Both forms of the query scale are accepted for all sizes; the document ties them to G * Q_S.
    shape = (d.T, d.Q_N, groups, 2) if d.G * d.Q_S > 80 else (d.KV_N, d.T, d.G, groups, 2)
    d.tensor("dequantScaleQuery", shape, "FLOAT8_E8M0")
    n, size = d.KV_N, d.block_size
    if not d.paged:
        columns = sum(-(-length // MX_GROUP) for length in d.kv_lens)
        key: tuple[int, ...] = (d.KV_T, n, groups, 2)
        value: tuple[int, ...] = (columns, n, d.DV, 2)
    elif d.storage == "BnNBsD":
        key, value = (d.blocks, n, size, groups, 2), (d.blocks, n, -(-size // MX_GROUP), d.DV, 2)
    else:
        key = (d.blocks, n, -(-size // 16), groups, 16, 2)
        value = (d.blocks, n, -(-d.DV // 16), -(-size // MX_GROUP), 16, 2)
    d.tensor("keyAntiquantScale", key, "FLOAT8_E8M0")
    d.tensor("valueAntiquantScale", value, "FLOAT8_E8M0")
    # ln(pScale) stays in one vendor's softmaxLse and cancels in the other's (numerics corrections 14).
    if d.source.chance(60):
        d.tensor("quantScale1", (1,), "FLOAT32",
                 Constant(1.0 if d.words["lse"] == "on" else d.source.choice(_P_SCALES)))


_FULL: dict[str, Callable[[Draft], None]] = {
    "per_tensor": _per_tensor, "decode_mla": _decode_mla, "gqa_fp8": _gqa_fp8, "mxfp8": _mxfp8,
}
