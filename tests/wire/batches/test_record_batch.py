"""Batch headers are parsed, checked and patched, and a broker's checks give Kafka's error codes."""

from __future__ import annotations

from collections.abc import Callable
from struct import pack_into

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.wire.batches.batch_errors import CorruptBatch, DecompressionBomb, InvalidRecord
from odradek.wire.batches.batch_header import (
    HEADER,
    HEADER_SIZE,
    BatchHeader,
    assign_offsets,
    check_crc,
    iter_batches,
    parse_header,
    set_max_timestamp,
)
from odradek.wire.batches.compression import compress
from odradek.wire.batches.records import records
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.record_batch import (
    RecordBatchBuilder,
    check_timestamps,
    parse_produced,
    validate_for_append,
)
from tests.schedule import examples
from tests.wire.strategies import BOUND, CODECS, RecordFields, build_batch, record_lists

LEADER_CHANGE = bytes.fromhex(
    "00000000000000000000004f0000000102f10930f2002000000000000001a1fc29be28000001a1fc29be28ffffffffffff"
    "ffffffffffffffff000000013a0000000800000002260000000000010200000001000200000001000000"
)
"""The first batch of a metadata log that Apache Kafka 4.3.0 wrote: a control batch."""
NO_OP = bytes.fromhex(
    "000000000000000d0000003c000000010231fa46f5000000000000000001a1fc29c2f9000001a1fc29c2f9ffffffffffffffff"
    "ffffffffffff000000011400000001080114000000"
)
"""A later batch of this log, with one NoOpRecord."""

FIELDS: list[RecordFields] = [(1_700_000_000_000 + i, b"k", b"v" * 20, ()) for i in range(3)]


def sealed(batch: bytes | bytearray) -> bytearray:
    """Return the batch with a length and checksum that fit its bytes."""
    batch = bytearray(batch)
    pack_into(">i", batch, 8, len(batch) - 12)
    pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    return batch


def patched(batch: bytes | bytearray, **fields: int) -> bytearray:
    """Return the batch with some header fields replaced and the old checksum."""
    header = parse_header(batch)._replace(**fields)
    return bytearray(HEADER.pack(*header)) + batch[HEADER_SIZE:]


def produce_error(batch: bytes | bytearray, api_version: int = 9, size_max: int = 1 << 20) -> ErrorCode:
    """Run a broker's checks of produced records, in order; return the first error, or NONE."""
    try:
        header = parse_produced(batch, api_version)
        validate_for_append(batch, 0, header, size_max=size_max, decompressed_bytes_max=BOUND)
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE


