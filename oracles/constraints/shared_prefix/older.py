"""The shared prefix in the V3 document (A2 and A3): what it does not go with. The shapes are those of V5."""

from __future__ import annotations

from fiafuzz.model.case import TensorSpec
from fiafuzz.model.scene import Scene

from ..rule import DOC_A2A3_V3, Basis, Break, Level, Rule, Words, never
from .exclusions import padded
from .facts import GROUP, LAYOUTS, NAMES, PLAIN, add_prefix
from .shapes import HAS

_V3 = "v3.shared_prefix.cross."
PACKED = ("TND", "TND_NTD", "NTD_TND")


def given(s: Scene) -> bool:
    """Whether both prefix tensors are given, paged or not."""
    return s.prefix_on


def _plain(s: Scene) -> bool:
    """A prefix outside the MLA and packed sections, which exclude it as such."""
    return s.prefix_on and not s.rope_on and s.layout_name not in PACKED


def _many(s: Scene) -> bool:
    return s.Q_S is not None and s.Q_S > 1


def _any_prefix(s: Scene) -> dict[str, object] | None:
    """Prefix tensors for a paged call of a batch layout."""
    if s.layout is None or s.layout_name not in LAYOUTS or s.k_dtype is None or s.Q_D is None or s.int4_carrier:
        return None
    sizes = {"B": 1, "S": 16, "N": s.KV_N, "D": s.Q_D, "H": s.KV_N * s.Q_D}
    spec = TensorSpec(tuple(sizes[a] for a in s.layout.inputs), s.k_dtype)
    return dict.fromkeys(NAMES, spec)


_MANY: Words = {**PLAIN, "q_s": ("2-16", "17+"), "scenario": "gqa", "layout": LAYOUTS}
_NO_WIDTHS: Words = {"pse": "none", "mask_shape": ("none", "2048/2", "2048/3", "2048/4")}

RULES: tuple[Rule, ...] = (
    Rule("FIA-SP-040", "MLA with rope takes no shared prefix", GROUP, Level.CROSS, DOC_A2A3_V3,
         tuple(_V3 + f"{n}_no_prefix" for n in ("tnd512", "mla512_a2", "mla128_a2")),
         lambda s: given(s) and s.rope_on, never, enforced_by="CheckFeatureSupport",
         breaks=(Break("present", add_prefix(), {**PLAIN, "scenario": ("mla_prefill_split", "mla_decode"),
                                                "storage": ("contiguous", "BnBsH", "BnNBsD", "NZ")}),)),
    Rule("FIA-SP-041", "TND and NTD_TND take no shared prefix", GROUP, Level.CROSS, DOC_A2A3_V3,
         (_V3 + "tnd_no_prefix",),
         lambda s: given(s) and not s.rope_on, lambda s: s.layout_name not in PACKED, basis=Basis.DOCUMENTED,
         note="the fast TND route ignores the prefix, NTD_TND refuses it",
         breaks=(Break("present", add_prefix(), {**PLAIN, "scenario": "gqa", "layout": "TND"}),)),
    Rule("FIA-SP-042", "a shared prefix goes without paging", GROUP, Level.CROSS, DOC_A2A3_V3,
         (_V3 + "qs_gt1_no_pa", _V3 + "qs_eq1_unlisted_exclusions"), lambda s: _plain(s), lambda s: not s.paged,
         enforced_by="CheckFeatureSupport", note="with one query token not written in the document",
         breaks=(Break("present", _any_prefix, {**_MANY, **_NO_WIDTHS, "storage": ("BnBsH", "BnNBsD")}),)),
    Rule("FIA-SP-043", "a shared prefix goes without left padding", GROUP, Level.CROSS, DOC_A2A3_V3,
         (_V3 + "qs_gt1_no_left_padding", _V3 + "qs_eq1_unlisted_exclusions"),
         lambda s: _plain(s) and not s.paged,
         lambda s: not (s.given("kvPaddingSize") or (s.given("queryPaddingSize") and _many(s))),
         enforced_by="CheckUnSupportFeature",
         note="with one query token not written in the document",
         breaks=(Break("present", padded("queryPaddingSize"),
                       {**HAS, "scenario": "gqa", "post_quant": "none", "q_s": ("2-16", "17+")}),
                 Break("present", padded("kvPaddingSize"), {**HAS, "scenario": "gqa", "post_quant": "none",
                                                            "q_s": ("2-16", "17+")}))),
    Rule("FIA-SP-044", "with several query tokens a shared prefix goes without a tensor list", GROUP, Level.CROSS,
         DOC_A2A3_V3,
         (_V3 + "qs_gt1_no_tensorlist",), lambda s: _plain(s) and _many(s), lambda s: s.storage != "tensor_list",
         enforced_by="CheckUnSupportFeature",
         breaks=(Break("present", add_prefix(), {**_MANY, "storage": "tensor_list"}),)),
    Rule("FIA-SP-045", "INT8 query, key and value take no shared prefix", GROUP, Level.CROSS, DOC_A2A3_V3,
         (_V3 + "qs_gt1_no_int8_qkv",), lambda s: _plain(s) and s.q_dtype == "INT8" and s.k_dtype == "INT8", never,
         enforced_by="CheckUnSupportFeature",
         breaks=(Break("present", add_prefix(), {**PLAIN, "scenario": "full_per_tensor", "layout": LAYOUTS}),)),
)


