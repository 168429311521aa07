"""Documented limits and layout tables of the operator, as data: for generators to stay inside of, for rules to test.

Sources: the tables of spec/v5_common_notes.md 4 and 5 and spec/v5_quant_rope_notes.md 3 to 5 (V5, Ascend 950),
spec/v3_notes.md and the A2 and A3 entries of spec/v3.yaml. Sizes are elements, block sizes are tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Optional

# ---- layouts ----------------------------------------------------------------------------------

PLAIN_LAYOUTS: frozenset[str] = frozenset({"BSH", "BSND", "BNSD"})
"""Layouts whose output has the axes of the input and whose batches stand apart."""

GQA_LAYOUTS: tuple[str, ...] = (
    "BNSD", "BSND", "BSH", "TND", "NTD", "BNSD_BSND", "BSND_BNSD", "BSH_BNSD", "NTD_TND",
)
"""Layouts without rope and of prefill MLA (v5.common.single.layouts_gqa, layouts_prefill_mla)."""

DECODE_MLA_LAYOUTS: tuple[str, ...] = (
    "BNSD", "BSND", "BSH", "TND", "BNSD_NBSD", "BSND_NBSD", "BSH_NBSD", "TND_NTD",
)
"""v5.common.single.layouts_decode_mla; also FP8 and HIFLOAT8 full quantisation of it."""

DECODE_MLA_INT8_LAYOUTS: tuple[str, ...] = ("BSND", "BSH", "TND", "BSND_NBSD", "BSH_NBSD", "TND_NTD")
"""v5.common.single.layouts_full_quant_mla_int8: INT8 has no BNSD form."""

ANTIQUANT_LAYOUTS: tuple[str, ...] = ("BNSD", "BSND", "BSH", "BNSD_BSND", "TND")
"""v5.common.single.layouts_antiquant; TND not for INT8, BNSD_BSND not for one query token."""

PER_TENSOR_LAYOUTS: tuple[str, ...] = ("BNSD", "BSND", "BSH", "BNSD_BSND")
"""v5.common.single.layouts_full_quant_per_tensor, and every INT8 call of the V3 document."""

UNEQUAL_D_LAYOUTS: tuple[str, ...] = ("BNSD", "BSND", "BSH", "TND")
"""v5.common.consistency.d_unequal_layout."""

FEATURE_LAYOUTS: frozenset[str] = frozenset({"BSH", "BSND", "BNSD", "BNSD_BSND"})
"""Where pseShift, tensor lists, left padding and prefix are allowed (spec/v5_common_notes.md 4, second table)."""

PAGED_LAYOUTS: frozenset[str] = frozenset({"BNSD", "TND", "BSH", "BSND"})
"""Query layouts that documents name for paged caches outside decode MLA (v5.common.cross.pa_cache_layouts_no_quant)."""

FIXED_D_LAYOUTS: frozenset[str] = frozenset({"NTD", "NTD_TND", "BSH_BNSD", "BSND_BNSD"})
"""Layouts that allow only D 64 and 128 without rope (v5.common.consistency.head_dim_64_128_layouts)."""

BSH_BSND_FAMILY: frozenset[str] = frozenset({"BSH", "BSND", "BSH_NBSD", "BSND_NBSD"})
"""Layouts whose caches are BnBsH or NZ where a document ties the cache to the layout."""

# ---- sizes ------------------------------------------------------------------------------------

MAX_BATCH = 65536
MAX_HEAD_SIZE = 512
MAX_UNEQUAL_D = 128
MAX_BNBSH_ROW = 65535
MAX_FULL_QUANT_HEADS = 256
MAX_FULL_QUANT_GROUP = 64
MAX_DECODE_MLA_FULL_QUANT_Q_S = 16
MAX_ANTIQUANT_INT8_Q_S = 16
MAX_ALIBI_DIFFERENCE = 1048576

POWER_OF_TWO_HEADS: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128)
"""Head counts of decode MLA by document (v5.common.single.num_heads_decode_mla_set)."""

SINK_QK_D: frozenset[int] = frozenset({64, 128, 192})
SINK_V_D: frozenset[int] = frozenset({64, 128})
FIXED_D: frozenset[int] = frozenset({64, 128})
MXFP8_D: frozenset[int] = frozenset({64, 128})

NZ_D0 = 16
"""Elements of the last cache axis in NZ form: 16-bit data and every antiquant format as declared in element counts."""
NZ_D0_ONE_BYTE = 32
"""The same for one-byte data of full quantisation."""
INT4_PER_WORD = 8
GROUP_SIZE = 32
"""Elements that share one E8M0 scale along D (antiquant mode 6)."""
MX_GROUP = 64
"""Elements of two E8M0 groups: the axis that MXFP8 scales divide by."""

# ---- block sizes ------------------------------------------------------------------------------


@dataclass(frozen=True)
class BlockSizes:
    """Multiples of ``multiple`` in [low, high]."""

    multiple: int
    low: int
    high: int

    def allows(self, size: int) -> bool:
        """Whether a block size is one of them."""
        return self.low <= size <= self.high and size % self.multiple == 0

    def sizes(self) -> tuple[int, ...]:
        """All of them, smallest first."""
        first = -(-self.low // self.multiple) * self.multiple
        return tuple(range(first, self.high + 1, self.multiple))


BLOCKS_MLA = BlockSizes(16, 16, 1024)
"""Decode and prefill MLA without quantisation (v5.paged_attention.single.block_size_no_quant_mla)."""
BLOCKS_D_64_128 = BlockSizes(16, 16, 1024)
BLOCKS_D_OTHER_MULTI = BlockSizes(128, 128, 1024)
"""Other D and more than one query token."""
BLOCKS_D_OTHER_SINGLE = BlockSizes(16, 16, 512)
BLOCKS_ANTIQUANT_8BIT = BlockSizes(32, 32, 512)
BLOCKS_ANTIQUANT_4BIT = BlockSizes(64, 64, 512)
BLOCKS_FULL_QUANT = BlockSizes(128, 128, 128)
"""Decode MLA and GQA FP8 full quantisation."""
BLOCKS_MXFP8: tuple[int, ...] = (64, 128, 256, 512, 1024)
BLOCKS_V3_MULTI = BlockSizes(128, 128, 512)
"""V3 document, more than one query token, not TND (v3.paged_attention.single.qs_gt1_block_size)."""
BLOCKS_V3_SINGLE = BlockSizes(16, 16, 512)
BLOCKS_V3_SINGLE_INT8 = BlockSizes(32, 32, 512)
BLOCKS_V3_TND = BlockSizes(16, 16, 128)
BLOCKS_V3_MLA: tuple[int, ...] = (16, 128)
"""V3 document, decode MLA; NZ caches only 128."""


def no_quant_blocks(head_size: int, single_token: bool) -> BlockSizes:
    """Block sizes of an unquantised call without rope (v5.paged_attention.single.block_size_no_quant_gqa_*)."""
    if head_size in FIXED_D:
        return BLOCKS_D_64_128
    return BLOCKS_D_OTHER_SINGLE if single_token else BLOCKS_D_OTHER_MULTI


# ---- quantisation -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Antiquant:
    """One kind of antiquant parameters.

    ``modes`` are (keyAntiquantMode, valueAntiquantMode); ``kv_dtypes`` the key and value dtypes that it takes on Ascend
    950; ``scale`` the dtype of its scales ("query": that of query; mixed: the key scale, its value scale is FLOAT32).
    """

    modes: tuple[int, int]
    kv_dtypes: tuple[str, ...]
    scale: str


ANTIQUANT: Mapping[str, Antiquant] = MappingProxyType({
    "per_tensor": Antiquant((0, 0), ("INT8",), "query"),
    "per_channel": Antiquant((0, 0), ("INT8", "INT4", "HIFLOAT8", "FLOAT8_E4M3FN"), "query"),
    "per_token": Antiquant((1, 1), ("INT8", "INT4", "FLOAT8_E4M3FN"), "FLOAT32"),
    "tensor_head": Antiquant((2, 2), ("INT8",), "query"),
    "token_head": Antiquant((3, 3), ("INT8", "INT4"), "FLOAT32"),
    "token_paged": Antiquant((4, 4), ("INT8", "FLOAT8_E4M3FN"), "FLOAT32"),
    "token_head_paged": Antiquant((5, 5), ("INT8",), "FLOAT32"),
    "mixed": Antiquant((0, 1), ("INT8", "INT4"), "query"),
    "group": Antiquant((6, 6), ("FLOAT4_E2M1",), "FLOAT8_E8M0"),
})
"""spec/v5_quant_rope_notes.md 3, by the words of the factor ``antiquant`` (merged parameters are V3 only)."""

FULL_QUANT_MODES: Mapping[str, tuple[int, int, int]] = MappingProxyType({
    "per_tensor": (0, 0, 0), "decode_mla": (3, 0, 0), "mxfp8": (6, 6, 8), "gqa_fp8": (3, 3, 2),
})
"""(queryQuantMode, keyAntiquantMode, valueAntiquantMode) of each kind of full quantisation."""

OFFSET_DTYPES: frozenset[str] = frozenset({"INT8", "INT4"})
"""Key and value dtypes whose antiquant parameters may have offsets."""

BOOL_MASK_ONLY: frozenset[str] = frozenset({"INT4", "FLOAT4_E2M1", "HIFLOAT8"})
"""Key and value dtypes beside a FLOAT16 or BFLOAT16 query for which only BOOL masks are registered on Ascend 950."""

POST_QUANT_DTYPES: tuple[str, ...] = ("INT8", "FLOAT8_E4M3FN", "HIFLOAT8")


def per_channel_shapes(heads: int, head_size: int) -> tuple[tuple[int, ...], ...]:
    """The seven shapes of per-channel antiquant parameters (v5.quant.single.antiquant_scale_shape_per_channel)."""
    n, d, h = heads, head_size, heads * head_size
    return ((h,), (1, h), (n, d), (1, n, d), (n, 1, d), (1, n, 1, d), (1, 1, n, d))


def decode_mla_sparse(int8: bool, packed: bool, single_token: Optional[bool]) -> tuple[int, ...]:
    """sparseMode values of decode MLA full quantisation; 0 goes without mask, 3 with one
    (v5.attention_mask.cross.full_quant_int8_mla_*)."""
    if int8 and not packed:
        return (0,) if single_token else (3,)
    return (0, 3)