class TestHeader:
    def test_kafkas_control_batch(self) -> None:
        """A control batch written by Apache Kafka is parsed as Kafka's tools show it, and its checksum is right."""
        header = parse_header(LEADER_CHANGE)
        assert header == BatchHeader(
            0, 79, 1, 2, 0xF10930F2, 0x20, 0, 1795231956520, 1795231956520, -1, -1, -1, 1
        )
        assert header.is_control
        assert not header.is_transactional
        assert header.size == len(LEADER_CHANGE)
        assert check_crc(LEADER_CHANGE, 0, header.size)
        (record,) = records(LEADER_CHANGE, decompressed_bytes_max=BOUND)
        assert record.key == b"\0\0\0\2"

    def test_kafkas_batch_is_built_byte_for_byte(self) -> None:
        """The builder writes the same bytes as Kafka."""
        builder = RecordBatchBuilder(base_offset=13, leader_epoch=1)
        builder.append(1795231957753, None, b"\x01\x14\0\0")
        assert builder.build() == NO_OP

    def test_crc32c_known_answer(self) -> None:
        """The CRC32C of 32 zero bytes is 8A9136AA (RFC 3720, appendix B.4)."""
        assert crc32c(bytes(32)) == 0x8A9136AA

    def test_derived_fields(self) -> None:
        """The header's properties follow from the attribute bits: codec (0-2), timestamp type, transactional, control,
        delete horizon."""
        header = BatchHeader(100, 49, 0, 2, 0, 0b1011100, 9, 0, 0, 1, 0, 2**31 - 5, 10)
        assert (header.compression_type, header.timestamp_type) == (4, 1)
        assert (header.is_transactional, header.is_control, header.has_delete_horizon) == (True, False, True)
        assert (header.size, header.last_offset, header.next_offset) == (61, 109, 110)
        # Sequence numbers wrap to 0 after 2**31 - 1.
        assert header.last_sequence == 4
        assert header._replace(base_sequence=-1).last_sequence == -1

    def test_header_may_be_all_that_is_there(self) -> None:
        """A header can be parsed from its 61 bytes alone, because a log reads them first."""
        batch = build_batch(FIELDS)
        assert parse_header(batch[:HEADER_SIZE]) == parse_header(batch)
        assert not check_crc(batch[:HEADER_SIZE], 0, len(batch))

    @pytest.mark.parametrize("size", [0, 1, 16, 17, 60])
    def test_cut_header(self, size: int) -> None:
        """Fewer than 61 bytes raise `CorruptBatch`."""
        with pytest.raises(CorruptBatch):
            parse_header(bytes(build_batch(FIELDS))[:size])

    @pytest.mark.parametrize(
        ("magic", "error"), [(0, InvalidRecord), (1, InvalidRecord), (3, CorruptBatch), (255, CorruptBatch)]
    )
    def test_other_magics(self, magic: int, error: type[KafkaError]) -> None:
        """Magic 0 and 1, the old formats, raise `InvalidRecord`. Magic above 2 raises `CorruptBatch`."""
        batch = build_batch(FIELDS)
        batch[16] = magic
        with pytest.raises(error):
            parse_header(batch)

    @pytest.mark.parametrize("length", [-(2**31), -1, 0, 48])
    def test_impossible_length(self, length: int) -> None:
        """A batch length shorter than the header is refused, so that a reader never moves backwards."""
        with pytest.raises(CorruptBatch):
            parse_header(patched_length(build_batch(FIELDS), length))

    def test_crc_covers_all_behind_it(self) -> None:
        """The checksum covers every bit from the attributes on. Base offset and leader epoch can change without it."""
        batch = build_batch(FIELDS)
        for position in range(21, len(batch)):
            batch[position] ^= 0x10
            assert not check_crc(batch, 0, len(batch)), position
            batch[position] ^= 0x10
        assign_offsets(batch, 0, 2**62, 2**31 - 1)
        assert check_crc(batch, 0, len(batch))

    @pytest.mark.parametrize("size", [-1, 0, 60])
    def test_crc_of_less_than_a_header(self, size: int) -> None:
        """The checksum never matches for a size below that of a header."""
        assert not check_crc(build_batch(FIELDS), 0, size)


def patched_length(batch: bytearray, length: int) -> bytearray:
    pack_into(">i", batch, 8, length)
    return batch


class TestPatching:
    @given(st.integers(0, 2**62), st.integers(0, 2**31 - 1), st.integers(0, 70))
    def test_assign_offsets(self, base_offset: int, leader_epoch: int, place: int) -> None:
        """Only base offset and leader epoch change, in place within a larger buffer."""
        batch = build_batch(FIELDS)
        before = parse_header(batch)
        buf = bytearray(place) + batch + b"tail"
        assign_offsets(memoryview(buf), place, base_offset, leader_epoch)
        assert parse_header(buf, place) == before._replace(
            base_offset=base_offset, partition_leader_epoch=leader_epoch
        )
        assert check_crc(buf, place, len(batch))
        assert [record.offset for record in records(buf, place, decompressed_bytes_max=BOUND)] == [
            base_offset + delta for delta in range(3)
        ]
        assert buf[place + len(batch) :] == b"tail"

    @pytest.mark.parametrize("codec", CODECS)
    def test_log_append_time(self, codec: int) -> None:
        """With LogAppendTime all records get the batch's maximum timestamp, and no record is rewritten."""
        buf = bytearray(7) + build_batch(FIELDS, codec) + b"tail"
        set_max_timestamp(buf, 7, 1_800_000_000_000, 1)
        header = parse_header(buf, 7)
        assert (header.timestamp_type, header.max_timestamp) == (1, 1_800_000_000_000)
        assert (header.base_timestamp, header.compression_type) == (FIELDS[0][0], codec)
        parsed = records(buf, 7, decompressed_bytes_max=BOUND)
        assert {record.timestamp for record in parsed} == {1_800_000_000_000}
        set_max_timestamp(buf, 7, FIELDS[2][0], 0)
        assert buf == bytearray(7) + build_batch(FIELDS, codec) + b"tail"

    def test_cut_batch_is_not_patched(self) -> None:
        """An incomplete batch is not patched, because a new checksum would make it look complete."""
        batch = build_batch(FIELDS)[:-1]
        with pytest.raises(CorruptBatch):
            set_max_timestamp(batch, 0, 5, 1)


