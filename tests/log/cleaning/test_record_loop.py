"""The cleaner's record loop compared with a dict: which records it keeps, and in which batches."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.data_plane.log.cleaning.ended_transactions import Aborted
from odradek.data_plane.log.cleaning.pass_values import LastBatches, OffsetMapTooSmall, PassRules
from odradek.data_plane.log.cleaning.record_loop import RecordLoop
from odradek.data_plane.log.parts.producer_state import ProducerState
from odradek.wire.batches.batch_errors import CorruptBatch
from odradek.wire.batches.batch_header import (
    HEADER,
    HEADER_SIZE,
    SEQUENCE_MASK,
    BatchHeader,
    iter_batches,
    parse_header,
    seal,
)
from odradek.wire.batches.records import Record, RecordBatchBuilder, records
from odradek.wire.batches.transaction_markers import EndMarker, build_marker, parse_marker

BYTES_MAX = 1 << 24
OFFSETS = range(1 << 62)
NOW = 1_000_000
DELETE_RETENTION = 500


@attrs.frozen
class Bytes:
    """A file in memory."""

    data: bytes

    def pread(self, count: int, offset: int) -> bytes:
        return self.data[offset : offset + count]


def batch(
    base_offset: int,
    found: list[tuple[bytes | None, bytes | None]],
    codec: int = 0,
    producer_id: int = -1,
    timestamp_type: int = 0,
    horizon: int | None = None,
    transactional: bool = False,
    gap: int = 0,
) -> bytes:
    """Make a batch of keys and values at an offset. Its range of offsets is longer than its records by `gap`."""
    builder = RecordBatchBuilder(
        base_offset=base_offset,
        compression_type=codec,
        producer_id=producer_id,
        producer_epoch=0 if producer_id >= 0 else -1,
        base_sequence=base_offset if producer_id >= 0 else -1,
        timestamp_type=timestamp_type,
        leader_epoch=3,
        delete_horizon_ms=horizon,
        is_transactional=transactional,
    )
    for index, (key, value) in enumerate(found):
        headers = [("h", b"x")] if index % 3 == 0 else []
        builder.append(1000 + base_offset + index * 7 % 5, key, value, headers)
    return bytes(builder.build(last_offset=base_offset + len(found) - 1 + gap))


def a_loop(
    buffer_bytes: int = 1 << 16, load_factor: float = 0.9, aborted: tuple[Aborted, ...] = ()
) -> RecordLoop:
    loop = RecordLoop()
    loop.begin(bytes(range(32)), buffer_bytes, load_factor, BYTES_MAX, len(OFFSETS), aborted)
    return loop


def map_all(loop: RecordLoop, data: bytes, bytes_max: int = 1 << 20, from_offset: int = 0) -> int:
    """Map the keys of a whole file, or until the map is full. Return the offset up to which keys are mapped."""
    at, end = 0, from_offset
    while at < len(data):
        mapped = loop.map_records(Bytes(data), at, len(data), bytes_max, OFFSETS, from_offset)
        end = max(end, mapped.next_offset)
        at += mapped.bytes_read
        if mapped.is_full:
            break
    return end


def clean_all(loop: RecordLoop, data: bytes, bytes_max: int = 1 << 20) -> bytes:
    """Clean a whole file."""
    out, at = bytearray(), 0
    while at < len(data):
        cleaned = loop.clean(Bytes(data), at, len(data), bytes_max, OFFSETS)
        out += cleaned.data
        at += cleaned.bytes_read
    return bytes(out)


def content(data: bytes) -> list[tuple[BatchHeader, list[Record]]]:
    return [
        (header, records(data, at, decompressed_bytes_max=BYTES_MAX)) for at, header in iter_batches(data)
    ]


def rules(map_end: int, last: dict[int, int] | None = None, now: int = NOW) -> PassRules:
    return PassRules(now, now, DELETE_RETENTION, map_end, LastBatches(last or {}, {}))


keys = st.one_of(st.none(), st.integers(0, 12).map(lambda n: b"k%d" % n * (1 + n % 4 * 20)), st.just(b""))
values = st.one_of(st.none(), st.binary(max_size=40))
batches = st.lists(
    st.tuples(
        st.lists(st.tuples(keys, values), min_size=1, max_size=12),
        st.integers(0, 4),
        st.integers(-1, 2),
        st.integers(0, 1),
        st.sampled_from([None, NOW - 1, NOW, NOW + 1]),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=300, deadline=None)
@given(batches, st.integers(0, 12), st.integers(1, 400))
def test_what_stays_is_what_a_dict_says(
    drawn: list[tuple[list[tuple[bytes | None, bytes | None]], int, int, int, int | None, int]],
    dirty_batches: int,
    bytes_max: int,
) -> None:
    """The records that remain are those that a dict keeps.

    Keys, codecs, tombstone horizons and read sizes are random.
    """
    data, offset, ends = b"", 0, []
    last: dict[int, int] = {}
    for found, codec, producer_id, timestamp_type, horizon, gap in drawn:
        data += batch(offset, found, codec, producer_id, timestamp_type, horizon, gap=gap)
        offset += len(found) + gap
        ends.append(offset)
        if producer_id >= 0:
            last[producer_id] = offset - 1
    mapped = b"".join(
        data[at : at + header.size]
        for index, (at, header) in enumerate(iter_batches(data))
        if index < dirty_batches
    )
    loop = a_loop()
    map_end = map_all(loop, mapped, bytes_max)
    loop.rewrite_by(rules(map_end, last))
    out = clean_all(loop, data, bytes_max)

    latest: dict[bytes, int] = {}
    for _, found_records in content(mapped):
        latest.update({record.key: record.offset for record in found_records if record.key is not None})
    wanted: list[tuple[BatchHeader, list[Record]]] = []
    for header, found_records in content(data):
        kept = [
            record
            for record in found_records
            if header.base_offset >= map_end
            or (
                record.key is not None
                and latest.get(record.key, -1) <= record.offset
                and (record.value is not None or not header.has_delete_horizon or header.base_timestamp > NOW)
            )
        ]
        if kept or last.get(header.producer_id) == header.last_offset:
            wanted.append((header, kept))
    found_after = content(out)
    assert [(h.base_offset, h.last_offset, kept) for h, kept in found_after] == [
        (h.base_offset, h.last_offset, kept) for h, kept in wanted
    ]
    for (before, kept), (after, _) in zip(wanted, found_after, strict=True):
        for field in ("partition_leader_epoch", "producer_id", "producer_epoch", "base_sequence"):
            assert getattr(before, field) == getattr(after, field)
        assert before.timestamp_type == after.timestamp_type
        if kept and not before.timestamp_type and len(kept) < before.record_count:
            assert after.max_timestamp == max(record.timestamp for record in kept)
        has_tombstone = any(record.value is None for record in kept) and before.base_offset < map_end
        if before.has_delete_horizon or not kept or not has_tombstone:
            assert after.has_delete_horizon == (before.has_delete_horizon and bool(kept))
        else:
            assert after.has_delete_horizon
            assert after.base_timestamp == NOW + DELETE_RETENTION


def test_a_batch_that_loses_nothing_stays_byte_for_byte() -> None:
    data = batch(0, [(b"a", b"1"), (b"b", b"2")], codec=3) + batch(2, [(b"c", b"3")])
    loop = a_loop()
    loop.rewrite_by(rules(map_all(loop, data)))
    assert clean_all(loop, data) == data


def test_a_full_map_ends_before_the_batch_that_does_not_fit() -> None:
    """If the map of keys is full, it ends before the first batch that does not fit.

    A key that is in the map needs no further slot.
    """
    data = b"".join(batch(2 * n, [(b"%d" % n, b""), (b"x", b"")]) for n in range(100))
    loop = a_loop(buffer_bytes=24 * 20, load_factor=0.5)
    keys_max = loop.begin(bytes(32), 24 * 20, 0.5, BYTES_MAX, len(OFFSETS))
    mapped = loop.map_records(Bytes(data), 0, len(data), 1 << 20, OFFSETS, 0)
    assert mapped.is_full
    assert mapped.keys == keys_max
    assert mapped.next_offset == 2 * (keys_max - 1)
    again = loop.map_records(Bytes(data), mapped.bytes_read, len(data), 1 << 20, OFFSETS, 0)
    assert again.is_full
    assert not again.bytes_read
    assert again.next_offset == mapped.next_offset


def test_one_batch_that_is_too_large_for_the_map_is_said_so() -> None:
    data = batch(0, [(b"%d" % n, b"") for n in range(100)])
    loop = a_loop(buffer_bytes=24 * 20)
    with pytest.raises(OffsetMapTooSmall, match=r"log\.cleaner\.dedupe\.buffer\.size"):
        loop.map_records(Bytes(data), 0, len(data), 1 << 20, OFFSETS, 0)


PRODUCER = 4
COMMIT, ABORT = True, False


def marker(offset: int, is_commit: bool, horizon: int | None = None) -> bytes:
    """Make the producer's transaction marker at an offset."""
    made = parse_header(built := build_marker(PRODUCER, 0, 1, is_commit=is_commit, timestamp_ms=1000), 0)
    data = bytearray(HEADER.pack(*made._replace(base_offset=offset))) + built[HEADER_SIZE:]
    seal(data)
    return bytes(data)


