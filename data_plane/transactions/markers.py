"""Sends the markers of a coordinator's decision to each partition of the transaction. PORTED.

A transaction's outcome is final as soon as its state record is committed. From then on markers are written until
every partition has one, through changes of leaders. A partition whose topic is deleted needs none. After that, the
machine is notified (`MarkersWritten`), and the next transaction of that producer may begin.

Markers are appended when a high watermark has risen, often in the turn of a follower's fetch. That fetch would then
park without the new records. So everything here happens after the turn (`woken`). One turn takes a few transactions
(`PacedActions`), since a coordinator that begins may have many thousands to complete.

Markers carry the coordinator's leader epoch. A partition that has seen a newer coordinator's marker refuses an older
one's (TRANSACTION_COORDINATOR_FENCED): the newer coordinator writes them.

A partition that has seen a higher producer epoch refuses the marker, too (INVALID_PRODUCER_EPOCH). Either a newer
coordinator gave out that epoch, and this coordinator can commit no more decisions. Or an admin client sent a marker
with that epoch. So the leader is asked whether a transaction is open there. If none is open, the marker is left
out. The producer id is spent, because the partition would refuse all its batches, and the next producer gets a new
id. If a transaction is open, an operator has to end it. Until then the transactional id stays in PrepareCommit or
PrepareAbort. (In Kafka it does so in both cases.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Protocol, TypeAlias

from odradek.data_plane.coordination.asking import Ask
from odradek.data_plane.transactions.paced_actions import PacedActions
from odradek.data_plane.transactions.peers import BrokerPeers, TransactionHost
from odradek.data_plane.transactions.requests import MarkersWritten
from odradek.data_plane.transactions.state import TopicPartitionPair, Transaction, TransactionStatus
from odradek.named_states import reached
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.describe_producers import DescribeProducersRequest, TopicRequest
from odradek.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

RETRY_SECONDS = 0.1
PARTITIONS_PER_REQUEST = 2_000
PARTITIONS_PER_TURN = 200
"""The most markers that this broker writes itself before other clients are served: about 10 ms."""
STARTS_PER_TURN = 100
"""The number of transactions whose markers are routed to their leaders in one turn: about 5 ms."""
ENDS_PER_TURN = 25
"""The number of transactions that are completed in one turn: about 5 ms."""
REQUESTS_UNDER_WAY_MAX = 8
"""The most requests to one broker at a time. Later markers go together in the next request."""

_WRITTEN = frozenset(
    (ErrorCode.NONE, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, ErrorCode.UNSUPPORTED_VERSION)
)
"""Answers after which the partition has its marker, or can have no transactions."""

WriteHere: TypeAlias = Callable[[WriteTxnMarkersRequest, Callable[[WriteTxnMarkersResponse], None]], None]
"""Writes markers to partitions that this broker leads, and calls back with the answer."""


class MarkerShard(Protocol):
    """The coordinator shard that has decided to end the transaction."""

    leader_epoch: int

    @property
    def is_stopped(self) -> bool: ...

    def submit(self, ask: Ask) -> None: ...

    def has_completed(self, transaction: Transaction) -> bool:
        """True if the newest state, committed or not, is beyond this one."""


class _Ending:
    """A transaction whose markers are on their way."""

    __slots__ = ("is_spent", "is_written", "left", "shard", "transaction")

    def __init__(self, shard: MarkerShard, transaction: Transaction) -> None:
        self.shard = shard
        self.transaction = transaction
        self.left = set(transaction.partitions)
        self.is_spent = False
        """True once a partition knows a higher epoch of the producer id."""
        self.is_written = False
        """True once all partitions have their markers."""


_Part: TypeAlias = tuple[_Ending, list[TopicPartitionPair]]


class _Destination:
    """The markers that one broker has to write."""

    __slots__ = ("is_resting", "queue", "under_way")

    def __init__(self) -> None:
        self.queue: deque[_Part] = deque()
        self.under_way = 0
        self.is_resting = False
        """True while this broker serves other requests before it writes more."""


class MarkerSender:
    """Sends the markers of all coordinators of a broker."""

    def __init__(
        self, broker: TransactionHost, peers: BrokerPeers, write_here: WriteHere | None = None
    ) -> None:
        """Without `write_here`, this broker sends requests to itself like to all others."""
        self._broker = broker
        self._peers = peers
        self._destinations: dict[int, _Destination] = {}
        self._endings: dict[tuple[MarkerShard, str], _Ending] = {}
        self._starts = PacedActions(broker, STARTS_PER_TURN)
        self._ends = PacedActions(broker, ENDS_PER_TURN)
        self._write_here = write_here

    def begin(self, shard: MarkerShard, transaction: Transaction) -> None:
        """Write the markers of a transaction whose outcome is committed."""
        key = (shard, transaction.transactional_id)
        known = self._endings.get(key)
        if known is not None and known.transaction == transaction:
            reached("transactions.markers_asked_twice")
            return
        ending = self._endings[key] = _Ending(shard, transaction)
        self._starts.add(partial(self._start, ending))

    def _start(self, ending: _Ending) -> None:
        if self._is_over(ending):
            return
        if ending.left:
            self._route(ending, sorted(ending.left))
        else:
            self._finish(ending)

    def forget(self, shard: MarkerShard) -> None:
        """Forget a shard that has ended: the next coordinator begins anew."""
        for key in [key for key in self._endings if key[0] is shard]:
            del self._endings[key]

    def _is_over(self, ending: _Ending) -> bool:
        """True if the markers of this ending are no longer needed."""
        key = (ending.shard, ending.transaction.transactional_id)
        return ending.shard.is_stopped or self._endings.get(key) is not ending

    def _route(self, ending: _Ending, partitions: list[TopicPartitionPair]) -> None:
        """Assign each partition's marker to the partition's leader."""
        if self._is_over(ending):
            return
        image = self._broker.newest.image
        by_leader: dict[int, list[TopicPartitionPair]] = {}
        homeless: list[TopicPartitionPair] = []
        for topic, index in partitions:
            found = image.partition(topic, index)
            if found is None:
                reached("transactions.marker_without_partition")
                ending.left.discard((topic, index))
            elif found.leader < 0:
                reached("transactions.marker_waits_for_leader")
                homeless.append((topic, index))
            else:
                by_leader.setdefault(found.leader, []).append((topic, index))
        if homeless:
            self._retry(ending, homeless)
        for leader, led in by_leader.items():
            destination = self._destinations.setdefault(leader, _Destination())
            most = self._partitions_max(leader)
            for start in range(0, len(led), most):
                destination.queue.append((ending, led[start : start + most]))
            self._send(leader, destination)
        if not ending.left and not self._is_over(ending):
            self._finish(ending)

    def _retry(self, ending: _Ending, partitions: list[TopicPartitionPair]) -> None:
        at = self._broker.clock.monotonic() + RETRY_SECONDS
        again = partial(self._starts.add, partial(self._route, ending, partitions))
        self._broker.timers.at(at, again)

    def _partitions_max(self, leader: int) -> int:
        """Return the size of one request to this leader."""
        return PARTITIONS_PER_TURN if leader == self._broker.node_id else PARTITIONS_PER_REQUEST

    def _send(self, leader: int, destination: _Destination) -> None:
        is_here = leader == self._broker.node_id
        while (
            destination.queue
            and destination.under_way < REQUESTS_UNDER_WAY_MAX
            and not destination.is_resting
        ):
            parts = self._next_parts(destination, self._partitions_max(leader))
            if not parts:
                return
            destination.under_way += 1
            request = WriteTxnMarkersRequest([_marker(*part) for part in parts])
            if is_here and self._write_here is not None:
                self._rest(leader, destination)
                self._write_here(request, partial(self._answered, leader, parts))
            else:
                self._broker.tasks.start_soon(self._ask, leader, parts, request)

    def _rest(self, leader: int, destination: _Destination) -> None:
        """Write the remaining markers in a later turn: a transaction may have thousands of partitions here."""
        if destination.queue:
            destination.is_resting = True
            self._broker.timers.next_turn(partial(self._go_on, leader, destination))

    def _go_on(self, leader: int, destination: _Destination) -> None:
        destination.is_resting = False
        self._send(leader, destination)

    def _next_parts(self, destination: _Destination, most: int) -> list[_Part]:
        parts: list[_Part] = []
        count = 0
        producers: set[int] = set()
        while destination.queue and count < most:
            ending, partitions = destination.queue[0]
            if self._is_over(ending):
                reached("transactions.queued_marker_dropped")
                destination.queue.popleft()
                continue
            if ending.transaction.producer_id in producers:
                reached("transactions.markers_of_one_producer_parted")
                # Answers are distinguished by producer ids, so a request has each producer id once.
                break
            producers.add(ending.transaction.producer_id)
            parts.append(destination.queue.popleft())
            count += len(partitions)
        return parts

    async def _ask(self, leader: int, parts: list[_Part], request: WriteTxnMarkersRequest) -> None:
        _, response = await self._peers.ask(leader, request)
        self._answered(leader, parts, response)
        self._broker.run_woken()

    def _answered(self, leader: int, parts: list[_Part], response: WriteTxnMarkersResponse | None) -> None:
        """Note the partitions that have the marker; send another request for the rest."""
        destination = self._destinations[leader]
        destination.under_way -= 1
        codes = _codes(response)
        for ending, partitions in parts:
            if self._is_over(ending):
                reached("transactions.late_marker_answer_dropped")
                continue
            again: list[TopicPartitionPair] = []
            of_producer = codes.get(ending.transaction.producer_id, {})
            is_fenced = False
            overtaken: list[TopicPartitionPair] = []
            for partition in partitions:
                code = of_producer.get(partition, ErrorCode.NETWORK_EXCEPTION)
                if code in _WRITTEN:
                    ending.left.discard(partition)
                elif code is ErrorCode.INVALID_PRODUCER_EPOCH:
                    reached("transactions.marker_overtaken")
                    overtaken.append(partition)
                elif code is ErrorCode.TRANSACTION_COORDINATOR_FENCED:
                    reached("transactions.marker_of_earlier_coordinator")
                    is_fenced = True
                    self._give_up(ending, code, partition)
                    break
                else:
                    reached("transactions.marker_sent_again")
                    again.append(partition)
            if is_fenced:
                continue
            if overtaken:
                self._broker.tasks.start_soon(self._look_at_overtaken, leader, ending, overtaken)
            if again:
                self._retry(ending, again)
            if not ending.left:
                self._finish(ending)
        self._send(leader, destination)

    async def _look_at_overtaken(
        self, leader: int, ending: _Ending, partitions: list[TopicPartitionPair]
    ) -> None:
        """Ask the leader of partitions with a higher producer epoch whether a transaction is open there."""
        topics: dict[str, list[int]] = {}
        for topic, index in partitions:
            topics.setdefault(topic, []).append(index)
        request = DescribeProducersRequest(
            [TopicRequest(topic, indexes) for topic, indexes in topics.items()]
        )
        _, response = await self._peers.ask(leader, request)
        if self._is_over(ending):
            return
        open_here = _open_in(response, ending.transaction.producer_id)
        unknown = [partition for partition in partitions if partition not in open_here]
        for partition in partitions:
            if open_here.get(partition):
                reached("transactions.marker_given_up")
                self._give_up(ending, ErrorCode.INVALID_PRODUCER_EPOCH, partition)
                return
            if partition in open_here:
                ending.left.discard(partition)
                reached("transactions.producer_id_spent")
                if not ending.is_spent:
                    ending.is_spent = True
                    self._warn("transactions.producer_id_spent", ending, partition)
        if unknown:
            self._retry(ending, unknown)
        if not ending.left:
            self._finish(ending)
        self._broker.run_woken()

    def _give_up(self, ending: _Ending, code: ErrorCode, partition: TopicPartitionPair) -> None:
        """Give up an ending, because a partition refuses all markers of this coordinator."""
        del self._endings[ending.shard, ending.transaction.transactional_id]
        self._warn("transactions.marker_refused", ending, partition, error=code.name)

    def _warn(self, event: str, ending: _Ending, partition: TopicPartitionPair, **fields: str) -> None:
        transaction = ending.transaction
        self._broker.log.warning(
            event,
            transactional_id=transaction.transactional_id,
            producer_id=transaction.producer_id,
            producer_epoch=transaction.producer_epoch,
            coordinator_epoch=ending.shard.leader_epoch,
            topic=partition[0],
            partition=partition[1],
            **fields,
        )

    def _finish(self, ending: _Ending) -> None:
        """Finish an ending, because all partitions have their markers."""
        if not ending.is_written:
            ending.is_written = True
            self._ends.add(partial(self._complete, ending))

    def _complete(self, ending: _Ending) -> None:
        """Let the machine complete the transaction. While too few replicas are in sync, the machine decides
        nothing: try again later.
        """
        if self._is_over(ending):
            return
        shard, transaction = ending.shard, ending.transaction
        written = MarkersWritten(
            transaction.transactional_id, transaction.producer_id, transaction.producer_epoch, ending.is_spent
        )
        shard.submit(Ask(written, 0, None, self._broker.agreed_clock.latest_ms()))
        if shard.has_completed(transaction):
            # Held requests may have begun and ended the next transaction in this same decision.
            if not self._is_over(ending):
                del self._endings[shard, transaction.transactional_id]
        elif not shard.is_stopped:
            at = self._broker.clock.monotonic() + RETRY_SECONDS
            self._broker.timers.at(at, partial(self._ends.add, partial(self._complete, ending)))

    def endings(self) -> Iterator[_Ending]:
        """Yield the transactions whose markers are on their way, in the order of their decisions."""
        return iter(self._endings.values())

    def statistics(self) -> dict[str, int]:
        """Return figures for metrics."""
        return {"ending": len(self._endings)}


def _marker(ending: _Ending, partitions: list[TopicPartitionPair]) -> WritableTxnMarker:
    transaction = ending.transaction
    topics: dict[str, list[int]] = {}
    for topic, index in partitions:
        topics.setdefault(topic, []).append(index)
    return WritableTxnMarker(
        transaction.producer_id,
        transaction.producer_epoch,
        transaction.status is TransactionStatus.PREPARE_COMMIT,
        [WritableTxnMarkerTopic(topic, indexes) for topic, indexes in topics.items()],
        ending.shard.leader_epoch,
        transaction.client_version,
    )


def _open_in(response: Any, producer_id: int) -> dict[TopicPartitionPair, bool]:
    """Map each partition of a DescribeProducers answer to True if this producer has an open transaction there.

    It may have one where this broker has no right to look, which counts as True. Partitions with another error are
    left out.
    """
    if response is None:
        return {}
    return {
        (topic.name, described.partition_index): bool(described.error_code)
        or any(
            each.producer_id == producer_id and each.current_txn_start_offset >= 0
            for each in described.active_producers
        )
        for topic in response.topics
        for described in topic.partitions
        if described.error_code in (ErrorCode.NONE, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    }


def _codes(response: Any) -> dict[int, dict[TopicPartitionPair, ErrorCode]]:
    """Collect the answers by producer id, then by partition."""
    if response is None:
        return {}
    return {
        marker.producer_id: {
            (topic.name, result.partition_index): ErrorCode(result.error_code)
            for topic in marker.topics
            for result in topic.partitions
        }
        for marker in response.markers
    }
