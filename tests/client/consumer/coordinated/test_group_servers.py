"""Consumers in groups of the new protocol (KIP-848) against servers.

The servers are Apache Kafka, and our own node if it serves the protocol.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import trio

from odradek import Consumer, Producer, SubscriptionPattern
from odradek.client.admin import AlterConfig, ConfigResource, ResourceType
from odradek.client.consumer.consumer_membership import ConsumerMembership
from odradek.client.consumer.consumer_types import ConsumerRecord, OffsetAndMetadata
from odradek.client.errors import TransactionAbortableError
from odradek.trio import open_consumer
from odradek.wire.errors import ErrorCode, KafkaError
from tests.cli.running import odradek_here
from tests.client.consumer.clusters import SERVERS, Cluster, Told, keys, poll_until, read

pytestmark = pytest.mark.long
"""These tests start their own servers, so `make quick` leaves them out."""

CONSUMER = {"group_protocol": "consumer"}


@pytest.fixture(params=SERVERS)
def cluster(request: pytest.FixtureRequest, fresh_topic: Callable[[str], str]) -> Iterator[Cluster]:
    """A cluster of one of the servers under test."""
    found = Cluster(request.getfixturevalue(request.param).bootstrap, fresh_topic)
    found.client.admin.describe_cluster()
    assert found.client.core.cluster.features["group.version"] >= 1, (
        "the server does not support groups of the new protocol"
    )
    yield found
    found.close()


def owned(consumers: Sequence[Consumer]) -> list[int]:
    """Return the number of partitions of each consumer, or -1 while it is not stable."""
    return [len(each.assignment()) if state(each) == "stable" else -1 for each in consumers]


def state(consumer: Consumer) -> str:
    return str(consumer.statistics()["member_state"])


def kind(cluster: Cluster, group: str) -> str:
    """Return the type of a group as `list_groups` reports it."""
    return next(each.group_type for each in cluster.client.admin.list_groups() if each.group_id == group)


def configure_group(cluster: Cluster, group: str, **values: str) -> None:
    """Set a configuration key of a group."""
    alter = [AlterConfig(name.replace("_", "."), value) for name, value in values.items()]
    outcome = cluster.client.admin.incremental_alter_configs(
        {ConfigResource(ResourceType.GROUP, group): alter}
    )
    assert all(error is None for _, error in outcome)


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_members_share_the_partitions_and_take_over(cluster: Cluster, assignor: str) -> None:
    """A second member joins and leaves.

    Only the partitions that move are revoked, and each record is read exactly once.
    """
    topic = cluster.topic(4)
    everything = keys(topic, 4)
    cluster.produce(topic, 400, 4)
    found: list[ConsumerRecord] = []
    first = cluster.consumer(group_id=topic, group_remote_assignor=assignor, **CONSUMER)
    told = Told()
    first.subscribe(topic, listener=told)
    poll_until([first], lambda: owned([first]) == [4], found)
    assert told.events == [("assigned", everything)]
    second = cluster.consumer(group_id=topic, group_remote_assignor=assignor, **CONSUMER)
    second.subscribe([topic])
    both = [first, second]
    poll_until(both, lambda: owned(both) == [2, 2], found)
    assert first.assignment() | second.assignment() == set(everything)
    moved = sorted(second.assignment())
    assert [event for event in told.events if event[1]] == [("assigned", everything), ("revoked", moved)]
    cluster.produce(topic, 400, 4, first=400)
    poll_until(both, lambda: len(found) >= 800, found)
    second.close()
    poll_until([first], lambda: owned([first]) == [4], found)
    assert told.events[-1] == ("assigned", moved)
    cluster.produce(topic, 400, 4, first=800)
    poll_until([first], lambda: len(found) >= 1200, found)
    assert sorted(int(record.value) for record in found) == list(range(1200))
    (described,) = cluster.client.admin.describe_groups([topic])
    assert (described.protocol_type, described.protocol) == ("consumer", assignor)


@pytest.mark.parametrize("is_busy", [False, True], ids=["before", "during"])
def test_partitions_are_taken_back_before_their_adoption_is_over(cluster: Cluster, is_busy: bool) -> None:
    """A member gets partitions back that another one wants at once: before it polls, or while its listener is called.

    The other one gets them soon, and each record is read exactly once.
    """
    topic = cluster.topic(4)
    settings = {"group_id": topic, "group_remote_assignor": "range", **CONSUMER}
    found: list[ConsumerRecord] = []

    def wait_for_target(count: int) -> None:
        """Wait until the first member has heard that it should have so many partitions."""
        membership = first._machine.membership
        assert isinstance(membership, ConsumerMembership)
        poll_until(others, lambda: len(membership.target()) == count, found)

    class Busy(Told):
        def on_partitions_assigned(self, partitions: Any) -> None:
            super().on_partitions_assigned(partitions)
            if is_busy and self.events[-1] == ("assigned", keys(topic, 4)[2:]):
                join()

    def join() -> None:
        others.append(cluster.consumer(**settings))
        others[-1].subscribe([topic])
        wait_for_target(2)

    first = cluster.consumer(group_instance_id="first", **settings)
    others = [cluster.consumer(**settings)]
    first.subscribe([topic], listener=Busy())
    others[0].subscribe([topic])
    poll_until([first, *others], lambda: owned([first, *others]) == [2, 2], found)
    others.pop().close()
    wait_for_target(4)
    if not is_busy:
        join()
    cluster.produce(topic, 400, 4)
    poll_until([first], lambda: bool(others), found)
    poll_until([first, *others], lambda: owned([first, *others]) == [2, 2], found)
    cluster.produce(topic, 400, 4, first=400)
    poll_until([first, *others], lambda: len(found) >= 800, found)
    assert sorted(int(record.value) for record in found) == list(range(800))


def test_partitions_that_a_topic_gains_are_assigned(cluster: Cluster) -> None:
    """New partitions of a subscribed topic are assigned, and none are revoked."""
    topic = cluster.topic(1)
    consumer = cluster.consumer(group_id=topic, **CONSUMER)
    told = Told()
    consumer.subscribe([topic], listener=told)
    poll_until([consumer], lambda: owned([consumer]) == [1])
    cluster.client.admin.create_partitions({topic: 3})
    poll_until([consumer], lambda: owned([consumer]) == [3])
    assert [event for event, _ in told.events] == ["assigned", "assigned"]


def test_a_pattern_is_matched_here_or_by_the_coordinator(cluster: Cluster) -> None:
    """A pattern follows topics whose whole names match, whether the consumer matches it or the coordinator does."""
    first = cluster.topic(1, "-a")
    cluster.topic(1, "-bb")
    text = re.escape(cluster.name).replace("\\-", "-") + "-[a-c]"
    remote = cluster.consumer(group_id=f"{cluster.name}-remote", **CONSUMER)
    remote.subscribe(SubscriptionPattern(text))
    local = cluster.consumer(group_id=f"{cluster.name}-local", metadata_max_age_ms=300, **CONSUMER)
    local.subscribe(re.compile(text))
    both = [remote, local]
    poll_until(both, lambda: all(each.assignment() == {(first, 0)} for each in both))
    second = cluster.topic(2, "-b")
    wanted = {(first, 0), (second, 0), (second, 1)}
    poll_until(both, lambda: all(each.assignment() == wanted for each in both))
    assert local.subscription() == {first, second}
    remote.subscribe([second])
    poll_until([remote], lambda: remote.assignment() == {(second, 0), (second, 1)})


def test_a_refused_member_says_why(cluster: Cluster) -> None:
    """Each poll raises an error if the coordinator lacks the assignor, or if the pattern is invalid for RE2."""
    topic = cluster.topic(1)
    consumer = cluster.consumer(group_id=topic, group_remote_assignor="mine", **CONSUMER)
    consumer.subscribe([topic])
    for _ in range(2):
        with pytest.raises(KafkaError, match=r"group\.remote\.assignor") as caught:
            poll_until([consumer], lambda: False)
        assert caught.value.code is ErrorCode.UNSUPPORTED_ASSIGNOR
    consumer = cluster.consumer(group_id=topic, **CONSUMER)
    consumer.subscribe(SubscriptionPattern("(?=a)b"))
    with pytest.raises(KafkaError, match="RE2") as caught:
        poll_until([consumer], lambda: False)
    assert caught.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION
    consumer.subscribe([topic])
    poll_until([consumer], lambda: owned([consumer]) == [1])


def test_a_static_member_returns_to_its_partitions(cluster: Cluster) -> None:
    """A static member leaves and returns to the same partitions without a rebalance.

    A second consumer with its instance id is refused while the first one is there.
    """
    topic = cluster.topic(4)
    consumers = [
        cluster.consumer(group_id=topic, group_instance_id=f"static-{n}", **CONSUMER) for n in range(2)
    ]
    told = Told()
    consumers[0].subscribe([topic], listener=told)
    consumers[1].subscribe([topic])
    poll_until(consumers, lambda: owned(consumers) == [2, 2])
    before = consumers[1].assignment()
    epoch, events = consumers[0].statistics()["generation"], len(told.events)
    twin = cluster.consumer(group_id=topic, group_instance_id="static-1", **CONSUMER)
    twin.subscribe([topic])
    with pytest.raises(KafkaError) as caught:
        poll_until([twin, *consumers], lambda: False)
    assert caught.value.code is ErrorCode.UNRELEASED_INSTANCE_ID
    consumers[1].close()
    poll_until([consumers[0], twin], lambda: twin.assignment() == before)
    assert consumers[0].statistics()["generation"] == epoch
    assert len(told.events) == events


def test_a_member_that_dies_is_replaced(cluster: Cluster) -> None:
    """A member sends no heartbeats for `consumer.session.timeout.ms` of the group.

    The other member gets its partitions.
    """
    topic = cluster.topic(2)
    configure_group(cluster, topic, consumer_session_timeout_ms="1500")
    first = cluster.consumer(group_id=topic, **CONSUMER)
    first.subscribe([topic])
    second = cluster.consumer(group_id=topic, **CONSUMER)
    second.subscribe([topic])
    poll_until([first, second], lambda: owned([first, second]) == [1, 1])
    first._io.close()  # its heartbeats end without a leave
    poll_until([second], lambda: owned([second]) == [2])


def test_who_does_not_poll_leaves_and_is_told_when_it_returns(cluster: Cluster) -> None:
    """After `max.poll.interval.ms` without a poll a member leaves.

    Its next poll calls the listener's `lost`, and joins again.
    """
    topic = cluster.topic(2)
    first = cluster.consumer(group_id=topic, max_poll_interval_ms=1500, **CONSUMER)
    told = Told()
    first.subscribe([topic], listener=told)
    poll_until([first], lambda: owned([first]) == [2])
    second = cluster.consumer(group_id=topic, **CONSUMER)
    second.subscribe([topic])
    poll_until([second], lambda: owned([second]) == [2])
    with pytest.raises(KafkaError) as caught:
        first.commit({(topic, 0): 0})
    assert caught.value.code is ErrorCode.UNKNOWN_MEMBER_ID
    poll_until([first, second], lambda: owned([first, second]) == [1, 1])
    assert ("lost", keys(topic, 2)) in told.events


def test_commits_are_where_the_next_consumer_begins(cluster: Cluster) -> None:
    """A consumer begins where the last one committed, by `commit` or when it closed.

    This also holds when the group's protocol changes.
    """
    topic = cluster.topic(1)
    (key,) = keys(topic, 1)
    cluster.produce(topic, 30, 1)
    consumer = cluster.consumer(group_id=topic, max_poll_records=10, enable_auto_commit=False, **CONSUMER)
    consumer.subscribe([topic])
    read(consumer, 10)
    consumer.commit({key: OffsetAndMetadata(4, 0, "so far")})
    assert consumer.committed([key]) == {key: OffsetAndMetadata(4, 0, "so far")}
    consumer.close()
    other = cluster.consumer(group_id=topic, max_poll_records=10, **CONSUMER)
    other.subscribe([topic])
    assert read(other, 10)[0].offset == 4
    other.close()
    last = cluster.consumer(group_id=topic)
    last.subscribe([topic])
    assert read(last, 1)[0].offset == 14


def test_offsets_go_with_a_transaction_as_those_of_a_member(cluster: Cluster) -> None:
    """`group_metadata` contains the member epoch (KIP-447).

    A member that has left commits no offsets in a transaction.
    """
    topic = cluster.topic(1)
    (key,) = keys(topic, 1)
    cluster.produce(topic, 10, 1)
    consumer = cluster.consumer(group_id=topic, enable_auto_commit=False, **CONSUMER)
    consumer.subscribe([topic])
    read(consumer, 10)
    with Producer(bootstrap_servers=cluster.bootstrap, transactional_id=topic) as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send_offsets_to_transaction({key: 5}, consumer.group_metadata())
        assert consumer.committed([key]) == {key: OffsetAndMetadata(5)}
        before = consumer.group_metadata()
        assert (before.generation_id, before.member_id) == (
            consumer.statistics()["generation"],
            consumer.member_id,
        )
        consumer.unsubscribe()
        producer.begin_transaction()
        with pytest.raises(TransactionAbortableError, match="UNKNOWN_MEMBER_ID"):
            producer.send_offsets_to_transaction({key: 9}, before)
        producer.abort_transaction()
        assert consumer.committed([key]) == {key: OffsetAndMetadata(5)}


def test_a_trio_consumer_is_a_member_like_any_other(cluster: Cluster) -> None:
    """An async consumer and a blocking consumer share the partitions of a group."""
    topic = cluster.topic(2)
    cluster.produce(topic, 20, 2)
    blocking = cluster.consumer(group_id=topic, **CONSUMER)
    blocking.subscribe([topic])
    poll_until([blocking], lambda: owned([blocking]) == [2])
    keeper: list[ConsumerRecord] = []

    async def join() -> None:
        settings: dict[str, Any] = {"group.id": topic, "group.protocol": "consumer"}
        async with open_consumer(settings, bootstrap_servers=cluster.bootstrap) as consumer:
            consumer.subscribe([topic])
            with trio.fail_after(60):
                while len(consumer.assignment()) != 1 or len(blocking.assignment()) != 1:
                    await consumer.poll(0.05)
                    keeper.extend(await trio.to_thread.run_sync(blocking.poll, 0.05))

    trio.run(join)
    poll_until([blocking], lambda: owned([blocking]) == [2], keeper)


def test_a_group_is_described_with_epochs_and_targets(cluster: Cluster) -> None:
    """ConsumerGroupDescribe returns the group's epochs, and each member's assignment, target and subscription.

    The command line prints them.
    """
    topic = cluster.topic(3)
    consumer = cluster.consumer(group_id=topic, client_id="me", client_rack="r", **CONSUMER)
    consumer.subscribe(SubscriptionPattern(re.escape(topic).replace("\\-", "-")))
    poll_until([consumer], lambda: owned([consumer]) == [3])
    (described,) = cluster.client.admin.describe_groups([topic])
    (member,) = described.members
    assert (described.group_type, described.state) == ("consumer", "Stable")
    assert described.group_epoch == described.assignment_epoch == member.member_epoch
    assert member.member_epoch == consumer.statistics()["generation"]
    assert list(member.partitions) == list(member.target) == keys(topic, 3)
    assert (member.member_id, member.protocol, member.rack) == (consumer.member_id, "consumer", "r")
    assert (member.subscribed_topics, member.subscribed_pattern) == ((), topic)
    shown = odradek_here("group", "describe", topic, bootstrap=cluster.bootstrap).out
    assert f"epochs       group {member.member_epoch}, assignment {member.member_epoch}\n" in shown
    row = ["1", "me", "127.0.0.1", "-", "consumer", str(member.member_epoch), f"{topic}:0-2", f"{topic}:0-2"]
    assert row in [line.split() for line in shown.splitlines()]
    consumer.close()
    assert cluster.client.admin.describe_groups([topic])[0].state == "Empty"
    assert cluster.client.admin.alter_group_offsets(topic, {(topic, 0): 0}) == {(topic, 0): None}
    assert cluster.client.admin.delete_groups([topic]) == [(topic, None)]


# Migration


def test_a_group_is_upgraded_and_downgraded_while_it_reads(cluster: Cluster) -> None:
    """A classic member and one of the new protocol share a group.

    The group is converted and converted back, and each record is read exactly once.
    """
    topic = cluster.topic(4)
    cluster.produce(topic, 400, 4)
    found: list[ConsumerRecord] = []
    classic: dict[str, Any] = {"partition_assignment_strategy": ["cooperative-sticky"]}
    first = cluster.consumer(group_id=topic, **classic)
    first.subscribe([topic])
    poll_until([first], lambda: owned([first]) == [4], found)
    assert kind(cluster, topic) == "classic"
    second = cluster.consumer(group_id=topic, **CONSUMER)
    second.subscribe([topic])
    poll_until([first, second], lambda: owned([first, second]) == [2, 2], found)
    assert kind(cluster, topic) == "consumer"
    (described,) = cluster.client.admin.describe_groups([topic])
    assert sorted(each.protocol for each in described.members) == ["classic", "consumer"]
    cluster.produce(topic, 400, 4, first=400)
    poll_until([first, second], lambda: len(found) >= 800, found)
    first.close()
    poll_until([second], lambda: owned([second]) == [4], found)
    cluster.produce(topic, 400, 4, first=800)
    poll_until([second], lambda: len(found) >= 1200, found)
    third = cluster.consumer(group_id=topic, **classic)
    third.subscribe([topic])
    poll_until([second, third], lambda: owned([second, third]) == [2, 2], found)
    second.close()
    poll_until([third], lambda: owned([third]) == [4], found)
    assert kind(cluster, topic) == "classic"
    cluster.produce(topic, 400, 4, first=1200)
    poll_until([third], lambda: len(found) >= 1600, found)
    assert sorted(int(record.value) for record in found) == list(range(1600))


def test_auto_joins_a_group_as_it_is(cluster: Cluster) -> None:
    """With `group.protocol=auto` a new group uses the new protocol. A group with classic members stays classic."""
    topic = cluster.topic(4)
    auto = {"group_protocol": "auto"}
    strategy: dict[str, Any] = {"partition_assignment_strategy": ["cooperative-sticky"]}
    old = cluster.consumer(group_id=topic, **strategy)
    old.subscribe([topic])
    poll_until([old], lambda: owned([old]) == [4])
    new = cluster.consumer(group_id=topic, **auto, **strategy)
    new.subscribe([topic])
    poll_until([old, new], lambda: owned([old, new]) == [2, 2])
    assert new.statistics()["group_protocol"] == kind(cluster, topic) == "classic"
    old.close()
    new.close()
    again = cluster.consumer(group_id=topic, **auto, **strategy)
    again.subscribe([topic])
    poll_until([again], lambda: owned([again]) == [4])
    assert again.statistics()["group_protocol"] == kind(cluster, topic) == "consumer"
    follower = cluster.consumer(group_id=topic, **auto, **strategy)
    follower.subscribe([topic])
    poll_until([again, follower], lambda: owned([again, follower]) == [2, 2])
    assert follower.statistics()["group_protocol"] == "consumer"
