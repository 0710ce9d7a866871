"""The directory in which a new replica is made, and the cases in which none may be made, on simulated disks."""

from __future__ import annotations

import errno
from random import Random

import pytest
import structlog
from structlog.testing import LogCapture

from odradek.data_plane.disks.replica_placement import (
    DirectoryAway,
    ReplicaPlacement,
    directories_for_new_log,
)
from odradek.data_plane.log.directory.log_dir import DiskSpace, LogDir, LogDirContext
from odradek.data_plane.log.log_config import LogConfig
from odradek.env.ports import DiskError, DiskFull
from odradek.metadata_quorum.image.metadata_image import (
    LOST_DIRECTORY,
    MIGRATING_DIRECTORY,
    UNASSIGNED_DIRECTORY,
)
from odradek.metadata_quorum.replica.meta_properties import META_PROPERTIES, MetaProperties
from sim.machine.disk import SimDisk
from testkit.by_hand import InlineWorkers, ManualClock, finish
from tests.log.support import new_disk

TOPIC_ID, OTHER_ID = b"t" * 16, b"u" * 16
IDS = {"a": b"A" * 16, "b": b"B" * 16, "c": b"C" * 16}
UNKNOWN_ID = b"Z" * 16
CONFIG = LogConfig()


class Disks:
    """Three directories, each on a disk of its own."""

    def __init__(self) -> None:
        self.captured = LogCapture()
        self.log = structlog.wrap_logger(None, processors=[self.captured])
        self.disks = {name: new_disk(serial) for serial, name in enumerate(IDS)}
        self.dirs = {name: self.open(name, disk) for name, disk in self.disks.items()}
        self.unavailable: dict[str, str] = {}
        self.placement = ReplicaPlacement(list(self.dirs.values()), self.unavailable, self.log)

    def open(self, name: str, disk: SimDisk) -> LogDir:
        directory = disk.open_dir(name, create=True)
        directory.write_atomic(META_PROPERTIES, MetaProperties("cluster", 1, IDS[name]).encode())
        context = LogDirContext(clock=ManualClock(), workers=InlineWorkers(), random=Random(1), log=self.log)
        log_dir = LogDir.open(directory, context, config_for=lambda topic: CONFIG)
        finish(log_dir.load())
        return log_dir

    def create(self, index: int, assigned: bytes = UNASSIGNED_DIRECTORY, *, is_new: bool = True) -> str:
        log_dir = self.placement.create("t", index, TOPIC_ID, CONFIG, assigned, is_new=is_new)
        assert log_dir.get("t", index) is not None
        return log_dir.path

    def events(self) -> list[str]:
        return [entry["event"] for entry in self.captured.entries]


def test_equal_disks_are_filled_evenly() -> None:
    """Among equal disks the directory with the fewest logs is chosen, as in Kafka."""
    disks = Disks()
    assert [disks.create(index) for index in range(6)] == ["a", "b", "c", "a", "b", "c"]


def test_room_comes_before_numbers() -> None:
    """Directories with at least half of the emptiest one's free space qualify. The one with the fewest logs is
    chosen."""
    disks = Disks()
    a, b, c = disks.dirs.values()
    a.space, b.space, c.space = DiskSpace(100, 49), DiskSpace(100, 50), DiskSpace(100, 100)
    assert directories_for_new_log([a, b, c]) == [c, b, a]
    assert [disks.create(index) for index in range(4)] == ["c", "b", "c", "b"]
    assert directories_for_new_log([]) == []


@pytest.mark.reaches("disks.next_directory_tried")
def test_a_full_disk_is_passed_over_until_all_are_full() -> None:
    """A full disk is skipped. If all are full, `DiskFull` is raised, and the directories stay online."""
    disks = Disks()
    disks.disks["a"].fail_next(errno.ENOSPC, times=1 << 30)
    assert disks.create(0) == "b"
    for name in ("b", "c"):
        disks.disks[name].fail_next(errno.ENOSPC, times=1 << 30)
    with pytest.raises(DiskFull):
        disks.create(1)
    assert len(disks.placement.online) == 3


@pytest.mark.reaches("disks.assigned_directory_offline")
def test_the_assigned_directory_is_kept_to() -> None:
    """If the metadata log assigns a directory, the replica is made there or not at all."""
    disks = Disks()
    assert [disks.create(index, IDS["c"], is_new=False) for index in range(3)] == ["c", "c", "c"]
    assert disks.create(9, MIGRATING_DIRECTORY) in ("a", "b")
    disks.dirs["c"].go_offline("a test")
    with pytest.raises(DirectoryAway, match="log directory c is offline"):
        disks.create(3, IDS["c"])


@pytest.mark.reaches("disks.old_log_may_be_offline", "disks.lost_directory_may_be_offline")
def test_nothing_is_made_twice() -> None:
    """While a directory is missing, an old replica is not made elsewhere, since it may lie there. A new one may be
    made."""
    disks = Disks()
    disks.unavailable["d"] = "it was not mounted"
    for assigned in (UNASSIGNED_DIRECTORY, UNKNOWN_ID, LOST_DIRECTORY):
        with pytest.raises(DirectoryAway):
            disks.create(0, assigned, is_new=False)
    assert disks.create(0, is_new=True) == "a"
    disks.unavailable.clear()
    disks.dirs["b"].go_offline("a test")
    with pytest.raises(DirectoryAway):
        disks.create(1, is_new=False)


def test_a_replaced_disk_begins_anew_and_says_so() -> None:
    """If the assigned directory is no longer configured and all others are present, the replica is made anew and
    logged."""
    disks = Disks()
    assert disks.create(0, UNKNOWN_ID, is_new=False) == "a"
    assert disks.events() == ["partition.begun_anew"]


def test_without_any_directory_nothing_is_made() -> None:
    """If all directories are offline, no replica is made, and `DiskError` is raised."""
    disks = Disks()
    for log_dir in disks.dirs.values():
        log_dir.go_offline("a test")
    with pytest.raises(DiskError, match="all log directories of this broker are offline"):
        disks.create(0)


def test_of_two_copies_the_assigned_one_counts() -> None:
    """If there are two copies, the assigned one is used, and the other becomes a stray. A log with another topic id is
    left alone."""
    disks = Disks()
    for name in ("a", "b"):
        disks.dirs[name].create_log("t", 0, TOPIC_ID, CONFIG)
    disks.dirs["c"].create_log("t", 0, OTHER_ID, CONFIG)
    assert disks.placement.find("t", 0, TOPIC_ID, IDS["b"]) is disks.dirs["b"]
    assert disks.dirs["a"].get("t", 0) is None
    assert any(name.endswith("-stray") for name in disks.dirs["a"].directory.list())
    assert disks.dirs["c"].get("t", 0) is not None
    assert disks.placement.find("t", 1, TOPIC_ID, IDS["b"]) is None
