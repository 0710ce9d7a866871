"""The seconds that each scope of tests took when it last ran. A run measures them, and the next run begins with the
longest.

They are kept in `.cache/test_durations.json` and decide only the order. `schedule.py` orders scopes that were never
measured.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tests.schedule import scope_of

__all__ = ["PATH", "Durations", "Measuring", "merged", "read", "write"]

PATH = Path(__file__).resolve().parent.parent / ".cache" / "test_durations.json"
Durations: TypeAlias = dict[str, tuple[float, int]]
"""The seconds and the number of tests of each scope."""


def read(path: Path = PATH) -> Durations:
    """Return the figures of earlier runs, or none if the file is missing or damaged."""
    try:
        kept = json.loads(path.read_text())
        return {str(scope): (float(seconds), int(tests)) for scope, (seconds, tests) in kept.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def write(durations: Mapping[str, tuple[float, int]], path: Path = PATH) -> None:
    """Replace the file in one step, since other runs may be reading it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.{os.getpid()}")
    rounded = {scope: (round(seconds, 2), tests) for scope, (seconds, tests) in sorted(durations.items())}
    new.write_text(json.dumps(rounded, indent=0) + "\n")
    new.replace(path)


def merged(kept: Durations, measured: Durations, *, is_whole: bool) -> Durations:
    """Return the figures after a run. If the run `is_whole`, it ran all tests, and other scopes are dropped.

    A run of some tests says little about a whole run, since the load of the machine differs. So it adds only scopes
    that were never measured or that have more tests now.
    """
    if is_whole:
        return dict(measured)
    return kept | {scope: each for scope, each in measured.items() if each[1] > kept.get(scope, (0.0, 0))[1]}


class Measuring:
    """The pytest plugin that measures, in the process that runs or distributes the tests."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self.known = read()
        self.measured: Durations = {}

    @property
    def seconds(self) -> dict[str, float]:
        """Return the seconds that each scope took."""
        return {scope: seconds for scope, (seconds, _) in self.known.items()}

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Give each worker the same figures, so that all workers sort alike even if another run saves new figures
        meanwhile."""
        node.workerinput["seconds"] = self.seconds

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add the time of one step of a test."""
        scope = scope_of(report.nodeid)
        seconds, tests = self.measured.get(scope, (0.0, 0))
        self.measured[scope] = (seconds + report.duration, tests + (report.when == "call"))

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Save the measurements, unless the run was interrupted."""
        if exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) or not self.measured:
            return
        option = self._config.option
        is_whole = (
            self._config.args_source is pytest.Config.ArgsSource.TESTPATHS
            and not option.keyword
            and not option.markexpr
            and option.maxfail == 0
        )
        # A checkout without write permission keeps the order that `schedule.py` guesses.
        with suppress(OSError):
            write(merged(read(), self.measured, is_whole=is_whole))
