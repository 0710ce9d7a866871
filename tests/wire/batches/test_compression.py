"""The codecs: all framings that clients write are read, damaged and lying data is refused, and memory stays bounded."""

from __future__ import annotations

import gzip
import json
import os
import struct
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cramjam
import lz4.frame
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.wire.batches import compression
from odradek.wire.batches.compression import (
    CHUNK_BYTES,
    CompressionType,
    CorruptBatch,
    DecompressionBomb,
    compress,
    decompress,
    decompressed_size,
)
from odradek.wire.errors import ErrorCode, KafkaError
from tests.schedule import examples

NONE, GZIP, SNAPPY, LZ4, ZSTD = CompressionType
CODECS = [GZIP, SNAPPY, LZ4, ZSTD]
BOUND = 1 << 26
TEXT = b"".join(b"record %d of many, all alike; " % number for number in range(3000))


def both(codec: int, data: bytes, size_max: int = BOUND) -> bytes:
    """Decompress, and check that `decompressed_size` gives the same size."""
    whole = decompress(codec, data, size_max)
    assert decompressed_size(codec, data, size_max) == len(whole)
    return whole


def refuse(codec: int, data: bytes, size_max: int = BOUND) -> CorruptBatch:
    """Check that `decompress` and `decompressed_size` both refuse the data; return the error."""
    with pytest.raises(CorruptBatch):
        decompressed_size(codec, data, size_max)
    with pytest.raises(CorruptBatch) as caught:
        decompress(codec, data, size_max)
    return caught.value


class TestRoundTrip:
    @settings(max_examples=examples(150))
    @given(st.sampled_from(CompressionType), st.binary(max_size=2000), st.integers(1, 80))
    def test_any_bytes(self, codec: CompressionType, data: bytes, repeats: int) -> None:
        """Data survives a round trip with exactly its size as the limit, and is refused with a smaller limit."""
        data *= repeats
        packed = compress(codec, data)
        assert both(codec, packed, len(data)) == data
        if data and codec is not NONE:
            assert isinstance(refuse(codec, packed, len(data) - 1), DecompressionBomb)

    @pytest.mark.parametrize("codec", CODECS)
    @pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 5 * CHUNK_BYTES])
    def test_sizes_around_a_chunk(self, codec: CompressionType, size: int) -> None:
        """Data whose size is near a multiple of the chunk size survives a round trip."""
        data = os.urandom(999) * (size // 999 + 1)
        assert both(codec, compress(codec, data[:size])) == data[:size]

    @pytest.mark.parametrize("codec", CODECS)
    def test_levels(self, codec: CompressionType) -> None:
        """`compression.<codec>.level` has an effect, except for snappy, which has no levels."""
        fast, best = compress(codec, TEXT, 1), compress(codec, TEXT, 9)
        assert (fast == best) is (codec is SNAPPY)
        assert both(codec, fast) == both(codec, best) == TEXT

    def test_lz4_level_of_kafka(self) -> None:
        """Kafka's lz4 level 17 is accepted, although the library's maximum is 12."""
        assert both(LZ4, compress(LZ4, TEXT, 17)) == TEXT

    @pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
    @pytest.mark.parametrize("codec", CompressionType)
    def test_any_buffer(self, codec: CompressionType, kind: type[bytes | bytearray | memoryview]) -> None:
        """bytes, bytearray and memoryview are accepted as input."""
        packed = kind(compress(codec, kind(TEXT)))
        assert decompress(codec, packed, BOUND) == TEXT

    def test_threads(self) -> None:
        """Several threads can decompress at the same time."""
        packed = [(codec, compress(codec, TEXT * 20)) for codec in CODECS] * 10
        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(lambda case: decompress(*case, BOUND) == TEXT * 20, packed))

    @pytest.mark.parametrize("codec", [-1, 5, 6, 7])
    def test_unknown(self, codec: int) -> None:
        """Codes 5 to 7, which fit into the three bits, and other codes are refused as unsupported."""
        for call in (compress, lambda c, d: decompress(c, d, 1), lambda c, d: decompressed_size(c, d, 1)):
            with pytest.raises(KafkaError) as caught:
                call(codec, b"x")
            assert caught.value.code is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


