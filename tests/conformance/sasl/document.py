"""The list of differences in docs/logins.md: `python -m tests.conformance.sasl document` writes it."""

from __future__ import annotations

from pathlib import Path

from tests.conformance.sasl.deliberate import BY_REASON

__all__ = ["PATH", "render"]

PATH = Path(__file__).parents[3] / "docs" / "logins.md"
_MARK = "included, but for these:\n"


def render() -> str:
    """Return the page with the current list of differences."""
    page = PATH.read_text()
    lines = [f"* {reason[0].upper()}{reason[1:]}.\n" for reason in BY_REASON]
    return page[: page.index(_MARK) + len(_MARK)] + "\n" + "".join(lines)
