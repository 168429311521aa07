"""fiafuzz constraints: list, show and lint the rules."""

from __future__ import annotations

from typing import Any

import click

from fiafuzz.model.parameters import GROUPS

from .main import EXIT_FINDINGS, EXIT_NOTHING, UserError
from .options import json_option, nearest, profile_option


@click.group()
def command() -> None:
    """List, show and check the rules that predictions rest on."""


def full_data(rule: Any) -> dict[str, Any]:
    """A rule as JSON data, with its faults and boundary cases."""
    from fiafuzz.model.profiles import PROFILES
    from oracles.constraints.statements import lines_of

    status = {p: sorted(rule.codes or PROFILES[p].statuses[rule.stage.key]) for p in sorted(rule.profiles)}
    return {
        "id": rule.id,
        "title": rule.title,
        "group": rule.group,
        "level": rule.level.value,
        "profiles": sorted(rule.profiles),
        "cites": list(rule.cites),
        "lines": lines_of(rule.cites),
        "basis": rule.basis.value,
        "effect": rule.effect.value,
        "stage": rule.stage.key,
        "enforced_by": rule.enforced_by,
        "status": status,
        "limit": rule.limit,
        "note": rule.note,
        "faults": [{"side": b.side, "needs": dict(b.needs), "entails": list(b.entails), "note": b.note} for b in rule.breaks],
        "boundaries": [{"limit": b.limit, "needs": dict(b.needs), "outside": b.outside is not None} for b in rule.boundaries],
    }


@command.command("list")
@click.option("--group", type=click.Choice(GROUPS), help="Only rules of this parameter group.")
@profile_option
@json_option
def list_rules(group: str | None, profile: str | None, as_json: bool) -> None:
    """List the rules, a line each."""
    from oracles.constraints.catalogue import all_rules

    chosen = [r for r in all_rules() if (group is None or r.group == group) and (profile is None or profile in r.profiles)]
    if as_json:
        import msgspec

        click.echo(msgspec.json.encode({"rules": [full_data(r) for r in chosen]}).decode())
        return
    for rule in chosen:
        click.echo(f"{rule.id}  {rule.level.value:<11}  {rule.title}" + (f" ({rule.limit})" if rule.limit else ""))
    click.echo(f"{len(chosen)} rules", err=True)
    if not chosen:
        raise click.exceptions.Exit(EXIT_NOTHING)


@command.command()
@click.argument("rule_id")
@json_option
def show(rule_id: str, as_json: bool) -> None:
    """Show one rule: what it demands, who says so, what breaking it is answered with, and how it is broken."""
    from oracles.constraints.catalogue import rule_by_id

    rules = rule_by_id()
    if rule_id not in rules:
        raise UserError(f"unknown rule {rule_id!r};{nearest(rule_id, rules)} 'fiafuzz constraints list' names them")
    data = full_data(rules[rule_id])
    if as_json:
        import msgspec

        click.echo(msgspec.json.encode(data).decode())
        return
    click.echo(rule_text(data))


def rule_text(data: dict[str, Any]) -> str:
    """A rule as a block of lines for people."""
    codes: dict[str, list[str]] = {}
    for name, found in data["status"].items():
        codes.setdefault(" or ".join(str(c) for c in found), []).append(name)
    lines = [
        f"{data['id']}  {data['title']}" + (f" ({data['limit']})" if data["limit"] else ""),
        f"  group      {data['group']}, level {data['level']}",
        f"  holds for  {', '.join(data['profiles'])}",
        f"  stated by  {data['basis']}: {', '.join(data['cites'])}" + (f"; lines {data['lines']}" if data["lines"] else ""),
        f"  checked    at stage {data['stage']}" + (f" by {data['enforced_by']}" if data["enforced_by"] else ""),
        f"  effect     {data['effect']}",
    ]
    if data["effect"] == "reject":
        lines += [f"  status     {code} ({', '.join(names)})" for code, names in codes.items()]
    for fault in data["faults"]:
        needs = ", ".join(f"{k} {v if isinstance(v, str) else ' or '.join(v)}" for k, v in fault["needs"].items())
        entails = f"; also breaks {', '.join(fault['entails'])}" if fault["entails"] else ""
        lines.append(f"  fault      {fault['side']}" + (f" (needs {needs})" if needs else "") + entails)
    lines += [f"  boundary   {b['limit'] or 'last accepted and first rejected value'}" for b in data["boundaries"]]
    if data["note"]:
        lines.append(f"  note       {data['note']}")
    return "\n".join(lines)


@command.command("lint")
@json_option
def lint_rules(as_json: bool) -> None:
    """Check the catalogue for gaps: uncited demands, rules without fault, limits without boundary. Exit 1 on any."""
    from oracles.constraints.catalogue import all_rules
    from oracles.constraints.lint import lint

    gaps = lint()
    if as_json:
        import msgspec

        click.echo(msgspec.json.encode({"rules": len(all_rules()), "gaps": gaps}).decode())
    else:
        for gap in gaps:
            click.echo(gap)
        click.echo(f"{len(all_rules())} rules, {len(gaps)} gaps", err=True)
    if gaps:
        raise click.exceptions.Exit(EXIT_FINDINGS)
