"""Fetching against a scripted broker: positions, resets, and batches cut at either end."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.client.core import partition_offsets as offsets
from odradek.client.core.partition_offsets import EARLIEST, LATEST, list_offsets
from odradek.wire.api import ApiKey
from odradek.wire.batches.batch_errors import CorruptBatch
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.fetch import FetchRequest
from odradek.wire.record_batch import RecordBatchBuilder
from sim.load.fetching import FetchConfig, Fetcher
from sim.load.producing import ProduceConfig, Producing, RecordToSend
from tests.client.core.test_core import make
from tests.client.fake_broker import HANG_UP, SILENCE, FakeBroker


def setup(count: int = 0, partitions: int = 1, **config: Any) -> tuple[Any, FakeBroker, Fetcher]:
    """Make a broker with `count` records in partition 0, three in each batch, and a fetcher."""
    core, wire, broker = make(request_timeout=3.0)
    broker.add_topic("t", partitions)
    producing = Producing(core, ProduceConfig(batch_bytes_max=115))
    records = [RecordToSend("t", b"%d" % n, partition=0, timestamp_ms=1000 + n) for n in range(count)]
    if records:
        wire.run(producing.produce(records, timeout=5))
    return wire, broker, Fetcher(core, FetchConfig(**{"unavailable_timeout": 5.0, **config}))


def read(wire: Any, fetcher: Fetcher, polls: int = 1) -> list[bytes | None]:
    found: list[bytes | None] = []
    for _ in range(polls):
        for fetched in wire.run(fetcher.poll(timeout=1)):
            found += [record.value for record in fetched.records()]
    return found


def test_a_position_inside_a_batch_drops_the_batchs_earlier_records() -> None:
    """A broker sends whole batches. Records before the position are dropped."""
    wire, _, fetcher = setup(count=9)
    fetcher.assign("t", 0, 4)
    assert read(wire, fetcher) == [b"4", b"5", b"6", b"7", b"8"]
    assert fetcher.positions["t", 0] == 9
    assert fetcher.high_watermarks["t", 0] == 9
    assert read(wire, fetcher) == []


def test_a_batch_cut_at_the_end_comes_with_the_next_poll() -> None:
    """A batch that is cut off at the end of a response is ignored, and the next poll fetches it whole."""
    wire, _broker, fetcher = setup(count=9, partition_max_bytes=150)
    fetcher.assign("t", 0, 0)
    assert read(wire, fetcher) == [b"0", b"1", b"2"]
    assert read(wire, fetcher, polls=2) == [b"%d" % n for n in range(3, 9)]


def test_an_answer_without_a_whole_batch_is_damage() -> None:
    """If the first batch of a response is not whole, the response is refused. Brokers return this batch whole,
    whatever the limit is (KIP-74)."""
    wire, _, fetcher = setup(count=3, partition_max_bytes=50)
    fetcher.assign("t", 0, 0)
    with pytest.raises(CorruptBatch, match="no whole batch"):
        read(wire, fetcher)


def test_a_position_out_of_range_is_an_error_or_is_reset() -> None:
    """The fetch position is out of range. With auto.offset.reset=none this is an error. With earliest or latest, the
    position is reset."""
    wire, _broker, fetcher = setup(count=3)
    fetcher.assign("t", 0, 77)
    with pytest.raises(KafkaError, match="offset 77 of t-0 is out of range") as caught:
        read(wire, fetcher)
    assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    for reset_to, position in ((EARLIEST, 0), (LATEST, 3)):
        fetcher = Fetcher(wire.core, FetchConfig(reset_to=reset_to))
        fetcher.assign("t", 0, 77)
        assert read(wire, fetcher) == []
        assert fetcher.positions["t", 0] == position


def test_retriable_trouble_is_borne_and_nothing_is_lost_or_doubled() -> None:
    """Leader changes, lost connections and missing responses only cost time. No record is lost or repeated."""
    wire, broker, fetcher = setup(count=9)
    fetcher.assign("t", 0, 0)
    broker.trouble[ApiKey.FETCH].extend(
        [int(ErrorCode.NOT_LEADER_OR_FOLLOWER), HANG_UP, int(ErrorCode.FENCED_LEADER_EPOCH), SILENCE]
    )
    assert read(wire, fetcher, polls=12) == [b"%d" % n for n in range(9)]


def test_trouble_without_end_is_raised_after_unavailable_timeout() -> None:
    """If trouble lasts longer than the timeout, the partition's error is raised."""
    wire, broker, fetcher = setup(count=3)
    fetcher.assign("t", 0, 0)
    broker.trouble[ApiKey.FETCH].extend([int(ErrorCode.KAFKA_STORAGE_ERROR)] * 100)
    with pytest.raises(KafkaError) as caught:
        read(wire, fetcher, polls=100)
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert 5 <= wire.now < 8


