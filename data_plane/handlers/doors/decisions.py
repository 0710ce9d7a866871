"""The number of decisions that the door of a request makes, at most: many are made beside the loop. PURE.

A frame of a few hundred bytes may ask for all topics, and what the client may do to each of them. Requests about
one thing and those of the hot path stand outside of the table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from odradek.data_plane.groups.coordinator import GroupCoordinator
from odradek.data_plane.transactions.coordinator import TransactionCoordinator
from odradek.security.acls.rules import SUPPORTED, ResourceType
from odradek.security.doors.door import Asked
from odradek.wire.api_keys import ApiKey
from odradek.wire.messages.describe_groups import DescribeGroupsRequest
from odradek.wire.messages.describe_topic_partitions import DescribeTopicPartitionsRequest
from odradek.wire.messages.metadata import MetadataRequest
from odradek.wire.messages.offset_fetch import OffsetFetchRequest

__all__ = ["Decisions", "decisions_of"]

_PER_TOPIC = len(SUPPORTED[ResourceType.TOPIC])
_PER_GROUP = len(SUPPORTED[ResourceType.GROUP])


Decisions: TypeAlias = Mapping[ApiKey, Callable[[Asked, Any], int]]
"""The number of decisions about a request, by its API."""


def decisions_of(coordinated: GroupCoordinator, transactions: TransactionCoordinator) -> Decisions:
    """The counts by API."""

    def groups(asked: Asked, request: Any) -> int:
        states = [shard.state for shard in coordinated.shards.values()]
        return sum(len(state.metadata) + len(state.offsets) for state in states if state is not None)

    def transactional_ids(asked: Asked, request: Any) -> int:
        states = [shard.state for shard in transactions.shards.values()]
        return sum(len(state.transactions) for state in states if state is not None)

    return {
        ApiKey.METADATA: _metadata,
        ApiKey.DESCRIBE_TOPIC_PARTITIONS: _topic_partitions,
        ApiKey.DESCRIBE_GROUPS: _groups,
        ApiKey.OFFSET_FETCH: _offsets,
        ApiKey.LIST_GROUPS: groups,
        ApiKey.LIST_TRANSACTIONS: transactional_ids,
        ApiKey.FIND_COORDINATOR: lambda asked, request: len(request.coordinator_keys),
        ApiKey.DELETE_GROUPS: lambda asked, request: len(request.groups_names),
        ApiKey.DESCRIBE_TRANSACTIONS: lambda asked, request: len(request.transactional_ids),
        ApiKey.DESCRIBE_CONFIGS: lambda asked, request: len(request.resources),
        ApiKey.LIST_OFFSETS: lambda asked, request: len(request.topics),
        ApiKey.OFFSET_COMMIT: lambda asked, request: len(request.topics),
        ApiKey.OFFSET_FOR_LEADER_EPOCH: lambda asked, request: len(request.topics),
        ApiKey.DELETE_RECORDS: lambda asked, request: len(request.topics),
        ApiKey.DESCRIBE_PRODUCERS: lambda asked, request: len(request.topics),
        ApiKey.OFFSET_DELETE: lambda asked, request: len(request.topics),
        ApiKey.TXN_OFFSET_COMMIT: lambda asked, request: len(request.topics),
    }


def _metadata(asked: Asked, request: MetadataRequest) -> int:
    topics = len(asked.topics.topics if request.topics is None else request.topics)
    return topics * (1 + _PER_TOPIC * request.include_topic_authorized_operations)


def _topic_partitions(asked: Asked, request: DescribeTopicPartitionsRequest) -> int:
    return len(request.topics or asked.topics.topics) * (1 + _PER_TOPIC)


def _groups(asked: Asked, request: DescribeGroupsRequest) -> int:
    return len(request.groups) * (1 + _PER_GROUP * request.include_authorized_operations)


def _offsets(asked: Asked, request: OffsetFetchRequest) -> int:
    groups = request.groups or (request,)
    every = len(asked.topics.topics)
    return sum(1 + (every if group.topics is None else len(group.topics)) for group in groups)
