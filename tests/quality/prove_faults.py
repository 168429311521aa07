"""Prove the faults of the rules. Run: python tests/quality/prove_faults.py [--group G] [--rule ID] [--profile P]

For each rule, profile and side: is there a valid base case that, changed so, breaks exactly this rule (and what it
says it entails)? For each boundary: is the inside accepted, and does the outside break exactly this rule?
Bases: the project's own generator, then rows of origin ``generated`` of host_verdicts_dev.jsonl.gz
($FIAFUZZ_SHARED/data or ../shared/data) that the profile predicts to be accepted.
"""

from __future__ import annotations

import argparse
import collections
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from fiafuzz.model.case import Case, case_from_dict
from fiafuzz.model.factors import factors_of
from fiafuzz.model.profiles import PROFILES
from fiafuzz.model.scene import Scene
from oracles.constraints.catalogue import all_rules
from oracles.constraints.changes import applied
from oracles.constraints.predict import broken_rules, predict
from oracles.constraints.rule import Basis, Change, Effect, Rule, Stage
from strategies.cases import build_valid
from strategies.plan import Infeasible
from strategies.source import SeededSource
from tests.quality.host_agreement import rows, shared

Needs = Mapping[str, "str | tuple[str, ...]"]
ENOUGH = 12
"""Bases on which one change is made at most."""

TRIES = 40
"""Generated bases that are looked at for a place at most."""

FINAL = (Stage.ENTRY, Stage.LISTS, Stage.DTYPES)
"""Stages whose answer ends the call: what stands behind them is not looked at any more."""

ROW_PROFILES = {"950-v5": "950-v5-2026.08", "a2-v3": "a2-v3-2026.08", "a3-v3": "a3-v3-2026.08",
                "a2-v5": "a2-v5-2026.08", "a3-v5": "a2-v5-2026.08"}
"""Whose labelled rows serve a document profile as bases."""


@dataclass
class Proof:
    """What came of one change in one profile: how many bases gave exactly the rule, and what else broke."""

    rule: Rule
    profile: str
    what: str
    tried: int = 0
    pure: int = 0
    others: collections.Counter[str] = field(default_factory=collections.Counter)

    @property
    def verdict(self) -> str:
        """proven, impure (a place was found, never pure) or no base."""
        return "proven" if self.pure else "impure" if self.tried else "no base"


class Bases:
    """Valid cases of a profile by factor words: from the project's generator first, then labelled rows."""

    def __init__(self, profile: str, use: str = "both") -> None:
        self.profile, self.use = profile, use
        self.rows: list[tuple[Scene, dict[str, str]]] = list(_rows(profile)) if use != "generator" else []

    def matching(self, needs: Needs) -> Iterator[Scene]:
        """Scenes whose factor words are among the needed ones; not empty calls unless they are asked for."""
        asked = {"empty": "none", **needs}
        if self.use != "rows":
            yield from _generated(self.profile, asked)
        for scene, words in self.rows:
            if all(words[k] in (v if isinstance(v, tuple) else (v,)) for k, v in asked.items()):
                yield scene


def _generated(profile: str, needs: Needs) -> Iterator[Scene]:
    source = SeededSource(f"{profile} {sorted(needs.items())}")
    for _ in range(TRIES):
        try:
            scene = Scene(build_valid(source, profile, needs))
        except Infeasible:
            return
        if not any(broken_rules(scene, profile)):
            yield scene


def _rows(profile: str) -> Iterator[tuple[Scene, dict[str, str]]]:
    product, api = PROFILES[profile].product, PROFILES[profile].api
    if not (shared() / "data" / "host_verdicts_dev.jsonl.gz").exists():
        return
    for row in rows(ROW_PROFILES.get(profile, profile)):
        if row["origin"] != "generated" or row["host"]["verdict"] != "accept" or row.get("unsure"):
            continue
        scene = Scene(case_from_dict(row["case"]).replace(product=product, api=api))
        if not any(broken_rules(scene, profile)):
            yield scene, factors_of(scene)


