"""Rows for Spark: `odradek.spark.decode` gives the same rows as a simple loop over records, also for damaged bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from odradek.wire.batches.batch_errors import CorruptBatch, DecompressionBomb
from odradek.wire.batches.batch_header import HEADER_SIZE, check_crc, iter_batches
from odradek.wire.batches.compression import compress
from odradek.wire.batches.records import records
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.record_batch import RecordBatchBuilder
from tests.wire.batches.test_record_batch import patched, sealed
from tests.wire.batches.test_records import PLAIN, raw_batch
from tests.wire.strategies import BOUND, CODECS, RecordFields, record_lists

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'odradek[spark]'")
from odradek.spark.decode import SCHEMA, SCHEMA_WITH_HEADERS, decode_batches  # noqa: E402  # needs pyarrow

Row = tuple[int, int | None, int, bytes | None, bytes | None, list[tuple[str, bytes | None]] | None]
"""Offset, timestamp in microseconds (None: out of range), timestampType, key, value, headers (None: no headers)."""

MICROSECONDS_MAX = 2**63 - 1


def plain_rows(buf: bytes, offset: int, offset_end: int | None = None) -> tuple[list[Row], int | None]:
    """Return the rows and the next offset by a simple loop: the expected result of `decode_batches`."""
    rows: list[Row] = []
    next_offset: int | None = None
    end = MICROSECONDS_MAX if offset_end is None else offset_end
    for position, header in iter_batches(buf):
        if header.base_offset < 0 or header.last_offset_delta < 0 or header.next_offset > MICROSECONDS_MAX:
            raise CorruptBatch("offsets that are none")
        if next_offset is not None and header.base_offset < next_offset:
            raise CorruptBatch("batches out of order")
        if header.base_offset >= end:
            return rows, end
        next_offset = header.next_offset
        if header.is_control:
            if not check_crc(buf, position, header.size):
                raise CorruptBatch("the checksum of the record batch is wrong")
            continue
        for record in records(buf, position, decompressed_bytes_max=BOUND, key_errors="replace"):
            beyond = abs(record.timestamp) > MICROSECONDS_MAX // 1000
            if offset <= record.offset < end:
                rows.append(
                    (
                        record.offset,
                        None if beyond else record.timestamp * 1000,
                        header.timestamp_type,
                        record.key,
                        record.value,
                        list(record.headers) or None,
                    )
                )
    return rows, None if next_offset is None else min(next_offset, end)


def arrow_rows(
    buf: bytes | bytearray, offset: int, offset_end: int | None = None, **arguments: Any
) -> tuple[list[Row], int | None]:
    """Return the rows and the next offset by `decode_batches`. Arrow validates every array."""
    rows: list[Row] = []
    next_offset = None
    for piece in decode_batches(
        buf,
        topic="flights",
        partition=7,
        offset=offset,
        offset_end=offset_end,
        decompressed_bytes_max=BOUND,
        with_headers=True,
        **arguments,
    ):
        batch = piece.rows
        batch.validate(full=True)
        assert batch.schema == SCHEMA_WITH_HEADERS
        assert set(batch.column("topic").to_pylist()) <= {"flights"}
        assert set(batch.column("partition").to_pylist()) <= {7}
        rows += zip(
            batch.column("offset").to_pylist(),
            batch.column("timestamp").cast(pa.int64()).to_pylist(),
            batch.column("timestampType").to_pylist(),
            batch.column("key").to_pylist(),
            batch.column("value").to_pylist(),
            [
                None if headers is None else [(header["key"], header["value"]) for header in headers]
                for headers in batch.column("headers").to_pylist()
            ],
            strict=True,
        )
        next_offset = piece.next_offset
    return rows, next_offset


def outcome(function: Any, *arguments: Any, **named: Any) -> Any:
    """Return a reader's result, or the Kafka error that it raises. Other exceptions are not caught."""
    try:
        return function(*arguments, **named)
    except KafkaError as error:
        return error


BatchPlan = tuple[list[RecordFields], int, list[int], int, int, bool]
"""Records, codec, distance of each offset to the one before, gap after the batch, timestamp type, is control batch."""

