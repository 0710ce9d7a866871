"""The reserve of a disk, which records must not use but retention may, and the forecast of when the disk is full."""

from __future__ import annotations

from contextlib import suppress

import attrs
import pytest
import trio

from odradek.data_plane.log.directory.log_dir import LogDir
from odradek.data_plane.log.directory.room import ALARM_HOURS, RESERVE_BYTES_MAX, Room
from odradek.data_plane.log.directory.sync_latency import SyncLatency
from odradek.data_plane.log.log_types import Origin
from odradek.data_plane.log.partition_log import PartitionLog
from odradek.env.ports import DiskFull
from testkit.by_hand import NOW_MS, ManualClock
from tests.broker.test_replica_placement import CONFIG, TOPIC_ID, Disks
from tests.log.support import append, batch

GIB = 1 << 30


def test_the_reserve_is_a_hundredth_at_most_one_gibibyte_or_what_the_key_says() -> None:
    """The default reserve is 1 % of the disk and at most 1 GiB. A configured reserve counts up to half of the disk."""
    room = Room()
    assert room.reserve_bytes == 0
    room.note(0.0, 10 * GIB, 5 * GIB)
    assert room.reserve_bytes == 10 * GIB // 100
    room.note(1.0, 1000 * GIB, 5 * GIB)
    assert room.reserve_bytes == RESERVE_BYTES_MAX
    told, greedy, none = Room(3 * GIB), Room(9 * GIB), Room(0)
    for each in (told, greedy, none):
        each.note(0.0, 10 * GIB, 0)
    assert (told.reserve_bytes, greedy.reserve_bytes, none.reserve_bytes) == (3 * GIB, 5 * GIB, 0)
    assert (told.is_short, greedy.is_short, none.is_short) == (True, True, False)


def test_a_room_on_the_brink_does_not_flutter() -> None:
    """A disk is short as soon as its free room has shrunk to the reserve. It stays short until its free room exceeds
    the reserve by an eighth."""
    room = Room(8_000)
    assert not room.note(0.0, 100_000, 8_001)
    assert room.note(1.0, 100_000, 8_000)
    assert not room.note(2.0, 100_000, 9_000)
    assert room.note(3.0, 100_000, 9_001)
    assert not room.is_short


def test_the_hours_left_follow_the_rate_of_the_last_hour() -> None:
    """Hours left are the room above the reserve divided by the last hour's rate.

    There is no forecast while the room grows.
    """
    room = Room(10_000)
    room.note(0.0, 10_000_000, 1_000_000)
    assert room.hours_left is None
    room.note(1800.0, 10_000_000, 640_000)
    assert room.fill_bytes_per_second == 100.0
    assert room.hours_left == pytest.approx((640_000 - 10_000) / 100 / 3600)
    room.note(5400.0, 10_000_000, 280_000)
    assert room.fill_bytes_per_second == 100.0, "room that was used more than an hour ago was counted"
    room.note(5401.0, 10_000_000, 1_000_000)
    assert room.hours_left is None, "there is a forecast although the room has grown"


def test_a_burst_after_a_start_is_no_trend() -> None:
    """A follower that catches up takes 1 % of the disk in two minutes. The forecast is days, not hours."""
    room = Room(0)
    room.note(0.0, 1_000_000, 500_000)
    room.note(120.0, 1_000_000, 490_000)
    assert room.hours_left == pytest.approx(49)


def test_a_disk_is_slow_against_its_own_past() -> None:
    """A disk is slow at ten times its usual latency and at least 50 ms.

    While it is slow, its usual latency does not change. Below three times that latency it is normal again.
    """
    latency = SyncLatency()
    for _ in range(200):
        assert not latency.note(0.010)
    for _ in range(20):
        assert not latency.note(0.060)
    fast = SyncLatency()
    for _ in range(200):
        fast.note(0.001)
    assert sum(fast.note(0.030) for _ in range(50)) == 0, "syncs below 50 ms were reported as slow"
    changes = [latency.note(1.0) for _ in range(50)]
    assert sum(changes) == 1
    usual = latency.usual_seconds
    assert latency.is_slow
    for _ in range(500):
        latency.note(1.0)
    assert latency.usual_seconds == usual
    assert sum(latency.note(0.010) for _ in range(50)) == 1
    assert not latency.is_slow


