"""A2 and A3 under the V5 document: what its parameter table says for all products about scales.

The quantisation sections of that document speak of Ascend 950 alone, and the older routes of these products look at
little of this, so these demands are disputed.
"""

from __future__ import annotations

from fiafuzz.model.scene import Scene

from ..changes import cast, where, widen
from ..rule import DOC_A2A3_V5, Basis, Break, Change, Effect, Level, Rule, never
from .no_quant import OLD_PARAMETERS, given_anew

SCALE_DTYPES = ("FLOAT16", "BFLOAT16", "FLOAT32", "FLOAT8_E8M0")
OFFSET_DTYPES = ("FLOAT16", "BFLOAT16", "FLOAT32")
SCALES = ("keyAntiquantScale", "valueAntiquantScale")
OFFSETS = ("keyAntiquantOffset", "valueAntiquantOffset")


def _all_in(s: Scene, names: tuple[str, str], dtypes: tuple[str, ...]) -> bool:
    return all(s.dtype(name) in (None, *dtypes) for name in names)


def _longer(name: str) -> Change:
    return where(lambda s: s.given(SCALES[0]), widen(name, -1))


RULES = (
    Rule(
        "FIA-QU-481", "keyAntiquantScale and valueAntiquantScale are FLOAT16, BFLOAT16, FLOAT32 or FLOAT8_E8M0",
        "quant", Level.SINGLE,
        DOC_A2A3_V5, ("v5.interface.single.kv_antiquant_scale_dtypes",), lambda s: s.quant_kind == "antiquant",
        lambda s: _all_in(s, SCALES, SCALE_DTYPES), basis=Basis.DOCUMENTED, limit="/".join(SCALE_DTYPES),
        enforced_by="nothing",
        breaks=tuple(Break("dtype", cast("INT8", name), {"scenario": "antiquant"}) for name in SCALES),
    ),
    Rule(
        "FIA-QU-482", "keyAntiquantOffset and valueAntiquantOffset are FLOAT16, BFLOAT16 or FLOAT32", "quant",
        Level.SINGLE,
        DOC_A2A3_V5, ("v5.interface.single.kv_antiquant_offset_dtypes",), lambda s: s.quant_kind == "antiquant",
        lambda s: _all_in(s, OFFSETS, OFFSET_DTYPES), basis=Basis.DOCUMENTED, limit="/".join(OFFSET_DTYPES),
        enforced_by="nothing",
        breaks=tuple(Break("dtype", cast("INT8", name), {"antiquant_offset": "offset"}) for name in OFFSETS),
    ),
    Rule(
        "FIA-QU-483", "offsets have the shapes of their scales", "quant", Level.CONSISTENCY, DOC_A2A3_V5,
        ("v5.interface.single.kv_antiquant_offset_dtypes",), lambda s: s.quant_kind == "antiquant"
        and s.given(SCALES[0]) and s.given(SCALES[1]),
        lambda s: all(s.shape(o) in (None, s.shape(n)) for o, n in zip(OFFSETS, SCALES)), basis=Basis.DOCUMENTED,
        enforced_by="nothing",
        breaks=tuple(Break("axis", _longer(name), {"antiquant_offset": "offset"}) for name in OFFSETS),
    ),
    Rule(
        "FIA-QU-484", "dequantScaleQuery is FLOAT32", "quant", Level.SINGLE, DOC_A2A3_V5,
        ("v5.interface.single.dequant_scale_query_dtype",), lambda s: s.quant_kind == "full"
        and s.inputs.dequantScaleQuery is not None,
        lambda s: s.dtype("dequantScaleQuery") == "FLOAT32", basis=Basis.DOCUMENTED, limit="FLOAT32",
        enforced_by="nothing",
        breaks=(Break("dtype", cast("FLOAT16", "dequantScaleQuery"), {"scenario": "full_decode_mla"}),),
    ),
    Rule(
        "FIA-QU-485", "antiquantScale and antiquantOffset are not supported by V5", "quant", Level.SINGLE, DOC_A2A3_V5,
        (OLD_PARAMETERS,), lambda s: s.inputs.antiquantScale is not None or s.inputs.antiquantOffset is not None, never,
        basis=Basis.DOCUMENTED, effect=Effect.UNSPECIFIED,
        enforced_by="nothing",
        breaks=(Break("present", given_anew("antiquantScale"), {"scenario": "gqa"}),
                Break("present", given_anew("antiquantOffset"), {"scenario": "gqa"})),
    ),
)
