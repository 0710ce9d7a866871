"""A device hangs: it is logged, and its logs refuse requests. When the device answers, its logs are served again."""

from __future__ import annotations

import errno
from collections.abc import Callable, Generator
from typing import Any

import attrs
import pytest

from odradek.data_plane.disks.disk_watch import FULL_SECONDS, HUNG_SECONDS, WARN_SECONDS, DiskWatch
from odradek.data_plane.log.directory.log_dir import LogDir
from odradek.env.ports import DiskError, DiskFull, DiskHung
from odradek.serving.disk_troubles import Trouble
from odradek.wire.errors import ErrorCode, KafkaError
from testkit.by_hand import NOW_MS, ManualClock
from tests.broker.test_replica_placement import CONFIG, TOPIC_ID, Disks
from tests.log.support import append, batch


class Pending:
    """A call in a worker thread that has not returned yet."""

    def __await__(self) -> Generator[None, None, None]:
        yield


class HangingWorkers:
    """Workers whose calls return when the test lets them."""

    async def run(self, function: Callable[..., Any], *args: object) -> Any:
        await Pending()
        return function(*args)


class Case:
    """Three disks with a log each. Disk "b" hangs in a call."""

    def __init__(self, names: str = "abc") -> None:
        self.disks = Disks()
        self.clock = ManualClock()
        self.changes = 0
        self.dirs = [self.disks.dirs[name] for name in names]
        self.logs = {name: self.disks.dirs[name].create_log("t", 0, TOPIC_ID, CONFIG) for name in names}
        self.watch = DiskWatch(self.dirs, self.clock, self.disks.log, self.note_change)
        self.hanging = self.disks.dirs["b"]
        self.hanging.context = attrs.evolve(self.hanging.context, workers=HangingWorkers(), clock=self.clock)
        self.hanging.workers._clock = self.clock
        self.call = self.hanging.workers.run(self.logs["b"].flush)
        self.call.send(None)

    def note_change(self, log_dir: LogDir) -> None:
        self.changes += 1

    def look(self, seconds: float) -> None:
        """Let time pass, then let the watch check all directories."""
        self.clock.now_ms += int(seconds * 1000)
        for log_dir in self.dirs:
            self.watch.look(log_dir)

    def come_back(self) -> None:
        with pytest.raises(StopIteration):
            self.call.send(None)

    def can_append(self, name: str) -> bool:
        """Return True if an append succeeds. Otherwise check that it is refused with KAFKA_STORAGE_ERROR."""
        log = self.logs[name]
        if log.offline:
            with pytest.raises(KafkaError, match="offline") as caught:
                append(log, batch())
            assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
            return False
        append(log, batch())
        return True


def test_a_hang_is_told_then_refused_then_forgotten() -> None:
    """A disk that hangs is logged after 10 s, refuses requests after 15 s, and serves again when its call returns."""
    case = Case()
    case.look(WARN_SECONDS - 1)
    assert case.disks.events() == []
    case.look(1)
    case.look(1)
    assert case.disks.events() == ["directory.slow"]
    assert case.can_append("b")
    case.look(HUNG_SECONDS - WARN_SECONDS)
    assert case.disks.events() == ["directory.slow", "directory.stalled"]
    assert [case.can_append(name) for name in "abc"] == [True, False, True]
    assert case.hanging.statistics()["is_stalled"]
    assert [case.disks.create(index) for index in range(1, 5)] == ["a", "c", "a", "c"]
    case.come_back()
    case.look(1)
    assert case.disks.events()[2:] == ["directory.recovered"]
    assert case.changes == 2
    assert case.can_append("b")
    assert case.logs["b"].log_end_offset == 2


def test_a_call_of_the_loop_counts_from_its_beginning() -> None:
    """A hang that a call of the event loop notices begins with this call. 15 s later the disk is in trouble, until it
    answers."""
    case = Case("bc")
    case.come_back()
    disk = case.hanging
    disk.disk_refused(DiskHung(disk.path, "t-0", "rename", 0, "the device does not answer"))
    case.look(HUNG_SECONDS - 1)
    assert disk.trouble is None
    assert not case.can_append("b")
    case.look(1)
    assert disk.trouble is Trouble.HUNG
    assert case.disks.events()[-1] == "directory.stalled"
    disk.device_answers()
    case.look(1)
    assert disk.trouble is None
    assert case.can_append("b")


def test_the_upkeep_of_what_was_deleted_counts() -> None:
    """A disk counts as hung if it hangs while renames of deleted logs are made durable (seed 19 of simulated hangs)."""
    case = Case("bc")
    case.come_back()
    case.hanging.background.entry_is_dirty = True
    upkeep = case.hanging.background._remove_doomed(0)
    upkeep.send(None)
    case.look(HUNG_SECONDS)
    assert case.hanging.trouble is Trouble.HUNG
    with pytest.raises(StopIteration):
        upkeep.send(None)
    case.look(1)
    assert case.hanging.trouble is None


