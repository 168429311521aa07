"""The known-good call that tells whether a device is alive."""

from __future__ import annotations

from typing import Optional

from fiafuzz.campaign.results import Result
from fiafuzz.campaign.wire import Job

PROBE_ID = -(1 << 62)
PROBE_SECONDS = 30.0
"""What the known-good call may take at least: it is the first of its process, and kernels are loaded with it."""


def probe_job(profile: str) -> Job:
    """The plainest call of a profile, as a job of its own."""
    from fiafuzz.campaign.triage import plain_case
    from fiafuzz.model.profiles import PROFILES

    found = PROFILES[profile]
    return Job(PROBE_ID, plain_case(found.product, found.api))


def is_alive(result: Result, passes: Optional[bool]) -> bool:
    """Whether the answer to the known-good call is one of a living device. ``passes``: whether the outputs were right when
    the run began (None: this is the first time); if they were, they must be so again."""
    if result.deadly or result.fatal or result.kind in ("error", "internal"):
        return False
    return not passes or (result.judged is not None and result.judged.passed)
