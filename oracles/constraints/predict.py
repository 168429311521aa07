"""Prediction: what must happen to a call under a profile, and on what that rests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from fiafuzz.model.case import Case
from fiafuzz.model.profiles import PROFILES, Profile, profile, profile_for
from fiafuzz.model.scene import Scene

from .catalogue import all_rules
from .routes import NEWER, route
from .rule import Basis, Effect, Predicate, Rule, Stage


@dataclass(frozen=True)
class Side:
    """The answer of one side (document or source): verdict, codes, stage and the rules broken, first stage first."""

    verdict: str
    codes: frozenset[int]
    stage: str | None
    rules: tuple[Rule, ...]


@dataclass(frozen=True)
class Prediction:
    """accept, reject, crash, hang or unspecified, with codes, broken rules, stage and basis.

    ``basis`` is documented, source or both. For unspecified, ``document`` and ``source`` hold both sides' answers where they
    differ, and ``rules`` names what makes the ground disputed. ``undecided`` names rules that could not be evaluated.
    """

    profile: str
    verdict: str
    codes: frozenset[int]
    rules: tuple[Rule, ...]
    stage: str | None
    basis: str
    document: Side | None = None
    source: Side | None = None
    undecided: tuple[str, ...] = ()

    @property
    def rule_ids(self) -> tuple[str, ...]:
        """Ids of the rules broken, first stage first."""
        return tuple(r.id for r in self.rules)


@cache
def rules_for(profile_name: str) -> tuple[Rule, ...]:
    """All rules that say something under a profile, in the order of the host's stages."""
    chosen = [r for r in all_rules() if profile_name in r.profiles]
    if PROFILES[profile_name].by_source:
        chosen = [r for r in chosen if r.basis is not Basis.DOCUMENTED]
    return tuple(sorted(chosen, key=lambda r: (r.stage, r.order)))


@cache
def _asked(profile_name: str, empty: bool, here: str) -> tuple[tuple[Predicate, Predicate, Rule], ...]:
    """The rules that count for a call, empty or not, on one route of the host, each behind its condition and demand."""
    by_source, found = PROFILES[profile_name].by_source, []
    for rule in rules_for(profile_name):
        if rule.routes and here not in rule.routes and (by_source or rule.basis is Basis.SOURCE):
            continue
        if empty and Stage.CHECKER <= rule.stage < Stage.OUTPUT and (not rule.routes or here == NEWER):
            continue
        found.append((rule.when, rule.requires, rule))
    return tuple(found)


def broken_rules(scene: Scene, profile_name: str) -> tuple[list[Rule], list[str]]:
    """Rules that the scene breaks under a profile (host order) and ids of rules that could not be evaluated.

    An empty call skips everything behind the parser (numerics.md 3.2, host_behaviour.md 3.4), but not on the older
    routes of A2/A3. What no document demands counts only on the routes that enforce it.
    """
    broken: list[Rule] = []
    undecided: list[str] = []
    for when, requires, rule in _asked(profile_name, scene.empty_case, route(scene)):
        try:
            if when(scene) and not requires(scene):
                broken.append(rule)
        except Exception:  # a rule that trips over a malformed case must not take the answer of the others with it
            undecided.append(rule.id)
    return broken, undecided


def predict(case: Case, name: str | None = None, *, scene: Scene | None = None) -> Prediction:
    """Predict what the operator answers to a case under a profile (by default the one its api and product name).

    Raises ValueError for an unknown profile name, nothing else: any case has a prediction.
    """
    chosen = profile(name) if name is not None else profile_for(case.api, case.product)
    if chosen.name == "950-v3":
        return _refused_product(chosen)
    scene = scene or Scene(case)
    broken, undecided = broken_rules(scene, chosen.name)
    if chosen.by_source:
        side = _answer(broken, chosen)
        verdict = "unspecified" if undecided and side.verdict == "accept" else side.verdict
        return Prediction(chosen.name, verdict, side.codes, side.rules, side.stage, "source",
                          undecided=tuple(undecided))
    document = _answer([r for r in broken if r.basis is not Basis.SOURCE], chosen)
    source = _answer([r for r in broken if _enforced(r, scene)], chosen)
    if document.verdict == source.verdict and document.verdict in ("reject", "accept"):
        if undecided and document.verdict == "accept":
            return Prediction(chosen.name, "unspecified", frozenset(), (), None, "both", undecided=tuple(undecided))
        rules = tuple(dict.fromkeys((*document.rules, *source.rules)))
        return Prediction(chosen.name, document.verdict, document.codes | source.codes, rules, document.stage, "both",
                          undecided=tuple(undecided))
    if source.verdict in ("crash", "hang"):
        return Prediction(chosen.name, source.verdict, frozenset(), source.rules, source.stage, "source",
                          document, source, tuple(undecided))
    rules = tuple(dict.fromkeys((*document.rules, *source.rules)))
    codes = document.codes | source.codes
    return Prediction(chosen.name, "unspecified", codes, rules, None, "both", document, source, tuple(undecided))


def _enforced(rule: Rule, scene: Scene) -> bool:
    return rule.basis is not Basis.DOCUMENTED and (not rule.routes or route(scene) in rule.routes)


def _answer(broken: Sequence[Rule], chosen: Profile) -> Side:
    rejects: list[Rule] = []
    loose: list[Rule] = []
    for rule in broken:
        if rule.effect is Effect.UNSPECIFIED:
            loose.append(rule)
        elif rule.effect is Effect.REJECT:
            rejects.append(rule)
        elif not rejects:
            if rule.effect is Effect.ACCEPT:
                return Side("accept", frozenset({0}), rule.stage.key, ())
            return Side(rule.effect.value, frozenset(), rule.stage.key, (rule,))
        else:
            break
    if rejects:
        first = rejects[0].stage
        if first < Stage.PARSER:
            # What the entry or the dtype match refuses never reaches the checks behind them: only one stage is broken.
            rejects = [rule for rule in rejects if rule.stage == first]
        codes: frozenset[int] = frozenset()
        for rule in rejects:
            if rule.stage == first:
                codes |= rule.codes or chosen.statuses[first.key]
        return Side("reject", codes, first.key, tuple(rejects))
    if loose:
        return Side("unspecified", frozenset(), loose[0].stage.key, tuple(loose))
    return Side("accept", frozenset({0}), None, ())


def _refused_product(chosen: Profile) -> Prediction:
    rules = tuple(r for r in all_rules() if chosen.name in r.profiles)
    return Prediction(chosen.name, "reject", chosen.statuses["entry"], rules, Stage.ENTRY.key, "both")


def predict_all(cases: Iterable[Case], name: str | None = None) -> list[Prediction]:
    """Predictions of many cases, in order."""
    return [predict(c, name) for c in cases]
