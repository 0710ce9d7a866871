"""The snapshots of a metadata log on disk: `OFFSET-EPOCH.checkpoint` files beside the log's segments, as in
Kafka.

A draft is written under a temporary name (`.checkpoint.NUMBER.part`); `finish` checks it, syncs it, and
renames it. So a file with a snapshot's name is complete, unless the disk has damaged it. Drafts that a crash
left behind are removed when the store is opened.
"""

from __future__ import annotations

from odradek.env.ports import Buffer, Dir, DiskError, File, FileMissing
from odradek.metadata_quorum.ports import MetadataLogCorrupt, OffsetAndEpoch, StoredSnapshot
from odradek.metadata_quorum.replica.checkpoint_files import open_snapshot, parse_snapshot_name, snapshot_name
from odradek.metadata_quorum.replica.metadata_batches import is_whole_batch, read_batches
from odradek.named_states import reached
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.control_records import SnapshotHeaderRecord

__all__ = ["SNAPSHOT_BYTES_MAX", "FileSnapshotDraft", "FileSnapshotStore"]

SNAPSHOT_BYTES_MAX = 1 << 30
_UNFINISHED = ".part"
_FIRST_BATCH_BYTES_MAX = 1 << 20


class FileSnapshotStore:
    """The snapshots in the directory of the metadata log; implements the port `SnapshotStore`."""

    def __init__(self, directory: Dir) -> None:
        self._directory = directory
        self._drafts = 0

    def remove_drafts(self) -> None:
        """Remove incomplete snapshot files, which a crash has left behind. Raises `DiskError`."""
        for name in self._directory.list():
            if name.endswith(_UNFINISHED):
                self._directory.remove(name)

    def ends(self) -> list[OffsetAndEpoch]:
        """List the end offsets and epochs of the snapshots, the oldest first."""
        found = (parse_snapshot_name(name) for name in self._directory.list())
        return sorted(OffsetAndEpoch(*each) for each in found if each is not None)

    def newest(self) -> StoredSnapshot | None:
        ends = self.ends()
        return self.load(ends[-1]) if ends else None

    def load(self, end: OffsetAndEpoch) -> StoredSnapshot:
        """Load the snapshot with this end offset and epoch. Raises `MetadataLogCorrupt`, `DiskError`, or
        `KafkaError` if it does not exist.
        """
        return _load(self._directory, snapshot_name(end.offset, end.epoch), end)

    def read(self, end: OffsetAndEpoch, position: int, bytes_max: int) -> tuple[bytes, int]:
        name = snapshot_name(end.offset, end.epoch)
        try:
            return self._read(name, position, bytes_max)
        except FileMissing:
            reached("quorum.snapshot_went_while_served")
            # The snapshot never existed, or was removed while it was being read.
            raise KafkaError(ErrorCode.SNAPSHOT_NOT_FOUND, f"the snapshot {name} does not exist") from None

    def _read(self, name: str, position: int, bytes_max: int) -> tuple[bytes, int]:
        file = self._directory.open(name)
        try:
            if not 0 <= position < file.size:
                raise KafkaError(
                    ErrorCode.POSITION_OUT_OF_RANGE,
                    f"position {position} is not within the {file.size} bytes of the snapshot {name}",
                )
            return file.pread(max(0, min(bytes_max, file.size - position)), position), file.size
        finally:
            file.close()

    def begin(self, end: OffsetAndEpoch) -> FileSnapshotDraft:
        self._drafts += 1
        return FileSnapshotDraft(self._directory, end, self._drafts)

    def size(self, end: OffsetAndEpoch) -> int:
        """Return the size of a snapshot in bytes. Raises `DiskError`."""
        return self._directory.file_size(snapshot_name(end.offset, end.epoch))

    def timestamp_ms(self, end: OffsetAndEpoch) -> int | None:
        """Return the timestamp of a snapshot's newest record in milliseconds. If it is unknown, return the
        time at which the snapshot was written. None if neither is known.

        Raises `DiskError`.
        """
        data, _ = self.read(end, 0, _FIRST_BATCH_BYTES_MAX)
        size = is_whole_batch(data, 0)
        if size is None:
            return None
        (batch,) = read_batches(data[:size], source=snapshot_name(end.offset, end.epoch))
        header = batch.records[0] if batch.records else None
        contained = header.last_contained_log_timestamp if isinstance(header, SnapshotHeaderRecord) else 0
        return contained or batch.timestamp_ms

    def delete_older(self) -> None:
        self._delete(self.ends()[:-1])

    def delete_below(self, offset: int) -> None:
        """Remove the snapshots that end below `offset`. Raises `DiskError`."""
        self._delete([end for end in self.ends()[:-1] if end.offset < offset])

    def _delete(self, ends: list[OffsetAndEpoch]) -> None:
        for end in ends:
            self._directory.remove(snapshot_name(end.offset, end.epoch))
        if ends:
            self._directory.sync()


class FileSnapshotDraft:
    """A snapshot that is being written. Its file gets its final name once it is complete."""

    def __init__(self, directory: Dir, end: OffsetAndEpoch, number: int) -> None:
        self._directory = directory
        self._end = end
        self._name = snapshot_name(end.offset, end.epoch)
        self._draft_name = f"{self._name}.{number}{_UNFINISHED}"
        self._file: File | None = directory.open(self._draft_name, create=True)
        self.size = 0

    def append(self, chunk: Buffer) -> None:
        assert self._file is not None, "the unfinished snapshot is closed already"
        if self.size + len(chunk) > SNAPSHOT_BYTES_MAX:
            raise DiskError(
                self._directory.path,
                self._draft_name,
                "append",
                0,
                f"the snapshot is larger than {SNAPSHOT_BYTES_MAX} bytes",
            )
        self._file.append(chunk)
        self.size += len(chunk)

    def finish(self) -> StoredSnapshot:
        assert self._file is not None, "the unfinished snapshot is closed already"
        try:
            self._file.sync()
            stored = _load(self._directory, self._draft_name, self._end)
        except MetadataLogCorrupt:
            self.discard()
            raise
        self._file.close()
        self._file = None
        self._directory.rename(self._draft_name, self._name)
        self._directory.sync()
        return stored

    def discard(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
            self._directory.remove(self._draft_name)


def _load(directory: Dir, name: str, end: OffsetAndEpoch) -> StoredSnapshot:
    data = directory.read_bytes(name, SNAPSHOT_BYTES_MAX)
    return StoredSnapshot(end.offset, end.epoch, open_snapshot(data, source=f"{directory.path}/{name}"))
