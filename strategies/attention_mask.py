"""Attention mask: sparseMode, tokens, the mask's dtype and shape, and what stands in it."""

from __future__ import annotations

from typing import Optional

from fiafuzz.model.case import Band, Bernoulli, ColumnsFrom, Constant, Fill, Patch, Patched, Triu
from fiafuzz.model.layouts import MASK_COMPRESSED
from fiafuzz.model.limits import BOOL_MASK_ONLY, FEATURE_LAYOUTS, decode_mla_sparse
from fiafuzz.model.parameters import INT_MAX

from .diagram import Words, choice, derived
from .draft import Draft
from .ground import Ground
from .source import Table

FLOATS = ("FLOAT16", "BFLOAT16")


@derived
def sparse_menu(ground: Ground, scenario: str, form: str, packed: bool, paged: bool, single: bool, kv_dtype: str, shorter: bool,
                hollow: bool, empty: str) -> str:
    """Which sparse modes may go with a mask ("0m" is mode 0 with one, "0" mode 0 without), as words in one string."""
    if empty != "none":
        return "0"
    if scenario == "full_decode_mla":
        modes = decode_mla_sparse(kv_dtype == "INT8", packed, single)
        return " ".join(map(str, modes))
    if scenario in ("full_gqa_fp8", "full_mxfp8"):
        return "0 3"
    if scenario == "unequal_d":
        return "0 0m 2 3"
    if ground.is_950:
        if scenario == "mla_decode":
            return "0 0m 3 4"
        return "0 0m" if scenario == "antiquant" and single else "0 0m 1 2 3 4"
    if scenario == "antiquant":
        if single:
            return "0 0m"
        return "3" if paged else "0 0m 2 3"
    if scenario == "full_per_tensor":
        return "0 0m 2 3"
    if scenario == "mla_decode":
        if ground.v3_document:
            return "0" if single else "3"
        return "0 0m 3 4"
    if packed and ground.v3_document:
        # V3 document: mode 0 goes without mask, mode 3 with fewer query tokens than keys in every batch.
        return "0 3 4" if shorter and not hollow else "0 4"
    if scenario.startswith("mla_prefill"):
        return "0 0m 1 2 3 4"
    if form == "TND":
        return "0 3 4" if shorter else "0 4"
    if packed:
        return "0 0m 2 3 4"
    return "0 0m" if single else "0 0m 1 2 3 4"


@choice
def sparse_mode(sparse_menu: str, post_quant: str, over: bool, ground: Ground) -> Words:
    modes = {word[0] for word in sparse_menu.split()}
    if post_quant.endswith("offset"):
        # Rows without keys hold 0 or the rounded offset (numerics corrections 9); A2 and A3 refuse some of them.
        modes -= {"4"} | ({"3"} if over else set())
    weights = {"0": 6, "1": 2, "2": 2, "3": 3, "4": 3}
    return {mode: weights[mode] for mode in sorted(modes)}


@derived
def mask_menu(ground: Ground, scenario: str, form: str, q_dtype: str, kv_dtype: str, single: bool) -> tuple[str, str, str]:
    """Allowed dtypes of a mask, shapes of a full one and shapes of a compressed one, each in one string."""
    if ground.is_950:
        only_bool = scenario == "antiquant" and kv_dtype in BOOL_MASK_ONLY
    else:
        # A2 and A3 register INT8 and UINT8 masks beside FLOAT16 only; the decode route wants BOOL.
        only_bool = q_dtype == "BFLOAT16" or (scenario == "antiquant" and single)
    flat = not ground.is_950 and scenario == "gqa" and not single and form in FEATURE_LAYOUTS
    # INT8 decode MLA on A2 and A3 takes the plain compressed mask only.
    compressed = "2048/2 2048/3 2048/4" if ground.is_950 or scenario != "full_decode_mla" else "2048/2"
    return ("BOOL" if only_bool else "BOOL INT8 UINT8", "3d 4d 2d" if flat else "3d 4d", compressed)


@choice
def mask(sparse_menu: str, sparse_mode: str, mask_menu: tuple[str, str, str]) -> Words:
    words: dict[str, int] = {}
    if sparse_mode == "0":
        if "0" in sparse_menu.split():
            words["none"] = 4
        if "0m" not in sparse_menu.split():
            return words
    return words | {word: 3 if word == "BOOL" else 1 for word in mask_menu[0].split()}


@choice
def mask_shape(mask: str, sparse_mode: str, mask_menu: tuple[str, str, str]) -> Words:
    if mask == "none":
        return ("none",)
    return tuple(mask_menu[2 if sparse_mode in ("2", "3", "4") else 1].split())


