"""Records that are not in the page cache: workers read them before the fetch is answered; small warm ranges are
copied into the answer.

So only the lagging consumer waits for the disk. The event loop never does.
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
"""The most bytes that one answer copies from the page cache. A larger range is not copied; only the presence
of its pages in the cache is checked.
"""


class WarmingFetch(Delayed):
    """The delayed answer of a fetch whose records a worker first reads into the page cache."""

    __slots__ = ()

    parks = True


def cold_ranges(attempt: FetchRound) -> list[FileRange]:
    """Find the ranges that are not in the page cache. If the check of a range fails, the range counts as
    cold, and the worker's read reports the error.

    Small ranges that are in the cache are replaced by their bytes in the answer.
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
    """Read the ranges and discard the bytes, so that their pages are in the page cache.

    It runs in a worker thread.
    """
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
    """Collect the cold ranges into groups, by the worker threads that may wait for their disks."""
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
    """Read the cold ranges in workers, then complete `delayed`.

    If a disk fails, the partitions of these ranges get an error.
    """
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
    """Set an error for all partitions with cold ranges, after a disk has failed.

    The directory of the failed file goes offline.
    """
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
