"""A real Chromium for pages that the reports write: headless, without any network of its own."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-quic",
]


def missing(what: str) -> None:
    """Skip, or fail where nothing may be skipped."""
    if os.environ.get("FIAFUZZ_REQUIRE_ALL") == "1":
        pytest.fail(f"{what}, and FIAFUZZ_REQUIRE_ALL=1 lets nothing be skipped")
    pytest.skip(what)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A running browser."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        missing("playwright is not installed (pip install playwright)")
    path = next((found for found in map(shutil.which, NAMES) if found), None)
    if path is None:
        missing(f"none of {', '.join(NAMES)} is on the PATH")
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield running
        running.close()


@dataclass
class Tab:
    """An open page with what it logged and asked for."""

    page: Any
    messages: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Tab]]:
    """Open a file in a fresh context; options are those of the context (viewport, color_scheme, ...)."""
    contexts: list[Any] = []

    def open_file(path: Path, **options: Any) -> Tab:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        contexts.append(context)
        context.set_offline(True)
        tab = Tab(context.new_page())
        tab.page.set_default_timeout(60_000)
        tab.page.on("console", lambda message: tab.messages.append(message.text))
        tab.page.on("pageerror", lambda error: tab.messages.append(str(error)))
        tab.page.on("request", lambda request: tab.requests.append(request.url))
        tab.page.goto(path.as_uri())
        return tab

    yield open_file
    for context in contexts:
        context.close()