batch_plans: st.SearchStrategy[list[BatchPlan]] = st.lists(
    st.tuples(
        record_lists,
        st.sampled_from(CODECS),
        st.lists(st.sampled_from([1, 1, 1, 2, 70, 9000]), min_size=20, max_size=20),
        st.sampled_from([0, 0, 0, 5, 100]),
        st.sampled_from([0, 0, 1]),
        st.sampled_from([False, False, False, True]),
    ),
    min_size=1,
    max_size=4,
)


RUNS: st.SearchStrategy[list[tuple[int, int]]] = st.lists(
    # (bytes of a value, number of records with this size). The sizes need length fields of one, two and three bytes.
    st.tuples(st.sampled_from([0, 50, 56, 57, 100, 8200]), st.sampled_from([1, 2, 31, 32, 33, 90])),
    min_size=1,
    max_size=6,
)


def build(plans: Sequence[BatchPlan], base_offset: int) -> list[bytearray]:
    """Build the batches of a log. Some look compacted."""
    built = []
    for fields, codec, steps, gap, timestamp_type, is_control in plans:
        builder = RecordBatchBuilder(
            base_offset=base_offset,
            compression_type=codec,
            timestamp_type=timestamp_type,
            is_control=is_control,
        )
        offset = base_offset - 1
        for step, (timestamp, key, value, headers) in zip(steps, fields, strict=False):
            offset += step
            builder.append(timestamp, key, value, headers, offset=offset)
        built.append(builder.build(last_offset=offset + gap))
        base_offset = offset + gap + 1
    return built


