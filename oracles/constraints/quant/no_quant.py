"""Quantisation tensors where they do not belong: without quantisation, or foreign to a kind of it (V5, Ascend 950)."""

from __future__ import annotations

from operator import attrgetter

from fiafuzz.model.case import TensorSpec

from ..documents import V5_DOCUMENTS
from ..rule import ALL_950, SRC_950, Basis, Break, Change, Effect, Level, Rule, never
from .facts import scenario
from .tables import FOREIGN, FULL_TITLES, NO_QUANT_FOREIGN

OLD_PARAMETERS = "v5.interface.single.old_antiquant_params_unsupported"

SAMPLES: dict[str, TensorSpec] = {
    "deqScale1": TensorSpec((1,), "FLOAT32"), "quantScale1": TensorSpec((1,), "FLOAT32"),
    "deqScale2": TensorSpec((1,), "FLOAT32"),
    "quantScale2": TensorSpec((1,), "FLOAT32"), "quantOffset2": TensorSpec((1,), "FLOAT32"),
    "antiquantScale": TensorSpec((2,), "FLOAT16"), "antiquantOffset": TensorSpec((2,), "FLOAT16"),
    "keyAntiquantScale": TensorSpec((1,), "FLOAT32"), "valueAntiquantScale": TensorSpec((1,), "FLOAT32"),
    "keyAntiquantOffset": TensorSpec((1,), "FLOAT32"), "valueAntiquantOffset": TensorSpec((1,), "FLOAT32"),
    "keyRopeAntiquantScale": TensorSpec((1,), "FLOAT32"), "dequantScaleQuery": TensorSpec((1,), "FLOAT32"),
}
SCENARIO_WORDS = {
    "mla": "full_decode_mla", "per_tensor": "full_per_tensor", "mxfp8": "full_mxfp8", "gqa_fp8": "full_gqa_fp8",
    "antiquant": "antiquant",
}
PLAIN_SCENARIOS = ("gqa", "mla_decode", "mla_prefill_split", "mla_prefill_combined", "unequal_d")


def given_anew(name: str) -> Change:
    """Give a tensor that the valid call does not have."""
    return lambda s: None if s.given(name) else {name: SAMPLES[name]}


def _cites(name: str, kinds: tuple[str, ...]) -> tuple[str, ...]:
    """The spec ids about one tensor in the kinds that refuse it."""
    snake = "".join(f"_{c.lower()}" if c.isupper() else c for c in name)
    cites: list[str] = []
    for kind in kinds:
        if kind in ("mxfp8", "gqa_fp8"):
            cites.append(f"v5.quant.existence.{kind}_forbidden")
        elif kind == "antiquant":
            merged = "scale" if name == "antiquantScale" else "offset"
            cites.append(f"v5.quant.existence.antiquant_merged_{merged}_forbidden")
        else:
            cites.append(f"v5.quant.existence.{kind}_no_{snake}")
    if "antiquant" in kinds:
        cites += ["v5.quant.cross.antiquant_prefix_merged_unreachable", OLD_PARAMETERS]
    if name == "keyRopeAntiquantScale":
        cites.append("v5.quant.single.key_rope_antiquant_scale_reserved")
    return tuple(cites)


def _foreign_rule(number: int, name: str, kinds: tuple[str, ...], profiles: frozenset[str]) -> Rule:
    read, among = attrgetter(name), frozenset(kinds)
    check = "CheckTensorNotExistFullquant" + (", CheckScaleExistenceForAntiquant" if "antiquant" in kinds else "")
    return Rule(
        f"FIA-QU-{number:03d}", f"{name} is null with {', '.join(FULL_TITLES[k] for k in kinds)}", "quant",
        Level.EXISTENCE, profiles,
        _cites(name, kinds), lambda s: read(s.inputs) is not None and scenario(s) in among, never, enforced_by=check,
        breaks=tuple(Break("present", given_anew(name), {"scenario": SCENARIO_WORDS[k]}) for k in kinds),
    )


FOREIGN_RULES = (
    *(_foreign_rule(10 + row.number, row.name, row.documented, ALL_950) for row in FOREIGN if row.documented),
    *(_foreign_rule(50 + row.number, row.name, row.newer, SRC_950) for row in FOREIGN if row.newer),
)


def _plain_rule(number: int, name: str, statement: str) -> Rule:
    read = attrgetter(name)
    merged = name in ("antiquantScale", "antiquantOffset")
    cites = (f"v5.quant.existence.{statement}", *((OLD_PARAMETERS,) if merged else ()))
    return Rule(
        f"FIA-QU-{number:03d}", f"{name} is null when nothing is quantised", "quant", Level.EXISTENCE, ALL_950, cites,
        lambda s: read(s.inputs) is not None and s.quant_kind == "none", never,
        basis=Basis.BOTH if merged else Basis.SOURCE,
        enforced_by="CheckExistenceNoquant", note="" if merged else "no document says so",
        breaks=(Break("present", given_anew(name), {"scenario": PLAIN_SCENARIOS}),),
    )


PLAIN_RULES = tuple(_plain_rule(30 + i, name, statement) for i, (name, statement) in enumerate(NO_QUANT_FOREIGN))

RESERVED = Rule(
    "FIA-QU-040", "keyRopeAntiquantScale is reserved and stays null", "quant", Level.SINGLE, V5_DOCUMENTS,
    ("v5.interface.single.key_rope_antiquant_scale_reserved", "v5.quant.single.key_rope_antiquant_scale_reserved"),
    lambda s: s.inputs.keyRopeAntiquantScale is not None and s.quant_kind in ("none", "antiquant"), never,
    basis=Basis.DOCUMENTED, effect=Effect.UNSPECIFIED, note="the source ignores it outside full quantisation",
    enforced_by="nothing", breaks=(Break("present", given_anew("keyRopeAntiquantScale"),
                                         {"scenario": ("gqa", "antiquant")}),),
)
RULES = (*FOREIGN_RULES, *PLAIN_RULES, RESERVED)
