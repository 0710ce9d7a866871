"""Compresses and decompresses records with the four codecs, within a limit of bytes. Each decompression is
limited before it allocates memory.

Theory of operation
===================

Each codec is one generator that yields the decompressed bytes in chunks of at most `CHUNK_BYTES`. Two public
functions use it:

- `decompressed_size` drops each chunk, since a broker only needs to know that the bytes decompress. It has
  one chunk in memory at a time.
- `decompress` joins the chunks. It needs at most `size_max` bytes and a chunk.

The libraries need further buffers. lz4 has a buffer for one block, 4 MiB at most. zstd has a window, but uses
only as much of it as it has decompressed. Snappy has no chunks within a block. But each snappy block starts
with its decompressed size, which is checked before the block is decompressed.

A short input must not take much time either. Each gzip member, xerial block and zstd block costs a step in
Python. So their number is limited. The limit is far above the number that any real writer makes.

Readers of the four formats differ in some rules. The rules here are:

- gzip: several members may follow one another. Any other bytes behind the first member count as corruption.
- snappy: Java writes the "xerial" framing, which has a magic, two versions, and raw blocks with their
  lengths. A second stream may follow the first. librdkafka writes one raw block without framing. This module
  reads both forms, and writes the xerial form.
- lz4: one standard frame. Java's reader refuses dependent blocks. So they are refused here, too. Otherwise a
  broker would store batches that many consumers cannot read.
- zstd: frames, including skippable frames, may be concatenated, and usually do not state their content size.
  The streaming reader does not report a cut input, so the block headers are checked first.

Deliberately absent are dictionaries. Contexts for compression are not kept between calls, because making one
takes less time than compressing a batch. But each thread keeps a context for the decompression of zstd,
because making one takes longer than reading a batch of 16 KiB.

All four libraries release the interpreter's lock, so a worker that decompresses does not stop the loop.
"""

from __future__ import annotations

import struct
import threading
import zlib
from collections.abc import Callable, Iterator
from enum import IntEnum
from io import BytesIO
from struct import Struct
from typing import TypeAlias

import cramjam
import lz4.frame
import zstandard

from odradek.wire.batches.batch_errors import CorruptBatch, DecompressionBomb
from odradek.wire.errors import ErrorCode, KafkaError

__all__ = [
    "CHUNK_BYTES",
    "CompressionType",
    "CorruptBatch",
    "DecompressionBomb",
    "Inflated",
    "compress",
    "decompress",
    "decompressed_chunks",
    "decompressed_size",
]

Buffer: TypeAlias = bytes | bytearray | memoryview

CHUNK_BYTES = 256 * 1024
"""The most bytes that one step of a decompression allocates. In measurements, chunks from 64 KiB to 1 MiB took the same
time.
"""


