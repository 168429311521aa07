"""What the phases propose to run: sources of cases, all from the same generator functions, all decided by the seed of
the run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Optional

from fiafuzz.model.case import Case

if TYPE_CHECKING:
    from strategies.cases import Generated

    from .plan import Plan

ENDLESS = 1 << 62


@dataclass(frozen=True)
class Proposal:
    """A case to run. ``mode`` is valid, invalid, boundary, disputed or replay; ``rule`` and ``side`` tell what was
    broken or held on purpose; ``entry`` is the corpus entry that it comes from."""

    case: Case
    mode: str
    rule: Optional[str] = None
    side: Optional[str] = None
    entry: Optional[str] = None


def proposals(phase: str, plan: Plan, profile: str, without_base: Optional[list[str]] = None) -> Iterator[Proposal]:
    """The proposals of sweep, pairwise or bulk. ``without_base`` collects the faults for which no valid call was found,
    in words.

    A profile without a single valid call proposes nothing.
    """
    from strategies.plan import Infeasible

    source = {"sweep": _sweep, "pairwise": _pairwise, "bulk": _bulk}[phase]
    try:
        yield from source(plan, profile, without_base if without_base is not None else [])
    except Infeasible as error:
        if without_base is not None:
            without_base.append(str(error))


def of_generated(item: Generated) -> Proposal:
    """A generated case as a proposal."""
    return Proposal(item.case, item.mode, item.rule, item.side)


def _sweep(plan: Plan, profile: str, without_base: list[str]) -> Iterator[Proposal]:
    """Every rule broken once in each of its ways, and met at each of its edges."""
    from strategies.cases import Generated, sweep

    wanted = ("invalid", "boundary") if plan.mode == "all" else (plan.mode,)
    for item in sweep(profile, plan.seed, select=plan.select, ignore=plan.ignore, disputed=plan.mode == "disputed"):
        if not isinstance(item, Generated):
            without_base.append(f"{item.rule} {item.side}: {item.reason}")
        elif item.mode in wanted:
            yield of_generated(item)


def _pairwise(plan: Plan, profile: str, without_base: list[str]) -> Iterator[Proposal]:
    """Valid calls that meet every feasible pair of factor words."""
    from strategies.cases import pairwise_cases

    for item in pairwise_cases(profile, plan.seed):
        yield of_generated(item)


def _bulk(plan: Plan, profile: str, without_base: list[str]) -> Iterator[Proposal]:
    """Generated calls without end."""
    from strategies.cases import generate

    for item in generate(
        profile,
        plan.mode,
        ENDLESS,
        plan.seed,
        select=plan.select,
        ignore=plan.ignore,
        without_base=lambda lost: without_base.append(f"{lost.rule} {lost.side}: {lost.reason}"),
    ):
        yield of_generated(item)
