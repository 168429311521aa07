"""Bundles: the features of a call, each with the pure function that takes it away altogether.

All parameters that belong to a feature go together. Whether what comes out is still a valid (or still the same invalid)
call is not asked here: the shrinker asks the prediction.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Optional

import msgspec

from fiafuzz.model.dtypes import FLOAT_QUERY
from fiafuzz.model.layouts import CACHE_LAYOUTS
from fiafuzz.model.parameters import INT_MAX

from .blueprint import PLAIN, SIZES, Fields, OptionalTensor, lengths_of, with_fields
from .forms import without_slack

Reduction = Callable[[Fields], Optional[dict[str, Any]]]
"""Plainer fields, or None when there is nothing to take away."""

QUANT_INPUTS: tuple[str, ...] = (
    "deqScale1",
    "quantScale1",
    "deqScale2",
    "antiquantScale",
    "antiquantOffset",
    "keyAntiquantScale",
    "keyAntiquantOffset",
    "valueAntiquantScale",
    "valueAntiquantOffset",
    "keyRopeAntiquantScale",
    "dequantScaleQuery",
)


def changed(fields: Fields, **changes: Any) -> Optional[dict[str, Any]]:
    """The fields with some changed; None when that changes nothing."""
    found = with_fields(fields, **changes)
    return found if found != fields else None


def without(fields: Fields, inputs: tuple[str, ...], **changes: Any) -> Optional[dict[str, Any]]:
    """The fields without some inputs, and with others changed; None when that changes nothing."""
    gone = {f"in:{name}": None for name in inputs}
    gone.update({f"={name}": None for name in inputs})
    return changed(fields, **gone, **changes)


def no_post_quant(fields: Fields) -> Optional[dict[str, Any]]:
    """Output in the dtype of a float query, no quantScale2 and quantOffset2."""
    if (
        fields["out_dtype"] in ("=", "FLOAT16", "BFLOAT16")
        and "in:quantScale2" not in fields
        and "in:quantOffset2" not in fields
    ):
        return None
    return without(
        fields, ("quantScale2", "quantOffset2"), out_dtype="=" if fields["q_dtype"] in FLOAT_QUERY else "BFLOAT16"
    )


def no_quant(fields: Fields) -> Optional[dict[str, Any]]:
    """Everything in one float dtype, no quantisation parameter."""
    plain = {
        name: PLAIN[name]
        for name in ("keyAntiquantMode", "valueAntiquantMode", "queryQuantMode", "antiquantMode", "kv_dtype")
    }
    if fields["q_dtype"] not in FLOAT_QUERY:
        plain |= {"q_dtype": "FLOAT16", "out_dtype": "="}
    return without(fields, QUANT_INPUTS, **plain, D0=16, **{"dtype:rope": None})


def no_offsets(fields: Fields) -> Optional[dict[str, Any]]:
    """Symmetric quantisation."""
    return without(fields, ("keyAntiquantOffset", "valueAntiquantOffset", "antiquantOffset", "quantOffset2"))


def no_prefix(fields: Fields) -> Optional[dict[str, Any]]:
    """No shared prefix."""
    return without(fields, ("actualSharedPrefixLen", "keySharedPrefix", "valueSharedPrefix"), prefix_S=None)


def no_pse(fields: Fields) -> Optional[dict[str, Any]]:
    """No bias, no slopes."""
    return without(fields, ("pseShift", "qStartIdx", "kvStartIdx"), pseType=0)


def no_mask(fields: Fields) -> Optional[dict[str, Any]]:
    """No mask: sparseMode 0, open tokens."""
    return without(fields, ("attenMask",), sparseMode=0, preTokens=INT_MAX, nextTokens=INT_MAX)


def open_tokens(fields: Fields) -> Optional[dict[str, Any]]:
    """preTokens and nextTokens at their defaults."""
    return changed(fields, preTokens=INT_MAX, nextTokens=INT_MAX)


def no_padding(fields: Fields) -> Optional[dict[str, Any]]:
    """No left padding."""
    return without(fields, ("queryPaddingSize", "kvPaddingSize"))


def no_sink(fields: Fields) -> Optional[dict[str, Any]]:
    """No learnable sink."""
    return without(fields, ("learnableSink",))


def no_lse(fields: Fields) -> Optional[dict[str, Any]]:
    """No softmaxLse."""
    return changed(fields, softmaxLseFlag=False, **{"=softmaxLse": None})


def no_rope(fields: Fields) -> Optional[dict[str, Any]]:
    """No split rope; the head size of Decode MLA goes with it."""
    changes: dict[str, Any] = {"D": 64, "V_D": None} if fields["D"] == 512 else {}
    return (
        without(fields, ("queryRope", "keyRope"), rope_D=None, **changes, **{"dtype:rope": None})
        if fields["rope_D"]
        else None
    )


def contiguous(fields: Fields) -> Optional[dict[str, Any]]:
    """Keys and values in one tensor each: no paging, no list."""
    if fields["storage"] == "contiguous":
        return None
    kv = lengths_of(fields)[1]
    gone = {f"={name}": None for name in ("key", "value", "keyRope", "blockTable", "blockSize")}
    return changed(
        fields,
        storage="contiguous",
        block_size=0,
        table=None,
        spare_blocks=0,
        spare_columns=0,
        list_S=None,
        D0=16,
        KV_S=max((*kv, 1)),
        **gone,
    )


def plain_table(fields: Fields) -> Optional[dict[str, Any]]:
    """Blocks in order, as many as needed."""
    if fields["storage"] not in CACHE_LAYOUTS:
        return None
    return changed(fields, table=None, spare_blocks=0, spare_columns=0, **{"=blockTable": None})


def no_slack(fields: Fields) -> Optional[dict[str, Any]]:
    """Masks, biases and scales as long as they must be."""
    tight = {
        name: msgspec.structs.replace(item, form=without_slack(item.form))
        for name, item in fields.items()
        if isinstance(item, OptionalTensor)
    }
    return changed(fields, **tight)


def batch_layout(fields: Fields) -> Optional[dict[str, Any]]:
    """BNSD."""
    return to_layout(fields, "BNSD")


def to_layout(fields: Fields, name: str) -> Optional[dict[str, Any]]:
    """Another layout."""
    if fields["layout"] == name:
        return None
    changes: dict[str, Any] = {"layout": name}
    return changed(fields, **changes)


def no_query_lengths(fields: Fields) -> Optional[dict[str, Any]]:
    """Every query of full length."""
    return changed(fields, q_lens=None, **{"=actualSeqLengths": None})


def no_key_lengths(fields: Fields) -> Optional[dict[str, Any]]:
    """Every key of full length."""
    return changed(fields, kv_lens=None, **{"=actualSeqLengthsKv": None})


def half_precision(fields: Fields) -> Optional[dict[str, Any]]:
    """FLOAT16 instead of BFLOAT16."""
    if fields["q_dtype"] != "BFLOAT16":
        return None
    return changed(
        fields, q_dtype="FLOAT16", out_dtype="=" if fields["out_dtype"] == "FLOAT16" else fields["out_dtype"]
    )


def equal_head_sizes(fields: Fields) -> Optional[dict[str, Any]]:
    """value as wide as key, in the plain size."""
    return changed(fields, V_D=None, D=64) if fields["V_D"] is not None else None


def plain_head_size(fields: Fields) -> Optional[dict[str, Any]]:
    """D 64."""
    return changed(fields, D=64) if fields["V_D"] is None else None


def one_head(fields: Fields) -> Optional[dict[str, Any]]:
    """One query head and one key head."""
    return changed(fields, Q_N=1, KV_N=1)


def no_groups(fields: Fields) -> Optional[dict[str, Any]]:
    """As many key heads as query heads."""
    return changed(fields, Q_N=fields["KV_N"])


def one_batch(fields: Fields) -> Optional[dict[str, Any]]:
    """Only the batch with the longest key."""
    if fields["B"] <= 1:
        return None
    kv = lengths_of(fields)[1]
    return keep_batches(fields, (max(range(len(kv)), key=lambda i: kv[i]),)) if kv else None


def keep_batches(fields: Fields, kept: tuple[int, ...]) -> Optional[dict[str, Any]]:
    """Only those batches."""
    if len(kept) >= fields["B"]:
        return None
    changes: dict[str, Any] = {"B": len(kept)}
    for name in ("q_lens", "kv_lens", "table", "list_S"):
        per_batch = fields[name]
        if per_batch is not None:
            changes[name] = tuple(per_batch[i] for i in kept if i < len(per_batch))
    for name, axis in (("q_lens", "Q_S"), ("kv_lens", "KV_S")):
        lens = changes.get(name)
        if lens and len(set(lens)) == 1:  # batches no longer differ
            changes |= {name: None, axis: max(1, lens[0])}
    if fields["storage"] == "tensor_list" and len(kept) == 1:
        return contiguous(with_fields(fields, **changes))
    return changed(fields, **changes)


def few_queries(fields: Fields) -> Optional[dict[str, Any]]:
    """Query axis of the plain size."""
    return to_query_size(fields, SIZES["Q_S"])


def few_keys(fields: Fields) -> Optional[dict[str, Any]]:
    """Key axis of the plain size."""
    return to_key_size(fields, SIZES["KV_S"])


def to_query_size(fields: Fields, size: int) -> Optional[dict[str, Any]]:
    """The query axis brought to a size, lengths with it."""
    return _to_size(fields, "Q_S", size, ("q_lens",))


def to_key_size(fields: Fields, size: int) -> Optional[dict[str, Any]]:
    """The key axis brought to a size, lengths with it."""
    return _to_size(fields, "KV_S", size, ("kv_lens", "list_S"))


def _to_size(fields: Fields, axis: str, size: int, lists: tuple[str, ...]) -> Optional[dict[str, Any]]:
    """An axis cut, or raised, to a size: lengths are cut to it, and those that filled the axis fill it still."""
    old = fields[axis]
    changes: dict[str, Any] = {axis: size}
    for name in lists:
        if fields[name] is not None:
            changes[name] = tuple(size if n == old else min(n, size) for n in fields[name])
    return changed(fields, **changes)


def plain_scale(fields: Fields) -> Optional[dict[str, Any]]:
    """scaleValue 1/8."""
    return changed(fields, scaleValue=PLAIN["scaleValue"])


def plain_precision(fields: Fields) -> Optional[dict[str, Any]]:
    """innerPrecise 0."""
    return changed(fields, innerPrecise=PLAIN["innerPrecise"])


def plain_key_heads(fields: Fields) -> Optional[dict[str, Any]]:
    """numKeyValueHeads 0 where it equals numHeads."""
    return changed(fields, kv_heads_literal=False)


def plain_fills(fields: Fields) -> Optional[dict[str, Any]]:
    """Default values in query, key and value."""
    return changed(fields, **{name: None for name in fields if name.startswith("fill:")})


BUNDLES: tuple[tuple[str, Reduction], ...] = (
    ("post_quant", no_post_quant),
    ("quant", no_quant),
    ("offsets", no_offsets),
    ("prefix", no_prefix),
    ("pse", no_pse),
    ("mask", no_mask),
    ("tokens", open_tokens),
    ("padding", no_padding),
    ("sink", no_sink),
    ("lse", no_lse),
    ("rope", no_rope),
    ("storage", contiguous),
    ("table", plain_table),
    ("slack", no_slack),
    ("layout", batch_layout),
    ("dtype", half_precision),
    ("unequal_d", equal_head_sizes),
    ("batch", one_batch),
    ("groups", no_groups),
    ("heads", one_head),
    ("query_lengths", no_query_lengths),
    ("key_lengths", no_key_lengths),
    ("queries", few_queries),
    ("keys", few_keys),
    ("head_size", plain_head_size),
    ("scale", plain_scale),
    ("precision", plain_precision),
    ("key_heads", plain_key_heads),
    ("fills", plain_fills),
)
"""Whole features, in the order in which they are taken away: what others depend on comes late."""


def override_bundles(fields: Fields) -> list[tuple[str, Reduction]]:
    """One bundle for every literal override: doing without it."""

    def without(name: str) -> Reduction:
        return lambda f: changed(f, **{name: None}) if name in f else None

    return [(name, without(name)) for name in fields if name.startswith("=")]
