"""Full quantisation: mode triples and scales of each kind (V5, Ascend 950; V5 document lines 288-296, 308-319)."""

from __future__ import annotations

from ..changes import cast, drop, put
from ..rule import ALL_950, DOC_950, SRC_950, Boundary, Break, Level, Rule, Stage, never
from .facts import full_intent
from .no_quant import SCENARIO_WORDS
from .tables import FULL_MODES, FULL_SCALES, FULL_TITLES, ScaleTensor

GQA_MODES = "CheckDequantModeGQAPertensor"
RELEASE = frozenset({"mla", "per_tensor"})
"""Kinds that the V5 document of 9.1.0-beta.1 knows."""


def profiles_of(kind: str) -> frozenset[str]:
    """Where a kind exists: the documented two everywhere on Ascend 950, MXFP8 and GQA FP8 from August 2026."""
    return ALL_950 if kind in RELEASE else SRC_950


NEWER_KINDS = Rule(
    "FIA-QU-201", "full quantisation is Decode MLA or INT8 per-tensor: no MXFP8, no GQA FP8", "quant", Level.CROSS,
    DOC_950,
    ("v5.quant.single.per_tensor_modes", "v5.quant.cross.per_tensor_qkv_int8"),
    lambda s: s.quant_kind == "full" and full_intent(s) in ("mxfp8", "gqa_fp8"), never,
    note="both came after 9.1.0-beta.1",
    enforced_by="CheckInputDTypeFullquant, CheckDequantModeGQAPertensor",
    breaks=(Break("value", put(queryQuantMode=6, keyAntiquantMode=6, valueAntiquantMode=8),
                  {"scenario": "full_per_tensor"}),
            Break("value", put(queryQuantMode=3, keyAntiquantMode=3, valueAntiquantMode=2),
                  {"scenario": "full_per_tensor"})),
)


def _mode_rule(number: int, kind: str, name: str, cites: tuple[str, ...], check: str) -> Rule:
    wanted = dict(zip(("queryQuantMode", "keyAntiquantMode", "valueAntiquantMode"), FULL_MODES[kind]))[name]
    needs = {"scenario": SCENARIO_WORDS[kind]}
    # stay clear of the triples of other kinds
    wrong = [v for v in (wanted - 1, wanted + 1, 7) if v not in (wanted, 8, 2) or v < 0]
    return Rule(
        f"FIA-QU-{number}", f"{FULL_TITLES[kind]}: {name} is {wanted}", "quant", Level.SINGLE, profiles_of(kind), cites,
        lambda s: s.quant_kind == "full" and full_intent(s) == kind, lambda s: getattr(s.attrs, name) == wanted,
        enforced_by=check, limit=str(wanted),
        breaks=tuple(Break("below" if v < wanted else "above", put(**{name: v}), needs) for v in wrong),
        boundaries=(Boundary(put(**{name: wanted}), put(**{name: wanted + (1 if kind != "mxfp8" else -1)}), needs,
                             limit=str(wanted)),),
        note="any other triple is taken for INT8 per-tensor and refused there" if kind != "per_tensor" else "",
    )


MODE_RULES = (
    _mode_rule(202, "mla", "queryQuantMode", ("v5.quant.single.mla_query_mode",), GQA_MODES),
    _mode_rule(203, "mla", "keyAntiquantMode", ("v5.quant.single.mla_kv_modes",), GQA_MODES),
    _mode_rule(204, "mla", "valueAntiquantMode", ("v5.quant.single.mla_kv_modes",), GQA_MODES),
    _mode_rule(205, "per_tensor", "queryQuantMode", ("v5.quant.single.per_tensor_modes",
                                                     "v5.quant.single.query_mode_7_other"), GQA_MODES),
    _mode_rule(206, "per_tensor", "keyAntiquantMode", ("v5.quant.single.per_tensor_modes",), GQA_MODES),
    _mode_rule(207, "per_tensor", "valueAntiquantMode", ("v5.quant.single.per_tensor_modes",), GQA_MODES),
    _mode_rule(208, "mxfp8", "queryQuantMode", ("v5.quant.single.mxfp8_modes", "v5.quant.single.query_mode_7_other"),
               GQA_MODES),
    _mode_rule(209, "mxfp8", "keyAntiquantMode", ("v5.quant.single.mxfp8_modes",), GQA_MODES),
    _mode_rule(210, "mxfp8", "valueAntiquantMode", ("v5.quant.single.mxfp8_modes",), GQA_MODES),
    _mode_rule(211, "gqa_fp8", "queryQuantMode", ("v5.quant.single.gqa_fp8_modes",
                                                  "v5.quant.single.query_mode_7_other"), GQA_MODES),
    _mode_rule(212, "gqa_fp8", "keyAntiquantMode", ("v5.quant.single.gqa_fp8_modes",), GQA_MODES),
    _mode_rule(213, "gqa_fp8", "valueAntiquantMode", ("v5.quant.single.gqa_fp8_modes",), GQA_MODES),
)

PER_BLOCK = Rule(
    "FIA-QU-214", "per-block quantisation (modes 7, 7, 7) was withdrawn", "quant", Level.SINGLE, ALL_950,
    ("v5.quant.single.per_block_unsupported",), lambda s: s.quant_kind == "full" and full_intent(s) == "per_block",
    never, Stage.PARSER,
    enforced_by="GetFullQuantMode",
    breaks=(Break("value", put(queryQuantMode=7, keyAntiquantMode=7, valueAntiquantMode=7),
                  {"scenario": "full_per_tensor"}),),
)


# ---- scales ------------------------------------------------------------------------------------


def _required_rule(row: ScaleTensor) -> Rule:
    return Rule(
        f"FIA-QU-{220 + row.number}", f"{FULL_TITLES[row.kind]} needs {row.name}", "quant", Level.EXISTENCE,
        profiles_of(row.kind),
        row.required_cites, lambda s: s.quant_kind == "full" and full_intent(s) == row.kind,
        lambda s: getattr(s.inputs, row.name) is not None,
        enforced_by="CheckTensorExistFullquant", breaks=(Break("absent", drop(row.name),
                                                               {"scenario": SCENARIO_WORDS[row.kind]}),),
    )


def _dtype_rule(row: ScaleTensor) -> Rule:
    return Rule(
        f"FIA-QU-{240 + row.number}", f"{FULL_TITLES[row.kind]}: {row.name} is {' or '.join(row.dtypes)}", "quant",
        Level.SINGLE,
        profiles_of(row.kind), row.dtype_cites, lambda s: s.quant_kind == "full" and full_intent(s) == row.kind
        and getattr(s.inputs, row.name) is not None,
        lambda s: s.dtype(row.name) in row.dtypes, limit="/".join(row.dtypes),
        enforced_by={"mla": "CheckDequantScaleDtypeMLAFullquant", "per_tensor": "CheckDequantScaleDtypeGQAPertensor",
                     "mxfp8": "CheckDequantScaleDtypeMXFP8Fullquant",
                     "gqa_fp8": "CheckDequantScaleDtypeFP8GQAFullquant"}[row.kind],
        breaks=(Break("dtype", cast(row.wrong, row.name), {"scenario": SCENARIO_WORDS[row.kind]}),
                Break("dtype", cast("INT8", row.name), {"scenario": SCENARIO_WORDS[row.kind]})),
    )


SCALE_RULES = (*(_required_rule(row) for row in FULL_SCALES if row.required),
               *(_dtype_rule(row) for row in FULL_SCALES))

RULES = (NEWER_KINDS, *MODE_RULES, PER_BLOCK, *SCALE_RULES)
