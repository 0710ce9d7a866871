"""The agreed clock, which withstands jumps of the wall clock that time servers and operators cause."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from odradek.env.agreed_clock import TOLERANCE_MS, AgreedClock
from testkit.by_hand import NOW_MS
from tests.cluster.disks.test_troubled_disks import Troubled

INTERVAL_MS = 300_000
DAY_MS = 86_400_000


class Clocks:
    """A wall clock that the test sets, beside a monotonic clock."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.offset_ms = 0
        self.jumps: list[int] = []
        clock: Any = self
        self.agreed = AgreedClock(clock, INTERVAL_MS, clock)

    def monotonic(self) -> float:
        return self.now_ms / 1000

    def wall_ms(self) -> int:
        return NOW_MS + self.offset_ms + self.now_ms

    def warning(self, event: str, *, seconds: int, believed_in_seconds: int) -> None:
        """Record a warning as a line of the log."""
        assert (event, believed_in_seconds) == ("clock.jumped", INTERVAL_MS // 1000)
        self.jumps.append(seconds)

    def offsets(self) -> tuple[int, int]:
        """Return the earliest and the latest time, relative to the monotonic clock."""
        moment = self.agreed.moment()
        assert moment.earliest_ms <= moment.wall_ms == self.wall_ms() <= moment.latest_ms
        assert (self.agreed.earliest_ms(), self.agreed.latest_ms()) == (moment.earliest_ms, moment.latest_ms)
        return moment.earliest_ms - NOW_MS - self.now_ms, moment.latest_ms - NOW_MS - self.now_ms


def test_a_jump_is_believed_when_the_clock_has_kept_to_it() -> None:
    """A jump of the wall clock is believed once the clock has kept the new time for an interval. Until then the old
    and the new time are both possible. The jump is logged once."""
    for jump_ms in (7 * DAY_MS, -7 * DAY_MS):
        clocks = Clocks()
        assert clocks.offsets() == (0, 0)
        clocks.offset_ms = jump_ms
        for clocks.now_ms in range(1000, INTERVAL_MS + 1000, 1000):
            assert clocks.offsets() == (min(0, jump_ms), max(0, jump_ms))
        clocks.now_ms += 1000
        assert clocks.offsets() == (jump_ms, jump_ms)
        assert clocks.jumps == [jump_ms // 1000]


def test_a_jump_that_is_taken_back_leaves_nothing_behind() -> None:
    """Each further jump starts the interval again. If all jumps are reversed, only the old time is possible again."""
    for jump_ms in (DAY_MS, -DAY_MS):
        clocks = Clocks()
        for days in range(1, 10):
            clocks.now_ms += INTERVAL_MS - 1
            clocks.offset_ms = days * jump_ms
            farthest = days * jump_ms
            assert clocks.offsets() == (min(0, farthest), max(0, farthest))
        clocks.now_ms += 1
        clocks.offset_ms = 0
        assert 0 in clocks.offsets()
        clocks.now_ms += INTERVAL_MS
        assert clocks.offsets() == (0, 0)


def test_a_clock_that_a_time_server_sets_right_is_followed() -> None:
    """A change of the wall clock within the tolerance is followed at once and is no jump."""
    clocks = Clocks()
    for clocks.now_ms in range(0, 100_000, 1000):
        clocks.offset_ms += TOLERANCE_MS if clocks.now_ms % 2000 else -TOLERANCE_MS
        assert clocks.offsets() == (clocks.offset_ms, clocks.offset_ms)
    assert clocks.jumps == []


@given(st.lists(st.integers(-3 * DAY_MS, 3 * DAY_MS), max_size=20))
def test_the_wall_clock_is_always_between_the_two_times(jumps: list[int]) -> None:
    """The wall clock is always between the earliest and the latest time. Without jumps the two come together again."""
    clocks = Clocks()
    for jump in [0, *jumps]:
        clocks.offset_ms += jump
        clocks.now_ms += 1000
        clocks.offsets()
    for _ in range(3):
        clocks.now_ms += INTERVAL_MS
        earliest, latest = clocks.offsets()
    assert latest - earliest <= 2 * TOLERANCE_MS


def test_retention_deletes_nothing_for_a_clock_that_is_wrong_for_a_moment() -> None:
    """If a broker's clock is a month ahead for less than an interval, retention deletes nothing. If the clock stays
    ahead, retention deletes old records."""
    interval_seconds = 10

    async def script(case: Troubled) -> None:
        await case.until(lambda: len(case.acknowledged) > 0)
        log = case.broker(1).partition("t", 0).log

        def set_clock(offset_ms: int) -> None:
            case.world.machine("node-1").wall_offset_ms = offset_ms
            case.world.node_env("node-1").clock.wall_offset_ms = offset_ms

        async def after(seconds: float) -> int:
            await case.world.sleep(seconds)
            return log.log_start_offset

        assert await after(3 * interval_seconds) == 0
        for _ in range(3):
            set_clock(30 * DAY_MS)
            assert await after(interval_seconds - 2) == 0
            set_clock(0)
            assert await after(3 * interval_seconds) == 0
        set_clock(-30 * DAY_MS)
        assert await after(3 * interval_seconds) == 0
        await case.write()
        set_clock(30 * DAY_MS)
        await case.until(lambda: log.log_start_offset == log.log_end_offset, writing=False)

    settings = {
        "log.retention.ms": str(600 * DAY_MS),
        "log.retention.check.interval.ms": str(1000 * interval_seconds),
    }
    Troubled(log_dirs=1, settings={"min.insync.replicas": "1", **settings}).play(script, (1,))
