"""Profiles: which product, which API and which release a prediction speaks about.

A profile is data, not a code path: rules name the profiles that they hold for. Profiles "by document"
follow the user's two documents; profiles "by source" follow the operator's host code of a release.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType


@dataclass(frozen=True)
class Profile:
    """One (product, API, release) combination.

    ``basis`` is "document" or "source". ``statuses`` maps a stage of the host (entry, lists, dtypes, shape_inference,
    parser, checker, tiling, output, kernel) to the status codes that a rejection there may carry;
    a set, because releases and entry points differ (spec/host_behaviour.md 3, data/README.md).
    """

    name: str
    product: str
    api: str
    release: str
    basis: str
    statuses: Mapping[str, frozenset[int]] = field(default_factory=dict)

    @property
    def by_source(self) -> bool:
        """Whether the profile follows the operator's source rather than a document."""
        return self.basis == "source"

    @property
    def soc(self) -> str:
        """The product family: "950" or "A2A3"."""
        return "950" if self.product == "950" else "A2A3"


def _codes(**stages: object) -> Mapping[str, frozenset[int]]:
    return MappingProxyType(
        {k: frozenset(v) if isinstance(v, tuple) else frozenset({v}) for k, v in stages.items()}  # type: ignore[arg-type]
    )


# V5 reports tiling failures as 561002; the wrappers V1..V4 of August 2026 turn every later failure into
# 561103, older releases returned 561002 or 161002 from generated code: V3 documents name no number.
_V5 = _codes(entry=161001, lists=161002, dtypes=161002, shape_inference=561001, parser=561002,
             checker=561002, tiling=561002, output=561002, kernel=(561003,))
_V3_DOC = _codes(entry=161001, lists=161002, dtypes=(161002, 561103), shape_inference=(561001, 561103, 561002),
                 parser=(561002, 561103), checker=(561002, 561103), tiling=(561002, 561103),
                 output=(561103, 561002), kernel=(561003, 561103))
_V3_SRC = _codes(entry=161001, lists=161002, dtypes=561103, shape_inference=561103, parser=561103,
                 checker=561103, tiling=561103, output=561103, kernel=561103)
_V3_950 = _codes(entry=361001, lists=361001, dtypes=361001, shape_inference=361001, parser=361001,
                 checker=361001, tiling=361001, output=361001, kernel=361001)

PROFILES: Mapping[str, Profile] = MappingProxyType({
    p.name: p
    for p in (
        Profile("950-v5", "950", "v5", "9.1.0-beta.1", "document", _V5),
        Profile("a2-v3", "a2", "v3", "9.0.0", "document", _V3_DOC),
        Profile("a3-v3", "a3", "v3", "9.0.0", "document", _V3_DOC),
        Profile("a2-v5", "a2", "v5", "9.1.0-beta.1", "document", _V5),
        Profile("a3-v5", "a3", "v5", "9.1.0-beta.1", "document", _V5),
        Profile("950-v3", "950", "v3", "9.0.0", "document", _V3_950),
        Profile("950-v5-2026.08", "950", "v5", "2026.08", "source", _V5),
        Profile("a2-v3-2026.08", "a2", "v3", "2026.08", "source", _V3_SRC),
        Profile("a3-v3-2026.08", "a3", "v3", "2026.08", "source", _V3_SRC),
        Profile("a2-v5-2026.08", "a2", "v5", "2026.08", "source", _V5),
    )
})

DEFAULT_PROFILE = "950-v5"


def profile(name: str) -> Profile:
    """The profile of that name; ValueError names the known ones."""
    try:
        return PROFILES[name]
    except KeyError:
        raise ValueError(f"unknown profile {name!r}; known: {', '.join(PROFILES)}") from None


def profile_for(api: str, product: str) -> Profile:
    """The document profile that follows from a case's api and product.

    APIs between the documented ones take the next documented one (v1, v2 -> v3; v4 -> v5 for 950, v3 else).
    """
    version = {"v1": "v3", "v2": "v3", "v3": "v3", "v4": "v3", "v5": "v5"}.get(api, "v5")
    return PROFILES.get(f"{product.lower()}-{version}", PROFILES[DEFAULT_PROFILE])