class TestAgainstThePlainReader:
    @settings(max_examples=100, deadline=None)
    @given(batch_plans, st.integers(0, 2**62), st.data())
    def test_same_rows(self, plans: list[BatchPlan], base_offset: int, data: st.DataObject) -> None:
        """For any plan of batches, range of offsets and number of wanted rows, `decode_batches` gives the same rows as
        the simple loop."""
        batches = build(plans, base_offset)
        buf = bytes(b"".join(batches))
        buf += buf[: data.draw(st.integers(0, HEADER_SIZE - 1), "bytes of a cut batch")]
        offset = base_offset + data.draw(st.integers(-3, 300), "start")
        offset_end = data.draw(st.none() | st.integers(0, 500).map(lambda d: base_offset + d), "end")
        rows_wanted = data.draw(st.sampled_from([1, 10, 10_000]), "rows wanted")
        expected = plain_rows(buf, offset, offset_end)
        assert arrow_rows(buf, offset, offset_end, rows_wanted=rows_wanted) == expected

    @settings(max_examples=250, deadline=None)
    @given(batch_plans, st.data())
    def test_damaged_bytes(self, plans: list[BatchPlan], data: st.DataObject) -> None:
        """For damaged bytes, both readers give the same rows or a Kafka error with the same code."""
        batches = build(plans, 5)
        which = data.draw(st.integers(0, len(batches) - 1), "batch")
        batch = batches[which]
        place = data.draw(
            st.integers(0, len(batch) - 1) | st.integers(HEADER_SIZE, min(HEADER_SIZE + 20, len(batch) - 1)),
            "place",
        )
        damage = data.draw(st.binary(min_size=1, max_size=12), "damage")
        batch[place : place + len(damage)] = damage[: len(batch) - place]
        if data.draw(st.booleans(), "with a right checksum and length"):
            assume(len(batch) > HEADER_SIZE)
            batches[which] = sealed(batch)
        buf = bytes(b"".join(batches))
        expected, got = outcome(plain_rows, buf, 0), outcome(arrow_rows, buf, 0)
        if isinstance(got, KafkaError) and "64 bits" in got.message:
            return  # The simple reader accepts this number, but no column can hold it.
        if isinstance(got, KafkaError) and isinstance(expected, KafkaError):
            # All headers are checked before any record, so the two readers may report different faults.
            assert got.code == expected.code or len(plans) > 1
        else:
            assert got == expected

    @pytest.mark.parametrize("codec", CODECS)
    @pytest.mark.parametrize("size", [63, 64, 8191, 8192, 1_048_576])
    def test_widths_of_lengths(self, codec: int, size: int) -> None:
        """Keys, values and headers with length fields of one to four bytes are read correctly between short ones."""
        builder = RecordBatchBuilder(compression_type=codec)
        for key in (b"", b"k" * size, None):
            builder.append(1, key, b"v" * size, (("h" * size, b"x" * size), ("", None)))
            builder.append(2, b"short", key)
        buf = bytes(builder.build())
        assert arrow_rows(buf, 0) == plain_rows(buf, 0)

    @settings(max_examples=60, deadline=None)
    @given(RUNS, st.data())
    def test_records_of_one_length(self, runs: list[tuple[int, int]], data: st.DataObject) -> None:
        """A run of records with the same size is decoded together. The rows, or the error for a damaged byte, are the
        same as with the simple reader."""
        builder = RecordBatchBuilder()
        for size, count in runs:
            for _ in range(count):
                builder.append(1, None, b"v" * size)
        batch = builder.build()
        if data.draw(st.booleans(), "damaged"):
            place = data.draw(st.integers(HEADER_SIZE, len(batch) - 1), "place")
            batch[place] = data.draw(st.integers(0, 255), "byte")
            batch = sealed(batch)
        buf = bytes(batch)
        expected, got = outcome(plain_rows, buf, 0), outcome(arrow_rows, buf, 0)
        if isinstance(got, KafkaError) and isinstance(expected, KafkaError):
            assert got.code == expected.code
        else:
            assert got == expected

    def test_timestamps_far_apart(self) -> None:
        """Timestamp deltas are signed 64-bit numbers. The timestamp -1 (none) is a millisecond before 1970, as in the
        JVM connector."""
        builder = RecordBatchBuilder()
        for timestamp in (1 << 52, 0, -1, MICROSECONDS_MAX // 1000, -(1 << 52)):
            builder.append(timestamp, None, b"")
        buf = bytes(builder.build())
        assert arrow_rows(buf, 0) == plain_rows(buf, 0)
        assert arrow_rows(buf, 2)[0][0][1] == -1000

    def test_many_records(self) -> None:
        """With 20,000 records, offset deltas take three bytes. A batch is never split, so a piece may have more rows
        than wanted."""
        builder = RecordBatchBuilder(compression_type=4)
        for _ in range(20_000):
            builder.append(1, b"k", b"v")
        buf = bytes(builder.build())
        pieces = list(
            decode_batches(buf, topic="t", partition=0, offset=15_000, decompressed_bytes_max=BOUND)
        )
        assert [piece.rows.num_rows for piece in pieces] == [5_000]
        assert pieces[0].rows.column("offset").to_pylist() == list(range(15_000, 20_000))


class TestPieces:
    def test_schema_without_headers(self) -> None:
        """Without `includeHeaders` the rows have the JVM connector's seven columns."""
        builder = RecordBatchBuilder()
        builder.append(1, b"k", b"v", (("h", b"x"),))
        (piece,) = decode_batches(
            builder.build(), topic="t", partition=0, offset=0, decompressed_bytes_max=BOUND
        )
        assert piece.rows.schema == SCHEMA
        assert piece.rows.schema.names == [
            *("key", "value", "topic", "partition", "offset", "timestamp", "timestampType"),
        ]

    def test_control_batches_move_the_position(self) -> None:
        """A control batch alone moves the next offset, so that it is not fetched again."""
        builder = RecordBatchBuilder(base_offset=41, is_control=True, is_transactional=True, producer_id=1)
        builder.append(1, b"\0\0\0\1", b"\0\0\0\0\0\0")
        assert arrow_rows(builder.build(), 41) == ([], 42)

    def test_emptied_batch(self) -> None:
        """An empty batch, as compaction leaves it, moves the next offset to the end of its range."""
        assert arrow_rows(RecordBatchBuilder(base_offset=10).build(last_offset=14), 10) == ([], 15)

    def test_all_below_the_end_compacted_away(self) -> None:
        """If the first batch begins after the wanted end, the next offset is the wanted end."""
        builder = RecordBatchBuilder(base_offset=90)
        builder.append(1, b"k", b"v")
        assert arrow_rows(builder.build(), 10, 50) == ([], 50)

    def test_no_whole_batch(self) -> None:
        """An incomplete batch at the end of a fetch is ignored: there are no rows, and the next offset is None."""
        batch = RecordBatchBuilder(base_offset=90).build(last_offset=91)
        assert arrow_rows(b"", 0) == ([], None)
        assert arrow_rows(batch[:-1], 0) == ([], None)


STEPS = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from(["write", "write", "commit", "abort"])), max_size=24
)


