"""Cases: the public strategies for Hypothesis, and the same generators on a fast seeded source.

    @given(valid_cases("950-v5"))
    def test_mine(case): ...

    for item in generate("950-v5", "valid", 1000, seed=7): run(item.case)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Any, Optional

from fiafuzz.model.case import Case
from oracles.constraints.catalogue import rule_by_id

from .faults import Generated, Recipe, WithoutBase, apply, recipes
from .pairwise import pairwise_rows
from .plan import Infeasible, Needs, disputed_words, plan, root_of
from .realise import realise
from .source import HypothesisSource, SeededSource, Source

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

__all__ = ["Generated", "Infeasible", "WithoutBase", "boundary_cases", "build_valid", "disputed_cases", "generate",
           "invalid_cases", "pairwise_cases", "sweep", "valid_cases"]

MODES = ("valid", "invalid", "boundary", "disputed", "all")

_PLAIN_DRAWS = 48
"""More draws than plain calls take: none of those with fewer draws may pass for plainer."""

_HYPOTHESIS_BASES = 4
"""Bases tried for one example before Hypothesis is told to look elsewhere."""

_CYCLE = ("valid", "invalid", "valid", "boundary", "valid", "invalid")
"""Modes in turn under "all"."""


def build_valid(source: Source, profile: str, needs: Optional[Needs] = None) -> Case:
    """A valid call of a profile whose factor words are among the needed ones.

    Infeasible when there is none (950-v3 has none at all), ValueError for an unknown profile.
    """
    return realise(plan(source, profile, needs), source, profile)


# ---- Hypothesis -------------------------------------------------------------------------------


def valid_cases(profile: str, needs: Optional[Needs] = None) -> SearchStrategy[Case]:
    """Valid calls of a profile; shrinks to the plainest unquantised call.

    ``needs``: factor -> word or words (fiafuzz.model.factors). Infeasible at once when no valid call has them.
    """
    from hypothesis import strategies as st

    root_of(profile, needs)

    @st.composite
    def cases(draw: Callable[[Any], Any]) -> Case:
        source = HypothesisSource(draw)
        case = build_valid(source, profile, needs)
        source.fill_up(_PLAIN_DRAWS)
        return case

    return cases()


def invalid_cases(profile: str, rule: Optional[str] = None, *, select: Collection[str] = (),
                  ignore: Collection[str] = ()) -> SearchStrategy[Generated]:
    """Calls with a single fault: a valid base and one change that breaks one rule (of those that documents and source
    agree on, or the one given; ``select`` and ``ignore`` name groups or ids).

    Shrinks to the first rule on a plain base. ValueError for an unknown rule id, Infeasible when no rule is left.
    """
    return _faulty(profile, "invalid", rule, select, ignore)


def boundary_cases(profile: str, rule: Optional[str] = None, *, select: Collection[str] = (),
                   ignore: Collection[str] = (), accepted: bool = False) -> SearchStrategy[Generated]:
    """Calls at the edge of a rule's limit: the last value inside (valid) and the first outside (invalid; not if ``accepted``)."""
    return _faulty(profile, "boundary", rule, select, ignore, accepted)


def disputed_cases(profile: str, rule: Optional[str] = None, *, select: Collection[str] = (),
                   ignore: Collection[str] = ()) -> SearchStrategy[Generated]:
    """Calls on which documents and source disagree, or to which nobody promises an answer."""
    return _faulty(profile, "disputed", rule, select, ignore)


def _faulty(profile: str, mode: str, rule: Optional[str], select: Collection[str],
            ignore: Collection[str], accepted: bool = False) -> SearchStrategy[Generated]:
    from hypothesis import reject
    from hypothesis import strategies as st

    root_of(profile)
    chosen = _chosen(profile, mode, rule, select, ignore, accepted)
    if not chosen:
        raise Infeasible(f"{profile}: no rule offers {mode} calls" + (f" for {rule}" if rule else ""))

    @st.composite
    def cases(draw: Callable[[Any], Any]) -> Generated:
        source = HypothesisSource(draw)
        found = apply(source.choice(chosen), source, profile, mode, _HYPOTHESIS_BASES)
        source.fill_up(_PLAIN_DRAWS)
        if isinstance(found, WithoutBase):
            reject()
        return found

    return cases()


# ---- seeded -----------------------------------------------------------------------------------


