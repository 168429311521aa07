"""Calls with given numbers for the reference tests, and attention spelled out element by element.

Arrays are in plain order: query (B, Q_N, Q_S, D), key and value (B, KV_N, KV_S, D), for packed layouts (Q_N, T, D).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any, Optional

import numpy as np

from fiafuzz.model.case import Case, case_from_dict
from fiafuzz.model.codecs import encode
from fiafuzz.model.layouts import LAYOUTS

LN2 = math.log(2)
"""As scaleValue it turns a whole score n into a weight of 2**n (to the precision of float32)."""

Keep = Callable[[int, int, int, int], bool]
Add = Callable[[int, int, int, int], float]


def placed(array: np.ndarray, axes: str) -> np.ndarray:
    """A tensor in plain order under the axes of a layout."""
    if axes == "BSH":
        b, n, s, d = array.shape
        return np.ascontiguousarray(array.transpose(0, 2, 1, 3)).reshape(b, s, n * d)
    order = {"BNSD": (0, 1, 2, 3), "BSND": (0, 2, 1, 3), "NBSD": (1, 0, 2, 3), "NTD": (0, 1, 2), "TND": (1, 0, 2)}[axes]
    return np.ascontiguousarray(array.transpose(order))


def plain_order(array: np.ndarray, axes: str, heads: int) -> np.ndarray:
    """An output in plain order."""
    if axes == "BSH":
        b, s, h = array.shape
        return array.reshape(b, s, heads, h // heads).transpose(0, 2, 1, 3)
    order = {"BNSD": (0, 1, 2, 3), "BSND": (0, 2, 1, 3), "NBSD": (1, 0, 2, 3), "NTD": (0, 1, 2), "TND": (1, 0, 2)}[axes]
    return array.transpose(order)


def spec(array: np.ndarray, dtype: str, shape: Any = None) -> dict[str, Any]:
    """The JSON of a tensor."""
    return {"shape": list(array.shape if shape is None else shape), "dtype": dtype}


def call(
    layout: str,
    q: np.ndarray,
    k: Any,
    v: Any,
    *,
    dtype: str = "FLOAT16",
    kv: Optional[str] = None,
    out: Optional[str] = None,
    lse: bool = True,
    scale: float = 1.0,
    product: str = "950",
    api: str = "v5",
    tensors: Any = None,
    dtypes: Any = None,
    lists: Any = None,
    kv_n: Optional[int] = None,
    stored_kv: bool = False,
    out_d: Optional[int] = None,
    **attrs: Any,
) -> tuple[Case, dict[str, Any]]:
    """A case and its tensors.

    ``k`` and ``v`` are arrays in plain order, lists of them (tensor lists) or, with ``stored_kv``, stored arrays as
    they are. ``tensors``: further inputs as numbers, encoded by ``dtypes`` (FLOAT16 when absent); arrays whose
    numpy dtype is not float64 are taken as stored. ``lists``: the integer lists.
    """
    axes = LAYOUTS[layout]
    packed = "T" in axes.inputs
    heads = q.shape[0] if packed else q.shape[1]
    found: dict[str, Any] = {"query": encode(dtype, placed(q, axes.inputs))}
    kv = kv or dtype
    for name, given in (("key", k), ("value", v)):
        items = given if isinstance(given, list) else [given]
        found[name] = [a if stored_kv else encode(kv, placed(a, axes.inputs)) for a in items]
    first = k[0] if isinstance(k, list) else k
    if kv_n is None:
        kv_n = first.shape[0] if packed else first.shape[1]
    kinds = {"query": dtype, **(dtypes or {})}
    for name, numbers in (tensors or {}).items():
        stored = numbers.dtype != np.float64
        kinds.setdefault(
            name, {"bool": "BOOL", "int8": "INT8", "uint8": "UINT8", "int32": "INT32", "int64": "INT64"}.get(str(numbers.dtype), "FLOAT16")
        )
        found[name] = numbers if stored else encode(kinds[name], numbers)
    inputs: dict[str, Any] = {"query": spec(found["query"], dtype), **(lists or {})}
    for name in ("key", "value"):
        inputs[name] = [spec(a, kv) for a in found[name]]
    for name in tensors or {}:
        inputs[name] = spec(found[name], kinds[name])
    width = out_d or (v[0] if isinstance(v, list) else v).shape[-1]
    rows = q.shape[1] if packed else q.shape[2]
    shape = (heads, rows, width) if packed else (q.shape[0], heads, rows, width)
    result = placed(np.zeros(shape), axes.output).shape
    lse_shape = (rows, heads, 1) if packed else (q.shape[0], heads, rows, 1)
    case = case_from_dict(
        {
            "fiafuzz": 1,
            "api": api,
            "product": product,
            "inputs": inputs,
            "attrs": {
                "numHeads": heads,
                "numKeyValueHeads": kv_n,
                "inputLayout": layout,
                "scaleValue": scale,
                "softmaxLseFlag": lse,
                "innerPrecise": 0,
                **attrs,
            },
            "outputs": {
                "attentionOut": {"shape": list(result), "dtype": out or dtype},
                "softmaxLse": {"shape": list(lse_shape), "dtype": "FLOAT32"} if lse else None,
            },
        }
    )
    return case, found


def whole(rng: np.random.Generator, *shape: int, low: int = -3, high: int = 3) -> np.ndarray:
    """Whole numbers as float64."""
    return rng.integers(low, high + 1, shape).astype(float)


def exact_row(scores: list[int], values: list[list[Any]]) -> tuple[list[Fraction], float]:
    """Output and lse of one row whose weights are 2**score, by rational arithmetic; 0 and inf for no column."""
    if not scores:
        return [Fraction(0)] * 0, math.inf
    weights = [Fraction(2) ** s for s in scores]
    total = sum(weights, Fraction(0))
    width = len(values[0])
    out = [sum((w * Fraction(x[d]) for w, x in zip(weights, values)), Fraction(0)) / total for d in range(width)]
    return out, math.log(total)


def attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    scale: float,
    keep: Optional[Keep] = None,
    add: Optional[Add] = None,
    sink: Any = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Attention element by element, (B, N, S, D) each. ``keep(b, n, i, j)`` and ``add(b, n, i, j)`` by query head.

    Rows without a column give 0 and inf.
    """
    B, N, S, _ = q.shape
    group = N // k.shape[1]
    out = np.zeros((B, N, S, v.shape[3]))
    lse = np.full((B, N, S), np.inf)
    for b in range(B):
        for n in range(N):
            for i in range(S):
                columns = [j for j in range(k.shape[2]) if keep is None or keep(b, n, i, j)]
                if not columns:
                    continue
                h = n // group
                s = [scale * math.fsum(q[b, n, i] * k[b, h, j]) + (add(b, n, i, j) if add else 0.0) for j in columns]
                top = max(s)
                if sink is not None:
                    top = max(top, float(sink[n]))
                p = [math.exp(x - top) for x in s]
                total = math.fsum(p) + (math.exp(float(sink[n]) - top) if sink is not None else 0.0)
                for d in range(v.shape[3]):
                    out[b, n, i, d] = math.fsum(w * v[b, h, j, d] for w, j in zip(p, columns)) / total
                lse[b, n, i] = top + math.log(total)
    return out, lse


def same(got: np.ndarray, want: np.ndarray, tolerance: float = 2e-6) -> bool:
    """Equal up to ``tolerance``, infinities in the same places."""
    return got.shape == want.shape and bool(np.allclose(got, want, rtol=tolerance, atol=tolerance))
