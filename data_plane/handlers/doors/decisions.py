"""Upper bounds of the number of access decisions that a door makes for one request. If the bound is high, the
door runs in a worker. PURE.

A request of a few hundred bytes may ask for all topics, and for the client's rights on each of them. Requests
about a single thing, and Produce and Fetch, are not counted.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, Protocol, TypeAlias

from odradek.data_plane.groups.coordinator import GroupCoordinator
from odradek.data_plane.transactions.coordinator import TransactionCoordinator
from odradek.security.acls.rules import SUPPORTED, ResourceType
from odradek.security.doors.door import Asked
from odradek.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from odradek.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from odradek.wire.messages.describe_groups import DescribeGroupsRequest
from odradek.wire.messages.describe_topic_partitions import DescribeTopicPartitionsRequest
from odradek.wire.messages.list_groups import ListGroupsRequest
from odradek.wire.messages.list_transactions import ListTransactionsRequest
from odradek.wire.messages.metadata import MetadataRequest
from odradek.wire.messages.offset_fetch import OffsetFetchRequest

_PER_TOPIC = len(SUPPORTED[ResourceType.TOPIC])
_PER_GROUP = len(SUPPORTED[ResourceType.GROUP])


class Coordinators(Protocol):
    """The part of the broker that the counts need: its group coordinators and transaction coordinators."""

    @property
    def groups(self) -> GroupCoordinator: ...

    @property
    def transactions(self) -> TransactionCoordinator: ...


Decisions: TypeAlias = Callable[[Coordinators, Asked, Any], int]
"""A function that returns an upper bound of the access decisions about one request."""


def of_each(field: str) -> Decisions:
    """Make a function that counts one decision for each element of the request's list `field`."""
    named = attrgetter(field)
    return lambda broker, asked, request: len(named(request))


def of_metadata(broker: Coordinators, asked: Asked, request: MetadataRequest) -> int:
    """Count one decision for each topic. If the request asks for the client's rights, also count one for each
    right on each topic.
    """
    topics = len(asked.topics.topics if request.topics is None else request.topics)
    return topics * (1 + _PER_TOPIC * request.include_topic_authorized_operations)


def of_topic_partitions(broker: Coordinators, asked: Asked, request: DescribeTopicPartitionsRequest) -> int:
    """Count one decision for each topic, and one for each right that the client may have on the topic."""
    return len(request.topics or asked.topics.topics) * (1 + _PER_TOPIC)


def of_groups(broker: Coordinators, asked: Asked, request: DescribeGroupsRequest) -> int:
    """Count one decision for each group. If the request asks for the client's rights, also count one for each
    right on each group.
    """
    return len(request.groups) * (1 + _PER_GROUP * request.include_authorized_operations)


def of_subscription(broker: Coordinators, asked: Asked, request: ConsumerGroupHeartbeatRequest) -> int:
    """Count one decision for each topic that the member names."""
    return len(request.subscribed_topic_names or ())


def of_consumer_groups(broker: Coordinators, asked: Asked, request: ConsumerGroupDescribeRequest) -> int:
    """Count one decision for each group, one for each topic that the group's members read, and one for each
    requested right of the client.
    """
    states = [shard.state for shard in broker.groups.shards.values()]
    topics = sum(
        len(group.topic_counts) + sum(len(each.topics) for each in group.resolved.values())
        for state in states
        if state is not None
        for group_id in dict.fromkeys(request.group_ids)
        if (group := state.consumers.get(group_id)) is not None
    )
    return len(request.group_ids) * (1 + _PER_GROUP * request.include_authorized_operations) + topics


def of_offsets(broker: Coordinators, asked: Asked, request: OffsetFetchRequest) -> int:
    """Count one decision for each group, and for each topic whose offsets are requested."""
    groups = request.groups or (request,)
    every = len(asked.topics.topics)
    return sum(1 + (every if group.topics is None else len(group.topics)) for group in groups)


def of_all_groups(broker: Coordinators, asked: Asked, request: ListGroupsRequest) -> int:
    """Count one decision for each group that this broker coordinates."""
    states = [shard.state for shard in broker.groups.shards.values()]
    return sum(
        len(state.metadata) + len(state.consumers) + len(state.offsets)
        for state in states
        if state is not None
    )


def of_all_transactions(broker: Coordinators, asked: Asked, request: ListTransactionsRequest) -> int:
    """Count one decision for each transactional id that this broker coordinates."""
    states = [shard.state for shard in broker.transactions.shards.values()]
    return sum(len(state.transactions) for state in states if state is not None)