def transaction(offset: int, key: bytes, value: bytes, is_commit: bool) -> bytes:
    """Make a transaction of one record, with its marker."""
    data = batch(offset, [(key, value)], producer_id=PRODUCER, transactional=True)
    return data + marker(offset + 1, is_commit)


def cleaned_twice(data: bytes, aborted: tuple[Aborted, ...], now_ms: tuple[int, int]) -> tuple[bytes, bytes]:
    """Return the results of two passes, the second at the later of two times."""
    left = []
    for now in now_ms:
        loop = a_loop(aborted=aborted)
        end = map_all(loop, data)
        loop.rewrite_by(attrs.evolve(rules(end, now=now), delete_retention_ms=100))
        data = clean_all(loop, data)
        left.append(data)
    return left[0], left[1]


def kept(data: bytes) -> list[tuple[int, int, bool]]:
    """Return (base offset, number of records, has a delete horizon) of each batch."""
    return [
        (header.base_offset, header.record_count, header.has_delete_horizon) for header, _ in content(data)
    ]


def test_an_aborted_record_neither_stays_nor_counts() -> None:
    """An aborted record is removed, and does not count as the latest of its key. The older committed value stays."""
    data = batch(0, [(b"a", b"1")]) + transaction(1, b"a", b"2", ABORT) + batch(3, [(b"b", b"3")])
    once, _ = cleaned_twice(data, ((PRODUCER, 1, 2),), (0, 0))
    assert kept(once) == [(0, 1, False), (2, 1, False), (3, 1, False)]


