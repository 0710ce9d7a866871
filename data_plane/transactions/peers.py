"""Requests of transaction coordinators to other brokers. PORTED."""

from __future__ import annotations

from typing import Any, Protocol

from odradek.data_plane.coordination.shard import CoordinatorHost
from odradek.data_plane.transactions.transactions_topic import TRANSACTIONS_TOPIC
from odradek.env.ports import ConnectionLost
from odradek.metadata_quorum.replica.peers import PeerConnections
from odradek.wire.errors import ErrorCode, KafkaError, ProtocolError
from odradek.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from odradek.wire.messages.describe_producers import DescribeProducersRequest
from odradek.wire.messages.write_txn_markers import WriteTxnMarkersRequest


class ReplicationAddresses(Protocol):
    """The addresses on which brokers listen for requests of other brokers."""

    def address_of(self, broker_id: int) -> tuple[str, int] | None:
        """Return host and port of a broker; None while they are unknown."""


class TransactionHost(CoordinatorHost, Protocol):
    """The part of the broker that transaction coordinators use."""

    node_id: int
    request_timeout_ms: int

    @property
    def replication(self) -> ReplicationAddresses: ...


class BrokerPeers:
    """The sender of requests to other brokers. To each broker it has at most one connection for each kind of
    request.
    """

    def __init__(self, broker: TransactionHost) -> None:
        self._broker = broker
        self._connections: PeerConnections | None = None
        """The connections. None before the first request, because most brokers coordinate no transactions."""

    def coordinator_of(self, partition: int) -> int | None:
        """Return the id of the broker that leads this partition of `__transaction_state`; None if it has no
        leader.
        """
        found = self._broker.newest.image.partition(TRANSACTIONS_TOPIC, partition)
        return None if found is None or found.leader < 0 else found.leader

    async def ask(
        self,
        broker_id: int,
        request: AddPartitionsToTxnRequest | DescribeProducersRequest | WriteTxnMarkersRequest,
    ) -> tuple[ErrorCode, Any]:
        """Send a request to a broker.

        Returns NONE and the response, or NETWORK_EXCEPTION and None if no response arrives within
        `request.timeout.ms`.
        """
        broker = self._broker
        address = broker.replication.address_of(broker_id)
        if address is None:
            return ErrorCode.NETWORK_EXCEPTION, None
        if self._connections is None:
            self._connections = PeerConnections(
                broker.env,
                broker.tasks,
                client_id=f"broker-{broker.node_id}-transactions",
                log=broker.log,
            )
        peer = self._connections.channel(*address, type(request).__name__)
        deadline = broker.clock.monotonic() + broker.request_timeout_ms / 1000
        try:
            return ErrorCode.NONE, await peer.request(request, deadline)
        except (ConnectionLost, KafkaError, ProtocolError):
            return ErrorCode.NETWORK_EXCEPTION, None

    def close(self) -> None:
        if self._connections is not None:
            self._connections.close()
