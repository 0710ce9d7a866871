"""A disk answers late to a change of files.

Meanwhile the log refuses every use. Afterwards, or after a restart, it is complete.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Literal

import attrs
import pytest

from odradek.data_plane.log.directory.checkpoints import RECOVERY_POINT_FILE, decode_offsets
from odradek.data_plane.log.log_config import LogConfig
from odradek.data_plane.log.partition_log import Origin, PartitionLog
from odradek.data_plane.log.retention import look_at_ages
from odradek.data_plane.log.segments.file_names import file_name
from odradek.data_plane.log.segments.walked_times import UNBOUNDED, WalkBudget
from odradek.env.ports import DiskError, DiskFull, DiskHung
from odradek.wire.batches.transaction_markers import build_marker
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.topic_partition import TopicPartition
from sim.machine.disk import Keep
from testkit.by_hand import NOW_MS
from tests.log.support import ROOT, TOPIC_ID, Node, append, append_verified, batch, content, fill

SIZE = len(batch())
OTHER_ID = bytes(reversed(TOPIC_ID))
CONFIG = LogConfig(segment_bytes=2 * SIZE, retention_ms=3_600_000, file_delete_delay_ms=0)
TIMES = pytest.mark.parametrize("is_early", [True, False], ids=["done-at-once", "done-late"])
"""The device performs the change at once and only its answer is late, or it performs the change when it answers."""
Change = Callable[["Hanging"], None]


class Hanging(Node):
    """A node whose loop waits only a limited time for its disk."""

    def __init__(self, config: LogConfig = CONFIG, *, is_early: bool = True) -> None:
        super().__init__(config)
        self.log_dir.directory.bound_calls(1.0)
        self.is_early = is_early

    def fall_silent(self) -> None:
        self.disk.silent_roots[ROOT] = float("inf")
        self.disk.random.random = lambda: 0.0 if self.is_early else 0.9  # type: ignore[method-assign]

    def answer(self) -> None:
        """Let the device answer, and run the upkeep, which notices it."""
        del self.disk.silent_roots[ROOT]
        self.look(1000)

    def begin_again(self, keep: Keep = "all") -> PartitionLog:
        """Crash and restart, and return the log that is found."""
        self.disk.silent_roots.clear()
        self.disk.crash(keep)
        self.start()
        found = self.log_dir.get("t", 0)
        assert found is not None
        return found

    def names(self) -> list[str]:
        """Return the names of the logs' directories."""
        return [name for name in self.disk.open_dir(ROOT).list() if name.startswith(("t-0", "u-0"))]


def refuses(log: PartitionLog) -> bool:
    """True if every use of the log is refused with KAFKA_STORAGE_ERROR, False if none is. Anything else fails."""
    uses: list[Callable[[], object]] = [
        lambda: append(log, batch()),
        lambda: log.read(log.log_start_offset, 1000, upper_bound=log.log_end_offset),
        lambda: log.truncate_to(log.log_start_offset),
        lambda: log.truncate_fully_and_start_at(100),
    ]
    if not log.offline:
        return False
    for use in uses:
        with pytest.raises(KafkaError) as caught:
            use()
        assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    return True


def filled(case: Node, batches: int = 7) -> PartitionLog:
    log = case.log()
    fill(log, batches)
    log.flush()
    case.look(1000)
    case.log_dir.checkpoints.write_recovery_points()
    return log


@TIMES
def test_a_truncation_that_is_answered_late(is_early: bool) -> None:
    """The disk answers late to a truncation. The log refuses every use until then, and is truncated afterwards.

    A restart also finds the truncated log.
    """
    case = Hanging(is_early=is_early)
    log, other = filled(case), case.log("u")
    kept = content(log)[: 5 * SIZE]
    case.fall_silent()
    with pytest.raises(DiskHung):
        log.truncate_to(5)
    assert (log.log_end_offset, log.high_watermark, len(log.segments)) == (7, 7, 4)
    assert refuses(log)
    assert refuses(other)
    case.answer()
    assert not refuses(log)
    assert (log.log_end_offset, log.high_watermark, log.recovery_point) == (5, 5, 5)
    assert content(log) == kept
    append(log, batch(), epoch=3)
    assert (log.log_end_offset, log.epochs.entries) == (6, ((0, 0), (3, 5)))
    assert not refuses(other)
    whole = content(log)
    log = case.begin_again()
    assert (log.log_end_offset, content(log)) == (6, whole)


