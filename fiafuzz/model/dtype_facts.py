"""Facts of a scene, second group: dtypes, the quantisation that they mean, and how keys and values are stored."""

from __future__ import annotations

from typing import Optional

from .call_facts import CallFacts
from .dtypes import FLOAT_QUERY
from .fact import fact


class DtypeFacts(CallFacts):
    """Kinds of quantisation and of storage; sizes come in only where packed 4-bit carriers change them."""

    # ---- dtypes and quantisation -------------------------------------------------------------

    @fact
    def int4_carrier(self) -> bool:
        """Whether key[0] and value[0] are both INT32, i.e. INT4 packed eight to a word."""
        return self.dtype("key") == "INT32" and self.dtype("value") == "INT32"

    @fact
    def q_dtype(self) -> Optional[str]:
        """dtype of query."""
        return self.dtype("query")

    @fact
    def k_dtype(self) -> Optional[str]:
        """dtype of key[0]; INT4 for the packed carrier."""
        return "INT4" if self.int4_carrier else self.dtype("key")

    @fact
    def v_dtype(self) -> Optional[str]:
        """dtype of value[0]; INT4 for the packed carrier."""
        return "INT4" if self.int4_carrier else self.dtype("value")

    @fact
    def out_dtype(self) -> Optional[str]:
        """dtype of attentionOut."""
        return self.dtype("attentionOut")

    @fact
    def quant_kind(self) -> Optional[str]:
        """"none", "antiquant" (query and key dtype differ) or "full" (equal and not FLOAT16/BFLOAT16)."""
        if self.q_dtype is None or self.k_dtype is None:
            return self._none("quant_kind", "query or key is missing")
        if self.q_dtype != self.k_dtype:
            return "antiquant"
        return "none" if self.q_dtype in FLOAT_QUERY else "full"

    @fact
    def full_kind(self) -> Optional[str]:
        """Kind of full quantisation: per_block, mxfp8, gqa_fp8, decode_mla or per_tensor; None without one."""
        if self.quant_kind != "full":
            return None
        modes = (self.attrs.queryQuantMode, self.attrs.keyAntiquantMode, self.attrs.valueAntiquantMode)
        if modes == (7, 7, 7):
            return "per_block"
        if modes == (6, 6, 8):
            return "mxfp8"
        if modes == (3, 3, 2):
            return "gqa_fp8"
        if modes == (3, 0, 0) and self.rope_on:
            return "decode_mla"
        return "per_tensor"

    @fact
    def antiquant_modes(self) -> tuple[int, int]:
        """(keyAntiquantMode, valueAntiquantMode) as given."""
        return (self.attrs.keyAntiquantMode, self.attrs.valueAntiquantMode)

    @fact
    def merged_antiquant(self) -> bool:
        """Whether the old combined antiquantScale is what is given (no separate scales)."""
        return self.given("antiquantScale") and not self.given("keyAntiquantScale")

    @fact
    def antiquant_kind(self) -> Optional[str]:
        """Kind of antiquant parameters: per_tensor, per_channel, per_token, tensor_head, token_head, token_paged,
        token_head_paged, group, mixed (channel key, token value); None without antiquant or for another pair."""
        if self.quant_kind != "antiquant":
            return None
        pair = self.antiquant_modes
        if pair == (0, 0):
            shape = self.shape("keyAntiquantScale")
            return "per_tensor" if shape == (1,) else "per_channel"
        kinds = {(0, 1): "mixed", (1, 1): "per_token", (2, 2): "tensor_head", (3, 3): "token_head",
                 (4, 4): "token_paged", (5, 5): "token_head_paged", (6, 6): "group"}
        return kinds.get(pair) or self._none("antiquant_kind", f"no antiquant mode pair {pair}")

    @fact
    def post_quant_on(self) -> bool:
        """Whether attentionOut is neither FLOAT16 nor BFLOAT16 (post-quantisation)."""
        return self.out_dtype is not None and self.out_dtype not in FLOAT_QUERY

    # ---- storage -----------------------------------------------------------------------------

    @fact
    def storage(self) -> str:
        """tensor_list (more than one key), paged (a blockTable), else contiguous."""
        if len(self.keys) > 1:
            return "tensor_list"
        return "paged" if self.inputs.blockTable is not None else "contiguous"

    @fact
    def paged(self) -> bool:
        """Whether the storage is paged."""
        return self.storage == "paged"

    @fact
    def cache_layout(self) -> Optional[str]:
        """BnBsH, BnNBsD or NZ by the rank of the paged key cache."""
        if not self.paged:
            return None
        shape = self.key_shape
        found = {3: "BnBsH", 4: "BnNBsD", 5: "NZ"}.get(len(shape)) if shape is not None else None
        return found or self._none("cache_layout", "key cache is not of rank 3, 4 or 5")

    @fact
    def key_shape(self) -> Optional[tuple[int, ...]]:
        """Shape of key[0] with packed INT4 carriers counted as eight elements."""
        return self._logical("key")

    @fact
    def value_shape(self) -> Optional[tuple[int, ...]]:
        """Shape of value[0] with packed INT4 carriers counted as eight elements."""
        return self._logical("value")

    def _logical(self, name: str) -> Optional[tuple[int, ...]]:
        shape = self.shape(name)
        if shape and self.int4_carrier:
            return (*shape[:-1], shape[-1] * 8)
        return shape
