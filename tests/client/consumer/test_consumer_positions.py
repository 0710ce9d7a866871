"""A consumer's positions, their validation, and its fetches, against a broker in memory."""

from __future__ import annotations

import pytest

from odradek.client.consumer.consumer_types import (
    OffsetAndMetadata,
    OffsetsOutOfRange,
    TruncationDetected,
    UndecodableRecord,
)
from odradek.wire.api import ApiKey
from odradek.wire.batches.batch_errors import CorruptBatch
from odradek.wire.batches.batch_header import assign_offsets
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    PartitionData,
)
from odradek.wire.messages.metadata import MetadataResponseBroker
from odradek.wire.record_batch import RecordBatchBuilder
from odradek.wire.topic_partition import TopicPartition
from sim.load.producing import ProduceConfig, Producing, RecordToSend
from tests.client.consumer.consumers import T0, consumer, everything, fill, numbers, reading
from tests.client.consumer.fake_group import FakeConsumer, GroupBroker
from tests.client.fake_broker import HANG_UP

# Positions


def test_a_position_out_of_range_is_reset_or_raised() -> None:
    """A position is out of range. `auto.offset.reset` decides whether it is reset to an end or an error is raised."""
    for policy, position in (("earliest", 3), ("latest", 9)):
        found = reading(9, auto_offset_reset=policy)
        found.machine.seek(T0, 77, -1)
        found.broker.topics["t"].partitions[0].start_offset = 3
        found.poll(0.2)
        assert found.run(found.machine.position(T0, 5)) == (9 if policy == "earliest" else position)
    found = reading(9, auto_offset_reset="none")
    found.machine.seek(T0, 77, -1)
    with pytest.raises(OffsetsOutOfRange):
        found.poll(1)
    found.machine.seek(T0, 8, -1)
    assert found.values() == numbers(8, 8)


def test_after_a_change_of_leader_the_position_is_checked() -> None:
    """The leader changes, and the new log continues from the position (KIP-320).

    The consumer reads each record once.
    """
    found = reading(9, metadata_max_age_ms=1000)
    assert found.values() == numbers(0, 8)
    found.broker.leader_epoch = 1
    found.broker.epoch_ends = {0: 9}
    found.sleep(2)
    fill(found.broker, 3, epoch=1)
    assert found.values() == numbers(9, 11)


def test_after_a_hint_the_position_is_checked_at_once() -> None:
    """A refused fetch names the new leader (KIP-951). The position is validated at once, without new metadata."""
    found = reading(9)
    assert found.values() == numbers(0, 8)
    found.broker.leader_epoch = 1
    found.broker.epoch_ends = {0: 9}
    found.broker.leader_hint = LeaderIdAndEpoch(leader_id=1, leader_epoch=1)
    fill(found.broker, 3, epoch=1)
    assert found.values(5) == numbers(9, 11)


@pytest.mark.parametrize("policy", ["latest", "none"])
def test_a_truncated_log_is_noticed(policy: str) -> None:
    """The log was truncated below the position.

    The consumer continues where the logs diverge, or raises if it has no reset policy (KIP-320).
    """
    found = reading(9, metadata_max_age_ms=1000, auto_offset_reset=policy)
    found.machine.seek(T0, 0, -1)
    assert found.values() == numbers(0, 8)
    partition = found.broker.topics["t"].partitions[0]
    del partition.batches[2:]
    partition.end_offset = 6
    fill(found.broker, 6, epoch=1)
    found.broker.leader_epoch = 1
    found.broker.epoch_ends = {0: 6, 1: 12}
    if policy == "none":
        with pytest.raises(TruncationDetected) as caught:
            found.poll(3)
        assert (caught.value.position, caught.value.diverging) == (9, OffsetAndMetadata(6, 0))
        found.machine.seek(T0, 6, 0)
    assert found.values(3) == numbers(6, 11)


