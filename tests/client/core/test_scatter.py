"""Calls about many items. Each item goes to its broker and has its own outcome, and retriable errors are retried."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import pytest

from odradek.client.admin import (
    AlterConfig,
    ConfigResource,
    ResourceType,
    create_partitions,
    describe_clients,
    describe_log_dirs,
    incremental_alter_configs,
    list_group_offsets,
    list_groups,
)
from odradek.client.admin.admin_offsets import offsets_at
from odradek.client.core.client_config import ClientConfig
from odradek.client.core.client_core import ClientCore
from odradek.client.core.operation import Operation
from odradek.client.core.scatter import Routed, scatter
from odradek.client.errors import BrokerUnavailable, ConnectionBroken, is_retriable
from odradek.wire.api import ApiKey, api_versions
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.describe_cluster import DescribeClusterRequest
from odradek.wire.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from odradek.wire.messages.incremental_alter_configs import IncrementalAlterConfigsResponse
from odradek.wire.messages.list_groups import ListedGroup, ListGroupsResponse
from odradek.wire.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from odradek.wire.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from odradek.wire.messages.offset_fetch import (
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from tests.client.fake_broker import HANG_UP, SILENCE, FakeBroker, Wire

SCRIPTED = (
    ApiKey.LIST_GROUPS,
    ApiKey.FIND_COORDINATOR,
    ApiKey.OFFSET_FETCH,
    ApiKey.INCREMENTAL_ALTER_CONFIGS,
    ApiKey.CREATE_PARTITIONS,
    ApiKey.DESCRIBE_LOG_DIRS,
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS,
    ApiKey.RENEW_DELEGATION_TOKEN,
)


class TwoBrokers:
    """Brokers 1 and 2. Tests set their answers by `answer`. `leaders[i]` is the leader of partition i of topic t."""

    def __init__(self, **config: Any) -> None:
        self.brokers = {node: FakeBroker("fake", 9090 + node) for node in (1, 2)}
        self.leaders = [1, 2]
        for broker in self.brokers.values():
            broker.versions |= {int(key): api_versions(key) for key in SCRIPTED}
            broker.answers[ApiKey.METADATA] = lambda _, request, __: self.metadata(request)
        core = ClientCore([("fake", 9091)], ClientConfig(**config), random.Random(1))
        self.wire = Wire(core, {(b.host, b.port): b for b in self.brokers.values()})

    def metadata(self, request: Any) -> MetadataResponse:
        """Return metadata of both brokers and of topic t."""
        topics = []
        for name in ["t"] if request.topics is None else [topic.name for topic in request.topics]:
            partitions = [
                MetadataResponsePartition(partition_index=index, leader_id=leader, leader_epoch=1)
                for index, leader in enumerate(self.leaders)
            ]
            unknown = 0 if name == "t" else int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            topics.append(
                MetadataResponseTopic(error_code=unknown, name=name, partitions=[] if unknown else partitions)
            )
        return MetadataResponse(
            brokers=[
                MetadataResponseBroker(node_id=node, host=b.host, port=b.port)
                for node, b in self.brokers.items()
            ],
            cluster_id="fake-cluster",
            controller_id=1,
            topics=topics,
        )

    def answer(self, node: int, key: ApiKey, *answers: Any) -> None:
        """Set the answers of broker `node` to the next requests of this API."""
        self.brokers[node].trouble[key].extend(answers)

    def asked(self, node: int, key: ApiKey) -> list[Any]:
        """Return the requests of this API that broker `node` has received."""
        return [request for request in self.brokers[node].requests if key == request.API_KEY]

    def run(self, operation: Operation[Any]) -> Any:
        """Run an operation, and return its result."""
        return self.wire.run(operation)


def listed(*offsets: tuple[int, int, int]) -> ListOffsetsResponse:
    """Make a ListOffsets response of (partition, error code, offset)."""
    answers = [
        ListOffsetsPartitionResponse(partition_index=i, error_code=code, offset=offset)
        for i, code, offset in offsets
    ]
    return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="t", partitions=answers)])


def committed(group: str, code: int, offset: int) -> OffsetFetchResponseGroup:
    """Make a coordinator's OffsetFetch response for one group."""
    partition = OffsetFetchResponsePartitions(partition_index=0, committed_offset=offset)
    topics = [OffsetFetchResponseTopics(name="t", partitions=[partition])]
    return OffsetFetchResponseGroup(group_id=group, error_code=code, topics=[] if code else topics)


