"""The compression of a batch with another codec, as a topic's `compression.type` demands. PURE.

A batch compresses all its records as one block. So the codec can be changed without parsing any record. Only
the codec, the length and the checksum in the header change.
"""

from __future__ import annotations

from struct import Struct

from odradek.wire.batches.batch_header import (
    ATTRIBUTES_OFFSET,
    COMPRESSION_MASK,
    HEADER_SIZE,
    LENGTH_OFFSET,
    SIZE_PREFIX,
    BatchHeader,
    Buffer,
    seal,
)
from odradek.wire.batches.compression import compress, decompress

_LENGTH = Struct(">i")
_ATTRIBUTES = Struct(">h")


def codec_of(batch: Buffer) -> int:
    """Read the number of a batch's codec from its header; -1 if the header is incomplete."""
    return batch[ATTRIBUTES_OFFSET + 1] & COMPRESSION_MASK if len(batch) >= HEADER_SIZE else -1


def recompress(
    batch: Buffer, header: BatchHeader, compression_type: int, level: int | None, decompressed_bytes_max: int
) -> bytearray:
    """Compress a batch again with another codec. `header` is the batch's header; its checksum must have been
    verified.

    Raises:
        CorruptBatch: the records do not decompress.
        DecompressionBomb: the records decompress to more than `decompressed_bytes_max` bytes.
        KafkaError: UNSUPPORTED_COMPRESSION_TYPE.
    """
    data: Buffer = memoryview(batch)[HEADER_SIZE : header.size]
    if header.compression_type:
        data = decompress(header.compression_type, data, decompressed_bytes_max)
    if compression_type:
        data = compress(compression_type, data, level)
    fresh = bytearray(memoryview(batch)[:HEADER_SIZE])
    fresh += data
    _LENGTH.pack_into(fresh, LENGTH_OFFSET, len(fresh) - SIZE_PREFIX)
    _ATTRIBUTES.pack_into(fresh, ATTRIBUTES_OFFSET, header.attributes & ~COMPRESSION_MASK | compression_type)
    seal(fresh)
    return fresh
