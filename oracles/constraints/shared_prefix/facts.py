"""What the prefix rules ask for besides the scene, and prefixes to add to a call."""

from __future__ import annotations

from typing import Optional

from fiafuzz.model.case import TensorSpec
from fiafuzz.model.layouts import tensor_shape
from fiafuzz.model.scene import Scene

from ..rule import ALL_950, DOC_A2A3_V5, SRC_A2A3, Change, Words

GROUP = "shared_prefix"
V5 = ALL_950 | DOC_A2A3_V5 | SRC_A2A3
NAMES = ("keySharedPrefix", "valueSharedPrefix")
LAYOUTS = ("BSH", "BSND", "BNSD", "BNSD_BSND")
BANNED = ("BSH_BNSD", "BSND_BNSD", "TND", "NTD", "NTD_TND", "TND_NTD")
NO_WIDTHS: Words = {"pse": "none", "mask_shape": ("none", "2048/2", "2048/3", "2048/4")}
PLAIN: Words = {"storage": "contiguous", "left_padding": "none", "sink": "off", "prefix": "none",
                "post_quant": "none"}
"""Factor words of calls that a prefix can be added to."""


def prefix_dtype(s: Scene) -> Optional[str]:
    """Stored dtype of keySharedPrefix with a packed INT4 pair counted as INT4, as key and value are."""
    return "INT4" if _carrier(s) else s.dtype("keySharedPrefix")


def value_prefix_dtype(s: Scene) -> Optional[str]:
    """Stored dtype of valueSharedPrefix with a packed INT4 pair counted as INT4."""
    return "INT4" if _carrier(s) else s.dtype("valueSharedPrefix")


def _carrier(s: Scene) -> bool:
    return s.dtype("keySharedPrefix") == "INT32" and s.dtype("valueSharedPrefix") == "INT32"


def prefix_shape(s: Scene, name: str) -> tuple[int, ...]:
    """Shape of a prefix with a packed INT4 pair counted as eight elements a word; () when it is null."""
    shape = s.shape(name) or ()
    return (*shape[:-1], shape[-1] * 8) if shape and _carrier(s) else shape


def prefix_axis(s: Scene, name: str, letter: str) -> Optional[int]:
    """Size of an axis of a prefix under the layout, None when it has none of this letter or another rank."""
    shape = prefix_shape(s, name)
    if s.layout is None or len(shape) != len(s.layout.inputs) or letter not in s.layout.inputs:
        return None
    return shape[s.layout.inputs.index(letter)]


def prefix_pair(s: Scene, columns: int = 16) -> Optional[dict[str, object]]:
    """A key and a value prefix that fit the call, as its layout stores them."""
    key, value = s.tensor("key"), s.tensor("value")
    if s.layout is None or key is None or value is None or s.K_D is None or s.V_D is None or s.KV_N <= 0:
        return None
    packed = 8 if s.int4_carrier else 1
    values: dict[str, object] = {}
    for name, spec, d in ((NAMES[0], key, s.K_D), (NAMES[1], value, s.V_D)):
        shape = tensor_shape(s.layout.inputs, B=1, S=columns, N=s.KV_N, D=d, T=columns)
        values[name] = TensorSpec((*shape[:-1], shape[-1] // packed), spec.dtype)
    return values


def widened(s: Scene, columns: int) -> dict[str, object]:
    """Mask of sparseMode 0 or 1 and bias with so many more columns."""
    values: dict[str, object] = {}
    for name, wanted in (("attenMask", s.mask_on and s.sparse_mode in (0, 1)), ("pseShift", s.pse_on)):
        spec = s.tensor(name)
        if wanted and spec is not None and spec.shape:
            values[name] = TensorSpec((*spec.shape[:-1], spec.shape[-1] + columns), spec.dtype)
    return values


def add_prefix(columns: int = 16, **more: object) -> Change:
    """Give a call without prefix a fitting pair (and mask and bias the width for it), and set further parameters."""

    def change(s: Scene) -> Optional[dict[str, object]]:
        pair = None if s.given(NAMES[0]) or s.given(NAMES[1]) else prefix_pair(s, columns)
        return None if pair is None else {**pair, **widened(s, columns), **more}

    return change