# ---- building ---------------------------------------------------------------------------------

_FULL_MASKS = Table(("random", 30), ("band", 34), ("causal", 16), ("columns", 14), ("open", 6))


def tensor(d: Draft) -> None:
    """Put sparseMode, tokens and attenMask into the call."""
    mode, dtype = int(d.words["sparse_mode"]), d.words["mask"]
    attrs = d.attrs
    attrs["sparseMode"] = mode
    if dtype == "none":
        if d.source.chance(10):
            attrs["preTokens"], attrs["nextTokens"] = d.source.integer(0, 9), d.source.integer(0, 9)
        return
    if mode in (2, 3, 4):
        rank = int(d.words["mask_shape"][-1])
        d.tensor("attenMask", (1,) * (rank - 2) + (MASK_COMPRESSED, MASK_COMPRESSED), dtype)
        if mode == 4:
            attrs["preTokens"], attrs["nextTokens"] = _band(d, max(d.kv_lens) + d.prefix_len)
        elif d.source.chance(10):
            attrs["preTokens"], attrs["nextTokens"] = d.source.integer(0, 9), d.source.integer(0, 9)
        return
    fill, tokens = _full_fill(d, mode)
    d.tensor("attenMask", _full_shape(d), dtype, fill)
    if tokens is not None:
        attrs["preTokens"], attrs["nextTokens"] = tokens


def _full_shape(d: Draft) -> tuple[int, ...]:
    source, word = d.source, d.words["mask_shape"]
    rows, columns = max(d.Q_S, 1), max(d.width, 1)
    if d.ground.is_950 and source.chance(35):
        # Axes may be larger than the data: by a little, or up to the next multiple of 32.
        more = source.integer(1, 7)
        rows, columns = rows + more, columns + (more if source.chance(50) else -columns % 32)
    if word == "2d":
        return (rows, columns)
    exact = not d.ground.is_950 and d.scenario == "antiquant" and d.single
    batches = d.B if exact or source.chance(50) else 1
    return (batches, rows, columns) if word == "3d" else (batches, 1, rows, columns)


def _full_fill(d: Draft, mode: int) -> tuple[Fill, Optional[tuple[int, int]]]:
    """What stands in a full mask, and tokens that say nothing else: a mask of mode 0 is 1 outside its band."""
    source = d.source
    kind = _FULL_MASKS.of(source)
    # Modes and places that do not read the tokens still get some now and then.
    idle = (source.integer(0, 9), source.integer(0, 9)) if mode == 1 and source.chance(15) else None
    if d.words["post_quant"].endswith("offset"):
        # No row may lose all its keys: the first column stays.
        open_column = Patch((None,) * (int(d.words["mask_shape"][0]) - 1) + ((0, 1),), 0)
        return Patched(Bernoulli(0.4), (open_column,)), idle
    if kind == "band":
        pre, nxt = _band(d, d.width)
        return Band(pre, nxt), (pre, nxt) if mode == 0 else idle
    if kind == "causal":
        return Triu(1), (INT_MAX, 0) if mode == 0 else idle
    if kind == "columns":
        return ColumnsFrom(tuple([max(1, n + d.prefix_len) for n in d.kv_lens])), idle
    if kind == "open":
        return Constant(0), idle
    base = Bernoulli(source.choice((0.3, 0.05, 0.6)))
    if d.words["inner_precise"] in ("2", "3") and source.chance(40):
        # Rows without any key, with row correction on.
        row = source.integer(0, max(d.Q_S - 1, 0))
        axes = int(d.words["mask_shape"][0])
        return Patched(base, (Patch((None,) * (axes - 2) + ((row, row + 1), None), 1),)), idle
    return base, idle


def _band(d: Draft, columns: int) -> tuple[int, int]:
    """(preTokens, nextTokens) with preTokens + nextTokens >= 0; on Ascend 950 one of them may be negative."""
    source = d.source
    pre, nxt = source.integer(0, 12), source.integer(0, max(1, min(12, columns)))
    if d.ground.is_950 and d.words["out_dtype"] in FLOATS and source.chance(25):
        back = source.integer(1, 4)
        return (pre + back, -back) if source.chance(50) else (-back, nxt + back)
    if source.chance(15):
        # One less than no limit is a limit like any other, of which sums with lengths leave 32 bits.
        far = source.choice((INT_MAX, INT_MAX - 1))
        return (far, nxt) if source.chance(50) else (pre, far)
    return pre, nxt
