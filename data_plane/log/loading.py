"""Opens a partition's directory: finds its segments, recovers from a crash, finds the log's end; reads and
writes the topic id (`partition.metadata`).

Theory of operation
-------------------
After a clean shutdown, loading reads only the directory, two small files, the last segment's index, and the
batch headers after that index's last entry.

After a crash everything below the recovery point is on the device and is not read again. Recovery starts with
the segment that holds the offset before the recovery point, and reads it and all later ones from their
starts. Every batch's checksum is checked, offsets must ascend, and a segment begins where its predecessor
ends. Batches beyond the next segment's beginning are the rest of a truncation that the crash undid.

A gap between two segments has one of two causes: compaction, or a crash. A crash leaves a gap if it removes
the last batches of a finished segment and spares the next segment. The topic's policy does not show the
cause, because the policy may have changed. So the log itself must show it:

* A gap that begins below the recovery point is no loss, because all records below that point were synced, and
  the gap existed then.
* A gap that begins below the first dirty offset comes from the cleaner.
* A gap that is too wide for one segment is no loss, because a follower begins a new segment after such a gap.
* Another gap may come from compaction only if the log has no checkpoints, as in a directory that was copied
  from elsewhere. Gaps between the batches of one segment are evidence of compaction. With such evidence, a
  gap between segments is no loss.
* Any other gap means that records are lost. The log then ends before the gap, because a replica with a gap
  would never fetch the missing records. Sound batches after the gap are kept in files beside the log.

Batches after the first damage do not belong to the log. The file is cut there, and later segments are removed.
A crash does not damage synced bytes, so damage below the recovery point has another cause. The bytes that are
cut off there are kept in a file beside the log (`salvage`). Indexes, leader epochs and producer state of the
part that is read are derived anew.

Foreign files and directories are left alone. If the cleaner of Odradek or of Kafka was interrupted in a swap,
the swap is finished or undone (`parts/swap_files.py`). Files named `.deleted` are removed.
"""

from __future__ import annotations

from functools import lru_cache

import attrs

from odradek.data_plane.log.log_config import LogConfig
from odradek.data_plane.log.log_types import METADATA_FILE_NAME, NO_TOPIC_ID, LogOwner
from odradek.data_plane.log.partition_log import PartitionLog
from odradek.data_plane.log.parts.cleaning_state import NEVER_CLEANED, CleaningState
from odradek.data_plane.log.parts.durability import Durability
from odradek.data_plane.log.parts.lazy_producers import LazyProducers
from odradek.data_plane.log.parts.leader_epochs import FILE_NAME as EPOCHS_FILE_NAME
from odradek.data_plane.log.parts.leader_epochs import LeaderEpochs, MalformedCheckpoint
from odradek.data_plane.log.parts.log_home import LogHome
from odradek.data_plane.log.parts.producer_recovery import latest_state, replay, snapshot_offsets
from odradek.data_plane.log.parts.producer_state import has_open_transaction
from odradek.data_plane.log.parts.segment_list import SegmentList
from odradek.data_plane.log.parts.splitting import reaches_too_far, split_segment
from odradek.data_plane.log.parts.swap_files import put_in_order
from odradek.data_plane.log.recovery import LoadingStopped, LoadOptions, Recovery
from odradek.data_plane.log.salvage import keep_segment
from odradek.data_plane.log.segments.aborted_file import AbortedFile
from odradek.data_plane.log.segments.aborted_index import DamagedTransactionIndex
from odradek.data_plane.log.segments.file_names import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    file_name,
)
from odradek.data_plane.log.segments.scan import SegmentScan
from odradek.data_plane.log.segments.segment import Segment
from odradek.data_plane.log.segments.small_files import remove_if_present, write_whole
from odradek.env.ports import Dir, FileMissing
from odradek.wire.topic_partition import TopicPartition
from odradek.wire.uuid_text import uuid_from_text, uuid_to_text