def coordinators(**nodes: int) -> FindCoordinatorResponse:
    """Make a FindCoordinator response of group names and broker ids. A negative number is a negated error code."""
    return FindCoordinatorResponse(
        coordinators=[
            Coordinator(
                key=group, node_id=max(node, -1), host="fake", port=9090 + node, error_code=max(0, -node)
            )
            for group, node in nodes.items()
        ]
    )


def test_items_of_a_broker_share_a_request_and_come_back_in_order() -> None:
    """Items of one leader share a request. Outcomes have the order of the items."""
    two = TwoBrokers()
    two.leaders = [1, 2, 1, 2]
    two.answer(1, ApiKey.LIST_OFFSETS, listed((2, 0, 12), (0, 0, 10)))
    two.answer(2, ApiKey.LIST_OFFSETS, listed((1, 0, 11), (3, 0, 13)))
    wanted = {("t", index): -1 for index in (3, 0, 1, 2)}
    found = two.run(offsets_at(two.wire.core, wanted, 10.0))
    assert list(found.items()) == [(("t", 3), 13), (("t", 0), 10), (("t", 1), 11), (("t", 2), 12)]
    assert [len(two.asked(node, ApiKey.LIST_OFFSETS)) for node in (1, 2)] == [1, 1]


def test_a_moved_leader_costs_a_round() -> None:
    """After NOT_LEADER_OR_FOLLOWER, metadata is refreshed.

    Only the partitions without an outcome are asked for again.
    """
    two = TwoBrokers()
    two.answer(1, ApiKey.LIST_OFFSETS, listed((0, int(ErrorCode.NOT_LEADER_OR_FOLLOWER), -1)))
    two.answer(2, ApiKey.LIST_OFFSETS, listed((1, 0, 11)), listed((0, 0, 10)))
    operation = offsets_at(two.wire.core, {("t", 0): -1, ("t", 1): -1}, 10.0)

    def run() -> Operation[Any]:
        while True:
            try:
                wait = next(operation)
            except StopIteration as stop:
                return stop.value
            if two.asked(1, ApiKey.LIST_OFFSETS):
                two.leaders[0] = 2
            yield wait

    assert two.run(run()) == {("t", 0): 10, ("t", 1): 11}
    (again,) = two.asked(2, ApiKey.LIST_OFFSETS)[1:]
    assert [p.partition_index for p in again.topics[0].partitions] == [0]


def test_what_is_not_there_is_final() -> None:
    """An item whose topic or partition is missing in metadata fails at once. The others go on."""
    two = TwoBrokers()
    two.answer(1, ApiKey.LIST_OFFSETS, listed((0, 0, 10)))
    wanted = {("t", 0): -1, ("t", 7): -1, ("missing", 0): -1}
    found = two.run(offsets_at(two.wire.core, wanted, 10.0))
    assert found["t", 0] == 10
    for key in (("t", 7), ("missing", 0)):
        assert found[key].code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert two.wire.now == 0.0


def test_retries_end_at_the_deadline() -> None:
    """Retries end at the caller's deadline. The last error is the outcome."""
    two = TwoBrokers()
    busy = int(ErrorCode.LEADER_NOT_AVAILABLE)
    two.answer(1, ApiKey.LIST_OFFSETS, *[listed((0, busy, -1))] * 50)
    found = two.run(offsets_at(two.wire.core, {("t", 0): -1}, 3.0))
    assert found["t", 0].code is ErrorCode.LEADER_NOT_AVAILABLE
    assert 1.0 < two.wire.now <= 3.0


def test_an_answer_that_leaves_an_item_out() -> None:
    """A response omits an item. The item's outcome is UNKNOWN_SERVER_ERROR, and there is no endless loop."""
    two = TwoBrokers()
    two.answer(1, ApiKey.LIST_OFFSETS, listed())
    found = two.run(offsets_at(two.wire.core, {("t", 0): -1}, 10.0))
    assert found["t", 0].code is ErrorCode.UNKNOWN_SERVER_ERROR


