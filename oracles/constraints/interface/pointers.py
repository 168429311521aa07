"""Null pointers and the early exits of the entry."""

from __future__ import annotations

from typing import Any

from fiafuzz.model.scene import Scene

from ..changes import drop, put, resize
from ..documents import ALL_PROFILES
from ..rule import DOC_A2A3_V3, SRC_A2A3_V3, Basis, Break, Effect, Level, Rule, Stage, always, never


def _rule(number: int, title: str, **more: Any) -> Rule:
    return Rule(id=f"FIA-IF-{number:03d}", title=title, group="interface", **more)


_REQUIRED = (
    (1, "query", ("v5.interface.existence.query_not_null", "v3.common.existence.query_null")),
    (2, "key", ("v5.interface.existence.key_not_null",)),
    (3, "value", ("v5.interface.existence.value_not_null",)),
    (4, "attentionOut", ("v5.interface.existence.attention_out_not_null",)),
)
"""Parameters that must not be null: rule number, name, what states it for this one."""

_EVERY_REQUIRED = ("v5.common.existence.required_not_null", "v3.interface.existence.return_nullptr")


def _not_null(number: int, name: str, cites: tuple[str, ...]) -> Rule:
    return _rule(
        number, f"{name} is not null", level=Level.EXISTENCE, profiles=ALL_PROFILES,
        cites=(*cites, *_EVERY_REQUIRED), stage=Stage.ENTRY, enforced_by="null assert of the entry",
        when=always, requires=lambda s, n=name: s.given(n),
        breaks=(Break("absent", drop(name)),),
    )


def _null_item(s: Scene) -> bool:
    return s.inputs.key is not None and s.inputs.value is not None and (
        not s.keys or not s.values or None in s.keys or None in s.values)


RULES: tuple[Rule, ...] = (
    *(_not_null(*row) for row in _REQUIRED),
    _rule(
        5, "key and value lists hold tensors, none of them null", level=Level.EXISTENCE,
        profiles=ALL_PROFILES, cites=("v5.interface.existence.key_value_list_elements_not_null",),
        stage=Stage.ENTRY, effect=Effect.UNSPECIFIED, enforced_by="nothing (element 0 is read unchecked)",
        when=_null_item, requires=never,
        breaks=(
            Break("value", put(key=(), value=()), {"storage": "contiguous"}, note="empty lists"),
            Break("absent", put(key=(None,), value=(None,)), {"storage": "contiguous"}),
        ),
        note="A real process would most likely die: not to be sent to a live backend.",
    ),
    _rule(
        6, "inputLayout is not null in V1 to V4", level=Level.EXISTENCE, profiles=DOC_A2A3_V3 | SRC_A2A3_V3,
        cites=("v3.interface.existence.return_nullptr",), stage=Stage.ENTRY, basis=Basis.SOURCE,
        enforced_by="null check of the entry", when=always, requires=lambda s: s.attrs.inputLayout is not None,
        breaks=(Break("absent", put(inputLayout=None), {"layout": "BSH"}),),
        note="V5 takes a null inputLayout as BSH.",
    ),
    _rule(
        7, "an empty attentionOut ends V1 to V4 with success", level=Level.EXISTENCE, profiles=DOC_A2A3_V3 | SRC_A2A3_V3,
        cites=("v3.common.existence.attention_out_empty",), stage=Stage.ENTRY, order=90, effect=Effect.ACCEPT,
        enforced_by="entry (workspace size 0)", when=lambda s: s.empty_out, requires=never,
        breaks=(Break("value", resize("attentionOut", 0, 0)),),
        note="Nothing behind the null checks is looked at, so wrong companions pass as well.",
    ),
)
