"""Reads through the remembered places of the last appends give the same results as reads of the file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.data_plane.log.log_config import LogConfig
from odradek.data_plane.log.partition_log import Origin, PartitionLog
from odradek.data_plane.log.segments.recent_places import PLACES_KEPT, PLACES_MAX, RecentPlaces
from tests.log.support import append, batch, new_disk, new_log

sizes = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 400)), min_size=1, max_size=3 * PLACES_MAX)


def ranges(log: PartitionLog, reads: list[tuple[int, int, int, bool]]) -> list[tuple[str, int, int, int]]:
    """Return each read's result (file, position, count, next offset).

    A read is (offset, bytes, bound, at least one).
    """
    found = []
    for offset, max_bytes, upper_bound, min_one in reads:
        got = log.read(offset, max_bytes, upper_bound=upper_bound, min_one=min_one)
        found.append(("" if got.file is None else got.file.path, got.position, got.count, got.next_offset))
        got.release()
    return found


def forget(log: PartitionLog) -> None:
    for segment in log.segments:
        segment.forget_places()


@given(sizes, st.data())
def test_reads_are_those_of_the_file(batches: list[tuple[int, int]], data: st.DataObject) -> None:
    """A read finds the same range with and without remembered places, at any offset and with any bound."""
    log = new_log(LogConfig(index_interval_bytes=600, segment_bytes=20_000))
    boundaries = [0]
    for count, value_bytes in batches:
        boundaries.append(append(log, batch(count, value=bytes(value_bytes))).last_offset + 1)
    end = log.log_end_offset
    offsets = st.one_of(st.integers(0, end), st.sampled_from(boundaries[-8:]), st.sampled_from(boundaries))
    read = st.tuples(offsets, st.integers(0, 5000), offsets, st.booleans())
    reads = data.draw(st.lists(read, min_size=1, max_size=12))
    remembered = [ranges(log, [one])[0] for one in reads]
    plain = []
    for one in reads:
        forget(log)
        plain += ranges(log, [one])
    assert remembered == plain


@given(sizes, st.integers(0, 200))
def test_a_replicas_gaps_are_no_boundaries(batches: list[tuple[int, int]], gap: int) -> None:
    """A follower of a compacted log reads from an offset in a gap.

    The result is the same as without remembered places.
    """
    log = new_log()
    offset, asked = 0, []
    for number, (count, value_bytes) in enumerate(batches):
        data = batch(count, value=bytes(value_bytes), base_offset=offset, leader_epoch=0)
        append(log, data, origin=Origin.REPLICA)
        asked.append((log.log_end_offset, 1 << 20, 1 << 60, True))
        offset = log.log_end_offset + gap * (number % 2)
    remembered = ranges(log, asked)
    forget(log)
    assert remembered == ranges(log, asked)


def test_a_follower_that_is_batches_behind_costs_no_small_reads() -> None:
    """Followers are some batches behind, and read at different paces. No read needs a small read of the file."""
    disk = new_disk()
    log = new_log(LogConfig(index_interval_bytes=100), disk)
    for _ in range(PLACES_MAX * 2):
        append(log, batch(3))
    size = log.size_bytes // (PLACES_MAX * 2)
    reads: list[str] = []
    disk.on_operation = lambda operation, path, *_: reads.append(operation)
    end = log.log_end_offset
    for behind in range(1, PLACES_KEPT):
        for batches in (0, 1, 2, 5):
            found = log.read(end - 3 * behind, size * batches + 10, upper_bound=1 << 60, min_one=True)
            assert found.count == size * min(behind, max(batches, 1))
            found.release()
    assert "read" not in reads


def test_a_cut_forgets() -> None:
    """A log forgets the place of a batch that is truncated. A new batch with the same offset has another place."""
    log = new_log()
    for _ in range(10):
        append(log, batch(2))
    log.truncate_to(10)
    append(log, batch(4, value=bytes(100)))
    append(log, batch(6, value=bytes(50)))
    asked = [(offset, 1 << 20, 1 << 60, True) for offset in (8, 10, 14, 20)]
    remembered = ranges(log, asked)
    forget(log)
    assert remembered == ranges(log, asked)


def test_what_is_remembered_is_bounded() -> None:
    places = RecentPlaces.beginning(1, 10)
    for at in range(2, 1000):
        places = places.noted(at, at * 10)
        assert len(places.offsets) == len(places.positions) < PLACES_MAX
    assert places.position_of(999) == 9990
    assert places.position_of(1) == -1


@pytest.mark.parametrize(
    ("look", "found"),
    [
        (lambda places: places.cut_at(20, 45), (40, 4)),
        (lambda places: places.cut_at(20, 40), (40, 4)),
        (lambda places: places.cut_at(30, 35), (30, -1)),
        (lambda places: places.cut_at(5, 9), None),
        (lambda places: places.next_after(30), (40, 4)),
        (lambda places: places.next_after(50), None),
        (lambda places: places.next_after(35), None),
    ],
)
def test_boundaries(look: Callable[[RecentPlaces], Any], found: Any) -> None:
    places = RecentPlaces.beginning(1, 10)
    for at in range(2, 6):
        places = places.noted(at, at * 10)
    assert look(places) == found
