"""The log of one partition: append with its checks and offsets, read, flush, roll; the entrance to truncation,
retention and look-ups.

Theory of operation
-------------------
A log is a list of segments with ascending base offsets. `append` writes to the last one, the active segment;
all others never grow. Offsets are assigned at append, and the bytes go to the page cache at once. `flush`
makes them durable; until then the replicas on other brokers protect them. Four offsets matter. They are
always in this order:

    log_start_offset <= high_watermark <= log_end_offset        recovery_point <= log_end_offset

Below the recovery point everything is known to be on the device, so recovery after a crash starts there.

Rules
* A refused append (`KafkaError`) has left no trace. After `DiskRefused` (a lack of room or descriptors) the
  file is cut back to its former size, and later appends may succeed. A call that fails because the log was
  closed meanwhile does not count as a failure. Any other `DiskError` takes the whole log directory offline.
* A new segment's base offset is the log end offset, so a segment begins where its predecessor ends. Compaction
  makes gaps only within segments. So recovery takes a gap between segments as a sign of lost records (`loading`
  lists the exceptions).
* Readers get ranges of pinned files, so deletion, truncation and rolls do not disturb them.
* Only the loop changes a log and calls `read`. `read_bytes`, the lookups by time and `flush` may run in a
  worker at the same time. Both sides use the same segment lists, indexes, epochs and remembered places. Each
  of these is replaced as a whole, or only grows. `flush` detects a truncation that happened meanwhile.
* A broken invariant raises `AssertionError` before any other step relies on it. Bytes that the disk has
  damaged raise other errors.
* An unexpected error after the write of an append ends all appends to this log until the next start.

The parts of a log are in `parts/`: each owns its state and imports nothing of the code above it.
`replica_append`, `retention`, `truncation` and `time_lookup` work on these parts. This module itself has the
hot path of a leader: `append` and `read`. `loading` and `recovery` make the parts from the files of a
directory.
"""

from __future__ import annotations

from odradek.data_plane.log import retention
from odradek.data_plane.log.batch_work import AT_ONCE, BatchWork, check_rare
from odradek.data_plane.log.log_config import LONG_MAX, LogConfig
from odradek.data_plane.log.log_types import AppendResult, FileRange, LogOwner, LogRead, Origin
from odradek.data_plane.log.parts.cleaning_state import NEVER_CLEANED, CleaningState
from odradek.data_plane.log.parts.durability import Durability
from odradek.data_plane.log.parts.lazy_producers import LazyProducers
from odradek.data_plane.log.parts.leader_epochs import LeaderEpochs
from odradek.data_plane.log.parts.log_offsets import LogOffsets
from odradek.data_plane.log.parts.producer_recovery import note_batch
from odradek.data_plane.log.parts.producer_state import ProducerState
from odradek.data_plane.log.parts.rolling import roll
from odradek.data_plane.log.parts.segment_list import SegmentList
from odradek.data_plane.log.parts.verification import VerificationGuard
from odradek.data_plane.log.replica_append import ReplicaAppend
from odradek.data_plane.log.segments.aborted_index import AbortedTransaction
from odradek.data_plane.log.segments.segment import RELATIVE_OFFSET_MAX, Segment
from odradek.data_plane.log.segments.walked_times import UNBOUNDED, WalkBudget
from odradek.data_plane.log.time_lookup import TimeLookup
from odradek.data_plane.log.transaction_rules import aborted_transactions, check_transaction
from odradek.data_plane.log.truncation import Truncation
from odradek.env.ports import Dir, DiskError, DiskFull, DiskRefused
from odradek.named_states import reached
from odradek.wire.batches.batch_errors import CorruptBatch
from odradek.wire.batches.batch_header import (
    SIZE_PREFIX,
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
    assign_offsets,
    check_crc,
    parse_header,
    set_max_timestamp,
)
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.record_batch import check_timestamps, parse_produced, validate_for_append
from odradek.wire.schema.versions import PRODUCE_ZSTD

__all__ = ["AppendResult", "FileRange", "LogOwner", "LogRead", "Origin", "PartitionLog"]

_RARE_ATTRIBUTES = TRANSACTIONAL_MASK | TIMESTAMP_TYPE_MASK
_CLIENT, _COORDINATOR, _REPLICA, _RAFT = Origin.CLIENT, Origin.COORDINATOR, Origin.REPLICA, Origin.RAFT


