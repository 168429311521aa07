"""fiafuzz backends: what can be run here."""

from __future__ import annotations

from typing import Any

import click

from .main import Unavailable, UserError
from .options import json_option, nearest


def backend_data() -> list[dict[str, Any]]:
    """Every backend as JSON data: name, title, available, reason, capabilities."""
    from fiafuzz.backends.registry import list_backends

    return [
        {"name": b.name, "title": b.title, "available": b.available, "reason": b.reason, "capabilities": dict(b.capabilities)}
        for b in list_backends()
    ]


def usable_backends(names: tuple[str, ...]) -> tuple[str, ...]:
    """The backends that the names mean (an alias means several), each known and able to run here.

    UserError for an unknown name, Unavailable when one cannot run on this machine.
    """
    from fiafuzz.backends.registry import expand, find_record

    found: list[str] = []
    for name in names:
        for real in expand(name):
            try:
                record = find_record(real)
            except ValueError as error:
                raise UserError(str(error)) from error
            if record is None:
                known = {b["name"] for b in backend_data()}
                raise UserError(f"unknown backend {real!r};{nearest(real, known)} 'fiafuzz backends' lists them")
            if not record.available:
                raise Unavailable(f"backend {record.name} cannot run here: {record.reason}; 'fiafuzz doctor' tells the next step")
            found.append(record.name)
    return tuple(dict.fromkeys(found))


@click.command()
@click.option("--all", "everything", is_flag=True, help="Also list the planted faults.")
@json_option
def command(everything: bool, as_json: bool) -> None:
    """List the backends, whether each can run on this machine, and what it can express."""
    found = backend_data()
    if as_json:
        import msgspec

        click.echo(msgspec.json.encode({"backends": found}).decode())
        return
    faults = [b for b in found if b["name"].startswith("faulty:")]
    for backend in found:
        if backend in faults:
            continue
        click.echo(f"{backend['name']}: {backend['title']}" + ("" if backend["available"] else f" (not here: {backend['reason']})"))
        for topic, text in backend["capabilities"].items():
            click.echo(f"    {topic:<14} {text}")
    if everything:
        width = max(len(b["name"]) for b in faults)
        for backend in faults:
            click.echo(f"{backend['name']:<{width}}  {backend['title']}")
    else:
        click.echo(f"faulty:NAME: the cpu backend with one of {len(faults)} planted faults (--all lists them)")
