"""Append batches that have their offsets already: a follower's, from its leader, and the quorum's.

Offsets may have gaps (compaction on the leader), never overlap. The batches of one call go to the file with one
call per segment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from data_plane.log.log_types import AppendResult
from data_plane.log.producer_recovery import note_batch
from data_plane.log.segments.segment import RELATIVE_OFFSET_MAX
from odradek.env.ports import DiskError
from wire.errors import ErrorCode, KafkaError
from wire.record_batch import HEADER_SIZE, SIZE_PREFIX, BatchHeader, CorruptBatch, check_crc, parse_header

if TYPE_CHECKING:
    from data_plane.log.partition_log import PartitionLog


def append_assigned(
    log: PartitionLog, batches: memoryview, leader_epoch: int, now_ms: int, *, takes_sound: bool
) -> AppendResult:
    """Batches with their offsets. A cut tail, and what is of a later epoch than the leader's, is left out.

    With `takes_sound`, so is a batch with a wrong checksum and what follows it: the next fetch then begins with it.
    Without, it is reason to refuse everything.
    """
    position = 0
    headers: list[tuple[int, BatchHeader]] = []
    next_offset = log.log_end_offset
    while len(batches) - position >= HEADER_SIZE:
        header = parse_header(batches, position)
        size = header[1] + SIZE_PREFIX
        if size > len(batches) - position or header[2] > leader_epoch >= 0:
            break
        if not check_crc(batches, position, size):
            if headers and takes_sound:
                break
            raise CorruptBatch("batch checksum is wrong")
        if header[0] < next_offset <= header[0] + header[6] and takes_sound and _is_begun_anew(log, headers):
            next_offset = header[0]
        if header[0] < next_offset or header[6] < 0:
            raise KafkaError(
                ErrorCode.UNKNOWN_SERVER_ERROR,
                f"{log.topic}-{log.partition}: a batch at {header[0]} cannot follow offset {next_offset}",
            )
        headers.append((position, header))
        next_offset = header[0] + header[6] + 1
        position += size
    if not headers:
        raise CorruptBatch("no whole batch to append")
    if log.producers is None and any(header[9] >= 0 for _, header in headers):
        # It may have to be read, which may fail: before anything is written.
        log.load_producers()
    if headers[0][1][0] < log.log_end_offset:
        _reach_back(log, headers[0][1][0])
    run_start = 0
    for at, (position, header) in enumerate(headers):
        end = position + header[1] + SIZE_PREFIX
        active = log.active
        pending = position - headers[run_start][0]
        if active.size + pending and (
            active.size + end - headers[run_start][0] > log.config.segment_bytes
            or header[0] + header[6] - active.base_offset > RELATIVE_OFFSET_MAX
            or (not pending and log.must_roll(header[8], now_ms))
        ):
            _write_run(log, batches, headers[run_start:at])
            run_start = at
            log.roll(now_ms)
        if header[0] + header[6] - log.active.base_offset > RELATIVE_OFFSET_MAX:
            log.roll(now_ms, header[0])
    _write_run(log, batches, headers[run_start:])
    return AppendResult(headers[0][1][0], next_offset - 1, -1, headers[-1][1][2], False)


def _is_begun_anew(log: PartitionLog, headers: list[tuple[int, BatchHeader]]) -> bool:
    """Whether an empty log begins within the leader's first batch, where records were deleted up to the middle of it."""
    return not headers and log.log_end_offset == log.log_start_offset


def _reach_back(log: PartitionLog, base_offset: int) -> None:
    """Let an empty log's files begin below its log start offset, as the leader's do. Raises `DiskError`."""
    start, high_watermark = log.log_start_offset, log.high_watermark
    log.truncate_fully_and_start_at(base_offset)
    log.log_start_offset, log.high_watermark = start, high_watermark
    if log.owner is not None:
        log.owner.log_start_raised()


def _write_run(log: PartitionLog, batches: memoryview, run: list[tuple[int, BatchHeader]]) -> None:
    """Write neighbouring batches to the active segment with one call."""
    if not run:
        return
    start = run[0][0]
    end = run[-1][0] + run[-1][1][1] + SIZE_PREFIX
    active = log.active
    base = active.size
    try:
        active.file.append(batches[start:end])
    except DiskError as error:
        log.undo_append(base, error)
        raise
    interval = log.config.index_interval_bytes
    if not base:
        active.first_timestamp_ms = run[0][1][8]
    for position, header in run:
        size = header[1] + SIZE_PREFIX
        last_offset = header[0] + header[6]
        active.note_batch(base + position - start, size, last_offset, header[8], interval)
        if header[2] != log.epochs.latest:
            log.epochs.assign(header[2], header[0])
        if header[9] >= 0:
            note_batch(
                log.load_producers(), header, header[0], header[8], batches[position : position + size]
            )
        log.log_end_offset = last_offset + 1
    active.size = base + end - start
