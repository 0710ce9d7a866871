"""The log of one partition: append, read, roll, truncate.

Theory of operation
-------------------
A log is a list of segments with ascending base offsets. `append` writes to the last one, the active segment; all
others never grow. Offsets are assigned at append, and the bytes go to the page cache at once; durability is the
business of `flush` (and of replication). Four offsets matter, always in this order:

    log_start_offset <= high_watermark <= log_end_offset        recovery_point <= log_end_offset

Below the recovery point everything is known to be on the device, so recovery after a crash starts there.

Rules
* What an append refuses (`KafkaError`) has left no trace. After `DiskRefused` (a want of room or descriptors) the
  file is cut back to where it was, and later appends may succeed. A call that fails because the log was closed
  meanwhile is no failure. Any other `DiskError` takes the whole log directory offline.
* A new segment's base offset is the log end offset, so segments join without gaps. By that, recovery tells a lost
  tail from a log that goes on. Compaction makes gaps within segments only.
* Readers get ranges of pinned files: deletion, truncation and rolls do not disturb them.
* One task (the loop) changes a log. `read`, the lookups by time and `flush` may run in a worker at the same time.
  They share segment lists, indexes, epochs and remembered places with the loop. All of these are replaced as a whole,
  or only grow. `flush` notices a truncation that overtook it.

Loading and recovery are in `loading`, producers in `producer_state`, leader epochs in `leader_epochs`. What is off a
leader's hot path is in `replica_append`, `log_upkeep` (flush, retention, truncation) and `time_lookup`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Any

from data_plane.log import log_upkeep, time_lookup
from data_plane.log.batch_work import AT_ONCE, BatchWork
from data_plane.log.leader_epochs import LeaderEpochs
from data_plane.log.log_config import LONG_MAX, LogConfig
from data_plane.log.log_types import AppendResult, FileRange, LogOwner, LogRead, Origin
from data_plane.log.producer_recovery import note_batch, rebuild_producers, write_snapshot
from data_plane.log.producer_state import ActiveProducer, ProducerState
from data_plane.log.replica_append import append_assigned
from data_plane.log.segments.segment import (
    LOG_SUFFIX,
    RELATIVE_OFFSET_MAX,
    Segment,
    file_name,
)
from odradek.env.ports import Dir, DiskError, DiskRefused, FileClosed, FileMissing, ResourcesShort
from wire.errors import ErrorCode, KafkaError
from wire.record_batch import (
    SIZE_PREFIX,
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
    BatchHeader,
    CorruptBatch,
    assign_offsets,
    check_crc,
    check_timestamps,
    parse_header,
    parse_produced,
    set_max_timestamp,
    validate_for_append,
)

PRODUCE_VERSION = 13
"""Rules for older Produce requests are their handler's."""

__all__ = ["AppendResult", "FileRange", "LogOwner", "LogRead", "Origin", "PartitionLog"]

_RARE_ATTRIBUTES = TRANSACTIONAL_MASK | TIMESTAMP_TYPE_MASK
_CLIENT, _REPLICA, _RAFT = Origin.CLIENT, Origin.REPLICA, Origin.RAFT


