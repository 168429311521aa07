"""Options that say where the work of a run is done: workers, devices, Ray."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from .main import Unavailable

F = TypeVar("F", bound=Callable[..., Any])
MAX_WORKERS = 1024


class Workers(click.ParamType):
    """A number of workers, or "auto" (0 in a plan)."""

    name = "N|auto"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number; 0 for "auto"."""
        if isinstance(value, int):
            return value
        if value == "auto":
            return 0
        if not (value.isascii() and value.isdigit()) or not 1 <= int(value) <= MAX_WORKERS:
            self.fail(f"{value!r} is neither auto nor a number from 1 to {MAX_WORKERS}", param, ctx)
        return int(value)


class Devices(click.ParamType):
    """A comma-separated list of device numbers, such as 0,2 or 0-3."""

    name = "LIST"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        """The numbers, as words."""
        if isinstance(value, (tuple, list)):
            return tuple(str(v) for v in value)
        found: list[str] = []
        for part in value.split(","):
            first, dash, last = part.strip().partition("-")
            last = last if dash else first
            if not all(word.isascii() and word.isdigit() and len(word) < 5 for word in (first, last)) or int(first) > int(last):
                self.fail(f"{part!r} is neither a device number nor a range such as 0-3", param, ctx)
            found.extend(str(number) for number in range(int(first), int(last) + 1))
        for device in found:
            if found.count(device) > 1:
                self.fail(f"device {device} stands twice", param, ctx)
        return tuple(found)


def worker_options(command: F) -> F:
    """Add -w, --devices and --ray to a command."""
    for option in reversed((
        click.option(
            "-w",
            "--workers",
            type=Workers(),
            help="Worker processes; auto: one a device for backends that run on devices, else one a core. "
            "[default: 1, or one for each of --devices; with --ray: auto]",
        ),
        click.option(
            "--devices",
            type=Devices(),
            default=(),
            help="Devices to use, for example 0,2 or 0-7: one worker each. [default: those that can be seen]",
        ),
        click.option(
            "--ray",
            metavar="auto|ADDRESS",
            help="Spread the work over a Ray cluster, one worker a device: HOST:PORT, or auto for the one that this machine is part of "
            "(a cluster of this machine alone is started when there is none).",
        ),
    )):
        command = option(command)
    return command


def workers_of(workers: int | None, devices: tuple[str, ...], ray: str | None) -> int:
    """The number of workers for a plan; 0: as many as there are devices or cores."""
    if workers is not None:
        return workers
    return 0 if devices or ray is not None else 1


def check_ray(ray: str | None) -> None:
    """Unavailable, with the line that installs it, when Ray is asked for and not there."""
    if ray is not None:
        from fiafuzz.campaign.schedulers.ray import INSTALL, is_there

        if not is_there():
            raise Unavailable(f"--ray needs the package ray: {INSTALL}")
