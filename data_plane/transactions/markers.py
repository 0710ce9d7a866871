"""The sender of transaction markers, from a coordinator's decision to each partition of the transaction. PORTED.

A transaction's outcome is final as soon as its state record is committed. From then on markers are sent until
every partition has one, even if leaders change. A partition whose topic is deleted needs no marker. When all
markers are written, the machine gets `MarkersWritten`, and the producer's next transaction may begin.

Work on markers begins when a high watermark has risen, often in the turn of a follower's fetch. If markers
were appended at once, the fetch would then be parked without the new records. So all work here is done after
the turn (`woken`). One turn handles only a few transactions (`PacedActions`), since a new coordinator may
have many thousands to complete.

Markers carry the coordinator's leader epoch. A partition that has a marker of a newer coordinator refuses
markers of an older coordinator (TRANSACTION_COORDINATOR_FENCED). The newer coordinator then writes the
markers.

A partition that knows a higher producer epoch refuses the marker, too (INVALID_PRODUCER_EPOCH). There are two
possible causes. A newer coordinator has assigned the higher epoch, and this coordinator cannot commit
decisions any more. Or an admin client has sent a marker with the higher epoch. So this broker asks the
partition's leader whether a transaction is open there. If none is open, the marker is left out. The producer
id can no longer be used, because the partition would refuse all its batches, so the next producer gets a new
id. If a transaction is open, an operator has to end it. Until then the transactional id stays in
PrepareCommit or PrepareAbort. (In Kafka the id stays in this state even if no transaction is open there.)
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
"""The most markers that this broker writes itself in one turn. This takes about 10 ms."""
STARTS_PER_TURN = 100
"""The number of transactions whose markers are assigned to leaders in one turn. This takes about 5 ms."""
ENDS_PER_TURN = 25
"""The number of transactions that are completed in one turn. This takes about 5 ms."""
REQUESTS_UNDER_WAY_MAX = 8
"""The most requests that are sent to one broker at the same time. Markers that come meanwhile are collected
for the next request.
"""

_WRITTEN = frozenset(
    (ErrorCode.NONE, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, ErrorCode.UNSUPPORTED_VERSION)
)
"""The answers that finish a partition: it has its marker, or it cannot have transactions."""

WriteHere: TypeAlias = Callable[[WriteTxnMarkersRequest, Callable[[WriteTxnMarkersResponse], None]], None]
"""A function that writes markers to partitions that this broker leads, and calls back with the response."""


class MarkerShard(Protocol):
    """The part of a coordinator shard that `MarkerSender` uses."""

    leader_epoch: int

    @property
    def is_stopped(self) -> bool: ...

    def submit(self, ask: Ask) -> None: ...

    def has_completed(self, transaction: Transaction) -> bool:
        """True if the transaction is no longer in the state that `transaction` describes. The newest state of
        the shard decides, committed or not.
        """


class _Ending:
    """A transaction whose markers are being written. `left` has the partitions that still need a marker."""

    __slots__ = ("is_spent", "is_written", "left", "shard", "transaction")

    def __init__(self, shard: MarkerShard, transaction: Transaction) -> None:
        self.shard = shard
        self.transaction = transaction
        self.left = set(transaction.partitions)
        self.is_spent = False
        """True once a partition was found to have a higher epoch of the producer id, so that this id can no
        longer be used.
        """
        self.is_written = False
        """True once all partitions have their markers."""


_Part: TypeAlias = tuple[_Ending, list[TopicPartitionPair]]


class _Destination:
    """The markers to be sent to one broker, and the number of requests under way."""

    __slots__ = ("is_resting", "queue", "under_way")

    def __init__(self) -> None:
        self.queue: deque[_Part] = deque()
        self.under_way = 0
        self.is_resting = False
        """True while writing to this broker's own partitions pauses until a later turn."""


class MarkerSender:
    """The sender of the markers of all transaction coordinators of a broker."""

    def __init__(
        self, broker: TransactionHost, peers: BrokerPeers, write_here: WriteHere | None = None
    ) -> None:
        """Take the broker and the sender of its requests. If `write_here` is None, this broker sends requests
        to itself as it does to other brokers.
        """
        self._broker = broker
        self._peers = peers
        self._destinations: dict[int, _Destination] = {}
        self._endings: dict[tuple[MarkerShard, str], _Ending] = {}
        self._starts = PacedActions(broker, STARTS_PER_TURN)
        self._ends = PacedActions(broker, ENDS_PER_TURN)
        self._write_here = write_here

    def begin(self, shard: MarkerShard, transaction: Transaction) -> None:
        """Start to write the markers of a transaction whose outcome is committed."""
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
        """Drop the endings of a shard that has stopped.

        The partition's next coordinator starts them again.
        """
        for key in [key for key in self._endings if key[0] is shard]:
            del self._endings[key]

    def _is_over(self, ending: _Ending) -> bool:
        """True if the markers of this ending are no longer needed here, because the shard has stopped, or
        another ending has replaced this one.
        """
        key = (ending.shard, ending.transaction.transactional_id)
        return ending.shard.is_stopped or self._endings.get(key) is not ending

    def _route(self, ending: _Ending, partitions: list[TopicPartitionPair]) -> None:
        """Queue each partition's marker for the partition's leader, and start to send.

        Partitions without a leader are retried, deleted ones are skipped.
        """
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
        """Return the most partitions that one request to this leader may name."""
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
        """Write the remaining markers of this broker in a later turn, because there may be thousands."""
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
                # The answer identifies markers by producer id, so a request has each producer id only once.
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
        """Handle the response to a request for markers: record written markers, retry failed ones, and finish
        complete endings. If `response` is None, no answer came.
        """
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
        """Ask the leaders of partitions that know a higher producer epoch whether the transaction is open
        there.
        """
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
        """Stop writing the markers of this ending, because a partition refuses all markers of this
        coordinator.
        """
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
        """Queue the completion of an ending, because all its partitions have their markers."""
        if not ending.is_written:
            ending.is_written = True
            self._ends.add(partial(self._complete, ending))

    def _complete(self, ending: _Ending) -> None:
        """Submit `MarkersWritten` to the machine, so that it completes the transaction.

        Retry later if too few replicas are in sync for a decision.
        """
        if self._is_over(ending):
            return
        shard, transaction = ending.shard, ending.transaction
        written = MarkersWritten(
            transaction.transactional_id, transaction.producer_id, transaction.producer_epoch, ending.is_spent
        )
        shard.submit(Ask(written, 0, None, self._broker.agreed_clock.latest_ms()))
        if shard.has_completed(transaction):
            # The same decision may have admitted requests that were held, and these may have started and ended
            # the next transaction. Then the entry belongs to the next transaction, and must stay.
            if not self._is_over(ending):
                del self._endings[shard, transaction.transactional_id]
        elif not shard.is_stopped:
            at = self._broker.clock.monotonic() + RETRY_SECONDS
            self._broker.timers.at(at, partial(self._ends.add, partial(self._complete, ending)))

    def endings(self) -> Iterator[_Ending]:
        """Yield the transactions whose markers are being written, in the order of their decisions."""
        return iter(self._endings.values())

    def statistics(self) -> dict[str, int]:
        """Return figures for metrics: the number of transactions whose markers are being written."""
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
    """Read a DescribeProducers response: for each partition, True if this producer has an open transaction
    there.

    If this broker may not describe a partition, an open transaction is possible there, so the partition
    counts as True. Partitions with any other error are left out.
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
    """Return the results in a response, by producer id and partition. None as `response` gives no results."""
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
