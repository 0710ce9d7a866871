"""Open a partition's directory: find its segments, recover what a crash may have torn, know its end.

Theory of operation
-------------------
After a clean shutdown nothing is read but the directory, two small files, the index of the last segment, and the
batch headers behind its last entry.

After a crash everything below the recovery point is on the device and is not read again. The segments from the one
that holds the offset before the recovery point on are read from their starts: every batch's checksum is checked, offsets must
ascend, and a segment begins where its predecessor ends. What reaches over the next segment's beginning is the rest of a
truncation that the crash undid.

Compaction leaves gaps between segments, and so does a crash that takes the tail of a finished segment, exactly at a
batch's end, but not the next one. A log may have been compacted under another policy than its topic has today, so the
log decides. A gap that begins below the recovery point was there when all of it was synced. A gap in a log that has
gaps within its segments is like those. Any other gap is a lost tail: the log ends before it, as a replica with a hole
would never fetch what it lacks. What is sound behind it is kept beside the log. What follows the first damage is not
a part of the log: the file is cut there and later segments are removed. Where the damage lies in what had been
synced, no crash has done it, and what is cut is kept beside the log (`salvage`). Indexes, leader epochs and producer
state of that part are derived anew on the way.

Foreign files and directories are left alone. Kafka's `.swap` files (a compaction that had finished, but not yet
replaced its sources) are put in place; `.deleted` and `.cleaned` ones are removed.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import attrs

from data_plane.log.leader_epochs import FILE_NAME as EPOCHS_FILE_NAME
from data_plane.log.leader_epochs import LeaderEpochs, MalformedCheckpoint
from data_plane.log.log_config import LogConfig
from data_plane.log.log_types import METADATA_FILE_NAME, NO_TOPIC_ID, LogOwner
from data_plane.log.log_upkeep import measure_tail, remove_segments
from data_plane.log.partition_log import PartitionLog
from data_plane.log.producer_recovery import (
    latest_state,
    note_scanned,
    replay,
    snapshot_offsets,
    write_snapshot,
)
from data_plane.log.producer_state import ProducerState
from data_plane.log.salvage import keep_segment, keep_tail
from data_plane.log.segments.scan import RECOVERY_CHUNK_BYTES, SegmentScan
from data_plane.log.segments.segment import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    RELATIVE_OFFSET_MAX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    UNKNOWN,
    Segment,
    file_name,
    remove_if_present,
    write_whole,
)
from odradek.env.ports import Dir, FileMissing, Log
from wire.record_batch import SIZE_PREFIX
from wire.uuid_text import uuid_from_text, uuid_to_text

_NAME_DIGITS = 20
_SWAP_SUFFIX = ".swap"
_SMALL_FILE_BYTES = 16 << 20


@attrs.frozen(kw_only=True)
class LoadOptions:
    """What a log's directory knows about a log before it is opened; -1 where nothing is known."""

    is_clean: bool
    """The process that had the log last closed it and synced everything."""
    recovery_point: int = 0
    log_start_offset: int = -1
    high_watermark: int = -1
    now_ms: int = 0
    random: Random | None = None
    """For `segment.jitter.ms`."""
    log: Log | None = None
    """A structlog-like logger, told of what had to be repaired."""
    buffer: bytearray | None = None
    """Scratch memory for recovery, shared by the logs of a directory."""
    is_stopping: Callable[[], bool] = lambda: False
    """Whether nobody wants the log any more; recovery asks for every batch."""


class LoadingStopped(Exception):
    """The node stops: what is not loaded is left for the next start, as it was or as a crash would leave it."""


def open_partition_log(
    directory: Dir,
    topic: str,
    partition: int,
    config: LogConfig,
    owner: LogOwner | None,
    options: LoadOptions,
) -> PartitionLog:
    """Open the log in `directory`, or begin one there (blocking).

    Raises:
        DiskError
        LoadingStopped: `options.is_stopping` said so; the log recovers anew at the next start.
    """
    names = _put_in_order(directory, directory.list())
    segments = _find_segments(directory, names, options.now_ms)
    begins = not segments
    if begins:
        base_offset = max(options.log_start_offset, 0)
        file = directory.open(file_name(base_offset, LOG_SUFFIX), create=True)
        segments.append(Segment(directory, base_offset, file, is_active=False))
    log = PartitionLog(directory, topic, partition, read_topic_id(directory, names), config, segments, owner)
    log.entry_is_dirty = begins or not options.is_clean
    log.epochs = _read_epochs(log, names, options)
    if not options.is_clean or not _measure_end(log, options):
        _recover(log, names, options)
    log.active = log.segments[-1]
    log.active.created_ms = options.now_ms
    if config.segment_jitter_ms and options.random is not None:
        log.active.jitter_ms = options.random.randrange(min(config.segment_jitter_ms, config.segment_ms))
    _settle_offsets(log, options)
    if log.producers is None:
        _find_producers(log, names)
    return log