def test_a_committed_record_counts_and_its_marker_stays_with_it() -> None:
    data = batch(0, [(b"a", b"1")]) + transaction(1, b"a", b"2", COMMIT)
    once, again = cleaned_twice(data, (), (0, 1 << 40))
    assert kept(once) == kept(again) == [(1, 1, False), (2, 1, False)]


@pytest.mark.parametrize("is_commit", [COMMIT, ABORT])
def test_a_marker_without_records_goes_after_its_horizon(is_commit: bool) -> None:
    """A marker whose records are removed stays in that pass. Later passes remove it after `delete.retention.ms`."""
    data = transaction(0, b"a", b"1", is_commit) + batch(2, [(b"a", b"2")])
    aborted = () if is_commit else ((PRODUCER, 0, 1),)
    first, second = cleaned_twice(data, aborted, (1000, 2000))
    assert kept(first) == [(1, 1, False), (2, 1, False)]
    assert kept(second) == [(1, 1, True), (2, 1, False)]
    before, behind = cleaned_twice(second, aborted, (2100, 2101))
    assert kept(before)[-1] == kept(behind)[-1] == (2, 1, False)
    early, _ = cleaned_twice(second, aborted, (2099, 2099))
    assert kept(early) == kept(second)
    assert kept(behind) == [(2, 1, False)]
    (header, (record,)) = content(second)[0]
    assert (header.is_transactional, header.is_control, header.base_timestamp) == (True, True, 2100)
    assert parse_marker(second[: header.size]) == EndMarker(not is_commit, 1)
    assert record.timestamp == 1000


def test_the_last_marker_of_a_producer_stays_though_empty() -> None:
    """The last marker of a producer stays as an empty batch. Its epoch fences older epochs of the producer."""
    data = marker(0, COMMIT) + batch(1, [(b"a", b"2")])
    for now in (1000, 2000, 3000):
        loop = a_loop()
        end = map_all(loop, data)
        of_producer = LastBatches({}, {}, {PRODUCER: 0})
        loop.rewrite_by(attrs.evolve(rules(end, now=now), delete_retention_ms=100, last_batches=of_producer))
        data = clean_all(loop, data)
    assert kept(data) == [(0, 0, False), (1, 1, False)]


def test_index_entries_stay_while_a_reader_may_meet_the_transaction() -> None:
    """An aborted transaction's index entry stays in the pass that removes its last records.

    The next pass removes it, since it could hide later records.
    """
    data = transaction(0, b"a", b"1", ABORT) + batch(2, [(b"a", b"2")])
    loop = a_loop(aborted=((PRODUCER, 0, 1),))
    loop.rewrite_by(rules(map_all(loop, data)))
    first = loop.clean(Bytes(data), 0, len(data), 1 << 20, OFFSETS)
    assert first.abort_markers == [1]
    loop.rewrite_by(rules(3))
    left = bytes(first.data)
    assert loop.clean(Bytes(left), 0, len(left), 1 << 20, OFFSETS).abort_markers == []


