"""Fixtures of tests in a browser: Debian's Chromium, and pages whose complaints fail a test."""

from tests.console.browser.chromium import browser, visit, visitor

__all__ = ["browser", "visit", "visitor"]
