"""The 61-byte header of a version 2 record batch: functions that parse it, check the CRC, patch offsets,
producer and timestamps, and iterate over batches.

Every function takes the buffer that holds the batch and the offset of its first byte. So a broker can pass
its receive buffer, and a log its file block, without slicing first.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple, TypeAlias

from crc32c import crc32c

from odradek.wire.batches.batch_errors import CorruptBatch, InvalidRecord

__all__ = [
    "ATTRIBUTES_OFFSET",
    "COMPRESSION_MASK",
    "CONTROL_MASK",
    "CRC_START",
    "DELETE_HORIZON_MASK",
    "HEAD",
    "HEADER",
    "HEADER_SIZE",
    "HEAD_SIZE",
    "LENGTH_OFFSET",
    "MAGIC",
    "MAGIC_OFFSET",
    "NO_TIMESTAMP",
    "SEQUENCE_MASK",
    "SIZE_PREFIX",
    "TIMESTAMP_TYPE_MASK",
    "TRANSACTIONAL_MASK",
    "BatchHeader",
    "Buffer",
    "assign_offsets",
    "check_crc",
    "iter_batches",
    "parse_header",
    "seal",
    "set_max_timestamp",
    "set_producer",
    "set_transactional",
]

Buffer: TypeAlias = bytes | bytearray | memoryview

HEADER: Final = Struct(">qiibIhiqqqhii")
"""The layout of a batch's header (61 bytes, big-endian): the fields of `BatchHeader` in their order."""
HEADER_SIZE: Final = 61
assert HEADER.size == HEADER_SIZE
HEAD: Final = Struct(">qiibIhi")
"""The layout of a header's first seven fields, which suffice to skip from batch to batch."""
HEAD_SIZE: Final = 27
assert HEAD.size == HEAD_SIZE

MAGIC: Final = 2
SIZE_PREFIX: Final = 12
"""The number of bytes at the start of a batch that `batch_length` does not count. They are the base offset
and `batch_length` itself.
"""
CRC_START: Final = 21
"""The position of the first byte that the checksum covers, at which the attributes begin. Base offset and
leader epoch lie before it, so they can be changed without a new checksum.
"""
LENGTH_OFFSET: Final = 8
MAGIC_OFFSET: Final = 16
ATTRIBUTES_OFFSET: Final = 21
_LENGTH_MIN: Final = HEADER_SIZE - SIZE_PREFIX

COMPRESSION_MASK: Final = 0x07
TIMESTAMP_TYPE_MASK: Final = 0x08
TRANSACTIONAL_MASK: Final = 0x10
CONTROL_MASK: Final = 0x20
DELETE_HORIZON_MASK: Final = 0x40

NO_TIMESTAMP: Final = -1
SEQUENCE_MASK: Final = 0x7FFFFFFF
"""The greatest sequence number; the next one is 0."""

_LENGTH = Struct(">i")
_CRC = Struct(">I")
_OFFSET = Struct(">q")
_EPOCH = Struct(">i")
_ATTRIBUTES = Struct(">h")
_MAX_TIMESTAMP = Struct(">q")
_PRODUCER = Struct(">qhi")
_EPOCH_OFFSET: Final = 12
_CRC_OFFSET: Final = 17
_MAX_TIMESTAMP_OFFSET: Final = 35
_PRODUCER_OFFSET: Final = 43


class BatchHeader(NamedTuple):
    """The fields of a batch's header, in the order of the format. Timestamps are in milliseconds since 1970."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """The number of bytes of the whole batch, including its header."""
        return self.batch_length + SIZE_PREFIX

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """The sequence number of the last record; -1 if the batch has none. Sequence numbers continue with 0
        after 2**31 - 1.
        """
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF

    @property
    def compression_type(self) -> int:
        """The codec of the records: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd; 5 to 7 are unknown."""
        return self.attributes & COMPRESSION_MASK

    @property
    def timestamp_type(self) -> int:
        """The meaning of the records' timestamps: 0 CreateTime, 1 LogAppendTime."""
        return self.attributes >> 3 & 1

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_MASK)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_MASK)

    @property
    def has_delete_horizon(self) -> bool:
        """True if `base_timestamp` is the earliest time at which tombstones may be removed (KIP-534)."""
        return bool(self.attributes & DELETE_HORIZON_MASK)


