"""A decision diagram over the scene factors: every path is a feasible plan, and no path is a dead end.

The rooms say, factor by factor, which words are allowed given words that were chosen before (``choice``), and derive
summaries of them (``derived``). While the diagram is built, a state stands for all partial plans that leave the same
values to later steps; states behind which the same plans lie become one node.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Optional, Union

Words = Union[Sequence[str], Mapping[str, int]]
"""Allowed words, the plainest first; a mapping gives them weights (default 1 each)."""


@dataclass(frozen=True)
class Step:
    """One step: its name, the function, the earlier names that the function reads (its parameters), and whether it
    chooses a factor's word or derives a value."""

    name: str
    function: Callable[..., Any]
    reads: tuple[str, ...]
    chooses: bool


def choice(function: Callable[..., Words]) -> Step:
    """The step that chooses the word of the factor of the function's name."""
    return Step(function.__name__, function, tuple(inspect.signature(function).parameters), True)


def derived(function: Callable[..., Any]) -> Step:
    """The step that derives a value (hashable) of the function's name from earlier ones."""
    return Step(function.__name__, function, tuple(inspect.signature(function).parameters), False)


class Node:
    """A choice: ``options`` are its words, ``next`` the node behind each, ``totals`` running sums of their weights.

    The end has no options. ``level`` counts the choices before it.
    """

    __slots__ = ("level", "next", "options", "totals")

    def __init__(self, level: int, edges: Sequence[tuple[str, int, Node]]) -> None:
        self.level = level
        self.options: tuple[str, ...] = tuple([word for word, _, _ in edges])
        self.totals: tuple[int, ...] = tuple(accumulate([weight for _, weight, _ in edges]))
        self.next: tuple[Node, ...] = tuple([node for _, _, node in edges])

    def edges(self) -> list[tuple[str, int, Node]]:
        """Word, weight and next node of each option."""
        weights = [total - before for total, before in zip(self.totals, (0, *self.totals))]
        return list(zip(self.options, weights, self.next))


State = tuple[Any, ...]


class Diagram:
    """The feasible plans of some steps, given constants that every step may read by name.

    ``root`` is None when no plan is feasible. ``levels`` holds the nodes, choice by choice. ValueError when a step
    reads a name that no earlier step or constant defines.
    """

    def __init__(self, steps: Sequence[Step], constants: Mapping[str, Any]) -> None:
        known = set(constants)
        for step in steps:
            for name in step.reads:
                if name not in known:
                    raise ValueError(f"step {step.name} reads {name}, which no earlier step gives")
            known.add(step.name)
        builder = _Builder(steps, constants)
        self.factors: tuple[str, ...] = builder.factors
        self.root: Optional[Node] = builder.root
        self.levels: list[list[Node]] = _by_level(self.root, len(self.factors))


def _by_level(root: Optional[Node], count: int) -> list[list[Node]]:
    found: list[list[Node]] = []
    reached: Iterable[Node] = [] if root is None else [root]
    for _ in range(count):
        level = list(reached)
        found.append(level)
        reached = {id(n): n for node in level for n in node.next}.values()
    return found


@dataclass(frozen=True)
class _Level:
    step: Step
    before: tuple[Step, ...]
    """Derivations between the choice before and this one."""
    live: tuple[str, ...]
    """Names that this choice or anything later reads and that stand before it."""


class _Builder:
    """Builds a diagram: states from the top, nodes from the bottom."""

    def __init__(self, steps: Sequence[Step], constants: Mapping[str, Any]) -> None:
        self._constants = constants
        self._memo: dict[tuple[Any, ...], Any] = {}
        self._levels = _levels(steps, frozenset(constants))
        self.factors = tuple(level.step.name for level in self._levels)
        values: dict[str, Any] = {}
        for step in self._levels[0].before:
            values[step.name] = self._value(step, values)
        first = tuple([values[n] for n in self._levels[0].live])
        self.root = self._nodes(self._states(first)).get(first)

    def _value(self, step: Step, values: Mapping[str, Any]) -> Any:
        key = (step.name, *[values[n] for n in step.reads if n in values])
        found = self._memo.get(key, key)
        if found is key:
            constants = self._constants
            found = step.function(*[values[n] if n in values else constants[n] for n in step.reads])
            if step.chooses:
                found = tuple(found.items()) if isinstance(found, Mapping) else tuple((w, 1) for w in found)
            self._memo[key] = found
        return found

    def _states(self, first: State) -> list[dict[State, list[tuple[str, int, State]]]]:
        """For each level its states, with word, weight and the state behind each word."""
        found = []
        reached: Iterable[State] = [first]
        for i in range(len(self._levels)):
            level = {state: self._edges(i, state) for state in reached}
            found.append(level)
            reached = dict.fromkeys(behind for edges in level.values() for _, _, behind in edges)
        return found

    def _edges(self, i: int, state: State) -> list[tuple[str, int, State]]:
        here = self._levels[i]
        values = dict(zip(here.live, state))
        if i + 1 == len(self._levels):
            return [(word, weight, ()) for word, weight in self._value(here.step, values)]
        after = self._levels[i + 1]
        found = []
        for word, weight in self._value(here.step, values):
            values[here.step.name] = word
            for step in after.before:
                values[step.name] = self._value(step, values)
            found.append((word, weight, tuple([values[n] for n in after.live])))
        return found

    def _nodes(self, levels: list[dict[State, list[tuple[str, int, State]]]]) -> dict[State, Node]:
        """The nodes of the first level by state: dead ends left out, equal nodes merged."""
        behind: dict[State, Node] = {(): Node(len(levels), ())}
        for number in reversed(range(len(levels))):
            same: dict[tuple[Any, ...], Node] = {}
            here: dict[State, Node] = {}
            for state, edges in levels[number].items():
                alive = [(word, weight, behind[next_state]) for word, weight, next_state in edges
                         if next_state in behind]
                if not alive:
                    continue
                key = tuple([(word, weight, id(node)) for word, weight, node in alive])
                node = same.get(key)
                if node is None:
                    node = same[key] = Node(number, alive)
                here[state] = node
            behind = here
        return behind


def _levels(steps: Sequence[Step], constants: frozenset[str]) -> tuple[_Level, ...]:
    found = []
    pending: list[Step] = []
    for i, step in enumerate(steps):
        if not step.chooses:
            pending.append(step)
            continue
        earlier = {s.name for s in steps[:i]}
        later = {name for s in steps[i:] for name in s.reads if name not in constants}
        found.append(_Level(step, tuple(pending), tuple(sorted(later & earlier))))
        pending = []
    return tuple(found)


def narrowed(diagram: Diagram, wanted: Mapping[str, frozenset[str]]) -> Optional[Node]:
    """The root of a diagram under a condition: only plans whose words are among the wanted ones, factor by factor.

    None when there is no such plan. What lies behind the last condition is shared with the diagram.
    """
    by_level = [wanted.get(name) for name in diagram.factors]
    last = max((i for i, words in enumerate(by_level) if words is not None), default=-1)
    known: dict[int, Optional[Node]] = {}

    def narrow(node: Node) -> Optional[Node]:
        if node.level > last:
            return node
        key = id(node)
        if key not in known:
            words = by_level[node.level]
            edges = []
            for word, weight, behind in node.edges():
                if words is None or word in words:
                    rest = narrow(behind)
                    if rest is not None:
                        edges.append((word, weight, rest))
            known[key] = Node(node.level, edges) if edges else None
        return known[key]

    return None if diagram.root is None else narrow(diagram.root)
