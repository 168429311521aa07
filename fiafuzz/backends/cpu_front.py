"""The parameter checks of the cpu backend: emulated from the constraint oracle.

A CPU kernel has no host that checks its parameters, so invalid calls are answered from the prediction. This front can
only disagree with the oracle where a fault is planted; it is there so that the whole flow runs without an NPU.
"""

from __future__ import annotations

from typing import Optional

from fiafuzz.model.case import Case
from fiafuzz.model.scene import Scene
from oracles.constraints.predict import Prediction, predict

from .protocol import Outcome


class Front:
    """Answers calls that must not reach the kernel, for one profile (None: the one that a case names)."""

    def __init__(self, profile: Optional[str]) -> None:
        self.profile = profile

    def predict(self, case: Case, scene: Scene) -> Prediction:
        """What the operator answers."""
        return predict(case, self.profile, scene=scene)

    def answer(self, case: Case, scene: Scene) -> Optional[Outcome]:
        """The rejection of an invalid call; None when the call goes to the kernel (valid or unspecified)."""
        found = self.predict(case, scene)
        if found.verdict == "reject":
            return self.reject(found)
        if found.verdict in ("crash", "hang"):
            return Outcome(
                "unsupported",
                message=f"the operator's host is known to {found.verdict} on this call; it is not acted out",
            )
        return None

    def reject(self, found: Prediction) -> Outcome:
        """A rejection with the smallest of the predicted codes."""
        return Outcome(
            "reject", code=min(found.codes, default=None), stage=found.stage, message=" ".join(found.rule_ids[:3])
        )
