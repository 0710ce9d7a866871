"""Fixtures of tests in a browser: Debian's Chromium without a window, and pages that must not complain."""

from tests.console.browser.chromium import browser, visit, visitor

__all__ = ["browser", "visit", "visitor"]
