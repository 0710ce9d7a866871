"""One segment of a log: its file, its sparse indexes, the position of an offset in it, its newest timestamp,
cuts and syncs.

Theory of operation
-------------------
`<base offset>.log` holds the batches; its indexes are derived data. Only the last segment of a log, the
active one, is appended to. The active segment's index is always in memory (None while it has no entry). Its
index files are written only when the segment is finished or closed. So the hot path makes one system call per
batch. After a crash the active segment's index is rebuilt from the batches. The index of an inactive segment
is read from its files at the first use, and checked. If an index read from files cannot be right, it is
rebuilt from the batches. An index that has not been used for a while is dropped from memory.

To find an offset, a search takes the greatest index entry below it, and reads batch headers from there on.
Remembered places often make this search unnecessary. The segment remembers the end of the last read, where a
consumer usually continues. It also remembers the last upper bound of a read, and the ends of recent batches
(`recent_places`).
"""

from __future__ import annotations

import threading

from odradek.data_plane.log.log_config import OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES
from odradek.data_plane.log.segments.aborted_file import AbortedFile
from odradek.data_plane.log.segments.file_names import INDEX_SUFFIX, TIME_INDEX_SUFFIX, file_name
from odradek.data_plane.log.segments.recent_places import RecentPlaces
from odradek.data_plane.log.segments.scan import SegmentScan
from odradek.data_plane.log.segments.segment_index import DamagedIndex, SegmentIndex
from odradek.data_plane.log.segments.small_files import append_to, remove_if_present, sync_file, truncate_file
from odradek.data_plane.log.segments.walked_times import WalkedTimes
from odradek.env.ports import Dir, DiskHung, DiskRefused, File, FileClosed, FileMissing
from odradek.named_states import reached
from odradek.wire.batches.batch_errors import CorruptBatch
from odradek.wire.batches.batch_header import HEAD, HEAD_SIZE, HEADER_SIZE, MAGIC, SIZE_PREFIX

RELATIVE_OFFSET_MAX = 0x7FFFFFFF

_HOP_BYTES = 4096
_USED, _IDLE, _DROPPED = 2, 1, 0
NO_TIMESTAMP = -1
UNKNOWN = -2
_BEGINNING = (0, 0)
"""The place (offset 0, position 0). Segments share this object, because most segments of a node with many
partitions are empty and begin at offset 0.
"""


