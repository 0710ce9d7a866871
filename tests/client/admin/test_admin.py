"""The blocking `Admin` client against real servers.

They are our own node and, where Java runs, Apache Kafka; each runs once per session.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import confluent_kafka
import pytest
import trio

from odradek import Admin, TopicPartition
from odradek.client.admin import (
    TO_HIGH_WATERMARK,
    AlterConfig,
    CommittedOffset,
    ConfigOperation,
    ConfigResource,
    ConfigSource,
    ConfigType,
    NewPartitions,
    NewTopic,
    ResetTarget,
    ResetTo,
    ResourceType,
)
from odradek.client.core.partition_offsets import EARLIEST, LATEST
from odradek.client.shells.blocking import Client
from odradek.trio import open_admin
from odradek.wire.codec import encode
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.data_records import (
    ConsumerProtocolAssignment,
    ConsumerProtocolAssignmentTopicPartition,
)
from odradek.wire.messages.find_coordinator import FindCoordinatorRequest
from odradek.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from odradek.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from odradek.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from testkit.processes import ServerProcess

TIME = 1_700_000_000_000
FreshTopic = Callable[[str], str]


@pytest.fixture(
    params=[
        pytest.param("node", marks=pytest.mark.xdist_group("client-node")),
        pytest.param("apache_kafka", marks=[pytest.mark.java, pytest.mark.xdist_group("apache-kafka")]),
    ]
)
def bootstrap(request: pytest.FixtureRequest) -> str:
    """The bootstrap address of one of the servers."""
    address: str = request.getfixturevalue(request.param).bootstrap
    return address


@pytest.fixture
def is_kafka(request: pytest.FixtureRequest) -> bool:
    """True for Apache Kafka. Kafka may apply a change after its answer; our node applies it before."""
    return bool(request.node.callspec.params["bootstrap"] == "apache_kafka")


@pytest.fixture
def admin(bootstrap: str) -> Iterator[Admin]:
    """An administrator connected to that server."""
    with Admin(bootstrap_servers=bootstrap, default_api_timeout_ms=30_000) as opened:
        yield opened


def fill(bootstrap: str, topic: str, partition: int, times: Sequence[int]) -> None:
    """Produce one record for each given timestamp."""
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    for moment in times:
        producer.produce(topic, b"value", partition=partition, timestamp=moment)
    assert producer.flush(20) == 0


def create(admin: Admin, *topics: NewTopic) -> None:
    """Create topics, and wait until the broker knows them."""
    assert [each.error for each in admin.create_topics(topics)] == [None] * len(topics)
    names = [topic.name for topic in topics]
    settle(lambda: [name for name in names if name in {t.name for t in admin.describe_topics()}], names)


def code_of(error: Exception | None) -> ErrorCode:
    """Return the error code of an outcome, NONE if there is no error."""
    if error is None:
        return ErrorCode.NONE
    assert isinstance(error, KafkaError)
    return error.code


def settle(look: Callable[[], object], wanted: object) -> None:
    """Repeat `look` until it returns `wanted`.

    Kafka's broker applies a change only after the controller has answered.
    """
    give_up_at = time.monotonic() + 20
    while (found := look()) != wanted:
        assert time.monotonic() < give_up_at, f"found {found} after 20 s instead of {wanted}"


class Member:
    """A group member that speaks by raw requests. It leads the group and assigns all partitions to itself."""

    def __init__(self, client: Client, group: str, partitions: Sequence[tuple[str, int]]) -> None:
        self.client = client
        self.group = group
        join = JoinGroupRequest(
            group_id=group,
            session_timeout_ms=30_000,
            rebalance_timeout_ms=30_000,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"\0\0\0\0\0\0\xff\xff\xff\xff")],
        )
        # Each server is a cluster of one broker, so this broker coordinates every group.
        node = 1
        client.request(FindCoordinatorRequest(key=group, coordinator_keys=[group]))
        answer = client.request(join, node=node)
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            join.member_id = answer.member_id
            answer = client.request(join, node=node)
        assert answer.error_code == 0
        self.node, self.member_id = node, answer.member_id
        topics: dict[str, list[int]] = {}
        for topic, index in partitions:
            topics.setdefault(topic, []).append(index)
        assignment = ConsumerProtocolAssignment(
            assigned_partitions=[
                ConsumerProtocolAssignmentTopicPartition(topic=name, partitions=indexes)
                for name, indexes in topics.items()
            ]
        )
        data = b"\0\1" + encode(assignment, 1)
        sync = SyncGroupRequest(
            group_id=group,
            generation_id=answer.generation_id,
            member_id=self.member_id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[SyncGroupRequestAssignment(member_id=self.member_id, assignment=data)],
        )
        assert client.request(sync, node=node).error_code == 0

    def leave(self) -> None:
        """Leave the group."""
        message = LeaveGroupRequest(
            group_id=self.group, member_id=self.member_id, members=[MemberIdentity(member_id=self.member_id)]
        )
        assert self.client.request(message, node=self.node).error_code == 0


@pytest.fixture
def join(bootstrap: str) -> Iterator[Callable[[str, Sequence[tuple[str, int]]], Member]]:
    """A function that adds members to groups; they send heartbeats until the test ends."""
    with Client(bootstrap, client_id="member", timeout_ms=30_000) as client:
        yield lambda group, partitions: Member(client, group, partitions)


def test_partitions_are_added_and_paged(admin: Admin, fresh_topic: FreshTopic) -> None:
    """CreatePartitions takes the new total of partitions. `describe_topic_partitions` fetches all pages (KIP-966)."""
    first, second, missing = (fresh_topic("admin") for _ in range(3))
    create(admin, NewTopic(first, 2), NewTopic(second, 5))
    checked = dict(admin.create_partitions({first: 4}, validate_only=True))
    assert checked == {first: None}
    assert len(admin.describe_topics([first])[0].partitions) == 2
    outcomes = dict(admin.create_partitions({first: NewPartitions(4), second: 5, missing: 3}))
    assert [code_of(outcomes[name]) for name in (first, second, missing)] == [
        ErrorCode.NONE,
        ErrorCode.INVALID_PARTITIONS,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    settle(lambda: [len(topic.partitions) for topic in admin.describe_topics([first, second])], [4, 5])
    by_metadata = admin.describe_topics(sorted([first, second]))
    assert admin.describe_topic_partitions([second, first], page_size=3) == by_metadata
    with pytest.raises(KafkaError, match=missing):
        admin.describe_topic_partitions([missing])
    admin.delete_topics([first, second])


def test_configurations_are_changed_key_by_key(admin: Admin, fresh_topic: FreshTopic, is_kafka: bool) -> None:
    """Single keys are set, deleted, appended to and subtracted from (KIP-339).

    A refused resource does not affect the others.
    """
    topic, missing = fresh_topic("admin"), fresh_topic("admin")
    create(admin, NewTopic(topic, 1, configs={"segment.bytes": "2000000"}))
    resource, unknown = ConfigResource(ResourceType.TOPIC, topic), ConfigResource(ResourceType.TOPIC, missing)
    outcomes = dict(
        admin.incremental_alter_configs(
            {
                resource: [
                    AlterConfig("retention.ms", "1000"),
                    AlterConfig("segment.bytes", operation=ConfigOperation.DELETE),
                    AlterConfig("cleanup.policy", "compact", ConfigOperation.APPEND),
                ],
                unknown: [AlterConfig("retention.ms", "1")],
            }
        )
    )
    assert code_of(outcomes[resource]) is ErrorCode.NONE
    assert code_of(outcomes[unknown]) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if is_kafka:
        settle(lambda: admin.describe_configs([resource])[0]["retention.ms"].value, "1000")
    (found,) = admin.describe_configs([resource], include_synonyms=True)
    assert found["retention.ms"].value == "1000"
    assert found["retention.ms"].source is ConfigSource.TOPIC_CONFIG
    assert found["retention.ms"].type is ConfigType.LONG
    assert found["retention.ms"].synonyms[0].source is ConfigSource.TOPIC_CONFIG
    assert found["segment.bytes"].source is ConfigSource.DEFAULT_CONFIG
    assert found["cleanup.policy"].value == "delete,compact"
    ((_, refused),) = admin.incremental_alter_configs({resource: [AlterConfig("retention.ms", "soon")]})
    assert code_of(refused) is ErrorCode.INVALID_CONFIG
    change = {resource: [AlterConfig("cleanup.policy", "delete", ConfigOperation.SUBTRACT)]}
    assert admin.incremental_alter_configs(change, validate_only=True) == [(resource, None)]
    assert admin.incremental_alter_configs(change) == [(resource, None)]
    if is_kafka:
        settle(lambda: admin.describe_configs([resource])[0]["cleanup.policy"].value, "compact")
    both = admin.describe_configs([resource, unknown], ["cleanup.policy"])
    assert both[0]["cleanup.policy"].value == "compact"
    assert code_of(both[1].error) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert resource in admin.list_config_resources([ResourceType.TOPIC])
    assert ConfigResource(ResourceType.BROKER, "1") in admin.list_config_resources([ResourceType.BROKER])
    admin.delete_topics([topic])


@pytest.mark.java
@pytest.mark.xdist_group("apache-kafka")
def test_keys_are_explained_where_the_broker_does(apache_kafka: ServerProcess) -> None:
    """A broker that documents its keys returns the documentation (KIP-569). Our own node has none to return."""
    resource = ConfigResource(ResourceType.BROKER, "1")
    with Admin({"bootstrap.servers": apache_kafka.bootstrap}) as admin:
        (found,) = admin.describe_configs([resource], ["log.retention.ms"], include_documentation=True)
    assert "milliseconds" in (found["log.retention.ms"].documentation or "")


def test_brokers_have_a_default_and_values_of_their_own(admin: Admin) -> None:
    """A dynamic value of one broker wins over the default of all brokers (KIP-226).

    The default's resource has an empty name.
    """
    every, one = ConfigResource(ResourceType.BROKER, ""), ConfigResource(ResourceType.BROKER, "1")
    key = "log.retention.ms"
    admin.incremental_alter_configs({every: [AlterConfig(key, "700000000")]})
    outcomes = admin.incremental_alter_configs({one: [AlterConfig(key, "800000000")]})
    assert outcomes == [(one, None)]

    def value() -> tuple[str | None, ConfigSource]:
        (found,) = admin.describe_configs([one], [key])
        return found[key].value, found[key].source

    settle(value, ("800000000", ConfigSource.DYNAMIC_BROKER_CONFIG))
    for resource in (one, every):
        admin.incremental_alter_configs({resource: [AlterConfig(key, operation=ConfigOperation.DELETE)]})
    ((_, refused),) = admin.incremental_alter_configs({one: [AlterConfig("log.dirs", "/elsewhere")]})
    assert refused is not None
    (nobody,) = admin.describe_configs([ConfigResource(ResourceType.BROKER, "77")])
    assert code_of(nobody.error) is ErrorCode.BROKER_NOT_AVAILABLE


def test_records_are_deleted_up_to_an_offset(admin: Admin, bootstrap: str, fresh_topic: FreshTopic) -> None:
    """For each partition, DeleteRecords returns the new first offset or an error."""
    topic = fresh_topic("admin")
    create(admin, NewTopic(topic, 3))
    for partition in range(2):
        fill(bootstrap, topic, partition, [TIME] * 5)
    outcomes = admin.delete_records(
        {(topic, 0): 3, (topic, 1): TO_HIGH_WATERMARK, (topic, 2): 1, (topic, 9): 1}
    )
    assert outcomes[topic, 0].low_watermark == 3
    assert outcomes[topic, 1].low_watermark == 5
    assert code_of(outcomes[topic, 2].error) is ErrorCode.OFFSET_OUT_OF_RANGE
    assert code_of(outcomes[topic, 9].error) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    spans = admin.offset_spans([(topic, 0), (topic, 1)])
    assert {key: (span.start, span.end) for key, span in spans.items()} == {  # type: ignore[union-attr] # no errors
        (topic, 0): (3, 5),
        (topic, 1): (5, 5),
    }
    found = admin.list_offsets({(topic, 0): EARLIEST, (topic, 1): LATEST})
    assert [each.offset for each in found.values()] == [3, 5]
    admin.delete_topics([topic])


@pytest.mark.parametrize("name", [tuple, lambda pair: TopicPartition(*pair)], ids=["plain", "named"])
def test_partitions_are_named_by_plain_tuples_or_named_ones(
    admin: Admin,
    bootstrap: str,
    fresh_topic: FreshTopic,
    name: Callable[[tuple[str, int]], tuple[str, int]],
) -> None:
    """Operations accept plain tuples and `TopicPartition`s.

    Results have `TopicPartition` keys, which equal plain tuples.
    """
    topic, group = fresh_topic("admin"), fresh_topic("group")
    create(admin, NewTopic(topic, 2))
    fill(bootstrap, topic, 0, [TIME] * 5)
    first, absent = name((topic, 0)), name((topic, 9))
    results: list[Mapping[TopicPartition, object]] = [
        admin.delete_records({first: 2, absent: 1}),
        admin.offset_spans([first]),
        admin.list_offsets({first: EARLIEST}),
        admin.describe_producers([first, absent]),
        admin.alter_partition_reassignments({first: [1], absent: None}),
        admin.elect_leaders([first, absent]),
        admin.alter_group_offsets(group, {first: 3, absent: 1}),
        admin.list_group_offsets({group: [first]})[0].offsets,
        admin.delete_group_offsets(group, [first]),
    ]
    for found in results:
        assert {type(key) for key in found} == {TopicPartition}
        plain: Mapping[Any, object] = found
        assert plain[topic, 0] is found[TopicPartition(topic, 0)]
    (planned,) = admin.plan_offset_reset({first: 4}, ResetTarget(ResetTo.EARLIEST))
    assert (planned.key, planned.new) == (TopicPartition(topic, 0), 2)
    assert f"{topic}-9" in str(admin.elect_leaders([absent])[TopicPartition(topic, 9)])
    admin.delete_topics([topic])


def test_directories_and_producers_are_described(
    admin: Admin, bootstrap: str, fresh_topic: FreshTopic
) -> None:
    """Log directories and producers are described (KIP-664), and a replica cannot move to an unknown directory."""
    topic = fresh_topic("admin")
    create(admin, NewTopic(topic, 2))
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for _ in range(3):
        producer.produce(topic, b"value", partition=1)
    assert producer.flush(20) == 0
    (broker,) = admin.describe_log_dirs()
    assert (broker.broker, broker.error) == (1, None)
    (directory,) = broker.directories
    assert directory.error is None
    assert directory.total_bytes > directory.usable_bytes > 0
    replicas = {(each.topic, each.partition): each for each in directory.replicas}
    assert replicas[topic, 0].size == 0
    assert replicas[topic, 1].size > 0
    assert directory.size >= replicas[topic, 1].size
    (nobody,) = admin.describe_log_dirs([77])
    assert code_of(nobody.error) is ErrorCode.BROKER_NOT_AVAILABLE
    found = admin.describe_producers([(topic, 0), (topic, 1), (topic, 5)])
    assert found[topic, 0].producers == ()
    (state,) = found[topic, 1].producers
    assert (state.producer_epoch, state.last_sequence) == (0, 2)
    assert code_of(found[topic, 5].error) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    moved = admin.alter_replica_log_dirs({(topic, 0, 1): "/nowhere", (topic, 0, 77): "/nowhere"})
    assert code_of(moved[topic, 0, 1]) is ErrorCode.LOG_DIR_NOT_FOUND
    assert code_of(moved[topic, 0, 77]) is ErrorCode.BROKER_NOT_AVAILABLE
    admin.delete_topics([topic])


def test_a_groups_offsets_are_written_read_and_deleted(admin: Admin, fresh_topic: FreshTopic) -> None:
    """Offsets of groups without members are written, read and deleted.

    Each partition and each group has its own outcome.
    """
    topic, group, other = fresh_topic("admin"), fresh_topic("group"), fresh_topic("group")
    create(admin, NewTopic(topic, 3))
    written = admin.alter_group_offsets(
        group, {(topic, 0): 7, (topic, 1): CommittedOffset(8, metadata="mark"), (topic, 9): 1}
    )
    assert code_of(written[topic, 0]) is code_of(written[topic, 1]) is ErrorCode.NONE
    assert code_of(written[topic, 9]) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    admin.alter_group_offsets(other, {(topic, 2): 3})
    found = admin.list_group_offsets({group: None, other: [(topic, 2), (topic, 0)]})
    assert [each.group_id for each in found] == [group, other]
    assert {key: (o.offset, o.metadata) for key, o in found[0].offsets.items()} == {
        (topic, 0): (7, ""),
        (topic, 1): (8, "mark"),
    }
    assert {key: o.offset for key, o in found[1].offsets.items()} == {(topic, 2): 3}
    deleted = admin.delete_group_offsets(group, [(topic, 0)])
    assert deleted == {(topic, 0): None}
    (left,) = admin.list_group_offsets({group: None})
    assert list(left.offsets) == [(topic, 1)]
    assert admin.delete_groups([group, other]) == [(group, None), (other, None)]
    ((_, gone),) = admin.delete_groups([group])
    assert code_of(gone) is ErrorCode.GROUP_ID_NOT_FOUND
    admin.delete_topics([topic])


def test_a_group_with_a_member(
    admin: Admin,
    bootstrap: str,
    fresh_topic: FreshTopic,
    join: Callable[[str, Sequence[tuple[str, int]]], Member],
) -> None:
    """A group with a member is listed, and described with its assignment.

    While it has members, a change of its offsets and its deletion are refused.
    """
    topic, group, nobody = fresh_topic("admin"), fresh_topic("group"), fresh_topic("group")
    create(admin, NewTopic(topic, 2))
    admin.alter_group_offsets(group, {(topic, 0): 0})
    member = join(group, [(topic, 0), (topic, 1)])
    (listed,) = (each for each in admin.list_groups() if each.group_id == group)
    assert (listed.protocol_type, listed.state, listed.group_type) == ("consumer", "Stable", "classic")
    assert group not in [each.group_id for each in admin.list_groups(states=["Empty"])]
    described, missing = admin.describe_groups([group, nobody])
    assert (described.error, described.state, described.protocol) == (None, "Stable", "range")
    assert described.coordinator == 1
    (one,) = described.members
    assert (one.member_id, one.client_id) == (member.member_id, "member")
    assert one.partitions == ((topic, 0), (topic, 1))
    assert code_of(missing.error) is ErrorCode.GROUP_ID_NOT_FOUND
    refused = admin.alter_group_offsets(group, {(topic, 0): 1})
    assert code_of(refused[topic, 0]) is ErrorCode.NON_EMPTY_GROUP
    ((_, not_empty),) = admin.delete_groups([group])
    assert code_of(not_empty) is ErrorCode.NON_EMPTY_GROUP
    member.leave()
    assert admin.describe_groups([group])[0].state == "Empty"
    assert admin.delete_groups([group]) == [(group, None)]
    admin.delete_topics([topic])


@pytest.mark.java
@pytest.mark.xdist_group("apache-kafka")
def test_a_group_of_the_new_protocol_is_described_too(
    apache_kafka: ServerProcess, fresh_topic: FreshTopic
) -> None:
    """`describe_groups` calls ConsumerGroupDescribe for a group of the new protocol, and returns its members."""
    topic, group = fresh_topic("admin"), fresh_topic("group")
    with Admin(bootstrap_servers=apache_kafka.bootstrap) as admin:
        create(admin, NewTopic(topic, 2))
        member = confluent_kafka.Consumer(
            {"bootstrap.servers": apache_kafka.bootstrap, "group.id": group, "group.protocol": "consumer"}
        )
        assigned: list[object] = []
        member.subscribe([topic], on_assign=lambda _, places: assigned.extend(places))
        while not assigned:
            member.poll(0.1)

        def partitions() -> list[tuple[tuple[str, int], ...]]:
            return [each.partitions for each in admin.describe_groups([group])[0].members]

        settle(partitions, [((topic, 0), (topic, 1))])
        (described,) = admin.describe_groups([group])
        assert (described.protocol_type, described.protocol) == ("consumer", "uniform")
        member.close()
        admin.delete_topics([topic])


def test_lag_is_told_in_records_and_in_time(
    admin: Admin,
    bootstrap: str,
    fresh_topic: FreshTopic,
    join: Callable[[str, Sequence[tuple[str, int]]], Member],
) -> None:
    """A group's lag in time is the age of its first unread record.

    That record is found in the middle of a batch, and after DeleteRecords.
    """
    topic, group = fresh_topic("admin"), fresh_topic("group")
    create(admin, NewTopic(topic, 4, configs={"retention.ms": "-1"}))
    for partition in range(3):
        fill(bootstrap, topic, partition, [TIME + 1000 * n for n in range(10)])
    admin.delete_records({(topic, 2): 6})
    admin.alter_group_offsets(group, {(topic, 0): 4, (topic, 1): 10, (topic, 2): 2})
    join(group, [(topic, 3)])
    lags = admin.describe_group_lag(group, now_ms=TIME + 20_000)
    assert [(each.partition, each.committed, each.lag, each.behind_ms) for each in lags] == [
        (0, 4, 6, 16_000),
        (1, 10, 0, 0),
        (2, 2, 8, 14_000),
        (3, None, None, None),
    ]
    admin.delete_topics([topic])


def test_resets_are_planned_within_what_is_there(
    admin: Admin, bootstrap: str, fresh_topic: FreshTopic
) -> None:
    """A plan resets offsets to an end of the log, an offset or a time, or shifts them.

    It never leaves the partition's range of offsets.
    """
    topic = fresh_topic("admin")
    create(admin, NewTopic(topic, 2, configs={"retention.ms": "-1"}))
    fill(bootstrap, topic, 0, [TIME + 1000 * n for n in range(10)])
    admin.delete_records({(topic, 0): 2})
    committed = {(topic, 0): 5, (topic, 1): None}

    def plan(to: ResetTo, value: int = 0) -> list[tuple[int | None, int]]:
        return [(each.old, each.new) for each in admin.plan_offset_reset(committed, ResetTarget(to, value))]

    assert plan(ResetTo.EARLIEST) == [(5, 2), (None, 0)]
    assert plan(ResetTo.LATEST) == [(5, 10), (None, 0)]
    assert plan(ResetTo.OFFSET, 7) == [(5, 7), (None, 0)]
    assert plan(ResetTo.OFFSET, 0) == [(5, 2), (None, 0)]
    assert plan(ResetTo.SHIFT, -1) == [(5, 4), (None, 0)]
    assert plan(ResetTo.SHIFT, 99) == [(5, 10), (None, 0)]
    assert plan(ResetTo.TIME, TIME + 6500) == [(5, 7), (None, 0)]
    assert plan(ResetTo.TIME, TIME + 99_000) == [(5, 10), (None, 0)]
    admin.delete_topics([topic])


def test_the_cluster(admin: Admin, bootstrap: str) -> None:
    """`describe_cluster` returns the brokers, and `statistics` counts the administrator's connections."""
    cluster = admin.describe_cluster()
    assert [f"{broker.host}:{broker.port}" for broker in cluster.brokers] == [bootstrap]
    assert admin.statistics()["connections"] >= 1


def test_bad_keys_are_named() -> None:
    """The error of an unknown key names the Kafka key that was probably meant."""
    with pytest.raises(ValueError, match=r"default\.api\.timeout\.ms"):
        Admin(bootstrap_servers="127.0.0.1:1", default_api_timeout="3")


def test_from_a_trio_program(bootstrap: str, fresh_topic: FreshTopic) -> None:
    """`odradek.trio.open_admin` offers the same calls as async functions, and several may run at a time."""
    topic = fresh_topic("admin")
    found: dict[str, int] = {}

    async def main() -> None:
        async with open_admin(bootstrap_servers=bootstrap) as admin:
            (created,) = await admin.create_topics([NewTopic(topic, 2)])
            assert created.error is None

            async def look(name: str) -> None:
                cluster = await admin.describe_cluster()
                found[name] = len(cluster.brokers)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(look, "one")
                nursery.start_soon(look, "two")
            with pytest.raises(KafkaError, match="missing"):
                await admin.describe_topics(["missing"])
            assert await admin.delete_topics([topic]) == [(topic, None)]

    trio.run(main)
    assert found == {"one": 1, "two": 1}
