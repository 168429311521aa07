"""Key and value as lists of tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Optional

from fiafuzz.model.case import TensorSpec
from fiafuzz.model.dtypes import FLOAT_QUERY
from fiafuzz.model.scene import Scene

from ..changes import cast, held, merge_axes, put, relabel, resize, where, with_shape
from ..documents import ALL_DOCUMENTS, V5_CHECKED, V5_LINE
from ..facts import key_items, scene_fact, value_items
from ..interface.formats import RELABELLED
from ..rule import (
    ALL_950,
    DOC_A2A3_V3,
    SRC_A2A3,
    SRC_A2A3_V3,
    SRC_A2A3_V5,
    Basis,
    Boundary,
    Break,
    Change,
    Effect,
    Level,
    Stage,
    Words,
    always,
)
from .recipes import PLAIN, common_rule

LONGEST_LIST = 256

_LIST: Words = {**PLAIN, "storage": "tensor_list"}
_PLAIN_LIST: Words = {**_LIST, "q_lengths": "absent", "kv_lengths": "absent"}


def _lists(s: Scene) -> bool:
    return s.storage == "tensor_list" and len(s.keys) == len(s.values) and s.layout is not None and not s.packed


@scene_fact
def _ranks_fit(s: Scene) -> bool:
    return all(a is not None for a in (*key_items(s), *value_items(s)))


def _same_heads(s: Scene) -> bool:
    """Whether all items fit the layout, have the N and D (or H) of the first one, and N is numKeyValueHeads."""
    if not _ranks_fit(s):
        return False
    for items in (key_items(s), value_items(s)):
        first = items[0]
        assert first is not None
        for axes in items:
            assert axes is not None
            if any(axes[a] != first[a] for a in "NDH" if a in first):
                return False
        if s.KV_N > 0 and first.get("N", s.KV_N) != s.KV_N:
            return False
    return True


def _same_lengths(s: Scene) -> bool:
    return all(k is None or v is None or k["S"] == v["S"] for k, v in zip(key_items(s), value_items(s)))


def _longer(s: Scene) -> Optional[Mapping[str, object]]:
    """One more item at the end of both lists."""
    return {"key": (*s.keys, s.keys[-1]), "value": (*s.values, s.values[-1])} if len(s.keys) > 1 else None


def _shorter(s: Scene) -> Optional[Mapping[str, object]]:
    return {"key": s.keys[:-1], "value": s.values[:-1]} if len(s.keys) > 2 else None


def _huge(count: int) -> Break:
    return Break("above", _of_batch(count), {**_PLAIN_LIST})


def _of_batch(count: int) -> Change:
    def change(s: Scene) -> Optional[Mapping[str, object]]:
        if s.query is None or s.out is None or s.query.rank < 3 or s.layout is None or s.layout.output[0] != "B":
            return None
        return {"query": with_shape(s.query, (count, *s.query.shape[1:])),
                "attentionOut": with_shape(s.out, (count, *s.out.shape[1:])),
                "key": s.keys[:1] * count, "value": s.values[:1] * count}

    return change


def _second_format(s: Scene) -> bool:
    second = s.keys[1] if len(s.keys) > 1 else None
    return second is None or second.format in RELABELLED


def _second_key(s: Scene) -> bool:
    if len(s.keys) < 2 or s.quant_kind != "none":
        return True
    second = s.keys[1]
    return second is None or second.dtype in FLOAT_QUERY


RULES = (
    common_rule(
        81, "key and value lists are equally long", level=Level.CONSISTENCY, profiles=V5_CHECKED,
        cites=("v5.common.consistency.tensor_list_count_equal",), stage=Stage.PARSER, enforced_by="GetKvCache",
        when=lambda s: bool(s.keys) and bool(s.values), requires=lambda s: len(s.keys) == len(s.values),
        breaks=(Break("pair", lambda s: {"key": (*s.keys, s.keys[-1])}, {**PLAIN, "storage": "tensor_list"}),
                Break("pair", where(lambda s: len(s.keys) > 2, lambda s: {"value": s.values[:-1]}), _LIST),
                Break("pair", lambda s: {"value": (*s.values, s.values[-1])}, {**PLAIN, "storage": "contiguous"})),
    ),
    common_rule(
        82, "key and value lists are equally long in V1 to V4", level=Level.CONSISTENCY, profiles=DOC_A2A3_V3 | SRC_A2A3_V3,
        cites=("v3.interface.single.return_param_invalid", "v3.common.cross.tensorlist_length"), stage=Stage.LISTS,
        enforced_by="entry", when=lambda s: bool(s.keys) and bool(s.values),
        requires=lambda s: len(s.keys) == len(s.values),
        breaks=(Break("pair", lambda s: {"key": (*s.keys, s.keys[-1])}, {**PLAIN, "storage": "tensor_list"}),
                Break("pair", lambda s: {"value": (*s.values, s.values[-1])}, {**PLAIN, "storage": "contiguous"})),
    ),
    common_rule(
        83, "a tensor list has one tensor for each batch", level=Level.CONSISTENCY, profiles=V5_LINE | DOC_A2A3_V3,
        cites=("v5.common.consistency.tensor_list_count_is_batch", "v3.common.cross.tensorlist_length",
               "v3.common.cross.qs_gt1_tensorlist_length"),
        enforced_by="CheckQueryKeyTensorlistConsistency",
        when=lambda s: _lists(s) and s.B is not None, requires=lambda s: len(s.keys) == s.B,
        breaks=(Break("above", _longer, _PLAIN_LIST), Break("below", _shorter, _PLAIN_LIST)),
    ),
    common_rule(
        84, "all tensors of a list have the same N and D", level=Level.CONSISTENCY, profiles=V5_LINE | DOC_A2A3_V3,
        cites=("v5.common.consistency.tensor_list_same_n_d", "v5.common.consistency.num_heads_equals_n",
               "v5.interface.consistency.kv_heads_vs_key_n", "v3.common.cross.tensorlist_n_d_equal",
               "v3.common.cross.qs_gt1_tensorlist_n_d", "v3.common.consistency.kv_heads_match_shape"),
        enforced_by="CheckNormalTensorListBNSD, CheckNormalTensorListBSND, CheckNormalTensorListBSH",
        when=_lists, requires=_same_heads, limit="N is numKeyValueHeads",
        breaks=(
            Break("axis", resize("key", -1, lambda s, d: d + s.KV_N, item=-1), _LIST),
            Break("axis", resize("value", -1, lambda s, d: d + s.KV_N, item=-1), _LIST),
            Break("axis", resize(("key", "value"), "N", lambda _, n: n + 1, item=-1), _LIST),
            Break("value", where(lambda s: s.KV_N > 1 and s.layout is not None and "N" in s.layout.inputs,
                                 lambda s: {"numKeyValueHeads": 1}), _LIST),
            Break("rank", merge_axes("value", item=-1), _LIST),
        ),
        note="H for BSH. S may differ from tensor to tensor.",
    ),
    common_rule(
        85, "key and value tensors of a list have the same S in pairs", level=Level.CONSISTENCY,
        profiles=V5_LINE | DOC_A2A3_V3,
        cites=("v5.common.consistency.tensor_list_k_v_same_s", "v3.common.consistency.kv_shapes_identical"),
        enforced_by="CheckNormalTensorListBNSD, CheckNormalTensorListBSND, CheckNormalTensorListBSH",
        when=_lists, requires=_same_lengths,
        breaks=(Break("axis", resize("value", "S", lambda _, n: n + 1, item=-1), _LIST),
                Break("axis", resize("value", "S", lambda _, n: n + 1, item=0), _LIST)),
    ),
    common_rule(
        86, "a tensor list goes without blockTable", level=Level.CROSS, profiles=V5_LINE | DOC_A2A3_V3,
        cites=("v5.common.cross.tensor_list_no_block_table", "v5.paged_attention.existence.no_tensor_list",
               "v3.paged_attention.cross.qs_gt1_no_tensorlist", "v3.paged_attention.cross.qs_eq1_no_tensorlist"),
        enforced_by="CheckTensorList", when=lambda s: s.storage == "tensor_list",
        requires=lambda s: s.inputs.blockTable is None,
        breaks=(Break("pair", lambda s: {"blockTable": TensorSpec((len(s.keys), 1), "INT32",
                                                                  values=tuple(range(len(s.keys))))}, _LIST),),
    ),
    common_rule(
        87, "a tensor list has at most 256 tensors, by the documents", level=Level.CONSISTENCY, profiles=ALL_DOCUMENTS,
        cites=("v5.common.consistency.tensor_list_batch_limit", "v3.common.cross.tensorlist_b_max",
               "v3.common.cross.qs_gt1_tensorlist_b_max"),
        basis=Basis.DOCUMENTED, effect=Effect.UNSPECIFIED, enforced_by="nothing (65536)",
        when=lambda s: s.storage == "tensor_list", requires=lambda s: len(s.keys) <= LONGEST_LIST, limit="256",
        breaks=(_huge(LONGEST_LIST + 1),),
        boundaries=(Boundary(_of_batch(LONGEST_LIST), _of_batch(LONGEST_LIST + 1), _PLAIN_LIST, limit="256"),),
    ),
    common_rule(
        88, "each tensor of a list has batch size 1, by the documents", level=Level.CONSISTENCY, profiles=ALL_DOCUMENTS,
        cites=("v5.common.consistency.tensor_list_item_batch_one", "v3.common.cross.tensorlist_batch_one",
               "v3.common.cross.qs_gt1_tensorlist_batch"),
        basis=Basis.DOCUMENTED, effect=Effect.UNSPECIFIED, enforced_by="nothing (axis 0 is not looked at)",
        when=_lists, requires=lambda s: all(a is None or a["B"] == 1 for a in (*key_items(s), *value_items(s))),
        limit="1", breaks=(Break("above", resize(("key", "value"), "B", 2, item=-1), _LIST),),
        boundaries=(Boundary(held(always, put()), resize(("key", "value"), "B", 2, item=-1), _LIST, limit="1"),),
    ),
    common_rule(
        89, "all tensors of a list have the same dtype, by the documents", level=Level.CONSISTENCY,
        profiles=ALL_DOCUMENTS, cites=("v5.interface.single.key_dtype", "v3.common.single.key_table"),
        basis=Basis.DOCUMENTED, enforced_by="nothing (the first tensor is looked at)",
        when=lambda s: _lists(s) and _second_key(s),
        requires=lambda s: len({t.dtype for t in s.keys if t is not None}) == 1
        and len({t.dtype for t in s.values if t is not None}) == 1,
        breaks=(Break("dtype", cast("INT64", "value", item=-1), _LIST),
                Break("dtype", cast("INT64", "key", item=-1), {**_LIST, "batch": "3+"})),
    ),
    common_rule(
        90, "without quantisation the second key of a list is FLOAT16 or BFLOAT16", level=Level.CONSISTENCY,
        profiles=ALL_950 | SRC_A2A3, cites=("v5.interface.single.key_dtype",), stage=Stage.TILING,
        enforced_by="choice of the kernel (no log line)", when=lambda s: _lists(s) and s.quant_kind == "none",
        requires=lambda s: _second_key(s), limit="FLOAT16, BFLOAT16",
        breaks=(Break("dtype", cast("INT8", "key", item=1), _LIST),),
        note="Tiling asks for the input that follows key and gets the second tensor of the list instead of value.",
    ),
    common_rule(
        91, "the second key of a list has a format that counts as ND", level=Level.SINGLE, profiles=ALL_950 | SRC_A2A3_V5,
        cites=("v5.common.single.format_support", "v5.interface.single.query_format_nd"),
        enforced_by="CheckFormatSupport", when=_lists, requires=_second_format,
        limit="ND, NCHW, NHWC, NCDHW, NCL, DHWCN",
        breaks=(Break("format", relabel("FRACTAL_NZ", "key", item=1), _LIST),),
        note="For the same reason. Formats of later tensors are not looked at.",
    ),
)
