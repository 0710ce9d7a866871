"""Ranges of a fetch's answer that are not in the page cache: a worker reads them first.

A lagging consumer waits for the device alone, and the loop waits for no disk. Small ranges that are in memory become bytes of the answer here.
"""

from __future__ import annotations

from typing import Any

from odradek.data_plane.handlers.fetching.fetch_job import FetchJob, FetchRound
from odradek.data_plane.log.log_types import FileRange
from odradek.env.pausing import pause
from odradek.env.ports import DiskError, Workers
from odradek.serving.contract import Delayed
from odradek.wire.errors import ErrorCode

WARM_CHUNK_BYTES = 1024 * 1024
INLINE_BYTES_MAX = 32 * 1024
"""The most bytes of an answer that one call reads at once if they are in memory. A larger range is probed, and sent
in three parts."""


class WarmingFetch(Delayed):
    """A fetch whose ranges a worker reads into the page cache first."""

    __slots__ = ()

    parks = True


def cold_ranges(attempt: FetchRound) -> list[FileRange]:
    """Find the ranges whose pages are on the device alone, or cannot be probed. (For these the worker's read shows
    the error.)

    Small ranges in memory are replaced by their bytes here.
    """
    cold = []
    room = INLINE_BYTES_MAX
    for _, answer in attempt.answers:
        found: Any = answer.records
        if found.__class__ is not FileRange:
            continue
        if found.count > room:
            if not _is_warm(found):
                cold.append(found)
            continue
        data = _read_warm(found)
        if data is None:
            cold.append(found)
        else:
            room -= found.count
            answer.records = data
            attempt.ranges.remove(found)
            found.release()
    return cold


def _read_warm(found: FileRange) -> bytes | bytearray | None:
    try:
        return found.file.read_warm(found.count, found.position)
    except DiskError:
        return None


def _is_warm(found: FileRange) -> bool:
    try:
        return found.file.is_warm(found.position, found.count)
    except DiskError:
        return False


def _warm(ranges: list[FileRange]) -> None:
    """Read the ranges and discard the bytes, so that their pages are in the cache (in a worker)."""
    scratch = bytearray(WARM_CHUNK_BYTES)
    for found in ranges:
        position, end = found.position, found.position + found.count
        while position < end:
            pause()
            count = found.file.pread_into(
                memoryview(scratch)[: min(WARM_CHUNK_BYTES, end - position)], position
            )
            if count == 0:
                break
            position += count


def _by_workers(
    job: FetchJob, attempt: FetchRound, cold: list[FileRange]
) -> list[tuple[Workers, list[FileRange]]]:
    """Collect the cold ranges by the threads that may wait for their disks."""
    groups: list[tuple[Workers, list[FileRange]]] = []
    for fetched, answer in attempt.answers:
        records: Any = answer.records
        if not isinstance(records, FileRange) or records not in cold:
            continue
        workers = job.partitions.workers_of(job.hosted(fetched))
        for known, ranges in groups:
            if known is workers:
                ranges.append(records)
                break
        else:
            groups.append((workers, [records]))
    return groups


async def answer_when_warm(
    delayed: Delayed, job: FetchJob, attempt: FetchRound, cold: list[FileRange]
) -> None:
    """Warm the pages off the loop, then answer; a device error is that partition's error."""
    try:
        for workers, ranges in _by_workers(job, attempt, cold):
            await workers.run(_warm, ranges)
    except DiskError as error:
        job.desk.disk_errors.note("fetch.disk_error", error=str(error))
        _refuse_unreadable(job, attempt, cold, error)
    if delayed.answer is None:
        attempt.release()
    else:
        delayed.complete(job.respond(attempt))


def _refuse_unreadable(job: FetchJob, attempt: FetchRound, cold: list[FileRange], error: DiskError) -> None:
    """Refuse unreadable partitions: their directory goes offline, and no cold range is sent."""
    for fetched, answer in attempt.answers:
        records: Any = answer.records
        if not isinstance(records, FileRange) or records not in cold:
            continue
        attempt.ranges.remove(records)
        answer.records = b""
        answer.error_code = ErrorCode.KAFKA_STORAGE_ERROR
        partition = job.hosted(fetched)
        failed = records.file.path == error.path
        records.release()
        if failed and partition is not None:
            partition.log.home.failed(error)
