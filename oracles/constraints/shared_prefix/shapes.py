"""Existence, shapes and dtypes of the two prefix tensors, and the stated length."""

from __future__ import annotations

from typing import Optional

from msgspec.structs import replace

from fiafuzz.model.scene import Scene

from ..changes import add_axis, drop, merge_axes, per_tensor, put, resize, where, widen
from ..paged_attention.facts import newer_route
from ..rule import DOC_950, DOC_A2A3_V3, DOC_A2A3_V5, Basis, Boundary, Break, Change, Effect, Level, Rule, Words
from .facts import GROUP, LAYOUTS, NAMES, NO_WIDTHS, V5, prefix_axis, prefix_dtype, prefix_shape, value_prefix_dtype

KEY, VALUE = NAMES
ALL = V5 | DOC_A2A3_V3
HAS: Words = {"prefix": ("full", "actual"), **NO_WIDTHS}
_UNPACKED: Words = {**HAS, "scenario": "gqa"}
_SHAPE = "CheckSharedPrefixShape"


def on(s: Scene) -> bool:
    """Whether both prefix tensors are given in a call without paging (with paging each alone is refused)."""
    return s.prefix_on and not s.paged


def ranked(s: Scene) -> bool:
    """Whether both prefixes have the rank of key[0]."""
    key = s.shape("key")
    return on(s) and key is not None and len(s.shape(KEY) or ()) == len(key) == len(s.shape(VALUE) or ())


def _fits(s: Scene) -> bool:
    """Whether both prefixes have the rank of key, in a layout that can take a prefix at all."""
    return ranked(s) and s.layout_name in LAYOUTS and s.k_axes is not None


def _first_is_one(s: Scene) -> bool:
    return (s.shape(KEY) or (0,))[0] == 1 and (s.shape(VALUE) or (0,))[0] == 1


def _axis_equal(s: Scene, letter: str) -> bool:
    k = s.k_axes
    return k is None or letter not in k or (prefix_axis(s, KEY, letter) == k[letter] == prefix_axis(s, VALUE, letter))


def _width_equal(s: Scene) -> bool:
    """Whether D (or H) of the key prefix is that of key, and the value prefix has the same."""
    k = s.k_axes
    letter = "D" if k is not None and "D" in k else "H"
    return k is None or prefix_axis(s, KEY, letter) == k[letter]


def _pair_equal(s: Scene) -> bool:
    return prefix_shape(s, KEY)[-1:] == prefix_shape(s, VALUE)[-1:]


def _same_columns(s: Scene) -> bool:
    return prefix_axis(s, KEY, "S") == prefix_axis(s, VALUE, "S")


def _dtypes_equal(s: Scene) -> bool:
    return prefix_dtype(s) == s.k_dtype and value_prefix_dtype(s) == s.v_dtype


def _other_dtype(*names: str) -> Change:
    """The other 16-bit float, or FLOAT16 for a quantised prefix."""
    return per_tensor(lambda s, t: replace(t, dtype="BFLOAT16" if t.dtype == "FLOAT16" else "FLOAT16"), *names)


def _one_length(s: Scene) -> bool:
    return len(s.inputs.actualSharedPrefixLen or ()) == 1


def _stated(s: Scene) -> bool:
    return on(s) and _one_length(s)


def _length(s: Scene) -> int:
    return (s.inputs.actualSharedPrefixLen or (0,))[0]


def _columns(s: Scene) -> int:
    return s.prefix_s or 0


def _state(extra: int) -> Change:
    return lambda s: {"actualSharedPrefixLen": (_columns(s) + extra,)} if s.prefix_s is not None else None


def _total(s: Scene) -> Optional[int]:
    return None if s.KV_S is None or s.prefix_s is None else s.KV_S + s.prefix_s


def _long(s: Scene) -> Optional[dict[str, object]]:
    if s.KV_S is None or not on(s) or s.given("pseShift"):
        return None
    return dict(resize(NAMES, "S", 20971520 - s.KV_S + 1)(s) or {}) or None


def _to_the_limit(s: Scene) -> Optional[dict[str, object]]:
    return None if s.KV_S is None or not on(s) else dict(resize(NAMES, "S", 20971520 - s.KV_S)(s) or {}) or None


_V3 = "v3.shared_prefix."
_SHAPES = ("v5.shared_prefix.single.shape_bsh", "v5.shared_prefix.single.shape_bsnd",
           "v5.shared_prefix.single.shape_bnsd",
           _V3 + "single.key_prefix_table", _V3 + "single.value_prefix_table")


def _both_branches(*names: str) -> tuple[str, ...]:
    return tuple(f"{_V3}{name.replace('.', f'.{branch}_')}" for name in names for branch in ("qs_gt1", "qs_eq1"))


