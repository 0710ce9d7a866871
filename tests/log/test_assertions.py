"""A log in an invalid state raises AssertionError at the next step that depends on it.

The tests make each such state.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.data_plane.log.log_config import LogConfig
from odradek.data_plane.log.partition_log import Origin, PartitionLog
from odradek.data_plane.log.parts.leader_epochs import LeaderEpochs
from odradek.data_plane.log.parts.log_offsets import LogOffsets
from odradek.data_plane.log.segments.file_names import file_name
from odradek.data_plane.log.segments.segment_index import SegmentIndex
from odradek.env.ports import DiskFull
from odradek.wire.errors import ErrorCode, KafkaError
from testkit.by_hand import NOW_MS
from tests.log.support import ROOT, Node, append, batch, fill, new_disk, new_log

SIZE = len(batch())


def _filled(batches: int = 5) -> PartitionLog:
    """Make a log of two batches in each segment, all committed and flushed."""
    log = new_log(LogConfig(segment_bytes=2 * SIZE, retention_ms=0))
    fill(log, batches)
    log.flush()
    return log


def _append_replicas(log: PartitionLog) -> object:
    data = batch(base_offset=log.log_end_offset)
    return append(log, data, origin=Origin.REPLICA)


def _file_grew(log: PartitionLog) -> None:
    log.active.file.append(b"x")


def _file_shrank(log: PartitionLog) -> None:
    log.active.file.truncate(log.active.size - 1)


BROKEN: dict[str, tuple[Callable[[PartitionLog], object], Callable[[PartitionLog], object], str]] = {
    "a leader's high watermark beyond its log": (
        lambda log: None,
        lambda log: log.advance_high_watermark(7),
        "high watermark cannot become 7",
    ),
    "an append below the high watermark": (
        lambda log: setattr(log, "high_watermark", 7),
        lambda log: append(log, batch()),
        "out of order",
    ),
    "an append to a log that starts behind its high watermark": (
        lambda log: setattr(log, "log_start_offset", 7),
        lambda log: append(log, batch()),
        "out of order",
    ),
    "a replica's append below the high watermark": (
        lambda log: setattr(log, "high_watermark", 7),
        _append_replicas,
        "high watermark 7",
    ),
    "records are deleted that are not committed": (
        lambda log: setattr(log, "high_watermark", 2),
        lambda log: log.raise_start(3),
        "out of order",
    ),
    "an append to a segment that begins behind the log's end": (
        lambda log: log.segment_list.add(log.segment_list.create(9, NOW_MS), 5),
        lambda log: append(log, batch()),
        "segment 9, up to offset 5",
    ),
    "an append to a file that somebody else has written to": (
        _file_grew,
        lambda log: append(log, batch()),
        "a batch was written at position",
    ),
    "a replica's append to a file that somebody else has written to": (
        _file_grew,
        _append_replicas,
        "batches were written at position",
    ),
    "a read from a file that somebody else has cut": (
        _file_shrank,
        lambda log: log.read(4, 1 << 20, upper_bound=5),
        "a search found",
    ),
    "a roll behind a file that somebody else has cut": (
        _file_shrank,
        lambda log: log.roll(NOW_MS),
        "but the node counted",
    ),
    "a roll where the log ends before its segment does": (
        lambda log: setattr(log, "log_end_offset", 3),
        lambda log: log.roll(NOW_MS),
        "the log cannot end at offset 3",
    ),
    "a segment that begins before the one in front of it ends": (
        lambda log: None,
        lambda log: log.segment_list.add(log.segments[1], 5),
        "cannot follow",
    ),
    "all segments go": (
        lambda log: None,
        lambda log: log.segment_list.drop_first(3),
        "cannot be removed",
    ),
    "segments out of their order": (
        lambda log: setattr(log.segment_list, "segments", log.segments[::-1]),
        lambda log: log.check(),
        "follows",
    ),
    "a finished segment that is appended to": (
        lambda log: log.segments[1].activate(),
        lambda log: log.check(),
        "still appended to",
    ),
    "a full segment in place of an empty one": (
        lambda log: None,
        lambda log: log.segment_list.replace_active(log.active),
        "is not an empty segment",
    ),
    "a recovery point behind the log's end": (
        lambda log: log.cut(4),
        lambda log: log.durability.check_end(log.log_end_offset),
        "recovery point 5 is above",
    ),
    "an epoch that begins behind the log's end": (
        lambda log: log.epochs.assign(9, 7),
        lambda log: log.check(),
        "lie above the log end offset 5",
    ),
    "a cut behind a segment's end": (
        lambda log: None,
        lambda log: log.active.cut(log.active.size + 1, 5),
        "a cut at",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_log_panics(name: str) -> None:
    """A step on a log in an invalid state raises AssertionError, whose text names the broken rule."""
    break_it, step, words = BROKEN[name]
    log = _filled()
    log.check()
    break_it(log)
    with pytest.raises(AssertionError, match=words):
        step(log)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["advance_high_watermark", "extend", "raise_start", "cut", "start_over"]),
            st.integers(0, 9),
        ),
        max_size=20,
    )
)
def test_offsets_stay_in_their_order(steps: list[tuple[str, int]]) -> None:
    """Log start, high watermark and log end stay in this order. A step that would break the order raises
    AssertionError."""
    offsets = LogOffsets(3)
    for step, offset in steps:
        before = offsets.high_watermark
        try:
            getattr(offsets, step)(offset)
        except AssertionError:
            return
        assert offsets.log_start_offset <= offsets.high_watermark <= offsets.log_end_offset
        assert offsets.high_watermark >= before or step in ("cut", "start_over")


def test_epochs_that_do_not_ascend_panic() -> None:
    """Epochs that do not ascend raise AssertionError at the next change."""
    with pytest.raises(AssertionError, match="epoch 3 from offset 2 cannot follow epoch 5 from offset 1"):
        LeaderEpochs(((5, 0), (3, 2))).truncate_from_start(1)


def test_index_positions_ascend() -> None:
    """An index entry for an earlier batch than the last one raises AssertionError, since lookups would go wrong."""
    index = SegmentIndex()
    index.append(4, 100)
    with pytest.raises(AssertionError, match="position 100 cannot follow the entry for position 100"):
        index.append(5, 100)


def test_a_damaged_length_is_no_panic() -> None:
    """A disk has changed a batch's length, so that it exceeds the file.

    This is CORRUPT_MESSAGE and no AssertionError.
    """
    disk = new_disk()
    log = new_log(disk=disk)
    fill(log, 3)
    disk.corrupt(f"{ROOT}/{file_name(0, '.log')}", 9, 0x01)
    log.active.forget_places()
    with pytest.raises(KafkaError) as caught:
        log.read(0, 10, upper_bound=3, min_one=True)
    assert caught.value.code == ErrorCode.CORRUPT_MESSAGE


def test_a_replica_that_reaches_back_keeps_its_offsets_in_order_on_a_full_disk() -> None:
    """An empty log is to append a batch that begins below its start, and the disk is full.

    All offsets stay until there is room.
    """
    node = Node()
    log = node.log()
    log.truncate_fully_and_start_at(2)
    node.disk.capacity_bytes = node.disk.used_bytes + SIZE
    for _ in range(2):
        with pytest.raises(DiskFull):
            append(log, batch(4), origin=Origin.REPLICA)
        assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (2, 2, 2)
        log.roll(NOW_MS)
        log.check()
    node.disk.capacity_bytes = None
    assert append(log, batch(4), origin=Origin.REPLICA).last_offset == 3
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (2, 2, 4)
    log.check()
    log.flush()
    node.disk.crash("synced")
    node.start()
    assert node.log().log_end_offset == 4
    assert node.offline == []
