"""The loop deletes, recreates or closes a log while a worker uses it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from odradek.data_plane.coordination.decision_log import read_latest
from odradek.data_plane.log.directory.log_dir import LogDir
from odradek.data_plane.log.log_config import LogConfig
from odradek.data_plane.log.partition_log import PartitionLog
from odradek.data_plane.log.segments.segment import Segment
from odradek.env.ports import FileClosed
from odradek.env.real_dirs import open_dir
from odradek.wire.errors import ErrorCode, KafkaError
from testkit.by_hand import NOW_MS, finish
from tests.log.support import Node, append, batch, content, open_log

T = TypeVar("T")

SIZE = len(batch())
CONFIG = LogConfig(segment_bytes=2 * SIZE, retention_ms=3_600_000, flush_ms=0, file_delete_delay_ms=0)
OTHER_TOPIC_ID = bytes(range(32, 48))
CONTEXT = {
    "retention_check_interval_ms": 1,
    "checkpoint_interval_ms": 1,
    "high_watermark_checkpoint_interval_ms": 1,
    "space_interval_ms": 1,
}
OLD_MS = NOW_MS - 10**9
LOOKS = 4


class OvertakenWorkers:
    """Workers that act at once. Before or after call number `at` they run `meanwhile`."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.at = -1
        self.is_before = True
        self.meanwhile: Callable[[], None] = lambda: None

    async def run(self, function: Callable[..., T], *args: Any) -> T:
        at = len(self.calls)
        self.calls.append(getattr(function, "__qualname__", repr(function)))
        if at == self.at and self.is_before:
            self.meanwhile()
        result = function(*args)
        if at == self.at and not self.is_before:
            self.meanwhile()
        return result


def _filled(node: Node, epoch: int) -> None:
    for topic in ("t", "u"):
        log = node.log(topic)
        for at in range(6):
            append(log, batch(timestamp=OLD_MS + at), epoch=epoch)
        log.advance_high_watermark(4)


def _started(workers: OvertakenWorkers) -> Node:
    """Make a node that has stopped and started, so that the indexes of finished segments have yet to be read."""
    node = Node(CONFIG)
    _filled(node, epoch=3)
    node.log_dir.close_clean(7)
    node.log_dir.directory.unlock()
    node.start(workers=workers, **CONTEXT)
    workers.calls.clear()
    for log in node.log_dir.logs.values():
        append(log, batch(timestamp=OLD_MS), epoch=4)
    return node


def _delete(log_dir: LogDir) -> None:
    log_dir.delete_log("t", 0)


def _make_anew(log_dir: LogDir) -> None:
    log_dir.delete_log("t", 0)
    log = log_dir.create_log("t", 0, OTHER_TOPIC_ID, CONFIG)
    append(log, batch(timestamp=NOW_MS), epoch=0)


def _number_of_calls() -> int:
    workers = OvertakenWorkers()
    node = _started(workers)
    for _ in range(LOOKS):
        node.look(1000)
    return len(workers.calls)


@pytest.mark.parametrize("meanwhile", [_delete, _make_anew])
@pytest.mark.parametrize("is_before", [True, False])
def test_a_log_may_go_during_any_call_of_the_background(
    meanwhile: Callable[[LogDir], None], is_before: bool
) -> None:
    """A log is deleted or recreated during any call of the background work.

    The directory stays online, and the new log inherits nothing.
    """
    calls = _number_of_calls()
    assert calls > 10
    for at in range(calls):
        workers = OvertakenWorkers()
        node = _started(workers)
        log_dir = node.log_dir
        workers.at, workers.is_before = at, is_before
        workers.meanwhile = lambda log_dir=log_dir: meanwhile(log_dir)
        for _ in range(LOOKS):
            node.look(1000)
        told = f"during call {at}, {workers.calls[at]}"
        assert log_dir.offline_reason is None, told
        assert not node.offline, told
        survivor = content(log_dir.logs["u", 0])
        node.disk.crash("synced")
        node.start()
        assert content(node.log_dir.logs["u", 0]) == survivor, told
        fresh = node.log_dir.get("t", 0)
        if meanwhile is _make_anew:
            assert fresh is not None, told
            # The crash may lose this record, which was never synced.
            assert fresh.log_start_offset == 0, told
            assert fresh.log_end_offset <= 1, told
            assert fresh.epochs.latest in (-1, 0), told


