"""The ranges of a fetch response: some are read at once, some are sent from the file, some wait for a worker to read
them."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from odradek.data_plane.fetch_sessions import FetchedPartition
from odradek.data_plane.handlers.fetching.cold_pages import INLINE_BYTES_MAX, cold_ranges
from odradek.data_plane.handlers.fetching.fetch_job import FetchRound, FileFetchResponse
from odradek.data_plane.log.log_types import FileRange
from odradek.env.ports import FileClosed
from odradek.node.connections.answers import release_response
from odradek.wire.messages.fetch import FetchableTopicResponse, PartitionData
from sim.machine.disk import SimDisk


def _answered(disk: SimDisk, counts: list[int]) -> FetchRound:
    """Make a round with one answer for each of `counts`: a range of that many bytes in one file."""
    file = disk.open_dir("/data", create=True).open("a", create=True)
    file.append(Random(1).randbytes(sum(counts)))
    attempt = FetchRound()
    position = 0
    for index, count in enumerate(counts):
        file.pin()
        found: Any = FileRange(file, position, count)
        attempt.ranges.append(found)
        attempt.answers.append((FetchedPartition(("t", index)), PartitionData(index, records=found)))
        position += count
    return attempt


def test_small_ranges_become_bytes_as_long_as_there_is_room() -> None:
    """Small ranges in memory become bytes up to a limit for the whole response, however many partitions it has."""
    small = INLINE_BYTES_MAX // 4
    attempt = _answered(SimDisk(), [small, 3 * INLINE_BYTES_MAX, small, small, small, 1])
    file = attempt.ranges[0].file
    assert cold_ranges(attempt) == []
    records: list[Any] = [answer.records for _, answer in attempt.answers]
    assert [each.__class__ is FileRange for each in records] == [False, True, False, False, False, True]
    assert bytes(records[2]) == file.pread(small, small + 3 * INLINE_BYTES_MAX)
    assert attempt.ranges == [records[1], records[5]]
    # Ranges that became bytes have released their pins. The file can be closed once the last range is gone.
    attempt.release()
    file.close()
    with pytest.raises(FileClosed):
        file.pin()


def test_what_is_not_in_memory_is_left_to_a_worker() -> None:
    """Ranges whose pages are not in memory are left to a worker, even the small ones."""
    disk = SimDisk(Random(1))
    attempt = _answered(disk, [10, 2 * INLINE_BYTES_MAX])
    disk.cold_probability = 1.0
    assert cold_ranges(attempt) == attempt.ranges
    assert len(attempt.ranges) == 2
    attempt.release()


def test_an_answer_that_is_never_sent_lets_go_of_its_files() -> None:
    """If the connection breaks before its response is encoded, the files of that response are released."""
    attempt = _answered(SimDisk(), [10, 20])
    file = attempt.ranges[0].file
    partitions = [answer for _, answer in attempt.answers]
    release_response(FileFetchResponse(responses=[FetchableTopicResponse("t", partitions=partitions)]))
    file.close()
    with pytest.raises(FileClosed):
        file.pin()
