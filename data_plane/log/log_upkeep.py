"""What changes a log apart from appends: flushes, truncation, DeleteRecords, retention.

All of it but `flush` runs on the loop. Files are renamed with `.deleted` and removed later by the log's directory, so a reader
that opens late finds them gone, and one that has pinned them reads on.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from data_plane.log.leader_epochs import FILE_NAME as EPOCHS_FILE_NAME
from data_plane.log.log_types import METADATA_FILE_NAME
from data_plane.log.producer_recovery import snapshot_offsets
from data_plane.log.producer_state import ProducerState
from data_plane.log.segments.scan import SegmentScan
from data_plane.log.segments.segment import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    LOG_SUFFIX,
    NO_TIMESTAMP,
    SEGMENT_SUFFIXES,
    SNAPSHOT_SUFFIX,
    Segment,
    cut_index_files,
    file_name,
    remove_if_present,
    sync_file,
)
from odradek.env.ports import DiskError, DiskRefused, FileMissing
from wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from data_plane.log.partition_log import PartitionLog


def remove_segments(log: PartitionLog, doomed: list[Segment]) -> None:
    """Take segments' files out of the log, in the order given; the caller has taken them out of the list."""
    renamed = []
    for segment in doomed:
        segment.remove()
        for suffix in SEGMENT_SUFFIXES:
            name = segment.name(suffix)
            try:
                log.directory.rename(name, name + DELETED_SUFFIX)
            except FileMissing:
                continue
            renamed.append(name + DELETED_SUFFIX)
    log.entry_is_dirty = True
    if log.owner is not None:
        log.owner.remove_later(log, renamed)
    else:
        for name in renamed:
            remove_if_present(log.directory, name)


def flush(log: PartitionLog) -> None:
    """See `PartitionLog.flush`. What it covers is fixed before the first sync."""
    truncations = log.truncations
    end_offset = log.log_end_offset
    segments = log.segments
    recovery_point = log.recovery_point
    # The epoch of a log without records tells nobody anything, and thousands of them begin one at every start.
    if log.epochs.is_dirty and end_offset:
        if log.owner is not None:
            log.owner.write_epochs(log)
        else:
            write_epochs(log)
    for at, segment in enumerate(segments):
        is_last = at + 1 == len(segments)
        next_base = end_offset if is_last else segments[at + 1].base_offset
        if next_base <= recovery_point and not segment.needs_sync:
            continue
        segment.needs_sync = False
        try:
            segment.sync()
            if not is_last:
                segment.flush_index()
                sync_file(log.directory, file_name(next_base, SNAPSHOT_SUFFIX))
        except DiskRefused:
            segment.needs_sync = True
            raise
    if log.entry_is_dirty:
        log.entry_is_dirty = False
        try:
            sync_file(log.directory, METADATA_FILE_NAME)
            log.directory.sync()
            if log.owner is not None:
                log.owner.sync_entry()
        except DiskRefused:
            log.entry_is_dirty = True
            raise
    if end_offset > recovery_point:
        log.durable = (truncations, end_offset)


def write_epochs(log: PartitionLog) -> None:
    """Replace `leader-epoch-checkpoint`. Raises `DiskError`; it is to be written again then."""
    if log.is_closed:
        # The name may lead into the directory of a log that was made since.
        return
    epochs = log.epochs
    epochs.is_dirty = False
    try:
        log.directory.write_atomic(EPOCHS_FILE_NAME, epochs.encode())
    except DiskError:
        epochs.is_dirty = True
        raise


@contextmanager
def _half_done() -> Iterator[None]:
    """What fails within has changed a part, so a refusal is as final there as any other failure."""
    try:
        yield
    except DiskRefused as error:
        raise DiskError(error.directory, error.path, error.operation, error.errno, error.reason) from error


