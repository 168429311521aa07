"""Scene: the facts about a case that every other floor asks for, derived once by a total function.

Any case, however malformed, yields a scene: a fact that cannot be derived is None and ``why`` says why. Facts follow the derivations of
spec/v5_common_notes.md section 3 and spec/v5_quant_rope_notes.md sections 2-6. They stand in four groups, each of which asks those
before it: ``call_facts``, ``dtype_facts``, ``size_facts``, ``feature_facts``.
"""

from __future__ import annotations

from .case import Case
from .fact import fact
from .feature_facts import FeatureFacts


class Scene(FeatureFacts):
    """All derived facts of one case. Cheap to make: each fact is computed at its first use."""

    def facts(self) -> dict[str, object]:
        """Every fact by name (tensor specs left out), for explanations and records."""
        found: dict[str, object] = {}
        for name in FACTS:
            found[name] = getattr(self, name)
        return found


FACTS: tuple[str, ...] = tuple(
    name
    for group in reversed(Scene.__mro__)
    for name, member in vars(group).items()
    if isinstance(member, fact) and name not in ("query", "keys", "values", "out", "lse", "layout", "present")
)
"""Names of the facts that are data by themselves."""


def scene_of(case: Case) -> Scene:
    """The scene of a case."""
    return Scene(case)