def transactional_log(steps: Sequence[tuple[int, str]]) -> tuple[bytes, list[int], list[tuple[int, int]]]:
    """Make a log of three producers' transactions; return its bytes, the visible offsets and the aborted transactions.

    Aborted transactions are (first offset, producer id), sorted by first offset, as brokers list them. A transaction
    left open at the end counts as committed: in practice a broker would not return it.
    """
    out = bytearray()
    open_since: dict[int, int] = {}
    seen: dict[int, list[int]] = {}
    visible: list[int] = []
    aborted: list[tuple[int, int]] = []
    for offset, (producer, what) in enumerate(steps):
        marker = what != "write"
        builder = RecordBatchBuilder(
            base_offset=offset,
            is_transactional=True,
            is_control=marker,
            producer_id=producer,
            producer_epoch=0,
        )
        if marker:
            builder.append(1, b"\0\0\0\1" if what == "commit" else b"\0\0\0\0", b"\0\0\0\0\0\0")
            first = open_since.pop(producer, None)
            records_of = seen.pop(producer, [])
            if what == "commit":
                visible += records_of
            elif first is not None:
                aborted.append((first, producer))
        else:
            builder.append(1, b"k", b"%d" % offset)
            open_since.setdefault(producer, offset)
            seen.setdefault(producer, []).append(offset)
        out += builder.build()
    for left in seen.values():
        visible += left
    return bytes(out), sorted(visible), sorted(aborted)


class TestTransactions:
    @settings(deadline=None)
    @given(STEPS, st.integers(0, 24))
    def test_aborted_records_are_left_out(self, steps: list[tuple[int, str]], offset: int) -> None:
        """Records of aborted transactions, from the first offset to the abort marker, are left out (KIP-98)."""
        log, visible, aborted = transactional_log(steps)
        start = [position for position, header in iter_batches(log) if header.base_offset >= offset]
        rest = log[start[0] :] if start else b""
        ends = {(first, producer): _marker_after(steps, first, producer) for first, producer in aborted}
        named = [each for each in aborted if ends[each] >= offset]
        rows, next_offset = arrow_rows(rest, offset, aborted=named)
        assert [row[0] for row in rows] == [each for each in visible if each >= offset]
        assert next_offset == (len(steps) if start else None)
        everything, _ = arrow_rows(rest, offset)
        assert [row[0] for row in everything] == [
            each for each, (_, what) in enumerate(steps) if what == "write" and each >= offset
        ]

    def test_checksums_of_what_is_left_out(self) -> None:
        """The checksum of an aborted batch is checked, too."""
        log = bytearray(transactional_log([(0, "write"), (0, "abort")])[0])
        log[HEADER_SIZE + 3] ^= 1
        with pytest.raises(CorruptBatch):
            arrow_rows(log, 0, aborted=[(0, 0)])

    def test_other_records_of_the_producer(self) -> None:
        """Only transactional records can be aborted. Other records with the same producer id are kept."""
        builder = RecordBatchBuilder(base_offset=5, producer_id=0, producer_epoch=0)
        builder.append(1, b"k", b"v")
        rows, _ = arrow_rows(builder.build(), 5, aborted=[(5, 0)])
        assert [row[0] for row in rows] == [5]


def _marker_after(steps: Sequence[tuple[int, str]], first: int, producer: int) -> int:
    return next(
        at for at, (who, what) in enumerate(steps) if at > first and who == producer and what == "abort"
    )


def code_of(buf: bytes | bytearray, bytes_max: int = BOUND) -> ErrorCode:
    """Return the code of the Kafka error that decoding raises."""
    bounds: dict[str, Any] = {"offset": 0, "decompressed_bytes_max": bytes_max}
    with pytest.raises(KafkaError) as raised:
        list(decode_batches(buf, topic="t", partition=0, with_headers=True, **bounds))
    return raised.value.code