@pytest.mark.parametrize("flipped", [30, 70])
def test_damage_is_refused_wherever_it_is(flipped: int) -> None:
    data = bytearray(batch(0, [(b"a", b"1" * 40)]))
    data[flipped] ^= 1
    loop = a_loop()
    with pytest.raises(CorruptBatch):
        loop.map_records(Bytes(bytes(data)), 0, len(data), 1 << 20, OFFSETS, 0)
    for map_end in (0, 1):
        loop.rewrite_by(rules(map_end))
        with pytest.raises(CorruptBatch):
            loop.clean(Bytes(bytes(data)), 0, len(data), 1 << 20, OFFSETS)


def test_records_below_the_first_dirty_offset_are_not_mapped() -> None:
    data = batch(0, [(b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"c", b"1")])
    loop = a_loop()
    mapped = loop.map_records(Bytes(data), 0, len(data), 1 << 20, OFFSETS, 2)
    assert (mapped.records, mapped.keys) == (2, 2)


@pytest.mark.parametrize("base_offset", [-(1 << 62), 0, 1, 3, 1 << 24])
def test_batches_out_of_order_are_damage(base_offset: int) -> None:
    """Base offsets are not in order.

    This is damage, since no checksum covers them, and later records could seem older.
    """
    found: list[tuple[bytes | None, bytes | None]] = [(b"a", b"0"), (b"b", b"1")]
    data = batch(0, found) + batch(base_offset, found)
    loop = a_loop()
    with pytest.raises(CorruptBatch, match="offsets"):
        loop.map_records(Bytes(data), 0, len(data), BYTES_MAX, range(4), 0)
    loop.rewrite_by(rules(6))
    with pytest.raises(CorruptBatch, match="offsets"):
        loop.clean(Bytes(data), 0, len(data), BYTES_MAX, range(4))
    sound = batch(0, found) + batch(2, found)
    assert loop.map_records(Bytes(sound), 0, len(sound), BYTES_MAX, range(4), 0).next_offset == 4


def _header(producer_id: int, base_sequence: int, last_offset: int, delta: int = 1) -> BatchHeader:
    """Make the header of a batch of `delta` + 1 records."""
    builder = RecordBatchBuilder(
        base_offset=last_offset - delta,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=base_sequence,
        leader_epoch=0,
    )
    return parse_header(builder.build(last_offset=last_offset))


@pytest.mark.parametrize(("high_watermark", "kept"), [(12, 11), (10, 9), (8, 7), (6, 5), (2, 1)])
def test_the_last_committed_batch_of_a_producer_stays_whatever_comes_behind_it(
    high_watermark: int, kept: int
) -> None:
    """A producer's last batch below the high watermark stays.

    Uncommitted batches after it may be truncated, and then it is the last again.
    """
    state = ProducerState()
    last_offsets = range(1, 12, 2)
    for last_offset in last_offsets:
        state.update(7, 0, (last_offset - 2) & SEQUENCE_MASK, last_offset, 1, 0, False)
    last = LastBatches.of(state, high_watermark)
    assert [each for each in last_offsets if last.has(_header(7, (each - 2) & SEQUENCE_MASK, each))] == [kept]
    assert not last.has(_header(8, (kept - 2) & SEQUENCE_MASK, kept))


def test_a_delete_horizon_stays_within_64_bits() -> None:
    """`delete.retention.ms` is close to 2^63.

    The delete horizon does not overflow, and the tombstone stays for ever.
    """
    loop = a_loop()
    data = batch(0, [(b"k", None)])
    end = map_all(loop, data)
    loop.rewrite_by(PassRules(NOW, NOW, (1 << 63) - 1, end, LastBatches({}, {})))
    ((_, header),) = iter_batches(loop.clean(Bytes(data), 0, len(data), 1 << 20, OFFSETS).data)
    assert header.has_delete_horizon
    assert header.base_timestamp == (1 << 63) - 1


@pytest.mark.parametrize("claimed", [-1, 0, 1000, NOW])
@pytest.mark.parametrize("codec", [0, 1])
def test_a_header_that_was_wrong_about_its_records_is_right_after_a_pass(codec: int, claimed: int) -> None:
    """A header's newest timestamp is wrong. A pass corrects it, even if all records of the batch stay."""
    sound = batch(0, [(b"a", b"1"), (b"b", b"2"), (b"c", b"3")], codec)
    wrong = bytearray(sound)
    HEADER.pack_into(wrong, 0, *parse_header(sound)._replace(max_timestamp=claimed))
    seal(wrong)
    loop = a_loop()
    end = map_all(loop, bytes(wrong))
    loop.rewrite_by(rules(end))
    ((header, kept),) = content(clean_all(loop, bytes(wrong)))
    assert header.max_timestamp == parse_header(sound).max_timestamp
    assert kept == content(sound)[0][1]
