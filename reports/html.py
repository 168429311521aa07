"""The report of one or several runs as one HTML file: no external asset, no network, everything from outside escaped.

The page holds all of its content without its script; the script adds sorting, filters and copy buttons. A content
security policy in the page names style and script by their hashes and forbids everything else, so that nothing that a
log, a backend or a case brings along can run or load.
"""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fiafuzz import __version__
from fiafuzz.campaign.events import Note
from fiafuzz.campaign.results import Picture
from fiafuzz.campaign.verdict import STATUSES

from .coverage import RuleCoverage
from .html_charts import Drawing, cases_over_time, coverage_curve, picture, printable
from .html_data import Answers, RunView, labels_of, view_run
from .html_findings import STATES, FindingView, findings_of
from .html_rules import STATES as RULE_STATES
from .html_rules import Cell, RuleMap, RuleRow, rule_map
from .html_verdict import SYMBOLS, Headline, headline, status_of, summary_of
from .pairs import PairCurve

RAREST = 25
MAX_DRAWN = 150
"""Pictures in a page; they are what makes it large."""
MAX_RULE_ROWS = 5000
"""Rules that are listed, over all backends and profiles; where there are more, the less urgent states are only counted."""
STATE_SYMBOLS = {"new": "✗", "open": "✗", "again": "↻", "flaky": "≈", "known": "●", "fixed": "✓"}
SHOWN_TEXT = 4000
"""Characters of a case or a list of values that are shown."""


@dataclass(frozen=True)
class Combinations:
    """t-way coverage of one profile: label of the run ("" for the only one), curve, and the least covered pairs."""

    label: str
    profile: str
    curve: PairCurve
    drawing: Markup

    @cached_property
    def rarest(self) -> tuple[list[Any], int]:
        """The least covered pairs and the number of those never met."""
        return self.curve.rarest(RAREST)


class Page:
    """Everything that the template asks for."""

    def __init__(self, views: Sequence[RunView]) -> None:
        self.views = views
        self.findings: list[FindingView] = findings_of(views)
        self.headline: Headline = headline(views, self.findings)
        merged, self.answers = RuleCoverage(), Answers()
        for view in views:
            merged.merge(view.data.coverage)
            self.answers.merge(view.answers)
        self.rules: RuleMap = rule_map(merged)
        self.several = len(views) > 1
        self.states = Counter(f.state for f in self.findings)
        self._drawn = 0

    # ---- figures on top -----------------------------------------------------------------------

    @property
    def figures(self) -> list[tuple[str, str]]:
        """The key figures: value and what it is."""
        cases = sum(summary_of(v).cases for v in self.views)
        seconds = sum(v.seconds for v in self.views)
        found = [(f"{cases:,}", "cases run")]
        found += [(f"{self.states[s]}", _named(s, self.states[s])) for s in STATES if self.states[s] or s == "new"]
        if self.rules.exercised is not None:
            found.append((_percent(self.rules.exercised), "of the rules held and broken"))
        pairs = [c.curve.coverage.share(2).ratio for c in self.combinations if c.curve.coverage.cases]
        if pairs:
            found.append((_percent(max(pairs)), "of the feasible pairs met"))
        compared = sum(v.elements["compared"] for v in self.views)
        found.append((_short(compared), "elements compared"))
        if seconds > 0:
            found.append((f"{cases / seconds:,.0f}", "cases a second"))
        return found

    @property
    def notes(self) -> list[tuple[str, Note]]:
        """What the runs had to say, with the label of the run; problems first."""
        found = [(v.label if self.several else "", n) for v in self.views for n in v.data.notes]
        return sorted(found, key=lambda item: ["problem", "warning"].index(item[1].level) if item[1].level in ("problem", "warning") else 2)

    # ---- coverage -----------------------------------------------------------------------------

    @cached_property
    def combinations(self) -> list[Combinations]:
        """t-way coverage, a run and profile at a time."""
        found = []
        for view in self.views:
            for profile, curve in view.curves.items():
                drawing = coverage_curve(curve.points, len(found))
                found.append(Combinations(view.label if self.several else "", profile, curve, drawing))
        return found

    @property
    def rows_of_answers(self) -> list[tuple[str, list[tuple[int, int]]]]:
        """The matrix of predicted and observed answers: name of the row, and cases and findings of each cell."""
        names = sorted({p for p, _ in self.answers.cells}, key=_rank)
        return [(n, [(self.answers.cells[n, c], self.answers.wrong[n, c]) for c in self.columns_of_answers]) for n in names]

    @property
    def columns_of_answers(self) -> list[str]:
        """The observed answers."""
        return sorted({c for _, c in self.answers.cells}, key=_rank)

    @cached_property
    def listed_states(self) -> tuple[str, ...]:
        """The states whose rules are listed, the most urgent first."""
        found, rows = [], 0
        for state in RULE_STATES:
            count = sum(cell.counts[state] for cell in self.rules.cells)
            if found and rows + count > MAX_RULE_ROWS:
                break
            found.append(state)
            rows += count
        return tuple(found)

    def listed(self, cell: Cell) -> list[RuleRow]:
        """The rules of a cell that are listed."""
        return [row for row in cell.rows if row.state in self.listed_states]

    def agrees(self, predicted: str, observed: str) -> bool:
        """Whether an observed answer is a predicted one."""
        if predicted == "accept":
            return observed == "ok"
        if predicted.startswith("reject "):
            return observed.startswith("reject ") and observed[7:] in predicted[7:].split(" or ")
        return predicted == observed

    # ---- drawings -----------------------------------------------------------------------------

    def draw(self, shown: Picture) -> Drawing | None:
        """A picture of a finding; None once the page has enough of them."""
        self._drawn += 1
        if self._drawn > MAX_DRAWN:
            return None
        return picture(shown, self._drawn)

    def timeline(self, view: RunView) -> Markup:
        """Cases over the time of a run."""
        return cases_over_time(view.timeline, view.seconds, self.views.index(view))

    # ---- tables -------------------------------------------------------------------------------

    def outcomes(self, view: RunView) -> list[tuple[str, str, list[int]]]:
        """Cases of a run by phase and mode: counts in the order of ``verdicts``."""
        keys = dict.fromkeys((phase, mode) for phase, mode, _ in view.outcomes)
        return [(phase, mode, [view.outcomes[phase, mode, s] for s in self.verdicts(view)]) for phase, mode in keys]

    def verdicts(self, view: RunView) -> list[str]:
        """The verdicts that occur in a run, in the usual order."""
        return [s for s in STATUSES if any(status == s for _, _, status in view.outcomes)]

    def plan_of(self, view: RunView) -> Iterator[tuple[str, str]]:
        """The plan of a run, a line each."""
        if view.data.started is None:
            return
        plan = view.data.started.plan
        for name in plan.__struct_fields__:
            value = getattr(plan, name)
            if value is None or value == () or value == "":
                continue
            yield name, ", ".join(str(v) for v in value) if isinstance(value, tuple) else str(value)


