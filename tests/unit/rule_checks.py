"""What the tests of the rule rooms share: who breaks what, and calls mangled at random."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import strategies as st

from fiafuzz.model.case import Case, TensorSpec
from fiafuzz.model.dtypes import DTYPES
from fiafuzz.model.layouts import LAYOUTS
from fiafuzz.model.parameters import ATTRIBUTES, INT_ARRAYS, OUTPUTS, TENSOR_INPUTS, TENSOR_LISTS
from fiafuzz.model.scene import Scene
from oracles.constraints.catalogue import all_rules
from oracles.constraints.predict import predict

DOCUMENT, SOURCE = "950-v5", "950-v5-2026.08"
BOTH = (DOCUMENT, SOURCE)
OLD = "a2-v3"
OLD_V5 = "a2-v5"

SIZES = st.sampled_from((-1, 0, 1, 2, 3, 15, 16, 17, 64, 127, 128, 2048, 65536, 1 << 33))
DTYPE_NAMES = st.sampled_from(tuple(DTYPES))


def accepted(case: Case, *profiles: str) -> None:
    """The call must be predicted to pass under every profile."""
    for name in profiles:
        found = predict(case, name)
        assert (found.verdict, found.rule_ids, found.undecided) == ("accept", (), ()), (name, found)


def refused(case: Case, rule: str | set[str], *profiles: str, code: int = 561002) -> None:
    """The call must be predicted to fail by exactly these rules under every profile."""
    wanted = {rule} if isinstance(rule, str) else rule
    for name in profiles:
        found = predict(case, name)
        assert (found.verdict, set(found.rule_ids), found.undecided) == ("reject", wanted, ()), (name, found)
        assert code in found.codes, (name, found.codes)


def disputed(case: Case, rule: str, document: str, source: str, *profiles: str) -> None:
    """Document and source must answer differently, by this rule alone."""
    for name in profiles:
        found = predict(case, name)
        assert found.verdict == "unspecified" and found.rule_ids == (rule,), (name, found)
        assert found.document is not None and found.source is not None
        assert (found.document.verdict, found.source.verdict) == (document, source), (name, found)


def reshaped(case: Case, name: str, *shape: int, item: int = 0) -> Case:
    """The call with one tensor (of a list one item) in another dense shape."""
    return _changed(case, name, item, shape=shape, strides=None, values=None)


def cast(case: Case, name: str, dtype: str) -> Case:
    """The call with one tensor in another dtype."""
    return _changed(case, name, 0, dtype=dtype)


def strided(case: Case, name: str, *strides: int) -> Case:
    """The call with one tensor as a view of these strides."""
    return _changed(case, name, 0, strides=strides)


def _changed(case: Case, name: str, item: int, **fields: Any) -> Case:
    found = case.get(name)
    if isinstance(found, tuple):
        items = list(found)
        items[item] = msgspec.structs.replace(items[item], **fields)
        return case.replace(**{name: tuple(items)})
    assert isinstance(found, TensorSpec), name
    return case.replace(**{name: msgspec.structs.replace(found, **fields)})


def spec(dtype: str, *shape: int) -> TensorSpec:
    """A tensor spec, dtype first."""
    return TensorSpec(shape, dtype)


@st.composite
def mangled(draw: st.DrawFn, bases: tuple[Case, ...]) -> Case:
    """One of the calls with up to five parameters dropped, added, recast, reshaped or set to odd values."""
    case = draw(st.sampled_from(bases))
    for _ in range(draw(st.integers(1, 5))):
        case = case.replace(**draw(_odd_parameter(case)))
    return case


@st.composite
def _odd_parameter(draw: st.DrawFn, case: Case) -> dict[str, object]:
    kind = draw(st.sampled_from(("tensor", "list", "array", "attribute", "output")))
    if kind == "tensor":
        return {draw(st.sampled_from(TENSOR_INPUTS)): draw(st.none() | _tensors())}
    if kind == "list":
        items = st.lists(st.none() | _tensors(), max_size=3).map(tuple)
        return {draw(st.sampled_from(TENSOR_LISTS)): draw(st.none() | items)}
    if kind == "array":
        return {draw(st.sampled_from(INT_ARRAYS)): draw(st.none() | st.lists(SIZES, max_size=4).map(tuple))}
    if kind == "output":
        return {draw(st.sampled_from([p.name for p in OUTPUTS])): draw(st.none() | _tensors())}
    name = draw(st.sampled_from([a.name for a in ATTRIBUTES]))
    if name == "inputLayout":
        return {name: draw(st.none() | st.sampled_from((*LAYOUTS, "bsh", "SBH")))}
    if name == "softmaxLseFlag":
        return {name: draw(st.booleans())}
    return {name: draw(SIZES)}


@st.composite
def _tensors(draw: st.DrawFn) -> TensorSpec:
    shape = tuple(draw(st.lists(SIZES, max_size=6)))
    strides = draw(st.none() | st.lists(SIZES, min_size=len(shape), max_size=len(shape)).map(tuple))
    return TensorSpec(shape, draw(DTYPE_NAMES), strides=strides)


def none_raises(group: str, case: Case) -> None:
    """Every rule of a group must answer for the call, whatever is wrong with it."""
    scene = Scene(case)
    for rule in all_rules():
        if rule.group == group and rule.when(scene):
            assert rule.requires(scene) in (True, False), rule.id
