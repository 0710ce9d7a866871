"""The metadata log on disk (the quorum's port `ReplicatedLog`): damage at the start (torn write or rot), the
synced offset, retention below snapshots. It uses the log class of topics.

Rot and torn writes
-------------------
The quorum syncs each write before it begins the next, so a crash can tear only the last write. At recovery,
the log class cuts off a damaged tail. This is right for a torn write. For rot it would silently lose records.
`MetadataLog.open` distinguishes torn writes from rot before the log class sees the files.
`synced-offset-checkpoint` holds a lower bound of the synced offset. It is written at every start and stop,
and every few seconds in between. Most writes are a single batch. A follower that catches up writes several
batches at once. Before such a write, `synced-offset-checkpoint` is written with the offset at which the write
will end. A crash may tear any of these batches and leave a later one of them complete. So the log is refused
(`MetadataLogCorrupt`) when

* an intact batch follows a damaged batch, in the same segment or in a later one, unless both batches belong
  to such a write, or
* the log ends below the lower bound.

A log that is gone
------------------
A controller that has lost its log could vote twice in one epoch. It could also vote for candidates that lack
records which it had acknowledged. No other node would notice the loss. So the file `metadata-log-begun`,
beside `meta.properties`, records that this node has had a log and a quorum's state. This file is written
after the quorum's state is durable, so a crash leaves the file only together with the state. A controller
that has the file but lacks the state is refused, whether or not the directory still exists.

Both files are Odradek's own; Kafka ignores them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import nullcontext, suppress
from itertools import pairwise
from typing import Any, TypeVar

import attrs

from odradek.data_plane.log.loading import LoadOptions, open_partition_log
from odradek.data_plane.log.log_config import LogConfig
from odradek.data_plane.log.partition_log import Origin, PartitionLog
from odradek.data_plane.metadata_snapshots import SNAPSHOT_BYTES_MAX, FileSnapshotStore
from odradek.env.agreed_clock import AgreedClock
from odradek.env.ports import Buffer, Clock, Dir, DiskError, DiskRefused
from odradek.metadata_quorum.config.typed_settings import setting
from odradek.metadata_quorum.ports import (
    MetadataLogCorrupt,
    OffsetAndEpoch,
    RecoveryBrokenOff,
    Snapshot,
    StoredSnapshot,
)
from odradek.metadata_quorum.replica.checkpoint_files import BOOTSTRAP_FILE, decode_snapshot
from odradek.metadata_quorum.replica.metadata_batches import is_whole_batch
from odradek.metadata_quorum.replica.quorum_state import FILE_NAME as QUORUM_STATE_FILE
from odradek.metadata_quorum.replica.storage_format import DRAFT_DIRECTORY, METADATA_LOG_DIRECTORY
from odradek.named_states import reached
from odradek.wire.batches.batch_header import HEADER_SIZE, iter_batches, parse_header
from odradek.wire.errors import ErrorCode, KafkaError

T = TypeVar("T")

METADATA_TOPIC = "__cluster_metadata"
SYNCED_OFFSET_FILE = "synced-offset-checkpoint"
SYNCED_OFFSET_PERIOD_SECONDS = 10.0
BEGUN_FILE = "metadata-log-begun"
BEGUN_TEXT = f"""version=1
# There has been a metadata log in {METADATA_LOG_DIRECTORY}: a controller does not start without it.
"""
_SEGMENT_NAME = re.compile(r"[0-9]{20}\.log\Z")
_SEGMENT_BYTES_MAX = 2 << 30


@attrs.frozen
class MetadataRetention:
    """The limits on the part of the log that is kept although a newer snapshot covers it. A negative value
    means no limit.
    """

    bytes_max: int = setting("metadata.max.retention.bytes")
    """The most bytes of log and snapshots together."""
    age_ms_max: int = setting("metadata.max.retention.ms")
    """The greatest age of a snapshot, in milliseconds, counted from its newest record."""


@attrs.frozen
class MetadataLogSettings:
    """The settings of the metadata log. Without a `retention`, the log below the newest snapshot is removed
    at once.
    """

    segment_bytes: int = setting("metadata.log.segment.bytes")
    retention: MetadataRetention | None = None


_DEFAULTS = MetadataLogSettings()


class MetadataLog:
    """The metadata log on disk; implements the port `ReplicatedLog`. `open` makes it. One task appends;
    `flush` may run in a worker thread.
    """

    def __init__(
        self,
        root: Dir,
        directory: Dir,
        clock: Clock,
        logger: Any,
        retention: MetadataRetention | None,
        agreed_clock: AgreedClock,
    ) -> None:
        self._root = root
        self.directory = directory
        self.snapshots = FileSnapshotStore(directory)
        self.small_files = nullcontext()
        self._clock = clock
        self._agreed_clock = agreed_clock
        self._logger = logger
        self._retention = retention
        self._log: PartitionLog
        self._synced_offset_due = clock.monotonic()
        self._is_begun = root.exists(BEGUN_FILE)
        self._logs_first = not self._is_begun
        """True until the first records have been synced. After that sync, the checkpoint is written at once,
        without waiting for its period.
        """

    @classmethod
    def open(
        cls,
        root: Dir,
        *,
        clock: Clock,
        logger: Any,
        settings: MetadataLogSettings = _DEFAULTS,
        may_vote: bool = False,
        agreed_clock: AgreedClock | None = None,
    ) -> MetadataLog:
        """Open the metadata log below the (locked) metadata directory `root`. Blocks.

        Raises `MetadataLogCorrupt` for a damaged log, and for a controller (`may_vote`) whose log is gone.
        Raises `RecoveryBrokenOff` if a recovery was interrupted, or `DiskError`.
        """
        _refuse_a_draft(root)
        directory = root.subdir(METADATA_LOG_DIRECTORY, create=True)
        self = cls(
            root, directory, clock, logger, settings.retention, agreed_clock or AgreedClock(clock, log=logger)
        )
        if may_vote and self._is_begun and not directory.exists(QUORUM_STATE_FILE):
            raise MetadataLogCorrupt(
                f"{directory.path} has no file {QUORUM_STATE_FILE}, which says how this controller has voted. Restore the directory if you can. Otherwise format {root.path} again, and then run `odradek quorum remove` and `odradek quorum add` for this node. If most of the controllers are in this state, do neither: run `odradek quorum recover` (docs/recover.md). If the other voters have a leader, you may instead remove {root.path}/{BEGUN_FILE}: the node then fetches the whole log from them"
            )
        synced, write_end = _read_synced_offset(directory)
        verify_segments(directory, synced, write_end)
        self.snapshots.remove_drafts()
        snapshot = self.snapshot_end()
        self._log = open_partition_log(
            directory,
            METADATA_TOPIC,
            0,
            # No segment may be removed because of its age or its size. Segments are removed when a snapshot
            # replaces them.
            LogConfig(
                segment_bytes=settings.segment_bytes, segment_ms=1 << 62, retention_ms=-1, retention_bytes=-1
            ),
            self,
            LoadOptions(
                is_clean=False,
                log_start_offset=-1,
                now_ms=clock.wall_ms(),
                log=logger,
                recovery_point=snapshot,
            ),
        )
        # Installing a leader's snapshot begins with removing the log, so a crash may leave only a beginning
        # of the log, or nothing. The snapshot was durable before, so its end counts here as well.
        if max(self._log.log_end_offset, snapshot) < synced:
            raise MetadataLogCorrupt(
                f"{directory.path} ends at offset {self._log.log_end_offset}, but this node has synced everything below offset {synced}: the file was cut or damaged after that sync"
            )
        return self

    # -- ReplicatedLog ------------------------------------------------------------------------------------------

    @property
    def log_start_offset(self) -> int:
        return self._log.log_start_offset

    @property
    def log_end_offset(self) -> int:
        return self._log.log_end_offset

    @property
    def latest_epoch(self) -> int:
        return self._log.latest_epoch

    def append(self, batches: bytearray, leader_epoch: int, *, count: int = 1) -> int:
        log = self._log
        if count > 1:
            # Write the checkpoint before the batches. Otherwise a crash that tears several batches would look
            # like rot at the next start.
            self._write_synced_offset(log.log_end_offset, last_offset_of(batches) + 1)
        try:
            result = log.append(memoryview(batches), Origin.RAFT, leader_epoch, self._clock.wall_ms())
        except KafkaError as error:
            self._check_disk("append", error)
            raise
        return result.last_offset

    def _check_disk(self, operation: str, error: KafkaError) -> None:
        """Raise `DiskError` if `error` means an offline directory. Clients get such an error as an answer about
        a topic's log; about the metadata log it must end the node.
        """
        if error.code is ErrorCode.KAFKA_STORAGE_ERROR:
            raise DiskError(self._root.path, self.directory.path, operation, 0, str(error)) from error

    def read(self, offset: int, bytes_max: int, *, upper_bound: int | None = None) -> bytes:
        end_offset = self._log.log_end_offset if upper_bound is None else upper_bound
        try:
            return self._log.read_bytes(offset, bytes_max, upper_bound=end_offset, min_one=True)
        except KafkaError as error:
            self._check_disk("read", error)
            raise

    def flush(self) -> int:
        self._log.flush()
        end_offset = self._log.recovery_point
        if end_offset > 0 and self._logs_first:
            self._logs_first = False
            self._synced_offset_due = self._clock.monotonic()
        if self._clock.monotonic() >= self._synced_offset_due:
            self._note_synced_offset(end_offset)
        return end_offset

    def truncate_to(self, end_offset: int) -> None:
        log = self._log
        try:
            log.truncate_to(end_offset)
        except KafkaError as error:
            if isinstance(error.__cause__, DiskRefused):
                raise error.__cause__ from None
            self._check_disk("truncate", error)
            raise
        if log.log_end_offset != end_offset:
            raise MetadataLogCorrupt(
                f"{self.directory.path} cannot be cut at offset {end_offset}, which lies inside a batch"
            )
        log.flush()

    def drop_prefix(self, offset: int) -> int:
        log = self._log
        self._remove_below(offset if self._retention is None else self._kept_from(self._retention, offset))
        # Finish the active segment now, so that the next snapshot can remove it. (Sync first, because a torn
        # batch must never have a later segment after it.) So the log keeps the records that follow the
        # second-newest snapshot.
        log.flush()
        with suppress(DiskRefused):
            log.roll(self._clock.wall_ms())
        return log.log_start_offset

    def expire(self, offset: int) -> int:
        if self._retention is not None:
            self._remove_below(self._kept_from(self._retention, offset))
        return self._log.log_start_offset

    def _remove_below(self, offset: int) -> None:
        """Remove the segments and snapshots that lie completely below `offset`, at which a snapshot ends."""
        log = self._log
        start = max((each.base_offset for each in log.segments if each.base_offset <= offset), default=0)
        if start > log.log_start_offset:
            log.advance_high_watermark(start)
            log.set_log_start_offset(start)
            log.delete_old_segments(self._clock.wall_ms())
        self.snapshots.delete_below(offset)

    def _kept_from(self, retention: MetadataRetention, offset: int) -> int:
        """Return the end offset of the oldest snapshot to keep; 0 if all are kept. As in Kafka, the newest
        snapshot always stays.

        A snapshot is removed together with the log up to the next snapshot. The oldest snapshot is removed
        first, as long as it is too old, or log and snapshots together are too large. Snapshots that end
        beyond `offset` do not count yet.
        """
        snapshots, segments = self.snapshots, self._log.segments
        ends = [end for end in snapshots.ends() if end.offset <= offset]
        size = self._log.size_bytes + sum(snapshots.size(end) for end in ends)
        kept_from = removed_to = 0
        for oldest, following in pairwise(ends):
            too_large = 0 <= retention.bytes_max < size
            if not too_large and not self._is_too_old(oldest, retention.age_ms_max):
                break
            kept_from = following.offset
            size -= snapshots.size(oldest)
            for segment, later in pairwise(segments):
                if removed_to < later.base_offset <= kept_from:
                    removed_to = later.base_offset
                    size -= segment.size
        return kept_from

    def _is_too_old(self, end: OffsetAndEpoch, age_ms_max: int) -> bool:
        timestamp_ms = self.snapshots.timestamp_ms(end)
        if age_ms_max < 0 or timestamp_ms is None:
            return False
        return self._agreed_clock.earliest_ms() - timestamp_ms > age_ms_max

    def install(self, end_offset: int) -> None:
        log = self._log
        try:
            log.truncate_fully_and_start_at(end_offset)
        except KafkaError as error:
            if isinstance(error.__cause__, DiskRefused):
                raise error.__cause__ from None
            self._check_disk("install", error)
            raise
        log.flush()

    # -- files beside the log -----------------------------------------------------------------------------------

    def snapshot_end(self) -> int:
        """Return the end offset of the newest snapshot; 0 if there is none."""
        return max((end.offset for end in self.snapshots.ends()), default=0)

    def newest_snapshot(self) -> StoredSnapshot | None:
        """Open the newest snapshot; returns None if there is none. Raises `MetadataLogCorrupt` if it is
        damaged.
        """
        return self.snapshots.newest()

    def bootstrap(self) -> Snapshot | None:
        """Read the first records of the cluster from `bootstrap.checkpoint`; returns None if the file is
        missing.
        """
        if not self._root.exists(BOOTSTRAP_FILE):
            return None
        data = self._root.read_bytes(BOOTSTRAP_FILE, SNAPSHOT_BYTES_MAX)
        return decode_snapshot(data, source=f"{self._root.path}/{BOOTSTRAP_FILE}")

    def _note_synced_offset(self, end_offset: int) -> None:
        try:
            self._write_synced_offset(end_offset)
            if not self._is_begun and self.directory.exists(QUORUM_STATE_FILE):
                self._root.write_atomic(BEGUN_FILE, BEGUN_TEXT.encode())
                self._is_begun = True
        except DiskRefused as error:
            reached("quorum.synced_bound_not_written")
            # The bound in the file is still true. Ignore the error, because a full disk must not end the
            # node.
            self._logger.warning("metadata.synced_offset_not_written", error=str(error))
        self._synced_offset_due = self._clock.monotonic() + SYNCED_OFFSET_PERIOD_SECONDS

    def _write_synced_offset(self, end_offset: int, write_end: int | None = None) -> None:
        """Write to the checkpoint that all records below `end_offset` are synced. If a write of several batches
        begins now, `write_end` is the offset at which it will end.

        Raises `DiskError`.
        """
        lines = [f"{METADATA_TOPIC} 0 {end_offset}"]
        if write_end is not None:
            lines.append(f"{METADATA_TOPIC} 0 {write_end}")
        text = f"0\n{len(lines)}\n" + "".join(f"{line}\n" for line in lines)
        self.directory.write_atomic(SYNCED_OFFSET_FILE, text.encode())

    def close(self) -> None:
        """Sync the log, and close its files. Raises `DiskError`."""
        self._log.flush()
        self._note_synced_offset(self._log.recovery_point)
        self._log.close()

    def statistics(self) -> dict[str, int]:
        return self._log.statistics()

    # -- LogOwner -----------------------------------------------------------------------------------------------

    def change(
        self, work: Callable[[], T], end: Callable[[T], None], failed: Callable[[Exception], None]
    ) -> None:
        """Run `work`, then `end`, at once in the calling thread. For the metadata log, worker threads call
        this, since they may wait for the device.
        """
        end(work())

    def disk_failed(self, error: DiskError) -> None:
        self._logger.error("metadata.disk_failed", error=str(error))

    def resources_short(self) -> None:
        """Do nothing, because this log has so few files that they stay open when descriptors are short."""

    def flush_failed(self, error: DiskError) -> None:
        self._logger.error("metadata.disk_failed", error=str(error))

    def disk_refused(self, error: DiskRefused) -> None:
        """Do nothing, because the writer of the records gets the same error, and tries again."""

    def recovery_point_lowered(self, topic: str, partition: int, offset: int) -> None:
        """Lower the offset in the checkpoint of synced data, too, because the log is about to lose synced
        data.
        """
        self._write_synced_offset(offset)

    def remove_later(self, topic: str, partition: int, directory: Dir, names: list[str]) -> None:
        for name in names:
            directory.remove(name)

    def log_start_raised(self) -> None:
        """Do nothing, because the start of the metadata log moves only when a snapshot replaces records."""

    def cleaner_offset_moved(self, topic: str, partition: int, *, durably: bool) -> None:
        """Do nothing, because snapshots replace the records of the metadata log, instead of cleaning."""

    def log_rolled(self, topic: str, partition: int) -> None:
        """Do nothing, because the next flush syncs the finished segment with the active one."""

    def sync_entry(self) -> None:
        self._root.sync()


def verify_segments(directory: Dir, synced: int = 0, write_end: int = 0) -> None:
    """Raise `MetadataLogCorrupt` for damage in the log that cannot be a torn write.

    All records below the offset `synced` were synced. If `write_end` is larger, a single write may have been
    in progress between the two offsets.
    """
    names = [name for name in directory.list() if _SEGMENT_NAME.match(name)]
    for at, name in enumerate(names):
        data = directory.read_bytes(name, _SEGMENT_BYTES_MAX)
        position = 0
        next_offset = int(name[:20])
        while position < len(data):
            size = is_whole_batch(data, position)
            if size is None:
                break
            next_offset = parse_header(data, position).next_offset
            position += size
        if position == len(data):
            continue
        later = names[at + 1 :]
        if later and next_offset >= int(later[0][:20]):
            reached("quorum.leftover_of_truncation_passed")
            # This is no damage but the rest of a truncation. The log continues in the next file.
            continue
        sound_from = write_end if synced <= next_offset < write_end else next_offset
        behind = _find_sound_batch(data, position, sound_from)
        behind = behind is not None or any(_holds_sound_batch(directory, each, sound_from) for each in later)
        if behind:
            raise MetadataLogCorrupt(
                f"{directory.path}/{name}: the batch at position {position} is damaged, and sound "
                "batches follow. No crash does that, so the disk has lost synced data: restore the "
                "directory from another voter"
            )


def _holds_sound_batch(directory: Dir, name: str, offset_min: int) -> bool:
    """True if the file `name`, which follows the damaged segment, begins at `offset_min` or later, or holds
    an intact batch with such an offset. False for an empty file.
    """
    if directory.file_size(name) == 0:
        return False
    if int(name[:20]) >= offset_min:
        return True
    return _find_sound_batch(directory.read_bytes(name, _SEGMENT_BYTES_MAX), -1, offset_min) is not None


def last_offset_of(batches: Buffer) -> int:
    """Return the last offset in `batches`, a sequence of whole batches."""
    *_, (_, header) = iter_batches(batches)
    return header.last_offset


def _find_sound_batch(data: bytes, damage: int, offset_min: int) -> int | None:
    """Return the position after `damage` at which an intact batch begins whose offset is at least
    `offset_min`; None if there is no such batch.
    """
    for position in range(damage + 1, len(data) - HEADER_SIZE + 1):
        # Compare the magic byte first, because this is cheap. After that the offset and the checksum decide.
        if data[position + 16] != 2:
            continue
        base_offset = int.from_bytes(data[position : position + 8], "big")
        if base_offset >= offset_min and is_whole_batch(data, position) is not None:
            return position
    return None


def _refuse_a_draft(root: Dir) -> None:
    """Raise `RecoveryBrokenOff` if a recovery has begun to build a new log here, but did not finish."""
    if root.is_dir(DRAFT_DIRECTORY):
        raise RecoveryBrokenOff(
            f"{root.path}/{DRAFT_DIRECTORY} is the unfinished metadata log of an interrupted recovery. To continue the recovery, run "
            "`odradek quorum recover --from PLAN CONFIG --execute`, where CONFIG is this node's properties file. PLAN is the file "
            "*.recovery-*.json, which the recovery wrote beside the properties file that it was given first. To abandon the "
            f"recovery, remove {root.path}/{DRAFT_DIRECTORY}; this is possible only while {root.path}/{METADATA_LOG_DIRECTORY} "
            "still exists"
        )


def _read_synced_offset(directory: Dir) -> tuple[int, int]:
    """Read the checkpoint. Returns the offset below which all was synced, and the end of the write that began
    at this offset. The end is 0 if no write of several batches began there.
    """
    if not directory.exists(SYNCED_OFFSET_FILE):
        return 0, 0
    lines = directory.read_bytes(SYNCED_OFFSET_FILE, 1 << 16).decode("utf-8", "replace").split("\n")
    try:
        offsets = []
        for line in lines[2 : 2 + int(lines[1])]:
            topic, partition, offset = line.split(" ")
            if (topic, partition) != (METADATA_TOPIC, "0"):
                raise ValueError(line)
            offsets.append(int(offset))
        if lines[0] != "0" or len(offsets) not in (1, 2):
            raise ValueError(lines[:2])
        return offsets[0], (offsets[1] if len(offsets) == 2 else 0)
    except (IndexError, ValueError) as error:
        raise MetadataLogCorrupt(f"{directory.path}/{SYNCED_OFFSET_FILE} cannot be read: {error}") from error