def test_groups_go_to_their_coordinators() -> None:
    """Coordinators of all groups are found by one request (KIP-699), and each gets one OffsetFetch (KIP-709).

    A group that has moved is asked for again.
    """
    two = TwoBrokers()
    two.answer(1, ApiKey.FIND_COORDINATOR, coordinators(a=1, b=2, c=1), coordinators(a=2))
    two.answer(2, ApiKey.FIND_COORDINATOR, coordinators(a=2))
    moved = int(ErrorCode.NOT_COORDINATOR)
    two.answer(
        1,
        ApiKey.OFFSET_FETCH,
        OffsetFetchResponse(groups=[committed("a", moved, -1), committed("c", 0, 3)]),
    )
    two.answer(
        2,
        ApiKey.OFFSET_FETCH,
        OffsetFetchResponse(groups=[committed("b", 0, 2)]),
        OffsetFetchResponse(groups=[committed("a", 0, 1)]),
    )
    found = two.run(list_group_offsets(two.wire.core, {"a": None, "b": None, "c": None}))
    assert [(each.group_id, each.offsets["t", 0].offset) for each in found] == [("a", 1), ("b", 2), ("c", 3)]
    (first,) = two.asked(1, ApiKey.FIND_COORDINATOR)[:1]
    assert first.coordinator_keys == ["a", "b", "c"]


def test_a_coordinator_that_is_coming_up_is_waited_for_and_a_refusal_is_not() -> None:
    """COORDINATOR_NOT_AVAILABLE is retried. GROUP_AUTHORIZATION_FAILED is the outcome."""
    two = TwoBrokers()
    coming, refused = int(ErrorCode.COORDINATOR_NOT_AVAILABLE), int(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    two.answer(1, ApiKey.FIND_COORDINATOR, coordinators(a=-coming, b=-refused), coordinators(a=1))
    two.answer(1, ApiKey.OFFSET_FETCH, OffsetFetchResponse(groups=[committed("a", 0, 1)]))
    found = two.run(list_group_offsets(two.wire.core, {"a": None, "b": None}))
    assert found[0].offsets["t", 0].offset == 1
    assert found[1].error.code is ErrorCode.GROUP_AUTHORIZATION_FAILED


def test_lists_come_from_every_broker_or_not_at_all() -> None:
    """`list_groups` asks every broker. If one refuses, the whole call fails, since gaps in a list cannot be seen."""
    two = TwoBrokers()
    group = ListedGroup(group_id="b", protocol_type="consumer", group_state="Stable", group_type="Classic")
    two.answer(1, ApiKey.LIST_GROUPS, ListGroupsResponse(groups=[group]))
    two.answer(2, ApiKey.LIST_GROUPS, ListGroupsResponse(groups=[ListedGroup(group_id="a")]))
    assert [(g.group_id, g.coordinator, g.group_type) for g in two.run(list_groups(two.wire.core))] == [
        ("a", 2, "classic"),
        ("b", 1, "classic"),
    ]
    two.answer(1, ApiKey.LIST_GROUPS, ListGroupsResponse(groups=[group]))
    two.answer(
        2, ApiKey.LIST_GROUPS, ListGroupsResponse(error_code=int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED))
    )
    with pytest.raises(KafkaError, match="broker 2"):
        two.run(list_groups(two.wire.core))


