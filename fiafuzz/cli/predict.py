"""fiafuzz predict: what the operator must answer to each case, and why."""

from __future__ import annotations

import sys
from typing import Any

import click

from .options import Reader, json_option, profile_option


@click.command()
@click.argument("file", default="-")
@profile_option
@json_option
def command(file: str, profile: str | None, as_json: bool) -> None:
    """Say what the operator must answer to each case of FILE ("-" is standard input), and why.

    FILE holds bare cases or objects with a "case" field: one a line, or one JSON document. The profile is --profile, else the record's own
    "profile" field, else what follows from api and product.
    """
    from oracles.constraints.predict import predict

    reader = Reader(file)
    write = sys.stdout.write
    for record in reader:
        found = predict(record.case, profile or record.profile)
        if as_json:
            write(_json({"name": record.name, **as_data(found)}))
        else:
            write(as_text(record.name, found))
    reader.finish()


def _json(data: dict[str, Any]) -> str:
    import msgspec

    return msgspec.json.encode(data).decode() + "\n"


def rule_data(rule: Any) -> dict[str, Any]:
    """A rule as JSON data: id, level, title, cites."""
    return {"id": rule.id, "level": rule.level.value, "title": rule.title, "cites": list(rule.cites)}


def as_data(found: Any) -> dict[str, Any]:
    """A prediction as JSON data (keys as on the architecture page)."""
    data: dict[str, Any] = {
        "profile": found.profile,
        "verdict": found.verdict,
        "codes": sorted(found.codes),
        "rules": [rule_data(r) for r in found.rules],
        "stage": found.stage,
        "basis": found.basis,
    }
    for side in ("document", "source"):
        answer = getattr(found, side)
        if answer is not None:
            data[side] = {
                "verdict": answer.verdict,
                "codes": sorted(answer.codes),
                "stage": answer.stage,
                "rules": [r.id for r in answer.rules],
            }
    if found.undecided:
        data["undecided"] = list(found.undecided)
    return data


def as_text(name: str, found: Any) -> str:
    """A prediction as a few lines for people."""
    from oracles.constraints.statements import cite_text

    codes = f" with {' or '.join(str(c) for c in sorted(found.codes))}" if found.verdict == "reject" else ""
    stage = f" at stage {found.stage}" if found.stage else ""
    lines = [f"{name}: {found.verdict}{codes}{stage} ({found.profile}, basis {found.basis})"]
    lines += [f"    {r.id} {r.title} [{cite_text(r.cites)}]" for r in found.rules]
    if found.verdict == "unspecified":
        for side in ("document", "source"):
            answer = getattr(found, side)
            if answer is not None:
                lines.append(f"    {side} says {answer.verdict}" + (f" ({', '.join(r.id for r in answer.rules)})" if answer.rules else ""))
    return "\n".join(lines) + "\n"