class CompressionType(IntEnum):
    """The codec of a batch, as the low three bits of its attributes number it."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class Inflated:
    """The number of bytes that decompressions have produced. Decompressions that failed in the end count,
    too.
    """

    __slots__ = ("bytes_made",)

    def __init__(self) -> None:
        self.bytes_made = 0


def _pieces_max(size: int) -> int:
    """Compute the limit for the number of blocks and frames in `size` compressed bytes."""
    return 1024 + size // 64


# --- gzip ------------------------------------------------------------------------------------------------

_GZIP_WBITS = 31
_GZIP_INPUT_BYTES = 64 * 1024
"""The most input bytes that zlib gets at one call. zlib copies the input that it has not consumed, so large
pieces would be copied many times.
"""
_GZIP_MEMBERS_MAX = 64


def _gzip_compress(data: Buffer, level: int | None) -> bytes:
    encoder = zlib.compressobj(
        zlib.Z_DEFAULT_COMPRESSION if level is None else level, zlib.DEFLATED, _GZIP_WBITS
    )
    return encoder.compress(data) + encoder.flush()


def _gzip_chunks(data: memoryview, size_max: int) -> Iterator[bytes]:
    position, end = 0, len(data)
    for _ in range(_GZIP_MEMBERS_MAX):
        decoder = zlib.decompressobj(_GZIP_WBITS)
        while not decoder.eof:
            if position >= end:
                raise CorruptBatch("the gzip data ends in the middle of a gzip member")
            piece = data[position : position + _GZIP_INPUT_BYTES]
            position += len(piece)
            yield decoder.decompress(piece, CHUNK_BYTES)
            while (
                decoder.unconsumed_tail and not decoder.eof
            ):  # at `eof`, the tail holds the bytes after this member
                yield decoder.decompress(decoder.unconsumed_tail, CHUNK_BYTES)
            if not decoder.eof and position >= end:
                yield decoder.decompress(b"", CHUNK_BYTES)
        position -= len(decoder.unused_data)
        if position >= end:
            return
    raise CorruptBatch(f"the gzip data has more than {_GZIP_MEMBERS_MAX} gzip members")


# --- snappy ----------------------------------------------------------------------------------------------

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"
_XERIAL_HEADER_SIZE = len(_XERIAL_HEADER)
_XERIAL_BLOCK_BYTES = 32 * 1024
_INT32 = Struct(">i")


def _snappy_compress(data: Buffer, level: int | None) -> bytes:
    view = memoryview(data)
    out = bytearray(_XERIAL_HEADER)
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = memoryview(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
        out += _INT32.pack(len(block))
        out += block
    return bytes(out)


def _snappy_block(block: memoryview, size_max: int) -> bytes:
    """Decompress one raw block. Its stated size is checked first."""
    size = shift = 0
    for byte in block[:5]:
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    else:
        raise CorruptBatch("a snappy block does not begin with a valid length")
    if size > size_max:
        raise DecompressionBomb(
            f"a snappy block would decompress to {size} bytes, but at most {size_max} are allowed"
        )
    # A copy of three bytes makes at most 64 bytes, so a larger claimed size is false and must not be allocated.
    if size > 32 * len(block):
        raise CorruptBatch(
            f"a snappy block of {len(block)} bytes cannot decompress to the {size} bytes that it claims"
        )
    return bytes(cramjam.snappy.decompress_raw(block))


def _snappy_chunks(data: memoryview, size_max: int) -> Iterator[bytes]:
    if data[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        yield _snappy_block(data, size_max)
        return
    position, end = 0, len(data)
    pieces_left = _pieces_max(end)
    while position < end:
        pieces_left -= 1
        if not pieces_left:
            raise CorruptBatch("the snappy stream has far too many blocks")
        if data[position : position + len(_XERIAL_MAGIC)] == _XERIAL_MAGIC:
            if position + _XERIAL_HEADER_SIZE > end:
                raise CorruptBatch("the header of the snappy stream is cut off")
            position += _XERIAL_HEADER_SIZE
            continue
        if position + 4 > end:
            raise CorruptBatch("the length of a snappy block is cut off")
        (length,) = _INT32.unpack_from(data, position)
        position += 4
        if length <= 0 or length > end - position:
            raise CorruptBatch(
                f"a snappy block claims {length} bytes, and only {end - position} bytes are left"
            )
        chunk = _snappy_block(data[position : position + length], size_max)
        size_max -= len(chunk)
        position += length
        yield chunk


# --- lz4 -------------------------------------------------------------------------------------------------

_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_LZ4_BLOCKS_INDEPENDENT = 0x20
_LZ4_LEVEL_MAX = 12


def _lz4_compress(data: Buffer, level: int | None) -> bytes:
    encoded: bytes = lz4.frame.compress(
        data,
        compression_level=0 if level is None else min(level, _LZ4_LEVEL_MAX),
        block_size=lz4.frame.BLOCKSIZE_MAX64KB,
        block_linked=False,
        content_checksum=False,
        store_size=False,
    )
    return encoded


def _lz4_chunks(data: memoryview, size_max: int) -> Iterator[bytes]:
    if len(data) < 7 or data[:4] != _LZ4_MAGIC:
        raise CorruptBatch("the compressed data does not begin with an lz4 frame")
    if not data[4] & _LZ4_BLOCKS_INDEPENDENT:
        raise CorruptBatch("the lz4 frame has blocks that depend on each other, which Kafka's readers refuse")
    context = lz4.frame.create_decompression_context()
    position, end = 0, len(data)
    while True:
        chunk, taken, finished = lz4.frame.decompress_chunk(context, data[position:], max_length=CHUNK_BYTES)
        position += taken
        yield chunk
        if finished:
            break
        if not taken and not chunk:
            raise CorruptBatch("the lz4 data ends in the middle of a frame")
    if position != end:
        raise CorruptBatch(f"{end - position} unexpected bytes follow the lz4 frame")


# --- zstd ------------------------------------------------------------------------------------------------

_ZSTD_MAGIC = 0xFD2FB528
_ZSTD_SKIPPABLE_MAGIC = 0x184D2A50
_ZSTD_LEVEL = 3
_ZSTD_CONTEXT_BYTES_MAX = 16 * 1024 * 1024
"""The largest decompression context in bytes that is kept for the next call. A frame with a large window may
make a context grow.
"""
_UINT32_LE = Struct("<I")
_per_thread = threading.local()


def _zstd_compress(data: Buffer, level: int | None) -> bytes:
    return zstandard.ZstdCompressor(level=_ZSTD_LEVEL if level is None else level).compress(data)


def _check_zstd_frames(data: memoryview) -> None:
    """Check by the frames' structure (RFC 8878, section 3.1) that no frame is cut.

    Raises:
        CorruptBatch: a frame does not end where the data ends.
    """
    position, end = 0, len(data)
    pieces_left = _pieces_max(end)
    try:
        while position < end and pieces_left:
            pieces_left -= 1
            (magic,) = _UINT32_LE.unpack_from(data, position)
            if magic & 0xFFFFFFF0 == _ZSTD_SKIPPABLE_MAGIC:
                position += 8 + _UINT32_LE.unpack_from(data, position + 4)[0]
                continue
            if magic != _ZSTD_MAGIC:
                raise CorruptBatch("the compressed data does not begin with a zstd frame")
            descriptor = data[position + 4]
            single_segment = descriptor >> 5 & 1
            position += 5 + (1 - single_segment) + (0, 1, 2, 4)[descriptor & 3]
            position += (single_segment, 2, 4, 8)[descriptor >> 6]
            last = 0
            while not last and pieces_left:
                pieces_left -= 1
                block = data[position] | data[position + 1] << 8 | data[position + 2] << 16
                last = block & 1
                # A run-length block has one byte of content, whatever size it states. Other blocks have as
                # many bytes as they state.
                position += 3 + (1 if block >> 1 & 3 == 1 else block >> 3)
            position += 4 * (descriptor >> 2 & 1)
    except (IndexError, struct.error) as error:
        raise CorruptBatch("the zstd data ends in the middle of a frame") from error
    if not pieces_left:
        raise CorruptBatch("the zstd data has far too many blocks")
    if position != end or not end:
        raise CorruptBatch("the zstd data ends in the middle of a frame")


def _zstd_chunks(data: memoryview, size_max: int) -> Iterator[bytes]:
    _check_zstd_frames(data)
    try:
        context: zstandard.ZstdDecompressor = _per_thread.zstd
    except AttributeError:
        context = _per_thread.zstd = zstandard.ZstdDecompressor()
    reader = context.stream_reader(data, read_across_frames=True)
    try:
        while chunk := reader.read(CHUNK_BYTES):
            yield chunk
    finally:
        if context.memory_size() > _ZSTD_CONTEXT_BYTES_MAX:
            del _per_thread.zstd


# --- functions for other modules -------------------------------------------------------------------------------------

_COMPRESS: dict[int, Callable[[Buffer, int | None], bytes]] = {
    CompressionType.GZIP: _gzip_compress,
    CompressionType.SNAPPY: _snappy_compress,
    CompressionType.LZ4: _lz4_compress,
    CompressionType.ZSTD: _zstd_compress,
}
_CHUNKS: dict[int, Callable[[memoryview, int], Iterator[bytes]]] = {
    CompressionType.GZIP: _gzip_chunks,
    CompressionType.SNAPPY: _snappy_chunks,
    CompressionType.LZ4: _lz4_chunks,
    CompressionType.ZSTD: _zstd_chunks,
}
_LIBRARY_ERRORS = (zlib.error, zstandard.ZstdError, cramjam.DecompressionError, RuntimeError, ValueError)


def _unknown(compression_type: int) -> KafkaError:
    return KafkaError(
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"the compression type {compression_type} is unknown"
    )


def compress(compression_type: int, data: Buffer, level: int | None = None) -> bytes:
    """Compress `data`. `level` is a level of the codec (None: its default); snappy has no levels.

    Raises:
        KafkaError: UNSUPPORTED_COMPRESSION_TYPE.
    """
    if compression_type == CompressionType.NONE:
        return bytes(data)
    try:
        encode = _COMPRESS[compression_type]
    except KeyError:
        raise _unknown(compression_type) from None
    return encode(data, level)


def decompressed_size(
    compression_type: int, data: Buffer, size_max: int, inflated: Inflated | None = None
) -> int:
    """Compute the number of bytes that `data` has after decompression. Decompresses the data, with one chunk
    in memory at a time.

    `inflated` counts the bytes that are produced, even if an error is raised.

    Raises:
        DecompressionBomb: more than `size_max` bytes.
        CorruptBatch: the data does not decompress, is cut, or bytes follow it.
        KafkaError: UNSUPPORTED_COMPRESSION_TYPE.
    """
    if compression_type == CompressionType.NONE:
        return len(data)
    try:
        chunks = _CHUNKS[compression_type]
    except KeyError:
        raise _unknown(compression_type) from None
    size = 0
    try:
        for chunk in chunks(memoryview(data), size_max):
            size += len(chunk)
            if size > size_max:
                raise DecompressionBomb(
                    f"the record batch decompresses to more than the allowed {size_max} bytes"
                )
    except _LIBRARY_ERRORS as error:
        raise _corrupt(compression_type, error) from error
    finally:
        if inflated is not None:
            inflated.bytes_made += size
    return size


def decompress(compression_type: int, data: Buffer, size_max: int) -> bytes:
    """Decompress `data` to at most `size_max` bytes. Needs memory for nine eighths of the result, and for one
    chunk.

    Raises:
        DecompressionBomb: more than `size_max` bytes.
        CorruptBatch: the data does not decompress, is cut, or bytes follow it.
        KafkaError: UNSUPPORTED_COMPRESSION_TYPE.
    """
    if compression_type == CompressionType.NONE:
        return bytes(data)
    # Join the chunks in a BytesIO: its getvalue() returns the buffer itself, without making a second copy.
    whole: BytesIO | None = None
    first: Buffer = b""
    for chunk in decompressed_chunks(compression_type, data, size_max):
        if whole is not None:
            whole.write(chunk)
        elif first:
            whole = BytesIO()
            whole.write(first)
            whole.write(chunk)
        else:
            first = chunk
    return bytes(first) if whole is None else whole.getvalue()


def decompressed_chunks(compression_type: int, data: Buffer, size_max: int) -> Iterator[Buffer]:
    """Yield the decompressed bytes in chunks. A chunk is made when the caller asks for it, and only one is in
    memory at a time.

    Raises while iterating:
        DecompressionBomb: more than `size_max` bytes.
        CorruptBatch: the data does not decompress, is cut, or bytes follow it.
        KafkaError: UNSUPPORTED_COMPRESSION_TYPE.
    """
    if compression_type == CompressionType.NONE:
        yield data
        return
    try:
        chunks = _CHUNKS[compression_type]
    except KeyError:
        raise _unknown(compression_type) from None
    size = 0
    try:
        for chunk in chunks(memoryview(data), size_max):
            size += len(chunk)
            if size > size_max:
                raise DecompressionBomb(
                    f"the record batch decompresses to more than the allowed {size_max} bytes"
                )
            yield chunk
    except _LIBRARY_ERRORS as error:
        raise _corrupt(compression_type, error) from error


def _corrupt(compression_type: int, error: Exception) -> CorruptBatch:
    return CorruptBatch(
        f"the {CompressionType(compression_type).name.lower()} data of the record batch cannot be "
        f"decompressed: {error}"
    )
