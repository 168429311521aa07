"""Antiquant modes and the key/value dtypes that each takes; what remains of the old merged mode (V5, Ascend 950)."""

from __future__ import annotations

from fiafuzz.model.case import TensorSpec
from fiafuzz.model.scene import Scene

from ..changes import put, together
from ..documents import V5_DOCUMENTS
from ..rule import ALL_950, DOC_A2A3_V3, SRC_950, Basis, Boundary, Break, Change, Effect, Level, Rule
from .facts import antiquant, both_scales
from .tables import ANTIQUANT_MODES, INT4, AntiquantMode

CHECK = "CheckAntiquantModeForAntiquant"
MODE_VALUES = "v5.interface.single.antiquant_mode_values"
OLD_PARAMETERS = "v5.interface.single.old_antiquant_params_unsupported"
MIXED_KEY_DOCUMENTED = "FIA-QU-121"
MIXED_KEY_FORM = "FIA-QU-151"
"""Every call with mode pair (0, 1) is disputed under the document profile, so its faults entail these rules there."""
BARE = {"scenario": "antiquant", "prefix": "none"}
"""Prefix rules read the mode pair too."""


def pair_legal(s: Scene) -> bool:
    """Whether both modes are in 0..6."""
    return 0 <= s.attrs.keyAntiquantMode <= 6 and 0 <= s.attrs.valueAntiquantMode <= 6


def _range_rule(number: int, name: str, cite: str) -> Rule:
    return Rule(
        f"FIA-QU-{number:03d}", f"{name} of a quantised cache is 0 to 6", "quant", Level.SINGLE, ALL_950,
        (cite, MODE_VALUES),
        antiquant, lambda s: 0 <= getattr(s.attrs, name) <= 6, enforced_by=CHECK, limit="0..6",
        breaks=(Break("below", put(**{name: -1}), BARE), Break("above", put(**{name: 7}), BARE),
                Break("above", put(**{name: 8}), BARE, note="8 exists for MXFP8 alone")),
        boundaries=(Boundary(put(**{name: 0}), put(**{name: -1}), {"antiquant": "per_channel", "prefix": "none"},
                             limit="0"),
                    Boundary(put(**{name: 6}), put(**{name: 7}), {"antiquant": "group", "prefix": "none"}, limit="6")),
    )


MODE_RULES = (
    _range_rule(1, "keyAntiquantMode", "v5.quant.single.antiquant_key_mode_range"),
    _range_rule(2, "valueAntiquantMode", "v5.quant.single.antiquant_value_mode_range"),
    Rule(
        "FIA-QU-003", "key and value antiquant modes are equal, or 0 and 1", "quant", Level.CONSISTENCY,
        ALL_950 | DOC_A2A3_V3,
        ("v5.quant.consistency.antiquant_modes_equal", MODE_VALUES, "v3.quant.consistency.key_mode_equals_value_mode",
         "v3.quant.single.value_antiquant_mode_table", "v3.quant.consistency.qs_eq1_sep_modes_equal"),
        lambda s: s.quant_kind == "antiquant" and pair_legal(s) and both_scales(s),
        lambda s: s.attrs.keyAntiquantMode == s.attrs.valueAntiquantMode or s.antiquant_modes == (0, 1),
        enforced_by=CHECK,
        breaks=(Break("pair", put(valueAntiquantMode=2), {"antiquant": ("per_channel", "per_token"), "prefix": "none"},
                      ("FIA-QU-444",)),
                Break("pair", put(valueAntiquantMode=0), {"antiquant": "per_token", "prefix": "none"},
                      note="the exception does not hold the other way round")),
    ),
    Rule(
        "FIA-QU-004", "antiquantMode stays 0 with a quantised cache", "quant", Level.SINGLE, ALL_950,
        ("v5.quant.single.antiquant_mode_attr_zero", OLD_PARAMETERS),
        antiquant, lambda s: s.attrs.antiquantMode == 0, enforced_by="CheckScaleExistenceForAntiquant", limit="0",
        breaks=(Break("above", put(antiquantMode=1), {"scenario": "antiquant"}),
                Break("below", put(antiquantMode=-1), {"scenario": "antiquant"})),
        boundaries=(Boundary(put(antiquantMode=0), put(antiquantMode=1), {"scenario": "antiquant"}, limit="0"),),
    ),
    Rule(
        "FIA-QU-005", "antiquantMode belongs to the old parameters, which V5 does not support", "quant", Level.SINGLE,
        V5_DOCUMENTS,
        (OLD_PARAMETERS,), lambda s: s.quant_kind in ("none", "full"), lambda s: s.attrs.antiquantMode == 0,
        basis=Basis.DOCUMENTED, effect=Effect.UNSPECIFIED, note="the source ignores it without antiquant",
        enforced_by="nothing", breaks=(Break("above", put(antiquantMode=1), {"scenario": ("gqa", "full_decode_mla")}),),
    ),
    Rule(
        "FIA-QU-006", "mode attributes are 0 to 6 even where nothing reads them", "quant", Level.SINGLE, V5_DOCUMENTS,
        (MODE_VALUES,),
        lambda s: s.quant_kind in ("none", "antiquant"),
        lambda s: 0 <= s.attrs.queryQuantMode <= 6 and (s.quant_kind == "antiquant" or pair_legal(s)),
        basis=Basis.DOCUMENTED, limit="0..6", note="the source looks at a mode only where the scenario uses it",
        enforced_by="nothing", breaks=(Break("below", put(queryQuantMode=-1), {"scenario": ("gqa", "antiquant")}),
                Break("above", put(queryQuantMode=7), {"scenario": ("gqa", "antiquant")}),
                Break("above", put(keyAntiquantMode=7), {"scenario": "gqa"}),
                Break("above", put(valueAntiquantMode=7), {"scenario": "gqa"})),
        boundaries=(Boundary(put(queryQuantMode=6), put(queryQuantMode=7), {"scenario": "gqa"}, limit="6"),
                    Boundary(put(queryQuantMode=0), put(queryQuantMode=-1), {"scenario": "gqa"}, limit="0")),
    ),
)


