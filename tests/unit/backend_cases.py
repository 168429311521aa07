"""Short ways to write calls for the backend tests. No rule is asked: these are shapes that fit together."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np

from fiafuzz.model.case import Attrs, Bernoulli, Case, Inputs, Outputs, TensorSpec, Triu
from fiafuzz.model.codecs import storage_dtype
from fiafuzz.model.layouts import LAYOUTS, lse_shape, tensor_shape
from fiafuzz.model.scene import Scene

CAUSAL = TensorSpec((2048, 2048), "BOOL", fill=Triu(1))


def spec(shape: Any, dtype: str = "FLOAT32", values: Any = None, fill: Any = None) -> TensorSpec:
    """A tensor."""
    return TensorSpec(tuple(shape), dtype, values=None if values is None else tuple(values), fill=fill)


def mask(*shape: int, dtype: str = "BOOL", p: float = 0.4) -> TensorSpec:
    """A random mask."""
    return TensorSpec(shape, dtype, fill=Bernoulli(p))


def cumulative(lens: Any) -> tuple[int, ...]:
    """Running sums."""
    return tuple(int(n) for n in np.cumsum(lens))


def call(
    layout: str = "BNSD",
    *,
    B: int = 2,
    N: int = 4,
    KN: int = 2,
    Q: int = 5,
    K: int = 24,
    D: int = 64,
    DV: Optional[int] = None,
    dtype: str = "FLOAT16",
    kv: Optional[str] = None,
    out: Optional[str] = None,
    q_lens: Any = None,
    kv_lens: Any = None,
    lse: bool = False,
    cache: Optional[str] = None,
    block: int = 16,
    table: Any = None,
    blocks: Optional[int] = None,
    lists: Any = None,
    rope: int = 0,
    rope_dtype: Optional[str] = None,
    scale: float = 0.125,
    prefix: int = 0,
    seed: int = 3,
    product: str = "950",
    **more: Any,
) -> Case:
    """A call. ``q_lens``/``kv_lens`` are per batch in every layout (packed lists are summed up here); ``lists`` are the
    lengths of a tensor list; ``more`` are further parameters by their C names."""
    L = LAYOUTS[layout]
    kv, out, DV = kv or dtype, out or ("FLOAT16" if dtype not in ("FLOAT16", "BFLOAT16") else dtype), DV or D
    packed = L.packed
    q_lens = tuple(q_lens) if q_lens is not None else ((Q,) * B if packed else None)
    kv_lens = tuple(kv_lens) if kv_lens is not None else ((K,) * B if packed or cache else None)
    T = sum(q_lens) if packed else 0
    KT = sum(kv_lens) if packed and not cache else 0
    sizes = {"B": B, "S": Q, "N": N, "T": T}
    query = TensorSpec(tensor_shape(L.inputs, D=D, **sizes), dtype)
    carrier = 8 if kv == "INT32" else 1
    inputs: dict[str, Any] = {}
    nz = 32 if storage_dtype(kv).itemsize == 1 and dtype not in ("FLOAT16", "BFLOAT16") else 16

    def kv_spec(head: int, d0: int, kind: str = kv) -> tuple[TensorSpec, ...]:
        if cache:
            width = max(1, -(-max(kv_lens) // block))
            count = blocks or B * width + 1
            shape = {
                "BnBsH": (count, block, KN * head // carrier),
                "BnNBsD": (count, KN, block, head // carrier),
                "NZ": (count, KN, head // d0, block, d0 // carrier),
            }[cache]
            # Blocks from the back, so that the table is not the identity.
            rows = table if table is not None else [count - 1 - i for i in range(B * width)]
            inputs["blockTable"] = spec((B, len(rows) // B), "INT32", rows)
            return (TensorSpec(shape, kind),)
        if lists:
            return tuple(TensorSpec(tensor_shape(L.inputs, B=1, S=n, N=KN, D=head // carrier), kind) for n in lists)
        return (TensorSpec(tensor_shape(L.inputs, B=B, S=K, N=KN, D=head // carrier, T=KT), kind),)

    inputs |= {"query": query, "key": kv_spec(D, nz), "value": kv_spec(DV, nz)}
    if rope:
        inputs["queryRope"] = TensorSpec(tensor_shape(L.inputs, D=rope, **sizes), rope_dtype or dtype)
        inputs["keyRope"] = kv_spec(rope, 16, rope_dtype or dtype)[0]
    if prefix:
        inputs["keySharedPrefix"] = TensorSpec(tensor_shape(L.inputs, B=1, S=prefix, N=KN, D=D // carrier), kv)
        inputs["valueSharedPrefix"] = TensorSpec(tensor_shape(L.inputs, B=1, S=prefix, N=KN, D=DV // carrier), kv)
    if q_lens is not None:
        inputs["actualSeqLengths"] = cumulative(q_lens) if packed else q_lens
    if kv_lens is not None:
        inputs["actualSeqLengthsKv"] = cumulative(kv_lens) if packed and not cache else kv_lens
    names = set(Inputs.__struct_fields__)
    inputs |= {k: v for k, v in more.items() if k in names}
    attrs = {
        "numHeads": N,
        "numKeyValueHeads": KN,
        "inputLayout": layout,
        "scaleValue": scale,
        "softmaxLseFlag": lse,
        "innerPrecise": 0,
    }
    if cache:
        attrs["blockSize"] = block
    attrs |= {k: v for k, v in more.items() if k not in names}
    result = TensorSpec(tensor_shape(L.output, D=DV, **sizes), out)
    extra = TensorSpec(lse_shape(L, B=B, N=N, S=Q, T=T), "FLOAT32") if lse else None
    return Case(
        product=product, seed=seed, inputs=Inputs(**inputs), attrs=Attrs(**attrs), outputs=Outputs(result, extra)
    )


def buffers(case: Case, fill: int = 0x5A) -> dict[str, np.ndarray[Any, Any]]:
    """Output buffers that hold a recognisable pattern."""
    found = {}
    for name in ("attentionOut", "softmaxLse"):
        tensor = getattr(case.outputs, name)
        if tensor is not None and (name == "attentionOut" or case.attrs.softmaxLseFlag):
            kind = storage_dtype(tensor.dtype)
            found[name] = (
                np.full(int(np.prod(tensor.shape)) * kind.itemsize, fill, np.uint8).view(kind).reshape(tensor.shape)
            )
    return found


def compute(backend: Any, case: Case, tensors: Any) -> Any:
    """Outcome of the kernel of a cpu backend without its front."""
    return backend.compute(Scene(case), tensors, buffers(case))