class TestFramings:
    """We must read all framings that Kafka 4.3.0 has read in a trial."""

    HALF = len(TEXT) // 2

    def test_gzip_members(self) -> None:
        """A gzip file may have several members (RFC 1952, section 2.2)."""
        assert both(GZIP, compress(GZIP, TEXT[: self.HALF]) + compress(GZIP, TEXT[self.HALF :])) == TEXT
        assert both(GZIP, gzip.compress(TEXT)) == TEXT

    def test_too_many_gzip_members(self) -> None:
        """More than 64 gzip members are refused, because each one takes time even if it is empty."""
        assert both(GZIP, compress(GZIP, b"ab") * 64) == b"ab" * 64
        refuse(GZIP, compress(GZIP, b"") * 65)

    def test_raw_snappy(self) -> None:
        """A raw snappy block, as librdkafka writes it, is read."""
        assert both(SNAPPY, bytes(cramjam.snappy.compress_raw(TEXT))) == TEXT

    def test_xerial_streams(self) -> None:
        """Two xerial streams in a row and an empty block in between are read."""
        first, second = compress(SNAPPY, TEXT[: self.HALF]), compress(SNAPPY, TEXT[self.HALF :])
        assert first[:16] == b"\x82SNAPPY\0\0\0\0\1\0\0\0\1"
        assert both(SNAPPY, first + second) == TEXT
        assert both(SNAPPY, first + struct.pack(">i", 1) + b"\0" + second[16:]) == TEXT

    @pytest.mark.parametrize("length", [0, -1, -(2**31), 2**31 - 1])
    def test_xerial_lengths(self, length: int) -> None:
        """A xerial block whose length is not positive, or exceeds the remaining bytes, is refused."""
        refuse(SNAPPY, compress(SNAPPY, TEXT) + struct.pack(">i", length) + b"rest")

    def test_xerial_of_tiny_blocks(self) -> None:
        """Thousands of empty xerial blocks are refused, because each one takes time."""
        refuse(SNAPPY, compress(SNAPPY, b"") + (struct.pack(">i", 1) + b"\0") * 5000)

    def test_google_snappy_framing(self) -> None:
        """Google's snappy stream format is refused, since Kafka reads only xerial streams and raw blocks."""
        refuse(SNAPPY, bytes(cramjam.snappy.compress(TEXT)))

    @pytest.mark.parametrize("size", [2**32 - 1, 2**31, 1 << 20])
    def test_snappy_length_that_cannot_be(self, size: int) -> None:
        """A raw block of 50 bytes that claims to hold a MiB or more is refused before memory is allocated."""
        claim = bytearray()
        while size > 0x7F:
            claim.append(size & 0x7F | 0x80)
            size >>= 7
        claim.append(size)
        refuse(SNAPPY, bytes(claim) + bytes(50), 1 << 40)

    def test_lz4_options(self) -> None:
        """Optional checksums, a stated size and 4 MiB blocks are accepted."""
        packed = lz4.frame.compress(
            TEXT * 20,
            block_linked=False,
            block_size=lz4.frame.BLOCKSIZE_MAX4MB,
            content_checksum=True,
            block_checksum=True,
            store_size=True,
        )
        assert both(LZ4, packed) == TEXT * 20

    def test_lz4_as_written(self) -> None:
        """A written frame has version 01 and independent 64 KiB blocks, without checksums or size, as in Kafka."""
        assert compress(LZ4, TEXT)[:6] == b"\x04\x22\x4d\x18\x60\x40"

    def test_lz4_dependent_blocks(self) -> None:
        """Dependent blocks are refused, as in Kafka ("Dependent block stream is unsupported")."""
        packed = lz4.frame.compress(TEXT * 20, block_linked=True, block_size=lz4.frame.BLOCKSIZE_MAX64KB)
        assert not packed[4] & 0x20
        refuse(LZ4, packed)

    def test_zstd_frames(self) -> None:
        """Several zstd frames in a row are read, and skippable frames are skipped (RFC 8878, section 3)."""
        skippable = struct.pack("<II", 0x184D2A53, 3) + b"abc"
        halves = [zstandard.compress(TEXT[: self.HALF]), zstandard.compress(TEXT[self.HALF :])]
        assert both(ZSTD, halves[0] + halves[1]) == TEXT
        assert both(ZSTD, skippable + halves[0] + skippable + halves[1] + skippable) == TEXT
        assert both(ZSTD, skippable) == b""

    @pytest.mark.parametrize("size", [0, 1, 200, 300, 70_000, 300_000])
    @pytest.mark.parametrize("checksum", [False, True])
    @pytest.mark.parametrize("stated", [False, True])
    def test_zstd_headers(self, size: int, checksum: bool, stated: bool) -> None:
        """Frames are read with any form of the content size, and with or without a checksum."""
        data = (TEXT * 4)[:size]
        packed = zstandard.ZstdCompressor(write_content_size=stated, write_checksum=checksum).compress(data)
        assert both(ZSTD, packed) == data
        stream = zstandard.ZstdCompressor(write_checksum=checksum).compressobj()
        assert both(ZSTD, stream.compress(data) + stream.flush()) == data

    def test_zstd_dictionary(self) -> None:
        """A frame that needs a dictionary is refused, because no consumer could read it."""
        dictionary = zstandard.ZstdCompressionDict(TEXT[:1000])
        refuse(ZSTD, zstandard.ZstdCompressor(dict_data=dictionary).compress(TEXT))

    def test_zstd_of_tiny_blocks(self) -> None:
        """Thousands of empty zstd blocks are refused, because each one takes time."""
        start = struct.pack("<IBB", 0xFD2FB528, 0, 80)
        assert both(ZSTD, start + bytes(3) * 500 + b"\1\0\0") == b""
        refuse(ZSTD, start + bytes(3) * 5000 + b"\1\0\0")