def _kv_dtype_rule(row: AntiquantMode) -> Rule:
    needs: dict[str, str | tuple[str, ...]] = {
        "antiquant": row.kind, "prefix": "none", "mask": ("none", "BOOL"),
    }
    wrong: Change = _float_kv(row.wrong_kv)
    entails: tuple[str, ...] = ()
    if row.kind == "per_channel":
        needs["head_size"] = ("64", "128", "192", "512")
        needs["storage"] = "contiguous"  # four-bit caches want another block size
    if row.kind == "mixed":
        needs["antiquant"] = "per_channel"
        needs["q_s"] = "1"
        wrong, entails = together(as_mixed, wrong), (MIXED_KEY_DOCUMENTED, MIXED_KEY_FORM)
    return Rule(
        f"FIA-QU-{100 + row.number}", f"{row.title}: key and value are {' or '.join(row.kv)}", "quant", Level.SINGLE,
        ALL_950,
        (f"v5.quant.single.antiquant_kv_dtype_{row.cite}",),
        lambda s: s.antiquant_kind == row.kind and both_scales(s), lambda s: s.k_dtype in row.kv,
        basis=Basis.BOTH if row.documented else Basis.SOURCE, limit="/".join(row.kv),
        enforced_by=f"CheckInputKVTypeForAntiquant ({row.title})",
        breaks=(Break("dtype", wrong, needs, entails),),
        note="INT4 also as INT32 words of eight" if INT4 in row.kv else "",
    )


def as_mixed(s: Scene) -> dict[str, object] | None:
    """A per-channel call turned into key per-channel and value per-token."""
    scale, b, kv_s = s.inputs.valueAntiquantScale, s.B, s.KV_S
    if scale is None or b is None or kv_s is None or s.antiquant_kind != "per_channel":
        return None
    rows = TensorSpec((1, b, kv_s), "FLOAT32")
    values: dict[str, object] = {"valueAntiquantMode": 1, "valueAntiquantScale": rows}
    if s.inputs.valueAntiquantOffset is not None:
        values["valueAntiquantOffset"] = rows
    return values


def _float_kv(dtype: str) -> Change:
    """Key and value cast to a small float format, which takes no offsets."""

    def change(s: Scene) -> dict[str, object] | None:
        packing = 8 if s.int4_carrier else 1
        if None in s.keys or None in s.values or s.out is None or s.q_dtype is None:
            return None
        values: dict[str, object] = {"keyAntiquantOffset": None, "valueAntiquantOffset": None}
        for name, items in (("key", s.keys), ("value", s.values)):
            values[name] = tuple(TensorSpec((*t.shape[:-1], t.shape[-1] * packing),
                                            dtype) for t in items if t is not None and t.shape)
        if s.post_quant_on:
            values["attentionOut"] = TensorSpec(s.out.shape, s.q_dtype)
        return values

    return change


KV_DTYPE_RULES = tuple(_kv_dtype_rule(row) for row in ANTIQUANT_MODES)

def _int8_out(s: Scene) -> dict[str, object] | None:
    return None if s.out is None else {"attentionOut": TensorSpec(s.out.shape, "INT8"),
                                       "quantScale2": TensorSpec((1,), "FLOAT32")}


INT8_MIXED = Rule(
    "FIA-QU-110", "key per-channel with value per-token: INT8 key needs FLOAT16 query and output", "quant", Level.CROSS,
    SRC_950,
    ("v5.quant.cross.antiquant_k0v1_int8_needs_fp16", "v5.quant.cross.antiquant_k0v1_int8_qs_gt1_unsat"),
    lambda s: s.antiquant_kind == "mixed" and s.k_dtype == "INT8" and both_scales(s),
    lambda s: s.q_dtype == "FLOAT16" and s.out_dtype == "FLOAT16", enforced_by="CheckInputKVTypeForAntiquantMixed",
    note="newer than the V5 document of 9.1.0-beta.1; several query tokens want BFLOAT16, so then no call is legal",
    breaks=(Break("dtype", as_mixed, {"antiquant": "per_channel", "kv_dtype": "INT8", "q_dtype": "BFLOAT16", "q_s": "1",
                                      "post_quant": "none", "prefix": "none"}),
            Break("dtype", together(as_mixed, _int8_out), {"antiquant": "per_channel", "kv_dtype": "INT8",
                                                           "q_dtype": "FLOAT16", "q_s": "1",
                                      "out_dtype": "FLOAT16", "prefix": "none"})),
)

RULES = (*MODE_RULES, *KV_DTYPE_RULES, INT8_MIXED)
