"""A browser for tests: Debian's Chromium without a window. Tests are skipped aloud without it.

A test fails if its page complains: an error of a script or of the content policy, a dialog, a request to a
stranger. Answers of the API that are errors are the test's own business.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: make install-dev")

from playwright.sync_api import Browser, BrowserContext, Page, Request, sync_playwright  # noqa: E402

__all__ = ["AXE", "CHROMIUM", "Complaints", "browser", "faults_of", "overflow_of", "visit", "visitor"]

AXE = Path(__file__).parents[1] / "vendor/axe.min.js"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
# Root may not use Chromium's sandbox. The pages are our own.
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
PATIENCE_MS = 20_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Run Chromium for the tests of one file. (Playwright's loop would disturb asyncio in other files.)"""
    if CHROMIUM is None:
        pytest.skip("no Chromium: apt-get install chromium")
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield running
        running.close()


class Complaints:
    """What a page complained about, in the order of its complaints."""

    def __init__(self, context: BrowserContext) -> None:
        self.found: list[str] = []
        self._hosts: set[str] = set()
        context.on("weberror", lambda error: self.found.append(f"script: {error.error}"))
        context.on("request", self._requested)
        context.on("page", self._opened)

    def _opened(self, page: Page) -> None:
        page.on("console", lambda message: self._said(message.type, message.text))
        page.on("dialog", lambda dialog: (self.found.append(f"dialog: {dialog.message}"), dialog.dismiss()))

    def _said(self, kind: str, text: str) -> None:
        if kind == "error" and not text.startswith("Failed to load resource"):
            self.found.append(f"console: {text}")

    def _requested(self, request: Request) -> None:
        parts = urlsplit(request.url)
        if parts.scheme not in ("data", "blob"):
            self._hosts.add(parts.netloc)
        if len(self._hosts) > 1:
            self.found.append(f"request: {request.url}")


@pytest.fixture
def visitor(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Return a function that opens a page of its own: `visitor(url, width=1280, dark=False)`."""
    contexts: list[tuple[BrowserContext, Complaints]] = []

    def open_page(url: str, *, width: int = 1280, height: int = 800, dark: bool = False) -> Page:
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            reduced_motion="reduce",
            ignore_https_errors=True,
        )
        context.set_default_timeout(PATIENCE_MS)
        contexts.append((context, Complaints(context)))
        page = context.new_page()
        page.goto(url)
        return page

    yield open_page
    for context, complaints in contexts:
        context.close()
        assert complaints.found == []


@pytest.fixture
def visit(visitor: Callable[..., Page]) -> Callable[..., Page]:
    """Return a function that opens a page and waits until it has its data: `visit(url)`."""

    def open_page(url: str, **options: int | bool) -> Page:
        page = visitor(url, **options)
        page.wait_for_selector("main:not([aria-busy]) > *:not(.loading)")
        return page

    return open_page


def faults_of(page: Page) -> list[str]:
    """Return the faults that axe finds: contrast, names, roles, keyboard. A fault is its rule and its place."""
    # A page's policy forbids scripts that a test adds as text: the browser's tools put this one in.
    if not page.evaluate("typeof axe === 'object'"):
        page.evaluate(AXE.read_text() + "; undefined")
    found = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")
    return [
        f"{fault['id']}: {node['target']} {node['failureSummary']}"
        for fault in found["violations"]
        for node in fault["nodes"]
    ]


def overflow_of(page: Page) -> int:
    """Return by how many pixels the page is wider than its window."""
    found = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert isinstance(found, int)
    return found