class TestIterBatches:
    def test_stops_at_each_cut(self) -> None:
        """The iteration returns all whole batches and stops at a cut one, as at the end of Kafka's fetch responses."""
        batches = [bytes(build_batch(FIELDS, codec, codec * 3)) for codec in CODECS]
        joined = b"".join(batches)
        ends = [sum(map(len, batches[: count + 1])) for count in range(len(batches))]
        for cut in range(len(joined) + 1):
            found = list(iter_batches(memoryview(joined)[:cut]))
            assert len(found) == sum(end <= cut for end in ends)
            assert all(check_crc(joined, offset, header.size) for offset, header in found)
        assert [offset for offset, _ in iter_batches(joined, ends[1])] == ends[1:-1]

    def test_damage_raises(self) -> None:
        """A batch with an unknown magic raises, since its length may be wrong."""
        second = build_batch(FIELDS)
        second[16] = 9
        found = iter_batches(bytes(build_batch(FIELDS) + second))
        next(found)
        with pytest.raises(CorruptBatch):
            next(found)


GOOD = build_batch(FIELDS)
OK, INVALID, CORRUPT = ErrorCode.NONE, ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE

KAFKAS_ANSWERS: list[tuple[str, Callable[[], bytes | bytearray], ErrorCode]] = [
    ("a good batch", lambda: GOOD, OK),
    ("nothing", lambda: b"", INVALID),
    ("a part of a header", lambda: GOOD[:30], INVALID),
    ("a cut batch", lambda: GOOD[:-1], INVALID),
    ("five zeros behind", lambda: GOOD + bytes(5), OK),
    ("sixteen zeros behind", lambda: GOOD + bytes(16), CORRUPT),
    ("a second start behind", lambda: GOOD + GOOD[:16], OK),
    ("a second, cut batch", lambda: GOOD + GOOD[:-1], OK),
    ("two batches", lambda: GOOD + GOOD, INVALID),
    ("an unknown magic behind", lambda: GOOD + GOOD[:16] + b"\x09", CORRUPT),
    ("magic 0", lambda: GOOD[:16] + b"\0" + GOOD[17:], INVALID),
    ("magic 1", lambda: GOOD[:16] + b"\1" + GOOD[17:], INVALID),
    ("magic 3", lambda: GOOD[:16] + b"\3" + GOOD[17:], CORRUPT),
    ("magic -1", lambda: GOOD[:16] + b"\xff" + GOOD[17:], CORRUPT),
    ("length -1", lambda: patched_length(GOOD[:], -1), CORRUPT),
    ("length 0", lambda: patched_length(GOOD[:], 0), CORRUPT),
    ("length 13", lambda: patched_length(GOOD[:], 13), CORRUPT),
    ("length 14", lambda: patched_length(GOOD[:], 14), CORRUPT),
    ("length 48", lambda: patched_length(GOOD[:], 48), CORRUPT),
    ("base offset 5", lambda: patched(GOOD, base_offset=5), INVALID),
    ("a wrong checksum", lambda: GOOD[:-1] + b"x", CORRUPT),
    ("a leader epoch", lambda: patched(GOOD, partition_leader_epoch=9), OK),
    ("no records", lambda: sealed(patched(GOOD, record_count=0)), INVALID),
    ("-1 records", lambda: sealed(patched(GOOD, record_count=-1)), INVALID),
    ("too few records", lambda: sealed(patched(GOOD, record_count=2)), INVALID),
    ("a large offset delta", lambda: sealed(patched(GOOD, last_offset_delta=7)), INVALID),
    ("an empty range", lambda: sealed(patched(GOOD, last_offset_delta=-1, record_count=0)), INVALID),
    (
        "counts that overflow",
        lambda: sealed(patched(GOOD, last_offset_delta=2**31 - 1, record_count=-(2**31))),
        INVALID,
    ),
    ("a control batch", lambda: sealed(patched(GOOD, attributes=0x20)), INVALID),
    ("LogAppendTime", lambda: sealed(patched(GOOD, attributes=8)), OK),
    ("unknown attributes", lambda: sealed(patched(GOOD, attributes=0x7F80)), OK),
    (
        "a producer without a sequence",
        lambda: sealed(patched(GOOD, producer_id=7, producer_epoch=0)),
        INVALID,
    ),
    ("producer id -5", lambda: sealed(patched(GOOD, producer_id=-5, producer_epoch=0, base_sequence=0)), OK),
    ("timestamps -1", lambda: sealed(patched(GOOD, base_timestamp=-1, max_timestamp=-1)), OK),
    ("timestamps -5", lambda: sealed(patched(GOOD, base_timestamp=-5, max_timestamp=-5)), OK),
]
"""Batches sent to Apache Kafka 4.3.0 with Produce version 8, and its error codes."""


