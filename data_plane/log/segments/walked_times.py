"""Remembers the true timestamps of a segment's records, as far as walks have read the records (blocking, in
workers).

Theory of operation
-------------------
The header of a batch contains the newest timestamp of its records, and a producer may send a wrong one. At each
append, Kafka sets this timestamp from the records. In Odradek that would take longer than the rest of the
append. So the hot path and the indexes believe the headers. A *walk* reads the records' own timestamps. A walk
precedes each decision that depends on the headers. So it is made before retention by age deletes records, and
before a look-up by time skips records. The results of a walk are kept with its segment, and the next walk
continues where the last one ended.

If all headers were right, the segment's time index is right, too, and is used as always. If a header was
wrong, a finished segment gets a corrected time index (`segment_times`). From then on look-ups read the
records of this segment's batches, and ignore the timestamps in their headers.

Some batches are never walked, and their headers are believed: batches of more than `RECORDS_PARSED_MAX`
records, and batches whose records contradict their header. Look-ups do not read these batches either.
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_left

from odradek.data_plane.log.record_rules import RECORDS_PARSED_MAX
from odradek.env.ports import File
from odradek.wire.batches.batch_header import HEADER_SIZE, NO_TIMESTAMP, BatchHeader, Buffer, parse_header
from odradek.wire.batches.record_times import newest_timestamp
from odradek.wire.errors import KafkaError

CHUNK_BYTES = 1 << 20
BLOCK_BYTES = 64 << 10
"""The approximate size of a block in bytes. For each block, a walk remembers the newest timestamp."""
RECORD_COST = 64
"""The number of bytes that reading one record takes from a budget, in addition to the size of its batch."""
UNBOUNDED = 1 << 62
"""The budget of a caller that can wait until a walk is complete."""


class WalkBudget:
    """The work that walks may still do for one caller, in bytes of batches."""

    __slots__ = ("left",)

    def __init__(self, left: int) -> None:
        self.left = left

    @property
    def is_used_up(self) -> bool:
        return self.left <= 0


class WalkedTimes:
    """The result of walks over the first `position` bytes of a segment."""

    __slots__ = (
        "_blocks",
        "_lock",
        "_offsets",
        "_times",
        "are_claims_true",
        "emptied_ms",
        "is_damaged",
        "is_settled",
        "newest_ms",
        "next_offset",
        "position",
    )

    def __init__(self, base_offset: int) -> None:
        self.position = 0
        self.next_offset = base_offset
        self.newest_ms = NO_TIMESTAMP
        """The newest timestamp of all records walked so far; -1 if there is none."""
        self.emptied_ms = NO_TIMESTAMP
        """The newest timestamp in the headers of batches without records. Only the age of the segment depends
        on it.
        """
        self.are_claims_true = True
        """False once a walk has found a batch whose header names another newest timestamp than its records
        have.
        """
        self.is_damaged = False
        """True if the bytes from `position` on are not a valid batch, so that walks end there."""
        self.is_settled = False
        """True once all of a finished segment was walked, and its time index is right."""
        self._lock = threading.Lock()
        self._times = array("q")
        """Timestamps, ascending. Entry i is the newest timestamp of all records up to the end of block i. A
        record with this timestamp lies in block i, and none lies before it.
        """
        self._blocks = array("q")
        """The positions at which the blocks of `_times` begin."""
        self._offsets = array("q")
        """The last offset of each batch that has raised the newest timestamp."""

    def covers(self, size: int) -> bool:
        """True if a walk has covered the first `size` bytes of the segment, or has ended at damage."""
        return self.position >= size or self.is_damaged

    def place_of(self, timestamp_ms: int) -> int:
        """Return the position from which to search for the first record of this time or later. Returns
        `position`, the end of the walk, if the walk has found no such record.
        """
        with self._lock:
            at = bisect_left(self._times, timestamp_ms)
            return self._blocks[at] if at < len(self._blocks) else self.position

    def walk(
        self, file: File, end: int, until_ms: int | None, budget: WalkBudget, decompressed_bytes_max: int
    ) -> None:
        """Continue the walk until `end`, until a record is at least as new as `until_ms`, or until the budget
        is used up. Raises `DiskError`.
        """
        with self._lock:
            while (
                self.position < end
                and not self.is_damaged
                and not budget.is_used_up
                and (until_ms is None or self.newest_ms < until_ms)
            ):
                self._walk_chunk(file, end, until_ms, budget, decompressed_bytes_max)

    def _walk_chunk(
        self, file: File, end: int, until_ms: int | None, budget: WalkBudget, decompressed_bytes_max: int
    ) -> None:
        """Walk over the batches of the next chunk, at least one batch."""
        data = memoryview(file.pread(min(CHUNK_BYTES, end - self.position), self.position))
        at = 0
        while at < len(data) and not budget.is_used_up:
            header = self._header(data[at:], end)
            if header is None:
                # The chunk may end within a header, which is then read again with the next chunk. If the
                # chunk begins with the incomplete header, the file is damaged.
                self.is_damaged = at == 0 or len(data) - at >= HEADER_SIZE
                return
            if header.size > len(data) - at:
                if at:
                    return
                data = memoryview(file.pread(header.size, self.position))
                if len(data) < header.size:
                    self.is_damaged = True
                    return
            newest = newest_in(data[at : at + header.size], header, decompressed_bytes_max)
            self._note(header, newest)
            budget.left -= header.size + RECORD_COST * header.record_count
            at += header.size
            if until_ms is not None and self.newest_ms >= until_ms:
                return

    def _header(self, data: memoryview, end: int) -> BatchHeader | None:
        """Parse the header of the next batch; returns None if no batch can follow."""
        if len(data) < HEADER_SIZE:
            return None
        try:
            header = parse_header(data)
        except KafkaError:
            return None
        fits = header.base_offset >= self.next_offset and header.last_offset_delta >= 0
        return header if fits and header.size <= end - self.position else None

    def _note(self, header: BatchHeader, newest: int) -> None:
        if header.record_count:
            if newest != header.max_timestamp:
                self.are_claims_true = False
            if newest > self.newest_ms:
                self._raise_newest(header, newest)
        else:
            self.emptied_ms = max(self.emptied_ms, newest)
        self.next_offset = header.next_offset
        self.position += header.size

    def _raise_newest(self, header: BatchHeader, newest: int) -> None:
        blocks = self._blocks
        if blocks and self.position - blocks[-1] < BLOCK_BYTES:
            self._times[-1] = newest
            self._offsets[-1] = header.last_offset
        else:
            self._times.append(newest)
            self._offsets.append(header.last_offset)
            blocks.append(self.position)
        self.newest_ms = newest

    # --- after a walk over a whole finished segment

    def entries(self) -> list[tuple[int, int]]:
        """Return time index entries (timestamp, offset). No record up to an entry's offset is newer than its
        timestamp.
        """
        with self._lock:
            return list(zip(self._times, self._offsets, strict=True))

    def settle(self) -> None:
        """Called when a finished segment has been walked completely and its time index is right. Drops the
        details of the walk, so that searches use the index. If headers were wrong, the details are kept.
        """
        with self._lock:
            self.is_settled = True
            if self.are_claims_true:
                self._times, self._blocks, self._offsets = array("q"), array("q"), array("q")


def newest_in(batch: Buffer, header: BatchHeader, decompressed_bytes_max: int) -> int:
    """Return the newest timestamp of a batch's records; the header's timestamp if the records cannot be read."""
    try:
        return newest_timestamp(
            batch, records_max=RECORDS_PARSED_MAX, decompressed_bytes_max=decompressed_bytes_max
        )
    except KafkaError:
        return header.max_timestamp
