"""The consumer against servers: our own node, and Apache Kafka where Java runs (one of each per session)."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from odradek.client.consumer.consumer_types import (
    ConsumerRecord,
    NoOffsetForPartition,
    OffsetAndMetadata,
    OffsetsOutOfRange,
    RebalanceListener,
    Wakeup,
)
from odradek.wire.batches.records import records
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.topic_partition import TopicPartition
from tests.client.consumer.clusters import (
    PATIENCE_SECONDS,
    SERVERS,
    TIME,
    Cluster,
    Told,
    keys,
    poll_until,
    read,
)

pytestmark = pytest.mark.long
"""These tests start their own servers, so `make quick` leaves them out."""


@pytest.fixture(params=SERVERS)
def cluster(request: pytest.FixtureRequest, fresh_topic: Callable[[str], str]) -> Iterator[Cluster]:
    """A cluster of one of the servers under test."""
    found = Cluster(request.getfixturevalue(request.param).bootstrap, fresh_topic)
    yield found
    found.close()


# Without a group


def test_assigned_partitions_are_read_from_the_reset_policy_on(cluster: Cluster) -> None:
    """Assigned partitions are read in order and without duplicates.

    `position` and `lag` fit the records that were read; `seek`, `pause` and `resume` take effect.
    """
    topic = cluster.topic(3)
    cluster.produce(topic, 3000, 3, batch_bytes_max=3000)
    consumer = cluster.consumer(max_poll_records=700)
    consumer.assign(keys(topic, 3))
    found = read(consumer, 3000)
    for index in range(3):
        mine = [record for record in found if record.partition == index]
        assert [record.offset for record in mine] == list(range(1000))
        assert [record.value for record in mine] == [b"%d" % n for n in range(index, 3000, 3)]
        assert consumer.position((topic, index)) == 1000
        assert consumer.lag((topic, index)) == 0
    assert (found[0].topic, found[0].key, found[0].leader_epoch) == (topic, b"key", 0)
    consumer.pause((topic, 0))
    assert consumer.paused() == {(topic, 0)}
    consumer.seek((topic, 0), 990)
    consumer.seek((topic, 1), 995)
    assert [(r.partition, r.offset) for r in read(consumer, 5)] == [(1, n) for n in range(995, 1000)]
    consumer.resume((topic, 0))
    assert [(r.partition, r.offset) for r in read(consumer, 10)] == [(0, n) for n in range(990, 1000)]
    consumer.seek_to_end((topic, 2))
    assert consumer.position((topic, 2)) == 1000
    consumer.seek_to_beginning((topic, 2))
    assert consumer.position((topic, 2)) == 0


@pytest.mark.parametrize("compression_type", range(5), ids=["none", "gzip", "snappy", "lz4", "zstd"])
def test_batches_come_as_they_lie_in_the_log(cluster: Cluster, compression_type: int) -> None:
    """`poll_batches` returns whole batches as they are in the log.

    `start_offset` says from which record on they are new.
    """
    topic = cluster.topic(1)
    cluster.produce(topic, 300, 1, batch_bytes_max=1000, compression_type=compression_type)
    consumer = cluster.consumer()
    consumer.assign(keys(topic, 1))
    assert [record.value for record in read(consumer, 300)] == [b"%d" % n for n in range(300)]
    consumer.seek((topic, 0), 5)
    values: list[bytes | None] = []
    next_offset = 5
    while next_offset < 300:
        for batch in consumer.poll_batches(5):
            assert (batch.topic, batch.partition, batch.leader_epoch) == (topic, 0, 0)
            assert batch.base_offset <= batch.start_offset == next_offset <= batch.last_offset
            assert batch.high_watermark == 300
            parsed = records(batch.data, decompressed_bytes_max=1 << 20)
            assert len(parsed) == batch.record_count
            values += [record.value for record in parsed if record.offset >= batch.start_offset]
            next_offset = batch.last_offset + 1
    assert values == [b"%d" % n for n in range(5, 300)]
    assert consumer.position((topic, 0)) == 300


def test_offsets_are_found_by_time_and_at_both_ends(cluster: Cluster) -> None:
    """ListOffsets finds the first record at or after a time, or None if there is none. It also finds both ends."""
    topic = cluster.topic(2)
    cluster.produce(topic, 100, 2)
    consumer = cluster.consumer()
    first, second = keys(topic, 2)
    assert consumer.beginning_offsets([first, second]) == {first: 0, second: 0}
    assert consumer.end_offsets([first, second]) == {first: 50, second: 50}
    found = consumer.offsets_for_times({first: TIME + 50, second: TIME + 10_000})
    assert found[first] is not None
    assert (found[first].offset, found[first].timestamp) == (25, TIME + 50)
    assert found[second] is None
    assert [partition.index for partition in consumer.partitions_for(topic)] == [0, 1]
    with pytest.raises(KafkaError) as caught:
        consumer.partitions_for(topic + "-not-there")
    assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_without_a_reset_policy_a_missing_position_is_an_error(cluster: Cluster) -> None:
    """With `auto.offset.reset=none`, a missing commit or a position out of range is an error."""
    topic = cluster.topic(1)
    cluster.produce(topic, 10, 1)
    consumer = cluster.consumer(auto_offset_reset="none")
    consumer.assign(keys(topic, 1))
    with pytest.raises(NoOffsetForPartition):
        read(consumer, 1)
    consumer.seek((topic, 0), 77)
    with pytest.raises(OffsetsOutOfRange, match="at 77"):
        read(consumer, 1)
    consumer.seek((topic, 0), 9)
    assert [record.value for record in read(consumer, 1)] == [b"9"]


def test_the_policies_latest_and_by_duration(cluster: Cluster) -> None:
    """`latest` begins at the end of the log.

    `by_duration` begins at the first record that is no older than the given duration (KIP-1106).
    """
    topic = cluster.topic(1)
    cluster.produce(topic, 10, 1)
    latest = cluster.consumer(auto_offset_reset="latest")
    latest.assign(keys(topic, 1))
    assert latest.position((topic, 0)) == 10
    days = (time.time_ns() // 1_000_000 - TIME) // 86_400_000 + 1
    for duration, position in ((f"P{days}D", 0), ("PT1S", 10)):
        consumer = cluster.consumer(auto_offset_reset=f"by_duration:{duration}")
        consumer.assign(keys(topic, 1))
        assert consumer.position((topic, 0)) == position
    cluster.produce(topic, 1, 1, first=10)
    assert [record.offset for record in read(latest, 1)] == [10]


def test_wakeup_ends_the_poll_of_another_thread(cluster: Cluster) -> None:
    """`wakeup`, called from another thread, ends a poll. If no poll is running, the next one raises."""
    topic = cluster.topic(1)
    consumer = cluster.consumer()
    consumer.assign(keys(topic, 1))
    consumer.wakeup()
    with pytest.raises(Wakeup):
        consumer.poll(PATIENCE_SECONDS)
    timer = threading.Timer(0.1, consumer.wakeup)
    timer.start()
    with pytest.raises(Wakeup):
        consumer.poll(PATIENCE_SECONDS)
    timer.join()


# In a group


def test_commits_are_where_the_next_consumer_begins(cluster: Cluster) -> None:
    """A consumer begins at the committed offset of its group, also without a subscription.

    Commits carry metadata, and callbacks are called.
    """
    topic = cluster.topic(2)
    cluster.produce(topic, 20, 2)
    first, second = keys(topic, 2)
    consumer = cluster.consumer(group_id=topic, enable_auto_commit=False)
    consumer.assign([first, second])
    read(consumer, 20)
    assert consumer.committed([first]) == {first: None}
    consumer.commit({first: OffsetAndMetadata(4, 0, "so far"), second: 7})
    assert consumer.committed([first, second]) == {
        first: OffsetAndMetadata(4, 0, "so far"),
        second: OffsetAndMetadata(7, -1, ""),
    }
    outcomes: list[Any] = []
    consumer.commit_async({first: 5}, lambda offsets, error: outcomes.append((offsets, error)))
    poll_until([consumer], lambda: bool(outcomes))
    assert outcomes == [({first: OffsetAndMetadata(5)}, None)]
    other = cluster.consumer(group_id=topic, enable_auto_commit=False)
    other.assign([first, second])
    assert sorted((r.partition, r.offset) for r in read(other, 8)) == [
        *((0, n) for n in range(5, 10)),
        *((1, n) for n in range(7, 10)),
    ]


def test_automatic_commits_cover_what_earlier_polls_returned(cluster: Cluster) -> None:
    """With `enable.auto.commit`, offsets of earlier polls are committed at the interval and in `close`."""
    topic = cluster.topic(1)
    (key,) = keys(topic, 1)
    cluster.produce(topic, 30, 1)
    consumer = cluster.consumer(group_id=topic, max_poll_records=10, auto_commit_interval_ms=1)
    consumer.subscribe([topic])
    assert len(read(consumer, 10)) == 10
    assert consumer.position(key) == 10
    read(consumer, 10)
    poll_until([consumer], lambda: (consumer.committed([key])[key] or (0,))[0] >= 10)
    position = consumer.position(key)
    consumer.close()
    other = cluster.consumer(group_id=topic)
    assert other.committed([key]) == {key: OffsetAndMetadata(position, 0)}


def test_a_rebalance_can_be_asked_for(cluster: Cluster) -> None:
    """`enforce_rebalance` makes the member join again (KIP-568).

    All of its partitions are revoked and assigned anew.
    """
    topic = cluster.topic(2)
    consumer = cluster.consumer(group_id=topic)
    told = Told()
    consumer.subscribe(topic, listener=told)
    poll_until([consumer], lambda: consumer.assignment() == set(keys(topic, 2)))
    consumer.enforce_rebalance()
    everything = keys(topic, 2)
    poll_until([consumer], lambda: len(told.events) == 3)
    assert told.events == [("assigned", everything), ("revoked", everything), ("assigned", everything)]


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_members_share_the_partitions_and_take_over(cluster: Cluster, strategy: str) -> None:
    """A second member gets half of the partitions, and the first gets them back after it leaves.

    Each record is read exactly once.
    """
    topic = cluster.topic(4)
    cluster.produce(topic, 400, 4)
    found: list[ConsumerRecord] = []
    first = cluster.consumer(group_id=topic, partition_assignment_strategy=[strategy])
    told = Told()
    first.subscribe(topic, listener=told)
    poll_until([first], lambda: first.assignment() == set(keys(topic, 4)), found)
    second = cluster.consumer(group_id=topic, partition_assignment_strategy=[strategy])
    second.subscribe([topic])
    both = [first, second]
    poll_until(both, lambda: [len(c.assignment()) for c in both] == [2, 2], found)
    assert first.assignment() | second.assignment() == set(keys(topic, 4))
    cluster.produce(topic, 400, 4, first=400)
    poll_until(both, lambda: len(found) >= 800, found)
    mine, other = sorted(first.assignment()), sorted(second.assignment())
    second.close()
    poll_until([first], lambda: first.assignment() == set(keys(topic, 4)), found)
    cluster.produce(topic, 400, 4, first=800)
    poll_until([first], lambda: len(found) >= 1200, found)
    assert sorted(int(record.value) for record in found) == list(range(1200))
    everything = keys(topic, 4)
    if strategy == "cooperative-sticky":
        # The listener gets only the difference, since a cooperative member keeps the rest (KIP-429).
        assert told.events[0] == ("assigned", everything)
        assert ("revoked", other) in told.events
        assert told.events[-1] == ("assigned", other)
    else:
        assert told.events == [
            ("assigned", everything),
            ("revoked", everything),
            ("assigned", mine),
            ("revoked", mine),
            ("assigned", everything),
        ]


def test_a_cooperative_member_reads_on_while_the_group_rebalances(cluster: Cluster) -> None:
    """While a group rebalances, a cooperative member reads on from the partitions that it keeps (KIP-429).

    This holds even while a join waits for other members.
    """
    topic = cluster.topic(2)
    strategy = ["cooperative-sticky"]
    first = cluster.consumer(group_id=topic, partition_assignment_strategy=strategy)
    first.subscribe([topic])
    poll_until([first], lambda: len(first.assignment()) == 2)
    second = cluster.consumer(group_id=topic, partition_assignment_strategy=strategy)
    second.subscribe([topic])
    both = (first, second)
    # Both must be stable: the second may have its share while the first still waits for its SyncGroup response.
    poll_until(
        both,
        lambda: [(len(c.assignment()), c.statistics()["member_state"]) for c in both] == [(1, "stable")] * 2,
    )
    # A third member joins while the second does not poll, so the first waits for its JoinGroup response.
    third = cluster.consumer(group_id=topic, partition_assignment_strategy=strategy)
    third.subscribe([topic])
    poll_until([first, third], lambda: first.statistics()["member_state"] == "joining")
    (kept,) = first.assignment()
    cluster.produce(topic, 10, 2)
    found: list[ConsumerRecord] = []
    poll_until([first], lambda: len(found) == 5, found)
    assert {record.partition for record in found} == {kept.partition}
    assert first.statistics()["member_state"] == "joining"
    poll_until([first, second, third], lambda: second.statistics()["member_state"] == "stable")


def test_a_member_that_dies_is_replaced_and_loses_its_partitions(cluster: Cluster) -> None:
    """A member sends no heartbeats for `session.timeout.ms`.

    Other members get its partitions, and its later commit is refused.
    """
    topic = cluster.topic(2)
    cluster.produce(topic, 20, 2)
    first = cluster.consumer(group_id=topic, session_timeout_ms=6000, enable_auto_commit=False)
    first.subscribe([topic])
    second = cluster.consumer(group_id=topic, session_timeout_ms=6000)
    second.subscribe([topic])
    poll_until([first, second], lambda: [len(c.assignment()) for c in (first, second)] == [1, 1])
    first._io.close()  # its heartbeats end without a leave
    poll_until([second], lambda: len(second.assignment()) == 2)


def test_who_does_not_poll_leaves_and_is_told_when_it_returns(cluster: Cluster) -> None:
    """A member that does not poll for `max.poll.interval.ms` leaves, although its heartbeats continue.

    Its next poll calls `lost` and joins again.
    """
    topic = cluster.topic(2)
    first = cluster.consumer(group_id=topic, max_poll_interval_ms=1500, session_timeout_ms=6000)
    told = Told()
    first.subscribe([topic], listener=told)
    poll_until([first], lambda: len(first.assignment()) == 2)
    second = cluster.consumer(group_id=topic, session_timeout_ms=6000)
    second.subscribe([topic])
    poll_until([second], lambda: len(second.assignment()) == 2)
    poll_until([first, second], lambda: [len(c.assignment()) for c in (first, second)] == [1, 1])
    assert ("lost", keys(topic, 2)) in told.events


def test_a_static_member_returns_to_its_partitions_without_a_rebalance(cluster: Cluster) -> None:
    """A static member restarts within the session timeout, and no partition moves (KIP-345).

    A second consumer with its instance id fences it.
    """
    topic = cluster.topic(4)
    consumers = [
        cluster.consumer(group_id=topic, group_instance_id=f"static-{n}", session_timeout_ms=30_000)
        for n in range(2)
    ]
    told = Told()
    consumers[0].subscribe([topic], listener=told)
    consumers[1].subscribe([topic])
    poll_until(consumers, lambda: [len(c.assignment()) for c in consumers] == [2, 2])
    before = consumers[1].assignment()
    generation = consumers[0].statistics()["generation"]
    events = len(told.events)
    consumers[1].close()
    again = cluster.consumer(group_id=topic, group_instance_id="static-1", session_timeout_ms=30_000)
    again.subscribe([topic])
    poll_until([consumers[0], again], lambda: again.assignment() == before)
    assert consumers[0].statistics()["generation"] == generation
    assert len(told.events) == events
    twin = cluster.consumer(group_id=topic, group_instance_id="static-1", session_timeout_ms=30_000)
    twin.subscribe([topic])
    with pytest.raises(KafkaError) as caught:
        poll_until([twin, again], lambda: False)
    assert caught.value.code is ErrorCode.FENCED_INSTANCE_ID


def test_a_pattern_follows_the_topics_that_match(cluster: Cluster) -> None:
    """`subscribe(re.compile(...))` follows the topics whose whole names match.

    A new topic that matches causes a rebalance.
    """
    first = cluster.topic(1, "-a")
    consumer = cluster.consumer(group_id=cluster.name, metadata_max_age_ms=300)
    consumer.subscribe(re.compile(re.escape(cluster.name) + "-[a-c]"))
    poll_until([consumer], lambda: consumer.assignment() == {(first, 0)})
    assert consumer.subscription() == {first}
    second = cluster.topic(2, "-b")
    cluster.topic(1, "-bb")
    wanted = {(first, 0), (second, 0), (second, 1)}
    poll_until([consumer], lambda: consumer.assignment() == wanted)
    consumer.unsubscribe()
    assert consumer.assignment() == set()
    consumer.subscribe([first])
    with pytest.raises(RuntimeError, match="cannot be combined"):
        consumer.assign([(first, 0)])


def test_a_listener_may_commit_and_seek(cluster: Cluster) -> None:
    """A rebalance listener may commit when partitions are revoked, and seek when they are assigned."""
    topic = cluster.topic(1)
    (key,) = keys(topic, 1)
    cluster.produce(topic, 10, 1)
    consumer = cluster.consumer(group_id=topic, enable_auto_commit=False)

    class Listener(RebalanceListener):
        def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
            for partition in partitions:
                consumer.seek(partition, 6)

        def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
            consumer.commit()

    consumer.subscribe([topic], listener=Listener())
    assert [record.offset for record in read(consumer, 4)] == [6, 7, 8, 9]
    consumer.close()
    other = cluster.consumer(group_id=topic)
    assert other.committed([key]) == {key: OffsetAndMetadata(10, 0)}
