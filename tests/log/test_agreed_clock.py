"""The time by which records grow old: jumps of the wall clock, which time servers and operators make."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from odradek.data_plane.log.directory.agreed_clock import TOLERANCE_MS, AgreedClock
from tests.cluster.disks.test_troubled_disks import Troubled

INTERVAL_MS = 300_000
WALL_MS = 1_800_000_000_000
DAY_MS = 86_400_000


def test_a_jump_forward_is_believed_when_the_clock_has_kept_to_it() -> None:
    """Until then the time goes on as before; the jump is told once."""
    clock = AgreedClock(INTERVAL_MS)
    assert clock.observe(WALL_MS, 0) == 0
    assert clock.observe(WALL_MS + DAY_MS + 1000, 1000) == DAY_MS
    for now_ms in range(2000, INTERVAL_MS + 1000, 1000):
        assert clock.observe(WALL_MS + DAY_MS + now_ms, now_ms) == 0
        assert clock.time_ms(now_ms) == WALL_MS + now_ms
    clock.observe(WALL_MS + DAY_MS + INTERVAL_MS + 1000, INTERVAL_MS + 1000)
    assert clock.time_ms(INTERVAL_MS + 1000) == WALL_MS + DAY_MS + INTERVAL_MS + 1000


def test_a_clock_that_jumps_on_is_waited_for_anew() -> None:
    """Each jump begins the interval anew; one that is taken back leaves nothing behind."""
    clock = AgreedClock(INTERVAL_MS)
    clock.observe(WALL_MS, 0)
    for days in range(1, 10):
        now_ms = days * (INTERVAL_MS - 1)
        assert clock.observe(WALL_MS + days * DAY_MS + now_ms, now_ms) > 0
        assert clock.time_ms(now_ms) == WALL_MS + now_ms
    clock.observe(WALL_MS + now_ms + 1, now_ms + 1)
    assert clock.time_ms(now_ms + 1) == WALL_MS + now_ms + 1


@given(st.lists(st.integers(-3 * DAY_MS, 3 * DAY_MS), max_size=20))
def test_the_time_is_never_ahead_of_what_the_clock_has_said_for_an_interval(jumps: list[int]) -> None:
    """Whatever the clock does: no record looks older than a clock says now, and a jump backward is followed at once."""
    clock = AgreedClock(INTERVAL_MS)
    offset = now_ms = 0
    for jump in [0, *jumps]:
        offset += jump
        now_ms += 1000
        clock.observe(WALL_MS + offset + now_ms, now_ms)
        assert clock.time_ms(now_ms) <= WALL_MS + offset + now_ms
    for _ in range(3):
        now_ms += INTERVAL_MS
        clock.observe(WALL_MS + offset + now_ms, now_ms)
    assert clock.time_ms(now_ms) >= WALL_MS + offset + now_ms - TOLERANCE_MS, "nothing is stuck"


def test_retention_deletes_nothing_for_a_clock_that_is_wrong_for_a_moment() -> None:
    """A broker whose clock is a month ahead for less than a check interval keeps its records; later it does not."""
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
