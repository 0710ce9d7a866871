"""Records that a consumer cannot decode.

Earlier records come first, then an error with the offset, which `seek` skips.
"""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from struct import Struct

import pytest
from crc32c import crc32c

from odradek import TopicPartition, UndecodableRecord
from odradek.wire.batches.batch_errors import CorruptBatch, InvalidRecord
from odradek.wire.batches.batch_header import CRC_START, HEADER_SIZE, assign_offsets, parse_header
from odradek.wire.record_batch import RecordBatchBuilder
from tests.client.consumer.consumers import fill, numbers
from tests.client.consumer.fake_group import FakeConsumer

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
_LAST_DELTA, _COUNT = (23, Struct(">i")), (57, Struct(">i"))


def append(found: FakeConsumer, values: list[bytes], partition: int = 0, compression: int = 0) -> bytearray:
    """Append a batch of these values to a partition. Return the batch as the broker will serve it."""
    target = found.broker.topics["t"].partitions[partition]
    builder = RecordBatchBuilder(compression_type=compression)
    for value in values:
        builder.append(0, None, value)
    data = builder.build()
    assign_offsets(data, 0, target.end_offset, 0)
    target.batches.append((target.end_offset, bytes(data)))
    target.end_offset = parse_header(data).next_offset
    return data


def served(found: FakeConsumer, index: int, data: bytearray, *, crc: bool = True) -> None:
    """Make the broker serve these bytes in place of its batch number `index`."""
    if crc:
        data[17:21] = crc32c(bytes(data[CRC_START:])).to_bytes(4, "big")
    batches = found.broker.topics["t"].partitions[0].batches
    batches[index] = (batches[index][0], bytes(data))


def reading(partitions: int = 1, **keys: object) -> FakeConsumer:
    found = FakeConsumer(**keys)
    found.broker.add_topic("t", partitions)
    found.machine.assign_manually([T0, T1][:partitions])
    return found


def refused(found: FakeConsumer, poll: Callable[[], object] | None = None) -> UndecodableRecord:
    with pytest.raises(UndecodableRecord) as caught:
        (poll or found.poll)()
    return caught.value


def test_a_record_that_a_deserializer_refuses_is_named_and_can_be_passed() -> None:
    """A deserializer fails.

    Every poll raises an error with partition, offset and bytes, as Kafka's RecordDeserializationException has.
    """
    found = reading(2, value_deserializer=json.loads)
    append(found, [b"0", b"no json", b"2"])
    append(found, [b"7", b"8"], partition=1)
    values = found.values()
    while 0 not in values:
        values += found.values()
    for _ in range(3):
        error = refused(found)
        assert (error.topic, error.partition, error.offset, error.next_offset) == ("t", 0, 1, 2)
        assert isinstance(error.__cause__, json.JSONDecodeError)
        assert error.record is not None
        assert error.record.value == b"no json"
        assert found.machine.positions()[T0].offset == 1
    assert "t-0" in str(error)
    assert "offset 1 " in str(error)
    found.machine.seek(T0, error.next_offset, -1)
    while len(values) < 4:
        values += found.values()
    assert sorted(values) == [0, 2, 7, 8]


def test_other_partitions_go_on_while_one_is_paused_before_its_bad_record() -> None:
    """A partition is paused before its bad record.

    Other partitions lose no record, and after `resume` the error is raised again.
    """
    found = reading(2, value_deserializer=json.loads, max_poll_records=1)
    append(found, [b"no json"])
    append(found, [b"7", b"8"], partition=1)
    values: list[int] = []
    error = None
    while len(values) < 2:
        try:
            values += found.values()
        except UndecodableRecord as caught:
            error = caught
            found.machine.pause([T0], paused=True)
    assert values == [7, 8]
    found.machine.pause([T0], paused=False)
    again = refused(found)
    assert again.offset == 0
    assert error is None or error.offset == 0


