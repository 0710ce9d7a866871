"""What a run says if a worker breaks off: which tests failed until then, and the first error inside pytest.

Otherwise such a run ends with an error of xdist, and names no failed test.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Generator
from typing import Any

import pytest

ERROR_LINES_MAX = 60


class LastWords:
    """A pytest plugin for the process that sees all tests."""

    def __init__(self) -> None:
        self._failed: list[str] = []
        self._errors: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Remember a failed step of a test."""
        if report.failed:
            self._failed.append(f"{report.when} of {report.nodeid}\n{report.longreprtext}")

    def pytest_internalerror(self, excrepr: Any) -> None:
        """Remember an error inside pytest, or inside one of its workers."""
        self._errors.append(str(excrepr))

    def pytest_unconfigure(self) -> None:
        """Print these words after everything else, if the run broke off."""
        if self._errors:
            print(self.text(), file=sys.stderr)

    def text(self) -> str:
        """Return the failed tests, and the last lines of the first error."""
        lines = "\n".join(self._errors[:1]).splitlines()[-ERROR_LINES_MAX:]
        return "\n".join([*self._failed, "The run broke off. The first error inside pytest:", *lines])


class Sendable:
    """A pytest plugin that makes the texts of reports and warnings sendable, so that they end no run.

    Workers of xdist can send only text that UTF-8 can encode.
    """

    @pytest.hookimpl(wrapper=True)
    def pytest_report_to_serializable(self) -> Generator[None, Any, Any]:
        """Escape what a worker cannot send in a report."""
        return encodable((yield))

    @pytest.hookimpl(tryfirst=True)
    def pytest_warning_recorded(self, warning_message: warnings.WarningMessage) -> None:
        """Escape what a worker cannot send in a warning."""
        text = str(warning_message.message)
        if encodable(text) != text:
            warning_message.message = pytest.PytestWarning(encodable(text))


def encodable(value: Any) -> Any:
    """Return a report's data with each lone surrogate written as an escape."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {encodable(key): encodable(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(encodable, value))
    return value