@TIMES
@pytest.mark.parametrize("keep", ["all", "synced", "random"])
def test_a_crash_while_a_truncation_goes_on(is_early: bool, keep: Keep) -> None:
    """A crash comes while a truncation waits for the disk.

    The next start finds the old or the truncated log, and a recovery point within it.
    """
    case = Hanging(is_early=is_early)
    whole = content(filled(case))
    case.fall_silent()
    with pytest.raises(DiskHung):
        case.log().truncate_to(3)
    log = case.begin_again(keep)
    assert log.log_end_offset in (3, 7)
    assert content(log) == whole[: log.log_end_offset * SIZE]
    points = decode_offsets(case.disk.open_dir(ROOT).read_bytes(RECOVERY_POINT_FILE))
    assert points.get(TopicPartition("t", 0), 0) <= log.log_end_offset


@TIMES
def test_a_flush_beside_a_truncation_that_goes_on_vouches_for_nothing(is_early: bool) -> None:
    """A worker syncs the log while a truncation waits for the disk.

    The recovery point is not raised beyond the new end.
    """
    case = Hanging(is_early=is_early)
    log = case.log()
    fill(log, 7)
    case.fall_silent()
    with pytest.raises(DiskHung):
        log.truncate_to(5)
    case.disk.off_loop(log.flush)
    assert log.recovery_point == 0
    case.answer()
    assert log.log_end_offset == 5
    log.flush()
    assert log.recovery_point == 5


@TIMES
def test_a_log_begins_anew_late(is_early: bool) -> None:
    """A log is to begin anew at another offset, and the disk answers late.

    Then all records are gone, and it begins at that offset.
    """
    case = Hanging(is_early=is_early)
    log = filled(case)
    case.fall_silent()
    with pytest.raises(DiskHung):
        log.truncate_fully_and_start_at(50)
    assert (log.log_start_offset, log.log_end_offset) == (0, 7)
    assert refuses(log)
    case.answer()
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (50, 50, 50)
    log.append(memoryview(batch(base_offset=50, leader_epoch=1)), Origin.REPLICA, 1, NOW_MS)
    log = case.begin_again()
    assert (log.log_start_offset, log.log_end_offset) == (50, 51)


@TIMES
def test_a_late_truncation_of_a_log_that_is_gone_by_then(is_early: bool) -> None:
    """A topic is deleted while a truncation waits for the disk.

    It stays deleted, and a new topic of this name has none of its records.
    """
    case = Hanging(is_early=is_early)
    log = filled(case)
    case.fall_silent()
    with pytest.raises(DiskHung):
        log.truncate_to(5)
    case.log_dir.delete_log("t", 0)
    with pytest.raises(DiskHung):
        case.log_dir.create_log("t", 0, OTHER_ID, CONFIG)
    case.answer()
    assert not case.offline
    fresh = case.log_dir.create_log("t", 0, OTHER_ID, CONFIG)
    append(fresh, batch())
    case.look(1000)
    assert (fresh.log_end_offset, case.names()) == (1, ["t-0"])
    found = case.begin_again()
    assert (found.topic_id, found.log_end_offset) == (OTHER_ID, 1)


def test_a_late_truncation_that_fails_takes_the_directory_offline() -> None:
    """A late truncation fails with an I/O error. The directory goes offline."""
    case = Hanging(is_early=False)
    log = filled(case)
    case.fall_silent()
    with pytest.raises(DiskHung):
        log.truncate_to(5)
    case.disk.fail_next(errno.EIO, operation="rename")
    case.answer()
    assert len(case.offline) == 1
    assert log.log_end_offset == 7
    assert refuses(log)


