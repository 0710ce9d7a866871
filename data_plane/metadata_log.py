"""The metadata log on disk: the log class that topics use, behind the quorum's `ReplicatedLog` port.

Rot and torn writes
-------------------
The quorum writes one batch at a time and syncs it before the next (`metadata_quorum.single_voter`), so a crash can
tear only the last batch. The log class cuts a damaged tail off at recovery, which is right for a torn write and
would be silent loss for rot. `MetadataLog.open` tells them apart before the log class sees the files. It refuses
(`MetadataLogCorrupt`) when

* a damaged batch has a sound one behind it, in its segment or in a later one, or
* the log ends below `synced-offset-checkpoint`, a lower bound of what was synced, written at every start and stop
  and every few seconds in between.

The file is ours; Kafka leaves it alone.
"""

from __future__ import annotations

import re
from typing import Any

from data_plane.log import log_upkeep
from data_plane.log.config import LogConfig
from data_plane.log.loading import LoadOptions, open_partition_log
from data_plane.log.partition_log import Origin, PartitionLog
from data_plane.metadata_snapshots import SNAPSHOT_BYTES_MAX, FileSnapshotStore
from metadata_quorum.checkpoint_files import BOOTSTRAP_FILE, Snapshot, StoredSnapshot, decode_snapshot
from metadata_quorum.metadata_batches import is_whole_batch
from metadata_quorum.ports import MetadataLogCorrupt
from metadata_quorum.storage_format import METADATA_LOG_DIRECTORY
from odradek.env.ports import Clock, Dir, DiskError, DiskFull
from wire.record_batch import HEADER_SIZE, parse_header

METADATA_TOPIC = "__cluster_metadata"
SYNCED_OFFSET_FILE = "synced-offset-checkpoint"
SYNCED_OFFSET_PERIOD_SECONDS = 10.0
_SEGMENT_NAME = re.compile(r"[0-9]{20}\.log\Z")
_SEGMENT_BYTES_MAX = 2 << 30


