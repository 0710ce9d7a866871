"""Recompression of a batch with another codec: records and header stay the same."""

from __future__ import annotations

import pytest

from odradek.wire.batches.batch_errors import CorruptBatch
from odradek.wire.batches.batch_header import check_crc, parse_header
from odradek.wire.batches.compression import CompressionType, DecompressionBomb
from odradek.wire.batches.recompression import codec_of, recompress
from odradek.wire.batches.records import records
from odradek.wire.record_batch import RecordBatchBuilder

SIZE_MAX = 1 << 20


def batch(codec: CompressionType) -> bytearray:
    builder = RecordBatchBuilder(
        compression_type=codec,
        producer_id=7,
        producer_epoch=3,
        base_sequence=11,
        is_transactional=True,
        leader_epoch=5,
    )
    for serial in range(50):
        builder.append(1_700_000_000_000 + serial, b"key-%d" % serial, b"value " * 10, [("h", b"x")])
    return builder.build()


@pytest.mark.parametrize("after", CompressionType)
@pytest.mark.parametrize("before", CompressionType)
def test_nothing_but_the_codec_changes(before: CompressionType, after: CompressionType) -> None:
    """After recompression all records and header fields are the same, except length, checksum and codec."""
    original = batch(before)
    header = parse_header(original)
    fresh = recompress(original, header, after, None, SIZE_MAX)
    assert (codec_of(original), codec_of(fresh)) == (before, after)
    changed = parse_header(fresh)
    assert changed.size == len(fresh)
    assert check_crc(fresh, 0, len(fresh))
    assert changed == header._replace(
        batch_length=changed.batch_length,
        crc=changed.crc,
        attributes=header.attributes & ~7 | after,
    )
    limits = {"decompressed_bytes_max": SIZE_MAX}
    assert records(fresh, **limits) == records(original, **limits)


def test_a_level_is_the_codecs_own() -> None:
    """The level is passed to the codec: gzip level 9 gives fewer bytes than level 1."""
    original = batch(CompressionType.NONE)
    header = parse_header(original)
    dense, quick = (recompress(original, header, CompressionType.GZIP, level, SIZE_MAX) for level in (9, 1))
    assert len(dense) < len(quick)


def test_what_does_not_decompress_is_refused() -> None:
    """Damaged data raises `CorruptBatch`, and data above the limit `DecompressionBomb`. The codec of an incomplete
    header is reported as -1."""
    original = batch(CompressionType.GZIP)
    header = parse_header(original)
    with pytest.raises(DecompressionBomb):
        recompress(original, header, CompressionType.NONE, None, 100)
    original[70:90] = bytes(20)
    with pytest.raises(CorruptBatch):
        recompress(original, header, CompressionType.NONE, None, SIZE_MAX)
    assert codec_of(original[:60]) == -1