class Short:
    """A disk with a log, whose free room the test sets."""

    def __init__(self) -> None:
        self.disks = Disks()
        self.clock = ManualClock()
        self.log_dir: LogDir = self.disks.dirs["a"]
        self.log_dir.context = attrs.evolve(self.log_dir.context, clock=self.clock)
        self.log_dir.room = Room(8_000)
        self.log_dir.directory.write_atomic("ballast", bytes(100_000))
        config = attrs.evolve(CONFIG, segment_bytes=200, retention_bytes=100)
        self.log: PartitionLog = self.log_dir.create_log("t", 0, TOPIC_ID, config)

    def have_room(self, free_bytes: int) -> None:
        disk = self.disks.disks["a"]
        disk.capacity_bytes = disk.used_bytes + free_bytes
        self.log_dir.measure_space()
        self.log_dir.judge_room()

    def look(self, seconds: int) -> None:
        """Let time pass, and run the upkeep."""
        self.clock.now_ms += seconds * 1000
        trio.run(self.log_dir.background.look, self.clock.now_ms)


def test_records_leave_the_reserve_alone_and_coordinators_do_not() -> None:
    """Only the reserve of a disk is left. Batches of clients and leaders, and new logs, are refused as on a full disk.

    A coordinator's batches are written.
    """
    case = Short()
    append(case.log, batch())
    case.have_room(8_000)
    end_offset, size = case.log.log_end_offset, case.log.size_bytes
    for origin in (Origin.CLIENT, Origin.REPLICA):
        with pytest.raises(DiskFull, match="reserve"):
            case.log.append(memoryview(batch()), origin, 0, NOW_MS)
    assert (case.log.log_end_offset, case.log.size_bytes) == (end_offset, size)
    assert case.log_dir.full_since is not None
    case.disks.disks["a"].capacity_bytes = None
    other = case.log_dir.create_log("u", 0, TOPIC_ID, CONFIG)
    with pytest.raises(DiskFull, match="reserve"):
        append(other, batch())
    case.log.append(memoryview(batch()), Origin.COORDINATOR, 0, NOW_MS)
    assert case.log.log_end_offset > end_offset
    case.have_room(9_500)
    append(case.log, batch())
    append(other, batch())


def test_retention_works_within_the_reserve_and_hurries() -> None:
    """While records are refused, retention runs every 10 s, whatever `log.retention.check.interval.ms` is."""
    case = Short()
    for _ in range(6):
        append(case.log, batch())
        case.log.high_watermark = case.log.log_end_offset
        with suppress(DiskFull):
            case.log.roll(NOW_MS)
    segments = len(case.log.segments)
    assert segments > 3
    case.look(1)
    case.look(20)
    assert len(case.log.segments) == segments, "segments were removed before the disk was short"
    case.have_room(7_000)
    case.look(20)
    assert len(case.log.segments) < segments
    assert case.log.log_start_offset > 0


def test_the_operator_hears_of_a_disk_that_fills_once() -> None:
    """A disk will be full in less than a day.

    This is logged once, and again only after there was much room in between.
    """
    case = Short()
    disk = case.disks.disks["a"]
    gone = 10 << 20
    disk.capacity_bytes = disk.used_bytes + gone * 20
    for _ in range(4):
        case.clock.now_ms += 60_000
        assert disk.capacity_bytes is not None
        disk.capacity_bytes -= gone
        case.log_dir.measure_space()
        case.log_dir.judge_room()
    hours = case.log_dir.room.hours_left
    assert hours is not None
    assert hours < ALARM_HOURS
    assert case.disks.events().count("directory.filling") == 1
