"""The throttle of moves between directories, whose rate may change at any time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from odradek.data_plane.disks.replica_moves import THROTTLE_SECONDS, MoveThrottle


def test_a_rate_that_is_raised_ends_a_long_wait() -> None:
    """If the rate is raised during a wait of many days, the wait ends as soon as the new rate allows."""
    throttle = MoveThrottle(0.0)
    throttle.spend(1_000_000)
    assert throttle.delay(1, 0.0) == 1_000_000
    assert throttle.delay(1, 10.0) == 999_990
    assert throttle.delay(1_000_000, 10.0) < 1.0
    assert throttle.delay(1_000_000, 11.0) == 0.0
    throttle.spend(1_000_000)
    assert throttle.delay(None, 11.0) == 0.0, "without a rate nothing is owed"


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(1, 1000)), max_size=50), st.integers(1, 500))
def test_the_rate_holds(chunks: list[tuple[int, int]], rate: int) -> None:
    """Copies that wait as the throttle says keep to its rate. They exceed it at most by one second's bytes and a last
    chunk."""
    throttle, now, copied = MoveThrottle(0.0), 0.0, 0
    for idle, count in chunks:
        now += idle / 10
        now += throttle.delay(rate, now)
        assert copied <= rate * (now + THROTTLE_SECONDS) + 1
        throttle.spend(count)
        copied += count
