"""A2 and A3, one query token: what the older decode route demands of quantised key and value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Optional

from fiafuzz.model.case import TensorSpec
from fiafuzz.model.scene import Scene

from ..changes import put, relabel, where, widen, with_shape
from ..routes import DECODE_ROUTE
from ..rule import ALL_A2A3, DOC_A2A3_V5, SRC_A2A3, SRC_A2A3_V5, Basis, Break, Level, Rule
from .antiquant_scales import KEY, VALUE
from .antiquant_shapes import spoil
from .facts import Needs
from .old_full import SCALES
from .old_merged import merged
from .old_separate import OFFSETS, decode

PLAIN_FORMATS = ("ND", "NCHW", "NHWC", "NCDHW", "NCL")
"""Formats that the decode route takes for plain (V5 alone: V1 to V4 relabel every tensor)."""

AXES = 3
"""Axes of a scale for each token and head."""

_DECODE: Needs = {"scenario": "antiquant", "q_s": "1"}
_NAMES = ("antiquantScale", "antiquantOffset", KEY, VALUE, *OFFSETS)
_V5 = DOC_A2A3_V5 | SRC_A2A3_V5


def _quantised(s: Scene) -> bool:
    return s.quant_kind == "antiquant" and s.single_token and not s.packed and not s.given("queryRope")


def _token_form(s: Scene, shape: Optional[tuple[int, ...]]) -> bool:
    return shape is not None and len(shape) in (2, 3) and shape[-2] == s.B and shape[:-2] in ((), (1,))


def _other_mode(s: Scene) -> Optional[dict[str, object]]:
    spec = s.inputs.antiquantScale
    if spec is None or s.attrs.antiquantMode != 0:
        return None
    return {"antiquantMode": 2, "antiquantScale": with_shape(spec, (*spec.shape[:-1], spec.shape[-1] + 1))}


def _rule(number: int, title: str, level: Level, cites: tuple[str, ...], when: Callable[[Scene], bool],
          requires: Callable[[Scene], bool], *breaks: Break, profiles: frozenset[str] = ALL_A2A3,
          enforced_by: str = "", limit: str = "", note: str = "") -> Rule:
    return Rule(f"FIA-QU-{number}", title, "quant", level, profiles, cites, when, requires, basis=Basis.SOURCE,
                routes=DECODE_ROUTE, breaks=breaks, enforced_by=enforced_by, limit=limit, note=note)


RULES = (
    _rule(541, "one query token: antiquantMode of the merged scale is not negative", Level.SINGLE,
          ("v3.quant.single.antiquant_mode_qs_eq_1",), lambda s: _quantised(s) and merged(s),
          lambda s: s.attrs.antiquantMode >= 0,
          Break("below", where(lambda s: s.attrs.antiquantMode == 0, put(antiquantMode=-1)),
                {**_DECODE, "antiquant": "merged"}, ("FIA-QU-422",)),
          profiles=SRC_A2A3, enforced_by="CheckAntiQuantParam"),
    _rule(543, "one query token: a merged scale in another mode than 0 and 1 has the shape of a per-channel scale",
          Level.CONSISTENCY, ("v3.quant.consistency.antiquant_per_channel_shape",),
          lambda s: _quantised(s) and merged(s) and s.attrs.antiquantMode > 1 and s.Q_D is not None,
          lambda s: s.shape("antiquantScale") in ((2,), (2, s.KV_N * (s.Q_D or 0)), (2, s.KV_N, s.Q_D),
                                                  (2, s.KV_N, 1, s.Q_D)),
          Break("above", _other_mode, {**_DECODE, "antiquant": "merged", "antiquant_offset": "symmetric"},
                ("FIA-QU-422",)),
          profiles=SRC_A2A3, enforced_by="CheckKVAntiQuantPerChannel"),
    _rule(545, "one query token with quantised key: deqScale1, quantScale1 and deqScale2 are null", Level.EXISTENCE,
          ("v3.quant.existence.fp_in_fp_out_stray_scales",), _quantised,
          lambda s: not any(s.given(name) for name in SCALES),
          *(Break("present", put(**{name: TensorSpec((1,), "FLOAT32")}), _DECODE) for name in SCALES),
          enforced_by="ProcessQuant1"),
    _rule(547, "V5: antiquant scales and offsets of one query token have a plain format", Level.SINGLE,
          ("v5.interface.single.kv_antiquant_scale_dtypes",), _quantised,
          lambda s: all((t := s.tensor(name)) is None or t.format in PLAIN_FORMATS for name in _NAMES),
          *(Break("format", relabel("NDHWC", name), {**_DECODE, "antiquant_offset": "offset"})
            for name in (*OFFSETS, KEY, VALUE)),
          profiles=_V5, limit="ND and the plain image formats", enforced_by="CheckInputAntiquantFormat"),
    _rule(548, "V5: masks, biases and prefixes of one query token with quantised key have a plain format", Level.SINGLE,
          ("v5.interface.single.kv_antiquant_scale_dtypes",), _quantised,
          lambda s: all((t := s.tensor(name)) is None or t.format in PLAIN_FORMATS
                        for name in ("attenMask", "pseShift", "keySharedPrefix", "valueSharedPrefix")),
          Break("format", relabel("NDHWC", "attenMask"), {**_DECODE, "mask": "BOOL"}, ("FIA-AM-003",)),
          profiles=_V5, enforced_by="CheckInputParameterFormat"),
    _rule(544, "key per-channel with value per-token: the key offset has the shape of the key scale", Level.CONSISTENCY,
          ("v3.quant.single.key_antiquant_offset_table",),
          lambda s: decode(s) and s.antiquant_kind == "mixed" and s.given(OFFSETS[0]),
          lambda s: s.shape(OFFSETS[0]) == s.shape(KEY),
          Break("axis", widen(OFFSETS[0], 0), {**_DECODE, "antiquant": "mixed", "antiquant_offset": "offset"},
                ("FIA-QU-472",)),
          profiles=SRC_A2A3, enforced_by="CheckKVAntiQuantPerChannel"),
    _rule(546, "one query token, mode 3: scales and offsets have three axes", Level.SINGLE,
          ("v3.quant.consistency.qs_eq1_a2_token_head_shape",),
          lambda s: decode(s) and s.antiquant_kind == "token_head",
          lambda s: all(len(s.shape(name) or ()) == AXES for name in (KEY, VALUE, *OFFSETS) if s.given(name)),
          Break("rank", spoil(lambda shape: shape[1:]), {**_DECODE, "antiquant": "token_head"}),
          profiles=SRC_A2A3, limit="[B,N,L]", enforced_by="CheckKVAntiQuantPerHead"),
)