class PartitionLog(LogOffsets):
    """The log of one partition. `loading.open_partition_log` makes it."""

    __slots__ = (
        "_cleaning",
        "config",
        "durability",
        "epochs",
        "home",
        "producers",
        "segment_list",
        "topic_id",
    )

    def __init__(
        self,
        topic_id: bytes,
        segments: SegmentList,
        epochs: LeaderEpochs,
        producers: LazyProducers,
        durability: Durability,
        cleaning: CleaningState | None,
        log_end_offset: int,
        config: LogConfig,
    ) -> None:
        super().__init__(log_end_offset)
        self.home = segments.home
        self.topic_id = topic_id
        self.config = config
        self.segment_list = segments
        self.epochs = epochs
        self.producers = producers
        self.durability = durability
        self._cleaning = cleaning

    def __str__(self) -> str:
        return str(self.home)

    # --- facts from the parts of the log

    @property
    def topic(self) -> str:
        return self.home.topic

    @property
    def partition(self) -> int:
        return self.home.partition

    @property
    def cleaning(self) -> CleaningState:
        """The state of the log's cleaning. It is made at the first use of this property, because most logs
        are not compacted.
        """
        if self._cleaning is None:
            self._cleaning = CleaningState(self.home, NEVER_CLEANED)
        return self._cleaning

    @property
    def first_dirty_offset(self) -> int:
        """The offset below which the log has been cleaned; NEVER_CLEANED if it never was."""
        return NEVER_CLEANED if self._cleaning is None else self._cleaning.first_dirty_offset

    @property
    def is_uncleanable(self) -> bool:
        """True if a cleaning pass over this log failed for a lasting reason, so that further passes would
        fail as well.
        """
        return self._cleaning is not None and self._cleaning.uncleanable_reason is not None

    def abort_cleaning(self, reason: str) -> None:
        """End the cleaning pass over this log, if there is one."""
        if self._cleaning is not None:
            self._cleaning.abort(reason)

    @property
    def directory(self) -> Dir:
        return self.home.directory

    @property
    def owner(self) -> LogOwner | None:
        return self.home.owner

    @property
    def offline(self) -> bool:
        return self.home.offline

    @property
    def is_closed(self) -> bool:
        return self.home.is_closed

    @property
    def segments(self) -> tuple[Segment, ...]:
        return self.segment_list.segments

    @property
    def active(self) -> Segment:
        return self.segment_list.active

    @property
    def size_bytes(self) -> int:
        return self.segment_list.size_bytes

    @property
    def last_stable_offset(self) -> int:
        """The last stable offset. Each transaction with records below it has ended, and its marker is below
        the high watermark. The last stable offset is at most the high watermark. Read it on the loop only.
        Raises `DiskError` if producers must be read from disk first.
        """
        producers = self.producers
        if producers.state is None:
            if producers.is_settled:
                return self.high_watermark
            self.load_producers()
        return producers.stable_offset(self.high_watermark, self.log_start_offset)

    @property
    def latest_epoch(self) -> int:
        return self.epochs.latest

    @property
    def recovery_point(self) -> int:
        return self.durability.recovery_point

    @property
    def needs_flush(self) -> bool:
        """True if unsynced records must be flushed now, because of `flush.messages`."""
        flush_messages = self.config.flush_messages
        return flush_messages < LONG_MAX and self.log_end_offset - self.recovery_point >= flush_messages

    @property
    def has_unsynced(self) -> bool:
        """True if a flush would make something durable: appended records, or other data of the log."""
        return not self.home.offline and (
            self.log_end_offset > self.recovery_point
            or self.segment_list.entry_is_dirty
            or (self.epochs.is_dirty and self.log_end_offset > 0)
        )

    @property
    def unsynced_bytes(self) -> int:
        """The bytes of the last segment that no flush has synced. Earlier segments are flushed when they end."""
        return self.durability.unsynced_bytes(self.active.base_offset, self.active.size)

    def check(self) -> None:
        """Assert that all parts of the log agree on its bounds (on the loop)."""
        self.check_order()
        self.segment_list.check_order()
        self.segment_list.check_end(self.log_end_offset)
        self.durability.check_end(self.log_end_offset)
        self.epochs.check_end(self.log_end_offset)

    # --- appending

    def append(
        self,
        batch: memoryview,
        origin: Origin,
        leader_epoch: int,
        now_ms: int,
        guard: VerificationGuard | None = None,
        work: BatchWork = AT_ONCE,
        transaction_version: int = 0,
    ) -> AppendResult:
        """Append one batch and return the offsets that it got; `batch` is patched in place.

        With origin REPLICA or RAFT, `batch` has one or more batches that keep their offsets and epochs.
        `guard` is the guard that `LazyProducers.verify` made before the coordinator was asked; None if the
        request names no transactional id. `work` decompresses and parses a client's batch. For a marker,
        `transaction_version` is the version of its transaction.

        Raises:
            KafkaError: the batch is refused; nothing has changed.
            OffLoop: a worker must check the batch first; nothing has changed.
            DiskRefused: no room or no descriptor; nothing has changed.
            DiskError: the log directory is offline now.
        """
        if self.home.refuses_appends:
            self.home.check_append(may_use_reserve=origin is _RAFT or origin is _COORDINATOR)
        if origin is _REPLICA or origin is _RAFT:
            parts = ReplicaAppend(self, self.segment_list, self.epochs, self.producers, self.config)
            takes_sound = origin is _REPLICA
            return parts.append(batch, leader_epoch, now_ms, self._truncation, takes_sound=takes_sound)
        # The rest of the append is one function on purpose. An append takes 6 us, and each further call would
        # add 50 ns. The few header fields are read one by one, which costs less than unpacking the whole
        # header.
        config = self.config
        # The handler of Produce requests checks the rules of older versions.
        header = parse_produced(batch, PRODUCE_ZSTD) if origin is _CLIENT else parse_header(batch)
        size = header.batch_length + SIZE_PREFIX
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
                is_unsure = check_timestamps(
                    header,
                    append_time,
                    now_ms,
                    config.message_timestamp_before_max_ms,
                    config.message_timestamp_after_max_ms,
                )
            except KafkaError:
                reached("log.header_doubted")
                # The header's timestamps may differ from those of its records, so check each record.
                is_unsure = True
            if config.checks_records or header.attributes & _RARE_ATTRIBUTES or is_unsure:
                header = check_rare(batch, header, config, now_ms, guard, work, self, is_unsure=is_unsure)
        elif not check_crc(batch, 0, size):
            raise CorruptBatch("the checksum of the record batch is wrong")
        if size > config.segment_bytes and origin is not _COORDINATOR:
            # A coordinator's batch may be larger than a segment; it gets a segment of its own. Otherwise a
            # lowered `segment.bytes` could refuse a decision that the coordinator has already acknowledged.
            raise KafkaError(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"the record batch has {size} bytes, and a segment of this log holds only "
                f"{config.segment_bytes}",
            )
        delta = header.last_offset_delta
        max_timestamp = header.max_timestamp
        producer_id = header.producer_id
        producers = None
        if producer_id >= 0:
            producers = self.producers.state
            if producers is None:
                producers = self.load_producers()
            if header.attributes & TRANSACTIONAL_MASK:
                duplicate = check_transaction(
                    self.producers, producers, config, batch, header, origin, guard, transaction_version
                )
            elif origin is _CLIENT:
                duplicate = producers.check(producer_id, header.producer_epoch, header.base_sequence, delta)
            else:
                duplicate = None
            if duplicate is not None:
                reached("log.duplicate_recognized")
                self.producers.note_verified(producer_id, guard)
                return AppendResult(*duplicate, leader_epoch, True)
        if append_time:
            max_timestamp = now_ms
            set_max_timestamp(batch, 0, now_ms, 1)
        base_offset = self.log_end_offset
        last_offset = base_offset + delta
        segments = self.segment_list
        active = segments.active
        position = active.size
        if last_offset - active.base_offset > RELATIVE_OFFSET_MAX or (
            position
            and (position + size > config.segment_bytes or segments.must_roll(config, max_timestamp, now_ms))
        ):
            self.roll(now_ms)
            active = segments.active
            position = active.size
        if (
            not self.log_start_offset <= self.high_watermark <= base_offset <= last_offset
            or base_offset < active.base_offset
        ):
            raise AssertionError(
                f"{self}: offsets were out of order before an append to segment {active.base_offset}, "
                f"up to offset {last_offset}: {self.statistics()}"
            )
        assign_offsets(batch, 0, base_offset, leader_epoch)
        try:
            written_at = active.file.append(batch)
        except DiskError as error:
            segments.undo_append(position, error)
            raise
        try:
            if written_at != position:
                raise AssertionError(
                    f"{active.file.path}: a batch was written at position {written_at} instead of "
                    f"position {position}"
                )
            active.note_batch(position, size, last_offset, max_timestamp, config.index_interval_bytes)
            if leader_epoch != self.epochs.latest:
                self.epochs.assign(leader_epoch, base_offset)
            self.log_end_offset = last_offset + 1
            if producers is not None:
                ended = note_batch(producers, header, base_offset, max_timestamp, batch)
                if header.attributes & TRANSACTIONAL_MASK:
                    self.producers.note_transaction(active, producer_id, guard, ended, self.high_watermark)
        except Exception:
            reached("log.append_met_a_bug")
            # After this error, some parts of the log may know the new batch, while other parts do not.
            self.home.break_down()
            raise
        return AppendResult(base_offset, last_offset, now_ms if append_time else -1, leader_epoch, False)

    # --- transactions

    def aborted_transactions(self, offset: int, end_offset: int) -> list[AbortedTransaction]:
        """List the aborted transactions with offsets in `[offset, end_offset)`, in the order of their
        markers.

        Call it on the loop. Raises `DiskError`.
        """
        interval = self.config.index_interval_bytes
        return aborted_transactions(self.segment_list, interval, offset, end_offset)

    def load_producers(self) -> ProducerState:
        """Return the state of the producers. At the first call, reads it from disk if necessary. Raises
        `DiskError`.
        """
        try:
            return self.producers.load(self.segment_list, self.config.index_interval_bytes)
        except DiskRefused as error:
            self.home.refused(error)
            raise

    def assign_epoch(self, leader_epoch: int) -> None:
        """Record that a new leader epoch begins at the log's end, even if no records follow."""
        if leader_epoch > self.epochs.latest:
            self.epochs.assign(leader_epoch, self.log_end_offset)

    # --- reading

    def read(self, offset: int, max_bytes: int, *, upper_bound: int, min_one: bool = False) -> LogRead:
        """Read whole batches from the batch with `offset` on, below `upper_bound`, at most `max_bytes`.

        With `min_one` the first batch is returned even if it is longer. The range never extends into a second
        segment.

        Raises:
            KafkaError: OFFSET_OUT_OF_RANGE, or CORRUPT_MESSAGE for damaged bytes.
            DiskRefused: there is no descriptor now.
            DiskError: the directory is offline now.
        """
        interval = self.config.index_interval_bytes
        try:
            found = self.segment_list.read(self, offset, max_bytes, upper_bound, interval, min_one)
        except DiskError as error:
            self.home.failed(error)
            raise
        file = found.file
        if file is not None and found.position + found.count > file.size:
            file.unpin()
            raise AssertionError(
                f"{file.path}: a search found {found.count} bytes at position {found.position}, but "
                f"the file has only {file.size} bytes"
            )
        return found

    def read_bytes(self, offset: int, max_bytes: int, *, upper_bound: int, min_one: bool = False) -> bytes:
        """Read as `read` does, but return the bytes; may run in a worker. After a disk failure the directory
        goes offline at its next check.
        """
        interval = self.config.index_interval_bytes
        try:
            return self.segment_list.read_bytes(self, offset, max_bytes, upper_bound, interval, min_one)
        except DiskError as error:
            self.home.failed_in_worker(error)
            raise

    def times(self, budget: WalkBudget | None = None) -> TimeLookup:
        """Return the look-up of records by time. `budget` limits the records that are read only to check what
        batch headers claim; None means no limit.
        """
        return TimeLookup(self, self.segment_list, self.config, budget or WalkBudget(UNBOUNDED))

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """Return the largest known epoch that is at most `epoch`, and its end offset; see
        `LeaderEpochs.end_offset_for`.
        """
        return self.epochs.end_offset_for(epoch, self.log_end_offset)

    # --- segments

    def roll(self, now_ms: int) -> None:
        """Finish the active segment, and begin a new one at the log end offset.

        Raises:
            DiskRefused: there is no new segment.
            DiskError: the log directory is offline now.
        """
        roll(self.segment_list, self.producers, self.config, self.log_end_offset, now_ms)

    def flush(self) -> None:
        """Make all records durable that were appended before the call, and advance the recovery point
        (blocking).

        May run in a worker while the loop appends, rolls, truncates or closes the log.

        Raises:
            DiskError: the log accepts no more appends; its directory goes offline at its next check.
            DiskRefused: no room for the leader epochs, or no descriptor; the recovery point stays, and
                nothing is lost.
        """
        if self.home.is_closed:
            reached("log.flush_after_close_dropped")
            # Write nothing for a closed log. Its path may now belong to a new log, and the file would land in
            # the new log's directory.
            return
        try:
            self._flush()
        except DiskError as error:
            if self.home.is_overtaken(error):
                reached("log.flush_overtaken")
                return
            self.home.failed_in_worker(error)
            raise

    def _flush(self) -> None:
        truncations = self.durability.truncations
        self.durability.flush(self.log_end_offset, self.segment_list, self.epochs, truncations)

    # --- upkeep

    def _truncation(self) -> Truncation:
        segments, durability = self.segment_list, self.durability
        return Truncation(
            self, segments, self.epochs, self.producers, durability, self._cleaning, self.config
        )

    def truncate_to(self, offset: int) -> None:
        """Remove all records from `offset` on.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR, the device does not answer, or has no room to lower the recovery
                point; nothing has changed.
            DiskHung: the device has not answered in time. Either nothing has changed, or the truncation
                continues. In the latter case the log refuses everything until the device answers.
            DiskRefused: no room or no descriptor; nothing has changed.
            DiskError: the directory is offline now.
        """
        self.home.check_answers()
        with self.home.reporting_failures():
            self._truncation().truncate_to(offset)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Remove all records, so that the log is empty and starts at `offset`. Raises the same `DiskError` as
        `truncate_to`.
        """
        self.home.check_answers()
        with self.home.reporting_failures():
            self._truncation().start_over(offset)

    def set_log_start_offset(self, offset: int) -> None:
        """Delete all records below `offset` (DeleteRecords). Raises `KafkaError` OFFSET_OUT_OF_RANGE."""
        if self.log_start_offset < offset <= self.high_watermark:
            self.abort_cleaning("a client deleted the log's first records")
        retention.set_log_start_offset(self, self.segment_list, self.epochs, offset)

    def prepare_retention(self, now_ms: int) -> bool:
        """True if `delete_old_segments` would remove segments.

        Between the two calls, the caller should flush the log in a worker. Otherwise the loop itself must sync
        files. If all segments may be removed, this call begins a new segment, so that the log keeps its end
        offset. Raises the same `DiskError` as `truncate_to`.
        """
        with self.home.reporting_failures():
            count = retention.deletable(self, self.segment_list, self.config, now_ms)
            if count and count == len(self.segment_list.segments):
                try:
                    self.roll(now_ms)
                except DiskFull:
                    reached("log.removed_before_roll")
                    # Keep the last segment for now. The removal of the older segments may make room for a new
                    # one.
                    count -= 1
        return count > 0

    def delete_old_segments(self, now_ms: int) -> int:
        """Remove the segments that retention no longer keeps. Returns their number. Raises the same `DiskError`
        as `truncate_to`.
        """
        if not self.prepare_retention(now_ms):
            return 0
        segments = self.segment_list
        with self.home.reporting_failures():
            if segments.entry_is_dirty:
                try:
                    self.home.directory.in_time(self._flush, lambda flushed: None)
                except DiskFull:
                    if segments.entry_is_dirty:
                        raise
            removed = retention.delete_old_segments(self, segments, self.epochs, self.config, now_ms)
        self.check()
        return removed

    def set_config(self, config: LogConfig) -> None:
        """Apply the topic's new configuration. A running cleaning pass ends if the new policy forbids
        cleaning.
        """
        self.config = config
        if not config.is_compacted:
            self.abort_cleaning("the topic's cleanup.policy does not name compact any more")

    # --- the end of the log object

    def close(self) -> None:
        """Make all records durable, write the files that make the next start quick, and close all files
        (blocking).

        Raises:
            DiskError
        """
        if self.home.is_closed:
            return
        self.segment_list.write_indexes()
        end_offset = self.log_end_offset
        producers = self.producers
        # A snapshot does not list ended transactions. So write no snapshot while the marker of an ended
        # transaction may still be truncated. After a bug in an append, write no snapshot either. Then the next
        # start reads the producers' batches again.
        is_known = not self.home.is_broken and not producers.is_undecided(self.high_watermark)
        if end_offset and is_known and not producers.is_unread_at(end_offset):
            interval = self.config.index_interval_bytes
            producers.write_snapshot(self.segment_list, end_offset, interval, sync=True)
        self.flush()
        self.abandon()

    def abandon(self) -> None:
        """Close the files without writing anything. From now on appends and reads are refused."""
        was_closed = self.home.is_closed
        self.home.close()
        self.abort_cleaning("the broker closed the log")
        if not was_closed:
            for segment in self.segments:
                segment.remove()

    def statistics(self) -> dict[str, int]:
        """Return figures for the console and the metrics."""
        return {
            "log_start_offset": self.log_start_offset,
            "high_watermark": self.high_watermark,
            "log_end_offset": self.log_end_offset,
            "recovery_point": self.recovery_point,
            "size_bytes": self.size_bytes,
            "segments": len(self.segments),
            "producers": 0 if self.producers.state is None else len(self.producers.state.entries),
        }