def test_a_late_truncation_that_finds_no_room_changes_nothing() -> None:
    """A truncation is performed late, and finds a full disk.

    The log serves as before, and a later truncation still lowers the recovery point.
    """
    case = Hanging(is_early=False)
    log = filled(case)
    case.fall_silent()
    with pytest.raises(DiskHung):
        log.truncate_to(5)
    case.disk.fail_next(errno.ENOSPC, operation="create", path_part=RECOVERY_POINT_FILE)
    case.answer()
    assert (log.log_end_offset, case.offline) == (7, [])
    assert not refuses(log)
    log.truncate_to(5)
    points = decode_offsets(case.disk.open_dir(ROOT).read_bytes(RECOVERY_POINT_FILE))
    assert points[TopicPartition("t", 0)] == 5
    log.flush()
    assert log.recovery_point == 5


@TIMES
def test_a_deletion_is_the_first_to_meet_the_hang(is_early: bool) -> None:
    """A log is deleted while the disk does not answer. The log is gone at once, and its name is free when the disk
    answers."""
    case = Hanging(is_early=is_early)
    filled(case)
    filled_too = case.log("u")
    fill(filled_too, 3)
    case.fall_silent()
    case.log_dir.delete_log("t", 0)
    assert case.log_dir.is_suspected
    assert refuses(filled_too)
    case.log_dir.delete_log("u", 0)
    for topic in ("t", "u"):
        assert case.log_dir.get(topic, 0) is None
        with pytest.raises(DiskHung):
            case.log_dir.create_log(topic, 0, OTHER_ID, CONFIG)
        with pytest.raises(DiskHung):
            case.log_dir.make_log(topic, 0, OTHER_ID, CONFIG, NOW_MS)
    case.answer()
    assert case.log_dir.create_log("t", 0, OTHER_ID, CONFIG).log_end_offset == 0
    case.look(1000)
    assert case.names() == ["t-0"], "the deleted log was not removed after its delay"
    assert case.begin_again().topic_id == OTHER_ID


@TIMES
def test_a_log_that_is_made_too_late_is_unmade(is_early: bool) -> None:
    """The creation of a log is answered late.

    The log is removed again, since its replica may be in another directory by now.
    """
    case = Hanging(is_early=is_early)
    case.fall_silent()
    with pytest.raises(DiskHung):
        case.log()
    assert case.log_dir.get("t", 0) is None
    with pytest.raises(DiskHung):
        case.log_dir.make_log("t", 0, OTHER_ID, CONFIG, NOW_MS)
    case.answer()
    assert (case.names(), case.offline) == ([], [])
    append(case.log(), batch())
    assert case.begin_again().log_end_offset == 1


@TIMES
def test_a_roll_that_is_answered_late_is_made_again(is_early: bool) -> None:
    """The disk answers late to a roll. The append that needs the roll is refused and leaves no segment, and the next
    append rolls.

    The disk's thread writes all files of a roll in one step, and then removes the segment for which nobody waits.
    """
    transaction = batch(producer_id=5, producer_epoch=0, base_sequence=0, is_transactional=True)
    marker = build_marker(5, 0, 1, is_commit=False, timestamp_ms=NOW_MS)
    case = Hanging(attrs.evolve(CONFIG, segment_bytes=len(transaction) + len(marker)), is_early=is_early)
    log = case.log()
    append_verified(log, transaction)
    append(log, marker, origin=Origin.COORDINATOR)
    files = {file_name(0, ".txnindex"), file_name(2, ".log")}
    case.fall_silent()
    with pytest.raises(DiskHung):
        append(log, batch())
    assert files.intersection(case.disk.off_loop(log.directory.list)) == (files if is_early else set())
    assert refuses(log)
    assert (log.log_end_offset, len(log.segments)) == (2, 1)
    case.answer()
    assert files.intersection(log.directory.list()) == {file_name(0, ".txnindex")}
    append(log, batch())
    assert (log.log_end_offset, len(log.segments)) == (3, 2)
    whole = content(log)
    log = case.begin_again()
    assert (content(log), len(log.segments)) == (whole, 2)


