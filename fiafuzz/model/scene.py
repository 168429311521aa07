"""Scene: the facts about a case that every other floor asks for, derived once by a total function.

Any case, however malformed, yields a scene: a fact that cannot be derived is None and ``why`` says why. Facts follow the derivations of
spec/v5_common_notes.md section 3 and spec/v5_quant_rope_notes.md sections 2-6. Sizes are ints, lengths are tuples of ints per batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Optional, TypeVar, Union, overload

from .case import Case, TensorSpec
from .layouts import LAYOUTS, MASK_COMPRESSED, Layout, axis_sizes
from .parameters import INPUTS, INT_MAX

Int = Optional[int]
Lens = Optional[tuple[int, ...]]

FLOAT_QUERY: frozenset[str] = frozenset({"FLOAT16", "BFLOAT16"})
ONE_BYTE: frozenset[str] = frozenset({"INT8", "HIFLOAT8", "FLOAT8_E4M3FN", "FLOAT8_E5M2"})
ROPE_D = 64
DECODE_MLA_D = 512
PREFILL_MLA_D = 128
COMBINED_MLA_D = (192, 128)


def as_int32(value: int) -> int:
    """The value that is left when an int64 attribute is cut to 32 bits (host_behaviour.md 4.1)."""
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def _differences(cumulative: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(b - a for a, b in zip((0, *cumulative), cumulative))


T = TypeVar("T")


class fact(Generic[T]):
    """A derived fact: computed at its first use and kept on the scene. It is functools.cached_property without the lock that this
    takes before Python 3.12: a prediction asks for some sixty facts, and a scene belongs to one thread."""

    def __init__(self, derive: Callable[[Any], T]) -> None:
        self.derive = derive
        self.name = derive.__name__
        self.__doc__ = derive.__doc__

    @overload
    def __get__(self, scene: None, owner: Any = None) -> fact[T]: ...

    @overload
    def __get__(self, scene: Scene, owner: Any = None) -> T: ...

    def __get__(self, scene: Optional[Scene], owner: Any = None) -> Union[fact[T], T]:
        if scene is None:
            return self
        value = scene.__dict__[self.name] = self.derive(scene)
        return value


class Scene:
    """All derived facts of one case. Cheap to make: each fact is computed at its first use."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.inputs = case.inputs
        self.attrs = case.attrs
        self.why: dict[str, str] = {}

    def _none(self, fact: str, reason: str) -> Optional[Any]:
        self.why[fact] = reason
        return None

    # ---- parameters as they are -------------------------------------------------------------

    def tensor(self, name: str) -> Optional[TensorSpec]:
        """The spec of a tensor input or output; of a list ("key", "value"), the first item."""
        found = self.case.get(name)
        if found is None or isinstance(found, TensorSpec):
            return found
        first = found[0] if isinstance(found, tuple) and found else None
        return first if isinstance(first, TensorSpec) else None

    def given(self, name: str) -> bool:
        """Whether the parameter is not null."""
        return self.case.get(name) is not None

    def shape(self, name: str) -> Optional[tuple[int, ...]]:
        """Stored shape of a tensor (first item of a list), None when it is null."""
        spec = self.tensor(name)
        return None if spec is None else spec.shape

    def dtype(self, name: str) -> Optional[str]:
        """Stored dtype of a tensor (first item of a list), None when it is null."""
        spec = self.tensor(name)
        return None if spec is None else spec.dtype

    @fact
    def present(self) -> frozenset[str]:
        """Names of all inputs that are not null."""
        return frozenset(p.name for p in INPUTS if getattr(self.inputs, p.name) is not None)

    @fact
    def api(self) -> int:
        """API version as a number, 1..5."""
        return int(self.case.api[1:])

    @fact
    def product(self) -> str:
        """950, a2 or a3."""
        return self.case.product

    @fact
    def is_950(self) -> bool:
        """Whether the product is Ascend 950."""
        return self.case.product == "950"

    @fact
    def query(self) -> Optional[TensorSpec]:
        """The query tensor."""
        return self.inputs.query

    @fact
    def keys(self) -> tuple[Optional[TensorSpec], ...]:
        """The key list; () when the list is null."""
        return self.inputs.key or ()

    @fact
    def values(self) -> tuple[Optional[TensorSpec], ...]:
        """The value list; () when the list is null."""
        return self.inputs.value or ()

    @fact
    def out(self) -> Optional[TensorSpec]:
        """The attentionOut tensor."""
        return self.case.outputs.attentionOut

    @fact
    def lse(self) -> Optional[TensorSpec]:
        """The softmaxLse tensor."""
        return self.case.outputs.softmaxLse

    # ---- attributes as the host reads them ----------------------------------------------------

    @fact
    def layout_name(self) -> str:
        """inputLayout; a null pointer counts as BSH (v5.interface.existence.input_layout_null_default)."""
        return "BSH" if self.attrs.inputLayout is None else self.attrs.inputLayout

    @fact
    def layout(self) -> Optional[Layout]:
        """The layout record, None for an unknown name."""
        found = LAYOUTS.get(self.layout_name)
        return found if found else self._none("layout", f"unknown inputLayout {self.layout_name!r}")

    @fact
    def packed(self) -> bool:
        """Whether the layout is of the TND/NTD families."""
        return self.layout is not None and self.layout.packed

    @fact
    def num_heads(self) -> int:
        """numHeads, cut to 32 bits."""
        return as_int32(self.attrs.numHeads)

    @fact
    def sparse_mode(self) -> int:
        """sparseMode, cut to 32 bits."""
        return as_int32(self.attrs.sparseMode)

    @fact
    def inner_precise(self) -> int:
        """innerPrecise, cut to 32 bits."""
        return as_int32(self.attrs.innerPrecise)

    @fact
    def block_size(self) -> int:
        """blockSize, cut to 32 bits."""
        return as_int32(self.attrs.blockSize)

    @fact
    def scale(self) -> float:
        """scaleValue as a Python float."""
        return float(self.attrs.scaleValue)

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

    # ---- rope and MLA ------------------------------------------------------------------------

    @fact
    def rope_on(self) -> bool:
        """Whether queryRope and keyRope are both given."""
        return self.inputs.queryRope is not None and self.inputs.keyRope is not None

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

    # ---- features ----------------------------------------------------------------------------

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

    # ---- as data -----------------------------------------------------------------------------

    def facts(self) -> dict[str, object]:
        """Every fact by name (tensor specs left out), for explanations and records."""
        found: dict[str, object] = {}
        for name in FACTS:
            found[name] = getattr(self, name)
        return found


FACTS: tuple[str, ...] = tuple(
    name for name, member in vars(Scene).items()
    if isinstance(member, fact) and name not in ("query", "keys", "values", "out", "lse", "layout", "present")
)


def scene_of(case: Case) -> Scene:
    """The scene of a case."""
    return Scene(case)
