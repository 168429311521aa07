"""The HTML report in a real browser: no error, no network, sorting, filters, keyboard, dark, print and narrow, markup, scale."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from fiafuzz.campaign.corpus import Got
from fiafuzz.campaign.events import Event, Note, encode_event
from fiafuzz.campaign.results import Element, Picture
from fiafuzz.campaign.verdict import Verdict
from reports.html import html_report

from ..unit.run_logs import NASTY, RULE, case, entry, found, full_log, invalid, kept, leg, phase, started, words, write_log
from .conftest import Tab

Visit = Callable[..., Tab]
BEGIN: Sequence[Event] = (started(), leg(torch="2.0"), phase())
TRAP = "<img src=x onerror=\"document.title='gone'\"><script>document.title='gone'</script>"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a run with findings of every state, a picture, and markup in its texts."""
    folder = tmp_path_factory.mktemp("page")
    picture = Picture("error", "attentionOut", "batch 0, query head 1", "query token", "element", (12, 48), ("....9." * 8,) * 12, (0, 4))
    mask = Picture("mask", "attenMask", "batch 0", "query token", "key token", (12, 12), tuple("." * i + "#" * (12 - i) for i in range(12)))
    worst = tuple(Element("attentionOut", (0, 0, 0, n), 1.0, float(10 * n), 0.5) for n in (3, 20, 1))
    wrong = entry("F102", got=Got("ok", text=TRAP, worst=worst), title=f"{TRAP} {NASTY}")
    events = [
        *full_log(),
        case(14, verdict=Verdict("finding", "F102", text=TRAP), digest=TRAP),
        found(5, "F102", pictures=(picture, mask)),
        kept(5, wrong),
        Note(level="warning", text=TRAP),
        *(invalid(n, "FIA-IF-002", agreed=n % 3 > 0) for n in range(15, 24)),
    ]
    path = folder / "report.html"
    path.write_bytes(html_report([write_log(folder / "run", events)]))
    return path


def shown(tab: Tab, selector: str) -> list[str]:
    """Texts of the visible elements, with single blanks."""
    script = "selector => [...document.querySelectorAll(selector)].filter(e => e.checkVisibility()).map(e => e.innerText)"
    return [" ".join(text.split()) for text in tab.page.evaluate(script, selector)]


def test_opens_without_errors_and_without_network(visit: Visit, report: Path) -> None:
    tab = visit(report)
    tab.page.wait_for_load_state("networkidle")
    assert tab.messages == []
    assert tab.requests == [report.as_uri()]
    assert shown(tab, "h1")[0].startswith("3 new findings in ")


def test_policy_stops_what_gets_in(visit: Visit, report: Path) -> None:
    """Were a script, a style or an address to get into the page, the browser would not load it."""
    tab = visit(report)
    stopped = tab.page.evaluate(
        """async () => {
            const seen = [];
            addEventListener("securitypolicyviolation", (event) => seen.push(event.effectiveDirective));
            const script = document.createElement("script");
            script.textContent = "document.title = 'gone'";
            document.body.append(script);
            const image = document.createElement("img");
            image.src = "https://example.invalid/x.png";
            document.body.append(image);
            try { await fetch("https://example.invalid/"); } catch (_) { seen.push("fetch"); }
            await new Promise((done) => setTimeout(done, 100));
            return seen;
        }"""
    )
    assert {"script-src-elem", "img-src", "connect-src", "fetch"} <= set(stopped)
    assert tab.page.title().startswith("fiafuzz: ")


def test_markup_is_text(visit: Visit, report: Path) -> None:
    tab = visit(report)
    assert tab.page.title().startswith("fiafuzz: ")
    assert tab.page.evaluate("document.images.length") == 0 and tab.page.evaluate("document.scripts.length") == 1
    assert "onerror" in tab.page.inner_text("#findings") and "</script><b>" in tab.page.inner_text("#findings")