def test_what_was_only_fetched_of_a_truncated_log_is_fetched_again() -> None:
    """Only records that the application has not seen are truncated. They are fetched again, and no error is raised."""
    found = reading(9, metadata_max_age_ms=1000, auto_offset_reset="none", max_poll_records=3)
    found.machine.seek(T0, 0, -1)
    assert found.values() == numbers(0, 2)
    partition = found.broker.topics["t"].partitions[0]
    del partition.batches[1:]
    partition.end_offset = 3
    fill(found.broker, 3, epoch=1)
    found.broker.leader_epoch = 1
    found.broker.epoch_ends = {0: 3, 1: 6}
    found.sleep(2)
    records = found.poll(3)
    assert [(record.offset, record.leader_epoch) for record in records] == [(3, 1), (4, 1), (5, 1)]


def test_records_of_a_deposed_leader_that_come_after_the_check_are_dropped() -> None:
    """An earlier leader's answer comes after the position was checked with the new leader.

    Its records are fetched again from the new leader, whose log lacks some of them (KIP-320).
    """
    found = reading(9, metadata_max_age_ms=1000, auto_offset_reset="none")
    found.machine.seek(T0, 0, -1)
    assert found.values() == numbers(0, 8)
    fill(found.broker, 1)
    fill(found.broker, 2)
    found.broker.delays[ApiKey.FETCH] = 3.0
    found.sleep(0.6)
    del found.broker.delays[ApiKey.FETCH]
    partition = found.broker.topics["t"].partitions[0]
    del partition.batches[-1]
    partition.end_offset = 10
    fill(found.broker, 4, epoch=1)
    found.broker.leader_epoch = 1
    found.broker.epoch_ends = {0: 10, 1: 14}
    found.sleep(2)
    read = [(record.offset, record.leader_epoch) for _ in range(3) for record in found.poll(2)]
    assert read == [(9, 0), (10, 1), (11, 1), (12, 1), (13, 1)]


# Fetching


def test_chunks_are_fetched_ahead_and_no_further() -> None:
    """A partition has at most two chunks in memory: one to hand out, and one fetched ahead."""
    found = reading(30, max_partition_fetch_bytes=200, max_poll_records=3)
    assert found.values() == numbers(0, 2)
    found.sleep(5)
    state = found.machine.subscription.partitions[T0]
    assert (state.position, len(state.chunks), state.fetch_offset) == (3, 2, 12)
    values = []
    while len(values) < 27:
        values += found.values()
        assert len(state.chunks) <= 2
    assert values == numbers(3, 29)


def test_a_quiet_partition_holds_no_busy_one_up() -> None:
    """A busy partition has enough chunks, and only a quiet one is fetched.

    This fetch returns at once, so it does not delay the busy partition.
    """
    found = consumer(60, 2, max_partition_fetch_bytes=200)
    found.machine.assign_manually([T0, TopicPartition("t", 1)])
    found.poll(0.1)
    found.sleep(5)
    fetches = found.broker.asked(FetchRequest)
    assert fetches[-1].max_wait_ms == 0
    assert [p.partition for t in fetches[-1].topics for p in t.partitions] == [1]
    assert len(fetches) < 20
    before = len(fetches)
    while found.machine.subscription.partitions[T0].position != 60:
        now = found.wire.now
        assert found.poll(1)
        assert found.wire.now - now < 0.1
    assert len(found.broker.asked(FetchRequest)) > before


def test_fetches_go_to_the_preferred_replica_until_it_fails() -> None:
    """The leader names a nearby replica, which is fetched from (KIP-392).

    After its OFFSET_OUT_OF_RANGE the leader is asked again.
    """
    follower = GroupBroker("near", 9093)
    found = FakeConsumer(brokers={("near", 9093): follower}, client_rack="r")
    topic = found.broker.add_topic("t")
    follower.topics = found.broker.topics
    fill(found.broker, 3)
    named = PartitionData(0, preferred_read_replica=2, high_watermark=3)
    found.broker.trouble[ApiKey.FETCH].append(
        FetchResponse(responses=[FetchableTopicResponse(topic_id=topic.topic_id, partitions=[named])])
    )
    found.broker.more_brokers.append(MetadataResponseBroker(2, "near", 9093, "r"))
    found.machine.assign_manually([T0])
    assert found.values() == numbers(0, 2)
    assert any(isinstance(request, FetchRequest) for request in follower.requests)
    assert found.broker.asked(FetchRequest)[0].rack_id == "r"
    follower.trouble[ApiKey.FETCH].append(int(ErrorCode.OFFSET_OUT_OF_RANGE))
    fill(found.broker, 3)
    assert found.values(3) == numbers(3, 5)
    assert found.run(found.machine.position(T0, 1)) == 6


