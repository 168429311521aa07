"""Position bias: the additive tensor of pseType 0 and the slopes of pseType 2 and 3 (spec/numerics.md 7).

Order is scale, then bias, then mask. A slope is a penalty: -slope[n] * distance, or -slope[n] * sqrt(distance),
with the distance |j + kvStart - i - qStart|.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

import numpy as np

from fiafuzz.model.codecs import decode
from fiafuzz.model.scene import Scene

from .expected import F64, Bool, ReferenceError, Stored, Tensors


@dataclass(frozen=True)
class Bias:
    """The bias of one case: a stored tensor (1 or B, Q_N, rows, columns) with its dtype, or slopes (Q_N)."""

    tensor: Optional[Stored] = None
    dtype: str = ""
    slopes: Optional[F64] = None
    root: bool = False
    shift: int = 0


@dataclass(frozen=True)
class RowBias:
    """The bias of one run of batches, to be read in blocks. ``heads`` are query heads."""

    bias: Bias
    first: int
    count: int
    q_begin: int
    k_begin: int
    heads: slice

    def block(self, batch: slice, head: slice, begin: int, end: int, first: int, last: int) -> F64:
        """Bias of rows [begin, end), columns [first, last): (1 or batches, heads, 1 or rows, columns), float64.

        ``batch`` counts inside the run, ``head`` inside the run's query heads.
        """
        chosen = slice(self.heads.start + head.start, self.heads.start + head.stop)
        bias = self.bias
        if bias.slopes is not None:
            # kvStart - qStart is cast to float before use; both stay below 2**20, so float64 holds it exactly.
            distance = np.abs(np.arange(first, last) - np.arange(begin, end)[:, None] + bias.shift).astype(np.float64)
            if bias.root:
                np.sqrt(distance, out=distance)
            return np.asarray(distance * -bias.slopes[chosen, None, None])[None]
        assert bias.tensor is not None
        tensor = bias.tensor
        batches = slice(0, 1) if tensor.shape[0] == 1 else slice(self.first + batch.start, self.first + batch.stop)
        rows = slice(0, 1) if tensor.shape[2] == 1 else slice(self.q_begin + begin, self.q_begin + end)
        part = tensor[batches, chosen, rows, self.k_begin + first : self.k_begin + last]
        if part.shape[2] not in (1, end - begin) or part.shape[3] != last - first:
            raise ReferenceError(f"pseShift of shape {tensor.shape} is smaller than the scores")
        return np.asarray(decode(bias.dtype, part), dtype=np.float64)

    def hides(self, dead: Optional[Bool]) -> bool:
        """Whether -inf in the bias may be what leaves rows without a column."""
        tensor = self.bias.tensor
        if dead is None or tensor is None:
            return False
        return bool(np.isinf(np.asarray(decode(self.bias.dtype, tensor))).any())


def bias_of(scene: Scene, tensors: Tensors, legacy: bool) -> Optional[Bias]:
    """The bias of a case, None without one. ReferenceError when it does not fit the heads.

    The old single-token path of A2 and A3 reads no pseType (v5.pse.cross.a2a3_ignored_outside_fia).
    """
    stored = tensors.get("pseShift")
    kind = scene.case.attrs.pseType
    if scene.inputs.pseShift is None or scene.inputs.pseShift.empty:
        if kind in (2, 3) and not legacy:
            raise ReferenceError(f"pseType {kind} without pseShift")
        return None
    if stored is None or isinstance(stored, list):
        raise ReferenceError("pseShift has no tensor")
    dtype = scene.inputs.pseShift.dtype
    if kind in (2, 3) and not legacy:
        if stored.shape != (scene.Q_N,):
            raise ReferenceError(f"slopes of shape {stored.shape} for {scene.Q_N} heads")
        starts = [lens[0] if lens else 0 for lens in (scene.inputs.qStartIdx, scene.inputs.kvStartIdx)]
        return Bias(slopes=np.asarray(decode(dtype, stored), dtype=np.float64), root=kind == 3, shift=starts[1] - starts[0])
    if kind not in (0, 2, 3):
        raise ReferenceError(f"pseType {kind} is not computed")
    if stored.ndim != 4 or stored.shape[0] not in (1, scene.B) or stored.shape[1] != scene.Q_N:
        raise ReferenceError(f"pseShift of shape {stored.shape} does not fit {scene.B} batches and {scene.Q_N} heads")
    return Bias(tensor=stored, dtype=dtype)
