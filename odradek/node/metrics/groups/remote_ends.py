"""Asks leaders for the ends of partitions that have no replica on this broker. PORTED.

Only a page asks, so all is silent while nobody scrapes. A page waits for the answers up to `ASK_SECONDS_MAX`. While a leader
owes an answer to an earlier page, later pages leave it out.
"""

from __future__ import annotations

from odradek.data_plane.broker import Broker
from odradek.data_plane.groups.state import OffsetKey
from odradek.env.ports import ConnectionLost, Event
from odradek.metadata_quorum.replica.peers import PeerConnections
from odradek.node.metrics.groups.group_lag import GroupLag
from odradek.wire.errors import ErrorCode, KafkaError, ProtocolError
from odradek.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

__all__ = ["RemoteEnds"]

ASK_SECONDS_MAX = 1.0
"""The time for which a page waits for leaders: far below the ten seconds after which Prometheus gives up."""
LATEST = -1
CONSUMER = -1
"""The replica id of a client. So the answer is the high watermark."""


class RemoteEnds:
    """The requests of one broker to the leaders of partitions in which its groups have committed offsets."""

    def __init__(self, broker: Broker, lag: GroupLag) -> None:
        self._broker = broker
        self._lag = lag
        self._connections: PeerConnections | None = None
        self._asking: set[int] = set()

    async def refresh(self) -> None:
        """Ask the leaders of all partitions whose ends the last page did not find here."""
        by_leader: dict[int, list[OffsetKey]] = {}
        image, own_id = self._broker.image, self._broker.node_id
        for key in self._lag.missing:
            partition = image.partition(*key)
            if partition is not None and partition.leader >= 0 and partition.leader != own_id:
                by_leader.setdefault(partition.leader, []).append(key)
        answers: list[Event] = []
        for leader, keys in by_leader.items():
            if leader not in self._asking:
                self._asking.add(leader)
                answers.append(self._broker.env.event())
                self._broker.tasks.start_soon(self._ask, leader, keys, answers[-1])
        clock = self._broker.clock
        with clock.timeout_at(clock.monotonic() + ASK_SECONDS_MAX):
            for answer in answers:
                await answer.wait()

    async def _ask(self, leader: int, keys: list[OffsetKey], answered: Event) -> None:
        """Ask one leader. A failure leaves the ends that are known so far."""
        try:
            response = await self._request(leader, keys)
        except (ConnectionLost, KafkaError, ProtocolError):
            self._lag.unanswered += 1
        else:
            reported = self._lag.reported
            for topic in response.topics:
                for each in topic.partitions:
                    if each.error_code == ErrorCode.NONE and each.offset >= 0:
                        reported[topic.name, each.partition_index] = each.offset
        finally:
            self._asking.discard(leader)
            answered.set()

    async def _request(self, leader: int, keys: list[OffsetKey]) -> ListOffsetsResponse:
        """Send one request. Raises `ConnectionLost`, `KafkaError` or `ProtocolError`."""
        broker = self._broker
        address = broker.replication.address_of(leader)
        if address is None:
            raise ConnectionLost("the address of the leader is unknown")
        if self._connections is None:
            self._connections = PeerConnections(
                broker.env, broker.tasks, client_id=f"broker-{broker.node_id}-metrics", log=broker.log
            )
        topics: dict[str, list[ListOffsetsPartition]] = {}
        for name, index in keys:
            topics.setdefault(name, []).append(ListOffsetsPartition(index, timestamp=LATEST))
        request = ListOffsetsRequest(
            CONSUMER,
            topics=[ListOffsetsTopic(name, partitions) for name, partitions in topics.items()],
            timeout_ms=round(ASK_SECONDS_MAX * 1000),
        )
        peer = self._connections.channel(*address, "metrics")
        answer: ListOffsetsResponse = await peer.request(request, broker.clock.monotonic() + ASK_SECONDS_MAX)
        return answer
