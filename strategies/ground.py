"""Ground: which demands the valid calls of a profile have to stay clear of.

A document profile stands on the ground that the document and the operator's source share; a profile by source on what
the source accepts. Either way nothing is built whose result is numerically undefined (spec/numerics.md 6, 20, 24).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from fiafuzz.model.profiles import Profile, profile


@dataclass(frozen=True, eq=False)
class Ground:
    """A profile as the generators see it; one object a profile (``ground_of``).

    ``document``: the demands of the user's document hold too. ``wide``: words that only one of document and source
    accepts are allowed as well (disputed ground).
    """

    profile: Profile
    document: bool
    wide: bool

    @property
    def is_950(self) -> bool:
        """Whether the product is Ascend 950."""
        return self.profile.soc == "950"

    @property
    def api(self) -> int:
        """API version as a number."""
        return int(self.profile.api[1:])

    @property
    def v3_document(self) -> bool:
        """Whether the V3 document's own demands hold, which are much narrower than the source on A2 and A3."""
        return not self.is_950 and self.document and self.api < 5

    @property
    def source_only(self) -> bool:
        """Whether what only the source accepts may be built."""
        return self.wide or not self.document

    @property
    def one_or_more_lengths(self) -> bool:
        """Whether actualSeqLengthsKv may have one entry for all batches, or more entries than batches.

        The V5 document asks for exactly one entry a batch in its text and allows the others in its parameter table
        (spec/v5_common_notes.md 6.2); V3 and every source allow them.
        """
        return self.source_only or self.api < 5


@cache
def ground_of(name: str, wide: bool = False) -> Ground:
    """The ground of a profile; ValueError for an unknown name."""
    chosen = profile(name)
    return Ground(chosen, not chosen.by_source, wide)