def _put_in_order(directory: Dir, names: list[str]) -> list[str]:
    """Finish what a crash interrupted: remove files marked for it, put finished swaps in place."""
    unfinished = any(name.endswith((CLEANED_SUFFIX, DELETED_SUFFIX)) for name in names)
    swapped = [name for name in names if name.endswith(LOG_SUFFIX + _SWAP_SUFFIX)]
    if not unfinished and not swapped:
        return names
    for name in names:
        if name.endswith((CLEANED_SUFFIX, DELETED_SUFFIX)) and name[:_NAME_DIGITS].isdigit():
            remove_if_present(directory, name)
    for name in swapped:
        if name[:_NAME_DIGITS].isdigit():
            _finish_swap(directory, name, names)
    directory.sync()
    return directory.list()


def _finish_swap(directory: Dir, swapped: str, names: list[str]) -> None:
    """Put a compacted segment in place of those whose offsets it covers."""
    base_offset = int(swapped[:_NAME_DIGITS])
    file = directory.open(swapped)
    scan = SegmentScan(file, 0, file.size, base_offset)
    for _ in scan:
        continue
    file.close()
    for name in names:
        covered = name[:_NAME_DIGITS].isdigit() and base_offset <= int(name[:_NAME_DIGITS]) < scan.next_offset
        if covered and name.endswith((LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)):
            remove_if_present(directory, name)
    for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX):
        remove_if_present(directory, file_name(base_offset, suffix) + _SWAP_SUFFIX)
    directory.rename(swapped, file_name(base_offset, LOG_SUFFIX))


def _find_segments(directory: Dir, names: list[str], now_ms: int) -> list[Segment]:
    """All segments, ascending; index files without a segment are removed."""
    bases = set()
    for name in names:
        if name.endswith(LOG_SUFFIX) and len(name) == _NAME_DIGITS + len(LOG_SUFFIX) and name[:-4].isdigit():
            bases.add(int(name[:-4]))
    segments = []
    for base_offset in sorted(bases):
        file = directory.open(file_name(base_offset, LOG_SUFFIX))
        segment = Segment(directory, base_offset, file, is_active=False)
        segment.max_timestamp_ms = UNKNOWN
        segment.created_ms = now_ms
        segments.append(segment)
    for name in names:
        if name.endswith((INDEX_SUFFIX, TIME_INDEX_SUFFIX)):
            stem = name.rpartition(".")[0]
            if len(stem) == _NAME_DIGITS and stem.isdigit() and int(stem) not in bases:
                remove_if_present(directory, name)
    return segments


def _read_epochs(log: PartitionLog, names: list[str], options: LoadOptions) -> LeaderEpochs:
    """Without its epochs a replica cannot tell its leader where it diverges, so a file that is no use is made anew."""
    if EPOCHS_FILE_NAME not in names:
        return LeaderEpochs()
    try:
        return LeaderEpochs.decode(log.directory.read_bytes(EPOCHS_FILE_NAME, _SMALL_FILE_BYTES))
    except MalformedCheckpoint as error:
        _tell(options, "log.epochs_unreadable", log, error=str(error))
    epochs = LeaderEpochs()
    for segment in log.segments:
        for _, header in SegmentScan(segment.file, 0, segment.size, segment.base_offset):
            if header[2] != epochs.latest:
                epochs.assign(header[2], header[0])
        segment.file.rest()
    return epochs


def _tell(options: LoadOptions, event: str, log: PartitionLog, **fields: object) -> None:
    if options.log is not None:
        options.log.warning(event, topic=log.topic, partition=log.partition, **fields)


def _measure_end(log: PartitionLog, options: LoadOptions) -> bool:
    """Find the log's end after a clean shutdown. False: the last segment is not what a clean shutdown leaves."""
    active = log.segments[-1]
    interval = log.config.index_interval_bytes
    log.log_end_offset = active.base_offset
    if active.size:
        index = active.load_index(interval)
        start = index.positions[-1] if index.positions else 0
        scan = SegmentScan(active.file, start, active.size, active.base_offset)
        for _ in scan:
            continue
        if scan.damage is not None:
            _tell(
                options,
                "log.not_clean",
                log,
                file=active.file.path,
                position=scan.position,
                reason=scan.damage,
            )
            return False
        log.log_end_offset = scan.next_offset
    active.is_active = True
    measure_tail(active)
    log.durable = (0, log.log_end_offset)
    return True


