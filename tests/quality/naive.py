"""Attention written out row by row in float64: slow, short, and sharing no line with any kernel or with the reference.

Takes a case and its tensors and reads them position by position, as spec/numerics.md 2-13 and 17 have it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fiafuzz.model.codecs import decode

OPEN = 2147483647
AXES = {"BSH": "BSH", "BSND": "BSND", "BNSD": "BNSD", "TND": "TND", "NTD": "NTD", "NBSD": "NBSD"}


class Naive:
    """One call."""

    def __init__(self, case: Any, tensors: Any) -> None:
        self.case, self.i, self.a = case, case.inputs, case.attrs
        self.t = tensors
        self.inp, _, out = self.a.inputLayout.partition("_")
        self.outp = out or self.inp
        self.N, self.KN = self.a.numHeads, self.a.numKeyValueHeads or self.a.numHeads
        self.packed = "T" in self.inp
        shape = dict(zip(self.inp, self.i.query.shape))
        self.Q = shape.get("S", 0)
        self.B = len(self.i.actualSeqLengths) if self.packed else shape["B"]
        self.q_len, self.q_at = self.lengths(self.i.actualSeqLengths, self.Q, self.packed)
        self.paged = self.i.blockTable is not None
        self.K = dict(zip(self.inp, self.i.key[0].shape)).get("S", 0)
        self.k_len, self.k_at = self.lengths(self.i.actualSeqLengthsKv, self.K, self.packed and not self.paged)
        if len(self.i.key) > 1 and self.i.actualSeqLengthsKv is None:
            self.k_len = [dict(zip(self.inp, k.shape))["S"] for k in self.i.key]
        self.prefix = 0
        if self.i.keySharedPrefix is not None:
            given = self.i.actualSharedPrefixLen
            self.prefix = given[0] if given else dict(zip(self.inp, self.i.keySharedPrefix.shape))["S"]
        self.q_row, self.k_col = [0] * self.B, [0] * self.B
        for name, size, lens, at, row in (
            ("queryPaddingSize", self.Q, self.q_len, self.q_at, self.q_row),
            ("kvPaddingSize", self.K, self.k_len, self.k_at, self.k_col),
        ):
            if getattr(self.i, name) is not None:
                for b in range(self.B):
                    at[b] = row[b] = size - lens[b] - max(0, int(tensors[name].reshape(-1)[0]))

    def lengths(self, given: Any, size: int, cumulative: bool) -> tuple[list[int], list[int]]:
        if given is None:
            return [size] * self.B, [0] * self.B
        if cumulative:
            starts = [0, *given][: self.B]
            return [e - s for s, e in zip(starts, given)], starts
        return [given[0] if len(given) == 1 else given[b] for b in range(self.B)], [0] * self.B

    def numbers(self, name: str, index: int = 0) -> np.ndarray[Any, Any]:
        spec, array = getattr(self.i, name), self.t[name]
        if isinstance(spec, tuple):
            spec, array = spec[index], array[index]
        return np.asarray(decode(spec.dtype, array), dtype=np.float64)

    def vector(self, x: Any, axes: str, heads: int, b: int, n: int, s: int, t: int) -> Any:
        """Head ``n`` at sequence position ``s`` of batch ``b`` (position ``t`` of a packed axis)."""
        place = {"B": b, "N": n, "S": s, "T": t}
        row = x[tuple(place[a] for a in axes if a not in "HD")]
        if "H" in axes:
            width = row.shape[-1] // heads
            return row[n * width : (n + 1) * width]
        return row

    def cached(self, x: Any, b: int, h: int, j: int) -> Any:
        size = self.a.blockSize
        block, row = int(self.t["blockTable"][b, j // size]), j % size
        if x.ndim == 3:
            width = x.shape[2] // self.KN
            return x[block, row, h * width : (h + 1) * width]
        return x[block, h, row] if x.ndim == 4 else x[block, h, :, row].reshape(-1)

    def column(self, name: str, b: int, h: int, j: int) -> Any:
        """Key, value or key rope of column ``j`` (prefix first)."""
        if j < self.prefix:
            which = "keySharedPrefix" if name == "key" else "valueSharedPrefix"
            return self.vector(self.numbers(which), self.inp, self.KN, 0, h, j, 0)
        j -= self.prefix
        many = name != "keyRope" and len(self.i.key) > 1
        x = self.store[name][b if many else 0]
        if self.paged:
            return self.cached(x, b, h, j)
        return self.vector(x, self.inp, self.KN, 0 if many else b, h, self.k_at[b] + j, self.k_at[b] + j)

    def seen(self, b: int, i: int, j: int) -> bool:
        s1, s2 = self.q_len[b], self.prefix + self.k_len[b]
        pre, after, mode = self.a.preTokens, self.a.nextTokens, self.a.sparseMode
        if mode == 2:
            return j <= i
        if mode == 3:
            return j <= i + s2 - s1
        if mode == 4:
            return i + s2 - s1 - pre <= j <= i + s2 - s1 + after
        if self.i.attenMask is None:
            return True
        x = self.t["attenMask"]
        row, col = self.q_row[b] + i, self.k_col[b] + j
        if x.ndim == 2:
            x = x[b : b + 1] if x.shape[0] == self.B and self.Q == 1 else x
        else:
            x = x.reshape(x.shape[0], x.shape[-2], x.shape[-1])
            x = x[b if x.shape[0] > 1 else 0]
        if x[row if x.shape[0] > 1 else 0, col]:
            return False
        padded = self.i.queryPaddingSize is not None or self.i.kvPaddingSize is not None
        return mode == 1 or padded or i - pre <= j <= i + after

    def extra(self, b: int, n: int, i: int, j: int) -> float:
        if self.i.pseShift is None:
            return 0.0
        x = self.pse
        if self.a.pseType == 0:
            return float(
                x[b if x.shape[0] > 1 else 0, n, self.q_row[b] + i if x.shape[2] > 1 else 0, self.k_col[b] + j]
            )
        away = abs(j + (self.i.kvStartIdx or (0,))[0] - i - (self.i.qStartIdx or (0,))[0])
        return -float(x[n]) * (away if self.a.pseType == 2 else math.sqrt(away))

    def run(self) -> tuple[dict[tuple[int, int, int], Any], dict[tuple[int, int, int], float]]:
        """Output rows and lse by (batch, head, row in the padded or packed axis); rows without keys are None, +inf."""
        self.store = {
            "key": [self.numbers("key", k) for k in range(len(self.i.key))],
            "value": [self.numbers("value", k) for k in range(len(self.i.value))],
        }
        rope = self.i.queryRope is not None
        if rope:
            self.store["keyRope"] = [self.numbers("keyRope")]
            q_rope = self.numbers("queryRope")
        self.pse = self.numbers("pseShift") if self.i.pseShift is not None else None
        sink = self.numbers("learnableSink") if self.i.learnableSink is not None else None
        query = self.numbers("query")
        decode_mla = rope and query.shape[-1] // (self.N if self.inp == "BSH" else 1) == 512
        out: dict[tuple[int, int, int], Any] = {}
        lse: dict[tuple[int, int, int], float] = {}
        for b in range(self.B):
            total = self.prefix + self.k_len[b]
            for n in range(self.N):
                h = n // (self.N // self.KN)
                keys = [self.column("key", b, h, j) for j in range(total)]
                values = keys if decode_mla else [self.column("value", b, h, j) for j in range(total)]
                ropes = [self.column("keyRope", b, h, j) for j in range(total)] if rope else []
                for i in range(self.q_len[b]):
                    at = self.q_at[b] + i
                    q = self.vector(query, self.inp, self.N, b, n, at, at)
                    shown = [j for j in range(total) if self.seen(b, i, j)]
                    if not shown:
                        out[b, n, at], lse[b, n, at] = None, math.inf
                        continue
                    scores = []
                    for j in shown:
                        s = float(q @ keys[j])
                        if rope:
                            s += float(self.vector(q_rope, self.inp, self.N, b, n, at, at) @ ropes[j])
                        scores.append(s * self.a.scaleValue + self.extra(b, n, i, j))
                    top = max(scores)
                    weights = [math.exp(s - top) for s in scores]
                    norm = math.fsum(weights) + (math.exp(sink[n] - top) if sink is not None else 0.0)
                    out[b, n, at] = sum(w * values[j] for w, j in zip(weights, shown)) / norm
                    lse[b, n, at] = top + math.log(norm)
        return out, lse

    def place(self, x: Any, b: int, n: int, at: int) -> Any:
        """The output row of (batch, head, padded or packed position)."""
        return self.vector(x, self.outp, self.N, b, n, at, at)