class TestDamage:
    @pytest.mark.parametrize("codec", CODECS)
    def test_each_cut(self, codec: CompressionType) -> None:
        """Every truncation of compressed data is refused, although zstd's streaming reader would accept some."""
        packed = compress(codec, TEXT[:3000] + os.urandom(200))
        for cut in range(len(packed)):
            if (codec, cut) == (SNAPPY, 16):
                # The first 16 bytes, the xerial header, are a valid empty stream.
                continue
            refuse(codec, packed[:cut])

    @pytest.mark.parametrize("codec", CODECS)
    @pytest.mark.parametrize("tail", [b"\0", b"\0" * 8, b"\xff" * 30])
    def test_something_behind(self, codec: CompressionType, tail: bytes) -> None:
        """Extra bytes after the compressed data are refused, even if a reader would ignore them."""
        refuse(codec, compress(codec, TEXT) + tail)

    @settings(max_examples=examples(300))
    @given(st.sampled_from(CODECS), st.data())
    def test_changed_bytes(self, codec: CompressionType, data: st.DataObject) -> None:
        """Changed bytes are refused with `CorruptBatch`, or decompress to some data. No other exception is raised."""
        packed = bytearray(compress(codec, TEXT[: data.draw(st.integers(0, 5000))]))
        for _ in range(data.draw(st.integers(1, 3))):
            packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
        try:
            size = decompressed_size(codec, packed, 100_000)
        except CorruptBatch:
            refuse(codec, bytes(packed), 100_000)
        else:
            assert len(decompress(codec, packed, 100_000)) == size <= 100_000

    @settings(max_examples=examples(200))
    @given(st.sampled_from(CODECS), st.binary(max_size=60))
    def test_any_bytes(self, codec: CompressionType, data: bytes) -> None:
        """Random bytes, also after a codec's magic number, are refused with `CorruptBatch` or decompressed."""
        magic = {
            GZIP: b"\x1f\x8b\x08",
            SNAPPY: b"\x82SNAPPY\0" + bytes(8),
            LZ4: b"\x04\x22\x4d\x18",
            ZSTD: b"\x28\xb5\x2f\xfd",
        }
        for packed in (data, magic[codec] + data):
            try:
                assert 0 <= decompressed_size(codec, packed, 1000) <= 1000
            except CorruptBatch:
                refuse(codec, packed, 1000)

    def test_a_context_survives_an_error(self) -> None:
        """zstd's context is reused. After a frame that failed in the middle, the next one is still read correctly."""
        packed = compress(ZSTD, os.urandom(300_000))
        for damaged in (packed[:-10], packed + b"\0", compress(ZSTD, bytes(400_000))):
            with pytest.raises(CorruptBatch):
                decompressed_size(ZSTD, damaged, 300_000)
            assert both(ZSTD, compress(ZSTD, TEXT)) == TEXT

    def test_a_context_with_a_large_window_is_not_kept(self) -> None:
        """A zstd context that has read a frame with a 128 MiB window is dropped, so that no thread keeps this
        memory."""
        packed = zstandard.ZstdCompressor(
            compression_params=zstandard.ZstdCompressionParameters(window_log=27, write_content_size=False)
        ).compressobj()
        data = packed.compress(TEXT) + packed.flush()
        assert both(ZSTD, data) == TEXT
        assert not hasattr(compression._per_thread, "zstd")
        assert both(ZSTD, compress(ZSTD, TEXT)) == TEXT
        assert hasattr(compression._per_thread, "zstd")


@pytest.mark.skipif(sys.platform != "linux", reason="reads the kernel's high-water mark of memory")
@pytest.mark.parametrize("members", [2, 3, 64])
def test_gzip_members_larger_than_a_chunk_end(members: int) -> None:
    """A gzip member may end in the middle of a chunk of input. The next member is still read; this once looped
    forever."""
    data = bytes(3 * CHUNK_BYTES + 1)
    assert decompressed_size(GZIP, gzip.compress(data) * members, BOUND * 4) == len(data) * members


@pytest.mark.long
def test_bombs_take_no_memory() -> None:
    """A bomb of gigabytes is refused at the size limit, and memory does not grow beyond it."""
    size_max = 4 << 20
    root = Path(__file__).parents[3]
    script = Path(__file__).with_name("measure_decompression.py")
    # With fixed thresholds malloc returns freed memory, so that each measurement stands alone.
    settings = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, str(script), str(size_max)],
        env=os.environ | settings,
        capture_output=True,
        check=True,
    )
    results: list[tuple[str, str, int]] = [tuple(row) for row in json.loads(done.stdout)]
    assert len(results) == 24
    outcomes = {name: outcome for name, outcome, _ in results}
    assert all(outcome == ("bomb" if "bomb" in name else "accepted") for name, outcome in outcomes.items()), (
        outcomes
    )
    library = {"lz4": 4 << 20, "zstd": size_max}
    for name, _, peak in results:
        kept = 0 if name.endswith("size") else size_max + size_max // 8
        buffers = next((extra for codec, extra in library.items() if codec in name.lower()), 0)
        assert peak <= kept + buffers + 4 * CHUNK_BYTES, (name, peak)
    # Check that the measurement notices an allocation.
    assert any(peak > size_max for _, _, peak in results)