def test_findings_filter_by_words_and_state(visit: Visit, report: Path) -> None:
    tab = visit(report)
    everything = shown(tab, "details.finding")
    tab.page.fill('[data-for="finding-list"] input', "isn't there at all")
    tab.page.wait_for_selector("details.finding:not(.gone)", state="detached")
    assert shown(tab, '[data-for="finding-list"] output') == [f"0 of {len(everything)} shown"]
    tab.page.fill('[data-for="finding-list"] input', "f201 ACCEPTED")
    tab.page.wait_for_selector("details.finding:not(.gone)")
    (only,) = shown(tab, "details.finding")
    assert "F201" in only
    tab.page.press('[data-for="finding-list"] input', "Escape")
    assert len(shown(tab, "details.finding")) == len(everything)
    tab.page.click('button[data-state="known"]')
    assert tab.page.get_attribute('button[data-state="known"]', "aria-pressed") == "true"
    found_now = shown(tab, "details.finding")
    assert 0 < len(found_now) < len(everything) and all("known" in text for text in found_now)
    tab.page.click('button[data-state="fixed"]')
    assert len(shown(tab, "details.finding")) == len(found_now) + 1


def test_tables_sort_by_mouse_and_keyboard(visit: Visit, report: Path) -> None:
    tab = visit(report)
    table = 'details.finding:has-text("F102") table.sortable'
    heading = f"{table} th:nth-child(4)"

    def column() -> list[float]:
        return [float(cell.inner_text()) for cell in tab.page.query_selector_all(f"{table} tbody td:nth-child(4)")]

    assert column() == [30, 200, 10]
    tab.page.click(f"{heading} button")
    assert column() == [200, 30, 10] and tab.page.get_attribute(heading, "aria-sort") == "descending"
    tab.page.focus(f"{heading} button")
    tab.page.keyboard.press("Enter")
    assert column() == [10, 30, 200] and tab.page.get_attribute(heading, "aria-sort") == "ascending"
    tab.page.focus(f"{table} th:nth-child(2) button")
    tab.page.keyboard.press("Space")
    assert tab.page.get_attribute(heading, "aria-sort") is None
    assert len(tab.page.query_selector_all(f"{table} th[aria-sort]")) == 1


def test_heat_map_opens_the_rules_of_a_group(visit: Visit, report: Path) -> None:
    tab = visit(report)
    group = "#rules-0-interface"
    assert tab.page.get_attribute(group, "open") is None
    tab.page.focus('.heat a[href="#rules-0-interface"]')
    tab.page.keyboard.press("Enter")
    tab.page.wait_for_selector(f"{group}[open]")
    assert tab.page.evaluate("document.activeElement.closest('details').id") == "rules-0-interface"
    row = f'{group} tbody tr:has-text("{RULE}")'
    detail = f"{row} th details"
    assert "v5.interface.existence.query_not_null" not in tab.page.inner_text(row)
    tab.page.focus(f"{detail} summary")
    tab.page.keyboard.press("Enter")
    tab.page.wait_for_selector(f"{detail}[open]")
    text = tab.page.inner_text(row)
    assert "v5.interface.existence.query_not_null" in text and "line V5" in text and "reject with 161001" in text


def test_rules_filter_by_state(visit: Visit, report: Path) -> None:
    tab = visit(report)
    tab.page.click('[data-for="rule-list"] button[data-state="disagreed"]')
    rows = shown(tab, "#rule-list tbody tr")
    assert len(rows) == 2 and all("✗ disagreed" in row for row in rows)
    assert len(shown(tab, "#rule-list details.group > summary")) == 1
    tab.page.click('[data-for="rule-list"] button[data-state="disagreed"]')
    assert len(shown(tab, "#rule-list details.group > summary")) == 14
    assert not tab.page.query_selector_all("#rule-list details.group[open]")


def test_everything_is_reached_by_keyboard(visit: Visit, report: Path) -> None:
    tab = visit(report)
    reached = []
    for _ in range(14):
        tab.page.keyboard.press("Tab")
        reached.append(tab.page.evaluate("document.activeElement.textContent.trim() || document.activeElement.getAttribute('aria-label')"))
    assert reached[0] == "To the findings" and reached[1] == "Findings" and "Environment" in reached
    assert any(text.startswith("Theme") for text in reached) and "Filter findings" in reached
    nameless = tab.page.evaluate(
        "[...document.querySelectorAll('button, input, a, summary')]"
        ".filter(e => !(e.textContent.trim() || e.getAttribute('aria-label'))).length"
    )
    assert nameless == 0
    assert tab.page.evaluate("[...document.querySelectorAll('svg[role=img]')].every(s => s.querySelector('title').textContent)")