def test_a_preferred_replica_that_is_none_any_more_is_left() -> None:
    """The partition has moved away from the preferred replica.

    After its NOT_LEADER_OR_FOLLOWER the leader is asked again (KIP-392).
    """
    former = GroupBroker("near", 9093)
    found = FakeConsumer(brokers={("near", 9093): former}, client_rack="r")
    topic = found.broker.add_topic("t")
    former.topics = found.broker.topics
    fill(found.broker, 3)
    named = PartitionData(0, preferred_read_replica=2, high_watermark=3)
    found.broker.trouble[ApiKey.FETCH].append(
        FetchResponse(responses=[FetchableTopicResponse(topic_id=topic.topic_id, partitions=[named])])
    )
    found.broker.more_brokers.append(MetadataResponseBroker(2, "near", 9093, "r"))
    moved = PartitionData(0, int(ErrorCode.NOT_LEADER_OR_FOLLOWER), high_watermark=-1)
    for _ in range(10):
        former.trouble[ApiKey.FETCH].append(
            FetchResponse(responses=[FetchableTopicResponse(topic_id=topic.topic_id, partitions=[moved])])
        )
    found.machine.assign_manually([T0])
    assert found.values(5) == numbers(0, 2)
    assert len(former.asked(FetchRequest)) == 1


def test_a_broken_connection_costs_no_record() -> None:
    """Connections break during fetches. Each record still comes exactly once."""
    found = reading(30, max_partition_fetch_bytes=200, max_poll_records=4)
    values: list[bytes] = []
    while len(values) < 30:
        if len(values) % 3 == 0:
            found.broker.trouble[ApiKey.FETCH].append(HANG_UP)
        values += found.values(5)
    assert values == numbers(0, 29)


def test_damaged_batches_are_raised_and_can_be_passed_over() -> None:
    """With `check.crcs`, a damaged batch is an error when the position reaches it.

    Earlier records come first, and `seek` skips it.
    """
    found = reading(9)
    batches = found.broker.topics["t"].partitions[0].batches
    base, data = batches[1]
    batches[1] = (base, data[:-1] + b"\xff")
    assert found.values() == numbers(0, 2)
    for _ in range(2):
        with pytest.raises(UndecodableRecord) as caught:
            found.poll(1)
        error = caught.value
        assert (error.topic, error.partition, error.offset, error.next_offset) == ("t", 0, 3, 6)
        assert isinstance(error.__cause__, CorruptBatch)
    found.machine.seek(T0, 6, -1)
    assert found.values() == numbers(6, 8)


@pytest.mark.parametrize("policy", ["earliest", "latest", "none"])
def test_a_topic_made_anew_is_read_by_the_reset_policy(policy: str) -> None:
    """A topic is deleted and created again. The reset policy applies, since the position belonged to the old topic."""
    found = reading(6, auto_offset_reset=policy)
    found.machine.seek(T0, 0, -1)
    assert everything(found, 6) == numbers(0, 5)
    found.broker.add_topic("t")
    fill(found.broker, 9)
    if policy == "none":
        with pytest.raises(OffsetsOutOfRange):
            found.poll(3)
        found.machine.seek(T0, 7, -1)
        assert everything(found, 2) == numbers(7, 8)
    elif policy == "latest":
        assert found.poll(3) == []
        fill(found.broker, 3)
        assert everything(found, 3) == numbers(9, 11)
    else:
        assert everything(found, 9) == numbers(0, 8)


