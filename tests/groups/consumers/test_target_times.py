"""The time of a group's next target: the assignment interval after the last one, by clocks that may differ."""

from __future__ import annotations

import pytest

from odradek.data_plane.groups.consumers.consumer_group import ConsumerGroup
from odradek.data_plane.groups.consumers.target_assignment import may_compute

LAST_MS, INTERVAL_MS = 1_700_000_000_000, 1_000


@pytest.mark.parametrize(
    ("wall_ms", "may"),
    [
        (LAST_MS, False),
        (LAST_MS + INTERVAL_MS - 1, False),
        (LAST_MS + INTERVAL_MS, True),
        (LAST_MS - 1, True),
        (LAST_MS - 86_400_000, True),
    ],
)
def test_a_clock_that_is_behind_does_not_hold_up_a_target(wall_ms: int, may: bool) -> None:
    """The last target was computed by a coordinator whose clock is ahead, or this clock was set back."""
    group = ConsumerGroup("g", target_timestamp_ms=LAST_MS)
    assert may_compute(group, INTERVAL_MS, wall_ms) is may
    assert may_compute(group, 0, wall_ms)
    assert may_compute(ConsumerGroup("g"), INTERVAL_MS, wall_ms)
