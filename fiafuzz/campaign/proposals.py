"""What the phases propose to run: sources of cases, all from the same generator functions, all decided by the seed of
the run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, Optional

from fiafuzz.model.case import Case

if TYPE_CHECKING:
    from strategies.cases import Generated

    from .plan import Plan

BLOCK = 6000
"""Cases of the bulk phase that come from one source; the next ones come from another, so that a run that goes on after a
million of them need not make them all again. A multiple of every turn that the generator takes."""


@dataclass(frozen=True)
class Proposal:
    """A case to run. ``mode`` is valid, invalid, boundary, disputed or replay; ``rule`` and ``side`` tell what was
    broken or held on purpose; ``entry`` is the corpus entry that it comes from; ``place`` is its place among the
    proposals of its phase, from 1 on (0: none)."""

    case: Case
    mode: str
    rule: Optional[str] = None
    side: Optional[str] = None
    entry: Optional[str] = None
    place: int = 0
    sought: bool = False
    """Hypothesis was told that it fails, and has looked for plainer ones."""


def skippable(phase: str, done: int) -> int:
    """How many of the first ``done`` proposals of a phase need not be made to get at the next ones."""
    return done // BLOCK * BLOCK if phase == "bulk" else 0


def proposals(
    phase: str, plan: Plan, profile: str, without_base: Optional[list[str]] = None, skip: int = 0, accepted: bool = False
) -> Iterator[Proposal]:
    """The proposals of sweep, pairwise or bulk, without the first ``skip`` (as ``skippable`` gives it). ``without_base``
    collects the faults for which no valid call was found, in words. ``accepted``: only calls that must be accepted.

    A profile without a single valid call proposes nothing.
    """
    from strategies.plan import Infeasible

    lost = without_base if without_base is not None else []
    try:
        if phase == "sweep":
            yield from _sweep(plan, profile, lost, accepted)
        elif phase == "pairwise":
            yield from _pairwise(plan, profile)
        else:
            yield from _bulk(plan, profile, lost, skip // BLOCK, accepted)
    except Infeasible as error:
        if without_base is not None:
            without_base.append(str(error))


def of_generated(item: Generated) -> Proposal:
    """A generated case as a proposal."""
    return Proposal(item.case, item.mode, item.rule, item.side)


def _sweep(plan: Plan, profile: str, without_base: list[str], accepted: bool) -> Iterator[Proposal]:
    """Every rule broken once in each of its ways, and met at each of its edges."""
    from strategies.cases import Generated, sweep

    wanted = ("invalid", "boundary") if plan.mode == "all" else (plan.mode,)
    disputed = plan.mode == "disputed"
    for item in sweep(profile, plan.seed, select=plan.select, ignore=plan.ignore, disputed=disputed, accepted=accepted):
        if not isinstance(item, Generated):
            without_base.append(f"{item.rule} {item.side}: {item.reason}")
        elif item.mode in wanted:
            yield of_generated(item)


def _pairwise(plan: Plan, profile: str) -> Iterator[Proposal]:
    """Valid calls that meet every feasible pair of factor words."""
    from strategies.cases import pairwise_cases

    for item in pairwise_cases(profile, plan.seed):
        yield of_generated(item)


def _bulk(plan: Plan, profile: str, without_base: list[str], first: int, accepted: bool) -> Iterator[Proposal]:
    """Generated calls without end, from a block on."""
    from strategies.cases import generate

    def tell(lost: Any) -> None:
        text = f"{lost.rule} {lost.side}: {lost.reason}"
        if text not in without_base:  # each block may tell it again
            without_base.append(text)

    for block in count(first):
        seed = plan.seed + (block << 64)  # beyond the seeds of other runs
        made = 0
        calls = generate(
            profile, plan.mode, BLOCK, seed, select=plan.select, ignore=plan.ignore, without_base=tell, accepted=accepted
        )
        for item in calls:
            made += 1
            yield of_generated(item)
        if made < BLOCK:  # no rule is left
            return
