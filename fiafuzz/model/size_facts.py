"""Facts of a scene, third group: the axes of the tensors under the layout (B, Q_N, KV_N, G, Q_S, KV_S, D, T) and the lengths of each
batch."""

from __future__ import annotations

from typing import Optional

from .dtype_facts import DtypeFacts
from .fact import Int, Lens, fact
from .layouts import axis_sizes
from .parameters import as_int32


def _differences(cumulative: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(b - a for a, b in zip((0, *cumulative), cumulative))


class SizeFacts(DtypeFacts):
    """How large the call is. Sizes are ints, lengths are tuples of ints per batch."""

    # ---- axes --------------------------------------------------------------------------------

    @fact
    def q_axes(self) -> Optional[dict[str, int]]:
        """Axis letter -> size of query under the layout."""
        shape = self.shape("query")
        if self.layout is None or shape is None:
            return self._none("q_axes", "query is missing or the layout unknown")
        found = axis_sizes(self.layout.inputs, shape)
        return found if found is not None else self._none("q_axes", f"query rank {len(shape)} does not fit {self.layout_name}")

    @fact
    def k_axes(self) -> Optional[dict[str, int]]:
        """Axis letter -> size of key[0] under the layout (None when paged)."""
        return None if self.paged else self._kv_axes("k_axes", self.key_shape)

    @fact
    def v_axes(self) -> Optional[dict[str, int]]:
        """Axis letter -> size of value[0] under the layout (None when paged)."""
        return None if self.paged else self._kv_axes("v_axes", self.value_shape)

    def _kv_axes(self, fact: str, shape: Optional[tuple[int, ...]]) -> Optional[dict[str, int]]:
        if self.layout is None or shape is None:
            return self._none(fact, "tensor is missing or the layout unknown")
        found = axis_sizes(self.layout.inputs, shape)
        return found if found is not None else self._none(fact, f"rank {len(shape)} does not fit {self.layout_name}")

    @fact
    def out_axes(self) -> Optional[dict[str, int]]:
        """Axis letter -> size of attentionOut under the layout."""
        shape = self.shape("attentionOut")
        if self.layout is None or shape is None:
            return self._none("out_axes", "attentionOut is missing or the layout unknown")
        return axis_sizes(self.layout.output, shape)

    @fact
    def B(self) -> Int:
        """Batch size: length of actualSeqLengths for packed layouts, else the B axis of query."""
        if self.packed:
            lens = self.inputs.actualSeqLengths
            return len(lens) if lens is not None else self._none("B", "packed layout without actualSeqLengths")
        return self.q_axes["B"] if self.q_axes is not None else self._none("B", "query axes unknown")

    @fact
    def Q_N(self) -> int:
        """Query heads: numHeads."""
        return self.num_heads

    @fact
    def KV_N(self) -> int:
        """Key/value heads: numKeyValueHeads, or numHeads when it is 0."""
        return as_int32(self.attrs.numKeyValueHeads) or self.num_heads

    @fact
    def G(self) -> Int:
        """Group size Q_N / KV_N when it divides evenly."""
        if self.KV_N > 0 and self.Q_N > 0 and self.Q_N % self.KV_N == 0:
            return self.Q_N // self.KV_N
        return self._none("G", f"{self.Q_N} query heads do not divide into {self.KV_N}")

    @fact
    def T(self) -> Int:
        """Packed tokens of query: its T axis (packed layouts only)."""
        return self.q_axes.get("T") if self.q_axes is not None else None

    @fact
    def KV_T(self) -> Int:
        """Packed tokens of key: its T axis (packed layouts without paging only)."""
        return self.k_axes.get("T") if self.k_axes is not None else None

    @fact
    def Q_S(self) -> Int:
        """Query sequence axis: S of query, or the longest difference of actualSeqLengths for packed layouts."""
        if self.packed:
            lens = self.q_lens
            return max(lens) if lens else self._none("Q_S", "packed layout without actualSeqLengths")
        return self.q_axes["S"] if self.q_axes is not None else self._none("Q_S", "query axes unknown")

    @fact
    def KV_S(self) -> Int:
        """Key sequence axis: S of key (longest of a list), the longest difference of actualSeqLengthsKv for packed
        layouts, blockTable columns x blockSize when paged."""
        if self.paged:
            return self.table_span
        if self.packed:
            lens = self.kv_lens
            return max(lens) if lens else self._none("KV_S", "packed layout without actualSeqLengthsKv")
        sizes = [axis_sizes(self.layout.inputs, k.shape) for k in self.keys if k is not None] if self.layout else []
        found = [a["S"] for a in sizes if a is not None]
        return max(found) if found else self._none("KV_S", "key axes unknown")

    @fact
    def table_span(self) -> Int:
        """Columns that the block table can address: its second axis x blockSize."""
        shape = self.shape("blockTable")
        if shape is None or len(shape) != 2:
            return self._none("table_span", "blockTable is not of rank 2")
        return shape[1] * self.block_size

    @fact
    def needed_blocks(self) -> Int:
        """Blocks of the longest sequence of a paged call: max over the batches of ceil(actualSeqLengthsKv / blockSize)."""
        if not self.paged or self.block_size <= 0 or not self.inputs.actualSeqLengthsKv or not self.kv_lens:
            return self._none("needed_blocks", "not paged, or lengths or block size unknown")
        return max(0, -(-max(self.kv_lens) // self.block_size))

    @fact
    def paged_columns(self) -> Int:
        """Key columns by which the host sizes masks and biases of a paged call: needed blocks x blockSize, with antiquant
        all columns of the table (spec/v5_common_notes.md 3)."""
        if self.quant_kind == "antiquant" and self.paged:
            return self.table_span
        return None if self.needed_blocks is None else self.needed_blocks * self.block_size

    @fact
    def Q_D(self) -> Int:
        """Head size of query."""
        return self._head_size("Q_D", self.q_axes, self.Q_N)

    @fact
    def K_D(self) -> Int:
        """Head size of key."""
        return self._cache_head_size("K_D", self.key_shape) if self.paged else self._head_size("K_D", self.k_axes, self.KV_N)

    @fact
    def V_D(self) -> Int:
        """Head size of value."""
        return self._cache_head_size("V_D", self.value_shape) if self.paged else self._head_size("V_D", self.v_axes, self.KV_N)

    def _head_size(self, fact: str, axes: Optional[dict[str, int]], heads: int) -> Int:
        if axes is None:
            return self._none(fact, "axes unknown")
        if "D" in axes:
            return axes["D"]
        if heads > 0 and axes["H"] % heads == 0:
            return axes["H"] // heads
        return self._none(fact, f"H {axes['H']} does not divide into {heads} heads")

    def _cache_head_size(self, fact: str, shape: Optional[tuple[int, ...]]) -> Int:
        if shape is not None and len(shape) == 3 and self.KV_N > 0 and shape[2] % self.KV_N == 0:
            return shape[2] // self.KV_N
        if shape is not None and len(shape) == 4:
            return shape[3]
        if shape is not None and len(shape) == 5:
            return shape[2] * shape[4]
        return self._none(fact, "cache axes unknown")

    @fact
    def cache_blocks(self) -> Int:
        """Number of blocks of the key cache."""
        return self.key_shape[0] if self.paged and self.key_shape else None

    @fact
    def cache_block_size(self) -> Int:
        """Rows of a block by the key cache's own axis."""
        shape = self.key_shape
        if not self.paged or shape is None:
            return None
        axis = {3: 1, 4: 2, 5: 3}.get(len(shape))
        return shape[axis] if axis is not None else None

    # ---- lengths -----------------------------------------------------------------------------

    @fact
    def q_lens(self) -> Lens:
        """Query length of each batch: differences of the cumulative list for packed layouts, else the list (one
        entry serves all, further entries are cut), else Q_S for all."""
        lens = self.inputs.actualSeqLengths
        if self.packed:
            return _differences(lens) if lens is not None else self._none("q_lens", "packed layout without actualSeqLengths")
        return self._per_batch("q_lens", lens, self.q_axes["S"] if self.q_axes is not None else None)

    @fact
    def kv_lens(self) -> Lens:
        """Key length of each batch, without the shared prefix: per batch when paged, differences of the cumulative
        list for packed layouts, else the list, else the S axis (of each tensor of a list)."""
        lens = self.inputs.actualSeqLengthsKv
        if self.paged:
            return self._per_batch("kv_lens", lens, self.table_span)
        if self.packed:
            return _differences(lens) if lens is not None else self._none("kv_lens", "packed layout without actualSeqLengthsKv")
        if lens is None and self.storage == "tensor_list" and self.layout is not None:
            axes = [axis_sizes(self.layout.inputs, k.shape) if k is not None else None for k in self.keys]
            return tuple(a["S"] if a is not None else 0 for a in axes)
        return self._per_batch("kv_lens", lens, self.KV_S)

    def _per_batch(self, fact: str, lens: Optional[tuple[int, ...]], full: Int) -> Lens:
        if self.B is None or not 0 <= self.B <= 1 << 20:
            return self._none(fact, "batch size unknown or out of reach")
        if lens is None:
            return (full,) * self.B if full is not None else self._none(fact, "sequence axis unknown")
        if len(lens) == 1:
            return lens * self.B
        if len(lens) < self.B:
            return self._none(fact, f"{len(lens)} lengths for {self.B} batches")
        return lens[: self.B]

    @fact
    def single_token(self) -> bool:
        """Whether Q_S is 1 (for packed layouts: no query longer than 1)."""
        return self.Q_S == 1