class TestProduced:
    @pytest.mark.parametrize(
        ("build", "code"), [case[1:] for case in KAFKAS_ANSWERS], ids=[case[0] for case in KAFKAS_ANSWERS]
    )
    def test_kafkas_answers(self, build: Callable[[], bytes | bytearray], code: ErrorCode) -> None:
        """A batch gets the same error code as from Kafka 4.3.0."""
        assert produce_error(build()) is code

    @pytest.mark.parametrize("codec", CODECS)
    def test_each_codec(self, codec: int) -> None:
        """Batches of every codec are accepted. zstd needs Produce 7 or newer (KIP-110)."""
        batch = build_batch(FIELDS, codec)
        assert produce_error(batch) is OK
        old = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE if codec == 4 else OK
        assert produce_error(batch, api_version=6) is old

    @pytest.mark.parametrize("codec", CODECS)
    def test_a_count_must_be_possible_for_the_bytes(self, codec: int) -> None:
        """A header with more records than its bytes can hold is INVALID_RECORD, as in Kafka."""
        builder = RecordBatchBuilder(compression_type=codec)
        for _ in range(60):
            builder.append(1_700_000_000_000, None, None)
        batch = builder.build()
        assert produce_error(batch) is OK
        for count in (61, 2**31 - 1):
            lying = patched(batch, record_count=count, last_offset_delta=count - 1)
            assert produce_error(sealed(lying)) is INVALID

    @pytest.mark.parametrize("codec", [5, 6, 7])
    def test_unknown_codec(self, codec: int) -> None:
        """An unknown codec is UNSUPPORTED_COMPRESSION_TYPE. Kafka answers UNKNOWN_SERVER_ERROR instead."""
        assert (
            produce_error(sealed(patched(GOOD, attributes=codec))) is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        )

    @pytest.mark.parametrize("codec", [1, 2, 3, 4])
    @pytest.mark.parametrize("payload", [b"", b"\xff" * 50, bytes(50)], ids=["empty", "ones", "zeros"])
    def test_what_does_not_decompress(self, codec: int, payload: bytes) -> None:
        """Damaged compressed data with a right checksum is INVALID_RECORD, so that the producer does not retry."""
        batch = sealed(patched(GOOD, attributes=codec)[:HEADER_SIZE] + payload)
        assert produce_error(batch) is INVALID

    def test_size_limit(self) -> None:
        """A batch larger than `max.message.bytes` is MESSAGE_TOO_LARGE, even with a wrong checksum."""
        assert produce_error(GOOD, size_max=len(GOOD)) is OK
        assert produce_error(GOOD[:-1] + b"x", size_max=len(GOOD) - 1) is ErrorCode.MESSAGE_TOO_LARGE

    @pytest.mark.parametrize("codec", [1, 2, 3, 4])
    def test_decompressed_limit(self, codec: int) -> None:
        """A decompression bomb is MESSAGE_TOO_LARGE, so that the producer splits it instead of repeating it."""
        batch = sealed(patched(GOOD, attributes=codec)[:HEADER_SIZE] + compress(codec, bytes(100_000)))
        validate_for_append(batch, 0, parse_header(batch), size_max=BOUND, decompressed_bytes_max=100_000)
        with pytest.raises(DecompressionBomb) as caught:
            validate_for_append(batch, 0, parse_header(batch), size_max=BOUND, decompressed_bytes_max=99_999)
        assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE

    def test_batch_inside_a_buffer(self) -> None:
        """A batch is validated within the receive buffer. A batch that is cut off at the end of the buffer is
        refused."""
        buf = bytearray(13) + GOOD + b"tail"
        validate_for_append(
            memoryview(buf), 13, parse_header(buf, 13), size_max=BOUND, decompressed_bytes_max=BOUND
        )
        cut = buf[: 13 + len(GOOD) - 1]
        with pytest.raises(CorruptBatch):
            validate_for_append(cut, 13, parse_header(buf, 13), size_max=BOUND, decompressed_bytes_max=BOUND)


