"""Reads the batches of a segment file one after the other by their headers, with or without checking their
checksums.

Files are read in chunks with positioned reads. A scan with checksums reads every byte once, into a buffer
that the caller keeps for many segments. A scan without checksums reads only headers. It reads another chunk
when the next header lies outside the last chunk. So it skips large batches, and reads the headers of several
small batches with one call.
"""

from __future__ import annotations

from collections.abc import Iterator

from crc32c import crc32c

from odradek.env.ports import File, UncachedFile
from odradek.wire.batches.batch_header import CRC_START, HEADER, HEADER_SIZE, MAGIC, SIZE_PREFIX, BatchHeader

RECOVERY_CHUNK_BYTES = 4 << 20
HEADER_CHUNK_BYTES = 32 << 10


class SegmentScan:
    """Iterates over (position, header) of the batches in `[position, end)` of a file.

    It stops at the first batch that is cut, does not fit after its predecessor, or (with `check_crc`) has a
    wrong checksum. When it has stopped, `position` is the end of the good batches, and `next_offset` the
    offset that follows them. `damage` describes the fault; None if the scan has reached `end`.

    Raises `DiskError` while iterating.
    """

    __slots__ = ("_buffer", "_check_crc", "_end", "_file", "damage", "next_offset", "position")

    def __init__(
        self,
        file: File | UncachedFile,
        position: int,
        end: int,
        next_offset: int,
        *,
        check_crc: bool = False,
        buffer: bytearray | None = None,
    ) -> None:
        if buffer is None:
            buffer = bytearray(min(RECOVERY_CHUNK_BYTES if check_crc else HEADER_CHUNK_BYTES, end - position))
        self._file = file
        self._end = end
        self._check_crc = check_crc
        self._buffer = buffer
        self.position = position
        self.next_offset = next_offset
        self.damage: str | None = None

    def __iter__(self) -> Iterator[tuple[int, BatchHeader]]:
        view = memoryview(self._buffer)
        chunk_max = len(view)
        check_crc = self._check_crc
        unpack = HEADER.unpack_from
        named = BatchHeader._make
        end = self._end
        position = self.position
        next_offset = self.next_offset
        chunk_start = chunk_end = position
        while position < end:
            at = position - chunk_start
            left = chunk_end - position
            if left < HEADER_SIZE:
                if end - position < HEADER_SIZE:
                    self.damage = f"the last {end - position} bytes are too few for a batch header"
                    return
                chunk_start, at = position, 0
                left = self._file.pread_into(view[: min(chunk_max, end - position)], position)
                chunk_end = position + left
                if left < HEADER_SIZE:
                    self.damage = "the file ends before the size that the file system reports"
                    return
            header = unpack(view, at)
            base_offset, length, _, magic, crc, _, delta = header[:7]
            size = length + SIZE_PREFIX
            if magic != MAGIC or size < HEADER_SIZE or size > end - position:
                self.damage = (
                    f"the bytes here claim a batch of magic {magic} and {size} bytes, which is impossible"
                )
                return
            if base_offset < next_offset or delta < 0:
                self.damage = (
                    f"a batch with base offset {base_offset} and last offset delta {delta} cannot "
                    f"follow offset {next_offset}"
                )
                return
            if check_crc:
                if size > left and at and size <= chunk_max:
                    chunk_start, at = position, 0
                    left = self._file.pread_into(view[: min(chunk_max, end - position)], position)
                    chunk_end = position + left
                if size <= left:
                    actual = crc32c(view[at + CRC_START : at + size])
                else:
                    actual = self._crc_of_large_batch(view, position, size)
                    chunk_start = chunk_end = position + size
                if actual != crc:
                    self.damage = "the batch's checksum is wrong"
                    return
            self.position = position + size
            self.next_offset = base_offset + delta + 1
            yield position, named(header)
            position += size
            next_offset = self.next_offset
            if position > chunk_end:
                chunk_start = chunk_end = position

    def stop_before(self, position: int, next_offset: int, damage: str | None) -> None:
        """End the scan before the batch at `position`. `damage` describes the fault of that batch; None if it
        has none.
        """
        self.position = position
        self.next_offset = next_offset
        self.damage = damage

    def _crc_of_large_batch(self, view: memoryview, position: int, size: int) -> int:
        """Compute the checksum of a batch that is larger than the buffer, piece by piece."""
        crc = 0
        at, end = position + CRC_START, position + size
        while at < end:
            count = self._file.pread_into(view[: min(len(view), end - at)], at)
            if count == 0:
                return -1
            crc = crc32c(view[:count], crc)
            at += count
        return crc
