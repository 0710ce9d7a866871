"""The seconds that each scope of tests took when it last ran: a run measures them, and the next one begins with the longest.

They lie in `.cache/test_durations.json`, and decide the order alone. For scopes without a figure, `schedule.py` says which
ones begin first.
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
"""For each scope its seconds, and how many tests ran in them."""


def read(path: Path = PATH) -> Durations:
    """Return the figures of earlier runs; an empty table where the file is missing or damaged."""
    try:
        kept = json.loads(path.read_text())
        return {str(scope): (float(seconds), int(tests)) for scope, (seconds, tests) in kept.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def write(durations: Mapping[str, tuple[float, int]], path: Path = PATH) -> None:
    """Replace the file at once, since other runs may read it meanwhile."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.{os.getpid()}")
    rounded = {scope: (round(seconds, 2), tests) for scope, (seconds, tests) in sorted(durations.items())}
    new.write_text(json.dumps(rounded, indent=0) + "\n")
    new.replace(path)


def merged(kept: Durations, measured: Durations, *, is_whole: bool) -> Durations:
    """Return the figures after a run; `is_whole`: it ran all tests, so any other scope is gone.

    A run of some tests says little about the whole one: it has the machine for itself, or shares it with other work. So
    it adds what was never measured, and scopes that have more tests now.
    """
    if is_whole:
        return dict(measured)
    return kept | {scope: each for scope, each in measured.items() if each[1] > kept.get(scope, (0.0, 0))[1]}


class Measuring:
    """The plugin of the process that runs or distributes the tests."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self.known = read()
        self.measured: Durations = {}

    @property
    def seconds(self) -> dict[str, float]:
        """The seconds that each scope took."""
        return {scope: seconds for scope, (seconds, _) in self.known.items()}

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Give each worker the same figures: they must all sort alike, also if another run ends meanwhile."""
        node.workerinput["seconds"] = self.seconds

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add what one step of a test took."""
        scope = scope_of(report.nodeid)
        seconds, tests = self.measured.get(scope, (0.0, 0))
        self.measured[scope] = (seconds + report.duration, tests + (report.when == "call"))

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Keep what was measured, unless the run was broken off."""
        if exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) or not self.measured:
            return
        option = self._config.option
        is_whole = (
            self._config.args_source is pytest.Config.ArgsSource.TESTPATHS
            and not option.keyword
            and not option.markexpr
            and option.maxfail == 0
        )
        # A checkout that nobody may write to has its tests in the order of the guesses.
        with suppress(OSError):
            write(merged(read(), self.measured, is_whole=is_whole))
