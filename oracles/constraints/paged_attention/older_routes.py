"""A2 and A3: what the fast TND route and the older prefill and decode routes check of paging."""

from __future__ import annotations

from ..changes import cast
from ..routes import DECODE, DECODE_ROUTE, FAST, PREFILL, PREFILL_ROUTE
from ..rule import ALL_A2A3, SRC_A2A3, Basis, Break, Level, Rule, Words
from .cache import cache_as
from .facts import GROUP

ALSO = {
    FAST: "007 043",
    PREFILL: "002 003 004 006 007 020 041 042 043 044 045 060 070 071 073",
    DECODE: "002 003 006 007 020 028 029 040 041 042 043 045 046 060 070 071",
}
"""Numbers of the rules of this room that hold on these routes too."""

ALSO_MLA = {DECODE: "030 049"}
"""Numbers of the rules of this room that hold for INT8 Decode MLA, which V5 alone runs on the decode route."""

_DECODE: Words = {"scenario": "antiquant", "q_s": "1", "storage": ("BnBsH", "BnNBsD")}

RULES: tuple[Rule, ...] = (
    Rule("FIA-PA-201", "A2/A3: a quantised cache of one query token is not NZ", GROUP, Level.CROSS, ALL_A2A3,
         ("v3.paged_attention.single.mla512_a2_nd_nz",),
         lambda s: s.paged and s.quant_kind == "antiquant" and not s.given("queryRope"),
         lambda s: s.cache_layout != "NZ", basis=Basis.SOURCE, routes=DECODE_ROUTE,
         enforced_by="CheckGqaIOTensor, CheckGqaAntiQuantPerChannel, CheckKVAntiQuantMode",
         breaks=(Break("rank", cache_as("NZ"), _DECODE, ("FIA-PA-102",)),)),
    Rule("FIA-PA-202", "A2/A3: the block table of a quantised call with several query tokens is INT32", GROUP,
         Level.SINGLE, SRC_A2A3, ("v3.paged_attention.single.block_table_table",), lambda s: s.paged,
         lambda s: s.dtype("blockTable") == "INT32", basis=Basis.SOURCE, routes=PREFILL_ROUTE,
         enforced_by="CheckPATypeAndShape", note="the other routes do not look",
         breaks=(Break("dtype", cast("INT64", "blockTable"), {"scenario": "antiquant", "storage": "BnBsH",
                                                              "q_s": "17+"}),)),
)