class PartitionLog:
    """The log of one partition. Made by `loading.open_partition_log`."""

    __slots__ = (
        "_truncated_to",
        "active",
        "config",
        "directory",
        "durable",
        "entry_is_dirty",
        "epochs",
        "high_watermark",
        "is_closed",
        "last_flush_ms",
        "lazy_producers_offset",
        "log_end_offset",
        "log_start_offset",
        "offline",
        "owner",
        "partition",
        "producers",
        "segments",
        "topic",
        "topic_id",
        "truncations",
    )

    def __init__(
        self,
        directory: Dir,
        topic: str,
        partition: int,
        topic_id: bytes,
        config: LogConfig,
        segments: list[Segment],
        owner: LogOwner | None,
    ) -> None:
        self.directory = directory
        self.topic = topic
        self.partition = partition
        self.topic_id = topic_id
        self.config = config
        self.segments = segments
        self.active = segments[-1]
        self.owner = owner
        self.log_start_offset = segments[0].base_offset
        self.log_end_offset = self.active.base_offset
        self.high_watermark = self.log_start_offset
        self.epochs = LeaderEpochs()
        self.producers: ProducerState | None = None
        self.lazy_producers_offset = -1
        """The snapshot from which `producers` is to be read at first need, -1: there is none."""
        self.entry_is_dirty = False
        """Files have been created, renamed or removed since the directory was last synced."""
        self.last_flush_ms = 0
        self.offline = False
        self.is_closed = False
        self.truncations = 0
        self._truncated_to = self.log_start_offset
        self.durable = (0, self.log_start_offset)
        """(number of truncations, offset) of the last flush, so that a truncation outdates it."""

    # --- offsets

    @property
    def last_stable_offset(self) -> int:
        """Below it no transaction is open; the high watermark, since no transactions are coordinated here yet."""
        return self.high_watermark

    @property
    def latest_epoch(self) -> int:
        return self.epochs.latest

    @property
    def recovery_point(self) -> int:
        truncations, offset = self.durable
        return offset if truncations == self.truncations else min(offset, self._truncated_to)

    @property
    def needs_flush(self) -> bool:
        """Whether `flush.messages` asks for a flush."""
        flush_messages = self.config.flush_messages
        return flush_messages < LONG_MAX and self.log_end_offset - self.recovery_point >= flush_messages

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self.segments)

    def advance_high_watermark(self, offset: int) -> None:
        """Raise the high watermark; it never falls here and never passes the log end offset."""
        if offset > self.high_watermark:
            self.high_watermark = min(offset, self.log_end_offset)

    # --- appending

    def append(
        self,
        batch: memoryview,
        origin: Origin,
        leader_epoch: int,
        now_ms: int,
        guard: object | None = None,
        work: BatchWork = AT_ONCE,
    ) -> AppendResult:
        """Append one batch and return the offsets that it got; `batch` is patched in place.

        With origin REPLICA or RAFT, one or more batches that keep their offsets and epochs.
        `guard` is what the transaction check has verified. `work` says where a client's batch is decompressed and parsed.

        Raises:
            KafkaError: the batch is refused; nothing has changed.
            OffLoop: `work` wants it done elsewhere first; nothing has changed.
            DiskRefused: no room or no descriptor; nothing has changed.
            DiskError: the log directory is offline now.
        """
        if self.offline:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the log directory is offline")
        if origin is _REPLICA or origin is _RAFT:
            return append_assigned(self, batch, leader_epoch, now_ms, takes_sound=origin is _REPLICA)
        config = self.config
        header = parse_produced(batch, PRODUCE_VERSION) if origin is _CLIENT else parse_header(batch)
        size = header[1] + SIZE_PREFIX
        if len(batch) != size:
            batch = batch[:size]
        append_time = config.uses_append_time
        if origin is _CLIENT:
            validate_for_append(
                batch,
                0,
                header,
                size_max=config.max_message_bytes,
                decompressed_bytes_max=config.decompressed_bytes_max,
                inflation=work,
            )
            try:
                check_timestamps(
                    header,
                    append_time,
                    now_ms,
                    config.message_timestamp_before_max_ms,
                    config.message_timestamp_after_max_ms,
                )
            except KafkaError:
                work.check_records(batch, header, config, now_ms, f"{self.topic}-{self.partition}")
                raise
            if config.checks_records or header[5] & _RARE_ATTRIBUTES:
                self._check_rare(batch, header, now_ms, guard, work)
        elif not check_crc(batch, 0, size):
            raise CorruptBatch("batch checksum is wrong")
        if size > config.segment_bytes:
            raise KafkaError(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"batch of {size} bytes in segments of {config.segment_bytes}",
            )
        _, _, _, _, _, _, delta, _, max_timestamp, producer_id, producer_epoch, sequence, _ = header
        producers = None
        if producer_id >= 0:
            producers = self.producers
            if producers is None:
                producers = self.load_producers()
            if origin is _CLIENT:
                duplicate = producers.check(producer_id, producer_epoch, sequence, delta)
                if duplicate is not None:
                    return AppendResult(*duplicate, leader_epoch, True)
        if append_time:
            max_timestamp = now_ms
            set_max_timestamp(batch, 0, now_ms, 1)
        base_offset = self.log_end_offset
        last_offset = base_offset + delta
        active = self.active
        position = active.size
        if (
            position + size > config.segment_bytes
            or last_offset - active.base_offset > RELATIVE_OFFSET_MAX
            or (position and self.must_roll(max_timestamp, now_ms))
        ):
            self.roll(now_ms)
            active = self.active
            position = active.size
        assign_offsets(batch, 0, base_offset, leader_epoch)
        try:
            active.file.append(batch)
        except DiskError as error:
            self.undo_append(position, error)
            raise
        active.size = position + size
        if not position:
            active.first_timestamp_ms = max_timestamp
        active.note_batch(position, size, last_offset, max_timestamp, config.index_interval_bytes)
        if leader_epoch != self.epochs.latest:
            self.epochs.assign(leader_epoch, base_offset)
        self.log_end_offset = last_offset + 1
        if producers is not None:
            note_batch(producers, header, base_offset, max_timestamp, batch)
        return AppendResult(base_offset, last_offset, now_ms if append_time else -1, leader_epoch, False)

    def _check_rare(
        self, batch: memoryview, header: BatchHeader, now_ms: int, guard: object | None, work: BatchWork
    ) -> None:
        """What most batches are spared: transactions, rules about single records, a timestamp type that is not theirs.

        Raises `KafkaError`.
        """
        if header.is_transactional and guard is None:
            raise KafkaError(
                ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "a transactional batch without a transaction"
            )
        if self.config.checks_records:
            work.check_records(batch, header, self.config, now_ms, f"{self.topic}-{self.partition}")
        if header.timestamp_type and not self.config.uses_append_time:
            # Else consumers would take the largest timestamp for every record's.
            set_max_timestamp(batch, 0, header.max_timestamp, 0)

    def must_roll(self, max_timestamp_ms: int, now_ms: int) -> bool:
        """Time and index space (Kafka's `shouldRoll`): `segment.ms` counts by the records' timestamps."""
        config = self.config
        active = self.active
        first = active.first_timestamp_ms
        waited = max_timestamp_ms - first if first >= 0 else now_ms - active.created_ms
        if waited > config.segment_ms - active.jitter_ms:
            return True
        index = active.index
        return index is not None and (
            len(index.offsets) >= config.offset_index_entries_max
            or len(index.times) >= config.time_index_entries_max
        )

    def undo_append(self, size: int, error: DiskError) -> None:
        """Cut what a failed append has left. A directory that cannot even do that is offline."""
        if isinstance(error, DiskRefused):
            self._disk_refused(error)
            try:
                if self.active.file.size > size:
                    self.active.file.truncate(size)
                return
            except DiskError as failure:
                error = failure
        self._give_up(error)

    def load_producers(self) -> ProducerState:
        """The state of the producers, read now if it has not been needed before."""
        if self.producers is None:
            if self.lazy_producers_offset >= 0:
                self.producers = rebuild_producers(self, self.lazy_producers_offset)
                self.lazy_producers_offset = -1
            else:
                self.producers = ProducerState()
        return self.producers

    def active_producers(self) -> Iterator[ActiveProducer]:
        return self.load_producers().active_producers()

    def assign_epoch(self, leader_epoch: int) -> None:
        """A new leader's epoch begins at the log's end, whether or not records follow."""
        if leader_epoch > self.epochs.latest:
            self.epochs.assign(leader_epoch, self.log_end_offset)

    # --- reading

    def read(self, offset: int, max_bytes: int, *, upper_bound: int, min_one: bool = False) -> LogRead:
        """Whole batches from the one that holds `offset` on, below `upper_bound`, at most `max_bytes`.

        With `min_one` the first batch is given even if it is longer. The range never crosses a segment.

        Raises:
            KafkaError: OFFSET_OUT_OF_RANGE, or CORRUPT_MESSAGE for damaged bytes.
            DiskRefused: there is no descriptor now.
            DiskError: the directory is offline now.
        """
        try:
            return self._find(offset, max_bytes, upper_bound, min_one)
        except DiskError as error:
            self.disk_failed(error)
            raise

    def _find(self, offset: int, max_bytes: int, upper_bound: int, min_one: bool) -> LogRead:
        end_offset = self.log_end_offset
        if self.offline:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the log directory is offline")
        if offset < self.log_start_offset or offset > end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is outside {self.log_start_offset} to {end_offset}",
            )
        if upper_bound > end_offset:
            upper_bound = end_offset
        if offset >= upper_bound or (max_bytes <= 0 and not min_one):
            return LogRead(None, 0, 0, offset)
        return self._read(offset, max_bytes, upper_bound, min_one)

    def _read(self, offset: int, max_bytes: int, upper_bound: int, min_one: bool) -> LogRead:
        segments = self.segments
        interval = self.config.index_interval_bytes
        at = len(segments) - 1
        segment = segments[at]
        if offset < segment.base_offset:
            at = bisect_right(segments, offset, key=_base_offset) - 1
            segment = segments[at]
        # Before the first look: the loop may close the file while a worker is at it.
        file = segment.pinned_file()
        is_handed_on = False
        try:
            start, _ = segment.position_of(offset, file, interval)
            while start >= segment.size:
                at += 1
                if at == len(segments):
                    return LogRead(None, 0, 0, offset)
                segment = segments[at]
                file.unpin()
                file = segment.pinned_file()
                start, _ = segment.position_of(offset, file, interval)
            is_last = at + 1 == len(segments)
            segment_end_offset = self.log_end_offset if is_last else segments[at + 1].base_offset
            if upper_bound >= segment_end_offset:
                end, next_offset = segment.size, segment_end_offset
            else:
                end, _ = segment.position_of(upper_bound, file, interval)
                next_offset = upper_bound
                segment.bound_place = (upper_bound, end)
            if end - start > max_bytes:
                end, next_offset = segment.cut_at(start, start + max_bytes, file, interval)
                if next_offset < 0:
                    if not min_one:
                        return LogRead(None, 0, 0, offset)
                    end, next_offset = segment.first_batch_end(start, file)
            if end <= start:
                return LogRead(None, 0, 0, offset)
            segment.read_place = (next_offset, end)
            segment.uses = 2
            is_handed_on = True
            return LogRead(file, start, end - start, next_offset)
        finally:
            if not is_handed_on:
                file.unpin()

    def passes_segment_end(self, offset: int, upper_bound: int) -> bool:
        """Whether a segment ends between the two: a read from `offset` can give no more than it does, then."""
        if offset >= self.active.base_offset:
            return False
        segments = self.segments
        return segments[bisect_right(segments, offset, key=_base_offset)].base_offset <= upper_bound

    def read_bytes(self, offset: int, max_bytes: int, *, upper_bound: int, min_one: bool = False) -> bytes:
        """As `read`, with the bytes themselves, and in a worker. A failed directory goes offline at its next look."""
        try:
            found = self._find(offset, max_bytes, upper_bound, min_one)
            if found.file is None:
                return b""
            try:
                return found.file.pread(found.count, found.position)
            finally:
                found.release()
        except DiskError as error:
            self._failed_in_worker(error)
            raise

    def offset_for_timestamp(self, timestamp_ms: int, *, upper_bound: int) -> tuple[int, int, int] | None:
        """(timestamp, offset, leader epoch) of the first record below `upper_bound` that is not older.

        Blocking: it parses records, so it belongs into a worker. Raises `KafkaError`, `DiskError`.
        """
        return time_lookup.offset_for_timestamp(self, timestamp_ms, upper_bound)

    def offset_of_max_timestamp(self, upper_bound: int) -> tuple[int, int, int] | None:
        """(timestamp, offset, leader epoch) of the first of the newest records below `upper_bound`. Blocking."""
        return time_lookup.offset_of_max_timestamp(self, upper_bound)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """See `LeaderEpochs.end_offset_for`."""
        return self.epochs.end_offset_for(epoch, self.log_end_offset)

    def epoch_for_offset(self, offset: int) -> int | None:
        return self.epochs.epoch_for_offset(offset)

    # --- segments

    def roll(self, now_ms: int, base_offset: int | None = None) -> None:
        """Finish the active segment and start another at the log end offset.

        `base_offset` may lie above it where offsets have a gap too wide for one segment.

        Raises:
            DiskRefused: there is no new segment.
            DiskError: the log directory is offline now.
        """
        new_base = self.log_end_offset if base_offset is None else base_offset
        old = self.active
        if old.base_offset == new_base:
            old.created_ms = now_ms
            return
        try:
            fresh = self.new_segment(new_base, now_ms)
            old.write_index()
            write_snapshot(self)
        except DiskError as error:
            self.disk_failed(error)
            raise
        old.is_active = False
        old.needs_sync = True
        self.active = fresh
        self.segments = [*self.segments, fresh]
        if self.owner is not None:
            self.owner.log_rolled(self)

    def new_segment(self, base_offset: int, now_ms: int) -> Segment:
        """An empty segment on disk, not yet in the list."""
        file = self.directory.open(file_name(base_offset, LOG_SUFFIX), create=True)
        self.entry_is_dirty = True
        if file.size:
            file.truncate(0)
        segment = Segment(self.directory, base_offset, file, is_active=True)
        segment.created_ms = now_ms
        return segment

    def flush(self) -> None:
        """Make everything appended before the call durable, and advance the recovery point (blocking).

        May run in a worker while the loop appends, rolls, truncates or closes the log.

        Raises:
            DiskError: the log takes no appends any more, its directory goes offline at its next look.
            DiskRefused: no room for the leader epochs, or no descriptor; nothing has become durable, and nothing is lost.
        """
        if self.is_closed:
            # What is written by name now could be written into the directory of a log that was made since.
            return
        try:
            log_upkeep.flush(self)
        except DiskError as error:
            if self._is_overtaken(error):
                return
            self._failed_in_worker(error)
            raise

    # --- upkeep

    def truncate_to(self, offset: int) -> None:
        """Remove what is at `offset` and behind it.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR, no room to lower the recovery point; nothing has changed.
            DiskRefused: no room or no descriptor; nothing has changed.
            DiskError: the directory is offline now.
        """
        self._changing(log_upkeep.truncate_to, self, offset)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Remove everything; the log is empty and starts at `offset`. Raises `DiskError` as `truncate_to`."""
        self._changing(log_upkeep.truncate_fully_and_start_at, self, offset)

    def set_log_start_offset(self, offset: int) -> None:
        """Records below `offset` are gone (DeleteRecords). Raises `KafkaError` OFFSET_OUT_OF_RANGE."""
        log_upkeep.set_log_start_offset(self, offset)

    def prepare_retention(self, now_ms: int) -> bool:
        """Whether `delete_old_segments` has something to do; a flush in a worker between the two spares the loop."""
        return bool(self._changing(log_upkeep.prepare_retention, self, now_ms))

    def delete_old_segments(self, now_ms: int) -> int:
        """Apply retention; the number of segments removed. Raises `DiskError` as `truncate_to`."""
        return int(self._changing(log_upkeep.delete_old_segments, self, now_ms))

    def _changing(self, function: Any, *args: Any) -> Any:
        try:
            return function(*args)
        except DiskError as error:
            self.disk_failed(error)
            raise

    def note_truncation(self, offset: int) -> None:
        """Called before anything is cut: what a running flush reports is outdated, the recovery point falls."""
        recovery_point = self.recovery_point
        self._truncated_to = min(offset, recovery_point)
        self.truncations += 1
        self.durable = (self.truncations, self._truncated_to)
        if offset < recovery_point and self.owner is not None:
            try:
                self.owner.recovery_point_lowered(self)
            except DiskRefused as error:
                self._disk_refused(error)
                raise KafkaError(
                    ErrorCode.KAFKA_STORAGE_ERROR, f"no room for a truncation: {error}"
                ) from error

    def _disk_refused(self, error: DiskRefused) -> None:
        if self.owner is not None:
            self.owner.disk_refused(error)

    def disk_failed(self, error: DiskError) -> None:
        """An operation has failed: the directory goes offline, unless the failure passes or is nobody's."""
        if isinstance(error, DiskRefused):
            self._disk_refused(error)
        if not self._is_harmless(error):
            self._give_up(error)

    def _give_up(self, error: DiskError) -> None:
        self.offline = True
        if self.owner is not None:
            self.owner.disk_failed(error)

    def _failed_in_worker(self, error: DiskError) -> None:
        """As `disk_failed`; the directory goes offline on the loop, at its next look."""
        if not self._is_harmless(error):
            self.offline = True
            if self.owner is not None:
                self.owner.flush_failed(error)

    def _is_harmless(self, error: DiskError) -> bool:
        """Whether the device is none the worse: a want of room or descriptors, or the log was closed meanwhile."""
        if isinstance(error, ResourcesShort) and self.owner is not None:
            self.owner.resources_short()
        return (isinstance(error, DiskRefused) and error.operation != "sync") or self._is_overtaken(error)

    def _is_overtaken(self, error: DiskError) -> bool:
        """Whether a worker met files that the loop has closed, removed or renamed since it was sent."""
        return isinstance(error, FileClosed) or (self.is_closed and isinstance(error, FileMissing))

    def close(self) -> None:
        """Make everything durable, with all that spares the next start work, and give up the files (blocking).

        Raises:
            DiskError
        """
        if self.is_closed:
            return
        for segment in self.segments:
            if segment.size and (segment.is_active or segment.index is not None):
                segment.write_index()
        if self.log_end_offset and self.lazy_producers_offset != self.log_end_offset:
            write_snapshot(self, sync=True)
        self.flush()
        self.abandon()

    def abandon(self) -> None:
        """Give up the files and write nothing; the log takes no appends and no reads any more."""
        self.offline = True
        if not self.is_closed:
            self.is_closed = True
            for segment in self.segments:
                segment.remove()

    def statistics(self) -> dict[str, int]:
        """Figures for the console and the metrics."""
        return {
            "log_start_offset": self.log_start_offset,
            "high_watermark": self.high_watermark,
            "log_end_offset": self.log_end_offset,
            "recovery_point": self.recovery_point,
            "size_bytes": self.size_bytes,
            "segments": len(self.segments),
            "producers": 0 if self.producers is None else len(self.producers.entries),
        }


def _base_offset(segment: Segment) -> int:
    return segment.base_offset