@pytest.mark.reaches("log.roll_undone")
@TIMES
@pytest.mark.parametrize("keep", ["all", "synced", "random", "clean"])
def test_a_batch_that_fits_after_a_late_roll_is_kept(is_early: bool, keep: Keep | Literal["clean"]) -> None:
    """The disk answers late to the roll that a large batch needs. Then a small batch fits into the old segment.

    The next process must find it, so no empty segment may be left at that offset.
    """
    small = batch(value=b"v" * 10)
    case = Hanging(attrs.evolve(CONFIG, segment_bytes=3 * len(small)), is_early=is_early)
    log = case.log()
    fill(log, 2, value=b"v" * 10)
    case.fall_silent()
    with pytest.raises(DiskHung):
        append(log, batch(value=b"v" * 100))
    case.answer()
    append(log, small)
    log.flush()
    whole = content(log)
    if keep == "clean":
        case.log_dir.close_clean(1)
        keep = "all"
    log = case.begin_again(keep)
    assert (log.log_end_offset, len(log.segments), content(log)) == (3, 1, whole)


def test_a_late_segment_that_cannot_be_removed_takes_the_directory_offline() -> None:
    """Recovery would cut off batches that the old segment takes later, so it takes none."""
    case = Hanging()
    log = case.log()
    fill(log, 2)
    case.fall_silent()
    with pytest.raises(DiskHung):
        append(log, batch())
    case.disk.fail_next(errno.EDQUOT, operation="remove", path_part="00002.log")
    with pytest.raises(DiskError, match="must not stay"):
        case.answer()
    assert refuses(log)


@TIMES
def test_retention_that_is_answered_late(is_early: bool) -> None:
    """Retention is answered late.

    Expired records are hidden at once, removed when the disk answers, and do not come back.
    """
    case = Hanging(is_early=is_early)
    log = case.log()
    for _ in range(6):
        append(log, batch(timestamp=NOW_MS - 10**9))
    append(log, batch())
    log.advance_high_watermark(7)
    log.flush()
    log.segment_list.sync_entry()
    look_at_ages(log, log.segment_list, log.config, NOW_MS, WalkBudget(UNBOUNDED))
    case.fall_silent()
    with pytest.raises(DiskHung):
        log.delete_old_segments(NOW_MS)
    assert refuses(log)
    assert log.stored_start_offset == 0, "the new log start counts as stored before the disk has answered"
    case.answer()
    assert (log.log_start_offset, log.stored_start_offset, log.log_end_offset) == (6, 0, 7)
    case.look(1000)
    assert [name for name in log.directory.list() if name.endswith(".log")] == [f"{6:020d}.log"]
    log = case.begin_again()
    assert (log.log_start_offset, log.log_end_offset) == (6, 7)


def test_a_node_that_stops_meanwhile_leaves_the_log_to_the_next_start() -> None:
    """A node stops while a truncation waits for the disk. The next start recovers the log as after a crash."""
    case = Hanging(is_early=False)
    whole = content(filled(case))
    case.fall_silent()
    with pytest.raises(DiskHung):
        case.log().truncate_to(5)
    assert case.log_dir.is_stalled, "the directory is not stalled, and would get a marker of a clean shutdown"
    assert content(case.begin_again()) == whole


@TIMES
def test_the_rest_of_a_refused_append_is_cut_off_late(is_early: bool) -> None:
    """An append is refused on a full disk, which then stops answering.

    When the disk answers, the partial write of the append is cut off.
    """
    case = Hanging(LogConfig(), is_early=is_early)
    log = case.log()
    fill(log, 2)
    whole = content(log)

    def look(operation: str, path: str, position: int, count: int) -> None:
        if operation == "append":
            case.disk.on_operation = None
            case.fall_silent()

    case.disk.on_operation = look
    case.disk.fail_next(errno.ENOSPC, operation="append")
    case.disk.random.randint = lambda low, high: high // 2  # type: ignore[method-assign]
    with pytest.raises(DiskFull):
        append(log, batch())
    assert refuses(log)
    case.answer()
    log.check()
    assert content(log) == whole
    append(log, batch())
    assert case.begin_again().log_end_offset == 3
