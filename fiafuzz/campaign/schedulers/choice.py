"""Which scheduler a plan asks for."""

from __future__ import annotations

from fiafuzz.campaign.cost import GIANT_SHARE
from fiafuzz.campaign.plan import Plan
from fiafuzz.campaign.wire import Setup

from .local import LocalScheduler
from .protocol import Scheduler


def setup_of(plan: Plan, backend: str, profile: str) -> Setup:
    """What workers are told about a leg of a plan."""
    return Setup(
        backend,
        profile,
        plan.standard,
        plan.memory_limit,
        repeat_every=plan.repeat_every,
        relate_every=plan.relate_every,
        dare=plan.dare,
        giant=GIANT_SHARE * plan.time_limit,
    )


def scheduler_of(plan: Plan, backend: str, profile: str) -> Scheduler:
    """The scheduler for a leg of a plan, not started. BackendRefused when Ray is asked for and is not there."""
    setup = setup_of(plan, backend, profile)
    if plan.ray is None:
        return LocalScheduler(setup, plan.workers, time_limit=plan.time_limit, devices=plan.devices)
    from .ray import RayScheduler

    return RayScheduler(setup, plan.workers, address=plan.ray, time_limit=plan.time_limit)
