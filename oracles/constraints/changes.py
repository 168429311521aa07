"""Small pure changes of a valid case, from which the rules build their faults and boundary cases.

Each function here makes a ``Change``: a function that takes the scene of a valid case and gives the parameters to set
(C name -> new value), or None where that case offers no place for it. ``applied`` turns the answer into a case.

Axes are named by index or by letter: B, S, N, D, H, T as the layout has them; a paged cache has Bn (blocks), N, Bs
(rows of a block), D or D1 and D0, and H. A letter that the tensor does not have is no place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Optional, Union

import msgspec

from fiafuzz.model.case import Case, TensorSpec
from fiafuzz.model.scene import Scene

from .rule import Change

Axis = Union[int, str]
Size = Union[int, Callable[[Scene, int], Optional[int]]]
Shape = Union[tuple[int, ...], Callable[[Scene], Optional[tuple[int, ...]]]]

_CACHE_AXES: dict[int, tuple[str, ...]] = {
    3: ("Bn", "Bs", "H"), 4: ("Bn", "N", "Bs", "D"), 5: ("Bn", "N", "D1", "Bs", "D0"),
}
_KEY_LIKE = frozenset({"key", "value", "keyRope"})
_INPUT_LIKE = frozenset({"query", "queryRope", "key", "value", "keyRope", "keySharedPrefix", "valueSharedPrefix"})


def applied(scene: Scene, change: Change) -> Optional[Case]:
    """The case of a scene with a change made, None where there is no place for it."""
    values = change(scene)
    return None if values is None else scene.case.replace(**values)


# ---- where things are -----------------------------------------------------------------------


def specs(scene: Scene, name: str) -> tuple[TensorSpec, ...]:
    """The tensors of a parameter: all items of a list, one, or none."""
    found = scene.case.get(name)
    items = found if isinstance(found, tuple) else (found,)
    return tuple(t for t in items if isinstance(t, TensorSpec))


def axis_index(scene: Scene, name: str, axis: Axis) -> Optional[int]:
    """The index of an axis of a tensor (the first of a list), None when it has no such axis."""
    found = specs(scene, name)
    if not found:
        return None
    rank = found[0].rank
    if isinstance(axis, int):
        return axis % rank if -rank <= axis < rank else None
    letters: Sequence[str] = ()
    if name in _KEY_LIKE and scene.paged:
        letters = _CACHE_AXES.get(rank, ())
    elif scene.layout is not None and name in _INPUT_LIKE:
        letters = scene.layout.inputs
    elif scene.layout is not None and name == "attentionOut":
        letters = scene.layout.output
    return letters.index(axis) if len(letters) == rank and axis in letters else None


def size_of(scene: Scene, name: str, axis: Axis) -> Optional[int]:
    """The size of an axis of a tensor (the first of a list), None when it has no such axis."""
    index = axis_index(scene, name, axis)
    return None if index is None else specs(scene, name)[0].shape[index]


def with_shape(spec: TensorSpec, shape: tuple[int, ...]) -> TensorSpec:
    """A tensor with another shape: dense, and without literal values that no longer fit."""
    values = spec.values if spec.values is not None and len(spec.values) == _count(shape) else None
    return msgspec.structs.replace(spec, shape=shape, strides=None, offset=0, values=values)


def _count(shape: tuple[int, ...]) -> int:
    total = 1
    for n in shape:
        total *= n
    return total


# ---- changes --------------------------------------------------------------------------------


def put(**values: object) -> Change:
    """Set parameters to fixed values (None is a null pointer)."""
    return lambda scene: values


def drop(*names: str) -> Change:
    """Make parameters null; no place when one is null already."""
    return lambda scene: dict.fromkeys(names) if all(scene.given(n) for n in names) else None


TensorChange = Callable[[Scene, TensorSpec], Optional[TensorSpec]]


def per_tensor(change: TensorChange, *names: str, item: Optional[int] = None) -> Change:
    """Change the tensors of parameters one by one; of a list all items, or only item number ``item``."""

    def make(scene: Scene) -> Optional[dict[str, object]]:
        values: dict[str, object] = {}
        for name in names:
            found = scene.case.get(name)
            if isinstance(found, TensorSpec):
                new = change(scene, found)
                if new is None:
                    return None
                values[name] = new
            elif isinstance(found, tuple) and found and all(isinstance(t, TensorSpec) for t in found):
                if item is not None and not -len(found) <= item < len(found):
                    return None
                chosen = None if item is None else item % len(found)
                items: list[Any] = [t if chosen not in (None, i) else change(scene, t) for i, t in enumerate(found)]
                if any(t is None for t in items):
                    return None
                values[name] = tuple(items)
            else:
                return None
        return values

    return make


def cast(dtype: str, *names: str, item: Optional[int] = None) -> Change:
    """Give tensors another dtype; no place when one has it already."""

    def change(_: Scene, spec: TensorSpec) -> Optional[TensorSpec]:
        return None if spec.dtype == dtype else msgspec.structs.replace(spec, dtype=dtype)

    return per_tensor(change, *names, item=item)


def relabel(fmt: str, *names: str, item: Optional[int] = None) -> Change:
    """Give tensors another format."""

    def change(_: Scene, spec: TensorSpec) -> Optional[TensorSpec]:
        return None if spec.format == fmt else msgspec.structs.replace(spec, format=fmt)

    return per_tensor(change, *names, item=item)


def reshape(name: str, shape: Shape, item: Optional[int] = None) -> Change:
    """Give a tensor another shape (fixed, or a function of the scene)."""

    def change(scene: Scene, spec: TensorSpec) -> Optional[TensorSpec]:
        new = shape(scene) if callable(shape) else shape
        return None if new is None or new == spec.shape else with_shape(spec, new)

    return per_tensor(change, name, item=item)


def resize(names: Union[str, tuple[str, ...]], axis: Axis, size: Size, item: Optional[int] = None) -> Change:
    """Give one axis of tensors another size: fixed, or a function of the scene and the present size."""

    def make(scene: Scene) -> Optional[dict[str, object]]:
        values: dict[str, object] = {}
        for name in (names,) if isinstance(names, str) else names:
            index = axis_index(scene, name, axis)
            if index is None:
                return None
            at = index

            def change(scene: Scene, spec: TensorSpec, at: int = at) -> Optional[TensorSpec]:
                new = size(scene, spec.shape[at]) if callable(size) else size
                if new is None or new == spec.shape[at]:
                    return None
                return with_shape(spec, (*spec.shape[:at], new, *spec.shape[at + 1:]))

            found = per_tensor(change, name, item=item)(scene)
            if found is None:
                return None
            values.update(found)
        return values

    return make


def widen(names: Union[str, tuple[str, ...]], axis: Axis, by: int = 1, item: Optional[int] = None) -> Change:
    """Make one axis of tensors longer (or, with a negative number, shorter)."""
    return resize(names, axis, lambda _, old: old + by if old + by >= 0 else None, item)


def add_axis(name: str, at: int = 0, size: int = 1, item: Optional[int] = None) -> Change:
    """Put one more axis into a tensor's shape."""

    def change(_: Scene, spec: TensorSpec) -> Optional[TensorSpec]:
        return with_shape(spec, (*spec.shape[:at], size, *spec.shape[at:])) if at <= spec.rank else None

    return per_tensor(change, name, item=item)


