"""A log's segments: finds the segment for a read, decides when a new one must begin, adds, removes and replaces
segments, makes empty files.

The list is replaced as a whole, so a reader in a worker keeps the list that it has read. Its last segment is
the active one. A segment begins at the offset where its predecessor ends. There is one exception. Compaction
on the leader may leave a gap between offsets that is too wide for one segment. A follower's log then has this
gap between two segments. To remove a segment, its files first get the suffix `.deleted`, and are removed
later. A reader that has pinned such a file can continue to read it. A reader that opens the file too late
finds that it is missing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeVar

from odradek.data_plane.log.log_config import LogConfig
from odradek.data_plane.log.log_types import METADATA_FILE_NAME, LogRead
from odradek.data_plane.log.parts.cleaned_segment import CleanedSegment
from odradek.data_plane.log.parts.log_home import LogHome, half_done
from odradek.data_plane.log.parts.log_offsets import LogOffsets
from odradek.data_plane.log.parts.swap_files import begin_swap, end_swap
from odradek.data_plane.log.segments.file_names import (
    DELETED_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    SNAPSHOT_SUFFIX,
    file_name,
)
from odradek.data_plane.log.segments.segment import Segment
from odradek.data_plane.log.segments.small_files import remove_if_present, sync_file
from odradek.env.ports import DiskError, DiskFull, DiskHung, DiskRefused, File, FileClosed, FileMissing
from odradek.named_states import reached
from odradek.wire.errors import ErrorCode, KafkaError

T = TypeVar("T")


_EMPTY_SUFFIX = ".empty.deleted"
"""The suffix of an empty new segment's file before `put_in_place` gives the file its final name. Every start
removes files with this suffix. (The cleaner has another suffix, `.cleaned`.)
"""


class SegmentList:
    """The segments of one log. Only the loop changes the list."""

    __slots__ = ("active", "durable_base_offset", "entry_is_dirty", "home", "segments")

    def __init__(self, home: LogHome, segments: Sequence[Segment], *, entry_is_dirty: bool) -> None:
        self.home = home
        self.entry_is_dirty = entry_is_dirty
        """True if files have been created, renamed or removed since the directory was last synced."""
        self.segments = tuple(segments)
        self.active = segments[-1]
        self.durable_base_offset = 0 if entry_is_dirty else self.base_offset
        """The base offset of the first segment at the last sync of the directory. After a loss of power, the segments
        that were removed since then may be there again.
        """
        self.check_order()

    def _take(self, segments: tuple[Segment, ...]) -> None:
        self.segments = segments
        self.active = segments[-1]

    def check_order(self) -> None:
        """Raise `AssertionError` unless each segment begins after the one before, and only the last segment
        is active.
        """
        for segment, following in pairwise(self.segments):
            if segment.base_offset >= following.base_offset or segment.is_active:
                raise AssertionError(
                    f"{self.home}: segment {following.base_offset} follows {segment.base_offset}"
                    f"{', which is still appended to' if segment.is_active else ''}"
                )

    def check_end(self, log_end_offset: int) -> None:
        """Raise `AssertionError` unless the log's end lies in the active segment, and that segment's file
        ends there.

        The file of an offline log may have any size, because undoing a failed append may have failed as well.
        """
        if self.home.offline:
            return
        active = self.active
        if active.size and active.base_offset >= log_end_offset:
            raise AssertionError(
                f"{self.home}: the log cannot end at offset {log_end_offset}: its active segment "
                f"begins at {active.base_offset} and has {active.size} bytes"
            )
        active.check_size()

    # --- searches in the list

    @property
    def base_offset(self) -> int:
        """The base offset of the first segment."""
        return self.segments[0].base_offset

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self.segments)

    def index_of(self, offset: int) -> int:
        """Return the index in the list of the segment that contains `offset`; -1 below the first segment."""
        return bisect_right(self.segments, offset, key=_base_offset) - 1

    def look(self, read: Callable[[], T]) -> T:
        """Return the result of `read` (in a worker). If the loop removes segments meanwhile, `read` is called
        again.

        Raises `FileClosed` if the log was closed.
        """
        while True:
            listed = self.segments
            try:
                return read()
            except FileClosed:
                if self.home.is_closed or self.segments is listed:
                    raise

    def passes_segment_end(self, offset: int, upper_bound: int) -> bool:
        """True if a segment begins above `offset`, and at or below `upper_bound`."""
        if offset >= self.active.base_offset:
            return False
        segments = self.segments
        return segments[bisect_right(segments, offset, key=_base_offset)].base_offset <= upper_bound

    def read(
        self, offsets: LogOffsets, offset: int, max_bytes: int, upper_bound: int, interval: int, min_one: bool
    ) -> LogRead:
        """Read as `PartitionLog.read` does, with the same errors. `offsets` are the offsets that bound the
        log. The index has an entry for each `interval` bytes of batches.
        """
        end_offset = offsets.log_end_offset
        if self.home.offline:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the log directory of this partition is offline")
        if offset < offsets.log_start_offset or offset > end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is outside the log, which has {offsets.log_start_offset} to {end_offset}",
            )
        if upper_bound > end_offset:
            upper_bound = end_offset
        if offset >= upper_bound or (max_bytes <= 0 and not min_one):
            return LogRead(None, 0, 0, offset)
        segments = self.segments
        at = len(segments) - 1
        segment = segments[at]
        if offset < segment.base_offset:
            at = bisect_right(segments, offset, key=_base_offset) - 1
            segment = segments[at]
        # Pin the file before using it, because the loop may close the file while a worker reads it.
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
            segment_end_offset = offsets.log_end_offset if is_last else segments[at + 1].base_offset
            if upper_bound >= segment_end_offset:
                end, next_offset = segment.size, segment_end_offset
            else:
                end, _ = segment.position_of(upper_bound, file, interval)
                next_offset = upper_bound
                segment.note_bound(upper_bound, end)
            if end - start > max_bytes:
                end, next_offset = segment.cut_at(start, start + max_bytes, file, interval)
                if next_offset < 0:
                    if not min_one:
                        return LogRead(None, 0, 0, offset)
                    end, next_offset = segment.first_batch_end(start, file)
            if end <= start:
                return LogRead(None, 0, 0, offset)
            segment.note_read(next_offset, end)
            is_handed_on = True
            return LogRead(file, start, end - start, next_offset)
        finally:
            if not is_handed_on:
                file.unpin()

    def read_bytes(
        self, offsets: LogOffsets, offset: int, max_bytes: int, upper_bound: int, interval: int, min_one: bool
    ) -> bytes:
        """Read the bytes of the range that `read` finds (in a worker). Raises the same errors, and
        `FileClosed` if the log was closed.
        """

        def read() -> bytes:
            found = self.read(offsets, offset, max_bytes, upper_bound, interval, min_one)
            if found.file is None:
                return b""
            try:
                return found.file.pread(found.count, found.position)
            finally:
                found.release()

        return self.look(read)

    # --- the active segment

    def must_roll(self, config: LogConfig, max_timestamp_ms: int, now_ms: int) -> bool:
        """True if a new segment must begin, because the active one is too old or its index is full (Kafka's
        `shouldRoll`). The age is the difference of the records' timestamps.
        """
        active = self.active
        first = active.first_timestamp_ms
        waited = max_timestamp_ms - first if first >= 0 else now_ms - active.created_ms
        if waited > config.roll_ms - active.jitter_ms:
            return True
        index = active.index
        return index is not None and (
            len(index.offsets) >= config.offset_index_entries_max
            or len(index.times) >= config.time_index_entries_max
        )

    def undo_append(self, size: int, error: DiskError) -> None:
        """Remove the bytes of a failed append from the file. If that fails as well, the directory goes
        offline.
        """
        if isinstance(error, DiskRefused):
            reached("log.append_undone")
            self.home.refused(error)
            file = self.active.file
            try:
                if file.size > size:
                    self.home.change(lambda: file.truncate(size), _nothing_more)
                return
            except DiskHung as failure:
                reached("log.append_undone_late")
                # Report this failure only after the attempt to cut the file, because the owner's reaction may
                # use this file, too.
                self.home.refused(failure)
                return
            except DiskError as failure:
                error = failure
        self.home.give_up(error)

    # --- changes

    def create(self, base_offset: int, now_ms: int) -> Segment:
        """Create an empty segment on disk, which is not in the list yet (blocking). Raises `DiskError`."""
        file = self.home.directory.open(file_name(base_offset, LOG_SUFFIX), create=True)
        self.mark_dirty()
        if file.size:
            file.truncate(0)
        segment = Segment(self.home.directory, base_offset, file, is_active=True)
        segment.begin(now_ms)
        return segment

    def add(self, fresh: Segment, log_end_offset: int) -> None:
        """Add the new segment as the active one, and finish the previous one.

        Raises `AssertionError` if the new segment begins below the log's end, or not after the previous one.
        """
        old = self.active
        self.check_end(log_end_offset)
        if not old.base_offset < fresh.base_offset or fresh.base_offset < log_end_offset:
            raise AssertionError(
                f"{self.home}: the new segment {fresh.base_offset} cannot follow segment "
                f"{old.base_offset}, because the log ends at offset {log_end_offset}"
            )
        old.finish()
        self._take((*self.segments, fresh))

    def keep_first(self, count: int) -> tuple[Segment, ...]:
        """Remove all but the first `count` segments from the list. Returns the removed segments, the newest
        first; the caller must mark their files as deleted.
        """
        doomed = self.segments[: count - 1 : -1]
        self._take(self.segments[:count])
        self.check_order()
        return doomed

    def drop_first(self, count: int) -> tuple[Segment, ...]:
        """Remove the oldest `count` segments from the list, but never the active one. Returns them; the
        caller must mark their files as deleted.
        """
        if not count < len(self.segments):
            raise AssertionError(f"{self.home}: {count} of {len(self.segments)} segments cannot be removed")
        doomed = self.segments[:count]
        self._take(self.segments[count:])
        return doomed

    def restore_first(self, doomed: tuple[Segment, ...]) -> None:
        """Put segments that `drop_first` has removed back into the list. Their files are unchanged."""
        self._take((*doomed, *self.segments))
        self.check_order()

    def mark_deleted(self, doomed: tuple[Segment, ...]) -> list[str]:
        """Rename the files of removed segments, in the order given (blocking). Returns the new names, for
        `let_go`.

        Raises `DiskError`.
        """
        renamed: list[str] = []
        for segment in doomed:
            segment.remove()
            renamed += self._rename_deleted(segment, SEGMENT_SUFFIXES)
        return renamed

    def let_go(self, renamed: list[str]) -> None:
        """Request the later removal of the files with these names."""
        self.mark_dirty()
        self.home.remove_later(renamed)

    def _rename_deleted(self, segment: Segment, suffixes: tuple[str, ...]) -> list[str]:
        """Rename files of a segment, so that they are removed later. Returns the new names."""
        directory = self.home.directory
        renamed = []
        for suffix in suffixes:
            name = segment.name(suffix)
            try:
                directory.rename(name, name + DELETED_SUFFIX)
            except FileMissing:
                continue
            except DiskFull:
                reached("log.removed_for_lack_of_room")
                # The disk has no room for the longer name, so remove the file at once. That makes room.
                # Readers that have opened the file can still read it.
                remove_if_present(directory, name)
                continue
            renamed.append(name + DELETED_SUFFIX)
        return renamed

    def replace(
        self, sources: tuple[Segment, ...], cleaned: CleanedSegment, doomed: Callable[[list[str]], None]
    ) -> bool:
        """Replace the sources by a finished cleaned segment. `doomed` is called with the names of the files
        that can then be removed.

        Returns False if the list no longer has exactly these sources in a row. In this case nothing has
        changed.

        Raises:
            DiskHung: the swap continues if `cleaned.is_handed_over` is true; otherwise nothing has changed.
            DiskRefused: nothing has changed.
            DiskError: the swap may have begun; the directory must go offline, and the next start finishes it.
        """
        at = self.index_of(sources[0].base_offset)
        after = at + len(sources)
        if at < 0 or self.segments[at:after] != sources:
            return False
        if not cleaned.is_finished or cleaned.base_offset != sources[0].base_offset or sources[-1].is_active:
            raise AssertionError(
                f"{self.home}: the cleaned segment {cleaned.base_offset} cannot replace the segments "
                f"{sources[0].base_offset} to {sources[-1].base_offset}"
            )
        if cleaned.next_offset > self.segments[after].base_offset:
            raise AssertionError(
                f"{self.home}: the cleaned segment {cleaned.base_offset} ends at offset "
                f"{cleaned.next_offset}, after the beginning of the next segment"
            )
        fresh = cleaned.segment
        fresh.begin(sources[0].created_ms)
        # The producer snapshot at the end of the last source may still need a sync, so keep the mark for it.
        fresh.needs_sync = sources[-1].needs_sync
        swapped = (*self.segments[:at], fresh, *self.segments[after:])

        def work() -> tuple[list[str], File]:
            return self._swap(sources, cleaned, swapped)

        def finish(done: tuple[list[str], File]) -> None:
            renamed, file = done
            cleaned.go_live(file)
            self.mark_dirty()
            doomed(renamed)

        def leave(done: tuple[list[str], File]) -> None:
            cleaned.give_up()
            done[1].close()

        cleaned.is_handed_over = True
        try:
            self.home.change(work, finish, leave)
        except DiskError as error:
            cleaned.is_handed_over = isinstance(error, DiskHung) and error.goes_on
            raise
        return True

    def _swap(
        self, sources: tuple[Segment, ...], cleaned: CleanedSegment, swapped: tuple[Segment, ...]
    ) -> tuple[list[str], File]:
        """Swap the files (blocking). Returns the names of files that can be removed, and the opened file of
        the cleaned segment. Raises `DiskError`.
        """
        directory = self.home.directory
        begin_swap(directory, cleaned.base_offset)
        renamed: list[str] = []
        with half_done():
            # Replace the list before the files are renamed. A reading worker sees the old list or the new
            # one, and can read all segments of either. It reads the new segment through the descriptor that
            # wrote it. Both lists have the same records, so the loop may see the new list at any time.
            self._take(swapped)
            self.check_order()
            for segment in sources:
                segment.remove()
                # Keep the snapshot of the first source, because it has the producer state at the start of the
                # cleaned segment.
                keeps_snapshot = segment is sources[0]
                suffixes = tuple(
                    suffix
                    for suffix in SEGMENT_SUFFIXES
                    if not (keeps_snapshot and suffix == SNAPSHOT_SUFFIX)
                )
                renamed += self._rename_deleted(segment, suffixes)
            end_swap(directory, cleaned.base_offset)
            return renamed, directory.open(cleaned.segment.name(LOG_SUFFIX))

    def make_empty(self, base_offset: int) -> None:
        """Create the file of an empty segment, under a temporary name until `put_in_place`. Raises
        `DiskError`.
        """
        file = self.home.directory.open(file_name(base_offset, LOG_SUFFIX) + _EMPTY_SUFFIX, create=True)
        try:
            if file.size:
                file.truncate(0)
        finally:
            file.close()

    def put_in_place(self, base_offset: int, created_ms: int, jitter_ms: int = 0) -> Segment:
        """Give the file of `make_empty` its final name (blocking), and return its segment. Raises
        `DiskError`.
        """
        directory = self.home.directory
        name = file_name(base_offset, LOG_SUFFIX)
        directory.rename(name + _EMPTY_SUFFIX, name)
        fresh = Segment(directory, base_offset, directory.open(name), is_active=True)
        fresh.begin(created_ms, jitter_ms)
        return fresh

    def replace_active(self, fresh: Segment) -> None:
        """Replace the active segment by an empty one with the same base offset."""
        if fresh.base_offset != self.active.base_offset or fresh.size:
            raise AssertionError(
                f"{self.home}: segment {fresh.base_offset} of {fresh.size} bytes is not an empty "
                f"segment that can replace segment {self.active.base_offset}"
            )
        self._take((*self.segments[:-1], fresh))

    def replace_all(self, fresh: Segment) -> None:
        """Replace the whole list by a single segment."""
        self._take((fresh,))

    def write_indexes(self) -> None:
        """Write the new entries of all indexes to their files, so that the next start need not derive them
        (blocking). Raises `DiskError`.
        """
        for segment in self.segments:
            if segment.size and (segment.is_active or segment.index is not None):
                segment.write_index()
        active = self.active
        if active.aborted is not None and active.aborted.write():
            active.flush_index()
            self.mark_dirty()

    # --- the directory's entries

    def mark_dirty(self) -> None:
        """Record that the directory's entries have changed since its last sync."""
        self.entry_is_dirty = True

    def sync_topic_id(self) -> None:
        """Sync the file with the topic id, before records of the log are synced (blocking). Raises
        `DiskError`.

        Kafka writes `partition.metadata` to the device before the first append.
        """
        if self.entry_is_dirty:
            sync_file(self.home.directory, METADATA_FILE_NAME)

    def sync_entry(self) -> None:
        """Sync the directory's entries, if they have changed since the last sync (blocking). Raises
        `DiskError`.
        """
        if self.entry_is_dirty:
            self.entry_is_dirty = False
            base_offset = self.base_offset
            try:
                sync_file(self.home.directory, METADATA_FILE_NAME)
                self.home.directory.sync()
                self.home.sync_entry()
            except DiskRefused:
                self.entry_is_dirty = True
                raise
            self.durable_base_offset = base_offset


def _nothing_more(done: None) -> None:
    """Do nothing after a change of files that leaves the list as it is."""


def _base_offset(segment: Segment) -> int:
    return segment.base_offset