class Segment:
    """One segment of a log. Offsets are absolute, positions are bytes in the `.log` file."""

    __slots__ = (
        "aborted",
        "aged",
        "base_offset",
        "bound_place",
        "bytes_since_index",
        "created_ms",
        "directory",
        "file",
        "first_timestamp_ms",
        "index",
        "index_is_written",
        "is_active",
        "is_removed",
        "jitter_ms",
        "max_timestamp_ms",
        "max_timestamp_offset",
        "needs_sync",
        "read_place",
        "recent",
        "size",
        "uses",
        "walked",
    )

    def __init__(
        self, directory: Dir, base_offset: int, file: File, *, is_active: bool, is_known: bool = True
    ) -> None:
        self.directory = directory
        self.base_offset = base_offset
        self.file = file
        self.size = file.size
        self.is_active = is_active
        self.aborted: AbortedFile | None = None
        """The aborted transactions whose markers are in this segment; None if it has no such marker."""
        self.index: SegmentIndex | None = None
        self.index_is_written = (0, 0)
        """The number of entries of each index that are already in its file: (offset index, time index)."""
        self.bytes_since_index = 0
        self.first_timestamp_ms = NO_TIMESTAMP
        """The newest timestamp in the segment's first batch, from which `segment.ms` counts."""
        self.max_timestamp_ms = NO_TIMESTAMP if is_known else UNKNOWN
        """The newest timestamp that batch headers claim. UNKNOWN until the index of an inactive segment has
        been read.
        """
        self.max_timestamp_offset = base_offset
        self.created_ms = 0
        self.jitter_ms = 0
        self.read_place = self.bound_place = (base_offset, 0) if base_offset else _BEGINNING
        """The end of the last read, and the last upper bound, each as (offset, position of the first batch
        that ends there or later). Each tuple is replaced as a whole, for other threads.
        """
        self.recent: RecentPlaces | None = None
        """The boundaries of the last batches that were appended since the segment was opened or truncated;
        None before the first.
        """
        self.walked: WalkedTimes | None = None
        """The timestamps that a walk has read from the segment's records; None if no walk was needed. The batch
        headers may name other timestamps.
        """
        self.aged: tuple[int, int] | None = None
        """The file's (size in bytes, time of the last change) when a worker last read them."""
        self.uses = _USED
        self.is_removed = False
        self.needs_sync = False
        """True if the segment must be synced even below the recovery point, because it was truncated, or has
        new index files and a snapshot.
        """

    def name(self, suffix: str) -> str:
        return file_name(self.base_offset, suffix)

    # --- active and finished

    def begin(self, now_ms: int, jitter_ms: int = 0) -> None:
        """Start the time limit after which the active segment rolls. `jitter_ms` is subtracted from
        `segment.ms`.
        """
        self.created_ms = now_ms
        self.jitter_ms = jitter_ms

    def activate(self) -> None:
        """Allow appends from now on."""
        self.is_active = True

    def finish(self) -> None:
        """Refuse appends from now on."""
        self.is_active = False
        self.needs_sync = True

    def check_size(self) -> None:
        """Raise `AssertionError` unless the file has as many bytes as the segment."""
        if self.size != self.file.size:
            raise AssertionError(
                f"{self.file.path} has {self.file.size} bytes, but the node counted {self.size} bytes "
                "in this segment"
            )

    def cut(self, position: int, offset: int) -> None:
        """Cut the active segment's file and its indexes at `position`, the place of `offset`. Raises
        `DiskError`.
        """
        if not 0 <= position <= self.size:
            raise AssertionError(
                f"{self.file.path}: a cut at position {position} is outside the segment's {self.size} bytes"
            )
        if position < self.size:
            self.file.truncate(position)
            self.size = position
            self.needs_sync = True
        if self.index is not None:
            self.index.truncate(offset - self.base_offset, position)
        self._cut_index_files()
        if self.aborted is not None:
            self.aborted.truncate(offset)
        self.forget_places()
        self.walked = None
        self.measure_tail()

    def cut_durably(self, position: int) -> None:
        """Cut the file during recovery, and sync it, so that the cut bytes cannot reappear after later appends.
        Raises `DiskError`.
        """
        self.size = position
        self.file.truncate(position)
        self.file.sync()

    def _cut_index_files(self) -> None:
        """Truncate the index files to the entries that the index in memory still has."""
        index = self.index if self.index is not None else _EMPTY
        offsets, times = self.index_is_written
        offsets, times = min(offsets, len(index.offsets)), min(times, len(index.times))
        try:
            truncate_file(self.directory, self.name(INDEX_SUFFIX), offsets * OFFSET_ENTRY_BYTES)
            truncate_file(self.directory, self.name(TIME_INDEX_SUFFIX), times * TIME_ENTRY_BYTES)
        except DiskRefused:
            reached("log.index_cut_by_removal")
            self.remove_index_files()
            return
        self.index_is_written = (offsets, times)

    def measure_tail(self) -> None:
        """Recompute the first and the newest timestamp, and the number of bytes since the last index entry.
        Uses the index, and reads the headers of the batches after its last entry.
        """
        index = self.index
        self.first_timestamp_ms = NO_TIMESTAMP
        self.max_timestamp_ms = NO_TIMESTAMP
        self.max_timestamp_offset = self.base_offset
        self.bytes_since_index = self.size
        start = 0
        if index is not None:
            if index.times:
                self.max_timestamp_ms = index.times[-1]
                self.max_timestamp_offset = self.base_offset + index.time_offsets[-1]
            if index.positions:
                start = index.positions[-1]
                self.bytes_since_index = self.size - start
        for _, header in SegmentScan(self.file, 0, self.size, self.base_offset):
            self.first_timestamp_ms = header.max_timestamp
            break
        for _, header in SegmentScan(self.file, start, self.size, self.base_offset):
            if header.max_timestamp > self.max_timestamp_ms:
                self.max_timestamp_ms = header.max_timestamp
                self.max_timestamp_offset = header.last_offset

    def begin_recovery(self) -> None:
        """Reset all derived data before recovery. Recovery then calls `note_batch` for each batch of the
        file, from the first one on.
        """
        self.index = None
        self.walked = None
        self.aborted = None
        self.needs_sync = True
        self.max_timestamp_ms = NO_TIMESTAMP
        self.max_timestamp_offset = self.base_offset

    # --- the index

    def note_batch(
        self, position: int, size: int, last_offset: int, max_timestamp_ms: int, interval: int
    ) -> None:
        """Update indexes and timestamps for a batch that has been written to the file (Kafka's order of
        steps).
        """
        end = position + size
        if end > self.size:
            self.size = end
        if not position:
            self.first_timestamp_ms = max_timestamp_ms
        recent = self.recent
        self.recent = (
            RecentPlaces.beginning(last_offset + 1, end)
            if recent is None or recent.positions[-1] != position
            else recent.noted(last_offset + 1, end)
        )
        if max_timestamp_ms > self.max_timestamp_ms:
            self.max_timestamp_ms = max_timestamp_ms
            self.max_timestamp_offset = last_offset
        if self.bytes_since_index > interval:
            index = self.index
            if index is None:
                index = self.index = SegmentIndex()
            base_offset = self.base_offset
            index.append(last_offset - base_offset, position)
            index.append_time(self.max_timestamp_ms, self.max_timestamp_offset - base_offset)
            self.bytes_since_index = size
        else:
            self.bytes_since_index += size

    def load_index(self, interval: int) -> SegmentIndex:
        """Return the index. Reads it from its files if necessary, or rebuilds it if the files cannot be
        right. May read the whole segment.
        """
        index = self.index
        self.uses = _USED
        if index is None:
            if self.is_active:
                return _EMPTY
            if self.is_removed:
                # Read nothing, because the path may belong to another segment by now.
                raise self._removed()
            try:
                index = SegmentIndex.from_bytes(
                    self.directory.read_bytes(self.name(INDEX_SUFFIX)),
                    self.directory.read_bytes(self.name(TIME_INDEX_SUFFIX)),
                    self.size,
                )
            except (DamagedIndex, FileMissing):
                if self.is_removed:
                    raise self._removed() from None
                reached("log.index_rebuilt")
                return self._rebuild_in_time(interval)
            if self.is_removed:
                raise self._removed()
            self.index_is_written = (len(index.offsets), len(index.times))
            self._take_max_timestamp(index)
            self.index = index
        return index

    def _take_max_timestamp(self, index: SegmentIndex) -> None:
        if self.max_timestamp_ms == UNKNOWN:
            if index.times:
                self.max_timestamp_offset = self.base_offset + index.time_offsets[-1]
                self.max_timestamp_ms = index.times[-1]
            else:
                self.max_timestamp_ms = NO_TIMESTAMP

    def _rebuild_in_time(self, interval: int) -> SegmentIndex:
        return self.directory.in_time(lambda: self.rebuild_index(interval), _keep)

    def rebuild_index(self, interval: int) -> SegmentIndex:
        """Derive the index from the batches and write its files again. Returns the index. The batches must be
        sound.
        """
        file = self.pinned_file()
        try:
            fresh = Segment(self.directory, self.base_offset, file, is_active=False)
            for position, header in SegmentScan(file, 0, self.size, self.base_offset):
                if header.last_offset - self.base_offset > RELATIVE_OFFSET_MAX:
                    # End the index here. An index cannot express this offset, so the batch must be damaged.
                    # Readers will find the damage.
                    break
                fresh.note_batch(position, header.size, header.last_offset, header.max_timestamp, interval)
        finally:
            file.unpin()
        if self.is_removed:
            # The path may belong to another segment by now, so a file written here could damage that segment.
            raise self._removed()
        index = fresh.index if fresh.index is not None else SegmentIndex()
        self.max_timestamp_offset = fresh.max_timestamp_offset
        self.max_timestamp_ms = fresh.max_timestamp_ms
        self.bytes_since_index = fresh.bytes_since_index
        self.remove_index_files()
        self.index = index
        if not self.is_active:
            self.write_index()
        return index

    def rebuild_damaged_index(self, interval: int) -> None:
        """Rebuild the index and forget all remembered places, because one of them was found wrong."""
        self.forget_places()
        if not self.is_active:
            self._rebuild_in_time(interval)

    def newest_timestamp_ms(self, interval: int) -> int:
        """Return the newest timestamp in ms that the batch headers claim, or that a walk has found; -1 if
        there is none.
        """
        if self.max_timestamp_ms == UNKNOWN:
            self.load_index(interval)
        return self.max_timestamp_ms

    def write_index(self) -> None:
        """Append the new entries to the index files. A finished segment's time index also gets its last
        entry.

        The files are synced by `flush_index`, not here. If the disk lacks room, the segment continues without
        index files. Raises `DiskHung`.
        """
        index = self.index
        if index is None:
            index = self.index = SegmentIndex()
        if self.max_timestamp_ms >= 0 and self.size:
            index.append_time(self.max_timestamp_ms, self.max_timestamp_offset - self.base_offset)
        offsets_written, times_written = self.index_is_written
        offsets, times = len(index.offsets), len(index.times)
        if not self.is_active and offsets + times and (offsets, times) == self.index_is_written:
            return
        try:
            append_to(self.directory, self.name(INDEX_SUFFIX), index.offset_bytes(offsets_written, offsets))
            append_to(self.directory, self.name(TIME_INDEX_SUFFIX), index.time_bytes(times_written, times))
        except DiskHung:
            # Keep the files, because unlinking them would block until the device answers.
            raise
        except DiskRefused:
            self.remove_index_files()
            return
        self.index_is_written = (offsets, times)

    def flush_index(self) -> None:
        """Sync the index files (blocking). Missing files are rebuilt when they are needed."""
        for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
            sync_file(self.directory, self.name(suffix))
        if self.aborted is not None:
            self.aborted.sync()

    def remove_index_files(self) -> None:
        self.index_is_written = (0, 0)
        for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
            remove_if_present(self.directory, self.name(suffix))

    def grow_idle(self) -> None:
        """Close the file and drop the index of an inactive segment, if nothing has used it since the last
        call.
        """
        if self.uses == _USED:
            self.uses = _IDLE
        elif self.uses == _IDLE and not self.is_active and self._index_is_on_disk():
            self.index = self.recent = None
            if self.aborted is not None:
                self.aborted.unload()
            if self.file.rest():
                self.uses = _DROPPED

    def _index_is_on_disk(self) -> bool:
        index = self.index
        return index is None or self.index_is_written == (len(index.offsets), len(index.times))

    @property
    def needs_index(self) -> bool:
        """True if `newest_timestamp_ms` would have to read the index, and perhaps batches."""
        return self.max_timestamp_ms == UNKNOWN

    # --- finding places

    def position_of(self, offset: int, file: File, interval: int) -> tuple[int, int]:
        """Return (position, base offset) of the first batch whose last offset is `offset` or higher. Returns
        (size, -1) if the segment has no such batch. `file` is the segment's file, which the caller may have
        pinned.

        Raises:
            CorruptBatch: the file has no batches there.
        """
        read_offset, read_position = self.read_place
        if offset == read_offset:
            return read_position, offset
        bound_offset, bound_position = self.bound_place
        if offset == bound_offset:
            return bound_position, offset
        recent = self.recent
        if recent is not None and (position := recent.position_of(offset)) >= 0:
            return position, offset
        index = self.index
        if index is None:
            index = self.load_index(interval)
        entry, position = index.position_for_offset(offset - self.base_offset)
        first_max = self.base_offset + (index.offsets[entry] if entry >= 0 else RELATIVE_OFFSET_MAX)
        if read_offset < offset and read_position > position:
            position, first_max = read_position, RELATIVE_OFFSET_MAX + self.base_offset
        if bound_offset < offset and bound_position > position:
            position, first_max = bound_position, RELATIVE_OFFSET_MAX + self.base_offset
        try:
            return self._scan_for(offset, file, position, first_max)
        except CorruptBatch:
            if not position:
                raise
            reached("log.index_misled_a_search")
            self.rebuild_damaged_index(interval)
            return self._scan_for(offset, file, 0, RELATIVE_OFFSET_MAX + self.base_offset)

    def _scan_for(self, offset: int, file: File, position: int, first_max: int) -> tuple[int, int]:
        """Search for the batch that ends at `offset` or later. Begins at `position`, where a batch begins
        whose base offset is at most `first_max`.
        """
        size = self.size
        base_max = first_max
        chunk, chunk_start = b"", position
        while position < size:
            at = position - chunk_start
            if len(chunk) - at < HEAD_SIZE:
                chunk, chunk_start, at = file.pread(_HOP_BYTES, position), position, 0
                if len(chunk) < HEAD_SIZE:
                    raise CorruptBatch(f"{file.path} has no valid batch at position {position}")
            base_offset, length, _, magic, _, _, delta = HEAD.unpack_from(chunk, at)
            if (
                magic != MAGIC
                or length < HEADER_SIZE - SIZE_PREFIX
                or not self.base_offset <= base_offset <= base_max
                or delta < 0
            ):
                raise CorruptBatch(f"{file.path} has no valid batch at position {position}")
            if base_offset + delta >= offset:
                return position, base_offset
            position += length + SIZE_PREFIX
            base_max = base_offset + RELATIVE_OFFSET_MAX
        return size, -1

    def first_batch_end(self, position: int, file: File) -> tuple[int, int]:
        """Return (end position, next offset) of the batch at `position`. Raises `CorruptBatch`."""
        recent = self.recent
        if recent is not None and (found := recent.next_after(position)) is not None:
            return found
        _, next_offset, end = self._batch_end(position, file)
        return end, next_offset

    def _batch_end(self, position: int, file: File) -> tuple[int, int, int]:
        """Read (base offset, next offset, end position) of the batch at `position`. Raises `CorruptBatch`."""
        head = file.pread(HEAD_SIZE, position)
        if len(head) == HEAD_SIZE:
            base_offset, length, _, magic, _, _, delta = HEAD.unpack(head)
            end = position + length + SIZE_PREFIX
            if magic == MAGIC and length >= HEADER_SIZE - SIZE_PREFIX and delta >= 0 and end <= self.size:
                return base_offset, base_offset + delta + 1, end
        raise CorruptBatch(f"{file.path} has no valid batch at position {position}")

    def cut_at(self, start: int, limit: int, file: File, interval: int) -> tuple[int, int]:
        """Return (position, next offset) of the last batch boundary in `[start, limit]`. `start` is a
        boundary.

        Returns (start, -1) if the first batch ends beyond `limit`. Raises `CorruptBatch`.
        """
        recent = self.recent
        if recent is not None and (found := recent.cut_at(start, limit)) is not None:
            return found
        index = self.index
        if index is None:
            index = self.load_index(interval)
        try:
            return self._cut_from(max(index.position_floor(limit), start), start, limit, file)
        except CorruptBatch:
            self.rebuild_damaged_index(interval)
            return self._cut_from(start, start, limit, file)

    def _cut_from(self, position: int, start: int, limit: int, file: File) -> tuple[int, int]:
        next_offset = -1
        while position < self.size:
            base_offset, after, end = self._batch_end(position, file)
            if end > limit:
                return position, base_offset if position > start else -1
            position, next_offset = end, after
        return position, next_offset

    def note_read(self, next_offset: int, end: int) -> None:
        """Remember that a read has ended at position `end`, and that `next_offset` follows. Most readers
        continue there.
        """
        self.read_place = (next_offset, end)
        self.uses = _USED

    def note_bound(self, upper_bound: int, end: int) -> None:
        """Remember the position `end` of a read's upper bound, because the next read often has the same
        bound.
        """
        self.bound_place = (upper_bound, end)

    def forget_places(self) -> None:
        """Forget the remembered places; searches then begin at the start of the segment."""
        self.recent = None
        self.read_place = self.bound_place = (self.base_offset, 0)

    # --- the file, for other threads

    def flush(self, snapshot: str | None = None) -> None:
        """Sync the batches (blocking). For a finished segment, also sync its indexes and the producers'
        snapshot at its end.
        """
        self.needs_sync = False
        try:
            self.sync()
            if snapshot is not None:
                self.flush_index()
                sync_file(self.directory, snapshot)
        except DiskRefused:
            self.needs_sync = True
            raise

    def sync(self) -> None:
        """Make the batches durable (blocking). Safe in a worker while the loop closes or removes the file."""
        try:
            self.file.sync()
        except FileMissing:
            reached("log.sync_overtaken")
            # A missing file is no error if the segment was removed meanwhile. Retention or a truncation may
            # have removed it, or the log was closed.
            if not self.is_removed:
                raise

    def pinned_file(self) -> File:
        """Return the segment's file, pinned, for a reader in a worker thread. Raises `FileClosed` if the
        segment was removed.
        """
        file = self.file
        try:
            file.pin()
        except FileMissing:
            if self.is_removed:
                raise self._removed() from None
            raise
        return file

    def remove(self) -> None:
        """Mark the segment as removed from its log, and close its file; afterwards the caller renames or
        removes the files.

        This may run in the disk's thread while the loop closes the log. Even then the file is closed only
        once.
        """
        with _removing:
            was_removed, self.is_removed = self.is_removed, True
        if not was_removed:
            if self.aborted is not None:
                self.aborted.close()
            self.file.close()

    def _removed(self) -> FileClosed:
        return FileClosed(self.directory.path, self.file.path, "open", 0, "removed meanwhile")


_removing = threading.Lock()
"""The lock that is held for a moment while a segment is marked as removed."""


def _keep(index: SegmentIndex) -> None:
    """Do nothing. Called with a rebuilt index when the device answers late. By then the index files are
    written, and the caller no longer waits.
    """


_EMPTY = SegmentIndex()
"""An empty index that all active segments without entries share. It must stay empty."""
