"""Lines about disks that refuse requests."""

from __future__ import annotations

from typing import Any

from odradek.data_plane.disks.disk_errors import DiskErrors
from odradek.data_plane.line_budget import INTERVAL_SECONDS, LINES_MAX


class Clock:
    """A clock that the test moves."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


class Log:
    """Lines in a list."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def error(self, event: str, **fields: Any) -> None:
        self.lines.append({"event": event, **fields})


def test_a_disk_that_refuses_everything_does_not_fill_another_one_with_lines() -> None:
    """Some lines at once, then a number: a producer that goes on trying must not fill the operator's disk."""
    clock, log = Clock(), Log()
    errors = DiskErrors(clock, log)  # type: ignore[arg-type]  # the clock's only method that is used
    for _ in range(1000):
        errors.tell("produce.disk_error", topic="t", partition=0, error="full")
    assert len(log.lines) == LINES_MAX
    assert log.lines[0] == {
        "event": "produce.disk_error",
        "topic": "t",
        "partition": 0,
        "error": "full",
        "held_back": 0,
    }
    clock.now += INTERVAL_SECONDS
    errors.tell("fetch.disk_error", topic="t", partition=0, error="full")
    assert log.lines[-1]["held_back"] == 1000 - LINES_MAX
    assert errors.errors == 1001
