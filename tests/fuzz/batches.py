"""Target `batches`: record batches of every codec, as a broker, a cleaner and a client read them.

The first byte of an input chooses the form of the rest: a batch as it is, or a batch whose checksum is corrected first.
It may also be compressed records that get a header here, or compressed bytes alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from odradek.wire.batches.batch_header import (
    HEADER,
    HEADER_SIZE,
    MAGIC,
    SIZE_PREFIX,
    BatchHeader,
    iter_batches,
    parse_header,
    seal,
)
from odradek.wire.batches.compression import (
    CompressionType,
    compress,
    decompress,
    decompressed_chunks,
    decompressed_size,
)
from odradek.wire.batches.recompression import recompress
from odradek.wire.batches.record_columns import RecordPlaces, record_columns, record_offsets
from odradek.wire.batches.record_times import record_times
from odradek.wire.batches.records import Record, RecordBatchBuilder, records
from odradek.wire.batches.transaction_markers import build_marker, parse_marker
from odradek.wire.errors import KafkaError
from odradek.wire.record_batch import parse_produced, validate_for_append
from tests.fuzz.target import Input, Target

AS_IT_IS, SEALED, RECORDS, COMPRESSED = range(4)
BYTES_MAX = 1 << 18
_CODECS = len(CompressionType)
_NOW_MS = 1_700_000_000_000


def run(data: bytes) -> None:
    """Read one batch with all readers. Those that accept it must agree on its contents."""
    given = Input(data)
    form = given.byte() % 4
    if form == COMPRESSED:
        _decompress(given.byte() % 8, given.byte() | given.byte() << 10, given.rest())
        return
    batch = _with_header(given) if form == RECORDS else bytearray(given.rest())
    if form == SEALED and len(batch) >= HEADER_SIZE:
        seal(batch)
    _produce(batch)
    read_in_all_ways(batch)


def _with_header(given: Input) -> bytearray:
    """Make a batch with a valid header around arbitrary records."""
    codec, flags, count = given.byte() % _CODECS, given.byte(), given.byte()
    body = compress(codec, given.rest())
    header = BatchHeader(
        flags >> 4,
        HEADER_SIZE - SIZE_PREFIX + len(body),
        -1,
        MAGIC,
        0,
        codec | (flags & 0x7) << 3,
        count - 1,
        _NOW_MS,
        _NOW_MS + 1000,
        -1 if flags & 8 else 5,
        0,
        0,
        count,
    )
    batch = bytearray(HEADER.pack(*header)) + body
    seal(batch)
    return batch


def _decompress(codec: int, size_max: int, data: bytes) -> None:
    """Decompress in three ways. All must return the same bytes and respect the same limit."""
    size, refusal = _size(codec, data, size_max)
    try:
        whole = decompress(codec, data, size_max)
    except KafkaError as error:
        refused = type(error)
    else:
        refused = None
    assert refused is refusal, "a size of what does not decompress"
    if refused is not None:
        return
    assert size == len(whole)
    assert codec == CompressionType.NONE or size <= size_max
    assert b"".join(decompressed_chunks(codec, data, size_max)) == whole
    again = compress(codec, whole)
    assert decompress(codec, again, max(size, 1)) == whole


def _size(codec: int, data: bytes, size_max: int) -> tuple[int, type[KafkaError] | None]:
    try:
        return decompressed_size(codec, data, size_max), None
    except KafkaError as error:
        return -1, type(error)


def _produce(batch: bytearray) -> None:
    """Check a batch as a leader does for a producer."""
    for version in (3, 13):
        try:
            header = parse_produced(batch, version)
            validate_for_append(batch, 0, header, size_max=1 << 20, decompressed_bytes_max=BYTES_MAX)
        except KafkaError:
            continue
        assert header == parse_header(batch)
        assert header.size <= len(batch)
        assert header.record_count == header.last_offset_delta + 1


def read_in_all_ways(batch: bytearray) -> None:
    """Read one batch as clients, lookups by time and the cleaner do."""
    for position, header in _batches_in(batch):
        assert position + header.size <= len(batch)
    try:
        header = parse_header(batch)
        found = records(batch, decompressed_bytes_max=BYTES_MAX)
    except KafkaError:
        _read_what_is_refused(batch)
        return
    assert len(found) == header.record_count
    offsets = [record.offset for record in found]
    assert offsets == sorted(set(offsets))
    assert not offsets or header.base_offset <= offsets[0] <= offsets[-1] <= header.last_offset
    batch = batch[: header.size]
    times = list(record_times(batch, records_max=1 << 16, decompressed_bytes_max=BYTES_MAX))
    assert times == [(record.offset, record.timestamp) for record in found], "two readers read two times"
    _compare_columns(batch, header, found)
    parse_marker(batch)
    for codec in CompressionType:
        other = recompress(batch, header, codec, None, BYTES_MAX)
        assert records(other, decompressed_bytes_max=BYTES_MAX) == found, "another codec, other records"


def _batches_in(batch: bytearray) -> list[tuple[int, BatchHeader]]:
    try:
        return list(iter_batches(batch))
    except KafkaError:
        return []


def _read_what_is_refused(batch: bytearray) -> None:
    """Read a refused batch with readers that check less of it. They may accept it, or raise `KafkaError`."""
    with suppress(KafkaError):
        list(record_times(batch, records_max=1 << 16, decompressed_bytes_max=BYTES_MAX))
    with suppress(KafkaError):
        group = RecordPlaces()
        group.add(batch, 0, parse_header(batch), BYTES_MAX)
        if len(group):
            record_offsets(group.headers, record_columns(group).offset_delta)
    parse_marker(batch)


def _compare_columns(batch: bytearray, header: BatchHeader, found: list[Record]) -> None:
    """Read the batch into columns, as the cleaner and Spark do, and compare them with the records."""
    group = RecordPlaces()
    group.add(batch, 0, header, BYTES_MAX)
    assert len(group) == len(found)
    if not found:
        return
    columns = record_columns(group)
    assert record_offsets(group.headers, columns.offset_delta).tolist() == [record.offset for record in found]
    data = columns.data.tobytes()
    for at, record in enumerate(found):
        for start, length, expected in (
            (columns.key[at], columns.key_length[at], record.key),
            (columns.value[at], columns.value_length[at], record.value),
        ):
            assert (None if length < 0 else data[start : start + length]) == expected, (
                "two readers, two values"
            )


def seeds() -> Iterator[bytes]:
    """Return batches of each codec with and without keys, headers and gaps, a marker, records, and compressed bytes."""
    for codec in CompressionType:
        for count, value, headers in (
            (1, b"v", ()),
            (5, b"value" * 9, (("h", b"1"), ("ü", None))),
            (40, b"", ()),
        ):
            builder = RecordBatchBuilder(
                compression_type=codec, producer_id=5, producer_epoch=0, base_sequence=0
            )
            for at in range(count):
                builder.append(
                    _NOW_MS + at * 900, None if at % 3 else b"k%d" % at, value, headers, offset=at * 2
                )
            batch = bytes(builder.build())
            yield bytes([AS_IT_IS]) + batch
            yield bytes([SEALED]) + batch
            body = batch[HEADER_SIZE:]
            yield bytes([COMPRESSED, codec, 255, 255]) + body
            yield bytes([RECORDS, codec, 0, count]) + decompress(codec, body, BYTES_MAX)
    marker = build_marker(5, 0, 3, is_commit=False, timestamp_ms=_NOW_MS)
    yield bytes([SEALED]) + bytes(marker)
    yield bytes([AS_IT_IS]) + bytes(marker) * 3


TARGET = Target("batches", run, seeds)
