"""Log lines about disks that refuse requests."""

from __future__ import annotations

from odradek.data_plane.disks.disk_errors import DiskErrors
from odradek.data_plane.line_budget import INTERVAL_SECONDS, LINES_MAX
from testkit.by_hand import KeptLog, ManualClock


def test_a_disk_that_refuses_everything_does_not_fill_another_one_with_lines() -> None:
    """If a disk refuses every request of a producer, a few lines are logged at once, and then only a count."""
    clock, log = ManualClock(), KeptLog()
    errors = DiskErrors(clock, log)
    for _ in range(1000):
        errors.note("produce.disk_error", topic="t", partition=0, error="full")
    assert len(log.events) == LINES_MAX
    assert log.events[0] == "produce.disk_error"
    assert log.fields[0] == {
        "topic": "t",
        "partition": 0,
        "error": "full",
        "held_back": 0,
    }
    clock.now_ms += round(INTERVAL_SECONDS * 1000)
    errors.note("fetch.disk_error", topic="t", partition=0, error="full")
    assert log.fields[-1]["held_back"] == 1000 - LINES_MAX
    assert errors.errors == 1001
