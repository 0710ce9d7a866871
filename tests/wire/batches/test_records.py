"""Records of built batches are parsed unchanged, by us and by two other clients, with any codec."""

from __future__ import annotations

from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.codec import has_lz4, has_snappy, has_zstd
from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch
from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

from odradek.wire.batches.batch_errors import CorruptBatch, DecompressionBomb, InvalidRecord
from odradek.wire.batches.batch_header import HEADER_SIZE, parse_header
from odradek.wire.batches.compression import compress
from odradek.wire.batches.records import Record, records
from odradek.wire.record_batch import RecordBatchBuilder
from tests.schedule import examples
from tests.wire.batches.test_record_batch import patched, sealed
from tests.wire.strategies import BOUND, CODECS, RecordFields, build_batch, record_lists

KAFKA_PYTHON_CODECS = [
    0,
    1,
    *([2] if has_snappy() else []),
    *([3] if has_lz4() else []),
    *([4] if has_zstd() else []),
]


def fields_of(record: Any) -> tuple[int, RecordFields]:
    """Return offset and fields of a record, of ours or of another client."""
    return record.offset, (record.timestamp, record.key, record.value, tuple(map(tuple, record.headers)))


class TestRoundTrip:
    @settings(max_examples=examples(150))
    @given(record_lists, st.sampled_from(CODECS), st.integers(0, 2**62))
    def test_ours(self, fields: list[RecordFields], codec: int, base_offset: int) -> None:
        """Records of any shape are parsed as they were built, with consecutive offsets."""
        batch = build_batch(fields, codec, base_offset)
        parsed = records(batch, decompressed_bytes_max=BOUND)
        assert [fields_of(record) for record in parsed] == [
            (base_offset + delta, field) for delta, field in enumerate(fields)
        ]
        header = parse_header(batch)
        timestamps = [field[0] for field in fields]
        assert (header.base_timestamp, header.max_timestamp) == (timestamps[0], max(timestamps))
        assert (header.record_count, header.last_offset_delta) == (len(fields), len(fields) - 1)

    @settings(max_examples=examples(60))
    @given(record_lists, st.sampled_from(CODECS))
    def test_aiokafka_reads_ours(self, fields: list[RecordFields], codec: int) -> None:
        """aiokafka's parser returns the same records and accepts the checksum."""
        theirs = AiokafkaBatch(bytes(build_batch(fields, codec)))
        assert theirs.validate_crc()
        assert [fields_of(record) for record in theirs] == list(enumerate(fields))

    @settings(max_examples=examples(60))
    @given(record_lists, st.sampled_from(KAFKA_PYTHON_CODECS))
    def test_kafka_python_reads_ours(self, fields: list[RecordFields], codec: int) -> None:
        """kafka-python's parser returns the same records and accepts the checksum."""
        theirs = KafkaPythonBatch(bytes(build_batch(fields, codec)))
        assert theirs.validate_crc()
        assert [fields_of(record) for record in theirs] == list(enumerate(fields))

    @settings(max_examples=examples(60))
    @given(record_lists, st.sampled_from(CODECS))
    def test_we_read_aiokafkas(self, fields: list[RecordFields], codec: int) -> None:
        """Batches of aiokafka's builder are parsed correctly. Uncompressed, they equal ours byte for byte."""
        builder = AiokafkaBuilder(
            magic=2,
            compression_type=codec,
            is_transactional=False,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
            batch_size=1 << 24,
        )
        for offset, (timestamp, key, value, headers) in enumerate(fields):
            assert builder.append(offset, timestamp, key, value, list(headers)) is not None
        theirs = bytes(builder.build())
        assert [fields_of(record) for record in records(theirs, decompressed_bytes_max=BOUND)] == list(
            enumerate(fields)
        )

    @settings(max_examples=examples(60))
    @given(record_lists, st.sampled_from(KAFKA_PYTHON_CODECS))
    def test_we_read_kafka_pythons(self, fields: list[RecordFields], codec: int) -> None:
        """Batches of kafka-python's builder are parsed correctly."""
        builder = KafkaPythonBuilder(
            magic=2,
            compression_type=codec,
            is_transactional=True,
            producer_id=7,
            producer_epoch=3,
            base_sequence=5,
            batch_size=1 << 24,
        )
        for offset, (timestamp, key, value, headers) in enumerate(fields):
            assert builder.append(offset, timestamp, key, value, list(headers)) is not None
        theirs = bytes(builder.build())
        header = parse_header(theirs)
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 3, 5)
        assert header.is_transactional
        assert [fields_of(record) for record in records(theirs, decompressed_bytes_max=BOUND)] == list(
            enumerate(fields)
        )

    @pytest.mark.parametrize("size", [63, 64, 8191, 8192, 1_048_575, 1_048_576, 10_000_000])
    def test_sizes_at_each_varint_width(self, size: int) -> None:
        """Lengths at the limits of varint widths (2**6, 2**13, 2**20) are encoded and parsed correctly."""
        fields: list[RecordFields] = [(5, b"k" * size, b"v" * size, (("h", b"x" * size),))]
        assert [
            fields_of(record)[1] for record in records(build_batch(fields), decompressed_bytes_max=1)
        ] == fields

    def test_timestamps_may_go_backwards(self) -> None:
        """Timestamps may decrease, because their deltas are signed 64-bit numbers."""
        fields: list[RecordFields] = [(t, None, None, ()) for t in (1 << 41, 0, (1 << 62) - 1, 5)]
        assert [
            fields_of(record)[1] for record in records(build_batch(fields), decompressed_bytes_max=1)
        ] == fields

    def test_many_records(self) -> None:
        """Offset deltas of one, two and three bytes are parsed correctly."""
        fields: list[RecordFields] = [(1, None, b"", ())] * 9000
        parsed = records(build_batch(fields, 4), decompressed_bytes_max=BOUND)
        assert [record.offset for record in parsed] == list(range(9000))