def _closed_log(directory: Any) -> PartitionLog:
    log = open_log(directory, LogConfig(segment_bytes=4096))
    for _ in range(150):
        append(log, batch(3))
    log.advance_high_watermark(log.log_end_offset)
    for segment in log.segments:
        segment.forget_places()
    return log


@pytest.mark.parametrize("is_before", [True, False])
@pytest.mark.parametrize(
    "read",
    [
        lambda log: read_latest(log, []),
        lambda log: log.times().offset_for_timestamp(NOW_MS, upper_bound=log.log_end_offset),
        lambda log: log.times().offset_of_max_timestamp(log.log_end_offset),
    ],
)
def test_a_reader_in_a_worker_meets_a_closed_log(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, read: Callable[[PartitionLog], object], is_before: bool
) -> None:
    """A log is closed between two steps of a reader in a worker.

    The reader gets its answer or `FileClosed`, and no other exception.
    """
    log = _closed_log(open_dir(str(tmp_path)))
    real = Segment.pinned_file

    def pinned(segment: Segment) -> Any:
        if is_before:
            log.abandon()
        file = real(segment)
        log.abandon()
        return file

    monkeypatch.setattr(Segment, "pinned_file", pinned)
    try:
        read(log)
    except FileClosed:
        return
    except KafkaError as error:
        if error.code != ErrorCode.KAFKA_STORAGE_ERROR:
            raise


def test_a_lookup_by_time_goes_on_behind_removed_segments(tmp_path: Any) -> None:
    """Retention removes the segment of a running lookup by time. The lookup continues in the segments that are left."""
    log = _closed_log(open_dir(str(tmp_path)))
    config = LogConfig(segment_bytes=4096, retention_bytes=0)
    segment = log.segments[0]
    real = segment.pinned_file

    class Overtaken(Segment):
        __slots__ = ()

        def pinned_file(self) -> Any:
            if log.segments[0] is self:
                log.config = config
                assert log.delete_old_segments(NOW_MS)
            return real()

    segment.__class__ = Overtaken
    found = log.times().offset_for_timestamp(0, upper_bound=log.log_end_offset)
    assert found is None or found[1] >= log.log_start_offset > 0


def _before_the_checkpoint_of(workers: OvertakenWorkers, name: str) -> None:
    real = workers.run

    async def run(function: Callable[..., T], *args: Any) -> T:
        if any(isinstance(arg, str) and name in arg for arg in args):
            workers.meanwhile()
            workers.meanwhile = lambda: None
        return await real(function, *args)

    workers.run = run  # type: ignore[method-assign]


def test_a_checkpoint_never_names_a_log_that_was_set_aside_before_it_was_written() -> None:
    """A log is recreated while a checkpoint is being written.

    It does not inherit the old log's offsets from the checkpoint.
    """
    workers = OvertakenWorkers()
    node = Node(CONFIG)
    node.log_dir.directory.unlock()
    node.start(workers=workers, **CONTEXT)
    log = node.log()
    for _ in range(6):
        append(log, batch(timestamp=NOW_MS))
    log.advance_high_watermark(6)
    log.set_log_start_offset(5)
    workers.meanwhile = lambda: _make_anew(node.log_dir)
    _before_the_checkpoint_of(workers, "log-start")
    node.look(1000)
    node.disk.crash("synced")
    node.start()
    fresh = node.log_dir.get("t", 0)
    assert fresh is not None
    assert fresh.log_start_offset == 0


def test_a_clean_stop_passes_over_a_log_that_was_deleted_meanwhile() -> None:
    """A log is deleted while its directory is being closed. The shutdown still counts as clean."""
    node = Node(CONFIG)
    _filled(node, epoch=0)
    log_dir = node.log_dir
    real = log_dir.logs["t", 0].close

    class Overtaken(PartitionLog):
        __slots__ = ()

        def close(self) -> None:
            if ("u", 0) in log_dir.logs:
                log_dir.delete_log("u", 0)
            real()

    log_dir.logs["t", 0].__class__ = Overtaken
    log_dir.close_clean(9)
    log_dir.directory.unlock()
    assert node.start().clean_shutdown_broker_epoch == 9


def test_background_ends_with_the_directory_it_looks_after() -> None:
    """The background work of a directory ends when the directory is closed.

    It must not change files that a worker is closing.
    """
    node = Node(CONFIG)
    _filled(node, epoch=0)
    node.log_dir.close_clean(9)
    finish(node.log_dir.run_background())
    assert not node.offline