def html_report(runs: Sequence[Path]) -> bytes:
    """One or several runs as an HTML page. RunError when a run cannot be read."""
    paths = list(runs)
    return html_page([view_run(path, label) for path, label in zip(paths, labels_of(paths))]).encode("utf-8", "replace")


def html_page(views: Sequence[RunView]) -> str:
    """Runs that are added up, as an HTML page."""
    environment = Environment(
        loader=PackageLoader("reports", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_finalize,
    )
    environment.filters.update(percent=_percent, number=lambda n: f"{n:,}", seconds=_seconds, brief=_brief, figure=_figure)
    style, script = _asset("report.css"), _asset("report.js")
    return environment.get_template("report.html.j2").render(
        page=Page(views),
        style=Markup(style),
        script=Markup(script),
        policy=f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; base-uri 'none'; form-action 'none'",
        symbols=SYMBOLS,
        state_symbols=STATE_SYMBOLS,
        rule_states=RULE_STATES,
        states=STATES,
        status_of=status_of,
        summary_of=summary_of,
        version=__version__,
    )


def _finalize(value: Any) -> Any:
    """What the template shows of a value: text without what no page should hold."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _asset(name: str) -> str:
    text = files("reports").joinpath("templates", name).read_text(encoding="utf-8")
    if "</" in text:
        raise ValueError(f"{name} would end the element that holds it")
    return text


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _percent(ratio: float) -> str:
    """A share in per cent; 100 % and 0 % only for all and nothing."""
    if ratio in (0, 1):
        return f"{ratio:.0%}".replace("%", " %")
    shown = min(99.9, max(0.1, round(100 * ratio, 1)))
    return f"{shown:.1f} %"


def _named(state: str, count: int) -> str:
    """A number of findings in words, without the number."""
    return f"finding{'s' * (count != 1)} again" if state == "again" else f"{state} finding{'s' * (count != 1)}"


def _short(number: int) -> str:
    for size, name in ((10**9, " G"), (10**6, " M"), (10**4, " k")):
        if number >= size:
            return f"{number / (1000 if name == ' k' else size):,.1f}{name}"
    return f"{number:,}"


def _seconds(value: float) -> str:
    if value < 1:
        return f"{1000 * value:.1f} ms"
    if value < 120:
        return f"{value:.1f} s"
    return f"{int(value // 60)} min {int(value % 60)} s" if value < 7200 else f"{int(value // 3600)} h {int(value % 3600 // 60)} min"


def _figure(value: float | str) -> str:
    """A number of an output to six places; nan and inf come in words."""
    return value if isinstance(value, str) else f"{value:.6g}"


def _brief(text: object, limit: int = SHOWN_TEXT) -> str:
    found = str(text)
    return found if len(found) <= limit else f"{found[:limit]}… ({len(found) - limit} more characters)"


def _rank(name: str) -> tuple[int, str]:
    """Accepted first, then refused by status, then the rest."""
    return (0 if name in ("accept", "ok") else 1 if name.startswith("ok") else 2 if name.startswith("reject") else 3, name)
