"""Durations on the command line: 90, 90s, 10m, 1h30m."""

from __future__ import annotations

import re
from typing import Any

import click

_PARTS = re.compile(r"(\d+(?:\.\d+)?)(h|m|s)?")
_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "": 1.0}


class Duration(click.ParamType):
    """A click type that turns "10m" into 600.0 seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Seconds; a usage error for anything else."""
        if isinstance(value, (int, float)):
            return float(value)
        parts = _PARTS.findall(value)
        if not parts or "".join(n + u for n, u in parts) != value or (len(parts) > 1 and any(not u for _, u in parts)):
            self.fail(f"{value!r} is no duration; write 90s, 10m or 1h30m", param, ctx)
        seconds = sum(float(n) * _SECONDS[u] for n, u in parts)
        if not 0 < seconds < 1e8:
            self.fail(f"{value!r} is out of reach", param, ctx)
        return seconds


def in_words(seconds: float) -> str:
    """Seconds for people: 8.3 s, 4 min 10 s, 2 h 5 min."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"
