"""The consumer's own parser of batches must agree with the plain parser of `odradek.wire.batches.records`."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from odradek.client.consumer.consumer_records import BatchRecords
from odradek.client.consumer.consumer_types import ConsumerRecord
from odradek.client.consumer.record_runs import LastShapes
from odradek.wire.batches.batch_errors import CorruptBatch
from odradek.wire.batches.batch_header import CRC_START, HEADER_SIZE, parse_header
from odradek.wire.batches.records import records
from odradek.wire.errors import KafkaError
from odradek.wire.record_batch import RecordBatchBuilder

BYTES = st.none() | st.binary(max_size=3) | st.integers(60, 9000).map(bytes)
RECORD = st.tuples(
    st.sampled_from([1, 1, 1, 2, 70, 9000, 3_000_000]),
    st.integers(-100, 100) | st.integers(-(1 << 45), 1 << 45),
    BYTES,
    BYTES,
    st.lists(st.tuples(st.text(max_size=3), BYTES), max_size=2),
)


def batch(wanted: list[Any], **fields: Any) -> bytes:
    builder = RecordBatchBuilder(base_offset=77, leader_epoch=5, **fields)
    offset = 76
    for gap, delta, key, value, headers in wanted:
        offset += gap
        builder.append((1 << 40) + delta, key, value, headers, offset)
    return bytes(builder.build())


def opened(data: bytes, **more: Any) -> BatchRecords:
    header = parse_header(data)
    view = memoryview(data)
    return BatchRecords(
        "t",
        3,
        view,
        0,
        header,
        **{"decompressed_bytes_max": 1 << 24, "crc": True, "last_shapes": LastShapes(), **more},
    )


def ours(data: bytes, piece: int = 1 << 20, **more: Any) -> list[ConsumerRecord]:
    """Parse a batch in pieces of at most `piece` records. Raise the first error."""
    batch = opened(data, **more)
    found: list[ConsumerRecord] = []
    while not batch.is_used_up:
        some = batch.take(piece)
        assert len(some) <= piece
        found += some
    return found


def plain(data: bytes) -> list[ConsumerRecord]:
    header = parse_header(data)
    epoch, kind = header.partition_leader_epoch, header.timestamp_type
    return [
        ConsumerRecord("t", 3, *record, epoch, kind)
        for record in records(data, decompressed_bytes_max=1 << 24)
    ]


@given(st.lists(RECORD, min_size=1, max_size=8), st.integers(0, 4), st.integers(0, 1))
def test_it_reads_what_the_plain_parser_reads(
    wanted: list[Any], compression: int, timestamp_type: int
) -> None:
    """Both parsers return equal records.

    Batches have gaps of compaction, extreme times, nulls, long values, headers, and every codec.
    """
    data = batch(wanted, compression_type=compression, timestamp_type=timestamp_type)
    found = ours(data)
    assert found == plain(data)
    assert all(isinstance(record, ConsumerRecord) for record in found)
    assert repr(found[0]).startswith("ConsumerRecord(topic='t', partition=3, offset=")
    assert found[0]._replace(value=b"").value == b""


@pytest.mark.parametrize("count", [1, 64, 65, 8192, 8193, 20_000])
def test_it_reads_batches_of_any_length(count: int) -> None:
    """Batches of any length are read, with offset deltas of one, two and three bytes."""
    data = batch([(1, n % 3, None, b"v", ()) for n in range(count)])
    assert [record.offset for record in ours(data)] == list(range(77, 77 + count))


RUN = st.tuples(
    st.integers(1, 40),
    st.sampled_from([0, 1, 63, 64, 9000]),
    st.sampled_from([None, b"", b"k", b"key"]),
    st.sampled_from([None, b"", b"v", b"value" * 20]),
)


@given(st.lists(RUN, min_size=1, max_size=5), st.data())
def test_the_shape_of_the_batch_before_is_taken_for_nothing_but_a_guess(
    runs: list[Any], data: st.DataObject
) -> None:
    """The parser keeps the record shape of the batch before as a guess.

    A wrong guess never changes the result, even if a batch is damaged.
    """
    last_shapes = LastShapes()
    for count, delta, key, value in runs:
        whole = bytearray(batch([(1, bool(n) * delta, key, value, ()) for n in range(count)]))
        if data.draw(st.booleans()):
            whole[data.draw(st.integers(HEADER_SIZE, len(whole) - 1))] = data.draw(st.integers(0, 255))
            whole[17:21] = crc32c(bytes(whole[CRC_START:])).to_bytes(4, "big")
        try:
            expected = plain(bytes(whole))
        except KafkaError:
            with pytest.raises(KafkaError):
                ours(bytes(whole), last_shapes=last_shapes)
        else:
            assert ours(bytes(whole), last_shapes=last_shapes) == expected


@given(st.lists(RECORD, min_size=1, max_size=3), st.data())
def test_damage_behind_a_good_checksum_is_no_record(wanted: list[Any], data: st.DataObject) -> None:
    """A byte is changed and the checksum recomputed. The parser agrees with the plain one, or both raise an error."""
    whole = bytearray(batch(wanted))
    position = data.draw(st.integers(HEADER_SIZE, len(whole) - 1))
    whole[position] = data.draw(st.integers(0, 255))
    whole[17:21] = crc32c(bytes(whole[CRC_START:])).to_bytes(4, "big")
    try:
        expected = plain(bytes(whole))
    except KafkaError as error:
        if "UTF-8" in error.message:
            # Consumers read a header key that is not UTF-8 with U+FFFD, so the record is not lost.
            with suppress(KafkaError):
                assert any("\ufffd" in key for record in ours(bytes(whole)) for key, _ in record.headers)
        else:
            with pytest.raises(KafkaError):
                ours(bytes(whole))
    else:
        assert ours(bytes(whole)) == expected


@pytest.mark.parametrize("place", [0, 4, 6])
def test_a_negative_length_is_no_record(place: int) -> None:
    """The length of a record, key or value is negative. The batch is refused."""
    whole = bytearray(batch([(1, 0, b"k", b"v", ())]))
    whole[HEADER_SIZE + place] ^= 1
    whole[17:21] = crc32c(bytes(whole[CRC_START:])).to_bytes(4, "big")
    with pytest.raises(KafkaError):
        ours(bytes(whole))


def test_a_wrong_checksum_is_found_unless_it_is_not_looked_for() -> None:
    """With `check.crcs` a wrong checksum is an error. Without it the batch is read."""
    data = bytearray(batch([(1, 0, b"k", b"v", ())]))
    data[17] ^= 1
    with pytest.raises(CorruptBatch, match="t-3: the checksum of the batch at offset 77"):
        ours(bytes(data))
    assert len(ours(bytes(data), crc=False)) == 1
