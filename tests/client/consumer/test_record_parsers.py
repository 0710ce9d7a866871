"""The parsers of records, each compared with a slow and simple one, on good and on damaged bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import example, given
from hypothesis import strategies as st

from odradek.client.consumer.consumer_records import BatchRecords
from odradek.client.consumer.record_runs import LastShapes
from odradek.wire.batches.batch_errors import InvalidRecord
from odradek.wire.batches.batch_header import CRC_START, HEADER_SIZE, parse_header
from odradek.wire.batches.records import Record, RecordBatchBuilder, records, varint
from tests.wire.batches.record_oracle import oracle_records

BYTES_MAX = 1 << 24
NUMBERS = st.sampled_from([0, 1, 2, 63, 64, 65, 8191, 8192, 1 << 31, (1 << 63) - 1, -1, -2, -64, -65])
PART = st.none() | st.binary(max_size=3) | st.sampled_from([62, 63, 64, 65, 8191, 8192]).map(bytes)
ROW = st.tuples(
    st.sampled_from([1, 1, 1, 2, 63, 64, 8128, 9000, 3_000_000]),
    st.integers(-100, 9000) | st.integers(-(1 << 45), 1 << 45),
    PART,
    PART,
    st.lists(st.tuples(st.text(max_size=3), PART), max_size=2),
)


def by_wire(batch: bytes) -> list[Record]:
    return records(batch, decompressed_bytes_max=BYTES_MAX)


def by_consumer(batch: bytes, piece: int = 1 << 20) -> list[Record]:
    opened = BatchRecords(
        "t",
        0,
        memoryview(batch),
        0,
        parse_header(batch),
        decompressed_bytes_max=BYTES_MAX,
        crc=True,
        last_shapes=LastShapes(),
    )
    found: list[Record] = []
    while not opened.is_used_up:
        found += [Record(*record[2:7]) for record in opened.take(piece)]
    return found


def by_spark(batch: bytes) -> list[Record]:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'odradek[spark]'")
    from odradek.spark.decode import decode_batches

    found: list[Record] = []
    for piece in decode_batches(
        batch,
        topic="t",
        partition=0,
        offset=0,
        decompressed_bytes_max=BYTES_MAX,
        with_headers=True,
    ):
        columns = piece.rows.to_pydict() | {
            "timestamp": piece.rows.column("timestamp").cast("int64").to_pylist()
        }
        for offset, timestamp, key, value, headers in zip(
            *(columns[name] for name in ("offset", "timestamp", "key", "value", "headers")), strict=True
        ):
            pairs = tuple((each["key"], each["value"]) for each in headers or ())
            found.append(
                Record(offset, NO_TIME if timestamp is None else timestamp // 1000, key, value, pairs)
            )
    return found


SPARK_TIME_MS_MAX = ((1 << 63) - 1) // 1000
NO_TIME = -1 << 63
"""What Spark's parser returns for a timestamp that its column of microseconds cannot represent."""
PARSERS: dict[str, Callable[[bytes], list[Record]]] = {
    "wire": by_wire,
    "consumer": by_consumer,
    "consumer, piece by piece": lambda batch: by_consumer(batch, 3),
    "spark": by_spark,
}


def compare(parser: str, batch: bytes) -> None:
    """Check that the parser returns the oracle's records, or refuses the batch as the oracle does."""
    key_errors = "strict" if parser == "wire" else "replace"
    try:
        expected = oracle_records(batch, BYTES_MAX, key_errors)
        if parser == "spark":
            expected = [
                each._replace(timestamp=NO_TIME) if abs(each.timestamp) > SPARK_TIME_MS_MAX else each
                for each in expected
            ]
    except InvalidRecord:
        with pytest.raises(InvalidRecord):
            PARSERS[parser](batch)
    else:
        assert PARSERS[parser](batch) == expected


def sealed(batch: bytearray) -> bytes:
    batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
    batch[17:21] = crc32c(bytes(batch[CRC_START:])).to_bytes(4, "big")
    return bytes(batch)


def batch_of(rows: list[Any], **fields: Any) -> bytearray:
    builder = RecordBatchBuilder(base_offset=77, **fields)
    offset = 76
    for gap, delta, key, value, headers in rows:
        offset += gap
        builder.append((1 << 40) + delta, key, value, headers, offset)
    return builder.build()


ROWS = st.lists(ROW, min_size=1, max_size=5)


