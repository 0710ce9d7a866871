"""What retention removes: deleted records stay deleted through a loss of power, and producers stay known."""

from __future__ import annotations

import errno

import pytest

from odradek.data_plane.log.log_config import LogConfig
from odradek.data_plane.log.log_types import Origin
from odradek.wire.batches.transaction_markers import build_marker
from sim.machine.disk import Keep
from sim.machine.disk_files import PowerCut
from testkit.by_hand import NOW_MS
from tests.log.support import Node, append, append_verified, batch, fill

SMALL = LogConfig(segment_bytes=300, index_interval_bytes=150, retention_ms=-1)


@pytest.fixture
def node() -> Node:
    """Return a node whose log is empty and durable."""
    node = Node(SMALL)
    node.log().flush()
    node.log_dir.checkpoints.write_recovery_points()
    return node


def test_deleted_records_stay_deleted_when_a_loss_of_power_undoes_retention(node: Node) -> None:
    """A start counts as stored only if the next process finds it, even after a loss of power."""
    log = node.log()
    fill(log, 12)
    log.flush()
    second = log.segments[1].base_offset
    log.set_log_start_offset(second)
    node.look(1000)
    assert log.stored_start_offset == second
    log.delete_old_segments(NOW_MS)
    assert log.segment_list.base_offset == second
    node.look(70_000)
    node.disk.crash("synced")
    node.start()
    assert node.log().log_start_offset == second


def test_what_retention_has_removed_is_stored_with_the_next_checkpoint(node: Node) -> None:
    """A loss of power may undo the removal of files, so a start is stored when a checkpoint has it."""
    log = node.log()
    fill(log, 12)
    log.flush()
    log.set_config(
        LogConfig(segment_bytes=300, index_interval_bytes=150, retention_ms=-1, retention_bytes=300)
    )
    assert log.delete_old_segments(NOW_MS) > 0
    assert log.stored_start_offset == 0 < log.log_start_offset
    log.set_log_start_offset(1)
    assert node.log_dir.background.log_starts.is_wanted
    node.look(1000)
    assert log.is_start_stored
    start = log.log_start_offset
    node.disk.crash("synced")
    node.start()
    assert node.log().log_start_offset == start


def test_a_process_that_starts_with_removed_segments_stores_its_start_again(node: Node) -> None:
    """After a crash, removed segments may come back by a loss of power, unless a checkpoint has the start."""
    log = node.log()
    fill(log, 12)
    log.flush()
    log.set_config(
        LogConfig(segment_bytes=300, index_interval_bytes=150, retention_ms=-1, retention_bytes=300)
    )
    log.delete_old_segments(NOW_MS)
    start = log.log_start_offset
    node.disk.crash("all")
    node.start()
    assert node.log().log_start_offset == start
    assert node.log().stored_start_offset == 0
    node.look(1000)
    assert node.log().is_start_stored
    node.disk.crash("synced")
    node.start()
    assert node.log().log_start_offset == start


@pytest.mark.reaches("log.snapshot_made_late")
def test_retention_makes_the_snapshot_that_a_full_disk_has_refused(node: Node) -> None:
    """A producer whose batches were removed is known after a crash, so a repeated batch is recognised."""
    log = node.log()
    first = batch(1, producer_id=1, producer_epoch=0, base_sequence=0)
    append(log, bytearray(first))
    node.disk.fail_next(errno.ENOSPC, operation="append", path_part=".snapshot")
    log.roll(NOW_MS)
    fill(log, 2)
    log.flush()
    log.set_log_start_offset(1)
    assert log.delete_old_segments(NOW_MS) == 1
    log.flush()
    node.log_dir.checkpoints.write_recovery_points()
    node.disk.crash("synced")
    node.start()
    assert append(node.log(), bytearray(first)).duplicate


@pytest.mark.reaches("log.kept_for_its_producers")
def test_a_full_disk_keeps_the_segments_that_alone_know_their_producers(node: Node) -> None:
    """The disk refuses the snapshot at the roll and again before the removal. The segments before it go, and the last
    one stays until there is room, so a repeated batch is recognised after a crash.
    """
    log = node.log()
    append(log, batch(1, producer_id=1, producer_epoch=0, base_sequence=0))
    log.roll(NOW_MS)
    repeated = batch(1, producer_id=1, producer_epoch=0, base_sequence=1)
    append(log, bytearray(repeated))
    node.disk.fail_next(errno.ENOSPC, operation="append", path_part=".snapshot", times=2)
    log.roll(NOW_MS)
    fill(log, 2)
    log.flush()
    log.set_log_start_offset(2)
    assert log.delete_old_segments(NOW_MS) == 1
    assert [segment.base_offset for segment in log.segments][:2] == [1, 2]
    log.flush()
    node.log_dir.checkpoints.write_recovery_points()
    node.look(1000)
    assert log.is_start_stored
    node.disk.crash("synced")
    node.start()
    log = node.log()
    assert log.log_start_offset == 2
    assert append(log, bytearray(repeated)).duplicate
    assert log.delete_old_segments(NOW_MS) == 1, "with room again, the segment goes"


@pytest.mark.reaches("log.snapshot_replaced")
@pytest.mark.parametrize("keep", ["all", "synced"])
def test_a_loss_of_power_in_a_clean_stop_leaves_the_producers_of_removed_batches(keep: Keep) -> None:
    """A clean stop writes the snapshot at the log's end again. The file there may be all that is left of a producer."""
    number, has_stopped = 1, False
    while not has_stopped:
        node = Node(SMALL)
        log = node.log()
        append(log, batch(1, producer_id=2, producer_epoch=0, base_sequence=0))
        repeated = batch(1, producer_id=1, producer_epoch=0, base_sequence=0)
        append(log, bytearray(repeated))
        log.advance_high_watermark(2)
        log.roll(NOW_MS)
        log.flush()
        log.set_log_start_offset(2)
        node.look(1000)
        assert log.delete_old_segments(NOW_MS) == 1
        node.look(1000)
        assert log.producers.load(log.segment_list, 150).entries.pop(2)
        node.disk.crash_at(node.disk.operation_count + number)
        try:
            node.log_dir.close_clean(1)
            has_stopped = True
        except PowerCut:
            number += 1
        node.disk.crash(keep)
        node.start()
        assert append(node.log(), bytearray(repeated)).duplicate, number
    assert number > 10


def test_a_full_disk_frees_segments_without_producers(node: Node) -> None:
    """The removal of a segment goes on if the log has no producers."""
    log = node.log()
    fill(log, 1)
    node.disk.fail_next(errno.ENOSPC, operation="append", path_part=".snapshot", times=2)
    log.roll(NOW_MS)
    fill(log, 2)
    log.set_log_start_offset(1)
    assert log.delete_old_segments(NOW_MS) == 1


def test_a_cut_marker_holds_up_nobody_although_its_producer_has_expired(node: Node) -> None:
    """The last stable offset does not wait for a marker that was cut away."""
    log = node.log()
    append_verified(log, batch(1, producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True))
    append(log, build_marker(1, 0, 0, is_commit=True, timestamp_ms=NOW_MS), origin=Origin.COORDINATOR)
    assert log.last_stable_offset == 0
    log.producers.expire(0, 1)
    log.producers.expire(1000, 1)
    log.truncate_to(0)
    append(log, batch(1), epoch=1)
    log.advance_high_watermark(1)
    assert log.last_stable_offset == 1
