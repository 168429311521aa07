"""The match of dtype columns: which dtypes of query, key[0], value[0] and attentionOut exist together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fiafuzz.model.scene import Scene

from ..changes import cast, together
from ..documents import ALL_PROFILES
from ..facts import scene_fact
from ..rule import ALL_950, ALL_A2A3, DOC_950, DOC_A2A3_V3, Basis, Break, Level, Rule, Stage

FLOATS = ("FLOAT16", "BFLOAT16")

QUERY = {
    True: frozenset({*FLOATS, "INT8", "HIFLOAT8", "FLOAT8_E4M3FN"}),
    False: frozenset({*FLOATS, "INT8"}),
}
"""Dtypes of query: Ascend 950 (True) and A2/A3 (False). The V3 document still lists the 8-bit floats of Ascend 950."""

KEY_VALUE = {
    True: frozenset({*FLOATS, "INT8", "INT4", "HIFLOAT8", "FLOAT8_E4M3FN", "FLOAT4_E2M1"}),
    False: frozenset({*FLOATS, "INT8", "INT4"}),
}
"""Dtypes of key and value; INT32 in both counts as INT4."""

OUTPUT = {
    True: frozenset({*FLOATS, "INT8", "FLOAT8_E4M3FN", "HIFLOAT8"}),
    False: frozenset({*FLOATS, "INT8"}),
}
"""Dtypes of attentionOut."""

_LOW_950 = ("INT8", "INT4", "HIFLOAT8", "FLOAT8_E4M3FN", "FLOAT4_E2M1")
_OUT_950 = ("INT8", "FLOAT8_E4M3FN", "HIFLOAT8")


@dataclass(frozen=True)
class Column:
    """Outputs that go with one dtype of query and some of key/value on one product family."""

    number: int
    is_950: bool
    query: str
    key_value: tuple[str, ...]
    outputs: tuple[str, ...]
    cites: tuple[str, ...]

    @property
    def title(self) -> str:
        """The demand in words."""
        product = "Ascend 950" if self.is_950 else "A2/A3"
        return (f"{product}: with {self.query} query and {'/'.join(self.key_value)} key/value, attentionOut is "
                f"{', '.join(self.outputs)}")


_TUPLE = "v5.quant.consistency.qkv_out_dtype_tuple"
_NO_QUANT = ("v5.common.single.no_quant_out_dtypes", "v5.common.consistency.out_dtype_equals_query", _TUPLE,
             "v5.post_quant.single.out_dtype")
_LOW = ("v5.common.consistency.out_dtype_equals_query", _TUPLE, "v5.quant.cross.antiquant_out_dtype")
_FULL = (_TUPLE, "v5.post_quant.cross.full_quant_none", "v5.quant.cross.mla_qkv_dtype")
_PAIRS = ("v3.common.cross.in_out_dtype_pairs",)
_COLUMN = "v5.interface.consistency.dtype_column_"

COLUMNS: tuple[Column, ...] = (
    Column(21, True, "FLOAT16", ("FLOAT16",), ("FLOAT16", *_OUT_950), (_COLUMN + "fp16_fp16", *_NO_QUANT)),
    Column(22, True, "BFLOAT16", ("BFLOAT16",), ("BFLOAT16", *_OUT_950), (_COLUMN + "bf16_bf16", *_NO_QUANT)),
    Column(23, True, "FLOAT16", _LOW_950, ("FLOAT16", *_OUT_950), (_COLUMN + "fp16_lowbit", *_LOW)),
    Column(24, True, "BFLOAT16", _LOW_950, ("BFLOAT16", *_OUT_950), (_COLUMN + "bf16_lowbit", *_LOW)),
    Column(25, True, "FLOAT8_E4M3FN", ("FLOAT8_E4M3FN",), FLOATS, (_COLUMN + "fp8_fp8", *_FULL)),
    Column(26, True, "HIFLOAT8", ("HIFLOAT8",), FLOATS, (_COLUMN + "hif8_hif8", *_FULL)),
    Column(31, False, "FLOAT16", ("FLOAT16", "INT8"), ("FLOAT16", "INT8"), _PAIRS),
    Column(32, False, "BFLOAT16", ("BFLOAT16", "INT8"), ("BFLOAT16", "INT8"), _PAIRS),
    Column(33, False, "FLOAT16", ("INT4",), ("FLOAT16",), _PAIRS),
    Column(34, False, "BFLOAT16", ("INT4",), ("BFLOAT16",), _PAIRS),
)
"""The registered columns but for INT8 x 3, whose outputs changed between releases."""


def _rule(number: int, title: str, **more: Any) -> Rule:
    return Rule(id=f"FIA-IF-{number:03d}", title=title, group="interface", stage=Stage.DTYPES,
                enforced_by="match of dtype columns (CheckSocVersionAndParam)", **more)


@scene_fact
def legal_inputs(s: Scene) -> bool:
    """Whether query, key[0] and value[0] have dtypes that exist each for itself and together."""
    if s.q_dtype not in QUERY[s.is_950] or s.k_dtype not in KEY_VALUE[s.is_950] or s.v_dtype != s.k_dtype:
        return False
    return _pair(s)


def _pair(s: Scene) -> bool:
    if s.q_dtype == s.k_dtype:
        return True
    return s.q_dtype in FLOATS and s.k_dtype not in FLOATS


@scene_fact
def legal(s: Scene) -> bool:
    """Whether ``legal_inputs`` holds and attentionOut has a dtype that exists."""
    return legal_inputs(s) and s.out_dtype in OUTPUT[s.is_950]




def _column(column: Column) -> Rule:
    outputs, key_value = frozenset(column.outputs), frozenset(column.key_value)
    if column.query not in FLOATS:
        wrong = "INT8"
    else:
        wrong = "BFLOAT16" if column.query == "FLOAT16" else "FLOAT16"

    def when(s: Scene) -> bool:
        return (s.q_dtype == column.query and s.k_dtype in key_value and s.is_950 is column.is_950 and legal(s))

    return _rule(
        column.number, column.title, level=Level.CONSISTENCY, profiles=ALL_950 if column.is_950 else ALL_A2A3,
        cites=column.cites, when=when, requires=lambda s: s.out_dtype in outputs, limit=", ".join(column.outputs),
        breaks=(Break("pair", cast(wrong, "attentionOut"),
                      {"q_dtype": column.query, "kv_dtype": column.key_value}),),
    )


RULES: tuple[Rule, ...] = (
    _rule(
        11, "query has a supported dtype", level=Level.SINGLE, profiles=ALL_PROFILES,
        cites=("v5.interface.single.query_dtype", "v3.common.single.query_table",
               "v3.interface.single.return_param_invalid"),
        when=lambda s: s.query is not None, requires=lambda s: s.q_dtype in QUERY[s.is_950],
        limit="950: FLOAT16, BFLOAT16, INT8, HIFLOAT8, FLOAT8_E4M3FN; A2/A3: FLOAT16, BFLOAT16, INT8",
        breaks=(Break("dtype", cast("FLOAT32", "query")), Break("dtype", cast("UINT8", "query"))),
    ),
    _rule(
        12, "key has a supported dtype", level=Level.SINGLE, profiles=ALL_PROFILES,
        cites=("v5.interface.single.key_dtype", "v3.common.single.key_table",
               *(f"v3.quant.cross.qs_eq1_a2_{mode}_kv_dtype"
                 for mode in ("per_channel", "per_token", "k_channel_v_token", "token_head")),
               "v3.interface.single.return_param_invalid"),
        when=lambda s: bool(s.keys), requires=lambda s: s.k_dtype is None or s.k_dtype in KEY_VALUE[s.is_950],
        limit="950: FLOAT16, BFLOAT16, INT8, INT4, HIFLOAT8, FLOAT8_E4M3FN, FLOAT4_E2M1; A2/A3: the first four",
        breaks=(Break("dtype", cast("FLOAT32", "key", item=0)), Break("dtype", cast("INT32", "key", item=0))),
        note="INT32 stands for packed INT4 only when key[0] and value[0] both have it. Only key[0] is looked at.",
    ),
    _rule(
        13, "value has a supported dtype", level=Level.SINGLE, profiles=ALL_PROFILES,
        cites=("v5.interface.single.value_dtype", "v3.common.single.value_table",
               "v3.interface.single.return_param_invalid"),
        when=lambda s: bool(s.values), requires=lambda s: s.v_dtype is None or s.v_dtype in KEY_VALUE[s.is_950],
        limit="as key",
        breaks=(Break("dtype", cast("FLOAT32", "value", item=0)), Break("dtype", cast("INT32", "value", item=0))),
        note="As for key.",
    ),
    _rule(
        14, "attentionOut has a supported dtype", level=Level.SINGLE, profiles=ALL_PROFILES,
        cites=("v5.interface.single.attention_out_dtype", "v3.common.single.attention_out_table",
               "v3.interface.single.return_param_invalid"),
        when=lambda s: s.out is not None, requires=lambda s: s.out_dtype in OUTPUT[s.is_950],
        limit="950: FLOAT16, BFLOAT16, INT8, FLOAT8_E4M3FN, HIFLOAT8; A2/A3: FLOAT16, BFLOAT16, INT8",
        breaks=(Break("dtype", cast("FLOAT32", "attentionOut")), Break("dtype", cast("FLOAT8_E5M2", "attentionOut"))),
    ),
    _rule(
        15, "key and value have the same dtype", level=Level.CONSISTENCY, profiles=ALL_PROFILES,
        cites=("v5.interface.consistency.key_value_same_dtype", "v5.quant.consistency.full_quant_value_dtype"),
        when=lambda s: s.k_dtype in KEY_VALUE[s.is_950] and s.v_dtype in KEY_VALUE[s.is_950],
        requires=lambda s: s.k_dtype == s.v_dtype,
        breaks=(Break("pair", cast("BFLOAT16", "value", item=0), {"kv_dtype": ("FLOAT16", "INT8")}),),
    ),
    _rule(
        16, "query and key have dtypes that go together", level=Level.CONSISTENCY, profiles=ALL_PROFILES,
        cites=("v5.common.single.no_quant_dtypes", _TUPLE, "v5.quant.cross.mla_qkv_dtype"),
        when=lambda s: (s.q_dtype in QUERY[s.is_950] and s.k_dtype in KEY_VALUE[s.is_950] and s.v_dtype == s.k_dtype),
        requires=_pair, limit="equal, or FLOAT16/BFLOAT16 query with quantised key and value",
        breaks=(
            Break("pair", cast("BFLOAT16", "query"), {"scenario": "gqa", "q_dtype": "FLOAT16"}),
            Break("pair", together(cast("FLOAT16", "key"), cast("FLOAT16", "value")),
                  {"q_dtype": ("BFLOAT16", "INT8")}),
        ),
    ),
    *(_column(c) for c in COLUMNS),
    _rule(
        27, "Ascend 950: INT8 query, key and value give BFLOAT16", level=Level.CONSISTENCY,
        profiles=ALL_950 - DOC_950,
        cites=(_COLUMN + "int8_int8", *_FULL, "v5.quant.cross.per_tensor_out_dtype",
               "v5.quant.cross.per_tensor_no_post_quant"),
        when=lambda s: s.is_950 and s.q_dtype == "INT8" and s.k_dtype == "INT8" and legal(s),
        requires=lambda s: s.out_dtype == "BFLOAT16", limit="BFLOAT16",
        breaks=(Break("pair", cast("FLOAT16", "attentionOut"), {"q_dtype": "INT8"}),
                Break("pair", cast("INT8", "attentionOut"), {"q_dtype": "INT8"})),
        note="The 9.1.0-beta.1 release also registers FLOAT16 and INT8.",
    ),
    _rule(
        28, "Ascend 950: INT8 query, key and value give FLOAT16 or BFLOAT16", level=Level.CONSISTENCY,
        profiles=DOC_950, cites=(_COLUMN + "int8_int8", *_FULL, "v5.quant.cross.per_tensor_no_post_quant"),
        when=lambda s: s.is_950 and s.q_dtype == "INT8" and s.k_dtype == "INT8" and legal(s),
        requires=lambda s: s.out_dtype in FLOATS, limit="FLOAT16, BFLOAT16",
        breaks=(Break("pair", cast("HIFLOAT8", "attentionOut"), {"q_dtype": "INT8"}),
                Break("pair", cast("INT8", "attentionOut"), {"q_dtype": "INT8"})),
    ),
    _rule(
        35, "A2/A3, V3: INT8 query, key and value give INT8 or FLOAT16", level=Level.CONSISTENCY,
        profiles=DOC_A2A3_V3, cites=(*_PAIRS, "v3.quant.cross.int8_in_bf16_out"), basis=Basis.DOCUMENTED,
        when=lambda s: s.q_dtype == "INT8" and s.k_dtype == "INT8" and legal(s),
        requires=lambda s: s.out_dtype != "BFLOAT16", limit="INT8, FLOAT16",
        breaks=(Break("pair", cast("BFLOAT16", "attentionOut"), {"q_dtype": "INT8", "post_quant": "none"}),),
        note="The column with BFLOAT16 is registered since.",
    ),
)
"""One rule per tensor, per pair and per column: a wrong dtype breaks the rule of the first thing wrong about it."""