@pytest.mark.parametrize("parser", PARSERS)
@given(
    rows=ROWS, repeated=st.sampled_from([1, 1, 1, 20, 70]), codec=st.integers(0, 4), kind=st.integers(0, 1)
)
@example(rows=[(1, 0, None, b"v", ())], repeated=65, codec=0, kind=0)
def test_good_records(parser: str, rows: list[Any], repeated: int, codec: int, kind: int) -> None:
    """Good batches are parsed.

    They have gaps of compaction, extreme times, nulls, lengths of each width, headers, runs, and every codec.
    """
    repeats = [(1, *row[1:]) for row in rows[-1:] * repeated]
    compare(parser, bytes(batch_of(rows + repeats, compression_type=codec, timestamp_type=kind)))


@pytest.mark.parametrize("parser", PARSERS)
@pytest.mark.parametrize("before", [63, 64, 127, 128])
@pytest.mark.parametrize("gap", [8128, 1 << 20])
def test_gaps_behind_many_records(parser: str, before: int, gap: int) -> None:
    """An offset delta of three bytes is not parsed as a two-byte one, even if both have the same first bytes."""
    rows = [(1, n, None, b"v" * (n % 3), ()) for n in range(before)]
    for more in range(64):
        compare(parser, bytes(batch_of([*rows, (gap + more, 0, None, b"v", ())])))


@pytest.mark.parametrize("parser", PARSERS)
@pytest.mark.parametrize("length", ["ecffffffffffffffff01", "808080808080808080"])
def test_a_length_that_no_counter_holds(parser: str, length: str) -> None:
    """A record's length does not fit 64 bits. The batch is refused, as for any wrong length."""
    batch = batch_of([(1, 0, None, None, ()), (1, 0, None, None, ())])
    batch[HEADER_SIZE:HEADER_SIZE] = bytes.fromhex(length)
    compare(parser, sealed(batch))


@pytest.mark.parametrize("parser", PARSERS)
def test_a_header_key_that_is_no_text(parser: str) -> None:
    """A header key is not UTF-8.

    The consumers' parsers replace the bad bytes, but the parser of `odradek.wire` refuses the batch.
    """
    batch = batch_of([(1, 0, None, None, [("key", b"v")])])
    at = batch.index(b"key")
    batch[at] = 0x80
    compare(parser, sealed(batch))


@pytest.mark.parametrize("parser", PARSERS)
@given(rows=ROWS, repeated=st.sampled_from([1, 1, 20]), data=st.data())
def test_damaged_records(parser: str, rows: list[Any], repeated: int, data: st.DataObject) -> None:
    """Bytes are changed, removed or inserted under a valid checksum, and counts are wrong."""
    batch = batch_of(rows + [(1, *row[1:]) for row in rows[-1:] * repeated])
    places = st.integers(HEADER_SIZE, len(batch)) | st.integers(HEADER_SIZE, HEADER_SIZE + 12)
    place = min(data.draw(places, "place"), len(batch))
    width = data.draw(st.integers(0, 3), "bytes that go")
    batch[place : place + width] = data.draw(st.binary(max_size=12) | NUMBERS.map(varint), "bytes that come")
    if data.draw(st.booleans(), "header too"):
        at = data.draw(st.sampled_from([23, 57]), "last offset delta, or count")
        number = int.from_bytes(batch[at : at + 4], "big", signed=True)
        number = max(0 if at == 23 else -1, number + data.draw(st.integers(-2, 2), "more"))
        batch[at : at + 4] = number.to_bytes(4, "big", signed=True)
    compare(parser, sealed(batch))


@pytest.mark.parametrize("parser", PARSERS)
@given(parts=st.lists(NUMBERS, min_size=6, max_size=6), more=st.binary(max_size=8), tail=st.integers(0, 3))
@example(parts=[6, 0, 0, -1, -1, 0], more=b"", tail=0)
@example(parts=[0, (1 << 63) - 1, 0, 0, 0, 0], more=b"", tail=0)
def test_numbers_of_any_width(parser: str, parts: list[int], more: bytes, tail: int) -> None:
    """Each number of a record takes its extreme values.

    With `tail`, one number is encoded in more bytes than it needs.
    """
    numbers = [bytearray(varint(number)) for number in parts]
    if tail:
        number = numbers[tail + 1]
        number[-1] |= 0x80
        number += b"\x80" * (tail - 1) + b"\0"
    _, time, offset, key, value, headers = numbers
    record = bytes([0, *time, *offset, *key, *value, *headers, *more])
    length = numbers[0] if parts[0] == 63 else varint(len(record))
    header = batch_of([(1, 0, None, None, ())])[:HEADER_SIZE]
    compare(parser, sealed(header + length + record))
