"""Room inner_precise: innerPrecise, bit 0 high performance (FLOAT16 only), bit 1 correction of fully masked rows."""

from __future__ import annotations

from fiafuzz.model.scene import Scene

from ..changes import put
from ..documents import ALL_PROFILES, V5_DOCUMENTS
from ..facts import fast_tnd
from ..routes import DECODE_ROUTE, NEWER_ROUTE, PREFILL, also_on, enforced_on
from ..rule import ALL_A2A3, DOC_A2A3_V3, Basis, Boundary, Break, Effect, Level, Rule, Stage, Words, never

DOCUMENTED = range(4)
LARGEST = 4
"""Last value that the host lets pass; it behaves as 0."""

_PLAIN: Words = {"scenario": ("gqa", "mla_decode", "mla_prefill_split", "mla_prefill_combined", "antiquant"),
                 "sink": "off"}

_ANTIQUANT: Words = {"scenario": "antiquant", "sink": "off", "layout": ("BSH", "BSND", "BNSD")}
"""On A2 and A3 few other calls of batches take the older prefill route."""


def _rule(number: int, title: str, **more: object) -> Rule:
    return Rule(id=f"FIA-IP-{number:03d}", title=title, group="inner_precise", **more)  # type: ignore[arg-type]


def _in_range(s: Scene) -> bool:
    return 0 <= s.inner_precise <= LARGEST


def _tnd(s: Scene) -> bool:
    return s.layout_name == "TND" and s.Q_D is not None and s.Q_D != 512 and s.quant_kind == "none" and _in_range(s)


_TND: Words = {"layout": "TND", "scenario": "gqa"}

ALSO = {PREFILL: "002"}
"""Numbers of the rules of this room that the older prefill route of A2 and A3 knows too."""

RULES: tuple[Rule, ...] = enforced_on(NEWER_ROUTE, also_on((
    _rule(
        1, "innerPrecise is 0 to 4", level=Level.SINGLE, profiles=ALL_PROFILES,
        cites=("v5.inner_precise.single.range", "v5.interface.single.inner_precise_values",
               "v5.common.single.inner_precise_range", "v3.inner_precise.single.values"),
        enforced_by="CheckInnerPrecise", when=lambda s: not fast_tnd(s), requires=_in_range, limit="0 .. 4",
        breaks=(Break("below", put(innerPrecise=-1), _PLAIN), Break("above", put(innerPrecise=5), _PLAIN)),
        boundaries=(Boundary(put(innerPrecise=0), put(innerPrecise=-1), _PLAIN, limit="0"),
                    Boundary(put(innerPrecise=3), put(innerPrecise=5), {**_PLAIN, "layout": ("BSH", "BSND", "BNSD")},
                             limit="3 (4 is disputed)")),
        note="Read as a 32-bit integer. With a sink only 0, with MXFP8 and GQA FP8 only 0 and 1 pass.",
    ),
    _rule(
        2, "innerPrecise is 0 to 3 by the documents", level=Level.SINGLE, profiles=V5_DOCUMENTS | DOC_A2A3_V3,
        cites=("v5.inner_precise.single.range", "v5.interface.single.inner_precise_values",
               "v5.common.single.inner_precise_range", "v3.inner_precise.single.values"),
        basis=Basis.DOCUMENTED, enforced_by="nothing", when=lambda s: _in_range(s) or fast_tnd(s),
        requires=lambda s: s.inner_precise in DOCUMENTED, limit="0 .. 3",
        breaks=(Break("above", put(innerPrecise=4), _ANTIQUANT),),
        boundaries=(Boundary(put(innerPrecise=3), put(innerPrecise=4), _ANTIQUANT, limit="3"),),
    ),
    # ---- TND on A2/A3, V3 ---------------------------------------------------------------------------
    _rule(
        11, "A2/A3: TND with fewer key heads takes innerPrecise 0", level=Level.CROSS, profiles=DOC_A2A3_V3,
        cites=("v3.inner_precise.cross.tnd_gqa",), basis=Basis.DOCUMENTED, enforced_by="nothing (another route)",
        when=lambda s: _tnd(s) and s.G is not None and s.G > 1, requires=lambda s: s.inner_precise == 0, limit="0",
        breaks=(Break("value", put(innerPrecise=1), {**_TND, "group": ("gqa", "mqa")}),),
    ),
    _rule(
        12, "A2/A3: FLOAT16 TND with as many key heads takes innerPrecise 0 and 1", level=Level.CROSS,
        profiles=DOC_A2A3_V3, cites=("v3.inner_precise.cross.tnd_mha_fp16",), basis=Basis.DOCUMENTED,
        enforced_by="nothing", when=lambda s: _tnd(s) and s.G == 1 and s.q_dtype == "FLOAT16"
        and s.inner_precise in DOCUMENTED,
        requires=lambda s: s.inner_precise in (0, 1), limit="0, 1",
        breaks=(Break("value", put(innerPrecise=2), {**_TND, "group": "mha", "q_dtype": "FLOAT16"}),),
    ),
    _rule(
        13, "A2/A3: BFLOAT16 TND with as many key heads takes innerPrecise 0", level=Level.CROSS,
        profiles=DOC_A2A3_V3, cites=("v3.inner_precise.cross.tnd_mha_bf16",), basis=Basis.DOCUMENTED,
        enforced_by="nothing (another route)", when=lambda s: _tnd(s) and s.G == 1 and s.q_dtype == "BFLOAT16"
        and s.inner_precise in DOCUMENTED,
        requires=lambda s: s.inner_precise == 0, limit="0",
        breaks=(Break("value", put(innerPrecise=1), {**_TND, "group": "mha", "q_dtype": "BFLOAT16"}),),
    ),
    _rule(
        201, "A2/A3: with quantised key and one query token innerPrecise is 0 or 1", level=Level.CROSS,
        profiles=ALL_A2A3, cites=("v3.inner_precise.single.values",), basis=Basis.SOURCE, routes=DECODE_ROUTE,
        enforced_by="InputAttrsPreProcess", when=_in_range, requires=lambda s: s.inner_precise in (0, 1), limit="0, 1",
        breaks=(Break("above", put(innerPrecise=2), {"scenario": "antiquant", "q_s": "1"}),),
        boundaries=(Boundary(put(innerPrecise=1), put(innerPrecise=2), {"scenario": "antiquant", "q_s": "1"},
                             limit="1"),),
    ),
    _rule(
        221, "A2/A3: innerPrecise 2 with an INT8 (blocks, blockSize, H) cache, BSH, one query token and query lengths",
        level=Level.CROSS, profiles=ALL_A2A3, cites=(), basis=Basis.SOURCE, effect=Effect.CRASH, stage=Stage.PARSER,
        order=5, routes=DECODE_ROUTE, requires=never,
        when=lambda s: (s.inner_precise == 2 and s.quant_kind == "antiquant" and s.k_dtype == "INT8"
                        and s.layout_name == "BSH" and s.cache_layout == "BnBsH"
                        and s.inputs.actualSeqLengths is not None),
        breaks=(Break("above", put(innerPrecise=2), {
            "scenario": "antiquant", "q_s": "1", "layout": "BSH", "storage": "BnBsH", "kv_dtype": "INT8",
            "q_lengths": ("per_batch", "one", "longer")}, ("FIA-IP-201",)),),
    ),
), ALSO))
