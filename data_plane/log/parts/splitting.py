"""Splits a segment whose offsets are too far apart for its index (KAFKA-6264). An index has 31 bits for the
distance of an offset from the segment's base offset. Old versions of Kafka wrote such segments where
compaction had left few records. As in Kafka, they are split at a start. The names are those of a swap
(`parts/swap_files.py`), so the next start after a crash undoes or finishes the split:

1. The pieces are written as `.cleaned`, and synced.
2. They become `.swap`, in descending order of their offsets. While the piece with the lowest offsets still
   has its old name, a start undoes everything.
3. The segment's files are removed, and the pieces lose their suffix.
"""

from __future__ import annotations

from odradek.data_plane.log.log_config import LONG_MAX
from odradek.data_plane.log.parts.swap_files import begin_swap, put_in_order
from odradek.data_plane.log.segments.aborted_index import NONE_ABORTED, AbortedIndex
from odradek.data_plane.log.segments.file_names import CLEANED_SUFFIX, LOG_SUFFIX, TXN_INDEX_SUFFIX, file_name
from odradek.data_plane.log.segments.scan import SegmentScan
from odradek.data_plane.log.segments.segment import RELATIVE_OFFSET_MAX, Segment
from odradek.data_plane.log.segments.small_files import sync_file, write_whole
from odradek.env.ports import Dir

__all__ = ["reaches_too_far", "split_segment"]

_COPY_BYTES = 1 << 20


def reaches_too_far(segment: Segment, end_offset: int) -> bool:
    """True if the segment has a batch whose offset its index cannot express (blocking). The segment ends at
    or below `end_offset`.
    """
    limit = segment.base_offset + RELATIVE_OFFSET_MAX
    if end_offset - 1 <= limit:
        return False
    last_offset = segment.base_offset
    for _, header in SegmentScan(segment.file, 0, segment.size, segment.base_offset):
        last_offset = header.last_offset
    return last_offset > limit


def split_segment(directory: Dir, segment: Segment) -> list[int]:
    """Replace a segment by several segments (blocking). Returns their base offsets; an empty list if a batch
    of the segment is damaged.

    Raises `DamagedTransactionIndex`, `DiskError`.
    """
    pieces = _pieces(segment)
    aborted = NONE_ABORTED if segment.aborted is None else segment.aborted.load()
    ends = [base_offset for base_offset, _, _ in pieces[1:]]
    for (base_offset, start, stop), end_offset in zip(pieces, [*ends, LONG_MAX], strict=False):
        _copy(directory, segment, file_name(base_offset, LOG_SUFFIX) + CLEANED_SUFFIX, start, stop)
        markers = AbortedIndex()
        for entry in aborted:
            if base_offset <= entry.last_offset < end_offset:
                markers.append(entry)
        if markers:
            name = file_name(base_offset, TXN_INDEX_SUFFIX) + CLEANED_SUFFIX
            write_whole(directory, name, markers.encode())
            sync_file(directory, name)
    if not pieces:
        return []
    directory.sync()
    for base_offset, _, _ in reversed(pieces):
        begin_swap(directory, base_offset)
    put_in_order(directory, directory.list(), _undone)
    return [base_offset for base_offset, _, _ in pieces]


def _pieces(segment: Segment) -> list[tuple[int, int, int]]:
    """Return (base offset, begin, end) of each piece, the last two as positions in the file. The list is
    empty if a batch is damaged.
    """
    found: list[tuple[int, int, int]] = []
    base_offset, start = segment.base_offset, 0
    scan = SegmentScan(segment.file, 0, segment.size, base_offset, check_crc=True)
    for position, header in scan:
        if header.last_offset - base_offset > RELATIVE_OFFSET_MAX:
            found.append((base_offset, start, position))
            base_offset, start = header.base_offset, position
    return [] if scan.damage is not None else [*found, (base_offset, start, segment.size)]


def _copy(directory: Dir, segment: Segment, name: str, start: int, stop: int) -> None:
    """Copy a part of a segment to a file of its own, and sync that file."""
    file = directory.open(name, create=True)
    try:
        if file.size:
            file.truncate(0)
        for at in range(start, stop, _COPY_BYTES):
            file.append(segment.file.pread(min(_COPY_BYTES, stop - at), at))
        file.sync()
    finally:
        file.close()


def _undone(name: str, reason: str) -> None:
    """Raise an error, so that the segment is not replaced. Called if a piece on the disk differs from the
    bytes that were just written.
    """
    raise AssertionError(f"{name}: {reason}")
