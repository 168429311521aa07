"""Drawings of the HTML report, as inline SVG: the error map of a finding, coverage over cases, cases over time.

Colours come from classes of the style sheet, so that they follow light, dark and print; nothing is told by colour alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from fiafuzz.campaign.results import Picture

from .html_data import Timeline
from .pairs import Point

MAX_CELLS = 64
"""Rows and columns of a picture that are drawn; more come from no honest source."""

ERROR_KEYS = {
    ".": ("fine", "inside its tolerance"),
    "1": ("e1", "1 to 10 times its tolerance"),
    "3": ("e2", "10 to 100 times"),
    "5": ("e3", "100 to 1,000 times"),
    "7": ("e4", "more than 1,000 times"),
    "N": ("nonfinite", "not finite"),
    "U": ("unwritten", "left unwritten"),
    "0": ("still", "row without a computation, right"),
    "-": ("skipped", "not compared"),
}
MASK_KEYS = {
    ".": ("seen", "seen"),
    "#": ("masked", "masked"),
    "+": ("both", "seen and masked in one cell"),
    "-": ("skipped", "outside the batch"),
}
PATTERNED = ("nonfinite", "unwritten", "skipped", "masked")
_SAME = {"2": "1", "4": "3", "6": "5", "8": "7", "9": "7"}


@dataclass(frozen=True)
class Drawing:
    """An SVG with its legend: (class, text) of what occurs in it."""

    svg: Markup
    legend: tuple[tuple[str, str], ...] = ()


def picture(shown: Picture, number: int) -> Drawing:
    """A picture as an SVG. ``number`` makes the ids of its parts unique in the page."""
    keys = MASK_KEYS if shown.kind == "mask" else ERROR_KEYS
    rows = [line[:MAX_CELLS] for line in shown.cells[:MAX_CELLS]]
    width = max((len(line) for line in rows), default=0)
    height = len(rows)
    if not width:
        return Drawing(Markup(""))
    across = 8 if width > 24 else 12 if width > 8 else 18
    down = 8 if height > 24 else 12 if height > 8 else 18
    runs: dict[str, list[tuple[int, int, int]]] = {}
    for y, line in enumerate(rows):
        x = 0
        while x < len(line):
            sign, end = _key(line[x], keys), x + 1
            while end < len(line) and _key(line[end], keys) == sign:
                end += 1
            runs.setdefault(sign, []).append((y, x, end - x))
            x = end
    present = [sign for sign in keys if sign in runs]
    # Plain colours are lines as thick as a row, in units of cells: a few bytes a run. Patterns would be scaled with them.
    plain = [sign for sign in present if keys[sign][0] not in PATTERNED]
    parts = [f'<g class="cells" transform="scale({across} {down})">']
    parts += [f'<path class="c-{keys[s][0]}" d="{"".join(f"M{x} {y}.5h{n}" for y, x, n in runs[s])}"/>' for s in plain]
    parts.append("</g>")
    for sign in present:
        if sign not in plain:
            shape = "".join(f"M{x * across} {y * down}h{n * across}v{down}h-{n * across}z" for y, x, n in runs[sign])
            parts.append(f'<path class="c-{keys[sign][0]}" d="{shape}"/>')
    full, tall = width * across, height * down
    parts.append(f'<rect class="frame" x="0" y="0" width="{full}" height="{tall}"/>')
    if shown.worst is not None and 0 <= shown.worst[0] < height and 0 <= shown.worst[1] < width:
        y, x = shown.worst
        parts.append(f'<rect class="worst" x="{x * across}" y="{y * down}" width="{across}" height="{down}"/>')
    words = f"{shown.output}, {shown.where}: {shown.shape[0]} x {shown.shape[1]}; {_counted(rows, keys)}"
    left, low = 14, 14
    text = (
        f'<svg class="map" role="img" aria-labelledby="map{number}" width="{full + left + 2}" height="{tall + low + 2}" '
        f'viewBox="{-left} -1 {full + left + 2} {tall + low + 2}"><title id="map{number}">{_text(words)}</title>'
        + "".join(parts)
        + f'<text x="0" y="{tall + 11}">{_text(shown.columns)} 0 .. {max(0, shown.shape[1] - 1)}</text>'
        f'<text transform="translate(-4 {tall}) rotate(-90)">{_text(_axis(shown, tall))}</text></svg>'
    )
    return Drawing(Markup(text), tuple(keys[sign] for sign in present))


def printable(text: str) -> str:
    """Text without control characters and marks that turn the direction of writing."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\u00a0\u3000" else "\ufffd" for c in text)


