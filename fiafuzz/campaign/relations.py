"""Which metamorphic relations a case is tried on. The relations themselves live in ``oracles.metamorphic``.

Relations take turns: each case begins at the place in the list that its content decides, so the same case always meets
the same one first, and over many cases all of them get their share.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

from fiafuzz.model.case import Case

if TYPE_CHECKING:
    from oracles.metamorphic import Relation

RERUN = "rerun"
"""Not in the turns of a campaign, which runs cases again for its own sake (F105)."""


def relations_for(case: Case, name: Optional[str] = None) -> tuple[Relation, ...]:
    """The relations to try on a case, in order: the named one alone, or all, beginning with that whose turn it is.

    ValueError for an unknown name.
    """
    from oracles.metamorphic import RELATIONS, relation_by_name

    if name is not None:
        return (relation_by_name(name),)
    others = tuple(r for r in RELATIONS if r.name != RERUN)
    start = int(case.digest, 16) % len(others)
    return (*others[start:], *others[:start])