__all__ = [
    "LoadOptions",
    "LoadingStopped",
    "UnreadableId",
    "open_partition_log",
    "read_topic_id",
    "write_topic_id",
]


class UnreadableId(Exception):
    """Raised if `partition.metadata` does not show which topic the records belong to. After a loss of power
    the file may be empty, or full of zeros.
    """

    def __init__(self, file: str) -> None:
        super().__init__(f"{file} does not say which topic its records belong to")
        self.file = file


_NAME_DIGITS = 20
_SMALL_FILE_BYTES = 16 << 20


def open_partition_log(
    directory: Dir,
    topic: str,
    partition: int,
    config: LogConfig,
    owner: LogOwner | None,
    options: LoadOptions,
) -> PartitionLog:
    """Open the log in `directory`, or create one there (blocking).

    Raises:
        DiskError
        UnreadableId: `options.must_know_id` is set, and the log's topic id cannot be read; nothing has changed.
        LoadingStopped: `options.is_stopping` returned True; the next start repeats the recovery.
    """
    home = LogHome(directory, TopicPartition(topic, partition), owner)
    names = put_in_order(
        directory,
        directory.list(),
        lambda file, reason: options.warn("log.swap_undone", home, file=file, reason=reason),
    )
    found = _find_segments(directory, names, options.now_ms)
    topic_id = _topic_id(directory, names, found, options)
    begins = not found
    if begins:
        base_offset = max(options.log_start_offset, 0)
        file = directory.open(file_name(base_offset, LOG_SUFFIX), create=True)
        found.append(Segment(directory, base_offset, file, is_active=False))
    segments = SegmentList(home, found, entry_is_dirty=begins or not options.is_clean)
    epochs = _read_epochs(segments, names, options)
    producers = LazyProducers()
    end_offset = recovery_point = _measure_end(segments, config, options) if options.is_clean else -1
    was_clean = end_offset >= 0
    if not was_clean:
        recovery = Recovery(segments, epochs, config, options)
        recovery.run(names)
        end_offset = recovery.log_end_offset
        recovery_point = min(options.recovery_point, end_offset)
        producers.take(recovery.producers)
    if _split(segments, end_offset, options):
        return open_partition_log(
            directory, topic, partition, config, owner, attrs.evolve(options, gaps_are_known=True)
        )
    jitter_ms = 0
    if config.segment_jitter_ms and options.random is not None:
        jitter_ms = options.random.randrange(min(config.segment_jitter_ms, config.roll_ms))
    segments.active.begin(options.now_ms, jitter_ms)
    durability = Durability(home, recovery_point)
    first_dirty_offset = options.first_dirty_offset
    cleaning = None if first_dirty_offset == NEVER_CLEANED else CleaningState(home, first_dirty_offset)
    log = PartitionLog(topic_id, segments, epochs, producers, durability, cleaning, end_offset, config)
    _settle_offsets(log, options, was_clean=was_clean)
    if producers.state is None:
        _find_producers(log, names)
    return log


def _topic_id(directory: Dir, names: list[str], found: list[Segment], options: LoadOptions) -> bytes:
    """Return the id of the topic that the log belongs to; zeros if none is known. Raises `UnreadableId`."""
    topic_id = read_topic_id(directory, names)
    has_records = any(segment.size for segment in found)
    if options.must_know_id and has_records and topic_id == NO_TOPIC_ID and METADATA_FILE_NAME in names:
        for segment in found:
            segment.file.close()
        raise UnreadableId(f"{directory.path}/{METADATA_FILE_NAME}")
    return _shared_id(topic_id)