class TestHostileBytes:
    def test_checksum(self) -> None:
        """A flipped bit is found, even in control batches and in records that would be left out."""
        for is_control in (False, True):
            builder = RecordBatchBuilder(is_control=is_control)
            builder.append(1, b"k", b"v")
            batch = builder.build()
            batch[-2] ^= 1
            assert code_of(batch) is ErrorCode.CORRUPT_MESSAGE

    def test_bombs(self) -> None:
        """Batches that decompress to more than the limit are refused early, with every codec."""
        for codec in CODECS:
            builder = RecordBatchBuilder(compression_type=codec)
            builder.append(1, None, bytes(100_000))
            assert code_of(builder.build(), 50_000) is ErrorCode.MESSAGE_TOO_LARGE
        with pytest.raises(DecompressionBomb):
            arrow_rows(sealed(patched(raw_batch(b""), attributes=4) + compress(4, bytes(BOUND + 1))), 0)

    def test_unknown_codec(self) -> None:
        """Compression types 5 to 7 are refused as unsupported."""
        assert code_of(sealed(patched(raw_batch(PLAIN), attributes=5))) is (
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        )

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
            (bytes([13]) + PLAIN[1:], 1),
            (b"\xff" * 11 + PLAIN, 1),
            (b"\x0c\0" + b"\xff" * 9 + b"\x01" + PLAIN[3:], 1),
            (bytes([12, 0, 0, 0, 3, 1, 0]), 1),
            (bytes([12, 0, 0, 0, 1, 3, 0]), 1),
            (bytes([12, 0, 0, 0, 100, 1, 0]), 1),
            (bytes([12, 0, 0, 0, 1, 100, 0]), 1),
            (bytes([12, 0, 0, 0, 1, 1, 1]), 1),
            (bytes([12, 0, 0, 0, 1, 1, 2]), 1),
            (bytes([28, 0, 0, 0, 1, 1]) + b"\xfe" + b"\xff" * 8, 1),
            (bytes([30, 0, 0, 0]) + b"\xfe" + b"\xff" * 8 + b"\x01" + b"\1\0", 1),
            (bytes([20, 0, 0, 0, 1, 1, 2, 2, 0xFF, 0, 0]), 1),
            (PLAIN + PLAIN, 2),
            (bytes([12, 0, 0, 2, 1, 1, 0]), 1),
            (bytes([12, 0, 0, 1, 1, 1, 0]), 1),
        ],
    )
    def test_records_that_contradict_themselves(self, body: bytes, count: int) -> None:
        """Records with impossible lengths, counts or deltas raise INVALID_RECORD, although the checksum is right."""
        assert code_of(raw_batch(body, count, max(count - 1, 0))) is ErrorCode.INVALID_RECORD

    def test_header_key_that_is_no_text(self) -> None:
        """Brokers accept header keys that are not UTF-8. They are read with replacement characters."""
        odd = raw_batch(bytes([18, 0, 0, 0, 1, 1, 2, 2, 0xFF, 1]))
        assert arrow_rows(odd, 0)[0][0][5] == [("\N{REPLACEMENT CHARACTER}", None)]
        (piece,) = decode_batches(odd, topic="t", partition=0, offset=0, decompressed_bytes_max=BOUND)
        assert piece.rows.num_rows == 1

    def test_timestamp_beyond_microseconds(self) -> None:
        """A timestamp that does not fit into Spark's 64 bits of microseconds becomes null. Other rows are not
        affected."""
        for first, second in ((1 << 60, 0), (0, 1 << 60), (0, -(1 << 60))):
            builder = RecordBatchBuilder()
            builder.append(first, None, None)
            builder.append(second, None, None)
            times = [row[1] for row in arrow_rows(builder.build(), 0)[0]]
            assert times == [0 if each == 0 else None for each in (first, second)]
        largest = b"\xfe" + b"\xff" * 8 + b"\x01"
        batch = raw_batch(bytes([30, 0]) + largest + bytes([0, 1, 1, 0]))
        assert records(batch, decompressed_bytes_max=BOUND)[0].timestamp == (1 << 63) - 1
        doubled = sealed(patched(batch, base_timestamp=(1 << 63) - 1))  # -2 in 64 bits
        assert [row[1] for row in arrow_rows(doubled, 0)[0]] == [None]

    def test_batches_out_of_order(self) -> None:
        """The checksum does not cover base offsets, so a wrong one is found by the order of batches."""
        builder = RecordBatchBuilder(base_offset=5)
        builder.append(1, None, None)
        assert code_of(builder.build() * 2) is ErrorCode.CORRUPT_MESSAGE

    def test_limit_of_arrow(self) -> None:
        """Arrow's 32-bit positions limit the decompressed bytes to 1 GiB. More is refused."""
        with pytest.raises(ValueError, match="at most"):
            next(decode_batches(b"", topic="t", partition=0, offset=0, decompressed_bytes_max=1 << 31))
