"""Scene factors: the coordinates in which generation plans and coverage counts.

Each factor maps a scene to one short word. A generation *plan* assigns a word to every factor; ``factors_of`` reads the words back from
any case, so that imported suites are measured with the same ruler. Values that cannot be derived count as "other".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from .layouts import LAYOUTS
from .scene import Scene


def _scenario(s: Scene) -> str:
    if s.quant_kind == "antiquant":
        return "antiquant"
    if s.quant_kind == "full":
        return f"full_{s.full_kind}"
    if s.mla_kind is not None:
        return f"mla_{s.mla_kind}"
    return "unequal_d" if s.unequal_d else "gqa"


def _storage(s: Scene) -> str:
    return (s.cache_layout or "other") if s.paged else s.storage


def _q_s(s: Scene) -> str:
    n = s.Q_S
    if n is None or n < 0:
        return "other"
    return "0" if n == 0 else "1" if n == 1 else "2-16" if n <= 16 else "17+"


def _batch(s: Scene) -> str:
    n = s.B
    return "other" if n is None or n < 0 else str(n) if n < 3 else "3+"


def _group(s: Scene) -> str:
    if s.G is None:
        return "other"
    return "mha" if s.G == 1 else "mqa" if s.KV_N == 1 else "gqa"


def _head_size(s: Scene) -> str:
    d = s.Q_D
    if d is None or d <= 0:
        return "other"
    if d in (64, 128, 192, 512):
        return str(d)
    return "16k" if d % 16 == 0 else "odd"


def _mask(s: Scene) -> str:
    if not s.mask_on:
        return "none" if s.inputs.attenMask is None else "empty"
    return s.dtype("attenMask") or "other"


def _mask_shape(s: Scene) -> str:
    shape = s.shape("attenMask")
    if shape is None:
        return "none"
    if s.mask_compressed and s.sparse_mode in (2, 3, 4):
        return f"2048/{len(shape)}"
    return {2: "2d", 3: "3d", 4: "4d"}.get(len(shape), "other")


def _lengths(s: Scene, given: tuple[int, ...] | None, lens: tuple[int, ...] | None) -> str:
    if given is None:
        return "absent"
    if lens is not None and any(n == 0 for n in lens):
        return "zero"
    if not s.packed and len(given) == 1 and s.B != 1:
        return "one"
    if s.B is not None and len(given) > s.B:
        return "longer"
    return "per_batch"


def _length_relation(s: Scene) -> str:
    q, kv = s.q_lens, s.kv_lens
    if not q or not kv or len(q) != len(kv):
        return "other"
    total = [n + s.prefix_len for n in kv]
    longer, shorter = any(a > b for a, b in zip(q, total)), any(a < b for a, b in zip(q, total))
    return "mixed" if longer and shorter else "q_longer" if longer else "q_shorter" if shorter else "equal"


def _pse(s: Scene) -> str:
    if s.alibi_on:
        return f"alibi{s.attrs.pseType}"
    return "bias" if s.pse_on else "none"


def _padding(s: Scene) -> str:
    q, kv = s.given("queryPaddingSize"), s.given("kvPaddingSize")
    return "both" if q and kv else "query" if q else "kv" if kv else "none"


def _prefix(s: Scene) -> str:
    if not s.prefix_on:
        return "none"
    return "full" if s.inputs.actualSharedPrefixLen is None else "actual"


def _post_quant(s: Scene) -> str:
    scale = s.tensor("quantScale2")
    if not s.post_quant_on:
        return "none"
    if scale is None:
        return "other"
    kind = "tensor" if scale.numel == 1 else "channel"
    return f"{kind}+offset" if s.given("quantOffset2") else kind


def _antiquant(s: Scene) -> str:
    if s.quant_kind != "antiquant":
        return "none"
    return "merged" if s.merged_antiquant else (s.antiquant_kind or "other")


def _antiquant_offset(s: Scene) -> str:
    if s.quant_kind != "antiquant":
        return "none"
    return "offset" if s.given("keyAntiquantOffset") or s.given("antiquantOffset") else "symmetric"


def _block_size(s: Scene) -> str:
    if not s.paged:
        return "none"
    n = s.block_size
    return str(n) if n in (16, 32, 64, 128, 256, 512, 1024) else "other"


def _empty(s: Scene) -> str:
    if s.empty_query or s.empty_out:
        return "query"
    return "kv" if s.empty_kv else "none"


def _out_dtype(s: Scene) -> str:
    return s.out_dtype or "other"


FACTORS: Mapping[str, Callable[[Scene], str]] = MappingProxyType({
    "scenario": _scenario,
    "layout": lambda s: s.layout_name if s.layout_name in LAYOUTS else "other",
    "storage": _storage,
    "q_dtype": lambda s: s.q_dtype or "other",
    "kv_dtype": lambda s: s.k_dtype or "other",
    "out_dtype": _out_dtype,
    "antiquant": _antiquant,
    "antiquant_offset": _antiquant_offset,
    "q_s": _q_s,
    "batch": _batch,
    "group": _group,
    "head_size": _head_size,
    "sparse_mode": lambda s: str(s.sparse_mode) if s.sparse_mode in range(5) else "other",
    "mask": _mask,
    "mask_shape": _mask_shape,
    "q_lengths": lambda s: _lengths(s, s.inputs.actualSeqLengths, s.q_lens),
    "kv_lengths": lambda s: _lengths(s, s.inputs.actualSeqLengthsKv, s.kv_lens),
    "length_relation": _length_relation,
    "pse": _pse,
    "left_padding": _padding,
    "prefix": _prefix,
    "sink": lambda s: "on" if s.sink_on else "off",
    "lse": lambda s: "on" if s.lse_on else "off",
    "inner_precise": lambda s: str(s.inner_precise) if s.inner_precise in range(4) else "other",
    "post_quant": _post_quant,
    "block_size": _block_size,
    "empty": _empty,
})
"""Factor name -> reader. Generation plans use the same names and words."""


def factors_of(scene: Scene) -> dict[str, str]:
    """The word of every factor for a scene; never raises."""
    return {name: read(scene) for name, read in FACTORS.items()}


def factor_words(scene: Scene) -> str:
    """The words of all factors in order, joined by "|"; never raises."""
    return "|".join([read(scene) for read in FACTORS.values()])