def _text(text: str) -> Markup:
    """Text for a drawing: printable and escaped."""
    return escape(printable(text))


def _axis(shown: Picture, tall: int) -> str:
    """The name of the rows as far as there is room for it."""
    full = f"{shown.rows} 0 .. {max(0, shown.shape[0] - 1)}"
    return full if tall >= 6 * len(full) else f"0 .. {max(0, shown.shape[0] - 1)}" if tall >= 40 else ""


def _key(sign: str, keys: dict[str, tuple[str, str]]) -> str:
    sign = _SAME.get(sign, sign)
    return sign if sign in keys else "-"


def _counted(rows: Sequence[str], keys: dict[str, tuple[str, str]]) -> str:
    counts: dict[str, int] = {}
    for line in rows:
        for sign in line:
            key = _key(sign, keys)
            counts[key] = counts.get(key, 0) + 1
    return ", ".join(f"{counts[sign]} cells {keys[sign][1]}" for sign in keys if sign in counts)


WIDTH, HEIGHT = 640, 200
_LEFT, _RIGHT, _TOP, _BOTTOM = 40, 76, 10, 26


def coverage_curve(points: Sequence[Point], number: int) -> Markup:
    """1-, 2- and 3-way coverage over the number of cases, which runs logarithmically."""
    if not points:
        return Markup("")
    last = max(2, points[-1].cases)

    def x(cases: int) -> float:
        return _LEFT + (WIDTH - _LEFT - _RIGHT) * math.log(max(1, cases)) / math.log(last)

    def y(ratio: float) -> float:
        return _TOP + (HEIGHT - _TOP - _BOTTOM) * (1 - ratio)

    parts = [_line("grid", [(_LEFT, y(r)), (WIDTH - _RIGHT, y(r))]) for r in (0, 0.25, 0.5, 0.75, 1)]
    parts += [f'<text class="end" x="{_LEFT - 5}" y="{y(r) + 4:.1f}">{r:.0%}</text>' for r in (0, 0.5, 1)]
    decade = 1
    while decade <= last:
        parts.append(_line("grid", [(x(decade), _TOP), (x(decade), HEIGHT - _BOTTOM)]))
        parts.append(f'<text class="middle" x="{x(decade):.1f}" y="{HEIGHT - 9}">{decade:,}</text>')
        decade *= 10
    labels = [(y(points[-1].ratios[t]), t) for t in range(3)]
    for t in range(3):
        parts.append(_line(f"way{t + 1}", [(x(p.cases), y(p.ratios[t])) for p in points]))
    for place, t in _apart(labels, 12):
        value = f"{t + 1}-way {points[-1].ratios[t]:.0%}"
        parts.append(f'<text class="way{t + 1}" x="{WIDTH - _RIGHT + 4}" y="{place + 4:.1f}">{value}</text>')
    said = ", ".join(f"{t + 1}-way {points[-1].ratios[t]:.1%}" for t in range(3))
    return _chart(parts, f"Coverage over cases; after {points[-1].cases} cases: {said}", f"curve{number}")