class MetadataLog:
    """Implements `ReplicatedLog`. Open with `open`; one task appends, `flush` may run in a worker."""

    def __init__(self, root: Dir, directory: Dir, clock: Clock, logger: Any) -> None:
        self._root = root
        self.directory = directory
        self.snapshots = FileSnapshotStore(directory)
        self._clock = clock
        self._logger = logger
        self._log: PartitionLog
        self._synced_offset_due = clock.monotonic()

    @classmethod
    def open(cls, root: Dir, *, clock: Clock, logger: Any, segment_bytes: int = 1 << 30) -> MetadataLog:
        """Open the metadata log below the (locked) metadata directory `root`. Blocks.

        Raises `MetadataLogCorrupt` or `DiskError`.
        """
        directory = root.subdir(METADATA_LOG_DIRECTORY, create=True)
        self = cls(root, directory, clock, logger)
        verify_segments(directory)
        self.snapshots.remove_drafts()
        snapshot = self.snapshot_end()
        self._log = open_partition_log(
            directory,
            METADATA_TOPIC,
            0,
            # Nothing may remove segments by age or size: they go when a snapshot has taken their place.
            LogConfig(segment_bytes=segment_bytes, segment_ms=1 << 62, retention_ms=-1, retention_bytes=-1),
            self,
            LoadOptions(
                is_clean=False,
                log_start_offset=-1,
                now_ms=clock.wall_ms(),
                log=logger,
                recovery_point=snapshot,
            ),
        )
        synced = _read_synced_offset(directory)
        if self._log.log_end_offset < synced:
            raise MetadataLogCorrupt(
                f"{directory.path} ends at offset {self._log.log_end_offset}, but everything below {synced} was "
                "synced: the file was cut or damaged after it was written"
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

    def append(self, batch: bytearray, leader_epoch: int) -> int:
        result = self._log.append(memoryview(batch), Origin.RAFT, leader_epoch, self._clock.wall_ms())
        return result.last_offset

    def read(self, offset: int, bytes_max: int) -> bytes:
        return self._log.read_bytes(offset, bytes_max, upper_bound=self._log.log_end_offset, min_one=True)

    def flush(self) -> int:
        self._log.flush()
        end_offset = self._log.recovery_point
        if self._clock.monotonic() >= self._synced_offset_due:
            self._write_synced_offset(end_offset)
        return end_offset

    # -- files beside the log -----------------------------------------------------------------------------------

    def snapshot_end(self) -> int:
        """Where the newest snapshot ends, 0 without one."""
        return max((end.offset for end in self.snapshots.ends()), default=0)

    def newest_snapshot(self) -> StoredSnapshot | None:
        """The newest snapshot, None without one. Raises `MetadataLogCorrupt` when it is damaged."""
        return self.snapshots.newest()

    def bootstrap(self) -> Snapshot | None:
        """The first records of the cluster (`bootstrap.checkpoint`), None when the file is missing."""
        if not self._root.exists(BOOTSTRAP_FILE):
            return None
        data = self._root.read_bytes(BOOTSTRAP_FILE, SNAPSHOT_BYTES_MAX)
        return decode_snapshot(data, source=f"{self._root.path}/{BOOTSTRAP_FILE}")

    def _write_synced_offset(self, end_offset: int) -> None:
        text = f"0\n1\n{METADATA_TOPIC} 0 {end_offset}\n"
        try:
            self.directory.write_atomic(SYNCED_OFFSET_FILE, text.encode())
        except DiskFull as error:
            # The older bound stays true, and a full disk must not end the node.
            self._logger.warning("metadata.synced_offset_not_written", error=str(error))
        self._synced_offset_due = self._clock.monotonic() + SYNCED_OFFSET_PERIOD_SECONDS

    def close(self) -> None:
        """Sync and close. Raises `DiskError`."""
        self._log.flush()
        self._write_synced_offset(self._log.recovery_point)
        self._log.close()

    def statistics(self) -> dict[str, int]:
        return self._log.statistics()

    # -- LogOwner -----------------------------------------------------------------------------------------------

    def disk_failed(self, error: DiskError) -> None:
        self._logger.error("metadata.disk_failed", error=str(error))

    def flush_failed(self, error: DiskError) -> None:
        self._logger.error("metadata.disk_failed", error=str(error))

    def recovery_point_lowered(self, log: PartitionLog) -> None:
        """A single voter never takes back what it has synced, so nothing on disk says too much."""

    def remove_later(self, log: PartitionLog, names: list[str]) -> None:
        for name in names:
            log.directory.remove(name)

    def log_start_raised(self) -> None:
        """The metadata log is cut by snapshots, not on request."""

    def log_rolled(self, log: PartitionLog) -> None:
        """The next flush syncs the finished segment with the active one."""

    def write_epochs(self, log: PartitionLog) -> None:
        log_upkeep.write_epochs(log)

    def sync_entry(self) -> None:
        self._root.sync()


def verify_segments(directory: Dir) -> None:
    """Raises `MetadataLogCorrupt` when damage in the log cannot be a torn write."""
    names = [name for name in directory.list() if _SEGMENT_NAME.match(name)]
    for at, name in enumerate(names):
        data = directory.read_bytes(name, _SEGMENT_BYTES_MAX)
        position = next_offset = 0
        while position < len(data):
            size = is_whole_batch(data, position)
            if size is None:
                break
            next_offset = parse_header(data, position).next_offset
            position += size
        if position == len(data):
            continue
        behind = _find_sound_batch(data, position, next_offset)
        if behind is None and at + 1 < len(names) and directory.file_size(names[at + 1]):
            behind = 0
        if behind is not None:
            raise MetadataLogCorrupt(
                f"{directory.path}/{name}: the batch at position {position} is damaged, and sound ones follow it; "
                "no crash does that, so the disk has lost synced data: restore the directory from another voter"
            )


def _find_sound_batch(data: bytes, damage: int, offset_min: int) -> int | None:
    """Where behind `damage` a sound batch of a later offset begins."""
    for position in range(damage + 1, len(data) - HEADER_SIZE + 1):
        # The magic byte is the cheap test; the offset, then the checksum decide.
        if data[position + 16] != 2:
            continue
        base_offset = int.from_bytes(data[position : position + 8], "big")
        if base_offset >= offset_min and is_whole_batch(data, position) is not None:
            return position
    return None


def _read_synced_offset(directory: Dir) -> int:
    if not directory.exists(SYNCED_OFFSET_FILE):
        return 0
    lines = directory.read_bytes(SYNCED_OFFSET_FILE, 1 << 16).decode("utf-8", "replace").split("\n")
    try:
        topic, partition, offset = lines[2].split(" ")
        if (lines[0], lines[1], topic, partition) != ("0", "1", METADATA_TOPIC, "0"):
            raise ValueError(lines[:3])
        return int(offset)
    except (IndexError, ValueError) as error:
        raise MetadataLogCorrupt(f"{directory.path}/{SYNCED_OFFSET_FILE} cannot be read: {error}") from error