@pytest.mark.parametrize("is_known", [True, False])
def test_a_group_with_offsets_at_two_brokers_is_listed_once(is_known: bool) -> None:
    """Its coordinator's entry counts. If nobody knows the coordinator, the entry with members does."""
    two = TwoBrokers()
    old = ListedGroup(group_id="g", protocol_type="consumer", group_state="Empty", group_type="Classic")
    new = ListedGroup(group_id="g", protocol_type="consumer", group_state="Stable", group_type="Classic")
    other = ListedGroup(group_id="h", group_state="Empty")
    two.answer(1, ApiKey.LIST_GROUPS, ListGroupsResponse(groups=[old, other]))
    two.answer(2, ApiKey.LIST_GROUPS, ListGroupsResponse(groups=[new]))
    code = 0 if is_known else int(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    # The coordinator is the one whose entry would lose without this answer.
    found = Coordinator(key="g", node_id=1, host="fake", port=9091, error_code=code)
    for node in (1, 2):
        two.answer(node, ApiKey.FIND_COORDINATOR, FindCoordinatorResponse(coordinators=[found]))
    listed = two.run(list_groups(two.wire.core))
    assert [(each.group_id, each.coordinator, each.state) for each in listed] == [
        ("g", 1, "Empty") if is_known else ("g", 2, "Stable"),
        ("h", 1, "Empty"),
    ]
    assert sum(len(two.asked(node, ApiKey.FIND_COORDINATOR)) for node in (1, 2)) == 1


def test_a_broker_that_goes_while_groups_are_listed() -> None:
    """A broker dies while groups are listed.

    All other brokers are asked again, since they may coordinate its groups now.
    """
    two = TwoBrokers()
    second = two.brokers[2]

    def metadata(_: Any, request: Any, __: Any) -> MetadataResponse:
        if any(request.API_KEY == ApiKey.LIST_GROUPS for request in second.requests):
            two.brokers.pop(2, None)
        return two.metadata(request)

    for broker in two.brokers.values():
        broker.answers[ApiKey.METADATA] = metadata
    one, other = ListedGroup(group_id="a"), ListedGroup(group_id="b")
    two.answer(
        1, ApiKey.LIST_GROUPS, ListGroupsResponse(groups=[one]), ListGroupsResponse(groups=[one, other])
    )
    two.answer(2, ApiKey.LIST_GROUPS, HANG_UP)
    found = two.run(list_groups(two.wire.core))
    assert [(group.group_id, group.coordinator) for group in found] == [("a", 1), ("b", 1)]


def test_a_change_that_may_have_happened_is_not_repeated() -> None:
    """A connection breaks, or a broker is silent, under a change that must not be repeated.

    The change is sent once, and the call fails.
    """
    resource = ConfigResource(ResourceType.TOPIC, "t")
    two = TwoBrokers()
    two.answer(1, ApiKey.INCREMENTAL_ALTER_CONFIGS, HANG_UP)
    two.answer(2, ApiKey.INCREMENTAL_ALTER_CONFIGS, IncrementalAlterConfigsResponse())
    ((_, error),) = two.run(
        incremental_alter_configs(two.wire.core, {resource: [AlterConfig("cleanup.policy", "compact")]})
    )
    assert isinstance(error, ConnectionBroken)
    assert [len(two.asked(node, ApiKey.INCREMENTAL_ALTER_CONFIGS)) for node in (1, 2)] == [1, 0]
    silent = TwoBrokers()
    silent.answer(1, ApiKey.CREATE_PARTITIONS, SILENCE)
    ((_, late),) = silent.run(create_partitions(silent.wire.core, {"t": 5}, timeout=4.0))
    assert is_retriable(late)
    assert silent.wire.now <= 4.0
    assert len(silent.asked(1, ApiKey.CREATE_PARTITIONS)) == 1


def test_a_broker_that_is_down_fails_its_items_only() -> None:
    """Broker 2 refuses connections. Its outcome is an error, and the log directories of broker 1 are returned."""
    from odradek.wire.messages.describe_log_dirs import DescribeLogDirsResponse, DescribeLogDirsResult

    two = TwoBrokers()
    del two.wire.brokers["fake", 9092]
    two.answer(
        1, ApiKey.DESCRIBE_LOG_DIRS, DescribeLogDirsResponse(results=[DescribeLogDirsResult(log_dir="/a")])
    )
    first, second = two.run(describe_log_dirs(two.wire.core, timeout=3.0))
    assert [each.path for each in first.directories] == ["/a"]
    assert isinstance(second.error, BrokerUnavailable)


def test_a_broker_without_a_list_of_clients_says_so() -> None:
    """Broker 2 does not know our extension that lists clients, and answers an ordinary subscription.

    Its outcome is an error, while broker 1 has no clients.
    """
    from odradek.client.errors import UnsupportedByBroker
    from odradek.wire.messages.get_telemetry_subscriptions import GetTelemetrySubscriptionsResponse

    two = TwoBrokers()
    for node, clients in ((1, []), (2, None)):
        answer = GetTelemetrySubscriptionsResponse(clients=clients)
        two.answer(node, ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, answer)
    first, second = two.run(describe_clients(two.wire.core, timeout=3.0))
    assert (first.clients, first.error) == ((), None)
    assert isinstance(second.error, UnsupportedByBroker)


def test_nobody_to_ask() -> None:
    """A call raises at once if no broker can be reached."""
    two = TwoBrokers()
    two.wire.brokers.clear()
    with pytest.raises(BrokerUnavailable):
        two.run(list_groups(two.wire.core))
    assert two.wire.now == 0.0


def test_nothing_to_ask() -> None:
    """The result of a call for zero items is empty, and no request is sent."""
    two = TwoBrokers()

    def never(core: ClientCore, items: Any, deadline: float) -> Operation[Routed]:
        raise AssertionError("an empty call asks for the broker of an item")
        yield

    def take(response: Any, items: list[str]) -> Iterable[tuple[str, int]]:
        return []

    message = DescribeClusterRequest()
    assert two.run(scatter(two.wire.core, [], never, lambda _, __: message, take, deadline=1.0)) == {}
