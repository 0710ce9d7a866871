"""The background work of a log directory: flushes, checkpoints, retention, and the expiry of producers and indexes."""

from __future__ import annotations

import pytest

from odradek.data_plane.log.directory.checkpoints import (
    HIGH_WATERMARK_FILE,
    LOG_START_FILE,
    RECOVERY_POINT_FILE,
)
from odradek.data_plane.log.log_config import LogConfig
from odradek.env.ports import DiskError
from testkit.by_hand import NOW_MS, finish
from tests.log.support import (
    ROOT,
    Node,
    append,
    batch,
    fill,
    offsets_in,
)

SIZE = len(batch())


def test_rolled_segments_are_flushed_at_the_next_look() -> None:
    """A finished segment is flushed by the next run of the background work, as Kafka does after every roll."""
    node = Node(LogConfig(segment_bytes=2 * SIZE))
    log = node.log()
    fill(log, 3)
    node.look(1_000)
    assert log.recovery_point == 3


def test_flush_ms_is_kept_and_everything_is_flushed_in_turn() -> None:
    """A log with flush.ms is flushed when this time has passed.

    Logs without flush.ms take turns, and each run of the background work flushes some of them.
    """
    node = Node(LogConfig(flush_ms=5_000))
    log = node.log()
    node.look(10_000)
    fill(log, 1)
    node.look(4_999)
    assert log.recovery_point == 0
    node.look(1)
    assert log.recovery_point == 1
    node = Node()
    for partition in range(120):
        fill(node.log("t", partition), 1)
    node.look(100_000)
    assert sum(log.recovery_point for log in node.log_dir.logs.values()) == 2
    for _ in range(59):
        node.look(1_000)
    assert sum(log.recovery_point for log in node.log_dir.logs.values()) == 120
    before = node.log_dir.background.flush_count
    for log in node.log_dir.logs.values():
        fill(log, 1)
    for _ in range(10):
        node.look(1_000)
    assert node.log_dir.background.flush_count == before + 20


def test_unsynced_bytes_are_bounded() -> None:
    """When all logs together have more unsynced bytes than permitted, those with the most are flushed, until half of the
    limit is left."""
    node = Node()
    node.disk.crash("all")
    node.start(unsynced_bytes_max=10 * SIZE)
    small, large = node.log("t", 0), node.log("t", 1)
    fill(small, 3)
    fill(large, 7)
    node.look(1_000)
    assert (small.recovery_point, large.recovery_point) == (0, 0)
    assert (small.unsynced_bytes, large.unsynced_bytes) == (3 * SIZE, 7 * SIZE)
    fill(large, 1)
    node.look(1_000)
    assert (small.recovery_point, large.recovery_point) == (0, 8)
    assert large.unsynced_bytes == 0
    fill(large, 2)
    assert large.unsynced_bytes == 2 * SIZE
    node.disk.crash("all")
    node.start(unsynced_bytes_max=-1)
    fill(node.log("t", 2), 50)
    node.look(1_000)
    assert node.log("t", 2).recovery_point == 0


def test_checkpoints_are_written_when_due() -> None:
    """Checkpoints are written when due: high watermarks every 5 s, recovery points and log starts every minute.

    An unchanged checkpoint is not written.
    """
    node = Node()
    log = node.log()
    node.look()
    fill(log, 4)
    log.set_log_start_offset(2)
    node.look(4_999)
    assert not node.disk.open_dir(ROOT).exists(HIGH_WATERMARK_FILE)
    node.look(1)
    assert offsets_in(node, HIGH_WATERMARK_FILE) == {("t", 0): 4}
    node.look(60_000)
    assert offsets_in(node, RECOVERY_POINT_FILE) == {("t", 0): 4}
    assert offsets_in(node, LOG_START_FILE) == {("t", 0): 2}
    writes: list[str] = []
    node.disk.on_operation = lambda operation, path, *_: (
        writes.append(path) if operation == "create" else None
    )
    node.look(5_000)
    assert [path for path in writes if HIGH_WATERMARK_FILE in path] == []


def test_one_write_stores_all_log_starts_that_were_raised() -> None:
    """One write of the checkpoint stores all raised log starts, and `on_start_stored` is called for each.

    If the disk is full, the write is repeated later.
    """
    told: list[int] = []
    node = Node()
    node.disk.crash("all")
    node.start(on_start_stored=lambda log: told.append(log.partition))
    logs = [node.log("t", partition) for partition in range(5)]
    for log in logs:
        fill(log, 4)
        log.set_log_start_offset(3)
    assert [log.stored_start_offset for log in logs] == [0] * 5
    node.disk.capacity_bytes = node.disk.used_bytes
    assert not finish(node.log_dir.background.log_starts.store())
    assert told == []
    node.disk.capacity_bytes = None
    writes: list[str] = []
    node.disk.on_operation = lambda operation, path, *_: (
        writes.append(path) if operation == "rename" else None
    )
    node.look(1_000)
    assert told == [0, 1, 2, 3, 4]
    assert [log.stored_start_offset for log in logs] == [3] * 5
    assert writes == [f"{ROOT}/{LOG_START_FILE}.tmp"]


def test_no_checkpoint_is_written_behind_the_end_of_a_directory() -> None:
    """A late write of a checkpoint comes after its directory was closed.

    Nothing is written, since another process may use the directory.
    """
    node = Node()
    log = node.log()
    fill(log, 4)
    log.set_log_start_offset(3)
    node.log_dir.close_clean(1)
    before = node.disk.peek(ROOT)
    assert offsets_in(node, LOG_START_FILE) == {("t", 0): 3}
    assert not finish(node.log_dir.background.log_starts.store())
    assert node.disk.peek(ROOT) == before