def _find_segments(directory: Dir, names: list[str], now_ms: int) -> list[Segment]:
    """Return all segments, sorted by offset. Index files without a segment are removed."""
    bases = set()
    for name in names:
        if name.endswith(LOG_SUFFIX) and len(name) == _NAME_DIGITS + len(LOG_SUFFIX) and name[:-4].isdigit():
            bases.add(int(name[:-4]))
    segments = []
    for base_offset in sorted(bases):
        file = directory.open(file_name(base_offset, LOG_SUFFIX))
        segment = Segment(directory, base_offset, file, is_active=False, is_known=False)
        segment.begin(now_ms)
        segments.append(segment)
    by_base = {segment.base_offset: segment for segment in segments}
    for name in names:
        if name.endswith(TXN_INDEX_SUFFIX) and (found := by_base.get(_name_offset(name))) is not None:
            found.aborted = AbortedFile(directory, found.base_offset)
        elif name.endswith((INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)):
            offset = _name_offset(name)
            if offset >= 0 and offset not in bases:
                remove_if_present(directory, name)
    return segments


def _name_offset(name: str) -> int:
    """Parse the offset in a file's name; -1 for a name without an offset."""
    stem = name.rpartition(".")[0]
    return int(stem) if len(stem) == _NAME_DIGITS and stem.isdigit() else -1


def _read_epochs(segments: SegmentList, names: list[str], options: LoadOptions) -> LeaderEpochs:
    """Read the leader epochs from their file. If the file is unusable, derive them from the batches. A
    replica needs the epochs to find where its log diverges from its leader's log.
    """
    if EPOCHS_FILE_NAME not in names:
        return LeaderEpochs()
    try:
        data = segments.home.directory.read_bytes(EPOCHS_FILE_NAME, _SMALL_FILE_BYTES)
        epochs = LeaderEpochs.decode(data)
        # An empty file is valid for an empty log, because Kafka makes such files. If the log has records, a
        # loss of power has emptied the file.
        if data or not any(segment.size for segment in segments.segments):
            return epochs
        reason = "the file is empty, although the log has records"
    except MalformedCheckpoint as error:
        reason = str(error)
    options.warn("log.epochs_unreadable", segments.home, error=reason)
    epochs = LeaderEpochs()
    for segment in segments.segments:
        for _, header in SegmentScan(segment.file, 0, segment.size, segment.base_offset):
            if header.partition_leader_epoch != epochs.latest:
                epochs.assign(header.partition_leader_epoch, header.base_offset)
        segment.file.rest()
    return epochs


def _measure_end(segments: SegmentList, config: LogConfig, options: LoadOptions) -> int:
    """Return the log end offset after a clean shutdown; -1 if the last segment shows that the shutdown was
    not clean.
    """
    active = segments.active
    end_offset = active.base_offset
    try:
        if active.aborted is not None:
            active.aborted.load()
    except DamagedTransactionIndex as error:
        file = active.name(TXN_INDEX_SUFFIX)
        options.warn("log.not_clean", segments.home, file=file, position=0, reason=str(error))
        return -1
    if active.size:
        index = active.load_index(config.index_interval_bytes)
        start = index.positions[-1] if index.positions else 0
        scan = SegmentScan(active.file, start, active.size, end_offset)
        for _ in scan:
            continue
        if scan.damage is not None:
            file, position = active.file.path, scan.position
            options.warn("log.not_clean", segments.home, file=file, position=position, reason=scan.damage)
            return -1
        end_offset = scan.next_offset
    active.activate()
    active.measure_tail()
    return end_offset


def _split(segments: SegmentList, end_offset: int, options: LoadOptions) -> bool:
    """Split each segment whose offsets are too far apart for its index. Returns True if a segment was split.
    In that case the log must be opened again.
    """
    listed, directory = segments.segments, segments.home.directory
    ends = [*(each.base_offset for each in listed[1:]), end_offset]
    is_changed = False
    for segment, end in zip(listed, ends, strict=True):
        if reaches_too_far(segment, end):
            try:
                bases = split_segment(directory, segment)
            except DamagedTransactionIndex:
                bases = []
            options.warn("log.segment_split", segments.home, file=segment.file.path, base_offsets=bases)
            is_changed = is_changed or bool(bases)
    if is_changed:
        for segment in listed:
            segment.file.close()
    return is_changed


