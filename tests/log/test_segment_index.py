"""The sparse indexes of a segment: lookups, file formats, Kafka's padding, and damage."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.data_plane.log.segments.segment_index import DamagedIndex, SegmentIndex

LOG_BYTES = 1 << 30
ascending = st.lists(st.integers(1, LOG_BYTES - 1), unique=True, max_size=30).map(sorted)


def built(offsets: list[int], positions: list[int], times: list[int]) -> SegmentIndex:
    index = SegmentIndex()
    for offset, position in zip(offsets, positions, strict=False):
        index.append(offset, position)
    for at, timestamp in enumerate(times):
        index.append_time(timestamp, at // 2)
    return index


@given(ascending, ascending, st.lists(st.integers(1, 1 << 60), unique=True, max_size=30).map(sorted))
def test_files_are_read_as_they_were_written(
    offsets: list[int], positions: list[int], times: list[int]
) -> None:
    """Entries are big-endian (int32, int32) and (int64, int32).

    They are read back when written in parts, and with Kafka's padding.
    """
    index = built(offsets, positions, times)
    count = len(index.offsets)
    data = index.offset_bytes(0, count // 2) + index.offset_bytes(count // 2, count)
    time_data = index.time_bytes(0, len(times))
    assert data == b"".join(
        struct.pack(">ii", offset, position) for offset, position in zip(offsets, positions, strict=False)
    )
    assert time_data == b"".join(struct.pack(">qi", timestamp, at // 2) for at, timestamp in enumerate(times))
    for padding in (0, 1 if data and time_data else 2, 50):
        again = SegmentIndex.from_bytes(data + bytes(8 * padding), time_data + bytes(12 * padding), LOG_BYTES)
        assert (again.offsets, again.positions) == (index.offsets, index.positions)
        assert (again.times, again.time_offsets) == (index.times, index.time_offsets)


def test_the_first_timestamp_may_be_zero() -> None:
    """A file of one entry has no padding, so its entry counts even if it is all zeros: timestamp 0, first offset."""
    index = built([1, 2], [78, 156], [0])
    again = SegmentIndex.from_bytes(index.offset_bytes(0, 2), index.time_bytes(0, 1), LOG_BYTES)
    assert (list(again.times), list(again.time_offsets)) == ([0], [0])


@given(ascending, st.integers(0, LOG_BYTES))
def test_lookups_find_the_greatest_entry_not_above(offsets: list[int], asked: int) -> None:
    """A lookup by offset, position or timestamp finds the greatest entry that is not above the given number."""
    index = built(offsets, offsets, offsets)
    below = [offset for offset in offsets if offset <= asked]
    assert index.position_for_offset(asked) == ((len(below) - 1, below[-1]) if below else (-1, 0))
    assert index.position_floor(asked) == (below[-1] if below else 0)
    assert index.offset_for_timestamp(asked) == ((len(below) - 1) // 2 if below else 0)


@given(ascending, st.integers(0, LOG_BYTES), st.integers(1, LOG_BYTES))
def test_truncation_keeps_what_lies_before(offsets: list[int], offset: int, size: int) -> None:
    """A truncation removes all entries of later offsets or positions."""
    index = built(offsets, offsets, offsets)
    index.truncate(offset, size)
    kept = [entry for entry in offsets if entry < offset and entry < size]
    assert index.offsets.tolist() == index.positions.tolist() == kept
    assert all(entry < offset for entry in index.time_offsets)


def test_time_entries_only_ascend() -> None:
    """Only a newer timestamp adds an entry to the time index, as Kafka's maybeAppend."""
    index = SegmentIndex()
    for timestamp, offset in ((5, 0), (5, 1), (3, 2), (9, 3), (-1, 4)):
        index.append_time(timestamp, offset)
    assert list(zip(index.times, index.time_offsets, strict=True)) == [(5, 0), (9, 3)]


@pytest.mark.parametrize(
    ("offsets", "times"),
    [
        (struct.pack(">iii", 1, 2, 3), b""),
        (struct.pack(">iiii", 5, 1, 5, 2), b""),
        (struct.pack(">iiii", 5, 2, 6, 1), b""),
        (struct.pack(">ii", 5, 100), b""),
        (struct.pack(">ii", -5, 10), b""),
        (struct.pack(">iiii", 0, 0, 6, 1), b""),
        (b"", struct.pack(">qi", 5, 1)[:-2]),
        (b"", struct.pack(">qiqi", 5, 1, 5, 2)),
        (b"", struct.pack(">qiqi", 5, 2, 6, 1)),
        (b"", struct.pack(">qi", -5, 2)),
    ],
)
def test_what_cannot_be_an_index_is_refused(offsets: bytes, times: bytes) -> None:
    """An index is refused if it has a partial entry, disorder, or a position beyond its segment."""
    with pytest.raises(DamagedIndex):
        SegmentIndex.from_bytes(offsets, times, 100)
