"""The sources of the pages: vendored files are unchanged, and no module can make markup or code from a text."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from odradek.console.views.cluster import _LINKS
from tests.console.browser.chromium import AXE
from tests.console.browser.fixture_server import PAGES

OURS = sorted(
    path
    for path in PAGES.rglob("*")
    if path.suffix in (".js", ".css", ".html") and "vendor" not in path.parts
)
FORBIDDEN = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|setHTML|document\.write|DOMParser|createContextualFragment|srcdoc"
    r"|\beval\b|new Function|setAttribute\(\"style|javascript:|https?://(?!www\.w3\.org/2000/svg)|@import|url\("
)
"""Ways from a text to markup, code or another host. (The namespace of SVG is only a name.)"""
LINES_MAX = 400


@pytest.mark.parametrize("folder", [PAGES / "vendor", AXE.parent], ids=["uPlot", "axe"])
def test_vendored_files_are_unchanged(folder: Path) -> None:
    """Each file of others has the hash that is written beside it, and its licence beside it."""
    listed = dict(reversed(line.split()) for line in (folder / "sha256sums").read_text().splitlines())
    assert listed == {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("*.js")
    }
    assert len(list(folder.glob("*LICENSE"))) == 1


@pytest.mark.parametrize("path", OURS, ids=lambda path: str(path.relative_to(PAGES)))
def test_a_module_makes_no_markup(path: Path) -> None:
    """A module never turns a text into markup or code, or leads to another host, and it is short."""
    text = path.read_text()
    assert FORBIDDEN.findall(text) == []
    assert text.count("\n") <= LINES_MAX


def test_the_document_has_nothing_inline() -> None:
    """Scripts and styles of the document are files of their own: the content policy would refuse others."""
    text = (PAGES / "index.html").read_text()
    assert re.findall(r"<script(?![^>]*src=)|<style|\son\w+=|style=", text) == []


def test_each_trouble_names_a_section_of_the_handbook() -> None:
    """Each kind of trouble that leads to a page of the console names a section of docs/operations.md that is there."""
    named = dict(re.findall(r'"?([a-z-]+)"?: "([^"]+)"', (PAGES / "views/runbooks.js").read_text()))
    headings = re.findall(r"^## (.+)$", (PAGES.parents[2] / "docs/operations.md").read_text(), re.MULTILINE)
    assert set(named.values()) <= set(headings)
    # Compaction has a page of its own.
    assert set(named) == set(_LINKS) - {"cleaner-skips"}


def test_every_module_is_used() -> None:
    """Each module is imported, named by the router, or loaded by the document."""
    texts = {path: path.read_text() for path in OURS}
    router = (PAGES / "code/router.js").read_text()
    for path in texts:
        named = [other for other, text in texts.items() if other != path and path.name in text]
        assert named or f'"{path.stem}"' in router or path.name == "index.html", path
