"""Shapes of antiquant scales and offsets, mode by mode (V5, Ascend 950; V5 document lines 266-276 and 335-339)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fiafuzz.model.scene import Scene

from ..changes import together, with_shape
from ..rule import ALL_950, DOC_950, DOC_A2A3_V3, Basis, Boundary, Break, Change, Level, Rule, Stage, never
from .antiquant_modes import MIXED_KEY_DOCUMENTED, MIXED_KEY_FORM, as_mixed
from .antiquant_scales import KEY, MIXABLE, VALUE
from .facts import Needs, both_scales, channel_forms, old_paged_prefill, token_form
from .tables import GROUP

BOTH_SCALES = (KEY, VALUE)
OFFSETS = {KEY: "keyAntiquantOffset", VALUE: "valueAntiquantOffset"}
Shape = tuple[int, ...]


# ---- rank, as the parser reads it -----------------------------------------------------------------

RANKS: Mapping[int, tuple[int, ...]] = {1: (2, 3), 3: (3,), 6: (5,)}


def _rank_source(s: Scene) -> tuple[str, tuple[int, ...]] | None:
    """The scale (or its offset, where one is given) whose rank the parser reads, and the ranks that it takes."""
    key, value = s.antiquant_modes
    name = VALUE if (key, value) == (0, 1) else KEY
    ranks = RANKS.get(1 if name == VALUE else key)
    if ranks is None or not both_scales(s):
        return None
    offset = OFFSETS[name]
    return (offset if s.given(offset) else name), ranks


def rank_legal(s: Scene) -> bool:
    """Whether the parser can read the sequence axis of a per-token or per-group scale; True where it does not look."""
    found = _rank_source(s)
    return found is None or len(s.shape(found[0]) or ()) in found[1]


RANK = Rule(
    "FIA-QU-140", "per-token scales have rank 2 or 3, with head 3, per-group 5", "quant", Level.SINGLE, ALL_950,
    ("v5.quant.single.antiquant_scale_shape_per_token", "v5.quant.single.antiquant_scale_shape_per_token_head",
     "v5.quant.single.antiquant_scale_shape_per_token_group"),
    lambda s: s.quant_kind == "antiquant", rank_legal, Stage.PARSER, enforced_by="GetAntiQuantInfo",
    note="of an offset where one is given: the parser reads the sequence axis there",
    breaks=(
        Break("rank", lambda s: _both(s, lambda shape: (*((1,) * (4 - len(shape))), *shape)),
              {"antiquant": "per_token"}),
        Break("rank", lambda s: _both(s, lambda shape: shape[-1:]), {"antiquant": "per_token"}),
        Break("rank", lambda s: _both(s, lambda shape: (1, *shape)), {"antiquant": "token_head"}),
        Break("rank", lambda s: _both(s, lambda shape: shape[1:]), {"antiquant": "group"}),
    ),
)


def _both(s: Scene, change: Callable[[Shape], Shape]) -> dict[str, object] | None:
    """Both scales and their offsets with changed shapes."""
    values: dict[str, object] = {}
    for name in (*BOTH_SCALES, *OFFSETS.values()):
        spec = s.tensor(name)
        if spec is not None:
            values[name] = with_shape(spec, change(spec.shape))
    return values if KEY in values and VALUE in values else None


# ---- forms ----------------------------------------------------------------------------------------


def _channel(s: Scene, shape: Shape) -> bool:
    forms = channel_forms(s)
    return forms is None or shape == (1,) or shape in forms


def _tensor_head(s: Scene, shape: Shape) -> bool:
    return shape == (s.KV_N,)


def _token_head(s: Scene, shape: Shape) -> bool:
    return len(shape) == 3 and (s.B is None or shape[0] == s.B) and shape[1] == s.KV_N


def _token_paged(s: Scene, shape: Shape) -> bool:
    return len(shape) == 2 and shape[0] == s.cache_blocks and _block_rows(s, shape[1])


def _token_head_paged(s: Scene, shape: Shape) -> bool:
    return len(shape) == 3 and shape[:2] == (s.cache_blocks, s.KV_N) and _block_rows(s, shape[2])


def _block_rows(s: Scene, rows: int) -> bool:
    """blockSize, or the cache's own axis: where the two differ, that is the fault."""
    return rows in (s.block_size, s.cache_block_size)


