"""Sequences: groups of calls that one process makes one after the other, so that what one call leaves behind can harm the next.

A group has a family of its own: a generated call, variations of it (other values under the same shapes; a feature or an attribute
less; other sizes), and a stranger. It is laid out as a return to the first call over and over, as a way up and down the sizes, or
at random. The seed of the run and the number of a group decide it, whatever was made before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count, islice
from typing import TYPE_CHECKING, Any, Optional

from fiafuzz.model.case import Case
from fiafuzz.model.scene import Scene

from . import bundles
from .blueprint import Fields, put_together
from .dissect import take_apart
from .proposals import Proposal, of_generated
from .shrink import DESCRIBES_NOTHING

if TYPE_CHECKING:
    from strategies.source import Source

    from .plan import Plan

Group = tuple[Proposal, ...]
Variation = Callable[[Fields, "Source"], Optional[dict[str, Any]]]

BLOCK = 500
"""Groups whose calls come from one source, so that a resumed run need not make all calls before its own."""
PER_GROUP = 2
"""Generated calls that each group takes from its source, whether it needs them or not."""
FAMILY = 4
TRIES = 8
MAX_AXIS = 512
"""Axes are not made longer than this."""


def _other_values(fields: Fields, source: Source) -> Optional[dict[str, Any]]:
    return bundles.changed(fields, seed=source.seed())


def _other_scale(fields: Fields, source: Source) -> Optional[dict[str, Any]]:
    return bundles.changed(fields, scaleValue=source.choice((0.125, 0.25, 0.0625)))


def _without(reduction: bundles.Reduction) -> Variation:
    return lambda fields, source: reduction(fields)


def _longer(fields: Fields, source: Source) -> Optional[dict[str, Any]]:
    name, to_size = source.choice((("Q_S", bundles.to_query_size), ("KV_S", bundles.to_key_size)))
    return to_size(fields, min(MAX_AXIS, 2 * fields[name] + source.integer(0, 1)))


def _shorter(fields: Fields, source: Source) -> Optional[dict[str, Any]]:
    name, to_size = source.choice((("Q_S", bundles.to_query_size), ("KV_S", bundles.to_key_size)))
    return to_size(fields, max(1, fields[name] // 2))


VARIATIONS: dict[str, tuple[Variation, ...]] = {
    "values": (_other_values, _other_values, _without(bundles.plain_fills)),
    "attributes": (
        _other_scale,
        *map(
            _without,
            (
                bundles.no_mask,
                bundles.open_tokens,
                bundles.no_pse,
                bundles.no_sink,
                bundles.no_lse,
                bundles.no_post_quant,
                bundles.no_offsets,
                bundles.no_padding,
                bundles.no_query_lengths,
                bundles.no_key_lengths,
                bundles.plain_table,
                bundles.plain_precision,
            ),
        ),
    ),
    "sizes": (
        _longer,
        _longer,
        _shorter,
        *map(_without, (bundles.one_batch, bundles.few_queries, bundles.few_keys, bundles.no_groups, bundles.one_head)),
    ),
}
KINDS: tuple[str, ...] = (*VARIATIONS, "mixed")
LAYOUTS: tuple[str, ...] = ("return", "up and down", "down and up", "any")


def sequences(plan: Plan, profile: str, first: int = 0, accepted: bool = False) -> Iterator[Group]:
    """Groups of ``plan.sequences`` proposals without end, from a number on (0 is the first). Each proposal has its place: the
    first of group g is at g * plan.sequences + 1. ``accepted``: only calls that must be accepted.
    Infeasible when the profile has no valid call.
    """
    for block in count(first // BLOCK):
        start = max(first, block * BLOCK)
        made = 0
        for number, calls in enumerate(_calls(plan, profile, block, start % BLOCK, accepted), start):
            made += 1
            yield _group(plan, profile, number, calls)
        if not made:  # no rule is left
            return


def _calls(plan: Plan, profile: str, block: int, skip: int, accepted: bool) -> Iterator[tuple[Proposal, ...]]:
    """The generated calls of each group of a block."""
    from strategies.cases import generate

    found = generate(
        profile,
        plan.mode,
        PER_GROUP * BLOCK,
        plan.seed + (block << 64),
        select=plan.select,
        ignore=plan.ignore,
        without_base=lambda _: None,
        accepted=accepted,
    )
    made = islice(found, PER_GROUP * skip, None)
    while len(calls := tuple(of_generated(item) for item in islice(made, PER_GROUP))) == PER_GROUP:
        yield calls


def _group(plan: Plan, profile: str, number: int, calls: tuple[Proposal, ...]) -> Group:
    from strategies.source import SeededSource

    source = SeededSource(f"{profile}/sequences/{plan.mode}/{plan.seed}/{number}")
    home, stranger = calls
    kind = source.choice(KINDS)
    family = [home, *_variations(home, kind, profile, source)]
    if kind == "mixed" or len(family) == 1 or source.chance(30):
        family.append(stranger)
    laid = _laid_out(family, "return" if kind == "values" else source.choice(LAYOUTS), plan.sequences, source)
    return tuple(replace(member, place=number * plan.sequences + i) for i, member in enumerate(laid, 1))


def _variations(home: Proposal, kind: str, profile: str, source: Source) -> list[Proposal]:
    """A few calls near a call, to which the operator gives the same kind of answer."""
    from oracles.constraints.predict import predict

    case = home.case
    fields = take_apart(case)
    wanted = predict(case, profile, scene=Scene(case)).verdict
    found: list[Proposal] = []
    seen = {case.digest}
    for _ in range(TRIES):
        if len(found) == FAMILY - 1:
            break
        choices = VARIATIONS[source.choice(tuple(VARIATIONS)) if kind == "mixed" else kind]
        other = _varied(case, fields, source.choice(choices), source)
        if other is None or other.digest in seen:
            continue
        seen.add(other.digest)
        if predict(other, profile, scene=Scene(other)).verdict == wanted:
            found.append(Proposal(other, home.mode))
    return found


def _varied(case: Case, fields: Fields, variation: Variation, source: Source) -> Optional[Case]:
    try:
        changed = variation(fields, source)
        return None if changed is None else put_together(changed, case.api, case.product)
    except DESCRIBES_NOTHING:
        return None


def _laid_out(family: list[Proposal], layout: str, length: int, source: Source) -> list[Proposal]:
    """So many calls of a family in the order of a layout."""
    home, others = family[0], family[1:]
    if layout == "return":
        return [home if i % 2 == 0 or not others else source.choice(others) for i in range(length)]
    if layout == "any":
        return [source.choice(family) for _ in range(length)]
    order = sorted(family, key=lambda p: (_elements(p.case), p.case.digest), reverse=layout == "down and up")
    way = [*order, *order[-2:0:-1]] if len(order) > 1 else order
    return [way[i % len(way)] for i in range(length)]


def _elements(case: Case) -> int:
    """How large a call is: elements of query and keys."""
    specs = (case.inputs.query, *(case.inputs.key or ()))
    return sum(spec.numel for spec in specs if spec is not None)