def test_the_checkpoint_of_high_watermarks_is_replaced_without_a_sync() -> None:
    """The checkpoint of high watermarks is written without a sync, which would delay appends.

    An older high watermark is safe.
    """
    node = Node()
    fill(node.log(), 3)
    node.look()
    synced: list[str] = []
    node.disk.on_operation = lambda operation, path, *_: synced.append(path) if operation == "sync" else None
    node.look(5_000)
    assert offsets_in(node, HIGH_WATERMARK_FILE) == {("t", 0): 3}
    assert synced == []
    node.disk.crash("synced")
    node.start()
    assert node.log().high_watermark == 0


@pytest.mark.parametrize("left", [b"", b"0\n1", b"0\n1\nt 0 ", b"0\n1\nt 0 1"])
def test_what_a_power_loss_leaves_of_the_high_watermarks_says_too_little(left: bytes) -> None:
    """A power loss tears the checkpoint of high watermarks.

    The high watermark is lower or missing, and the log is complete.
    """
    node = Node()
    fill(node.log(), 12)
    node.look()
    node.look(60_000)
    directory = node.disk.open_dir(ROOT)
    directory.write_atomic(HIGH_WATERMARK_FILE, left)
    directory.write_atomic(f"{HIGH_WATERMARK_FILE}.tmp", b"0\n2\nt 0 12\nmore than what is written next")
    node.disk.crash("all")
    node.start()
    log = node.log()
    assert (log.log_end_offset, log.high_watermark) == (12, 1 if left.endswith(b"1") and b"t" in left else 0)
    log.advance_high_watermark(12)
    node.look()
    node.look(5_000)
    assert offsets_in(node, HIGH_WATERMARK_FILE) == {("t", 0): 12}


def test_a_truncation_below_the_recovery_point_rewrites_the_checkpoint_first() -> None:
    """A truncation below the recovery point writes the lower checkpoint first.

    Otherwise new, unverified bytes could be below it after a power loss.
    """
    node = Node()
    log = node.log()
    fill(log, 6)
    node.look(60_000)
    node.look(60_000)
    assert offsets_in(node, RECOVERY_POINT_FILE) == {("t", 0): 6}
    order: list[str] = []
    node.disk.on_operation = lambda operation, path, *_: order.append(
        f"{operation} {path.rpartition('/')[2]}"
    )
    log.truncate_to(2)
    assert offsets_in(node, RECOVERY_POINT_FILE) == {("t", 0): 2}
    cut = order.index("truncate 00000000000000000000.log")
    assert f"rename {RECOVERY_POINT_FILE}.tmp" in order[:cut]


def test_retention_runs_in_the_background_and_files_go_later() -> None:
    """Retention renames segments to `.deleted` at once, and removes them after file.delete.delay.ms or at a restart."""
    node = Node(LogConfig(segment_bytes=2 * SIZE, retention_ms=3_600_000, file_delete_delay_ms=60_000))
    log = node.log()
    for at in range(6):
        append(log, batch(timestamp=NOW_MS + at * 600_000), now_ms=NOW_MS + at * 600_000)
    log.advance_high_watermark(6)
    node.look()
    node.look(300_000)
    assert len(log.segments) == 3
    node.look(4_000_000)
    assert log.log_start_offset == 2
    (event,) = node.events("log.segments_removed")
    assert (event["segments"], event["log_start_offset"]) == (1, 2)
    deleted = [name for name in log.directory.list() if name.endswith(".deleted")]
    assert "00000000000000000000.log.deleted" in deleted
    node.look(60_000)
    assert not any(name.endswith(".deleted") for name in log.directory.list())
    node.look(1_500_000)
    assert log.log_start_offset == 4
    node.disk.crash("all")
    node.start()
    assert not any(name.endswith(".deleted") for name in node.log().directory.list())
    assert node.log().log_end_offset == 6


def test_producers_expire_in_the_background() -> None:
    """Producers expire by producer.id.expiration.ms, at each producer.id.expiration.check.interval.ms."""
    node = Node()
    log = node.log()
    append(log, batch(producer_id=1, producer_epoch=0, base_sequence=0))
    node.look()
    node.look(600_000)
    assert list(log.load_producers().entries) == [1]
    node.look(86_400_000)
    assert list(log.load_producers().entries) == []


def test_idle_indexes_are_dropped_in_the_background() -> None:
    """The index of a segment that is not read is dropped from memory, and read again when needed."""
    node = Node(LogConfig(segment_bytes=4 * SIZE, index_interval_bytes=10))
    log = node.log()
    fill(log, 9)
    assert log.segments[0].index is not None
    node.look()
    for _ in range(2):
        node.look(600_000)
    assert log.segments[0].index is None
    assert len(log.read_bytes(2, 1, upper_bound=9, min_one=True)) == SIZE


def test_the_background_loop_ends_with_the_directory() -> None:
    """The background work runs once a second, and ends when its directory is offline."""
    node = Node()
    log = node.log()
    fill(log, 1)
    looks: list[int] = []

    class Stop:
        async def run(self, function: object, *args: object) -> None:
            looks.append(node.clock.now_ms)
            raise DiskError(ROOT, "x", "sync", 5, "gone")

    context = node.log_dir.context
    object.__setattr__(context, "workers", Stop())
    finish(node.log_dir.run_background())
    assert len(looks) == 1
    assert len(node.offline) == 1


def test_statistics_name_the_directory() -> None:
    """The statistics of a log directory have its path, logs, sizes and the reason why it is offline."""
    node = Node()
    fill(node.log(), 1)
    figures = node.log_dir.statistics()
    assert (figures["path"], figures["logs"], figures["size_bytes"], figures["offline_reason"]) == (
        ROOT,
        1,
        SIZE,
        None,
    )
    assert figures["total_bytes"] >= figures["free_bytes"] > 0