def test_a_disk_that_comes_back_broken_stays_away() -> None:
    """If the device answers with an error, or its directory was closed meanwhile, its logs stay offline."""
    case = Case()
    case.look(HUNG_SECONDS)
    case.disks.disks["b"].fail_next(errno.EIO, operation="sync")
    with pytest.raises(DiskError):
        case.call.send(None)
    case.look(1)
    assert not case.can_append("b")
    case = Case()
    case.look(HUNG_SECONDS)
    case.hanging.go_offline("a test")
    case.look(1)
    assert not case.can_append("b")


def test_the_only_disk_is_waited_for() -> None:
    """If the only directory hangs, it is reported and may lose its leaderships, but it still accepts appends."""
    case = Case("b")
    case.look(HUNG_SECONDS * 2)
    assert case.disks.events() == ["directory.slow", "directory.stalled"]
    assert case.hanging.trouble is Trouble.HUNG
    assert case.can_append("b")
    case.come_back()
    case.look(0)
    assert case.disks.events() == ["directory.slow", "directory.stalled", "directory.recovered"]
    assert case.hanging.trouble is None


def test_long_work_is_no_hang() -> None:
    """Long work is no hang: loading logs and removing large ones may take minutes on a sound device."""
    case = Case()
    case.come_back()
    log_dir: LogDir = case.hanging
    removal = log_dir.workers.run_long(log_dir.directory.list)
    removal.send(None)
    case.look(HUNG_SECONDS * 2)
    assert case.disks.events() == []
    with pytest.raises(StopIteration):
        removal.send(None)


def test_reads_are_refused_too() -> None:
    """A directory that hangs refuses reads, too. The other directories serve theirs."""
    case = Case()
    case.look(HUNG_SECONDS)
    log = case.logs["b"]
    assert log.offline
    with pytest.raises(KafkaError):
        log.read(0, 100, upper_bound=0)
    assert case.logs["a"].read(0, 100, upper_bound=NOW_MS).file is None
    case.come_back()
    case.look(1)
    assert not log.offline


def test_a_full_disk_is_in_trouble_after_a_while_and_until_there_is_room_enough() -> None:
    """A disk is in trouble once it has been full for 5 s. It recovers with 5 % free and 5 s without a refused write."""
    case = Case()
    case.come_back()
    disk, log_dir = case.disks.disks["a"], case.disks.dirs["a"]
    log_dir.context = attrs.evolve(log_dir.context, clock=case.clock)

    def measure() -> None:
        log_dir.measure_space()
        log_dir.judge_room()

    def refuse() -> None:
        with pytest.raises(DiskFull):
            append(case.logs["a"], batch())
        measure()

    disk.capacity_bytes = disk.used_bytes
    refuse()
    case.look(FULL_SECONDS - 1)
    assert log_dir.trouble is None
    case.look(1)
    assert (log_dir.trouble, case.changes) == (Trouble.FULL, 1)
    assert log_dir.trouble_since_ms == case.clock.wall_ms() - FULL_SECONDS * 1000
    refuse()
    disk.capacity_bytes = disk.used_bytes * 100 // 96
    measure()
    case.look(FULL_SECONDS * 10)
    assert log_dir.trouble is Trouble.FULL, "a room of four hundredths is none"
    disk.capacity_bytes = disk.used_bytes
    refuse()
    disk.capacity_bytes = disk.used_bytes * 2
    measure()
    case.look(FULL_SECONDS - 1)
    assert log_dir.trouble is Trouble.FULL, "a write was refused just now"
    case.look(1)
    assert (log_dir.trouble, case.changes) == (None, 2)
    # This test uses up space at once, so the watch may predict a full disk. Events of that kind are not compared.
    reserve = ["directory.reserve_reached", "directory.reserve_left"]
    others = [*reserve, "directory.filling"]
    assert [each for each in case.disks.events() if each not in others] == [
        "directory.full",
        "directory.has_room",
    ]
    assert [each for each in case.disks.events() if each in reserve] == [*reserve, *reserve]
    assert case.can_append("a")


def test_room_that_comes_back_at_once_is_no_trouble() -> None:
    """If one write is refused and there is room again right after it, the disk is not reported."""
    case = Case()
    case.come_back()
    disk, log_dir = case.disks.disks["a"], case.disks.dirs["a"]
    log_dir.context = attrs.evolve(log_dir.context, clock=case.clock)
    disk.fail_next(errno.ENOSPC, operation="append")
    with pytest.raises(DiskFull):
        append(case.logs["a"], batch())
    case.look(FULL_SECONDS)
    case.look(FULL_SECONDS)
    assert (log_dir.trouble, case.changes, case.disks.events()) == (None, 0, [])
