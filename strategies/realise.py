"""From a plan to a call: every room decides its sizes and puts its part into the draft, in an order that fits."""

from __future__ import annotations

from typing import Optional

from fiafuzz.model.case import Case, Fill, Grid, Normal, Patch, Patched, Uniform
from fiafuzz.model.profiles import Profile

from . import (
    actual_seq_len,
    attention_mask,
    common,
    inner_precise,
    learnable_sink,
    left_padding,
    paged_attention,
    post_quant,
    pse,
    quant_tensors,
    rope,
    shared_prefix,
    sizes,
    softmax_lse,
)
from .draft import Draft
from .ground import ground_of
from .plan import Plan
from .source import Source, Table

_DATA: Table = Table((None, 72), (Normal(0.0, 1.0), 14), (Uniform(-1.0, 1.0), 8), ("outlier", 6))


def realise(plan: Plan, source: Source, profile: Profile | str) -> Case:
    """A call with exactly the plan's words; sizes, lengths and values come from the source.

    ``factors_of`` of its scene gives the plan back. ValueError for an unknown profile name.
    """
    name = profile if isinstance(profile, str) else profile.name
    d = Draft(ground_of(name), source, plan.words)
    paged_attention.choose_block_size(d)
    sizes.decide(d)
    actual_seq_len.axes(d)
    actual_seq_len.lists(d)
    paged_attention.table(d)
    d.width = d.KV_S + d.prefix_len
    d.int4_carrier = d.words["kv_dtype"] == "INT4" and source.chance(50)
    d.data_fill = _data(d)
    rope.tensors(d)
    common.tensors(d)
    shared_prefix.tensors(d)
    quant_tensors.tensors(d)
    post_quant.tensors(d)
    attention_mask.tensor(d)
    pse.tensors(d)
    left_padding.sizes(d)
    learnable_sink.tensor(d)
    softmax_lse.tensor(d)
    inner_precise.attribute(d)
    return d.case()


def _data(d: Draft) -> Optional[Fill]:
    chosen = _DATA.of(d.source)
    if chosen != "outlier":
        return chosen  # type: ignore[no-any-return]
    # One channel far out, as trained models have it.
    rank = len(d.layout.inputs)
    return Patched(Grid(), (Patch((None,) * (rank - 1) + ((0, 1),), 6.0),)) if not d.paged else None
