"""Changes the leaders of partitions (elections) and their replicas (reassignments). The functions are
operations. PURE.

Any broker accepts these requests and forwards them to the controller, which decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import attrs

from odradek.client.admin.about_partitions import asking, results_in
from odradek.client.core.operation import Operation
from odradek.client.core.partition_keys import ByPartition, by_topic, named
from odradek.client.core.scatter import any_broker, deadline_of, decided, item_error, scatter
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.topic_partition import TopicPartition

if TYPE_CHECKING:
    from odradek.client.core.client_core import ClientCore
    from odradek.client.core.scatter import CallError

__all__ = [
    "ElectionType",
    "Reassignment",
    "alter_partition_reassignments",
    "elect_leaders",
    "list_partition_reassignments",
]


class ElectionType(IntEnum):
    """The kind of an election. PREFERRED elects the first replica in the partition's list, which Kafka calls the
    preferred leader. UNCLEAN elects an out-of-sync replica if all in-sync replicas are down; the records that it lacks
    are lost.
    """

    PREFERRED = 0
    UNCLEAN = 1


@attrs.frozen
class Reassignment:
    """A reassignment that is under way. `replicas` has the old and the new replicas; the old ones stay until
    the new ones are in sync.
    """

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas that the partition has after the reassignment."""
        return tuple(node for node in self.replicas if node not in self.removing)


def elect_leaders(
    core: ClientCore,
    partitions: Iterable[tuple[str, int]] | None,
    election_type: ElectionType = ElectionType.PREFERRED,
    *,
    timeout: float | None = None,
) -> Operation[dict[TopicPartition, KafkaError | None]]:
    """Elect leaders (KIP-183, KIP-460) of these partitions (None: of all); return each partition's error, or
    None on success.

    A partition that already has the wanted leader gets ELECTION_NOT_NEEDED. With None, such partitions are
    left out. Raises `KafkaError` for the whole request, and `ClientError`.
    """
    from odradek.wire.messages.elect_leaders import ElectLeadersRequest

    wanted = None if partitions is None else list(dict.fromkeys(TopicPartition(*each) for each in partitions))

    def message(timeout_ms: int) -> ElectLeadersRequest:
        request = ElectLeadersRequest(int(election_type), None, timeout_ms)
        return request if wanted is None else asking(request, wanted)

    def failure(response: Any) -> KafkaError | None:
        return item_error(response.error_code, None, "election")

    response = yield from decided(core, message, failure, deadline_of(core, timeout))
    found = {key: error for key, error, _ in results_in(response)}
    for key in wanted or ():
        if key not in found:
            text = f"{key}: the broker's answer does not name this partition"
            found[key] = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, text)
    return found


def alter_partition_reassignments(
    core: ClientCore,
    wanted: ByPartition[Sequence[int] | None],
    *,
    allow_replication_factor_change: bool = True,
    timeout: float | None = None,
) -> Operation[dict[TopicPartition, CallError | None]]:
    """Start reassignments of partitions to these brokers, the preferred leader first (KIP-455). None cancels a
    reassignment.

    Returns each partition's error, or None on success. Brokers copy the data after the answer. Raises `ClientError`.
    """
    from odradek.wire.messages.alter_partition_reassignments import (
        AlterPartitionReassignmentsRequest,
        ReassignablePartition,
    )

    replicas_of = named(wanted)

    def moved(key: TopicPartition) -> ReassignablePartition:
        replicas = replicas_of[key]
        return ReassignablePartition(key.partition, None if replicas is None else list(replicas))

    def message(keys: list[TopicPartition], timeout_ms: int) -> AlterPartitionReassignmentsRequest:
        request = AlterPartitionReassignmentsRequest(timeout_ms, allow_replication_factor_change)
        return asking(request, keys, moved)

    def take(response: Any, keys: list[TopicPartition]) -> Iterable[tuple[TopicPartition, KafkaError | None]]:
        whole = item_error(response.error_code, response.error_message, "reassignment")
        if whole is not None:
            return [(key, whole) for key in keys]
        return [(key, error) for key, error, _ in results_in(response)]

    outcomes = yield from scatter(
        core, replicas_of, any_broker, message, take, deadline=deadline_of(core, timeout)
    )
    return dict(outcomes)


def list_partition_reassignments(
    core: ClientCore,
    partitions: Iterable[tuple[str, int]] | None = None,
    *,
    timeout: float | None = None,
) -> Operation[dict[TopicPartition, Reassignment]]:
    """List the reassignments that are under way, for these partitions (None: for all partitions). Raises
    `KafkaError` and `ClientError`.
    """
    from odradek.wire.messages.list_partition_reassignments import (
        ListPartitionReassignmentsRequest,
        ListPartitionReassignmentsTopics,
    )

    topics = (
        None
        if partitions is None
        else [
            ListPartitionReassignmentsTopics(name, indexes) for name, indexes in by_topic(partitions).items()
        ]
    )

    def message(timeout_ms: int) -> ListPartitionReassignmentsRequest:
        return ListPartitionReassignmentsRequest(timeout_ms, topics)

    def failure(response: Any) -> KafkaError | None:
        return item_error(response.error_code, response.error_message, "reassignments")

    response = yield from decided(core, message, failure, deadline_of(core, timeout))
    return {
        TopicPartition(topic.name, each.partition_index): Reassignment(
            tuple(each.replicas), tuple(each.adding_replicas), tuple(each.removing_replicas)
        )
        for topic in response.topics
        for each in topic.partitions
    }