def truncate_to(log: PartitionLog, offset: int) -> None:
    """Remove what is at `offset` and behind it.

    Batches go as a whole, and the log ends behind the last one that stays, so that segments join without gaps. A
    leader sends again what is missing then.

    A cut is not on the device when this returns, and a power loss may bring back what was cut. So what is
    appended next goes to a file of its own: in one file, old and new bytes might survive side by side. Names in a
    directory change in order, so if the new file is there, the later segments are gone, and recovery cuts the
    segment before it where the new one begins.
    """
    if offset >= log.log_end_offset:
        # A leader that appended nothing has noted its epoch; the next leader may have taken another.
        log.epochs.truncate_from_end(log.log_end_offset)
        return
    segments = log.segments
    if offset < segments[0].base_offset:
        truncate_fully_and_start_at(log, offset)
        return
    at = bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1
    last = segments[at]
    last.load_index(log.config.index_interval_bytes)
    last.forget_places()
    file = last.pinned_file()
    try:
        position, _ = last.position_of(offset, file, log.config.index_interval_bytes)
        offset = _end_offset(last, position)
        snapshots = snapshot_offsets(log.directory.list())
        if not position:
            _make_empty(log, last.base_offset)
        log.note_truncation(offset)
        with _half_done():
            log.log_end_offset = offset
            log.high_watermark = min(log.high_watermark, offset)
            log.log_start_offset = min(log.log_start_offset, offset)
            log.epochs.truncate_from_end(offset)
            log.segments = segments[: at + 1]
            log.active = last
            last.is_active = True
            remove_segments(log, segments[:at:-1])
            for snapshot in snapshots:
                if snapshot > offset:
                    remove_if_present(log.directory, file_name(snapshot, SNAPSHOT_SUFFIX))
            if position:
                _cut(last, offset, position)
            else:
                _begin_anew(log, last)
    finally:
        file.unpin()
    if log.lazy_producers_offset > offset or (log.producers is not None and log.producers.reaches(offset)):
        # Read at first need, and that is now, unless there is no descriptor for it.
        log.producers = None
        log.lazy_producers_offset = offset
    try:
        if log.lazy_producers_offset == offset:
            log.load_producers()
        log.roll(last.created_ms)
    except DiskRefused:
        # No room for a new file: the old one serves, until there is room to roll.
        return


def _end_offset(segment: Segment, position: int) -> int:
    """The offset behind the last batch before `position`, where a batch begins."""
    start = 0 if segment.index is None else segment.index.position_floor(position - 1)
    scan = SegmentScan(segment.file, start, position, segment.base_offset)
    for _ in scan:
        continue
    return scan.next_offset


def _make_empty(log: PartitionLog, base_offset: int) -> None:
    """The file of an empty segment, under the name that it has until it is put into place."""
    file = log.directory.open(file_name(base_offset, LOG_SUFFIX) + CLEANED_SUFFIX, create=True)
    try:
        if file.size:
            file.truncate(0)
    finally:
        file.close()


def _begin_anew(log: PartitionLog, segment: Segment) -> None:
    """Replace the last segment by the empty one of the same base offset that was made for it, with one rename."""
    segment.remove_index_files()
    segment.remove()
    name = segment.name(LOG_SUFFIX)
    log.directory.rename(name + CLEANED_SUFFIX, name)
    log.entry_is_dirty = True
    fresh = Segment(log.directory, segment.base_offset, log.directory.open(name), is_active=True)
    fresh.created_ms = segment.created_ms
    fresh.jitter_ms = segment.jitter_ms
    log.active = fresh
    log.segments = [*log.segments[:-1], fresh]


def _cut(segment: Segment, offset: int, position: int) -> None:
    """Cut the last segment at `position`, where `offset` would be."""
    if position < segment.size:
        segment.file.truncate(position)
        segment.size = position
        segment.needs_sync = True
    if segment.index is not None:
        segment.index.truncate(offset - segment.base_offset, position)
    cut_index_files(segment)
    segment.forget_places()
    measure_tail(segment)


def truncate_fully_and_start_at(log: PartitionLog, offset: int) -> None:
    """Remove everything and start an empty log at `offset`."""
    doomed = log.segments[::-1]
    snapshots = snapshot_offsets(log.directory.list())
    _make_empty(log, offset)
    log.note_truncation(offset)
    with _half_done():
        log.epochs.clear()
        log.producers = ProducerState()
        log.lazy_producers_offset = -1
        remove_segments(log, doomed)
        for snapshot in snapshots:
            remove_if_present(log.directory, file_name(snapshot, SNAPSHOT_SUFFIX))
        name = file_name(offset, LOG_SUFFIX)
        log.directory.rename(name + CLEANED_SUFFIX, name)
        active = Segment(log.directory, offset, log.directory.open(name), is_active=True)
    active.created_ms = doomed[0].created_ms
    log.entry_is_dirty = True
    log.segments = [active]
    log.active = active
    log.log_end_offset = log.high_watermark = log.log_start_offset = offset