def test_reproduce_line_is_copied(visit: Visit, report: Path) -> None:
    tab = visit(report, permissions=["clipboard-read", "clipboard-write"])
    line = 'details.finding:has-text("F102") .line'
    wanted = tab.page.inner_text(f"{line} code")
    tab.page.click(f"{line} button")
    tab.page.wait_for_selector(f'{line} button:has-text("Copied")')
    tab.page.focus('[data-for="finding-list"] input')
    tab.page.keyboard.press("Control+V")
    assert tab.page.input_value('[data-for="finding-list"] input') == wanted


def colours(tab: Tab) -> tuple[str, str]:
    """Background and text colour of the page."""
    found = tab.page.evaluate("(() => { const s = getComputedStyle(document.body); return [s.backgroundColor, s.color]; })()")
    return found[0], found[1]


def brightness(colour: str) -> float:
    """0 .. 1 of a colour as the browser writes it."""
    red, green, blue = (int(n) for n in colour[colour.index("(") + 1 : -1].split(",")[:3])
    return (0.2126 * red + 0.7152 * green + 0.0722 * blue) / 255


def test_light_dark_and_the_switch(visit: Visit, report: Path) -> None:
    light, dark = visit(report, color_scheme="light"), visit(report, color_scheme="dark")
    for tab, is_dark in ((light, False), (dark, True)):
        paper, ink = colours(tab)
        assert (brightness(paper) < brightness(ink)) == is_dark
        assert abs(brightness(paper) - brightness(ink)) > 0.6
    light.page.click("#theme")
    light.page.click("#theme")
    assert light.page.inner_text("#theme") == "Theme: dark" and colours(light) == colours(dark)
    light.page.reload()
    assert colours(light) == colours(dark)
    light.page.click("#theme")
    assert light.page.inner_text("#theme") == "Theme: auto" and brightness(colours(light)[0]) > 0.9


def test_print(visit: Visit, report: Path) -> None:
    tab = visit(report, color_scheme="dark")
    closed = len(tab.page.query_selector_all("details.finding:not([open])"))
    assert closed
    tab.page.emulate_media(media="print")
    tab.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert not tab.page.query_selector_all("details.finding:not([open])")
    assert brightness(colours(tab)[0]) > 0.9 and brightness(colours(tab)[1]) < 0.1
    assert not shown(tab, "nav") and not shown(tab, ".tools") and not shown(tab, ".line button")
    assert shown(tab, "h1") and shown(tab, ".heat")
    tab.page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert len(tab.page.query_selector_all("details.finding:not([open])")) == closed


@pytest.mark.parametrize("width", [320, 390, 768])
def test_narrow_pages_do_not_scroll_sideways(visit: Visit, report: Path, width: int) -> None:
    tab = visit(report, viewport={"width": width, "height": 700})
    tab.page.evaluate("for (const part of document.querySelectorAll('details')) part.open = true")
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= width


def test_content_stands_without_scripts(visit: Visit, report: Path) -> None:
    tab = visit(report, java_script_enabled=False)
    assert shown(tab, "h1") and len(shown(tab, "details.finding")) > 5
    assert not shown(tab, ".tools") and not shown(tab, "#theme")
    assert len(shown(tab, "#rule-list details.group > summary")) == 14


@pytest.mark.slow
def test_hundred_thousand_cases(visit: Visit, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Size and number of elements do not depend on the number of cases; the time to load is printed."""
    kinds: list[Any] = [case(1, factors=words(n), ratio=0.01 * n, compared=64) for n in range(8)]
    kinds += [invalid(1, factors=words(n)) for n in range(8)]
    kinds += [case(1, verdict=Verdict("finding", "F101", text="off"), repeats=entry().id, factors=words(n), ratio=9.0) for n in range(2)]
    parts = [encode_event(kind).split(b'"n":1,') for kind in kinds]
    log = write_log(tmp_path / "run", [*BEGIN, case(1, "finding"), found(1), kept(1, entry())], end=False)
    with open(log / "events.ndjson", "ab") as file:
        for n in range(2, 100_001):
            before, after = parts[n % len(parts)]
            file.write(b'%b"n":%d,%b' % (before, n, after))
    path = tmp_path / "report.html"
    path.write_bytes(html_report([log]))
    assert path.stat().st_size < 8_000_000
    tab = visit(path)
    assert tab.messages == [] and "100,000 cases" in shown(tab, "h1")[0]
    assert tab.page.evaluate("document.querySelectorAll('*').length") < 40_000
    seconds = tab.page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd") / 1000
    with capsys.disabled():
        print(f"\n100,000 cases: {path.stat().st_size / 1e6:.2f} MB, loaded in {seconds:.2f} s")