def _recover(log: PartitionLog, names: list[str], options: LoadOptions) -> None:
    """Read all batches from the segment with the recovery point on; cut the log at the first damage."""
    segments = log.segments
    first = 0
    while first + 1 < len(segments) and segments[first + 1].base_offset < options.recovery_point:
        first += 1
    start_offset = segments[first].base_offset
    log.log_end_offset = start_offset
    log.epochs.truncate_from_end(start_offset + 1)
    state, snapshot_offset = latest_state(log, start_offset, names)
    if snapshot_offset < start_offset:
        replay(log, state, snapshot_offset, start_offset)
    # Later snapshots may be torn, or of a history that was truncated: they are taken anew on the way.
    for offset in snapshot_offsets(names):
        if offset > start_offset:
            remove_if_present(log.directory, file_name(offset, SNAPSHOT_SUFFIX))
    buffer = options.buffer
    if buffer is None:
        longest = max(segment.size for segment in segments[first:])
        buffer = bytearray(min(RECOVERY_CHUNK_BYTES, longest))
    kept = first
    has_gaps = log.config.is_compacted
    for kept in range(first, len(segments)):
        segment = segments[kept]
        gap = segment.base_offset - log.log_end_offset
        is_lost_tail = 0 < gap <= RELATIVE_OFFSET_MAX and log.log_end_offset >= options.recovery_point
        if kept > first and (gap < 0 or (is_lost_tail and not has_gaps)):
            reason = f"the log before it ends at {log.log_end_offset}"
            _drop_from(log, kept, reason, options, is_kept=True)
            break
        log.log_end_offset = segment.base_offset
        if kept > first:
            log.producers = state
            write_snapshot(log)
        limit = segments[kept + 1].base_offset if kept + 1 < len(segments) else None
        size = segment.size
        # Index files are written when a segment is rolled or after this; what they hold now is of the past.
        if segment.name(INDEX_SUFFIX) in names or segment.name(TIME_INDEX_SUFFIX) in names:
            segment.remove_index_files()
        damage, kept_as, found_gaps = _recover_segment(log, segment, state, buffer, limit, options)
        has_gaps = has_gaps or found_gaps
        if damage is not None:
            _tell(
                options,
                "log.truncated",
                log,
                file=segment.file.path,
                position=segment.size,
                bytes=size - segment.size,
                is_synced_data=log.log_end_offset < options.recovery_point,
                offset=log.log_end_offset,
                reason=damage,
                kept_as=kept_as,
            )
            if kept + 1 < len(segments):
                reason = "the segment before it was cut"
                _drop_from(log, kept + 1, reason, options, is_kept=kept_as is not None)
            break
    log.producers = state
    active = log.segments[-1]
    for segment in log.segments[first:-1]:
        segment.write_index()
    active.is_active = True
    measure_tail(active)
    log.durable = (0, min(options.recovery_point, log.log_end_offset))
    size = sum(segment.size for segment in log.segments[first:])
    if options.log is not None and size:
        options.log.info(
            "log.recovered",
            topic=log.topic,
            partition=log.partition,
            segments=len(log.segments) - first,
            bytes=size,
            log_end_offset=log.log_end_offset,
        )