def test_an_error_that_is_final_is_raised_at_once() -> None:
    """A final error such as TOPIC_AUTHORIZATION_FAILED is raised at once."""
    wire, broker, fetcher = setup(count=3)
    fetcher.assign("t", 0, 0)
    broker.trouble[ApiKey.FETCH].append(int(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    with pytest.raises(KafkaError):
        read(wire, fetcher)
    assert wire.now < 1


def test_an_answer_for_an_old_position_is_dropped() -> None:
    """After a seek, a response for the old position is dropped."""
    wire, _broker, fetcher = setup(count=9)
    fetcher.assign("t", 0, 0)
    operation = fetcher.poll(timeout=1)
    task = wire.core.start(operation, wire.now)
    fetcher.assign("t", 0, 7)
    wire.settle()
    assert task.done
    assert task.result() == []
    assert read(wire, fetcher) == [b"7", b"8"]


def test_control_records_are_passed_over() -> None:
    """Control records are skipped, but the position moves past them."""
    wire, broker, fetcher = setup(count=3)
    partition = broker.topics["t"].partitions[0]
    marker = RecordBatchBuilder(base_offset=3, is_control=True)
    marker.append(0, b"\0\0\0\0", b"\0\0\0\0\0\0")
    partition.batches.append((3, bytes(marker.build())))
    partition.end_offset = 4
    fetcher.assign("t", 0, 0)
    assert read(wire, fetcher) == [b"0", b"1", b"2"]
    assert fetcher.positions["t", 0] == 4


def test_the_order_of_partitions_turns() -> None:
    """Each fetch begins with another partition, because a broker fills its response in this order."""
    wire, broker, fetcher = setup(count=0, partitions=3)
    for index in range(3):
        fetcher.assign("t", index, 0)
    read(wire, fetcher, polls=3)
    fetches = [message for message in broker.requests if isinstance(message, FetchRequest)]
    assert {message.topics[0].partitions[0].partition for message in fetches} == {0, 1, 2}


def test_nothing_assigned_is_nothing_asked() -> None:
    """A fetcher sends no fetch until a partition is assigned to it."""
    wire, broker, fetcher = setup(count=3)
    assert read(wire, fetcher) == []
    assert not any(isinstance(message, FetchRequest) for message in broker.requests)


def test_a_damaged_batch_is_an_error_and_names_itself() -> None:
    """A batch with a flipped bit raises `CorruptBatch`."""
    wire, broker, fetcher = setup(count=3)
    base, data = broker.topics["t"].partitions[0].batches[0]
    broker.topics["t"].partitions[0].batches[0] = (base, data[:-1] + bytes([data[-1] ^ 1]))
    fetcher.assign("t", 0, 0)
    with pytest.raises(CorruptBatch):
        read(wire, fetcher)


def test_offsets_by_time_and_at_the_ends() -> None:
    """ListOffsets finds the earliest and the latest offset, the first at or after a time, or none."""
    wire, _broker, _ = setup(count=9)
    found = {
        timestamp: wire.run(list_offsets(wire.core, {("t", 0): timestamp}, timeout=3))["t", 0].offset
        for timestamp in (EARLIEST, LATEST, 1004, 9999)
    }
    assert found == {EARLIEST: 0, LATEST: 9, 1004: 4, 9999: -1}


def test_offsets_are_asked_for_again_after_a_leader_change() -> None:
    """ListOffsets retries after retriable errors with new metadata. Final errors are raised."""
    wire, broker, _ = setup(count=9)
    broker.trouble[ApiKey.LIST_OFFSETS].extend([int(ErrorCode.NOT_LEADER_OR_FOLLOWER), HANG_UP])
    found = wire.run(list_offsets(wire.core, {("t", 0): offsets.LATEST}, timeout=3))
    assert found["t", 0].offset == 9
    broker.trouble[ApiKey.LIST_OFFSETS].append(int(ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT))
    with pytest.raises(KafkaError):
        wire.run(list_offsets(wire.core, {("t", 0): offsets.LATEST}, timeout=3))
    with pytest.raises(KafkaError, match="no partition 5"):
        wire.run(list_offsets(wire.core, {("t", 5): offsets.LATEST}, timeout=3))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_every_record_from_the_position_on_is_read_once_and_in_order(data: st.DataObject) -> None:
    """With any limits, cut batches and retriable errors, every record is read once and in order."""
    count = data.draw(st.integers(0, 20))
    wire, broker, fetcher = setup(count=count, partition_max_bytes=data.draw(st.integers(110, 1000)))
    start = data.draw(st.integers(0, count))
    trouble = st.sampled_from([HANG_UP, SILENCE, 0, int(ErrorCode.UNKNOWN_LEADER_EPOCH)])
    broker.trouble[ApiKey.FETCH].extend(data.draw(st.lists(trouble, max_size=3)))
    fetcher.assign("t", 0, start)
    assert read(wire, fetcher, polls=count + 12) == [b"%d" % n for n in range(start, count)]
