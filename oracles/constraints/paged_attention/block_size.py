"""Which block sizes a cache may have: one row a scenario."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from fiafuzz.model.scene import Scene

from ..changes import put
from ..rule import ALL_950, DOC_A2A3_V5, SRC_950, SRC_A2A3, Basis, Boundary, Break, Change, Level, Rule, Stage, Words
from .facts import ALL, EIGHT_BIT, FOUR_BIT, GROUP, NO_WIDTHS, PAGED, UNSCALED, V5, block_size_to, half_rope


@dataclass(frozen=True)
class Sizes:
    """The block sizes of a scenario: multiples of ``step`` from ``step`` to ``most``, or a list of ``values``."""

    id: str
    title: str
    cites: tuple[str, ...]
    when: Callable[[Scene], bool]
    step: int = 16
    most: int = 1024
    values: tuple[int, ...] = ()
    needs: Words = field(default_factory=dict)
    profiles: frozenset[str] = ALL_950
    basis: Basis = Basis.BOTH
    enforced_by: str = "CheckBlockSizeNonQuantOther"
    odd: tuple[int, ...] = ()


def no_quant(s: Scene) -> bool:
    """Whether the call pages an unquantised cache, with both rope tensors or none."""
    return s.paged and s.quant_kind == "none" and s.block_size > 0 and s.V_D is not None and not half_rope(s)


def mla(s: Scene) -> bool:
    """Whether the call is MLA of any kind."""
    return s.mla_kind is not None


def _plain_d(s: Scene) -> bool:
    return s.Q_D in (64, 128)


def _antiquant(s: Scene, dtypes: frozenset[str]) -> bool:
    return s.paged and s.quant_kind == "antiquant" and s.block_size > 0 and s.k_dtype in dtypes


def _full(s: Scene, kind: str) -> bool:
    return s.paged and s.block_size > 0 and s.full_kind == kind


_OTHER_D: Words = {"scenario": "gqa", "head_size": ("16k", "odd", "192", "512")}
_SCALES: Words = {"antiquant": ("per_channel", "per_tensor", "tensor_head")}
_ID = "v5.paged_attention.single."

TABLE: tuple[Sizes, ...] = (
    Sizes("FIA-PA-021", "block size of MLA is a multiple of 16 up to 1024",
          (_ID + "block_size_no_quant_mla",), lambda s: no_quant(s) and mla(s),
          needs={"scenario": ("mla_decode", "mla_prefill_split", "mla_prefill_combined")}, odd=(24,),
          profiles=V5),
    Sizes("FIA-PA-022", "block size with head size 64 or 128 is a multiple of 16 up to 1024",
          (_ID + "block_size_no_quant_gqa_64_128",), lambda s: no_quant(s) and not mla(s) and _plain_d(s),
          needs={"scenario": "gqa", "head_size": ("64", "128")}, odd=(24,), profiles=V5),
    Sizes("FIA-PA-023", "block size with another head size and several query tokens is a multiple of 128 up to 1024",
          (_ID + "block_size_no_quant_gqa_other_multi",),
          lambda s: no_quant(s) and not mla(s) and s.Q_D is not None and not _plain_d(s) and s.Q_S is not None
          and s.Q_S > 1,
          step=128, needs={**_OTHER_D, "q_s": ("2-16", "17+")}, odd=(192,), profiles=ALL_950 | SRC_A2A3),
    Sizes("FIA-PA-024", "block size with another head size and one query token is a multiple of 16 up to 512",
          (_ID + "block_size_no_quant_gqa_other_single",),
          lambda s: no_quant(s) and not mla(s) and s.Q_D is not None and not _plain_d(s) and s.Q_S == 1,
          most=512, needs={**_OTHER_D, "q_s": "1"}, odd=(24,), profiles=ALL_950 | SRC_A2A3),
    Sizes("FIA-PA-028", "block size of an 8-bit quantised cache is a multiple of 32 up to 512",
          (_ID + "block_size_antiquant_8bit", "v5.quant.cross.antiquant_paged_block_size"),
          lambda s: _antiquant(s, EIGHT_BIT), step=32, most=512,
          needs={**_SCALES, "kv_dtype": tuple(sorted(EIGHT_BIT))}, odd=(48,),
          profiles=ALL_950 | DOC_A2A3_V5, enforced_by="CheckBlockSizeAntiquant"),
    Sizes("FIA-PA-029", "block size of a 4-bit quantised cache is a multiple of 64 up to 512",
          (_ID + "block_size_antiquant_4bit", "v5.quant.cross.antiquant_paged_block_size"),
          lambda s: _antiquant(s, FOUR_BIT), step=64, most=512, needs={**_SCALES, "kv_dtype": tuple(sorted(FOUR_BIT))},
          odd=(96,),
          profiles=ALL_950 | DOC_A2A3_V5, enforced_by="CheckBlockSizeAntiquant"),
    Sizes("FIA-PA-030", "block size of fully quantised Decode MLA is 128",
          (_ID + "block_size_full_quant_decode_mla", "v5.quant.cross.mla_paged_block_size"),
          lambda s: _full(s, "decode_mla"), values=(128,), needs={"scenario": "full_decode_mla"},
          profiles=ALL_950 | DOC_A2A3_V5, enforced_by="CheckBlockSizeSupport"),
    Sizes("FIA-PA-031", "block size of MXFP8 is 64, 128, 256, 512 or 1024",
          (_ID + "block_size_mxfp8", "v5.quant.cross.mxfp8_block_size"), lambda s: _full(s, "mxfp8"),
          values=(64, 128, 256, 512, 1024), needs={"scenario": "full_mxfp8"}, odd=(192,), profiles=SRC_950,
          basis=Basis.SOURCE,
          enforced_by="CheckBlockSizeSupport"),
    Sizes("FIA-PA-032", "block size of FP8 GQA is 128",
          (_ID + "block_size_fp8_gqa", "v5.quant.cross.gqa_fp8_block_size"), lambda s: _full(s, "gqa_fp8"),
          values=(128,), needs={"scenario": "full_gqa_fp8"}, profiles=SRC_950, basis=Basis.SOURCE,
          enforced_by="CheckBlockSizeSupport"),
)


def _limit(row: Sizes) -> str:
    if row.values:
        return ", ".join(map(str, row.values))
    return f"multiple of {row.step}, {row.step}..{row.most}"


def _allowed(row: Sizes) -> Callable[[Scene], bool]:
    values, step, most = row.values, row.step, row.most
    if values:
        return lambda s: s.block_size in values
    return lambda s: s.block_size % step == 0 and s.block_size <= most


def _rule(row: Sizes) -> Rule:
    needs = {**PAGED, **NO_WIDTHS, **row.needs}
    low, high = (min(row.values), max(row.values)) if row.values else (row.step, row.most)
    above, below = high + (16 if row.values else row.step), low // 2
    breaks = [Break("above", block_size_to(above), needs), Break("below", block_size_to(below), needs)]
    breaks += [Break("value", block_size_to(n), needs, note="no multiple") for n in row.odd]
    boundaries = (Boundary(at_size(high), block_size_to(above), needs, limit=str(high)),
                  Boundary(at_size(low), block_size_to(below), needs, limit=str(low)))
    return Rule(row.id, row.title, GROUP, Level.SINGLE, row.profiles, row.cites, row.when, _allowed(row),
                basis=row.basis,
                enforced_by=row.enforced_by, breaks=tuple(breaks), boundaries=boundaries, limit=_limit(row))


def at_size(size: int) -> Change:
    """The call as it is where it has that block size, else moved to it."""
    move = block_size_to(size)
    return lambda s: {"blockSize": size} if s.block_size == size else move(s)


def _old_other_d(s: Scene) -> bool:
    return no_quant(s) and not mla(s) and s.Q_D is not None and not _plain_d(s)


def _old_legal(s: Scene) -> bool:
    return _old_other_d(s) and s.block_size % 16 == 0 and s.block_size <= 1024


_OLD_MANY: Words = {**PAGED, **NO_WIDTHS, **_OTHER_D, "q_s": ("2-16", "17+")}
_OLD_ONE: Words = {**PAGED, **NO_WIDTHS, **_OTHER_D, "q_s": "1"}

OLD_PRODUCTS: tuple[Rule, ...] = (
    Rule("FIA-PA-025", "block size with another head size is a multiple of 16 up to 1024", GROUP, Level.SINGLE,
         DOC_A2A3_V5,
         (_ID + "block_size_a2a3_b1", _ID + "block_size_no_quant_gqa_other_multi",
          _ID + "block_size_no_quant_gqa_other_single"),
         _old_other_d, lambda s: s.block_size % 16 == 0 and s.block_size <= 1024, enforced_by="CheckFeatureBlockSize",
         limit="multiple of 16, 16..1024",
         breaks=(Break("above", block_size_to(1152), _OLD_MANY), Break("value", block_size_to(136), _OLD_MANY)),
         boundaries=(Boundary(at_size(1024), block_size_to(1152), _OLD_MANY, limit="1024"),)),
    Rule("FIA-PA-026", "block size with another head size and several query tokens is a multiple of 128", GROUP,
         Level.SINGLE,
         DOC_A2A3_V5, (_ID + "block_size_no_quant_gqa_other_multi", _ID + "block_size_a2a3_b1"),
         lambda s: _old_legal(s) and s.Q_S is not None and s.Q_S > 1, lambda s: s.block_size % 128 == 0,
         basis=Basis.DOCUMENTED, limit="multiple of 128", note="A2 and A3 know no step of 128",
         breaks=(Break("below", block_size_to(64), _OLD_MANY), Break("value", block_size_to(192), _OLD_MANY)),
         boundaries=(Boundary(at_size(128), block_size_to(112), _OLD_MANY, limit="128"),)),
    Rule("FIA-PA-027", "block size with another head size and one query token is at most 512", GROUP, Level.SINGLE,
         DOC_A2A3_V5,
         (_ID + "block_size_no_quant_gqa_other_single", _ID + "block_size_a2a3_b1"),
         lambda s: _old_legal(s) and s.Q_S == 1, lambda s: s.block_size <= 512, basis=Basis.DOCUMENTED, limit="<= 512",
         note="A2 and A3 take up to 1024",
         breaks=(Break("above", block_size_to(528), _OLD_ONE),),
         boundaries=(Boundary(at_size(512), block_size_to(528), _OLD_ONE, limit="512"),)),
)

RULES: tuple[Rule, ...] = (
    Rule("FIA-PA-020", "block size is positive", GROUP, Level.SINGLE, ALL,
         (_ID + "block_size_positive", "v3.paged_attention.single.qs_eq1_block_size"),
         lambda s: s.paged, lambda s: s.block_size > 0, stage=Stage.CHECKER, enforced_by="GetBlockSize", limit=">= 1",
         note="0 is the default; read by the parser, but after it has let an empty call go",
         breaks=(Break("below", put(blockSize=0), UNSCALED), Break("below", put(blockSize=-128), UNSCALED)),
         boundaries=(Boundary(block_size_to(16), put(blockSize=0),
                              {**UNSCALED, **NO_WIDTHS, "scenario": "gqa", "q_s": "1"},
                              limit="16 is the smallest legal size"),)),
    *(_rule(row) for row in TABLE),
    *OLD_PRODUCTS,
)
