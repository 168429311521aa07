"""Plain valid calls, written by hand, for the tests of the rules: every layout, storage and a few features."""

from __future__ import annotations

from typing import Any

from fiafuzz.model.case import Attrs, Case, Inputs, Outputs, TensorSpec
from fiafuzz.model.layouts import LAYOUTS, cache_shape, lse_shape, tensor_shape

BATCHED = ("BSH", "BSND", "BNSD")
PACKED = ("TND", "NTD", "NTD_TND")
MASK = TensorSpec((2048, 2048), "BOOL")


def call(layout: str = "BNSD", *, B: int = 2, N: int = 4, KV_N: int = 2, S: int = 16, KV_S: int = 32, D: int = 64,
         V_D: int = 0, dtype: str = "FLOAT16", kv_dtype: str = "", out_dtype: str = "", storage: str = "contiguous",
         block: int = 16, product: str = "950", api: str = "v5", rope: bool = False, lse: bool = False,
         **more: Any) -> Case:
    """A valid call with these sizes; ``more`` are further parameters by their C names.

    Packed layouts have B batches of S and KV_S tokens. Storage is contiguous, tensor_list or a cache layout.
    """
    V_D, kv_dtype, out_dtype = V_D or D, kv_dtype or dtype, out_dtype or dtype
    record = LAYOUTS[layout]
    tokens, key_tokens = B * S, B * KV_S
    sizes = {"B": B, "S": S, "N": N, "T": tokens}
    key_sizes = {"B": B, "S": KV_S, "N": KV_N, "T": key_tokens}
    inputs: dict[str, Any] = {"query": TensorSpec(tensor_shape(record.inputs, D=D, **sizes), dtype)}
    if storage in ("contiguous", "tensor_list"):
        items = B if storage == "tensor_list" else 1
        for name, d in (("key", D), ("value", V_D)):
            shape = tensor_shape(record.inputs, D=d, **{**key_sizes, "B": 1 if items > 1 else B})
            inputs[name] = (TensorSpec(shape, kv_dtype),) * items
    else:
        blocks = -(-KV_S // block)
        row = 16 if kv_dtype in ("FLOAT16", "BFLOAT16") else 32
        for name, d in (("key", D), ("value", V_D)):
            shape = cache_shape(storage, blocks=B * blocks, block_size=block, N=KV_N, D=d, D0=row)
            inputs[name] = (TensorSpec(shape, kv_dtype),)
        inputs["blockTable"] = TensorSpec((B, blocks), "INT32", values=tuple(range(B * blocks)))
        inputs["actualSeqLengthsKv"] = (KV_S,) * B
    if record.packed:
        inputs["actualSeqLengths"] = tuple(S * (i + 1) for i in range(B))
        inputs.setdefault("actualSeqLengthsKv", tuple(KV_S * (i + 1) for i in range(B)))
    if rope:
        inputs["queryRope"] = TensorSpec(tensor_shape(record.inputs, D=64, **sizes), dtype)
        if storage == "contiguous":
            key_rope = tensor_shape(record.inputs, D=64, **key_sizes)
        else:
            key_rope = cache_shape(storage, blocks=B * blocks, block_size=block, N=KV_N, D=64)
        inputs["keyRope"] = TensorSpec(key_rope, dtype)
    out = TensorSpec(tensor_shape(record.output, D=V_D, **sizes), out_dtype)
    attrs: dict[str, Any] = {"numHeads": N, "numKeyValueHeads": KV_N, "inputLayout": layout, "scaleValue": 0.125,
                             "blockSize": 0 if storage in ("contiguous", "tensor_list") else block,
                             "innerPrecise": 0, "softmaxLseFlag": lse}
    lse_spec = TensorSpec(lse_shape(record, B=B, N=N, S=S, T=tokens), "FLOAT32") if lse else None
    case = Case(api=api, product=product, inputs=Inputs(**inputs), attrs=Attrs(**attrs),  # type: ignore[arg-type]
                outputs=Outputs(out, lse_spec))
    return case.replace(**more) if more else case


def mla(layout: str = "BNSD", **more: Any) -> Case:
    """A Decode MLA call: head size 512, rope 64, one key head."""
    return call(layout, **{"N": 8, "KV_N": 1, "S": 2, "D": 512, "rope": True, **more})


def antiquant(layout: str = "BNSD", *, S: int = 1, dtype: str = "FLOAT16", kv_dtype: str = "INT8", **more: Any) -> Case:
    """Quantised key and value, one scale for each channel."""
    sizes = {"KV_N": 2, "D": 64, **{k: v for k, v in more.items() if k in ("KV_N", "D")}}
    scale = TensorSpec((sizes["KV_N"], sizes["D"]), dtype)
    return call(layout, S=S, dtype=dtype, kv_dtype=kv_dtype, keyAntiquantScale=scale, valueAntiquantScale=scale, **more)


def full_mla(layout: str = "BNSD", *, dtype: str = "FLOAT8_E4M3FN", B: int = 2, N: int = 8, S: int = 1,
             **more: Any) -> Case:
    """Decode MLA with full quantisation (contiguous or, for INT8, an NZ cache)."""
    case = call(layout, B=B, N=N, KV_N=1, S=S, D=512, dtype=dtype, out_dtype="BFLOAT16", rope=True,
                storage="NZ" if dtype == "INT8" else "contiguous", block=128, KV_S=128)
    shape = case.inputs.query.shape[:-1] if "BSH" not in layout else (B, S, N)  # type: ignore[union-attr]
    found: dict[str, Any] = {n: TensorSpec(getattr(case.inputs, n).shape, "BFLOAT16") for n in ("queryRope", "keyRope")}
    one = TensorSpec((1,), "FLOAT32")
    found.update(dequantScaleQuery=TensorSpec(shape, "FLOAT32"), keyAntiquantScale=one, valueAntiquantScale=one,
                 queryQuantMode=3, **more)
    return case.replace(**found)


def per_tensor(**more: Any) -> Case:
    """INT8 query, key and value with one scale each."""
    scale = TensorSpec((1,), "FLOAT32")
    return call(dtype="INT8", out_dtype="BFLOAT16", deqScale1=scale, quantScale1=scale, deqScale2=scale, **more)


def old(case: Case, product: str = "a2", api: str = "v3") -> Case:
    """The call on another product through another API."""
    return case.replace(product=product, api=api)
