"""What a call asks a kernel to compute: sizes, lengths and positions, read from a scene and checked once.

Kernels have no parameter checks of their own, so everything that indexing relies on is verified here; what does
not hold together raises CannotRun with the reason. Lengths and positions follow spec/numerics.md 3, 11, 12 and 13.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fiafuzz.model.case import TensorSpec
from fiafuzz.model.dtypes import FLOAT_QUERY
from fiafuzz.model.layouts import axis_sizes, lse_shape, tensor_shape
from fiafuzz.model.parameters import INT_MAX
from fiafuzz.model.scene import Scene

MAX_SIZE = 1 << 31


class CannotRun(ValueError):
    """The call cannot be computed; the text is one line that says why."""


def need(condition: object, reason: str) -> None:
    """CannotRun with that reason unless the condition holds."""
    if not condition:
        raise CannotRun(reason)


@dataclass
class Span:
    """Neighbouring batches of equal lengths and positions, computed together.

    ``q_at`` and ``kv_at`` are the first valid row and column in the tensor (T index for packed layouts), ``q_row`` and
    ``kv_col`` the same as masks, biases and per-token parameters count them (0 for packed layouts and paged caches).
    ``kv_len`` leaves the shared prefix out.
    """

    first: int
    count: int
    q_at: int
    q_len: int
    kv_at: int
    kv_len: int
    q_row: int = 0
    kv_col: int = 0


@dataclass
class Problem:
    """Sizes and positions of one call. Plain data that a kernel reads (and a planted fault may alter)."""

    scene: Scene
    kind: str
    B: int
    Q_N: int
    KV_N: int
    G: int
    D: int
    V_D: int
    rope_d: int
    q_size: int
    """Sequence axis of query: S, or T when packed."""
    kv_size: int
    """Sequence axis of key: S, T when packed, columns of the block table when paged."""
    packed: bool
    storage: str
    q_axes: str
    out_axes: str
    q_dtype: str
    kv_dtype: str
    out_dtype: str
    scale: float
    sparse_mode: int
    tokens: tuple[int, int]
    mask_on: bool
    prefix: int
    block_size: int
    lse_on: bool
    legacy: bool = False
    """Whether the call takes the old single-token route of A2 and A3."""
    q_start: int = 0
    kv_start: int = 0
    spans: list[Span] = field(default_factory=list)

    def columns(self, span: Span) -> int:
        """Columns that a row of the span may see: shared prefix, then own keys."""
        return self.prefix + span.kv_len


def legacy_decode(scene: Scene) -> bool:
    """Whether an A2/A3 call takes the old single-token route, which ignores sparseMode, tokens, query lengths and
    query padding (v5.sparse_semantics, legacy decode route; spec/numerics.md 3 and 6.1)."""
    return (
        not scene.is_950
        and scene.single_token
        and scene.layout_name in ("BSH", "BSND", "BNSD")
        and not scene.rope_on
        and scene.Q_D == scene.V_D
    )


def read_problem(scene: Scene, padding: Mapping[str, int] = {}) -> Problem:
    """Sizes, lengths and positions of a call. CannotRun when they do not hold together.

    ``padding`` holds the numbers in queryPaddingSize and kvPaddingSize; what is absent is read from the case's literal
    values (0 without). An empty call (spec/numerics.md 3.2) must be answered before: its sizes are not read here.
    """
    layout, query, out = scene.layout, scene.query, scene.out
    if layout is None or query is None or out is None:
        raise CannotRun("query or attentionOut is missing, or the layout is unknown")
    need(scene.keys and scene.values and None not in scene.keys and None not in scene.values, "key or value is missing")
    B, G, Q_S, D, V_D = scene.B, scene.G, scene.Q_S, scene.Q_D, scene.V_D
    if B is None or G is None or Q_S is None or D is None or V_D is None:
        raise CannotRun("sizes cannot be derived: " + "; ".join(scene.why.values()))
    need(0 < B <= 1 << 20 and 0 < D <= 1 << 16 and 0 < V_D <= 1 << 16, f"B {B}, D {D} or V_D {V_D} is out of range")
    for spec in (query, out, *scene.keys, *scene.values):
        need(
            spec is not None and min(spec.shape, default=0) >= 0 and spec.numel < MAX_SIZE,
            "a shape is negative or too large",
        )
    need(scene.K_D == D, f"head size of key {scene.K_D} is not that of query {D}")
    kind = _kind(scene)
    value_ignored = scene.mla_kind == "decode"
    packed = scene.packed
    axes = scene.q_axes or {}
    need(axes.get("N", scene.Q_N) == scene.Q_N, f"query has {axes.get('N')} heads, numHeads is {scene.Q_N}")
    need("H" not in axes or axes["H"] == scene.Q_N * D, "H of query does not divide into heads")
    q_size = axes["T"] if packed else axes["S"]
    kv_size = _key_axes(scene, B, D, V_D)
    legacy = legacy_decode(scene)
    problem = Problem(
        scene=scene,
        kind=kind,
        B=B,
        Q_N=scene.Q_N,
        KV_N=scene.KV_N,
        G=G,
        D=D,
        V_D=D if value_ignored else V_D,
        rope_d=_rope(scene, B, q_size),
        q_size=q_size,
        kv_size=kv_size,
        packed=packed,
        storage=scene.storage,
        q_axes=layout.inputs,
        out_axes=layout.output,
        q_dtype=scene.q_dtype or "",
        kv_dtype=scene.k_dtype or "",
        out_dtype=scene.out_dtype or "",
        scale=scene.scale,
        sparse_mode=0 if legacy else scene.sparse_mode,
        tokens=(INT_MAX, INT_MAX) if legacy else scene.tokens,
        mask_on=scene.mask_on,
        prefix=_prefix(scene),
        block_size=scene.block_size,
        lse_on=scene.lse_on,
        legacy=legacy,
        q_start=(scene.inputs.qStartIdx or (0,))[0],
        kv_start=(scene.inputs.kvStartIdx or (0,))[0],
    )
    need(problem.sparse_mode in range(5), f"sparseMode {problem.sparse_mode} is not known")
    _check_output(scene, problem, out)
    problem.spans = _merged(_spans(scene, problem, padding), problem)
    return problem


def _kind(scene: Scene) -> str:
    kind = scene.quant_kind
    need(scene.k_dtype == scene.v_dtype or scene.mla_kind == "decode", "key and value differ in dtype")
    for specs in (scene.keys, scene.values):
        need(len({spec.dtype for spec in specs if spec is not None}) == 1, "tensors of one list differ in dtype")
    if kind == "none":
        return "none"
    if kind == "antiquant":
        need(scene.q_dtype in FLOAT_QUERY, f"query of dtype {scene.q_dtype} beside {scene.k_dtype} keys")
        need(
            scene.k_dtype in ("INT8", "INT4", "HIFLOAT8", "FLOAT8_E4M3FN", "FLOAT8_E5M2", "FLOAT4_E2M1"),
            f"keys of dtype {scene.k_dtype} beside a {scene.q_dtype} query",
        )
        need(not scene.rope_on, "rope with antiquant")
        return "antiquant"
    full = scene.full_kind or ""
    need(full != "per_block", "full quantisation per block")
    need(
        scene.q_dtype in ("INT8", "HIFLOAT8", "FLOAT8_E4M3FN", "FLOAT8_E5M2"),
        f"query, key and value of dtype {scene.q_dtype}",
    )
    need(full in ("per_tensor", "decode_mla") or scene.q_dtype == "FLOAT8_E4M3FN", f"{full} with dtype {scene.q_dtype}")
    need(full != "per_tensor" or not scene.rope_on, "rope with per-tensor full quantisation")
    return f"full_{full}"


def _key_axes(scene: Scene, B: int, D: int, V_D: int) -> int:
    """Sequence axis of key after checking every key and value shape against the layout."""
    layout = scene.layout
    assert layout is not None
    if scene.paged:
        return _cache_axes(scene, B, D, V_D)
    many = scene.storage == "tensor_list"
    need(len(scene.values) == len(scene.keys), "key and value lists differ in length")
    need(not many or (len(scene.keys) == B and not scene.packed), f"{len(scene.keys)} key tensors for {B} batches")
    factor = 8 if scene.int4_carrier else 1
    longest = 0
    for key, value in zip(scene.keys, scene.values):
        assert key is not None and value is not None
        found = axis_sizes(layout.inputs, key.shape)
        if found is None:
            raise CannotRun(f"key of rank {key.rank} does not fit {layout.name}")
        size = found["T"] if scene.packed else found["S"]
        for spec, head, name in ((key, D, "key"), (value, V_D, "value")):
            want = tensor_shape(layout.inputs, B=1 if many else B, S=size, T=size, N=scene.KV_N, D=head)
            have = (*spec.shape[:-1], spec.shape[-1] * factor)
            need(have == want, f"{name} has shape {have}, not {want}")
        longest = max(longest, size)
    return longest


def _cache_axes(scene: Scene, B: int, D: int, V_D: int) -> int:
    table = scene.tensor("blockTable")
    need(table is not None and table.rank == 2 and table.shape[0] >= B, "blockTable is not of shape (B, blocks)")
    need(len(scene.keys) == 1 and len(scene.values) == 1, "more than one key or value beside a block table")
    cache, blocks, size = scene.cache_layout, scene.cache_blocks, scene.cache_block_size
    need(
        cache is not None and size is not None and size == scene.block_size > 0,
        f"blockSize {scene.block_size} is not the cache's {size}",
    )
    factor = 8 if scene.int4_carrier else 1
    for name, head in (("key", D), ("value", V_D)):
        spec = scene.tensor(name)
        assert spec is not None
        check_cache(
            name,
            (*spec.shape[:-1], spec.shape[-1] * factor),
            cache or "",
            blocks or 0,
            scene.block_size,
            scene.KV_N,
            head,
        )
    return scene.table_span or 0


def check_cache(name: str, shape: tuple[int, ...], cache: str, blocks: int, size: int, heads: int, head: int) -> None:
    """CannotRun unless a paged tensor has the shape of its cache layout (last axis in elements)."""
    if cache == "NZ":
        need(
            len(shape) == 5 and shape[:2] == (blocks, heads) and shape[3] == size and shape[2] * shape[4] == head,
            f"{name} cache of shape {shape} is not NZ of {heads} heads of {head}",
        )
        return
    want = (blocks, size, heads * head) if cache == "BnBsH" else (blocks, heads, size, head)
    need(shape == want, f"{name} cache has shape {shape}, not {want}")


def _rope(scene: Scene, B: int, q_size: int) -> int:
    if not scene.rope_on:
        return 0
    layout, rope, keys = scene.layout, scene.rope_d, scene.tensor("keyRope")
    if rope is None or layout is None or keys is None:
        raise CannotRun("head size of queryRope cannot be derived")
    need(rope > 0, "queryRope has no columns")
    want = tensor_shape(layout.inputs, B=B, S=q_size, T=q_size, N=scene.Q_N, D=rope)
    need(scene.shape("queryRope") == want, f"queryRope has shape {scene.shape('queryRope')}, not {want}")
    for name in ("queryRope", "keyRope"):
        need(scene.dtype(name) in FLOAT_QUERY, f"{name} of dtype {scene.dtype(name)}")
    if scene.paged:
        check_cache(
            "keyRope", keys.shape, scene.cache_layout or "", scene.cache_blocks or 0, scene.block_size, scene.KV_N, rope
        )
        return rope
    # Beside a tensor list, keyRope is still one tensor of all batches (v5.rope.consistency.tensorlist_batch).
    size = scene.KV_T if scene.packed else scene.KV_S
    want = tensor_shape(layout.inputs, B=B, S=size or 0, T=size or 0, N=scene.KV_N, D=rope)
    need(keys.shape == want, f"keyRope has shape {keys.shape}, not {want}")
    return rope


def _prefix(scene: Scene) -> int:
    if not scene.prefix_on:
        return 0
    need(
        scene.storage == "contiguous" and not scene.packed and not scene.rope_on and not scene.left_padding_on,
        "shared prefix with packed, paged, listed, padded or rope data",
    )
    layout, axis = scene.layout, scene.prefix_s
    assert layout is not None
    factor = 8 if scene.int4_carrier else 1
    for name, head in (("keySharedPrefix", scene.Q_D), ("valueSharedPrefix", scene.V_D)):
        shape, source = scene.shape(name), scene.dtype("key")
        want = tensor_shape(layout.inputs, B=1, S=axis or 0, N=scene.KV_N, D=head or 0)
        need(shape and (*shape[:-1], shape[-1] * factor) == want, f"{name} has shape {shape}, not {want}")
        need(scene.dtype(name) == source, f"{name} is not of the dtype of key")
    need(0 <= scene.prefix_len <= (axis or 0), f"actualSharedPrefixLen {scene.prefix_len} is not within {axis}")
    return scene.prefix_len


def _check_output(scene: Scene, p: Problem, out: TensorSpec) -> None:
    want = tensor_shape(p.out_axes, B=p.B, S=p.q_size, T=p.q_size, N=p.Q_N, D=p.V_D)
    need(out.shape == want, f"attentionOut has shape {out.shape}, not {want}")
    need(out.dtype in (*FLOAT_QUERY, "INT8", "HIFLOAT8", "FLOAT8_E4M3FN"), f"attentionOut of dtype {out.dtype}")
    if p.lse_on:
        assert scene.layout is not None
        lse = scene.lse
        want = lse_shape(scene.layout, B=p.B, N=p.Q_N, S=p.q_size, T=p.q_size)
        need(
            lse is not None and lse.shape == want and lse.dtype == "FLOAT32",
            f"softmaxLse is not FLOAT32 of shape {want}",
        )


def _spans(scene: Scene, p: Problem, padding: Mapping[str, int]) -> list[Span]:
    q_lens = scene.q_lens
    if not p.packed and (p.legacy or (p.kind == "antiquant" and scene.single_token)):
        q_lens = (p.q_size,) * p.B
    kv_lens = scene.kv_lens
    if q_lens is None or kv_lens is None or len(q_lens) != p.B or len(kv_lens) < p.B:
        raise CannotRun("lengths cannot be derived: " + "; ".join(scene.why.values()))
    need(min(q_lens) >= 0 and min(kv_lens) >= 0, "a length is negative")
    pad_q = _padding(scene, "queryPaddingSize", padding) if scene.q_padding_on and not p.legacy else None
    pad_kv = _padding(scene, "kvPaddingSize", padding) if scene.kv_padding_on else None
    need(pad_kv is None or (p.storage == "contiguous" and not p.packed), "key padding needs contiguous keys")
    need(pad_q is None or not p.packed, "query padding with a packed layout")
    spans: list[Span] = []
    q_at = kv_at = 0
    for b in range(p.B):
        q_len, kv_len = q_lens[b], kv_lens[b]
        own = p.kv_size
        if p.storage == "tensor_list":
            own = (axis_sizes(p.q_axes, scene.keys[b].shape) or {})["S"]  # type: ignore[union-attr]
        span = Span(b, 1, 0, q_len, 0, kv_len)
        if p.packed:
            span.q_at, q_at = q_at, q_at + q_len
            need(q_at <= p.q_size, f"query lengths reach {q_at}, T is {p.q_size}")
            if p.storage != "paged":
                span.kv_at, kv_at = kv_at, kv_at + kv_len
                need(kv_at <= p.kv_size, f"key lengths reach {kv_at}, T is {p.kv_size}")
        else:
            need(q_len <= p.q_size, f"query length {q_len} is over {p.q_size}")
            if pad_q is not None:
                span.q_at = span.q_row = p.q_size - q_len - pad_q
        if p.storage == "paged" or not p.packed:
            need(kv_len <= own, f"key length {kv_len} is over {own}")
            if pad_kv is not None:
                span.kv_at = span.kv_col = p.kv_size - kv_len - pad_kv
        if span.q_at < 0 or span.kv_at < 0:
            # The batch counts as empty when its padding does not fit (spec/numerics.md 11).
            span = Span(b, 1, 0, 0, 0, 0)
        spans.append(span)
    return spans


def _padding(scene: Scene, name: str, padding: Mapping[str, int]) -> int:
    if name in padding:
        return max(0, padding[name])
    spec = scene.tensor(name)
    need(spec is not None and spec.numel == 1, f"{name} does not hold one number")
    assert spec is not None
    value = spec.values[0] if spec.values else 0
    need(isinstance(value, (int, float)) and abs(value) < MAX_SIZE, f"{name} is not a number")
    return max(0, int(value))


def _merged(spans: list[Span], p: Problem) -> list[Span]:
    """Join neighbours of equal lengths and positions, so that they are computed in one go."""
    if p.packed or p.storage == "tensor_list":
        return spans
    merged: list[Span] = []
    for span in spans:
        last = merged[-1] if merged else None
        if last is not None and (last.q_at, last.q_len, last.kv_at, last.kv_len) == (
            span.q_at,
            span.q_len,
            span.kv_at,
            span.kv_len,
        ):
            last.count += 1
        else:
            merged.append(span)
    return merged
