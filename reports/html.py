"""The report of a run as one HTML file without any external asset; everything is escaped by the template engine."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from fiafuzz.campaign.codes import CODES, title
from fiafuzz.model.parameters import GROUPS
from oracles.constraints.catalogue import all_rules

from .run_data import RuleCount, RunData


def html_page(data: RunData) -> str:
    """The run as an HTML page: the verdict on top, findings with the line that reproduces each, phases, rules a group, environment."""
    environment = Environment(
        loader=PackageLoader("reports", "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("run.html.j2").render(
        data=data,
        summary=data.summary,
        plan=data.started.plan if data.started else None,
        started=data.started,
        findings=sorted(data.kept.values(), key=lambda k: (not k.new, k.entry.signature.code, k.entry.id)),
        unshrunk=[f for n, f in sorted(data.found.items()) if n not in data.kept],
        groups=_groups(data),
        title=title,
        codes=CODES,
        verdict=_verdict(data),
    )


def _verdict(data: RunData) -> tuple[str, str]:
    if data.summary is None:
        return "partial", f"Partial: the log ends before the run did ({data.cases} cases, {len(data.found)} findings so far)"
    if data.summary.status == "clean":
        return "clean", f"Clean: {data.summary.cases} cases, no finding"
    count = len(data.summary.findings)
    new = sum(f.new for f in data.summary.findings)
    if data.summary.status == "findings":
        return "findings", f"{count} finding{'s' * (count != 1)}, {new} of them new, in {data.summary.cases} cases"
    return data.summary.status, f"{data.summary.status.capitalize()}: {data.summary.cases} cases, {count} findings"


def _groups(data: RunData) -> list[dict[str, Any]]:
    profiles = set(data.started.plan.profiles) if data.started else set()
    rules = [r for r in all_rules() if not profiles or profiles & r.profiles]
    rows: dict[str, list[tuple[Any, RuleCount]]] = defaultdict(list)
    for rule in rules:
        rows[rule.group].append((rule, data.rules.get(rule.id) or RuleCount()))
    found = []
    for group in GROUPS:
        if rows[group]:
            found.append(
                {
                    "name": group,
                    "rules": rows[group],
                    "broken": sum(c.broken > 0 for _, c in rows[group]),
                    "held": sum(c.held > 0 for _, c in rows[group]),
                    "disagreed": sum(c.disagreed > 0 for _, c in rows[group]),
                }
            )
    return found
