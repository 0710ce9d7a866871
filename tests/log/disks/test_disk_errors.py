"""Full and failing disks: refused calls, directories that go offline, and data that survives."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from odradek.data_plane.log.dump import verify_partition
from odradek.data_plane.log.log_config import LogConfig
from odradek.data_plane.log.log_types import Origin
from odradek.data_plane.log.partition_log import PartitionLog
from odradek.env.ports import DiskError, DiskFull
from odradek.wire.errors import ErrorCode, KafkaError
from testkit.by_hand import NOW_MS, finish
from tests.log.support import ROOT, Node, append, batch, content, fill, retain

SIZE = len(batch())


def test_a_full_disk_refuses_appends_until_there_is_room() -> None:
    """The disk is full during an append.

    The file is truncated to its old end, the directory stays online, and a later append succeeds.
    """
    for room in range(0, 3 * SIZE, 7):
        node = Node()
        log = node.log()
        fill(log, 2)
        log.flush()
        expected = content(log)
        node.disk.capacity_bytes = node.disk.used_bytes + room
        for _ in range(room // SIZE):
            append(log, batch())
        with pytest.raises(DiskFull):
            append(log, batch())
        with pytest.raises(DiskFull):
            append(log, batch())
        assert log.log_end_offset == 2 + room // SIZE
        assert content(log).startswith(expected)
        assert log.active.file.size == log.active.size == log.log_end_offset * SIZE
        node.disk.capacity_bytes = None
        assert append(log, batch()).base_offset == 2 + room // SIZE
        assert (node.offline, node.log_dir.offline_reason) == ([], None)
        log.close()
        assert list(verify_partition(log.directory)) == []


def test_a_roll_on_a_full_disk_needs_no_index_on_disk() -> None:
    """The disk is full during a roll.

    Index and snapshot files are omitted, and written later, since they can be rebuilt.
    """
    node = Node(LogConfig(segment_bytes=10 * SIZE, index_interval_bytes=10))
    log = node.log()
    fill(log, 10)
    node.disk.capacity_bytes = node.disk.used_bytes
    log.roll(NOW_MS)
    with pytest.raises(DiskFull):
        append(log, batch())
    assert not any(name.endswith((".index", ".snapshot")) for name in log.directory.list())
    node.disk.capacity_bytes = None
    append(log, batch(producer_id=1, producer_epoch=0, base_sequence=0))
    log.flush()
    node.disk.crash("synced")
    node.start()
    log = node.log()
    assert log.log_end_offset == 11
    for offset in range(11):
        assert len(log.read_bytes(offset, 1, upper_bound=11, min_one=True)) == SIZE
    assert log.times().offset_for_timestamp(NOW_MS, upper_bound=11) == (NOW_MS, 0, 0)
    assert node.offline == []


def test_retention_makes_room_where_the_leader_epochs_have_none() -> None:
    """The file of leader epochs cannot be written on a full disk.

    Retention makes room for it. A crash before that loses no epoch.
    """
    for crashes in (False, True):
        node = Node(LogConfig(segment_bytes=2 * SIZE, retention_bytes=2 * SIZE))
        log = node.log()
        fill(log, 6)
        node.look()
        log.flush()
        append(log, batch(), epoch=5)
        log.advance_high_watermark(log.log_end_offset)
        node.disk.capacity_bytes = node.disk.used_bytes
        node.look(600_000)
        assert log.log_start_offset == 4
        assert log.epochs.is_dirty
        assert log.recovery_point == 6, "recovery would not read the record of the new epoch"
        epochs = log.epochs.entries
        if crashes:
            node.disk.crash("synced")
            node.disk.capacity_bytes = None
            node.start()
            log = node.log()
            assert log.log_end_offset == 7
        else:
            node.look(120_000)
            node.look(120_000)
            assert not log.epochs.is_dirty, "the epochs are not written, although retention has made room"
            assert log.recovery_point == 7
        assert log.epochs.entries[-1] == epochs[-1] == (5, 6)
        assert node.offline == []


@pytest.mark.reaches("log.removed_before_roll")
def test_retention_goes_on_where_no_new_segment_can_begin() -> None:
    """All segments have expired, but there is no room for a new one. All segments except the active one are removed."""
    node = Node(LogConfig(segment_bytes=2 * SIZE, retention_ms=1_000))
    log = node.log()
    fill(log, 5)
    log.advance_high_watermark(log.log_end_offset)

    def refuse(now_ms: int) -> None:
        raise DiskFull("disk", "t-0", "write", errno.ENOSPC, "no space left")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PartitionLog, "roll", lambda log, now_ms: refuse(now_ms))
        assert retain(log, NOW_MS + 10_000) == 2
    assert (log.log_start_offset, log.log_end_offset) == (4, 5)
    assert retain(log, NOW_MS + 10_000) == 1
    assert log.log_start_offset == 5


@pytest.mark.reaches("log.flush_postponed")
def test_background_work_waits_for_room() -> None:
    """The disk is full. Checkpoints keep their old contents, and flushes are postponed."""
    node = Node()
    log = node.log()
    fill(log, 3)
    node.look(120_000)
    assert log.recovery_point == 3
    append(log, batch(), epoch=5)
    node.disk.capacity_bytes = node.disk.used_bytes
    node.look(120_000)
    assert node.events("log.flush_postponed") != []
    assert (log.recovery_point, node.offline) == (3, [])
    node.disk.capacity_bytes = None
    node.look(120_000)
    assert log.recovery_point == 4


def test_a_failed_sync_takes_the_directory_offline_for_good() -> None:
    """A sync fails. It is never repeated, and the directory goes offline for good.

    The kernel may have dropped the unsynced pages (docs/internals/durability.md, "A failed sync is final").
    """
    node = Node()
    log = node.log()
    fill(log, 3)
    node.disk.fail_next(errno.EIO, operation="sync", path_part=".log")
    with pytest.raises(DiskError):
        log.flush()
    assert log.recovery_point == 0
    with pytest.raises(KafkaError) as caught:
        append(log, batch())
    assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    finish(node.log_dir.run_background())
    assert len(node.offline) == 1
    syncs: list[str] = []
    node.disk.on_operation = lambda operation, path, *_: syncs.append(path) if operation == "sync" else None
    node.log_dir.close_clean(1)
    assert syncs == []
    node.disk.crash("all")
    assert node.start().clean_shutdown_broker_epoch is None


@pytest.mark.parametrize("operation", ["append", "truncate", "read"])
def test_any_other_error_takes_the_directory_offline(operation: str) -> None:
    """An I/O error takes the directory offline. All of its logs refuse every use, and the first reason is reported
    once."""
    node = Node()
    log, other = node.log(), node.log("other")
    fill(log, 3)
    log.active.forget_places()
    actions: dict[str, Callable[[], object]] = {
        "append": lambda: append(log, batch()),
        "truncate": lambda: log.truncate_to(1),
        "read": lambda: log.read(1, 100, upper_bound=2),
    }
    node.disk.fail_next(errno.EIO, operation=operation, path_part=".log")
    with pytest.raises(DiskError):
        actions[operation]()
    assert len(node.offline) == 1
    assert "Input/output error" in node.offline[0]
    for refused in (lambda: append(other, batch()), lambda: other.read(0, 1, upper_bound=1)):
        with pytest.raises(KafkaError) as caught:
            refused()
        assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    with pytest.raises(DiskError):
        node.log_dir.create_log("new", 0, bytes(16), LogConfig())
    node.log_dir.delete_log("other", 0)
    node.log_dir.go_offline("again")
    assert len(node.offline) == 1


def test_an_append_that_cannot_even_be_undone_takes_the_directory_offline() -> None:
    """An append fails on a full disk, and its partial write cannot be truncated either. The directory goes offline."""
    node = Node()
    log = node.log()
    fill(log, 1)
    node.disk.fail_next(errno.ENOSPC, operation="append", path_part=".log")
    node.disk.fail_next(errno.EIO, operation="truncate")
    for _ in range(20):
        if node.offline:
            break
        node.disk.fail_next(errno.ENOSPC, operation="append", path_part=".log")
        with pytest.raises(DiskError):
            append(log, batch())
    assert len(node.offline) == 1


def test_whatever_fails_nothing_that_was_acknowledged_is_lost() -> None:
    """Each disk operation of a run fails in turn, and then the process dies.

    After a start on a working disk all acknowledged records are there.
    """
    config = LogConfig(segment_bytes=4 * SIZE, index_interval_bytes=100, file_delete_delay_ms=0)

    def run(node: Node) -> int:
        acknowledged = 0
        try:
            log = node.log()
            for at in range(12):
                append(log, batch(producer_id=1, producer_epoch=0, base_sequence=at), epoch=at // 4)
                acknowledged = log.log_end_offset
                if at % 3 == 2:
                    log.flush()
            log.advance_high_watermark(9)
            log.set_log_start_offset(5)
            node.look(120_000)
            node.look(400_000)
            node.log_dir.close_clean(3)
        except (DiskError, KafkaError):
            pass
        return acknowledged

    reference = Node(config)
    first = reference.disk.operation_count + 1
    assert run(reference) == 12
    last = reference.disk.operation_count
    assert last - first > 100
    for number in range(first, last + 1):
        for code in (errno.EIO, errno.ENOSPC):
            node = Node(config)
            node.disk.fail_at(number, code)
            acknowledged = run(node)
            node.disk.crash("all")
            node.start()
            log = node.log()
            assert log.log_end_offset >= acknowledged, (number, code)
            assert list(verify_partition(log.directory)) == [], (number, code)
            if acknowledged:
                assert log.load_producers().entries[1].last_sequence == log.log_end_offset - 1, (number, code)


def test_when_loading_fails_the_directory_is_offline() -> None:
    """A read fails while logs are loaded. The directory is offline, and gets no marker of a clean shutdown."""
    node = Node()
    fill(node.log(), 3)
    node.disk.crash("all")
    node.disk.fail_next(errno.EIO, operation="read", path_part="t-0/")
    node.start()
    assert node.log_dir.offline_reason is not None
    assert node.log_dir.logs == {}
    node.log_dir.close_clean(1)
    assert not node.disk.open_dir(ROOT).exists(".kafka_cleanshutdown")


def test_a_replica_that_cannot_read_its_producers_has_written_nothing() -> None:
    """After a clean start, reading a producer snapshot fails at a follower's first batch.

    Nothing is written, and the batch is accepted when it comes again.
    """
    node = Node()
    for sequence in range(2):
        append(node.log(), batch(producer_id=1, producer_epoch=0, base_sequence=sequence))
    node.log_dir.close_clean(1)
    node.disk.crash("all")
    node.start()
    log = node.log()
    expected = content(log)
    sent = b"".join(
        batch(base_offset=at, leader_epoch=0, producer_id=1, producer_epoch=0, base_sequence=at)
        for at in (2, 3)
    )
    node.disk.fail_next(errno.EIO, operation="read", path_part=".snapshot")
    with pytest.raises(DiskError):
        append(log, bytearray(sent), origin=Origin.REPLICA)
    assert (log.log_end_offset, content(log), log.active.file.size) == (2, expected, log.active.size)
    assert append(log, bytearray(sent), origin=Origin.REPLICA).last_offset == 3
    assert content(log) == expected + sent


def test_a_log_that_could_not_be_made_leaves_nothing() -> None:
    """The disk is full during the creation of a log.

    Nothing of it remains, since the next start would take it for a stray.
    """
    refused = 0
    for room in range(80):
        node = Node()
        node.disk.capacity_bytes = node.disk.used_bytes + room
        try:
            node.log()
        except DiskFull:
            refused += 1
            assert not any(name.startswith("t-0") for name in node.log_dir.directory.list()), room
        assert node.offline == []
        node.disk.capacity_bytes = None
        node.log_dir.delete_log("t", 0) if node.log_dir.get("t", 0) else node.log()
    assert refused > 10


def test_a_read_in_a_worker_leaves_the_failed_directory_to_the_loop() -> None:
    """A read in a worker fails. The directory goes offline later, on the loop, and never in the worker's thread."""
    node = Node()
    log = node.log()
    fill(log, 3)
    log.active.forget_places()
    node.disk.fail_next(errno.EIO, operation="read", path_part=".log")
    with pytest.raises(DiskError):
        log.read_bytes(1, 100, upper_bound=3)
    assert node.offline == []
    with pytest.raises(KafkaError) as caught:
        append(log, batch())
    assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    finish(node.log_dir.run_background())
    assert len(node.offline) == 1