def merge_axes(name: str, at: int = 0, item: Optional[int] = None) -> Change:
    """Make two neighbouring axes of a tensor one (rank - 1, same number of elements)."""

    def change(_: Scene, spec: TensorSpec) -> Optional[TensorSpec]:
        if at + 2 > spec.rank:
            return None
        return with_shape(spec, (*spec.shape[:at], spec.shape[at] * spec.shape[at + 1], *spec.shape[at + 2:]))

    return per_tensor(change, name, item=item)


def stretch(*names: str, axis: int = 0, by: int = 1, item: Optional[int] = None) -> Change:
    """Make tensors non-contiguous: ``by`` more elements from one step of an axis to the next."""

    def change(_: Scene, spec: TensorSpec) -> Optional[TensorSpec]:
        if not -spec.rank <= axis < spec.rank or spec.empty or max(spec.shape, default=1) == 1:
            return None
        at, step, strides = axis % spec.rank, 1, []
        for i in reversed(range(spec.rank)):
            if i == at:
                step += by
            strides.append(step)
            step *= spec.shape[i]
        strided = msgspec.structs.replace(spec, strides=tuple(reversed(strides)))
        return None if strided.contiguous else strided

    return per_tensor(change, *names, item=item)


def entries(name: str, change: Callable[[Scene, tuple[int, ...]], Optional[tuple[int, ...]]]) -> Change:
    """Change the numbers of an int array; no place when it is null, empty or stays as it is."""

    def make(scene: Scene) -> Optional[dict[str, object]]:
        found = scene.case.get(name)
        if not isinstance(found, tuple) or not found:
            return None
        new = change(scene, found)
        return None if new is None or new == found else {name: new}

    return make


def entry(name: str, at: int, value: Size) -> Change:
    """Set one number of an int array: fixed, or a function of the scene and the present number."""

    def change(scene: Scene, found: tuple[int, ...]) -> Optional[tuple[int, ...]]:
        if not -len(found) <= at < len(found):
            return None
        i = at % len(found)
        new = value(scene, found[i]) if callable(value) else value
        return None if new is None else (*found[:i], new, *found[i + 1:])

    return entries(name, change)


def together(*changes: Change) -> Change:
    """Several changes of different parameters as one; no place when one of them has none."""

    def make(scene: Scene) -> Optional[dict[str, object]]:
        values: dict[str, object] = {}
        for change in changes:
            found = change(scene)
            if found is None:
                return None
            values.update(found)
        return values

    return make


def where(condition: Callable[[Scene], bool], change: Change) -> Change:
    """A change that only has a place where a condition on the scene holds."""
    return lambda scene: change(scene) if condition(scene) else None


def held(condition: Callable[[Scene], bool], change: Change) -> Change:
    """A change to an edge that the base may stand on already: nothing to do where the condition holds."""
    return lambda scene: {} if condition(scene) else change(scene)


def head_size(size: Size, *names: str) -> Change:
    """Give tensors another head size: their D axis, or their H axis as heads x D; packed INT4 counted in elements."""

    def make(scene: Scene) -> Optional[dict[str, object]]:
        values: dict[str, object] = {}
        for name in names:
            found = _head_size_change(scene, name, size)
            if found is None:
                return None
            values.update(found)
        return values

    return make


def _head_size_change(scene: Scene, name: str, size: Size) -> Optional[Mapping[str, object]]:
    heads = scene.KV_N if name in _KEY_LIKE or name.endswith("SharedPrefix") else scene.Q_N
    packing = 8 if scene.int4_carrier and name in ("key", "value") else 1
    found = specs(scene, name)
    row = found[0].shape[-1] if found and found[0].shape else 0
    for axis, per_d, packed in (("D", 1, packing), ("H", heads, packing), ("D1", 1, row)):
        index = axis_index(scene, name, axis)
        if index is None or per_d <= 0 or packed <= 0:
            continue
        old = found[0].shape[index] * packed // per_d
        new = size(scene, old) if callable(size) else size
        if new is None or new * per_d % packed:
            return None
        return resize(name, axis, new * per_d // packed)(scene)
    return None