class TestTimestamps:
    NOW = 1_700_000_000_000
    HOUR = 3_600_000

    @pytest.mark.parametrize(
        ("base", "newest", "refused"),
        [
            (NOW, NOW, False),
            (NOW, NOW + HOUR, False),
            (NOW, NOW + HOUR + 1, True),
            (NOW - HOUR, NOW, False),
            (NOW - HOUR - 1, NOW, True),
            (-1, -1, False),
        ],
    )
    def test_create_time(self, base: int, newest: int, refused: bool) -> None:
        """CreateTime is limited by `message.timestamp.before.max.ms` and `.after.max.ms`, except -1, which means no
        timestamp."""
        header = parse_header(GOOD)._replace(base_timestamp=base, max_timestamp=newest)
        if refused:
            with pytest.raises(KafkaError) as caught:
                check_timestamps(header, 0, self.NOW, self.HOUR, self.HOUR)
            assert caught.value.code is ErrorCode.INVALID_TIMESTAMP
        else:
            check_timestamps(header, 0, self.NOW, self.HOUR, self.HOUR)

    def test_log_append_time(self) -> None:
        """With LogAppendTime any time is accepted, because it is overwritten. A producer that sets this timestamp type
        is refused."""
        header = parse_header(GOOD)._replace(base_timestamp=1, max_timestamp=2**60)
        check_timestamps(header, 1, self.NOW, self.HOUR, self.HOUR)
        with pytest.raises(KafkaError) as caught:
            check_timestamps(header._replace(attributes=8), 1, self.NOW, self.HOUR, self.HOUR)
        assert caught.value.code is ErrorCode.INVALID_TIMESTAMP


@st.composite
def damaged(draw: st.DrawFn) -> tuple[bytearray, bool]:
    """Draw a batch with changed, removed or inserted bytes, sometimes with a new checksum.

    Return the batch, and whether its checksum was renewed.
    """
    batch = build_batch(draw(record_lists), draw(st.sampled_from(CODECS)))
    for _ in range(draw(st.integers(1, 4))):
        position = draw(st.integers(0, max(0, len(batch) - 1)))
        match draw(st.sampled_from(["change", "cut", "insert", "end"])):
            case "change":
                batch[position : position + 1] = draw(st.binary(min_size=1, max_size=1))
            case "cut":
                del batch[position : position + draw(st.integers(1, 8))]
            case "insert":
                batch[position:position] = draw(st.binary(min_size=1, max_size=8))
            case _:
                del batch[position:]
    resealed = draw(st.booleans()) and len(batch) >= HEADER_SIZE
    return (sealed(batch) if resealed else batch), resealed


@pytest.mark.long
@settings(max_examples=examples(250))
@given(damaged())
def test_damage_never_escapes(case: tuple[bytearray, bool]) -> None:
    """Readers of damaged bytes return records or raise KafkaError. Without a new checksum damage is found."""
    batch, resealed = case
    code = produce_error(batch)
    try:
        parsed = records(batch, decompressed_bytes_max=BOUND)
    except KafkaError:
        parsed = None
    if parsed is not None and not resealed:
        assert check_crc(batch, 0, parse_header(batch).size)
    if code is not OK and not resealed:
        assert code in (INVALID, CORRUPT, ErrorCode.MESSAGE_TOO_LARGE)
    try:
        found = list(iter_batches(batch))
    except KafkaError:
        found = []
    assert all(offset + header.size <= len(batch) for offset, header in found)
