"""A2 and A3: antiquantScale and antiquantOffset, merged for key and value (V3 document lines 33, 77-82, 244)."""

from __future__ import annotations

from collections.abc import Callable

from fiafuzz.model.case import TensorSpec
from fiafuzz.model.scene import Scene

from ..changes import cast, drop, put, where, with_shape
from ..rule import DOC_A2A3_V3, Basis, Boundary, Break, Change, Level, Rule
from .facts import Needs, q_s_over_1

MERGED: Needs = {"antiquant": "merged"}
Shape = tuple[int, ...]


def merged(s: Scene) -> bool:
    """Whether key and value are quantised and only the merged scale is given (separate ones win)."""
    return (s.quant_kind == "antiquant" and s.inputs.antiquantScale is not None and s.inputs.keyAntiquantScale is None
            and s.inputs.valueAntiquantScale is None)


def channel_shapes(s: Scene) -> frozenset[Shape] | None:
    """The shapes of a per-channel or per-tensor merged scale: a leading 2 for key and value."""
    n, d = s.KV_N, s.Q_D
    return None if d is None or n <= 0 else frozenset({(2, n, 1, d), (2, n, d), (2, n * d), (2,)})


def _reshaped(change: Callable[[Shape], Shape]) -> Change:
    def make(s: Scene) -> dict[str, object] | None:
        values: dict[str, object] = {}
        for name in ("antiquantScale", "antiquantOffset"):
            spec = s.tensor(name)
            if spec is not None:
                values[name] = with_shape(spec, change(spec.shape))
        return values if "antiquantScale" in values else None

    return make


def _in_mode(mode: int, change: Change) -> Change:
    return where(lambda s: s.attrs.antiquantMode == mode, change)


def _mode(mode: int) -> Callable[[Scene], bool]:
    return lambda s: merged(s) and s.attrs.antiquantMode == mode


def _sides(one_token: bool) -> tuple[str, Needs, Basis, str]:
    """Words, needs, basis and note of a demand that the decode route checks and the prefill route does not."""
    if one_token:
        return "one query token", {**MERGED, "q_s": "1"}, Basis.BOTH, ""
    return ("several query tokens", {**MERGED, "q_s": ("2-16", "17+")}, Basis.DOCUMENTED,
            "the prefill route does not look")


def _scale_dtype_rule(number: int, one_token: bool) -> Rule:
    words, needs, basis, note = _sides(one_token)
    return Rule(
        f"FIA-QU-{number}", f"mode 0, {words}: antiquantScale has the dtype of query", "quant", Level.CROSS,
        DOC_A2A3_V3,
        ("v3.quant.cross.antiquant_per_channel_scale_dtype", "v3.quant.cross.antiquant_per_tensor_scale_dtype",
         "v3.quant.single.antiquant_scale_table"),
        lambda s: _mode(0)(s) and s.single_token is one_token, lambda s: s.dtype("antiquantScale") == s.q_dtype,
        basis=basis, note=note, enforced_by="CheckKVAntiQuantPerChannel" if one_token else "nothing",
        breaks=(Break("dtype", _in_mode(0, cast("FLOAT32", "antiquantScale")),
                      {**needs, "antiquant_offset": "symmetric"}),),
    )


def _offset_dtype_rule(number: int, one_token: bool) -> Rule:
    words, needs, basis, note = _sides(one_token)
    return Rule(
        f"FIA-QU-{number}", f"{words}: antiquantOffset has the dtype of antiquantScale", "quant", Level.SINGLE,
        DOC_A2A3_V3,
        ("v3.quant.single.antiquant_offset_table", "v3.quant.cross.antiquant_per_channel_scale_dtype"),
        lambda s: merged(s) and s.inputs.antiquantOffset is not None and s.single_token is one_token,
        lambda s: s.dtype("antiquantOffset") == s.dtype("antiquantScale"), basis=basis, note=note,
        enforced_by="CheckAntiQuantParam" if one_token else "nothing",
        breaks=(Break("dtype", cast("INT8", "antiquantOffset"), {**needs, "antiquant_offset": "offset"}),),
    )


def _longer_offset(s: Scene) -> dict[str, object] | None:
    spec = s.inputs.antiquantOffset
    return None if spec is None else {"antiquantOffset": TensorSpec((*spec.shape[:-1], spec.shape[-1] + 1), spec.dtype)}