def parse_header(buf: Buffer, offset: int = 0) -> BatchHeader:
    """Parse the header at `offset`; the rest of the batch need not be in `buf`.

    Raises:
        CorruptBatch: fewer than 61 bytes, an impossible length or an unknown magic.
        InvalidRecord: a message set of the older formats 0 and 1.
    """
    try:
        header = tuple.__new__(BatchHeader, HEADER.unpack_from(buf, offset))
    except struct.error:
        raise _not_a_header(buf, offset) from None
    if header.magic != MAGIC or header.batch_length < _LENGTH_MIN:
        raise _not_a_header(buf, offset)
    return header


def _not_a_header(buf: Buffer, offset: int) -> CorruptBatch | InvalidRecord:
    if len(buf) - offset > MAGIC_OFFSET:
        magic = buf[offset + MAGIC_OFFSET]
        if magic < MAGIC:
            return InvalidRecord(f"the record batch has magic {magic}, and only magic {MAGIC} is supported")
        if magic > MAGIC:
            return CorruptBatch(f"the record batch has an unknown magic, {magic}")
    if len(buf) - offset < HEADER_SIZE:
        return CorruptBatch(
            f"the batch header is cut off: only {len(buf) - offset} of its {HEADER_SIZE} bytes are there"
        )
    return CorruptBatch(
        f"the record batch claims a length of {_LENGTH.unpack_from(buf, offset + LENGTH_OFFSET)[0]} "
        "bytes, less than its header has"
    )


def check_crc(buf: Buffer, offset: int, size: int) -> bool:
    """True if `buf` holds all of the batch of `size` bytes at `offset`, and its CRC32C is right."""
    end = offset + size
    if size < HEADER_SIZE or end > len(buf):
        return False
    stored: int = _CRC.unpack_from(buf, offset + _CRC_OFFSET)[0]
    return stored == crc32c(memoryview(buf)[offset + CRC_START : end])


def assign_offsets(buf: bytearray | memoryview, offset: int, base_offset: int, leader_epoch: int) -> None:
    """Patch base offset and leader epoch in place; the checksum does not cover them."""
    _OFFSET.pack_into(buf, offset, base_offset)
    _EPOCH.pack_into(buf, offset + _EPOCH_OFFSET, leader_epoch)


def set_producer(batch: bytearray, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
    """Write the producer's id, epoch and first sequence number into a batch, in place. The checksum must be
    written afterwards (`seal`).
    """
    _PRODUCER.pack_into(batch, _PRODUCER_OFFSET, producer_id, producer_epoch, base_sequence)


def set_transactional(batch: bytearray) -> None:
    """Mark the batch in place as part of a transaction; the checksum must be written afterwards (`seal`)."""
    (attributes,) = _ATTRIBUTES.unpack_from(batch, ATTRIBUTES_OFFSET)
    _ATTRIBUTES.pack_into(batch, ATTRIBUTES_OFFSET, attributes | TRANSACTIONAL_MASK)


def seal(batch: bytearray) -> None:
    """Compute the checksum of a whole batch, and write it into the batch."""
    _CRC.pack_into(batch, _CRC_OFFSET, crc32c(memoryview(batch)[CRC_START:]))


def set_max_timestamp(
    buf: bytearray | memoryview, offset: int, timestamp_ms: int, timestamp_type: int
) -> None:
    """Write timestamp type, largest timestamp and the new checksum into a batch, in place.

    With LogAppendTime (1) the largest timestamp applies to every record, so no record needs rewriting.

    Raises:
        CorruptBatch: the batch is not whole in `buf`.
    """
    end = offset + SIZE_PREFIX + int(_LENGTH.unpack_from(buf, offset + LENGTH_OFFSET)[0])
    if end - offset < HEADER_SIZE or end > len(buf):
        raise CorruptBatch("the record batch is cut off before its end")
    (attributes,) = _ATTRIBUTES.unpack_from(buf, offset + ATTRIBUTES_OFFSET)
    attributes = (attributes & ~TIMESTAMP_TYPE_MASK) | timestamp_type << 3
    _ATTRIBUTES.pack_into(buf, offset + ATTRIBUTES_OFFSET, attributes)
    _MAX_TIMESTAMP.pack_into(buf, offset + _MAX_TIMESTAMP_OFFSET, timestamp_ms)
    _CRC.pack_into(buf, offset + _CRC_OFFSET, crc32c(memoryview(buf)[offset + CRC_START : end]))


def iter_batches(buf: Buffer, offset: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (position, header) of each whole batch from `offset` on. Stops at an incomplete batch, since a
    fetch response may end with one.

    Raises:
        CorruptBatch, InvalidRecord: as `parse_header`.
    """
    end = len(buf)
    while end - offset >= HEADER_SIZE:
        header = parse_header(buf, offset)
        size = header.batch_length + SIZE_PREFIX
        if size > end - offset:
            return
        yield offset, header
        offset += size
