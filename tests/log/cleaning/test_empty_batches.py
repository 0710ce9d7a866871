"""Reads of a compacted log that has batches without records."""

from __future__ import annotations

import pytest

from odradek.data_plane.handlers.fetching.empty_batches import read_records
from odradek.data_plane.log.log_config import LogConfig
from odradek.data_plane.log.log_types import Origin
from odradek.data_plane.log.partition_log import PartitionLog
from odradek.env.ports import FileClosed
from odradek.wire.batches.batch_header import HEADER_SIZE, iter_batches
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.record_batch import RecordBatchBuilder
from testkit.by_hand import NOW_MS
from tests.log.support import append, batch, new_log

ROOM = 1 << 20


def a_log(pattern: str, segment_bytes: int = 300) -> PartitionLog:
    """Make a log with a batch of two offsets for each letter: with records (r), or without (e)."""
    log = new_log(LogConfig(cleanup_policy=("compact",), segment_bytes=segment_bytes))
    for at, letter in enumerate(pattern):
        if letter == "r":
            data = batch(2, base_offset=2 * at, leader_epoch=0)
        else:
            builder = RecordBatchBuilder(base_offset=2 * at, leader_epoch=0, producer_id=at, producer_epoch=0)
            builder.max_timestamp = NOW_MS
            data = builder.build(last_offset=2 * at + 1)
            assert len(data) == HEADER_SIZE
        append(log, data, origin=Origin.REPLICA)
    log.advance_high_watermark(log.log_end_offset)
    return log


def read(log: PartitionLog, offset: int, max_bytes: int, bound: int) -> tuple[list[int], int]:
    """Return the base offsets of the batches in a consumer's answer, and the offset from which it reads on."""
    found = read_records(log, offset, max_bytes, upper_bound=bound, min_one=True)
    if found.file is None:
        return [], found.next_offset
    data = found.file.pread(found.count, found.position)
    found.release()
    return [header.base_offset for _, header in iter_batches(data)], found.next_offset


@pytest.mark.parametrize("empties", [1, 4, 30])
@pytest.mark.parametrize("max_bytes", [1, HEADER_SIZE, 200, ROOM])
def test_an_answer_begins_with_records_if_any_follow(empties: int, max_bytes: int) -> None:
    """A read at batches without records skips them, even whole segments, and returns the next records."""
    log = a_log("r" + "e" * empties + "rr")
    first = 2 * (empties + 1)
    for offset in range(2, first):
        found, position = read(log, offset, max_bytes, log.log_end_offset)
        assert first in found
        assert position > first


def test_what_is_behind_the_bound_stays_there() -> None:
    """Only batches without records follow below the upper bound.

    The read returns one, which moves the consumer's position.
    """
    log = a_log("reeeer")
    assert read(log, 2, 1, bound=10) == ([8], 10)
    assert read(log, 2, ROOM, bound=10)[1] == 10
    assert read(log, 10, 1, bound=10) == ([], 10)


def test_batches_without_records_at_the_end() -> None:
    """The log ends with batches without records.

    The last of them is returned, since a consumer would repeat a fetch with an empty answer for ever.
    """
    log = a_log("reee")
    assert read(log, 2, 1, log.log_end_offset) == ([6], 8)


def test_the_work_for_one_partition_is_bounded() -> None:
    """To skip batches without records, a read of the log reads the file at most 200 times. The next one continues."""
    log = a_log("r" + "e" * 500 + "r", segment_bytes=1 << 20)
    offset, requests = 2, 0
    while 1002 not in (found := read(log, offset, 1, log.log_end_offset))[0]:
        assert found[1] > offset
        offset = found[1]
        requests += 1
    assert requests == 2


def test_errors_are_the_logs_own() -> None:
    """A read beyond the end of the log raises OFFSET_OUT_OF_RANGE, even among batches without records."""
    log = a_log("reer")
    with pytest.raises(KafkaError) as refused:
        read(log, 9, 1, log.log_end_offset)
    assert refused.value.code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_every_pin_is_given_back() -> None:
    """A read that only skips files releases them, so that removed segments are closed."""
    log = a_log("r" + "e" * 40 + "r")
    files = [segment.file for segment in log.segments]
    read(log, 2, 1, log.log_end_offset)
    log.abandon()
    for file in files:
        with pytest.raises(FileClosed):
            file.pread(1, 0)