def _group(s: Scene, shape: Shape) -> bool:
    if len(shape) != 5 or s.B is None or s.Q_D is None:
        return len(shape) == 5
    return (shape[0], shape[1], shape[2], shape[4]) == (1, s.B, s.KV_N, s.Q_D // GROUP)


@dataclass(frozen=True)
class Form:
    """The shape that a scale of some antiquant kinds has, lengths apart, and the fault that spoils it."""

    number: int
    kinds: tuple[str, ...]
    title: str
    limit: str
    fits: Callable[[Scene, Shape], bool]
    cites: tuple[str, ...]
    enforced_by: str
    wrong: tuple[tuple[str, Callable[[Shape], Shape]], ...]
    v3: tuple[str, ...] = ()
    inside: Callable[[Shape], Shape] = lambda shape: shape


def _shapes(*tails: str) -> tuple[str, ...]:
    return tuple(f"v5.quant.single.antiquant_scale_{t}" for t in tails)


def _last(by: int) -> Callable[[Shape], Shape]:
    return lambda shape: (*shape[:-1], shape[-1] + by)


FORMS: tuple[Form, ...] = (
    Form(141, ("per_tensor", "per_channel"), "mode 0 scales are [1] or a per-channel form",
         "[1], [H], [1,H], [N,D], [1,N,D], [N,1,D], [1,N,1,D], [1,1,N,D]", _channel,
         _shapes("shape_per_channel", "shape_per_tensor", "not_empty"), "CheckKScaleShapeForPerChannelPerTensorMode",
         (("above", _last(1)), ("below", _last(-1)), ("rank", lambda shape: (1, 1, 1, 1, *shape)),
          ("axis", lambda shape: (*shape[:-1], 0)))),
    Form(142, ("per_token",), "per-token scales are [B,L] or [1,B,L]", "[B,L], [1,B,L]", token_form,
         _shapes("shape_per_token"), "CheckKScaleShapeForPerTokenMode",
         (("above", lambda shape: (*shape[:-2], shape[-2] + 1, shape[-1])),
          ("axis", lambda shape: (2, *shape[-2:]))),
         inside=lambda shape: shape[1:] if len(shape) == 3 else (1, *shape)),
    Form(143, ("tensor_head",), "per-tensor scales with head are [KV_N]", "[KV_N]", _tensor_head,
         _shapes("shape_per_tensor_head"), "CheckKScaleShapeForPerTensorHeadMode",
         (("above", _last(1)), ("below", _last(-1)), ("rank", lambda shape: (1, *shape))),
         ("v3.quant.consistency.qs_eq1_a2_per_tensor_head_shape",)),
    Form(144, ("token_head",), "per-token scales with head are [B,KV_N,L]", "[B,KV_N,L]", _token_head,
         _shapes("shape_per_token_head"), "CheckKScaleShapeForPerTokenHeadMode",
         (("above", lambda shape: (shape[0] + 1, *shape[1:])),
          ("axis", lambda shape: (shape[0], shape[1] + 1, *shape[2:]))),
         ("v3.quant.consistency.qs_eq1_a2_token_head_shape",)),
    Form(145, ("token_paged",), "paged per-token scales are [blockNum,blockSize]", "[blockNum,blockSize]", _token_paged,
         _shapes("shape_per_token_paged"), "CheckKScaleShapeForPerTokenPAMode",
         (("above", _last(1)), ("below", _last(-1)), ("axis", lambda shape: (shape[0] + 1, *shape[1:])),
          ("rank", lambda shape: (1, *shape))), ("v3.quant.consistency.qs_eq1_a2_token_pa_shape",)),
    Form(146, ("token_head_paged",), "paged per-token scales with head are [blockNum,KV_N,blockSize]",
         "[blockNum,KV_N,blockSize]",
         _token_head_paged, _shapes("shape_per_token_head_paged"), "CheckKScaleShapeForPerTokenHeadPAMode",
         (("above", _last(1)), ("below", _last(-1)), ("axis", lambda shape: (shape[0], shape[1] + 1, *shape[2:])),
          ("rank", lambda shape: (1, *shape))), ("v3.quant.consistency.qs_eq1_a2_token_head_pa_shape",)),
    Form(147, ("group",), "per-group scales are [1,B,KV_N,L,D/32]", "[1,B,KV_N,L,D/32]", _group,
         _shapes("shape_per_token_group"), "CheckKScaleShapeForPerTokenGroupMode",
         (("above", _last(1)), ("axis", lambda shape: (shape[0] + 1, *shape[1:])),
          ("axis", lambda shape: (shape[0], shape[1] + 1, *shape[2:])),
          ("axis", lambda shape: (*shape[:2], shape[2] + 1, *shape[3:])))),
)
FORM_OF = {kind: form for form in FORMS for kind in form.kinds}
PAGED_KINDS = ("token_paged", "token_head_paged")


def _form_rule(form: Form) -> Rule:
    needs: Needs = {"antiquant": form.kinds, "prefix": "none"}

    def applies(s: Scene) -> bool:
        return (s.antiquant_kind in form.kinds and both_scales(s) and rank_legal(s) and not old_paged_prefill(s)
                and (s.antiquant_kind not in PAGED_KINDS or s.paged))

    def fits(s: Scene) -> bool:
        return all(form.fits(s, s.shape(name) or ()) for name in BOTH_SCALES)

    return Rule(
        f"FIA-QU-{form.number}", form.title, "quant", Level.SINGLE, ALL_950 | (DOC_A2A3_V3 if form.v3 else frozenset()),
        (*form.cites, *form.v3), applies, fits,
        enforced_by=form.enforced_by, limit=form.limit,
        breaks=(*(Break(side, spoil(change), needs) for side,
                  change in form.wrong),
                Break("axis", lambda s: spoil_one(s, VALUE, form.wrong[0][1]),
                      needs)),
        boundaries=(Boundary(spoil(form.inside), spoil(form.wrong[0][1]), needs, limit=form.limit),),
    )


def spoil(change: Callable[[Shape], Shape]) -> Change:
    """Both scales and their offsets with changed shapes."""
    return lambda s: _both(s, change)


def spoil_one(s: Scene, name: str, change: Callable[[Shape], Shape]) -> dict[str, object] | None:
    """One scale and its offset with a changed shape."""
    values: dict[str, object] = {}
    for each in (name, OFFSETS[name]):
        spec = s.tensor(each)
        if spec is not None:
            values[each] = with_shape(spec, change(spec.shape))
    return values or None


NEED_PAGED = Rule(
    "FIA-QU-148", "modes 4 and 5 need a paged cache", "quant", Level.CROSS, ALL_950 | DOC_A2A3_V3,
    ("v5.quant.cross.antiquant_modes_4_5_need_paged", "v3.quant.cross.qs_eq1_a2_token_pa_needs_pa",
     "v3.quant.cross.qs_eq1_a2_token_head_pa_needs_pa"),
    lambda s: s.antiquant_kind in PAGED_KINDS and both_scales(s), lambda s: s.paged,
    enforced_by="CheckKScaleShapeForPerTokenPAMode", note="implied by the scale shapes, which name blocks",
    breaks=(Break("absent", lambda s: _unpaged(s), {"antiquant": ("per_token", "token_head"), "storage": "contiguous",
                                                    "kv_dtype": "INT8",
                                                    "q_s": "1", "post_quant": "none", "prefix": "none"}),),
)


def _unpaged(s: Scene) -> dict[str, object] | None:
    shape = s.key_shape
    if shape is None:
        return None
    found = _both(s, lambda _: (shape[0], 128) if s.antiquant_kind == "per_token" else (shape[0], s.KV_N, 128))
    mode = 4 if s.antiquant_kind == "per_token" else 5
    return None if found is None else {**found, "keyAntiquantMode": mode, "valueAntiquantMode": mode}


# ---- key per-channel with value per-token ------------------------------------------------------


def _mixed_key(change: Callable[[Shape], Shape]) -> Change:
    return together(as_mixed, lambda s: spoil_one(s, KEY, change))


def _mixed_value(change: Callable[[Shape], Shape]) -> Change:
    def make(s: Scene) -> dict[str, object] | None:
        found = as_mixed(s)
        if found is None:
            return None
        changed = spoil_one(Scene(s.case.replace(**found)), VALUE, change)
        return None if changed is None else {**found, **changed}

    return make


def _one_by_one(s: Scene) -> dict[str, object] | None:
    spec, d = s.tensor(KEY), s.Q_D
    return None if spec is None or d is None or s.KV_N < 2 else {KEY: with_shape(spec, (1, 1, s.KV_N, d))}


MIXED_RULES = (
    Rule(
        "FIA-QU-150", "key per-channel with value per-token: the key scale has a mode 0 form", "quant", Level.SINGLE,
        ALL_950,
        _shapes("shape_k0v1_key"), lambda s: s.antiquant_kind == "mixed" and both_scales(s),
        lambda s: _channel(s, s.shape(KEY) or ()),
        enforced_by="CheckKScaleShapeForPerChannelPerTensorMode",
        breaks=(Break("above", _mixed_key(_last(1)), MIXABLE, (MIXED_KEY_DOCUMENTED, MIXED_KEY_FORM)),
                Break("rank", _mixed_key(lambda shape: (1, 1, 1, 1, *shape)), MIXABLE,
                      (MIXED_KEY_DOCUMENTED, MIXED_KEY_FORM))),
    ),
    Rule(
        MIXED_KEY_FORM, "key per-channel with value per-token: the key scale is neither [1] nor [1,1,N,D]", "quant",
        Level.SINGLE, DOC_950,
        _shapes("shape_k0v1_key"), lambda s: s.antiquant_kind == "mixed" and both_scales(s),
        lambda s: s.shape(KEY) not in ((1,), (1, 1, s.KV_N, s.Q_D)) or s.KV_N == 1, basis=Basis.DOCUMENTED,
        note="the source reuses the per-channel list",
        enforced_by="nothing", breaks=(Break("axis", together(as_mixed, _one_by_one),
                                             {**MIXABLE, "group": ("mha", "gqa"),
                                                                "antiquant_offset": "symmetric"},
                                                                (MIXED_KEY_DOCUMENTED, MIXED_KEY_FORM)),),
    ),
    Rule(
        "FIA-QU-152", "key per-channel with value per-token: the value scale is [B,L] or [1,B,L]", "quant",
        Level.SINGLE, ALL_950,
        _shapes("shape_k0v1_value"), lambda s: s.antiquant_kind == "mixed" and both_scales(s) and rank_legal(s),
        lambda s: token_form(s, s.shape(VALUE) or ()), enforced_by="CheckVScaleShapeForPerTokenMode",
        breaks=(Break("above", _mixed_value(lambda shape: (1, shape[1] + 1, shape[2])), MIXABLE,
                      (MIXED_KEY_DOCUMENTED, MIXED_KEY_FORM)),),
    ),
)

FORM_RULES = tuple(_form_rule(form) for form in FORMS)


# ---- lengths --------------------------------------------------------------------------------------

LENGTH_AXIS: Mapping[str, int] = {"per_token": -1, "token_head": -1, "group": -2, "mixed": -1}


def covered(s: Scene) -> int | None:
    """Rows of the sequence axis of the scales (the shorter one); None where a mode has none or the form is wrong."""
    axis = LENGTH_AXIS.get(s.antiquant_kind or "")
    key, value = s.shape(KEY), s.shape(VALUE)
    if axis is None or value is None or key is None or len(value) < 2:
        return None
    if s.antiquant_kind == "mixed":
        return value[-1]
    return min(key[axis], value[axis]) if len(key) >= 2 else None


def resized(s: Scene, rows: int | None, value_only: bool = False) -> dict[str, object] | None:
    """Scales (and offsets) with another number of rows on their sequence axis."""
    axis = LENGTH_AXIS.get(s.antiquant_kind or "")
    if axis is None or rows is None or rows < 0:
        return None

    def change(shape: Shape) -> Shape:
        at = axis % len(shape)
        return (*shape[:at], rows, *shape[at + 1:])

    return spoil_one(s, VALUE, change) if value_only or s.antiquant_kind == "mixed" else _both(s, change)


def _length_rule(number: int, title: str, cites: tuple[str, ...], enforced_by: str, paged: bool) -> Rule:
    def applies(s: Scene) -> bool:
        return s.quant_kind == "antiquant" and s.paged == paged and both_scales(s) and s.antiquant_kind in LENGTH_AXIS

    def long_enough(s: Scene) -> bool:
        rows, need = covered(s), s.KV_S
        return rows is None or need is None or rows >= need

    needs: dict[str, str | tuple[str, ...]] = {
        "antiquant": ("per_token", "token_head", "group"), "storage": ("BnBsH", "BnNBsD",
                                                                       "NZ") if paged else ("contiguous",
                                                                           "tensor_list"),
    }
    return Rule(
        f"FIA-QU-{number}", title, "quant", Level.SINGLE, ALL_950 | (frozenset() if paged else DOC_A2A3_V3), cites,
        applies, long_enough,
        enforced_by=enforced_by,
        limit="blockTable columns x blockSize" if paged else "KV_S",
        breaks=(Break("below", lambda s: resized(s, None if not s.KV_S else s.KV_S - 1), needs),
                Break("below", lambda s: resized(s, None if not s.KV_S else s.KV_S // 2), needs)),
        boundaries=(Boundary(lambda s: resized(s, s.KV_S), lambda s: resized(s, None if not s.KV_S else s.KV_S - 1),
                             needs,
                             limit="KV_S"),),
    )


LENGTH_RULES = (
    _length_rule(153, "scales cover KV_S rows",
                 (*_shapes("shape_per_token", "shape_per_token_head", "shape_per_token_group", "shape_k0v1_value"),
                  "v3.quant.consistency.qs_gt1_a2_sep_per_token_shape",
                  "v3.quant.consistency.qs_eq1_a2_per_token_shape",
                  "v3.quant.consistency.qs_eq1_a2_token_head_shape"),
                 "CheckKScaleShapeForPerTokenMode", paged=False),
    _length_rule(154, "with a paged cache scales cover all rows that the block table can address",
                 ("v5.quant.cross.antiquant_paged_per_token_len", "v5.quant.cross.antiquant_paged_per_token_head_len",
                  "v5.quant.cross.antiquant_paged_group_len", "v5.quant.cross.antiquant_paged_k0v1_len"),
                 "CheckFeaturePAForAntiquant", paged=True),
)


# ---- pairs ----------------------------------------------------------------------------------------


def forms_legal(s: Scene) -> bool:
    """Whether both scales have a legal shape by themselves (not for key per-channel with value per-token)."""
    form = FORM_OF.get(s.antiquant_kind or "")
    if form is None or not rank_legal(s) or not all(form.fits(s, s.shape(name) or ()) for name in BOTH_SCALES):
        return False
    rows = covered(s)
    return rows is None or s.KV_S is None or rows >= s.KV_S


EQUAL = Rule(
    "FIA-QU-155", "key and value scale have one shape", "quant", Level.CONSISTENCY, ALL_950,
    ("v5.quant.consistency.antiquant_scale_shapes_equal",),
    lambda s: s.quant_kind == "antiquant" and both_scales(s) and s.shape(KEY) != s.shape(VALUE) and forms_legal(s),
    never, basis=Basis.SOURCE, enforced_by="CheckScaleShapeForAntiquant",
    note="not for key per-channel with value per-token",
    breaks=(Break("axis", lambda s: spoil_one(s, VALUE, lambda shape: (1, *shape) if shape[0] != 1
                                              or len(shape) == 1 else shape[1:]),
                  {"antiquant": "per_channel", "prefix": "none"}),
            Break("above", lambda s: spoil_one(s, VALUE, _last(1)),
                  {"antiquant": ("per_token", "token_head"), "prefix": "none"})),
)


def _offset_shape_rule(number: int, scale: str, cite: str) -> Rule:
    offset = OFFSETS[scale]

    def spoil(change: Callable[[Shape], Shape]) -> Change:
        def make(s: Scene) -> dict[str, object] | None:
            spec = s.tensor(offset)
            return None if spec is None or (s.antiquant_kind == "mixed"
                                            and not s.is_950) else {offset: with_shape(spec, change(spec.shape))}

        return make

    return Rule(
        f"FIA-QU-{number}", f"{offset} has the shape of {scale}", "quant", Level.CONSISTENCY, ALL_950 | DOC_A2A3_V3,
        (cite, "v5.interface.single.kv_antiquant_offset_dtypes",
         f"v3.quant.single.{scale[:-14]}_antiquant_offset_table",
         "v3.quant.consistency.qs_gt1_a2_sep_shapes_offsets", "v3.quant.consistency.qs_eq1_sep_offset_shapes"),
        lambda s: (s.quant_kind == "antiquant" and s.given(offset) and both_scales(s) and rank_legal(s)
                   and (forms_legal(s) or (s.antiquant_kind == "mixed" and s.is_950)) and not old_paged_prefill(s)),
        lambda s: s.shape(offset) == s.shape(scale), enforced_by="CheckOffsetShapeForAntiquant",
        breaks=(Break("above", spoil(_last(1)), {"antiquant_offset": "offset"}),
                Break("below", spoil(_last(-1)), {"antiquant_offset": "offset"}),
                Break("rank", spoil(lambda shape: (1, *shape)), {"antiquant_offset": "offset",
                                                                 "antiquant": ("per_tensor", "per_channel",
                                                                               "tensor_head")})),
    )


OFFSET_RULES = (
    _offset_shape_rule(156, KEY, "v5.quant.consistency.antiquant_key_offset_shape"),
    _offset_shape_rule(157, VALUE, "v5.quant.consistency.antiquant_value_offset_shape"),
)

RULES = (RANK, *FORM_RULES, NEED_PAGED, *MIXED_RULES, *LENGTH_RULES, EQUAL, *OFFSET_RULES)