class TestBuilder:
    def test_header_fields(self) -> None:
        """All fields given to the builder are in the header."""
        builder = RecordBatchBuilder(
            base_offset=40,
            compression_type=0,
            timestamp_type=1,
            producer_id=9,
            producer_epoch=2,
            base_sequence=77,
            is_transactional=True,
            is_control=True,
            leader_epoch=6,
        )
        assert builder.append(100, b"k", None) == 40
        assert builder.append(90, None, b"v") == 41
        header = parse_header(builder.build())
        assert (header.base_offset, header.partition_leader_epoch, header.last_offset) == (40, 6, 41)
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 2, 77)
        assert (header.timestamp_type, header.is_transactional, header.is_control) == (1, True, True)
        assert (header.base_timestamp, header.max_timestamp) == (100, 100)

    def test_size_estimate_is_exact_without_compression(self) -> None:
        """`size_estimate` equals the built size without compression, because a producer closes batches by it."""
        builder = RecordBatchBuilder()
        assert builder.size_estimate == HEADER_SIZE
        for count in range(1, 50):
            builder.append(count * 100, b"key", b"v" * count)
            assert builder.size_estimate == len(builder.build())
            assert builder.record_count == count

    def test_compacted_batch_keeps_its_offsets(self) -> None:
        """A batch may have gaps between offsets and a range beyond its last record, as after compaction."""
        builder = RecordBatchBuilder(base_offset=10, compression_type=3)
        builder.append(5, b"a", b"1", offset=12)
        builder.append(6, b"b", b"2", offset=4000)
        assert builder.append(7, b"c", b"3") == 4001
        batch = builder.build(last_offset=5000)
        assert parse_header(batch).last_offset == 5000
        assert [record.offset for record in records(batch, decompressed_bytes_max=BOUND)] == [12, 4000, 4001]

    def test_empty_batch(self) -> None:
        """An empty batch keeps its header with the producer's last sequence number."""
        builder = RecordBatchBuilder(
            base_offset=10, producer_id=3, producer_epoch=0, base_sequence=4, compression_type=4
        )
        batch = builder.build(last_offset=14)
        header = parse_header(batch)
        assert (header.record_count, header.last_offset, header.last_sequence, header.size) == (0, 14, 8, 61)
        assert records(batch, decompressed_bytes_max=BOUND) == []

    def test_delete_horizon(self) -> None:
        """With a delete horizon (attribute bit 6), the base timestamp is the horizon, and timestamps are relative to it
        (KIP-534)."""
        builder = RecordBatchBuilder(delete_horizon_ms=5_000)
        builder.append(1_000, b"k", None)
        header = parse_header(batch := builder.build())
        assert (header.has_delete_horizon, header.base_timestamp, header.max_timestamp) == (
            True,
            5_000,
            1_000,
        )
        assert records(batch, decompressed_bytes_max=BOUND) == [Record(0, 1_000, b"k", None)]

    def test_misuse(self) -> None:
        """Offsets must increase, and an empty batch needs a last offset. Other uses raise ValueError."""
        builder = RecordBatchBuilder(base_offset=10)
        with pytest.raises(ValueError, match="without records"):
            builder.build()
        with pytest.raises(ValueError, match="must be above"):
            builder.append(1, None, None, offset=9)
        builder.append(1, None, None, offset=20)
        with pytest.raises(ValueError, match="must be above"):
            builder.append(1, None, None, offset=20)
        with pytest.raises(ValueError, match="below"):
            builder.build(last_offset=19)

    def test_build_leaves_the_builder_as_it_was(self) -> None:
        """A builder can build again, for a producer that repeats a batch with another epoch."""
        builder = RecordBatchBuilder(compression_type=1)
        builder.append(1, b"k", b"v")
        first = builder.build()
        assert builder.build() == first
        builder.append(2, b"k", b"v")
        assert parse_header(builder.build()).record_count == 2