def cases_over_time(timeline: Timeline, seconds: float, number: int) -> Markup:
    """Cases a second over the time of the run, with its phases and the moments of its findings."""
    buckets = timeline.buckets
    if not buckets:
        return Markup("")
    span = max(seconds, len(buckets) * timeline.width)
    rates = [sum(b.values()) / timeline.width for b in buckets]
    top = _round_up(max(rates))

    def x(at: float) -> float:
        return _LEFT + (WIDTH - _LEFT - 10) * at / span

    def y(rate: float) -> float:
        return _TOP + 12 + (HEIGHT - _TOP - _BOTTOM - 12) * (1 - rate / top)

    parts = []
    for phase, first, end in _stretches(timeline):
        a, b = x(first * timeline.width), x(end * timeline.width)
        parts.append(f'<rect class="band" x="{a:.1f}" y="{_TOP + 12}" width="{b - a:.1f}" height="{HEIGHT - _TOP - _BOTTOM - 12}"/>')
        if b - a > 6.5 * len(phase):
            parts.append(f'<text x="{a + 3:.1f}" y="{_TOP + 6}">{_text(phase)}</text>')
    parts += [_line("grid", [(_LEFT, y(r)), (WIDTH - 10, y(r))]) for r in (0, top / 2, top)]
    parts += [f'<text class="end" x="{_LEFT - 5}" y="{y(r) + 4:.1f}">{r:g}</text>' for r in (0, top / 2, top)]
    points = []
    for i, rate in enumerate(rates):
        points += [(x(i * timeline.width), y(rate)), (x((i + 1) * timeline.width), y(rate))]
    parts.append(_line("way2", points))
    for at, name in timeline.marks[:50]:
        place = x(min(max(0.0, at), span))
        parts.append(
            f'<path class="mark" d="M{place:.1f} {HEIGHT - _BOTTOM}l-4 7h8z"><title>{_text(name)} at {at:.1f} s</title></path>'
        )
    for part in range(5):
        at = span * part / 4
        parts.append(f'<text class="{"end" if part == 4 else "middle"}" x="{x(at):.1f}" y="{HEIGHT - 6}">{_clock(at, span)}</text>')
    said = f"Cases a second over time, at most {max(rates):.0f}; findings are marked by {len(timeline.marks)} triangles below the axis"
    return _chart(parts, said, f"time{number}")


def _stretches(timeline: Timeline) -> Iterable[tuple[str, int, int]]:
    """Phases over the buckets: name, first bucket, end. A bucket belongs to the phase with most of its cases."""
    name, first = "", 0
    for i, bucket in enumerate([*timeline.buckets, None]):
        here = name if bucket is not None and not bucket else bucket.most_common(1)[0][0] if bucket else ""
        if here != name:
            if name:
                yield name, first, i
            name, first = here, i


def _apart(labels: list[tuple[float, int]], gap: float) -> list[tuple[float, int]]:
    """Label places moved so far apart that they can be read."""
    found: list[tuple[float, int]] = []
    for place, item in sorted(labels):
        found.append((max(place, found[-1][0] + gap) if found else place, item))
    return found


def _chart(parts: list[str], words: str, name: str) -> Markup:
    return Markup(
        f'<svg class="chart" role="img" aria-labelledby="{name}" viewBox="0 0 {WIDTH} {HEIGHT}">'
        f'<title id="{name}">{_text(words)}</title>{"".join(parts)}</svg>'
    )


def _line(name: str, points: Sequence[tuple[float, float]]) -> str:
    return f'<polyline class="{name}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}"/>'


def _round_up(value: float) -> float:
    """The next of 1, 2, 5, 10, ... that is not smaller."""
    scale = 10.0 ** math.floor(math.log10(max(value, 1.0)))
    return next(step * scale for step in (1, 2, 5, 10) if step * scale >= value)


def _clock(seconds: float, span: float) -> str:
    """A moment in the unit that suits the whole span."""
    if span < 300:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if span < 10_800 else f"{seconds / 3600:.1f} h"
