"""The history of nightly runs as one HTML file: no external asset, no script, no network, everything from outside escaped."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fiafuzz import __version__

from .history import MARKS, Row

WIDTH, HEIGHT, EDGE = 260, 56, 6
SYMBOLS = {"new": "✗", "back": "✗", "known": "●", "fixed": "✓", "flaky": "≈", "unseen": "?"}
WORDS = {
    "new": "fails for the first time",
    "back": "fails again after it was fixed",
    "known": "fails, and was known before",
    "fixed": "failed before and passes now",
    "flaky": "failed in some of several tries",
    "unseen": "failed last time; neither met nor replayed in this run",
}


@dataclass(frozen=True)
class Trend:
    """A small drawing of one figure over the runs: its name, the drawing, the last value in words."""

    name: str
    drawing: Markup
    last: str


@dataclass(frozen=True)
class Track:
    """The rows of one backend under one profile, oldest first, with their trends."""

    backend: str
    profile: str
    rows: tuple[Row, ...]
    trends: tuple[Trend, ...]


def history_page(rows: Sequence[Row]) -> str:
    """The rows of a history as an HTML page, a section a backend and profile."""
    grouped: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        grouped.setdefault((row.backend, row.profile), []).append(row)
    tracks = [Track(backend, profile, tuple(found), _trends(found)) for (backend, profile), found in grouped.items()]
    style = files(__package__).joinpath("templates/history.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    environment = Environment(
        loader=PackageLoader("reports", "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("history.html.j2").render(
        tracks=tracks,
        runs=len({row.run for row in rows}),
        marks=MARKS,
        symbols=SYMBOLS,
        words=WORDS,
        style=Markup(style),  # the project's own file, no foreign text
        policy=f"default-src 'none'; style-src 'sha256-{digest}'; img-src 'none'; base-uri 'none'; form-action 'none'",
        version=__version__,
        percent=percent,
    )


def percent(part: int, whole: int) -> float:
    """Share in percent; 0 of nothing."""
    return 100.0 * part / whole if whole else 0.0


def _trends(rows: Sequence[Row]) -> tuple[Trend, ...]:
    names = [row.build for row in rows]
    return (
        _trend("failing findings", [float(row.failing) for row in rows], names, "{:.0f}", whole=True),
        _trend("rules reached", [percent(row.rules_reached, row.rules) for row in rows], names, "{:.1f} %"),
        _trend("pairs met", [percent(row.pairs_met, row.pairs) for row in rows], names, "{:.1f} %"),
        _trend("cases a second", [row.rate for row in rows], names, "{:.1f}"),
    )


def _trend(name: str, values: Sequence[float], names: Sequence[str], form: str, *, whole: bool = False) -> Trend:
    """A line through the values, a dot each; ``whole``: the axis begins at 0."""
    low, high = min(values), max(values)
    if whole:
        low = 0.0
    span = high - low
    step = (WIDTH - 2 * EDGE) / max(1, len(values) - 1)
    flat = 0.0 if whole else 0.5
    shares = [(v - low) / span if span else flat for v in values]
    points = [
        (EDGE + i * step if len(values) > 1 else WIDTH / 2, HEIGHT - EDGE - share * (HEIGHT - 2 * EDGE)) for i, share in enumerate(shares)
    ]
    first, final, least, most = (form.format(v) for v in (values[0], values[-1], min(values), high))
    said = f"{name}: from {first} to {final} over {len(values)} runs, lowest {least}, highest {most}"
    parts = [
        Markup('<svg viewBox="0 0 {} {}" width="{}" height="{}" role="img" aria-label="{}">').format(WIDTH, HEIGHT, WIDTH, HEIGHT, said),
        Markup('<line class="base" x1="0" x2="{}" y1="{}" y2="{}"/>').format(WIDTH, HEIGHT - 1, HEIGHT - 1),
        Markup('<polyline points="{}"/>').format(" ".join(f"{x:.1f},{y:.1f}" for x, y in points)),
    ]
    for (x, y), build, value in zip(points, names, values):
        parts.append(
            Markup('<circle cx="{}" cy="{}" r="2.4"><title>{}: {}</title></circle>').format(
                f"{x:.1f}", f"{y:.1f}", build, form.format(value)
            )
        )
    parts.append(Markup("</svg>"))
    return Trend(name, Markup("").join(parts), form.format(values[-1]))