def _recover_segment(
    log: PartitionLog,
    segment: Segment,
    state: ProducerState,
    buffer: bytearray,
    limit: int | None,
    options: LoadOptions,
) -> tuple[str | None, str | None, bool]:
    """Check every batch, and derive index, epochs, producers. What is wrong with the first bad one, if any.

    Batches from offset `limit` on, where the next segment begins, were truncated before that one was made. The second
    item is the file that keeps what was cut from below the recovery point. The third says whether offsets are missing
    between batches or within one, as compaction leaves them.
    """
    interval = log.config.index_interval_bytes
    segment.index = None
    segment.needs_sync = True
    segment.max_timestamp_ms = -1
    segment.max_timestamp_offset = segment.base_offset
    epochs = log.epochs
    latest = epochs.latest
    note = segment.note_batch
    scan = SegmentScan(segment.file, 0, segment.size, segment.base_offset, check_crc=True, buffer=buffer)
    relative_max = segment.base_offset + RELATIVE_OFFSET_MAX
    end_offset = segment.base_offset
    has_gaps = False
    is_stopping = options.is_stopping
    for position, header in scan:
        if is_stopping():
            raise LoadingStopped
        last_offset = header[0] + header[6]
        if limit is not None and last_offset >= limit:
            scan.position, scan.next_offset, scan.damage = position, end_offset, None
            break
        if last_offset > relative_max:
            scan.position, scan.next_offset = position, end_offset
            scan.damage = f"offset {last_offset} is out of the segment's reach"
            break
        if header[0] > end_offset or header[12] <= header[6]:
            has_gaps = True
        end_offset = last_offset + 1
        note(position, header[1] + SIZE_PREFIX, last_offset, header[8], interval)
        if header[2] != latest:
            epochs.assign(header[2], header[0])
            latest = epochs.latest
        if header[9] >= 0:
            note_scanned(state, segment, position, header)
    damage = None if scan.next_offset == limit else scan.damage
    kept_as = None
    if segment.size > scan.position:
        if damage is not None and scan.next_offset < options.recovery_point:
            kept_as = keep_tail(log.directory, segment, scan.position)
        segment.size = scan.position
        segment.file.truncate(scan.position)
        # What was cut must not come back behind what is appended next.
        segment.file.sync()
    if limit is not None:
        # A log may have more segments than the process may have descriptors.
        segment.file.rest()
    log.log_end_offset = scan.next_offset
    return damage, kept_as, has_gaps


def _drop_from(
    log: PartitionLog, at: int, reason: str, options: LoadOptions, *, is_kept: bool = False
) -> None:
    doomed = log.segments[at:]
    log.segments = log.segments[:at]
    for segment in doomed:
        kept_as = keep_segment(log.directory, segment) if is_kept else None
        _tell(
            options,
            "log.segment_dropped",
            log,
            file=segment.file.path,
            bytes=segment.size,
            reason=reason,
            kept_as=kept_as,
        )
    remove_segments(log, doomed[::-1])
    # They must not come back behind what is appended next.
    log.directory.sync()


def _settle_offsets(log: PartitionLog, options: LoadOptions) -> None:
    """Reconcile what the checkpoints say with what is there."""
    log_start_offset = max(options.log_start_offset, log.segments[0].base_offset)
    if log_start_offset > log.log_end_offset:
        _tell(
            options, "log.start_is_behind_end", log, log_start_offset=log_start_offset, end=log.log_end_offset
        )
        log.truncate_fully_and_start_at(log_start_offset)
        return
    log.log_start_offset = log_start_offset
    log.high_watermark = min(max(options.high_watermark, log_start_offset), log.log_end_offset)
    log.epochs.truncate_from_end(log.log_end_offset + 1)
    log.epochs.truncate_from_start(log_start_offset)


def _find_producers(log: PartitionLog, names: list[str]) -> None:
    """After a clean shutdown: the snapshot at the log's end, read at first need; else rebuild what is missing."""
    offsets = snapshot_offsets(names)
    bases = {segment.base_offset for segment in log.segments}
    for offset in offsets:
        if offset > log.log_end_offset or (offset not in bases and offset != offsets[-1]):
            remove_if_present(log.directory, file_name(offset, SNAPSHOT_SUFFIX))
    if log.log_end_offset in offsets:
        log.lazy_producers_offset = log.log_end_offset
    elif offsets or log.log_end_offset > log.log_start_offset:
        state, offset = latest_state(log, log.log_end_offset, names)
        replay(log, state, offset, log.log_end_offset)
        log.producers = state


def read_topic_id(directory: Dir, names: list[str]) -> bytes:
    """The id in `partition.metadata`; zero without the file, or where a crash has left a part of it."""
    if METADATA_FILE_NAME not in names:
        return NO_TOPIC_ID
    try:
        text = directory.read_bytes(METADATA_FILE_NAME, _SMALL_FILE_BYTES).decode("ascii")
        fields = dict(line.split(": ", 1) for line in text.splitlines() if line)
        return uuid_from_text(fields["topic_id"].strip()) if fields["version"].strip() == "0" else NO_TOPIC_ID
    except (ValueError, KeyError, FileMissing):
        return NO_TOPIC_ID


def write_topic_id(directory: Dir, topic_id: bytes) -> None:
    """Write `partition.metadata` as Kafka does; durable with the log's first flush."""
    text = f"version: 0\ntopic_id: {uuid_to_text(topic_id)}"
    write_whole(directory, METADATA_FILE_NAME, text.encode())