def test_aborted_transactions_are_not_seen_with_read_committed() -> None:
    """With `read_committed`, the consumer leaves out the records of the aborted transactions that the broker lists.

    Control batches are never returned.
    """

    def batch(base: int, producer_id: int, value: bytes | None, *, marker: int | None = None) -> bytes:
        builder = RecordBatchBuilder(
            producer_id=producer_id, producer_epoch=0, is_transactional=True, is_control=marker is not None
        )
        builder.append(0, None if marker is None else b"\0\0" + marker.to_bytes(2, "big"), value)
        data = builder.build()
        assign_offsets(data, 0, base, 0)
        return bytes(data)

    def answer(topic_id: bytes) -> FetchResponse:
        log = [
            batch(0, 1, b"aborted"),
            batch(1, 2, b"committed"),
            batch(2, 1, b"", marker=0),
            batch(3, 2, b"", marker=1),
            batch(4, 1, b"later"),
            batch(5, 1, b"", marker=1),
        ]
        data = PartitionData(
            0, high_watermark=6, aborted_transactions=[AbortedTransaction(1, 0)], records=b"".join(log)
        )
        return FetchResponse(responses=[FetchableTopicResponse(topic_id=topic_id, partitions=[data])])

    for level, expected in (
        ("read_committed", [b"committed", b"later"]),
        ("read_uncommitted", [b"aborted", b"committed", b"later"]),
    ):
        found = consumer(isolation_level=level)
        found.broker.topics["t"].partitions[0].end_offset = 6
        found.broker.trouble[ApiKey.FETCH].append(answer(found.broker.topics["t"].topic_id))
        found.machine.assign_manually([T0])
        assert found.values() == expected
        assert found.run(found.machine.position(T0, 1)) == 6


def test_a_bug_in_the_background_is_not_silence() -> None:
    """A background operation fails by a bug. Every later poll raises an error."""
    found = reading(3)
    found.machine._fetching.buffered_bytes = lambda: 1 // 0  # type: ignore[method-assign] # the bug
    for _ in range(2):
        with pytest.raises(AssertionError, match="this consumer is unusable after an earlier error"):
            found.poll(1)


def test_errors_that_are_waited_out_can_be_looked_at() -> None:
    """A poll that waits for a lost broker returns nothing. The statistics contain the last error."""
    found = consumer(3, bootstrap_servers="nobody:1")
    found.machine.assign_manually([T0])
    assert found.poll(40) == []
    assert "cannot connect to nobody:1" in str(found.machine.statistics()["last_error"])


def test_subscribe_needs_a_group() -> None:
    """`subscribe` requires `group.id`, since only a group assigns partitions."""
    found = consumer()
    with pytest.raises(ValueError, match=r"group\.id"):
        found.machine.subscribe(["t"])
    with pytest.raises(ValueError, match="not assigned"):
        found.machine.seek(T0, 0, -1)
    with pytest.raises(ValueError, match=r"group\.id"):
        found.run(found.machine.commits.commit({T0: OffsetAndMetadata(1)}, timeout=1))


def test_produced_records_are_read_with_their_fields() -> None:
    """Records of our producer come back with their headers, keys, nulls and timestamps. Deserializers are applied."""
    found = consumer(
        key_deserializer=lambda key: key and key.decode(), value_deserializer="StringDeserializer"
    )
    record = RecordToSend("t", None, b"k", (("h", b"v"), ("n", None)), 0, 5)
    producing = Producing(found.wire.core, ProduceConfig())
    found.run(producing.produce([record, RecordToSend("t", b"v", None, (), 0, 6)], timeout=5))
    found.machine.assign_manually([T0])
    first, second = found.poll(3)
    assert first[:7] == ("t", 0, 0, 5, "k", None, (("h", b"v"), ("n", None)))
    assert second[:7] == ("t", 0, 1, 6, None, "v", ())