def prove(rule: Rule, profile: str, what: str, change: Change, needs: Needs, wanted: set[str] | None,
          bases: Bases, enough: int = ENOUGH) -> Proof:
    """Try a change on valid bases. ``wanted``: None = nothing may break; else rule id plus what may come along.

    ``enough``: bases on which the change is made at most; 0 = until the first that proves it.
    """
    proof = Proof(rule, profile, what)
    for scene in bases.matching(needs):
        case = applied(scene, change)
        if case is None:
            continue
        proof.tried += 1
        others = judged(case, rule, profile, wanted)
        if others is None:
            proof.pure += 1
        else:
            proof.others[others] += 1
        if proof.tried >= (enough or ENOUGH) or (not enough and proof.pure):
            break
    return proof


def judged(case: Case, rule: Rule, profile: str, wanted: set[str] | None) -> str | None:
    """None when the changed case breaks exactly what it should, else what it breaks, in words."""
    scene = Scene(case)
    broken, undecided = broken_rules(scene, profile)
    first = min((r.stage for r in broken if _final(r, profile)), default=None)
    ids = {r.id for r in broken if first is None or r.stage <= first}
    if undecided:
        return f"undecided {' '.join(undecided)}"
    if wanted is None:
        return " ".join(sorted(ids)) or None
    if rule.id not in ids or not ids <= wanted:
        return " ".join(sorted(ids)) or "nothing"
    if rule.effect is Effect.REJECT and PROFILES[profile].by_source:
        answer = predict(case, profile, scene=scene)
        if answer.verdict != "reject":
            return f"verdict {answer.verdict}"
    return None


def _final(rule: Rule, profile: str) -> bool:
    agreed = rule.basis is Basis.BOTH or PROFILES[profile].by_source
    return rule.stage in FINAL and rule.effect is Effect.REJECT and agreed


def proofs(rule: Rule, profile: str, bases: Bases, enough: int = ENOUGH) -> Iterator[Proof]:
    """All proofs of a rule in a profile: each side of each break, each boundary inside and outside."""
    for number, fault in enumerate(rule.breaks):
        wanted = {rule.id, *fault.entails}
        yield prove(rule, profile, f"break {number} {fault.side}", fault.change, fault.needs, wanted, bases, enough)
    for number, edge in enumerate(rule.boundaries):
        yield prove(rule, profile, f"edge {number} inside", edge.inside, edge.needs, None, bases, enough)
        if edge.outside is not None:
            wanted = {rule.id, *edge.entails}
            yield prove(rule, profile, f"edge {number} outside", edge.outside, edge.needs, wanted, bases, enough)


def unproven(group: str, profile: str, use: str = "generator") -> list[str]:
    """Faults and edges of a group's rules that no base proves in a profile, a line each."""
    bases = Bases(profile, use)
    found = []
    for rule in all_rules():
        if rule.group == group and profile in rule.profiles:
            found += [f"{p.verdict}: {rule.id} {profile} {p.what} {dict(p.others)}"
                      for p in proofs(rule, profile, bases, 0) if not p.pure]
    return found


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--group", action="append")
    parser.add_argument("--rule", action="append")
    parser.add_argument("--profile", action="append")
    parser.add_argument("--bases", choices=["both", "rows", "generator"], default="both")
    parser.add_argument("--verbose", action="store_true", help="print proven ones too")
    options = parser.parse_args()
    chosen = [r for r in all_rules()
              if (not options.group or r.group in options.group) and (not options.rule or r.id in options.rule)]
    profiles = options.profile or sorted({p for r in chosen for p in r.profiles})
    totals: collections.Counter[str] = collections.Counter()
    applications: collections.Counter[str] = collections.Counter()
    for profile in profiles:
        bases = Bases(profile, options.bases)
        print(f"{profile}: {len(bases.rows)} rows")
        for rule in chosen:
            if profile not in rule.profiles:
                continue
            if not rule.breaks:
                print(f"  {rule.id} no breaks")
            for proof in proofs(rule, profile, bases):
                totals[proof.verdict] += 1
                applications["pure"] += proof.pure
                applications["tried"] += proof.tried
                if proof.verdict != "proven" or options.verbose or proof.pure < proof.tried:
                    also = "; ".join(f"{k} x{n}" for k, n in proof.others.most_common(3))
                    print(f"  {proof.verdict}: {rule.id} {profile} {proof.what} {proof.pure}/{proof.tried} {also}")
    print(dict(totals))
    print(f"pure applications: {applications['pure']}/{applications['tried']}")
    return 0 if set(totals) <= {"proven"} else 1


if __name__ == "__main__":
    sys.exit(main())