RULES = (
    Rule(
        "FIA-QU-421", "with the merged antiquantScale key and value are INT8", "quant", Level.CROSS, DOC_A2A3_V3,
        ("v3.quant.cross.antiquant_kv_int8", "v3.quant.cross.qs_gt1_kvcache_antiquant_fp16_kv",
         "v3.quant.cross.qs_eq1_int4_modes_separated_only"),
        merged, lambda s: s.k_dtype == "INT8", limit="INT8", enforced_by="CheckInputQKVTypeMatch",
        breaks=(Break("dtype", cast("INT4", "key", "value"),
                                                                           {**MERGED, "q_s": "1", "post_quant": "none",
                                                                            "storage": ("contiguous", "tensor_list"),
                                                          "head_size": ("64", "128", "192", "512")}),),
    ),
    Rule(
        "FIA-QU-422", "with one query token antiquantMode is 0 or 1", "quant", Level.SINGLE, DOC_A2A3_V3,
        ("v3.quant.single.antiquant_mode_qs_eq_1",), lambda s: s.quant_kind == "antiquant" and s.single_token,
        lambda s: s.attrs.antiquantMode in (0, 1), basis=Basis.DOCUMENTED, limit="0, 1",
        note="the source takes any other mode for 0",
        enforced_by="nothing",
        breaks=(Break("below", put(antiquantMode=-1), {**MERGED, "q_s": "1"}),
                Break("above", put(antiquantMode=2), {**MERGED, "q_s": "1"})),
        boundaries=(Boundary(_in_mode(0, put(antiquantMode=0)), _in_mode(0, put(antiquantMode=-1)),
                             {**MERGED, "q_s": "1"}, limit="0"),),
    ),
    Rule(
        "FIA-QU-423", "with several query tokens antiquantMode is 0", "quant", Level.SINGLE, DOC_A2A3_V3,
        ("v3.quant.single.antiquant_mode_qs_ge_2",), lambda s: s.quant_kind == "antiquant" and q_s_over_1(s),
        lambda s: s.attrs.antiquantMode == 0, basis=Basis.SOURCE, note="the document says that it is not looked at",
        enforced_by="CheckDequantParams",
        breaks=(Break("above", put(antiquantMode=1), {"scenario": "antiquant", "q_s": ("2-16", "17+")}),),
    ),
    Rule(
        "FIA-QU-424", "mode 0: antiquantScale is [2], [2,H], [2,N,D] or [2,N,1,D]", "quant", Level.CONSISTENCY,
        DOC_A2A3_V3,
        ("v3.quant.consistency.antiquant_per_channel_shape", "v3.quant.consistency.antiquant_per_tensor_shape",
         "v3.quant.consistency.antiquant_per_channel_mode", "v3.quant.consistency.antiquant_per_tensor_mode"),
        _mode(0), lambda s: (forms := channel_shapes(s)) is None or s.shape("antiquantScale") in forms,
        limit="[2], [2,H], [2,N,D], [2,N,1,D]", note="the prefill route ties the form to the layout",
        enforced_by="CheckPerchannelAntiquantParamsShape, CheckKVAntiQuantPerChannel",
        breaks=(Break("above", _in_mode(0, _reshaped(lambda shape: (*shape[:-1], shape[-1] + 1))), MERGED),
                Break("below", _in_mode(0, _reshaped(lambda shape: (1, *shape[1:]))), MERGED),
                Break("rank", _in_mode(0, _reshaped(lambda shape: (2, *((1,) * (5 - len(shape))), *shape[1:]))),
                      MERGED)),
        boundaries=(Boundary(_in_mode(0, _reshaped(lambda shape: (2,))), _in_mode(0, _reshaped(lambda shape: (3,))),
                             MERGED, limit="[2]"),),
    ),
    Rule(
        "FIA-QU-425", "mode 1: antiquantScale is [2,B,L]", "quant", Level.CONSISTENCY, DOC_A2A3_V3,
        ("v3.quant.consistency.antiquant_per_token_shape", "v3.quant.consistency.antiquant_per_token_mode"),
        lambda s: _mode(1)(s) and s.single_token,
        lambda s: len(found := s.shape("antiquantScale") or ()) == 3 and found[0] == 2 and s.B in (None, found[1]),
        limit="[2,B,L]",
        enforced_by="CheckKVAntiQuantPerToken",
        breaks=(Break("axis", _in_mode(1, _reshaped(lambda shape: (2, shape[1] + 1, *shape[2:]))),
                      {**MERGED, "q_s": "1"}),),
    ),
    Rule(
        "FIA-QU-426", "mode 1: antiquantScale covers KV_S rows", "quant", Level.CONSISTENCY, DOC_A2A3_V3,
        ("v3.quant.consistency.antiquant_per_token_shape",
         "v3.paged_attention.cross.qs_eq1_antiquant_per_token_s"),
        lambda s: _mode(1)(s) and s.single_token and len(s.shape("antiquantScale") or ()) == 3 and s.KV_S is not None,
        lambda s: (s.shape("antiquantScale") or (0,))[-1] >= (s.KV_S or 0), limit="L >= KV_S",
        enforced_by="CheckKVAntiQuantPerToken",
        breaks=(Break("below", lambda s: _rows(s, -1), {**MERGED, "q_s": "1"}),),
        boundaries=(Boundary(lambda s: _rows(s, 0), lambda s: _rows(s, -1),
                             {**MERGED, "q_s": "1"}, limit="KV_S"),),
    ),
    _scale_dtype_rule(427, True), _scale_dtype_rule(433, False),
    Rule(
        "FIA-QU-428", "mode 1: antiquantScale is FLOAT32", "quant", Level.CONSISTENCY, DOC_A2A3_V3,
        ("v3.quant.consistency.antiquant_per_token_scale_dtype", "v3.quant.single.antiquant_scale_table"),
        lambda s: _mode(1)(s) and s.single_token, lambda s: s.dtype("antiquantScale") == "FLOAT32",
        enforced_by="CheckKVAntiQuantPerToken",
        breaks=(Break("dtype", _in_mode(1, cast("FLOAT16", "antiquantScale")),
                      {**MERGED, "q_s": "1", "antiquant_offset": "symmetric"}),),
    ),
    Rule(
        "FIA-QU-429", "antiquantOffset comes with antiquantScale", "quant", Level.EXISTENCE, DOC_A2A3_V3,
        ("v3.quant.existence.antiquant_asymmetric",),
        lambda s: s.quant_kind == "antiquant" and s.inputs.antiquantOffset is not None
        and s.inputs.keyAntiquantScale is None,
        lambda s: s.inputs.antiquantScale is not None, enforced_by="CheckAntiQuantParam",
        breaks=(Break("absent", drop("antiquantScale"),
                                                                     {**MERGED, "antiquant_offset": "offset"}),),
    ),
    Rule(
        "FIA-QU-430", "antiquantOffset has the shape of antiquantScale", "quant", Level.SINGLE, DOC_A2A3_V3,
        ("v3.quant.single.antiquant_offset_table",), lambda s: merged(s) and s.inputs.antiquantOffset is not None,
        lambda s: s.shape("antiquantOffset") == s.shape("antiquantScale"),
        enforced_by="CheckPerchannelAntiquantParamsShape, CheckKVAntiQuantParaShapeLegal",
        breaks=(Break("axis", _longer_offset, {**MERGED, "antiquant_offset": "offset"}),),
    ),
    _offset_dtype_rule(431, True), _offset_dtype_rule(434, False),
    Rule(
        "FIA-QU-432", "merged antiquantScale with several query tokens: query is FLOAT16", "quant", Level.CROSS,
        DOC_A2A3_V3,
        ("v3.quant.cross.qs_gt1_kvcache_antiquant_fp16_query",), lambda s: merged(s) and q_s_over_1(s),
        lambda s: s.q_dtype == "FLOAT16",
        enforced_by="CheckIOType",
        breaks=(Break("dtype", cast("BFLOAT16", "query", "attentionOut", "antiquantScale"),
                      {**MERGED, "q_s": ("2-16", "17+"), "pse": "none", "post_quant": "none",
                       "antiquant_offset": "symmetric"}),),
    ),
)


def _rows(s: Scene, by: int) -> dict[str, object] | None:
    if s.KV_S is None or s.attrs.antiquantMode != 1 or s.KV_S + by < 0:
        return None
    rows = s.KV_S + by
    return dict(_reshaped(lambda shape: (*shape[:-1], rows))(s) or {}) or None
