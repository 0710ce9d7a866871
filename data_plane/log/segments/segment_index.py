"""The sparse indexes of one segment, in memory and in Kafka's file formats.

An `.index` file holds pairs of big-endian int32 (relative offset, position). The batch that begins at
`position` ends with this offset, which is relative to the segment's base offset. A `.timeindex` file holds
(timestamp int64, relative offset int32). No record up to that offset is newer than the timestamp. Both ascend
strictly, so a lookup is a bisection.

In memory they are four arrays. A value is appended before its key, so a reader in another thread finds a
value for every key. Kafka preallocates the index files of the active segment. If Kafka has not been stopped
cleanly, zeros follow the entries in these files. The zeros are cut off here.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right

from odradek.data_plane.log.log_config import OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES

_SWAP = sys.byteorder == "little"


class DamagedIndex(Exception):
    """Raised if the content of an index file is impossible. The caller then rebuilds the index from the
    segment.
    """


class SegmentIndex:
    """The offset index and the time index of one segment. Offsets are relative to the segment's base offset."""

    __slots__ = ("offsets", "positions", "time_offsets", "times")

    def __init__(self) -> None:
        self.offsets = array("i")
        self.positions = array("i")
        self.times = array("q")
        self.time_offsets = array("i")

    def append(self, offset: int, position: int) -> None:
        """Add an offset entry for a batch after all others. Raises `AssertionError` if the position does not
        ascend.
        """
        if self.positions and position <= self.positions[-1]:
            raise AssertionError(
                f"an index entry for position {position} cannot follow the entry for position "
                f"{self.positions[-1]}"
            )
        self.positions.append(position)
        self.offsets.append(offset)

    def append_time(self, timestamp_ms: int, offset: int) -> None:
        """Add a time entry if its timestamp is above the last entry's (Kafka's `maybeAppend`)."""
        times = self.times
        if timestamp_ms > (times[-1] if times else -1):
            self.time_offsets.append(offset)
            times.append(timestamp_ms)

    def position_for_offset(self, offset: int) -> tuple[int, int]:
        """Return (index of an entry, position) from which to scan for `offset`. Returns (-1, 0) for an offset
        before the first entry.

        The entry is the greatest entry that is not above `offset`. The batch at its position ends at the
        entry's offset. So `offset` lies in this batch or in a later one.
        """
        entry = bisect_right(self.offsets, offset) - 1
        return (entry, self.positions[entry]) if entry >= 0 else (-1, 0)

    def position_floor(self, position: int) -> int:
        """Return the greatest indexed position that is at most `position`; 0 before the first entry."""
        entry = bisect_right(self.positions, position) - 1
        return self.positions[entry] if entry >= 0 else 0

    def offset_for_timestamp(self, timestamp_ms: int) -> int:
        """Return a relative offset up to which no record is newer than `timestamp_ms`; 0 before the first
        entry.

        It is the offset of the greatest entry whose timestamp is at most `timestamp_ms` (Kafka's rule).
        """
        entry = bisect_right(self.times, timestamp_ms) - 1
        return self.time_offsets[entry] if entry >= 0 else 0

    def truncate(self, offset: int, size: int) -> None:
        """Remove the entries whose offset is at least `offset`, or whose position is at least `size`."""
        kept = min(bisect_right(self.offsets, offset - 1), bisect_right(self.positions, size - 1))
        del self.offsets[kept:]
        del self.positions[kept:]
        kept = bisect_right(self.time_offsets, offset - 1)
        del self.times[kept:]
        del self.time_offsets[kept:]

    def offset_bytes(self, start: int, end: int) -> bytes:
        """Encode entries `[start, end)` as in an `.index` file."""
        words = array("i", bytes(OFFSET_ENTRY_BYTES * (end - start)))
        words[0::2] = self.offsets[start:end]
        words[1::2] = self.positions[start:end]
        if _SWAP:
            words.byteswap()
        return words.tobytes()

    def time_bytes(self, start: int, end: int) -> bytes:
        """Encode entries `[start, end)` as in a `.timeindex` file."""
        times, offsets = self.times[start:end], self.time_offsets[start:end]
        if _SWAP:
            times.byteswap()
            offsets.byteswap()
        halves = array("i", times.tobytes())
        words = array("i", bytes(TIME_ENTRY_BYTES * (end - start)))
        words[0::3] = halves[0::2]
        words[1::3] = halves[1::2]
        words[2::3] = offsets
        return words.tobytes()

    @classmethod
    def from_bytes(cls, offset_bytes: bytes, time_bytes: bytes, log_bytes: int) -> SegmentIndex:
        """Decode the contents of both index files. The `.log` file of the segment has `log_bytes` bytes.

        Raises:
            DamagedIndex: entries that are cut, do not ascend, or point beyond the segment's end.
        """
        index = cls()
        offset_bytes = _without_padding(offset_bytes, OFFSET_ENTRY_BYTES)
        time_bytes = _without_padding(time_bytes, TIME_ENTRY_BYTES)
        if len(offset_bytes) % OFFSET_ENTRY_BYTES or len(time_bytes) % TIME_ENTRY_BYTES:
            raise DamagedIndex("the last index entry is cut off")
        words = array("i", offset_bytes)
        if _SWAP:
            words.byteswap()
        index.offsets, index.positions = words[0::2], words[1::2]
        words = array("i", time_bytes)
        halves = array("i", bytes(8 * (len(words) // 3)))
        halves[0::2], halves[1::2] = words[0::3], words[1::3]
        index.times, index.time_offsets = array("q", halves.tobytes()), words[2::3]
        if _SWAP:
            index.times.byteswap()
            index.time_offsets.byteswap()
        for column in (index.offsets, index.positions, index.times):
            if len(column) > 1 and column.tolist() != sorted(set(column)):
                raise DamagedIndex("the index entries do not ascend")
        if index.time_offsets.tolist() != sorted(index.time_offsets):
            raise DamagedIndex("the offsets in the time index do not ascend")
        if index.offsets and (index.offsets[0] < 0 or index.positions[0] <= 0):
            raise DamagedIndex("the first index entry points at the segment's start, but must be after it")
        if index.positions and index.positions[-1] >= log_bytes:
            raise DamagedIndex(
                f"the last index entry points at position {index.positions[-1]}, outside the segment's "
                f"{log_bytes} bytes"
            )
        if index.times and (index.times[0] < 0 or index.time_offsets[0] < 0):
            raise DamagedIndex("the time index has a negative timestamp or offset")
        return index


def _without_padding(data: bytes, entry_bytes: int) -> bytes:
    """Remove the zeros that Kafka has preallocated: whole entries of zeros at the end.

    One entry of zeros alone is no padding. In a time index it says that the first record has timestamp 0.
    """
    if len(data) == entry_bytes or not data.endswith(bytes(entry_bytes)):
        return data
    return data[: -(-len(data.rstrip(b"\0")) // entry_bytes) * entry_bytes]