def measure_tail(segment: Segment) -> None:
    """Find out again what an active segment remembers of its batches, from its index and what lies behind."""
    index = segment.index
    segment.first_timestamp_ms = NO_TIMESTAMP
    segment.max_timestamp_ms = NO_TIMESTAMP
    segment.max_timestamp_offset = segment.base_offset
    segment.bytes_since_index = segment.size
    start = 0
    if index is not None:
        if index.times:
            segment.max_timestamp_ms = index.times[-1]
            segment.max_timestamp_offset = segment.base_offset + index.time_offsets[-1]
        if index.positions:
            start = index.positions[-1]
            segment.bytes_since_index = segment.size - start
    for _, header in SegmentScan(segment.file, 0, segment.size, segment.base_offset):
        segment.first_timestamp_ms = header[8]
        break
    for _, header in SegmentScan(segment.file, start, segment.size, segment.base_offset):
        if header[8] > segment.max_timestamp_ms:
            segment.max_timestamp_ms = header[8]
            segment.max_timestamp_offset = header[0] + header[6]


def set_log_start_offset(log: PartitionLog, offset: int) -> None:
    """Raise the log start offset; segments that end below it go with the next retention run.

    Raises:
        KafkaError: OFFSET_OUT_OF_RANGE above the high watermark.
    """
    if offset > log.high_watermark:
        raise KafkaError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"cannot set the log start offset to {offset}, above the high watermark {log.high_watermark}",
        )
    if offset > log.log_start_offset:
        log.log_start_offset = offset
        log.epochs.truncate_from_start(offset)
        if log.owner is not None:
            log.owner.log_start_raised()


def prepare_retention(log: PartitionLog, now_ms: int) -> bool:
    """Whether segments may go. When all of a log has expired, a new segment is rolled, so that it keeps its end."""
    count = _deletable(log, now_ms)
    if count and count == len(log.segments):
        log.roll(now_ms)
    return count > 0


def delete_old_segments(log: PartitionLog, now_ms: int) -> int:
    """Remove segments by DeleteRecords, size and age, oldest first; never what is above the high watermark.

    What stays must be on the device before what goes: the file that tells the log's end, and the snapshot that
    remembers the producers. The flush for that is a caller's, in a worker, after `prepare_retention`.
    """
    if not prepare_retention(log, now_ms):
        return 0
    if log.entry_is_dirty:
        flush(log)
    count = min(_deletable(log, now_ms), len(log.segments) - 1)
    doomed, kept = log.segments[:count], log.segments[count:]
    log.segments = kept
    log.log_start_offset = max(log.log_start_offset, kept[0].base_offset)
    log.epochs.truncate_from_start(log.log_start_offset)
    with _half_done():
        remove_segments(log, doomed)
    return count


def _deletable(log: PartitionLog, now_ms: int) -> int:
    """How many of the oldest segments may go."""
    config = log.config
    segments = log.segments
    excess = -1
    if config.deletes_by_retention and config.retention_bytes >= 0:
        excess = log.size_bytes - config.retention_bytes
    by_age = config.deletes_by_retention and config.retention_ms >= 0
    for at, segment in enumerate(segments):
        is_last = at + 1 == len(segments)
        end_offset = log.log_end_offset if is_last else segments[at + 1].base_offset
        if end_offset > log.high_watermark or (is_last and not segment.size):
            return at
        expired = end_offset <= log.log_start_offset and not is_last
        if not expired and excess >= segment.size:
            expired = True
        if not expired and by_age:
            expired = now_ms - _newest_ms(log, segment) > config.retention_ms
        if not expired:
            return at
        excess -= segment.size
    return len(segments)


def _newest_ms(log: PartitionLog, segment: Segment) -> int:
    """The age of a segment is that of its newest record; of its file where records have no timestamps."""
    newest = segment.newest_timestamp_ms(log.config.index_interval_bytes)
    if newest < 0 and segment.size:
        return log.directory.modified_ms(segment.name(LOG_SUFFIX))
    return newest
