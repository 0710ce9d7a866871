"""Decompress bombs in a separate process and print the peak memory of each, as JSON.

Usage: measure_decompression.py SIZE_MAX. This needs Linux, where the kernel's high-water mark of resident memory can be
reset before each measurement.
"""

from __future__ import annotations

import json
import struct
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import cramjam
import lz4.frame

from odradek.wire.batches.compression import (
    CompressionType,
    DecompressionBomb,
    compress,
    decompress,
    decompressed_size,
)

MIB = 1 << 20


def gzip_bomb() -> bytes:
    """Make 10 GiB of zeros in one gzip member. One MiB is flushed, so that its compressed bytes can be repeated."""
    encoder = zlib.compressobj(9, zlib.DEFLATED, 31)
    start = encoder.compress(bytes(MIB)) + encoder.flush(zlib.Z_FULL_FLUSH)
    repeated = encoder.compress(bytes(MIB)) + encoder.flush(zlib.Z_FULL_FLUSH)
    return start + repeated * 10239


def raw_snappy_bomb() -> bytes:
    """Make a block that claims 4 GiB minus one byte, but has content for 1 MiB."""
    block = bytes(cramjam.snappy.compress_raw(bytes(MIB)))
    return b"\xff\xff\xff\xff\x0f" + block[3:]


def long_raw_snappy_bomb() -> bytes:
    """Make a block of 3 MiB that holds the 64 MiB that it claims."""
    block = bytes(cramjam.snappy.compress_raw(bytes(MIB)))
    return b"\x80\x80\x80\x20" + block[3:] * 64


def xerial_bomb() -> bytes:
    """Make 64 MiB in blocks each of which is within the limit."""
    header = compress(CompressionType.SNAPPY, b"")
    return header + compress(CompressionType.SNAPPY, bytes(32768))[len(header) :] * 2048


def lz4_bomb() -> bytes:
    """Make 1 GiB in blocks of 4 MiB."""
    encoder = lz4.frame.LZ4FrameCompressor(block_size=lz4.frame.BLOCKSIZE_MAX4MB, block_linked=False)
    start: bytes = encoder.begin()
    block: bytes = encoder.compress(bytes(4 * MIB))
    return start + block * 256


def zstd_blocks() -> bytes:
    """Make 10 GiB of zeros in run-length blocks of 128 KiB, which take 4 bytes each."""
    block = (131072 << 3 | 1 << 1).to_bytes(3, "little") + b"\0"
    # Small raw blocks in between keep the number of blocks plausible.
    raw = (560 << 3).to_bytes(3, "little") + bytes(560)
    return (block * 8 + raw) * 10240 + b"\1\0\0"


def zstd_bomb() -> bytes:
    """Make a frame with a window of 128 MiB that does not state its size."""
    return struct.pack("<IBB", 0xFD2FB528, 0, 17 << 3) + zstd_blocks()


def zstd_bomb_of_known_size() -> bytes:
    """Make a frame that states its size of 10 GiB."""
    size = 10240 * (8 * 131072 + 560)
    return struct.pack("<IBBQ", 0xFD2FB528, 0b11000000, 17 << 3, size) + zstd_blocks()


BOMBS: dict[Callable[[], bytes], CompressionType] = {
    gzip_bomb: CompressionType.GZIP,
    raw_snappy_bomb: CompressionType.SNAPPY,
    long_raw_snappy_bomb: CompressionType.SNAPPY,
    xerial_bomb: CompressionType.SNAPPY,
    lz4_bomb: CompressionType.LZ4,
    zstd_bomb: CompressionType.ZSTD,
    zstd_bomb_of_known_size: CompressionType.ZSTD,
}


def resident_kib(field: str) -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition(field + ":")[2].split()[0])


def peak_of(call: Callable[[], object]) -> int:
    """Return by how many bytes the process's memory grew at most during the call."""
    Path("/proc/self/clear_refs").write_text("5")
    before = resident_kib("VmRSS")
    call()
    return (resident_kib("VmHWM") - before) * 1024


def refused(function: Callable[[int, bytes, int], object], codec: int, data: bytes, size_max: int) -> str:
    try:
        function(codec, data, size_max)
    except DecompressionBomb:
        return "bomb"
    except Exception as error:  # noqa: BLE001 -- the test shows any exception
        return repr(error)
    return "accepted"


def measure(size_max: int) -> Iterator[tuple[str, str, int]]:
    for make, codec in BOMBS.items():
        data = make()
        for function in (decompressed_size, decompress):
            outcome = ""

            def call(function: Callable[[int, bytes, int], object] = function) -> None:
                nonlocal outcome
                outcome = refused(function, codec, data, size_max)  # noqa: B023 -- called within this iteration

            peak = peak_of(call)
            yield f"{make.__name__} {function.__name__}", outcome, peak
    for codec in CompressionType:
        data = compress(codec, bytes(range(256)) * (size_max // 256))
        yield f"good {codec.name} size", "accepted", peak_of(lambda: decompressed_size(codec, data, size_max))  # noqa: B023 -- as above
        yield f"good {codec.name}", "accepted", peak_of(lambda: decompress(codec, data, size_max))  # noqa: B023 -- as above


if __name__ == "__main__":
    print(json.dumps(list(measure(int(sys.argv[1])))))