def generate(profile: str, mode: str, n: int, seed: int, *, rule: Optional[str] = None, select: Collection[str] = (),
             ignore: Collection[str] = (), needs: Optional[Needs] = None,
             without_base: Optional[Callable[[WithoutBase], None]] = None, accepted: bool = False) -> Iterator[Generated]:
    """``n`` generated calls of a mode: valid, invalid, boundary, disputed or all; the same for the same arguments.

    ``rule`` (an id), ``select`` and ``ignore`` (groups or ids) limit which rules are broken, ``needs`` the valid calls.
    ``accepted``: only calls that must be accepted, so none of the modes invalid and disputed, and of boundary the inside.
    The rules take turns. Rules for which no valid base is found are told to ``without_base`` and left out; fewer than
    ``n`` calls come out only when no rule is left. Infeasible when the profile has no valid call, ValueError for an
    unknown profile, mode or rule.
    """
    if mode not in MODES:
        raise ValueError(f"unknown mode {mode!r}; known: {', '.join(MODES)}")
    root_of(profile, needs)
    source = SeededSource(f"{profile}/{mode}/{seed}")
    turns = {name: _Turns(profile, name, _chosen(profile, name, rule, select, ignore, accepted), source, without_base)
             for name in ("invalid", "boundary", "disputed") if mode in (name, "all")}
    # On disputed ground every other call is one that breaks nothing but has a word that one side alone accepts.
    words = disputed_words(profile) if mode == "disputed" and not (needs or rule or select or accepted) else ()
    return _generate(profile, mode, n, source, needs, turns, words)


def _generate(profile: str, mode: str, n: int, source: Source, needs: Optional[Needs],
              turns: dict[str, _Turns], words: tuple[tuple[str, str], ...]) -> Iterator[Generated]:
    for i in range(n):
        kind = _CYCLE[i % len(_CYCLE)] if mode == "all" else mode
        if words and i % 2:
            yield Generated(build_valid(source, profile, dict([words[i // 2 % len(words)]])), "disputed")
            continue
        if kind != "valid":
            found = turns[kind].next()
            if found is not None:
                yield found
                continue
            if mode != "all":
                return
        yield Generated(build_valid(source, profile, needs), "valid")


class _Turns:
    """Recipes in turn, in an order of the source's choosing; those without base drop out."""

    def __init__(self, profile: str, mode: str, chosen: tuple[Recipe, ...], source: Source,
                 without_base: Optional[Callable[[WithoutBase], None]]) -> None:
        self._profile, self._mode, self._source, self._tell = profile, mode, source, without_base
        self._left = [chosen[i] for i in source.order(len(chosen))]
        self._at = 0

    def next(self) -> Optional[Generated]:
        """The next call, None when no recipe is left."""
        while self._left:
            self._at %= len(self._left)
            found = apply(self._left[self._at], self._source, self._profile, self._mode)
            if isinstance(found, Generated):
                self._at += 1
                return found
            del self._left[self._at]
            if self._tell is not None:
                self._tell(found)
        return None


def sweep(profile: str, seed: int, *, select: Collection[str] = (), ignore: Collection[str] = (),
          disputed: bool = False, accepted: bool = False) -> Iterator[Generated | WithoutBase]:
    """Every rule of a profile broken once in each of its ways and met at each of its edges, in the order of the rules.

    ``accepted``: only the insides of the edges. Ways for which no valid base is found come as WithoutBase.
    """
    root_of(profile)
    source = SeededSource(f"{profile}/sweep/{seed}")
    for mode in ("invalid", "boundary", *(("disputed",) if disputed else ())):
        for recipe in _chosen(profile, mode, None, select, ignore, accepted):
            yield apply(recipe, source, profile, mode)


def pairwise_cases(profile: str, seed: int) -> Iterator[Generated]:
    """Valid calls that meet every feasible pair of factor words of a profile."""
    source = SeededSource(f"{profile}/pairwise/{seed}")
    for row in pairwise_rows(profile, seed):
        yield Generated(realise(row, source, profile), "valid")


def _chosen(profile: str, mode: str, rule: Optional[str], select: Collection[str],
            ignore: Collection[str], accepted: bool = False) -> tuple[Recipe, ...]:
    for name in ((rule,) if rule else ()):
        if name not in rule_by_id():
            raise ValueError(f"unknown rule {name!r}")
    found = recipes(profile, mode, rule)
    if accepted:
        found = tuple(r for r in found if r.edge == "inside" and mode != "disputed")
    if select:
        found = tuple(r for r in found if r.rule.group in select or r.rule.id in select)
    if ignore:
        found = tuple(r for r in found if r.rule.group not in ignore and r.rule.id not in ignore)
    return found
