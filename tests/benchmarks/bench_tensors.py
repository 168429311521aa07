"""Making the tensors of a case beside computing it, in one run: python tests/benchmarks/bench_tensors.py

"attention" is three lines of numpy float64, "reference" the project's own reference. Ratios below 1 mean that the
tensors cost less. One thread: OMP_NUM_THREADS is set to 1.
"""

from __future__ import annotations

import os
import sys

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import timeit
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from fiafuzz.model.case import Attrs, Bernoulli, Case, Fill, Grid, Inputs, Normal, Outputs, TensorSpec, Uniform
from fiafuzz.model.codecs import decode
from fiafuzz.model.tensors import Tensors, materialize
from oracles.reference import reference


def attention(tensors: Tensors, dtype: str) -> np.ndarray:
    """softmax(Q K^T / sqrt(D)) V in float64, as plain as it gets."""
    query = decode(dtype, tensors["query"]).astype(np.float64)
    key, value = (decode(dtype, tensors.many(name)[0]).astype(np.float64) for name in ("key", "value"))
    scores = query @ key.swapaxes(-1, -2)
    scores *= query.shape[-1] ** -0.5
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    return scores @ value / scores.sum(axis=-1, keepdims=True)


def best(function: object, number: int) -> float:
    """Seconds per call, best of seven rounds."""
    return min(timeit.repeat(function, number=number, repeat=7)) / number  # type: ignore[arg-type]


def main() -> None:
    """Print one line per size, dtype and fill."""
    print(f"{'shape':<18}{'dtype':<15}{'fill':<9}{'tensors':>10}{'attention':>12}{'ratio':>7}{'reference':>12}{'ratio':>7}"
          f"{'ns/element':>12}")
    for shape, number in (((2, 8, 128, 64), 3), ((1, 2, 16, 16), 200)):
        for dtype in ("FLOAT16", "BFLOAT16"):
            fills: tuple[Fill | None, ...] = (None, Grid(), Uniform(), Normal())
            for fill in fills:
                spec = TensorSpec(shape, dtype, fill=fill)
                inputs = Inputs(query=spec, key=(spec,), value=(spec,))
                attrs = Attrs(numHeads=shape[1], inputLayout="BNSD", scaleValue=shape[3] ** -0.5)
                case = Case(inputs=inputs, attrs=attrs, outputs=Outputs(TensorSpec(shape, dtype)))
                made = best(lambda case=case: materialize(case), number)
                tensors = materialize(case)
                computed = best(lambda tensors=tensors, dtype=dtype: attention(tensors, dtype), number)
                judged = best(lambda case=case, tensors=tensors: reference(case, tensors), number)
                label = type(fill).__name__ if fill is not None else "default"
                print(f"{shape!s:<18}{dtype:<15}{label:<9}{made * 1e6:>7.0f} us"
                      f"{computed * 1e6:>9.0f} us{made / computed:>7.2f}"
                      f"{judged * 1e6:>9.0f} us{made / judged:>7.2f}{made / 3 / np.prod(shape) * 1e9:>12.2f}")
    mask = TensorSpec((2048, 2048), "BOOL")
    case = Case(inputs=Inputs(attenMask=mask), attrs=Attrs(numHeads=1))
    first = timeit.timeit(lambda: materialize(case), number=1)
    print(f"2048 x 2048 triangle: {first * 1e3:.1f} ms once, then {best(lambda: materialize(case), 100) * 1e6:.0f} us")
    spec = TensorSpec((1 << 26,), "FLOAT16")
    case = Case(inputs=Inputs(query=spec), attrs=Attrs(numHeads=1))
    seconds = timeit.timeit(lambda: materialize(case), number=1)
    print(f"one tensor of 2**26 FLOAT16: {(1 << 26) / seconds / 1e6:.0f} M elements/s")
    masks = TensorSpec((64, 1, 1024, 1024), "BOOL", fill=Bernoulli(0.3))
    case = Case(inputs=Inputs(attenMask=masks), attrs=Attrs(numHeads=1))
    seconds = timeit.timeit(lambda: materialize(case), number=1)
    print(f"one random mask of 2**26 BOOL: {(1 << 26) / seconds / 1e6:.0f} M elements/s")


if __name__ == "__main__":
    main()