def _settle_offsets(log: PartitionLog, options: LoadOptions, *, was_clean: bool) -> None:
    """Make the log's offsets consistent with its files and its checkpoints.

    The log start offset in the checkpoint may lie beyond the log's end. After a clean shutdown this means
    that the checkpoint is damaged, so all records stay. After a crash there are two possible causes. Either
    records were deleted on request, and a loss of power then removed the tail of the log. Or the checkpoint
    is damaged. So the records leave the log, but are kept in files beside it.
    """
    segments = log.segment_list
    log_start_offset = max(options.log_start_offset, segments.base_offset)
    if log_start_offset > log.log_end_offset:
        start, end = log_start_offset, log.log_end_offset
        if was_clean:
            options.warn("log.start_not_believed", segments.home, log_start_offset=start, end=end)
            log_start_offset = segments.base_offset
        else:
            held = [each for each in segments.segments if each.size]
            kept_as = [keep_segment(log.directory, each) for each in held]
            options.warn(
                "log.start_is_behind_end", segments.home, log_start_offset=start, end=end, kept_as=kept_as
            )
            log.truncate_fully_and_start_at(log_start_offset)
            return
    # After a crash, the removal of the segments below the first one may not be durable yet.
    stored = min(log_start_offset, max(options.log_start_offset, segments.durable_base_offset))
    log.settle(log_start_offset, stored, options.high_watermark)
    if log.first_dirty_offset != NEVER_CLEANED:
        log.cleaning.settle(log_start_offset, log.log_end_offset)
    log.epochs.truncate_from_end(log.log_end_offset + 1)
    log.epochs.truncate_from_start(log_start_offset)
    log.check()


def _find_producers(log: PartitionLog, names: list[str]) -> None:
    """Find the producers' state. After a clean shutdown, a snapshot at the log's end contains the state; it
    is read when the state is first needed. Without such a snapshot the state is rebuilt now.
    """
    directory, segments, end_offset = log.directory, log.segments, log.log_end_offset
    offsets = snapshot_offsets(names)
    bases = {segment.base_offset for segment in segments}
    for offset in offsets:
        if offset > end_offset or (offset not in bases and offset != offsets[-1]):
            remove_if_present(directory, file_name(offset, SNAPSHOT_SUFFIX))
    if end_offset in offsets:
        is_settled = not has_open_transaction(directory.read_bytes(file_name(end_offset, SNAPSHOT_SUFFIX)))
        log.producers.read_at_need(end_offset, end_offset, is_settled=is_settled)
    elif offsets or end_offset > log.log_start_offset:
        first_offset = segments[0].base_offset
        state, offset = latest_state(directory, first_offset, end_offset, log.high_watermark, names)
        replay(segments, state, offset, end_offset, log.config.index_interval_bytes)
        log.producers.take(state)


def read_topic_id(directory: Dir, names: list[str]) -> bytes:
    """Read the topic id in `partition.metadata`; zeros if there is no file, or a crash has left only a part
    of it.
    """
    if METADATA_FILE_NAME not in names:
        return NO_TOPIC_ID
    try:
        text = directory.read_bytes(METADATA_FILE_NAME, _SMALL_FILE_BYTES).decode("ascii")
        fields = dict(line.split(": ", 1) for line in text.splitlines() if line)
        return uuid_from_text(fields["topic_id"].strip()) if fields["version"].strip() == "0" else NO_TOPIC_ID
    except (ValueError, KeyError, FileMissing):
        return NO_TOPIC_ID


@lru_cache(maxsize=1024)
def _shared_id(topic_id: bytes) -> bytes:
    """Return the same object for equal ids, so that all logs of a topic share one object."""
    return topic_id


def write_topic_id(directory: Dir, topic_id: bytes) -> None:
    """Write the topic id to `partition.metadata` as Kafka does. The file is durable after the log's first
    flush.
    """
    text = f"version: 0\ntopic_id: {uuid_to_text(topic_id)}"
    write_whole(directory, METADATA_FILE_NAME, text.encode())
