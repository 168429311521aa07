"""Decision diagrams on small made-up steps, against brute force."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import combinations, product

import pytest

from strategies.diagram import Diagram, Node, Words, choice, derived, narrowed
from strategies.tuples import Literals, tuples_of


@choice
def size(limit: int) -> Words:
    return {"small": 3, "large": 1, "huge": 1}


@derived
def roomy(size: str) -> bool:
    return size != "small"


@choice
def lid(roomy: bool) -> Words:
    return ("none", "glass") if roomy else ("none",)


@choice
def handle(size: str, lid: str) -> Words:
    # A huge one with a glass lid has no handle that fits: a dead end that must not be entered.
    return () if (size, lid) == ("huge", "glass") else ("wood", "steel")


@choice
def colour(lid: str, handle: str, limit: int) -> Words:
    return ("red", "blue", "green")[:limit] if (lid, handle) != ("glass", "steel") else ("blue",)


STEPS = (size, roomy, lid, handle, colour)


def plans(node: Node, head: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if not node.options:
        yield head
    for word, behind in zip(node.options, node.next):
        yield from plans(behind, (*head, word))


def expected(limit: int) -> set[tuple[str, ...]]:
    found = set()
    for s, li, h, c in product(("small", "large", "huge"), ("none", "glass"), ("wood", "steel"), ("red", "blue", "green")):
        fits = li == "none" or s != "small"
        if fits and (s, li) != ("huge", "glass") and c in (("red", "blue", "green")[:limit] if (li, h) != ("glass", "steel")
                                                            else ("blue",)):
            found.add((s, li, h, c))
    return found


@pytest.mark.parametrize("limit", [1, 3])
def test_paths_are_exactly_the_feasible_plans(limit: int) -> None:
    diagram = Diagram(STEPS, {"limit": limit})
    assert diagram.root is not None
    found = list(plans(diagram.root))
    assert Counter(found) == Counter(expected(limit))
    assert diagram.factors == ("size", "lid", "handle", "colour")


def test_equal_nodes_are_one() -> None:
    diagram = Diagram(STEPS, {"limit": 3})
    # Behind "small" and "huge" lie the same plans: no lid, either handle, any colour.
    assert [len(level) for level in diagram.levels] == [1, 2, 2, 2]


def test_weights_belong_to_words() -> None:
    root = Diagram(STEPS, {"limit": 3}).root
    assert root is not None
    assert [(word, weight) for word, weight, _ in root.edges()] == [("small", 3), ("large", 1), ("huge", 1)]


@pytest.mark.parametrize("wanted", [
    {"lid": {"glass"}}, {"size": {"huge"}, "colour": {"green"}}, {"handle": {"steel"}, "lid": {"glass"}}, {},
    {"size": {"small", "huge"}, "handle": {"wood"}},
])
def test_narrowing_keeps_exactly_the_wanted(wanted: dict[str, set[str]]) -> None:
    diagram = Diagram(STEPS, {"limit": 3})
    root = narrowed(diagram, {k: frozenset(v) for k, v in wanted.items()})
    assert root is not None
    at = {name: i for i, name in enumerate(diagram.factors)}
    assert set(plans(root)) == {p for p in expected(3) if all(p[at[k]] in v for k, v in wanted.items())}


def test_narrowing_to_nothing() -> None:
    diagram = Diagram(STEPS, {"limit": 3})
    assert narrowed(diagram, {"size": frozenset({"huge"}), "lid": frozenset({"glass"})}) is None
    assert narrowed(diagram, {"colour": frozenset({"pink"})}) is None


def test_no_plan_at_all() -> None:
    @choice
    def nothing() -> Words:
        return ()

    diagram = Diagram((nothing,), {})
    assert diagram.root is None and diagram.levels == [[]]
    assert narrowed(diagram, {}) is None


def test_a_step_may_read_earlier_names_only() -> None:
    with pytest.raises(ValueError, match="lid reads roomy, which no earlier step gives"):
        Diagram((size, lid, roomy), {"limit": 1})


def test_tuples_are_exact() -> None:
    diagram = Diagram(STEPS, {"limit": 3})
    names = tuple((factor, word) for factor, level in zip(diagram.factors, diagram.levels)
                  for word in dict.fromkeys(w for node in level for w in node.options))
    literals = Literals(names, {name: i for i, name in enumerate(names)})
    found = tuples_of(diagram, literals)
    met: dict[int, set[tuple[int, ...]]] = {t: set() for t in (1, 2, 3)}
    for plan in expected(3):
        numbers = [literals.index[item] for item in zip(diagram.factors, plan)]
        for t, sets in met.items():
            sets.update(combinations(numbers, t))
    assert [found.count(t) for t in (1, 2, 3)] == [len(met[t]) for t in (1, 2, 3)]
    size = literals.size
    assert {(a, b) for b in range(size) for a in range(size) if found.pairs[b] >> a & 1} == met[2]
    assert {(a, b, c) for c in range(size) for b in range(size) for a in range(size)
            if found.triples[c] >> (b * size + a) & 1} == met[3]