RULES: tuple[Rule, ...] = (
    Rule("FIA-SP-001", "a key prefix needs a value prefix", GROUP, Level.EXISTENCE, ALL,
         ("v5.shared_prefix.existence.key_needs_value", *_both_branches("existence.both")),
         lambda s: s.given(KEY) and not s.paged, lambda s: s.given(VALUE), enforced_by="CheckSharedPrefixExistence",
         note="checked after everything else", breaks=(Break("absent", drop(VALUE), HAS),)),
    Rule("FIA-SP-002", "a value prefix needs a key prefix", GROUP, Level.EXISTENCE, ALL,
         ("v5.shared_prefix.existence.value_needs_key", *_both_branches("existence.both")),
         lambda s: s.given(VALUE) and not s.paged, lambda s: s.given(KEY), enforced_by="CheckSharedPrefixExistence",
         note="checked after everything else", breaks=(Break("absent", drop(KEY), HAS),)),
    Rule("FIA-SP-003", "prefixes have the rank of key", GROUP, Level.SINGLE, ALL,
         ("v5.shared_prefix.single.rank_equals_key", *_both_branches("consistency.dims_dtype"), *_SHAPES[3:]),
         lambda s: on(s) and s.shape("key") is not None, ranked, enforced_by="CheckSharedPrefixDim",
         breaks=tuple(Break("rank", change, HAS) for name in NAMES for change in (add_axis(name), merge_axes(name)))),
    Rule("FIA-SP-004", "prefixes have the dtype of key and value", GROUP, Level.SINGLE, ALL,
         ("v5.shared_prefix.single.dtype_equals_key", "v5.interface.single.prefix_dtypes",
          *_both_branches("consistency.dims_dtype"), *_SHAPES[3:]),
         lambda s: on(s) and newer_route(s) and s.k_dtype is not None and s.v_dtype is not None, _dtypes_equal,
         enforced_by="CheckSharedPrefixDataType", note="a pair of INT32 prefixes counts as INT4, as key and value do",
         breaks=(Break("dtype", _other_dtype(KEY), _UNPACKED), Break("dtype", _other_dtype(VALUE), _UNPACKED),
                 Break("dtype", _other_dtype(*NAMES), _UNPACKED))),
    Rule("FIA-SP-014", "prefixes have the dtype of key and value", GROUP, Level.SINGLE, DOC_A2A3_V5 | DOC_A2A3_V3,
         ("v5.shared_prefix.single.dtype_equals_key", *_both_branches("consistency.dims_dtype"), *_SHAPES[3:]),
         lambda s: on(s) and not newer_route(s) and s.k_dtype is not None and s.v_dtype is not None, _dtypes_equal,
         basis=Basis.DOCUMENTED, note="the older routes compare some of the dtypes alone",
         breaks=(Break("dtype", _other_dtype(*NAMES), {**HAS, "scenario": "antiquant", "kv_dtype": "INT8"}),)),
    Rule("FIA-SP-005", "first axis of the prefixes is 1", GROUP, Level.SINGLE, ALL,
         ("v5.shared_prefix.single.first_dim_one", "v5.interface.single.empty_shared_prefix",
          *_both_branches("consistency.batch"), *_SHAPES), _fits, _first_is_one, enforced_by=_SHAPE, limit="1",
         breaks=tuple(Break(side, resize(name, 0, size), HAS, ("FIA-SP-201",) if size == 0 else ()) for name in NAMES for side,
                      size in (("above", 2), ("below", 0))),
         boundaries=(Boundary(put(), resize(KEY, 0, 2), HAS, limit="1"),)),
    Rule("FIA-SP-006", "prefixes have as many heads as key", GROUP, Level.SINGLE, ALL,
         ("v5.shared_prefix.single.n_equals_key", "v5.interface.single.empty_shared_prefix",
          *_both_branches("consistency.nd"), *_SHAPES), lambda s: _fits(s) and "N" in (s.k_axes or ()),
         lambda s: _axis_equal(s, "N"), enforced_by=_SHAPE,
         breaks=tuple(Break("axis", widen(name, "N", by), {**HAS, "layout": ("BNSD", "BSND", "BNSD_BSND")})
                      for name in NAMES for by in (1, -1))),
    Rule("FIA-SP-007", "key prefix has the head size of key", GROUP, Level.SINGLE, ALL,
         ("v5.shared_prefix.single.d_equals_key", "v5.shared_prefix.single.h_equals_key",
          "v5.interface.single.empty_shared_prefix", *_both_branches("consistency.nd", "consistency.h"), *_SHAPES),
         lambda s: _fits(s) and _pair_equal(s), _width_equal, enforced_by=_SHAPE, limit="D, or H = KV_N x D",
         breaks=(Break("axis", resize(NAMES, -1, lambda s, n: n + 1), HAS),
                 Break("axis", resize(NAMES, -1, lambda s, n: n - 1), HAS))),
    Rule("FIA-SP-008", "key and value prefix have the same head size", GROUP, Level.SINGLE, ALL,
         ("v5.shared_prefix.single.d_equals_key", "v5.shared_prefix.single.h_equals_key",
          "v5.interface.single.empty_shared_prefix", *_both_branches("consistency.nd", "consistency.h"), *_SHAPES),
         _fits, _pair_equal, enforced_by=_SHAPE, limit="D, or H = KV_N x D",
         note="so a call whose value has another head size than its key takes no prefix",
         breaks=tuple(Break("axis", resize(name, -1, size), HAS) for name in NAMES
                      for size in (lambda s, n: n + 1, lambda s, n: n - 1))),
    Rule("FIA-SP-009", "key and value prefix are equally long", GROUP, Level.SINGLE, ALL,
         ("v5.shared_prefix.single.same_s", *_both_branches("consistency.s_equal"), *_SHAPES), _fits, _same_columns,
         enforced_by=_SHAPE,
         breaks=(Break("axis", widen(VALUE, "S"), HAS), Break("axis", widen(KEY, "S"), HAS))),
    Rule("FIA-SP-010", "actualSharedPrefixLen holds one number", GROUP, Level.SINGLE, ALL,
         ("v5.shared_prefix.single.actual_len_shape", _V3 + "single.actual_len_table",
          *_both_branches("single.len_shape")),
         lambda s: on(s) and bool(s.inputs.actualSharedPrefixLen), _one_length, enforced_by="GetSystemPrefix",
         limit="1 element",
         note="not looked at without prefix; read by the parser, but after it has let an empty call go",
         breaks=(Break("above", put(actualSharedPrefixLen=(1, 1)), HAS),),
         boundaries=(Boundary(put(actualSharedPrefixLen=(1,)), put(actualSharedPrefixLen=(1, 1)), HAS,
                              limit="1 element"),)),
    Rule("FIA-SP-011", "actualSharedPrefixLen is at most the prefix", GROUP, Level.SINGLE, ALL,
         ("v5.shared_prefix.single.actual_len_max", _V3 + "single.actual_len_table",
          *_both_branches("consistency.len_max")),
         lambda s: _stated(s) and newer_route(s) and s.prefix_s is not None, lambda s: _length(s) <= _columns(s),
         enforced_by="CheckActualSharedPrefixLenData", limit="<= S of the prefix",
         breaks=(Break("above", _state(1), _UNPACKED),), boundaries=(Boundary(_state(0), _state(1), _UNPACKED,
                                                                        limit="S of the prefix"),)),
    Rule("FIA-SP-015", "actualSharedPrefixLen is at most the prefix", GROUP, Level.SINGLE, DOC_A2A3_V5 | DOC_A2A3_V3,
         ("v5.shared_prefix.single.actual_len_max", _V3 + "single.actual_len_table",
          *_both_branches("consistency.len_max")),
         lambda s: _stated(s) and not newer_route(s) and s.prefix_s is not None, lambda s: _length(s) <= _columns(s),
         basis=Basis.DOCUMENTED, limit="<= S of the prefix", note="not every older route looks",
         breaks=(Break("above", _state(1), {**HAS, "scenario": "antiquant"}),),
         boundaries=(Boundary(_state(0), _state(1), {**HAS, "scenario": "antiquant"}, limit="S of the prefix"),)),
    Rule("FIA-SP-012", "actualSharedPrefixLen is not negative", GROUP, Level.SINGLE, V5,
         ("v5.shared_prefix.single.actual_len_nonneg",), _stated, lambda s: _length(s) >= 0, basis=Basis.SOURCE,
         enforced_by="CheckActualSharedPrefixLenData", limit=">= 0",
         breaks=(Break("below", put(actualSharedPrefixLen=(-1,)), HAS),),
         boundaries=(Boundary(put(actualSharedPrefixLen=(0,)), put(actualSharedPrefixLen=(-1,)), HAS, limit="0"),)),
    Rule("FIA-SP-013", "prefix and keys together keep the length limit of keys", GROUP, Level.CONSISTENCY,
         DOC_950 | DOC_A2A3_V5 | DOC_A2A3_V3,
         ("v5.shared_prefix.consistency.total_length", *_both_branches("cross.total_s")),
         lambda s: on(s) and _total(s) is not None, lambda s: (_total(s) or 0) <= 20971520, effect=Effect.UNSPECIFIED,
         basis=Basis.DOCUMENTED, limit="20971520", note="nothing checks it",
         breaks=(Break("above", where(lambda s: not s.inputs.actualSharedPrefixLen, _long),
                       {**HAS, "prefix": "full"}),),
         boundaries=(Boundary(_to_the_limit, _long, {**HAS, "prefix": "full"}, limit="20971520"),)),
)