def test_a_batch_of_an_impossible_count_gives_the_records_that_it_has() -> None:
    """A header claims 2147483647 records, but the batch has one.

    This record comes, then an error with the offset after the batch.
    """
    found = reading()
    append(found, [b"0"])
    data = append(found, [b"1"])
    for place, number in (_LAST_DELTA, _COUNT):
        number.pack_into(data, place, 2**31 - 1 - (place == _LAST_DELTA[0]))
    served(found, 1, data)
    partition = found.broker.topics["t"].partitions[0]
    partition.end_offset = 2**31
    fill(found.broker, 1)
    assert found.values() == [b"0", b"1"]
    for _ in range(2):
        error = refused(found)
        assert (error.partition, error.offset, error.next_offset) == (0, 2, 2**31)
        assert isinstance(error.__cause__, InvalidRecord)
    found.machine.seek(T0, error.next_offset, -1)
    assert found.values() == [b"%d" % 2**31]


@pytest.mark.parametrize("compression", [0, 4])
def test_what_stands_before_a_broken_record_in_its_batch_is_handed_out(compression: int) -> None:
    """The third of five records is malformed.

    The two before it are returned, then an error is raised, as in Java's client.
    """
    found = reading()
    plain = append(found, [b"value"] * 5)
    size = (len(plain) - HEADER_SIZE) // 5
    body = bytearray(plain[HEADER_SIZE:])
    body[2 * size] += 2
    if compression:
        from odradek.wire.batches.compression import compress

        plain[21:23] = compression.to_bytes(2, "big")
        body = bytearray(compress(compression, bytes(body), None))
    data = plain[:HEADER_SIZE] + body
    data[8:12] = (len(data) - 12).to_bytes(4, "big")
    served(found, 0, data)
    append(found, [b"next"])
    assert found.values() == [b"value"] * 2
    error = refused(found)
    assert (error.offset, error.next_offset, error.record) == (2, 5, None)
    found.machine.seek(T0, error.next_offset, -1)
    assert found.values() == [b"next"]


@pytest.mark.parametrize("first", [True, False])
def test_a_batch_of_another_format_is_an_error_and_not_the_end_of_the_consumer(first: bool) -> None:
    """A batch has magic 9. Batches before it come, then every poll raises until the broker serves a valid batch."""
    found = reading()
    if not first:
        append(found, [b"before"])
    data = append(found, [b"value"])
    sound = bytes(data)
    data[16] = 9
    served(found, -1, data, crc=False)
    if not first:
        assert found.values() == [b"before"]
    for poll in (found.poll, found.poll_batches, found.poll):
        error = refused(found, poll)
        assert error.offset == (0 if first else 1)
        assert isinstance(error.__cause__, CorruptBatch)
    served(found, -1, bytearray(sound))
    assert found.values() == [b"value"]


def test_raw_batches_that_were_taken_are_not_lost_by_a_damaged_one() -> None:
    """`poll_batches` returns the batches before a damaged one. The next call raises an error."""
    found = reading()
    append(found, [b"0"])
    data = append(found, [b"1"])
    data[-1] ^= 1
    served(found, 1, data, crc=False)
    assert [batch.base_offset for batch in found.poll_batches()] == [0]
    assert refused(found, found.poll_batches).offset == 1


def test_a_header_key_that_is_not_utf8_hides_no_record() -> None:
    """A header key is not UTF-8, which brokers accept.

    The consumer replaces its bad bytes by U+FFFD, as Java's client does.
    """
    found = reading()
    builder = RecordBatchBuilder()
    builder.append(0, None, b"v", (("hh", b"x"),))
    data = builder.build()
    assign_offsets(data, 0, 0, 0)
    place = data.index(b"hh")
    data[place : place + 2] = b"\xff\xfe"
    partition = found.broker.topics["t"].partitions[0]
    partition.batches.append((0, b""))
    partition.end_offset = 1
    served(found, 0, data)
    (record,) = found.poll()
    assert record.headers == (("\ufffd\ufffd", b"x"),)


def test_a_poll_makes_the_records_that_it_hands_out_and_few_more() -> None:
    """A compressed batch holds very many records. A poll makes only the records that it returns and a few more."""
    found = reading()
    count = 100_000
    append(found, [b"%d" % n for n in range(count)], compression=4)
    tracemalloc.start()
    try:
        values = found.values()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert values == numbers(0, 499)
    assert peak < 100 * count // 2
    while len(values) < count:
        values += found.values()
    assert values == numbers(0, count - 1)
