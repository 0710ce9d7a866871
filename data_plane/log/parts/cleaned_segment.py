"""Writes a cleaned segment, which will replace its source segments.

Its files lie beside those of the sources, with names that end in `.cleaned`. Every start of the node removes
such files. A complete cleaned segment is synced. Then a swap (`segment_list`, `swap_files`) may put it into
the log. A cleaned segment ends at the same offset as its sources. If cleaning has removed the last batch of
the sources, an empty batch takes its place. So there are no gaps between segments. After a crash, the cleaned
file alone shows which segments it replaces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from odradek.data_plane.log.segments.aborted_file import AbortedFile
from odradek.data_plane.log.segments.aborted_index import AbortedIndex, AbortedTransaction
from odradek.data_plane.log.segments.file_names import (
    CLEANED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    file_name,
)
from odradek.data_plane.log.segments.segment import RELATIVE_OFFSET_MAX, Segment
from odradek.data_plane.log.segments.segment_index import SegmentIndex
from odradek.data_plane.log.segments.small_files import remove_if_present, sync_file, write_whole
from odradek.env.pausing import pause
from odradek.env.ports import Dir, File
from odradek.wire.batches.batch_header import BatchHeader, Buffer, iter_batches
from odradek.wire.batches.records import empty_batch

_SEGMENT_BYTES_MAX = (1 << 31) - 1
"""The largest size of a segment in bytes, because positions in an index have 31 bits."""
_SUFFIXES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)


class CleaningAborted(Exception):
    """Raised if the cleaning pass must end, because its log was truncated, closed or given another policy.
    The files that the pass has written are not needed.
    """


class CleanedSegment:
    """A file of cleaned batches and its indexes (blocking, for a worker). Call `append` for all batches, then
    `finish`. To give the segment up, call `discard`.
    """

    __slots__ = (
        "_abort_reason",
        "_directory",
        "_interval",
        "_is_given_up",
        "is_finished",
        "is_handed_over",
        "next_offset",
        "segment",
    )

    def __init__(
        self,
        directory: Dir,
        base_offset: int,
        index_interval_bytes: int,
        abort_reason: Callable[[], str | None],
    ) -> None:
        """Create an empty file. `abort_reason` returns the reason why the pass must end, or None.

        Raises `CleaningAborted`, `DiskError`.
        """
        self._directory = directory
        self._interval = index_interval_bytes
        self._abort_reason = abort_reason
        self.next_offset = base_offset
        self.is_finished = False
        self._is_given_up = False
        self.is_handed_over = False
        """True from the swap on. The files then belong to the log, even if the device has not answered yet."""
        self._check_wanted()
        file = directory.open(file_name(base_offset, LOG_SUFFIX) + CLEANED_SUFFIX, create=True)
        if file.size:
            file.truncate(0)
        # Pin the file, so that its descriptor stays open. The file cannot be opened by its path again,
        # because the swap changes the path.
        file.pin()
        self.segment = Segment(directory, base_offset, file, is_active=False)

    @property
    def base_offset(self) -> int:
        return self.segment.base_offset

    @property
    def size(self) -> int:
        return self.segment.size

    def append(self, batches: Buffer) -> None:
        """Append whole batches with ascending offsets. Raises `CleaningAborted`, `DiskError`."""
        self._check_wanted()
        segment = self.segment
        found = list(iter_batches(batches))
        next_offset = self.next_offset
        for _, header in found:
            if header.base_offset < next_offset or header.last_offset < header.base_offset:
                raise AssertionError(
                    f"{segment.file.path}: a batch with the offsets {header.base_offset} to "
                    f"{header.last_offset} cannot be written after offset {next_offset}"
                )
            next_offset = header.next_offset
        if sum(header.size for _, header in found) != len(batches):
            raise AssertionError(
                f"{segment.file.path}: {len(batches)} bytes to be written do not end with a whole batch"
            )
        if (
            next_offset - 1 - segment.base_offset > RELATIVE_OFFSET_MAX
            or segment.size + len(batches) > _SEGMENT_BYTES_MAX
        ):
            raise AssertionError(
                f"{segment.file.path}: a segment cannot hold {segment.size + len(batches)} bytes with "
                f"offsets up to {next_offset}"
            )
        pause()
        position = segment.file.append(batches)
        if position != segment.size:
            raise AssertionError(
                f"{segment.file.path}: batches were written at position {position} instead of "
                f"position {segment.size}"
            )
        for at, header in found:
            segment.note_batch(
                position + at, header.size, header.last_offset, header.max_timestamp, self._interval
            )
        self.next_offset = next_offset

    def finish(self, last: BatchHeader | None, aborted: Iterable[AbortedTransaction]) -> None:
        """Complete the file, so that it ends at the offset where its sources end. Syncs it and its indexes.

        `last` is the header of the sources' last batch; None if they have no batch. `aborted` are the aborted
        transactions for the new transaction index. Transactions without remaining batches must be left out.
        If such a transaction had an entry, a reader would drop later records of the same producer. Raises
        `CleaningAborted`, `DiskError`.
        """
        if last is not None and self.next_offset < last.next_offset:
            self.append(empty_batch(last))
        elif last is not None and self.next_offset > last.next_offset:
            raise AssertionError(
                f"{self.segment.file.path}: the cleaned segment ends at offset {self.next_offset}, but "
                f"its source segments end at {last.next_offset}"
            )
        self._check_wanted()
        pause()
        segment = self.segment
        index = segment.index
        if index is None:
            index = segment.index = SegmentIndex()
        if segment.max_timestamp_ms >= 0 and segment.size:
            index.append_time(segment.max_timestamp_ms, segment.max_timestamp_offset - segment.base_offset)
        offsets, times = len(index.offsets), len(index.times)
        self._write(INDEX_SUFFIX, index.offset_bytes(0, offsets))
        self._write(TIME_INDEX_SUFFIX, index.time_bytes(0, times))
        transactions = AbortedIndex()
        for entry in aborted:
            transactions.append(entry)
        if transactions:
            self._write(TXN_INDEX_SUFFIX, transactions.encode())
            segment.aborted = AbortedFile(self._directory, segment.base_offset)
        segment.file.sync()
        self._check_wanted()
        self._directory.sync()
        segment.index_is_written = (offsets, times)
        self.is_finished = True

    def _write(self, suffix: str, data: bytes) -> None:
        self._check_wanted()
        name = self.segment.name(suffix) + CLEANED_SUFFIX
        write_whole(self._directory, name, data)
        sync_file(self._directory, name)

    def go_live(self, file: File) -> None:
        """Use `file` for all reads from now on, because the swap is done. `file` is the same file under its
        final name.
        """
        written, self.segment.file = self.segment.file, file
        written.unpin()
        written.close()

    def discard(self) -> None:
        """Close the file, and remove all files that were written. If that fails, call it again. Raises
        `DiskError`.
        """
        if self.is_handed_over:
            return
        self.give_up()
        for suffix in _SUFFIXES:
            name = self.segment.name(suffix)
            remove_if_present(self._directory, name + CLEANED_SUFFIX)
            remove_if_present(self._directory, name + SWAP_SUFFIX)

    def give_up(self) -> None:
        """Close the file, and leave it on the disk."""
        if not self._is_given_up:
            self._is_given_up = True
            self.segment.file.unpin()
            self.segment.remove()

    def _check_wanted(self) -> None:
        reason = self._abort_reason()
        if reason is not None:
            raise CleaningAborted(reason)
