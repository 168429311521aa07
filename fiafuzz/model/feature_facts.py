"""Facts of a scene, fourth group: which features of the operator are in force (rope and MLA, masks, biases, left padding, shared
prefix, sinks, empty calls), and with what."""

from __future__ import annotations

from typing import Optional

from .fact import Int, fact
from .layouts import COMBINED_MLA_D, DECODE_MLA_D, MASK_COMPRESSED, axis_sizes
from .parameters import INT_MAX
from .size_facts import SizeFacts


class FeatureFacts(SizeFacts):
    """What the operator does beyond plain attention; some of it depends on the sizes of the call."""

    # ---- rope and MLA ------------------------------------------------------------------------

    @fact
    def rope_d(self) -> Int:
        """Head size of queryRope."""
        shape = self.shape("queryRope")
        if shape is None or self.layout is None:
            return None
        return self._head_size("rope_d", axis_sizes(self.layout.inputs, shape), self.Q_N)

    @fact
    def mla_kind(self) -> Optional[str]:
        """decode (rope, D 512), prefill_split (rope, other D), prefill_combined (192/128 without rope) or None."""
        if self.rope_on:
            return "decode" if self.Q_D == DECODE_MLA_D else "prefill_split"
        return "prefill_combined" if (self.Q_D, self.V_D) == COMBINED_MLA_D else None

    @fact
    def unequal_d(self) -> bool:
        """Whether query and value head sizes differ outside MLA."""
        return self.Q_D is not None and self.V_D is not None and self.Q_D != self.V_D and self.mla_kind is None

    # ---- masks and biases -------------------------------------------------------------------

    @fact
    def mask_on(self) -> bool:
        """Whether attenMask is given and not empty."""
        return self.inputs.attenMask is not None and not self.inputs.attenMask.empty

    @fact
    def mask_compressed(self) -> bool:
        """Whether attenMask has the fixed 2048 x 2048 shape of sparseMode 2, 3 and 4."""
        shape = self.shape("attenMask")
        return shape is not None and shape[-2:] == (MASK_COMPRESSED, MASK_COMPRESSED) and all(n == 1 for n in shape[:-2])

    @fact
    def tokens(self) -> tuple[int, int]:
        """Effective (preTokens, nextTokens): both open for mode 1, mode 0 without mask or with left padding, and
        antiquant single tokens; pre open and next 0 for modes 2 and 3; else the attributes, clamped."""
        mode = self.sparse_mode
        if mode in (2, 3):
            return (INT_MAX, 0)
        if mode == 1 or (mode == 0 and (not self.mask_on or self.q_padding_on or self.kv_padding_on)):
            return (INT_MAX, INT_MAX)
        if self.quant_kind == "antiquant" and self.single_token:
            return (INT_MAX, INT_MAX)
        return (max(-INT_MAX, min(INT_MAX, self.attrs.preTokens)), max(-INT_MAX, min(INT_MAX, self.attrs.nextTokens)))

    @fact
    def pse_on(self) -> bool:
        """Whether an additive bias is given: pseShift present, not empty, pseType 0."""
        return self.inputs.pseShift is not None and not self.inputs.pseShift.empty and self.attrs.pseType == 0

    @fact
    def alibi_on(self) -> bool:
        """Whether pseType is 2 or 3."""
        return self.attrs.pseType in (2, 3)

    # ---- left padding and shared prefix -----------------------------------------------------

    @fact
    def q_padding_on(self) -> bool:
        """Whether queryPaddingSize is given (ignored for antiquant with one query token)."""
        return self.inputs.queryPaddingSize is not None and not (self.quant_kind == "antiquant" and self.single_token)

    @fact
    def kv_padding_on(self) -> bool:
        """Whether key left padding is in force. Decode calls (Q_S 1, batch layout, no rope, equal D) switch it off
        silently unless storage is contiguous and actualSeqLengthsKv is given."""
        padding = self.inputs.kvPaddingSize
        if padding is None:
            return False
        decode = (self.single_token and self.layout_name in ("BSH", "BSND", "BNSD") and not self.rope_on
                  and self.Q_D == self.V_D)
        if decode:
            return not padding.empty and self.storage == "contiguous" and self.inputs.actualSeqLengthsKv is not None
        return True

    @fact
    def left_padding_on(self) -> bool:
        """Whether query or key left padding is in force."""
        return self.q_padding_on or self.kv_padding_on

    @fact
    def prefix_on(self) -> bool:
        """Whether both shared-prefix tensors are given."""
        return self.inputs.keySharedPrefix is not None and self.inputs.valueSharedPrefix is not None

    @fact
    def prefix_s(self) -> Int:
        """Sequence axis of keySharedPrefix."""
        shape = self.shape("keySharedPrefix")
        if shape is None or self.layout is None:
            return None
        axes = axis_sizes(self.layout.inputs, shape)
        return axes.get("S") if axes is not None else self._none("prefix_s", "prefix rank does not fit the layout")

    @fact
    def prefix_len(self) -> int:
        """Shared-prefix columns in force: actualSharedPrefixLen[0], else the prefix's S axis; 0 without prefix."""
        if not self.prefix_on:
            return 0
        lens = self.inputs.actualSharedPrefixLen
        return lens[0] if lens else (self.prefix_s or 0)

    # ---- sinks, softmaxLse, empty calls -----------------------------------------------------

    @fact
    def sink_on(self) -> bool:
        """Whether learnableSink is given."""
        return self.inputs.learnableSink is not None

    @fact
    def lse_on(self) -> bool:
        """Whether softmaxLse is asked for."""
        return self.attrs.softmaxLseFlag

    @fact
    def empty_query(self) -> bool:
        """Whether query has no element."""
        return self.query is not None and self.query.empty

    @fact
    def empty_kv(self) -> bool:
        """Whether every key and every value tensor has no element (some but not all does not count)."""
        items = (*self.keys, *self.values)
        return bool(items) and all(t is not None and t.empty for t in items)

    @fact
    def empty_out(self) -> bool:
        """Whether attentionOut has no element."""
        return self.out is not None and self.out.empty

    @fact
    def empty_case(self) -> bool:
        """Whether the operator treats the call as empty: query and output empty, or every key and value empty."""
        return (self.empty_query and self.empty_out) or self.empty_kv