def raw_batch(body: bytes, count: int = 1, last_offset_delta: int | None = None) -> bytearray:
    """Make a batch with this body and a correct checksum."""
    delta = count - 1 if last_offset_delta is None else last_offset_delta
    header = patched(build_batch([(0, None, None, ())]), record_count=count, last_offset_delta=delta)[
        :HEADER_SIZE
    ]
    return sealed(header + body)


PLAIN = bytes([12, 0, 0, 0, 1, 1, 0])
"""The smallest possible record: length 6, attributes, two deltas of 0, null key, null value, no headers."""


class TestHostileRecords:
    def test_plain(self) -> None:
        """The record that the other tests damage is valid."""
        assert records(raw_batch(PLAIN), decompressed_bytes_max=BOUND) == [Record(0, 0, None, None)]

    @pytest.mark.parametrize(
        ("body", "count"),
        [
            (b"", 1),
            (PLAIN, 2),
            (PLAIN, 2**31 - 1),
            (PLAIN, -1),
            (PLAIN + PLAIN, 1),
            (PLAIN + b"\0", 1),
            (PLAIN[:-1], 1),
            (bytes([10]) + PLAIN[1:], 1),
            (bytes([14]) + PLAIN[1:], 1),
            (bytes([1]) + PLAIN[1:], 1),
            (bytes([12, 0, 0, 0, 3, 1, 0]), 1),
            (bytes([12, 0, 0, 0, 1, 3, 0]), 1),
            (bytes([12, 0, 0, 0, 100, 1, 0]), 1),
            (bytes([12, 0, 0, 0, 1, 100, 0]), 1),
            (bytes([12, 0, 0, 0, 1, 1, 1]), 1),
            (bytes([12, 0, 0, 0, 1, 1, 2]), 1),
            (bytes([16, 0, 0, 0, 1, 1, 2, 1, 1]), 1),
            (bytes([18, 0, 0, 0, 1, 1, 2, 2, 0xFF, 1]), 1),
            (bytes([18, 0, 0, 0, 1, 1, 2, 2, 65, 3]), 1),
            (bytes([20, 0, 0, 0, 1, 1]) + b"\xfe\xff\xff\xff\x0f", 1),
            (bytes([12, 0, 0, 1, 1, 1, 0]), 1),
            (bytes([12, 0, 0, 2, 1, 1, 0]), 1),
            (PLAIN + PLAIN, 2),
            (b"\xff" * 12, 1),
            (bytes([30, 0]) + b"\x80" * 11 + b"\x01\0\1\1\0", 1),
        ],
        ids=[
            "no record", "one record too few", "a count beyond the bytes", "a negative count", "one record too many",
            "a byte behind", "a record cut", "length too short", "length too long", "length negative",
            "key length -2", "value length -2", "key beyond the end", "value beyond the end", "-1 headers",
            "a header that is not there", "a header without a key", "a header key that is not UTF-8",
            "header value length -2", "two billion headers", "a negative offset delta", "an offset delta beyond the last",
            "the same offset twice", "a length without end", "a timestamp of twelve bytes",
        ],
    )  # fmt: skip
    def test_refused(self, body: bytes, count: int) -> None:
        """A record that contradicts its batch or itself raises `InvalidRecord`, before memory is allocated."""
        with pytest.raises(InvalidRecord):
            records(raw_batch(body, count), decompressed_bytes_max=BOUND)

    def test_counts_are_held_against_the_decompressed_bytes(self) -> None:
        """A record count that is impossible for the decompressed bytes is refused at once."""
        batch = raw_batch(b"", 2**31 - 1)
        batch[21:23] = b"\0\4"
        with pytest.raises(InvalidRecord):
            records(sealed(batch + compress(4, PLAIN * 3)), decompressed_bytes_max=BOUND)

    def test_checksum(self) -> None:
        """A wrong checksum raises `CorruptBatch`, unless the consumer sets `check.crcs=false`."""
        batch = build_batch([(1, b"k", b"value", ())])
        batch[-2] ^= 1
        with pytest.raises(CorruptBatch):
            records(batch, decompressed_bytes_max=BOUND)
        assert records(batch, decompressed_bytes_max=BOUND, crc=False)[0].value != b"value"

    @pytest.mark.parametrize("codec", [1, 2, 3, 4])
    def test_bomb(self, codec: int) -> None:
        """Readers refuse to decompress more bytes than allowed."""
        batch = build_batch([(1, None, bytes(100_000), ())], codec)
        with pytest.raises(DecompressionBomb):
            records(batch, decompressed_bytes_max=50_000)

    def test_results_do_not_share_the_buffer(self) -> None:
        """Keys and values are copies, because the receive buffer is reused."""
        batch = build_batch([(1, b"key", b"value", (("h", b"x"),))])
        parsed = records(memoryview(batch), decompressed_bytes_max=BOUND)
        batch[:] = b"\xaa" * len(batch)
        assert parsed == [Record(0, 1, b"key", b"value", (("h", b"x"),))]
