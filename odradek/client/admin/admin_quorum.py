"""Describes and changes the quorum of controllers, the brokers' registrations and the cluster's features. The
functions are operations. PURE.

A broker forwards these requests to the active controller. If the answer says that there is no leader now, the request
is repeated.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs

from odradek.client.core.known_cluster import Broker
from odradek.client.core.operation import Operation
from odradek.client.core.requests import request
from odradek.client.core.scatter import deadline_of, decided, item_error
from odradek.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from odradek.client.core.client_core import ClientCore

__all__ = [
    "METADATA_TOPIC",
    "QuorumDescription",
    "QuorumReplica",
    "add_raft_voter",
    "describe_controllers",
    "describe_quorum",
    "remove_raft_voter",
    "unregister_broker",
    "update_features",
]

METADATA_TOPIC = "__cluster_metadata"


@attrs.frozen
class QuorumReplica:
    """A node's copy of the metadata log. Times are in milliseconds since 1970; an unknown time is -1.

    `directory_id` is zero if the voters are static. Only voters have `endpoints`: (listener, host, port).
    """

    node_id: int
    directory_id: bytes
    log_end_offset: int
    last_fetch_ms: int
    last_caught_up_ms: int
    endpoints: tuple[tuple[str, str, int], ...] = ()


@attrs.frozen
class QuorumDescription:
    """The quorum as its leader sees it. Voters and observers are sorted by id."""

    leader_id: int
    leader_epoch: int
    high_watermark: int
    voters: tuple[QuorumReplica, ...]
    observers: tuple[QuorumReplica, ...]

    @property
    def leader(self) -> QuorumReplica | None:
        """The voter that leads the quorum; None if the leader is not among the voters."""
        return next((voter for voter in self.voters if voter.node_id == self.leader_id), None)

    def lag(self, replica: QuorumReplica) -> int | None:
        """Return the number of metadata records that a replica lacks compared with the leader; None if
        unknown.
        """
        leader = self.leader
        if leader is None or replica.log_end_offset < 0:
            return None
        return max(0, leader.log_end_offset - replica.log_end_offset)


def describe_quorum(core: ClientCore, *, timeout: float | None = None) -> Operation[QuorumDescription]:
    """Describe the quorum of controllers as its leader sees it (KIP-595, KIP-836, KIP-853). Raises `KafkaError` and
    `ClientError`.
    """
    from odradek.wire.messages.describe_quorum import (
        DescribeQuorumRequest,
        DescribeQuorumRequestPartitionData,
        DescribeQuorumRequestTopicData,
    )

    message = DescribeQuorumRequest(
        [DescribeQuorumRequestTopicData(METADATA_TOPIC, [DescribeQuorumRequestPartitionData(0)])]
    )

    def failure(response: Any) -> KafkaError | None:
        whole = item_error(response.error_code, response.error_message, "quorum")
        if whole is not None:
            return whole
        try:
            (topic,) = response.topics
            (partition,) = topic.partitions
        except ValueError:
            return KafkaError(
                ErrorCode.UNKNOWN_SERVER_ERROR, "the broker's answer does not describe the quorum"
            )
        return item_error(partition.error_code, partition.error_message, "quorum")

    response = yield from decided(core, lambda _: message, failure, deadline_of(core, timeout))
    found = response.topics[0].partitions[0]
    endpoints = {
        node.node_id: tuple((each.name, each.host, each.port) for each in node.listeners)
        for node in response.nodes
    }

    def replicas(states: Any) -> tuple[QuorumReplica, ...]:
        listed = [
            QuorumReplica(
                state.replica_id,
                bytes(state.replica_directory_id),
                state.log_end_offset,
                state.last_fetch_timestamp,
                state.last_caught_up_timestamp,
                endpoints.get(state.replica_id, ()),
            )
            for state in states
        ]
        return tuple(sorted(listed, key=lambda each: (each.node_id, each.directory_id)))

    return QuorumDescription(
        found.leader_id,
        found.leader_epoch,
        found.high_watermark,
        replicas(found.current_voters),
        replicas(found.observers),
    )


def describe_controllers(core: ClientCore, *, timeout: float | None = None) -> Operation[tuple[Broker, ...]]:
    """List the controllers that have registered with the quorum, voters or not (KIP-919).

    Only controllers support this request, so the client must have been made with the address of a controller. Raises
    `KafkaError` and `ClientError`.
    """
    from odradek.wire.messages.describe_cluster import DescribeClusterRequest

    controllers = 2
    deadline = deadline_of(core, timeout)
    message = DescribeClusterRequest(endpoint_type=controllers)
    response = yield from request(core, message, timeout=deadline - core.now)
    error = item_error(response.error_code, response.error_message, "controllers")
    if error is not None:
        raise error
    found = [Broker(each.broker_id, each.host, each.port, each.rack) for each in response.brokers]
    return tuple(sorted(found, key=lambda each: each.node_id))


def add_raft_voter(
    core: ClientCore,
    node_id: int,
    directory_id: bytes,
    endpoints: Mapping[str, tuple[str, int]],
    *,
    cluster_id: str | None = None,
    timeout: float | None = None,
) -> Operation[None]:
    """Make a node a voter (KIP-853). The node must already run as an observer of the metadata log.

    `directory_id` is the id of its metadata directory, 16 bytes. `endpoints` maps the name of a listener to
    (host, port). The request is not repeated after a lost connection, because the repetition might fail if
    the node is a voter already. Raises `KafkaError` and `ClientError`.
    """
    from odradek.wire.messages.add_raft_voter import AddRaftVoterRequest, Listener

    listeners = [Listener(name, host, port) for name, (host, port) in endpoints.items()]

    def message(timeout_ms: int) -> AddRaftVoterRequest:
        return AddRaftVoterRequest(cluster_id, timeout_ms, node_id, directory_id, listeners)

    yield from decided(
        core,
        message,
        lambda answer: item_error(answer.error_code, answer.error_message, f"voter {node_id}"),
        deadline_of(core, timeout),
        repeat_after_loss=False,
    )


def remove_raft_voter(
    core: ClientCore,
    node_id: int,
    directory_id: bytes,
    *,
    cluster_id: str | None = None,
    timeout: float | None = None,
) -> Operation[None]:
    """Turn a voter into an observer (KIP-853). Raises `KafkaError` and `ClientError`.

    The request is not repeated after a lost connection, because the repetition might fail if the voter was
    removed already.
    """
    from odradek.wire.messages.remove_raft_voter import RemoveRaftVoterRequest

    message = RemoveRaftVoterRequest(cluster_id, node_id, directory_id)
    yield from decided(
        core,
        lambda _: message,
        lambda answer: item_error(answer.error_code, answer.error_message, f"voter {node_id}"),
        deadline_of(core, timeout),
        repeat_after_loss=False,
    )


def unregister_broker(core: ClientCore, node_id: int, *, timeout: float | None = None) -> Operation[None]:
    """Remove the registration of a broker that will not come back. Raises `KafkaError` and `ClientError`."""
    from odradek.wire.messages.unregister_broker import UnregisterBrokerRequest

    yield from decided(
        core,
        lambda _: UnregisterBrokerRequest(node_id),
        lambda answer: item_error(answer.error_code, answer.error_message, f"broker {node_id}"),
        deadline_of(core, timeout),
    )


def update_features(
    core: ClientCore,
    levels: Mapping[str, int],
    *,
    allow_downgrade: bool = False,
    validate_only: bool = False,
    timeout: float | None = None,
) -> Operation[None]:
    """Set the finalized levels of these features, all or none of them (KIP-584). Level 0 removes a feature.

    Lowering a level needs `allow_downgrade`, and works only if no metadata is lost. Raises `KafkaError` and
    `ClientError`.
    """
    from odradek.wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest

    upgrade, safe_downgrade = 1, 2
    kind = safe_downgrade if allow_downgrade else upgrade
    updates = [
        FeatureUpdateKey(name, level, allow_downgrade=allow_downgrade, upgrade_type=kind)
        for name, level in levels.items()
    ]

    def failure(response: Any) -> KafkaError | None:
        for each in response.results:
            error = item_error(each.error_code, each.error_message, f"feature {each.feature}")
            if error is not None:
                return error
        return item_error(response.error_code, response.error_message, "features")

    yield from decided(
        core,
        lambda timeout_ms: UpdateFeaturesRequest(timeout_ms, updates, validate_only),
        failure,
        deadline_of(core, timeout),
    )
