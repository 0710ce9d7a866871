"""A delayed Produce response, which waits for replicas or a flush; errors and leaders' addresses in its answers
(KIP-951).
"""

from __future__ import annotations

from odradek.data_plane.handlers.desk import Desk
from odradek.data_plane.handlers.leader_hints import leader_endpoints
from odradek.data_plane.handlers.producing.producing_desk import ProducingDesk
from odradek.data_plane.replication.partition import Partition
from odradek.data_plane.replication.served_partitions import ServedPartitions
from odradek.named_states import reached
from odradek.serving.contract import Delayed
from odradek.serving.timers import Timer
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.produce import (
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceResponse,
    ProduceResponse,
)

ACKS_ALL = -1


class _Unacknowledged:
    """One appended batch that waits for the in-sync replicas (an `AckWaiter`)."""

    __slots__ = ("answer", "last_offset", "partition", "produce")

    def __init__(
        self,
        produce: DelayedProduce,
        partition: Partition,
        last_offset: int,
        answer: PartitionProduceResponse,
    ) -> None:
        self.produce = produce
        self.partition = partition
        self.last_offset = last_offset
        self.answer = answer

    def acknowledged(self, code: ErrorCode) -> None:
        if code:
            set_error(self.answer, code, None)
        self.produce.settle(self)

    def leadership_lost(self) -> None:
        self.produce.fail_for_leadership(self.partition, self.answer)
        self.produce.settle(self)


class DelayedProduce(Delayed):
    """The delayed answer of a Produce request.

    It waits until the replicas have all batches of the request, or until the batches are flushed.
    """

    __slots__ = (
        "desk",
        "is_queued",
        "listener",
        "names_leaders",
        "partitions",
        "pending",
        "produce_response",
        "timeout_ms",
        "timer",
        "unsynced",
    )

    keeps_request = False

    def __init__(
        self,
        desk: ProducingDesk,
        partitions: ServedPartitions,
        response: ProduceResponse,
        timeout_ms: int,
        listener: str | None = None,
    ) -> None:
        """Take the parts of the delayed answer. The answer contains the leaders' addresses on `listener`.
        Pass None as `listener` if the request's version has no such addresses.
        """
        super().__init__()
        self.desk = desk
        self.partitions = partitions
        self.listener = listener
        self.produce_response = response
        self.pending: list[_Unacknowledged] = []
        self.unsynced: list[tuple[Partition, PartitionProduceResponse]] = []
        self.is_queued = False
        """True once `wait_for` was called for all batches. From then on, settling the last batch completes
        the request.
        """
        self.timeout_ms = timeout_ms
        self.names_leaders = False
        """True if the answer for some partition names its leader. The response must then have the leader's
        address (KIP-951).
        """
        self.timer: Timer | None = None
        """The timer of the request's timeout. As in Kafka, it starts after the last append."""

    def wait_for(
        self, partition: Partition, last_offset: int, answer: PartitionProduceResponse, acks: int
    ) -> None:
        """Wait for one more appended batch: with acks=all for the high watermark, with acks=1 for a flush if
        one is needed.
        """
        if acks != ACKS_ALL:
            if partition.log.needs_flush:
                self.wait_for_sync(partition, answer)
        elif partition.log.high_watermark <= last_offset:
            if partition.is_leader:
                self.wait_for_replicas(partition, last_offset, answer)
            else:
                self.fail_for_leadership(partition, answer)

    def wait_for_replicas(
        self, partition: Partition, last_offset: int, answer: PartitionProduceResponse
    ) -> None:
        waiter = _Unacknowledged(self, partition, last_offset, answer)
        self.pending.append(waiter)
        partition.waiting.wait_for_acks(waiter)

    def wait_for_sync(self, partition: Partition, answer: PartitionProduceResponse) -> None:
        entry = (partition, answer)
        self.unsynced.append(entry)

        def done(failure: KafkaError | None) -> None:
            self.unsynced = [other for other in self.unsynced if other is not entry]
            if failure is not None:
                set_error(answer, failure.code, failure.message)
            elif not partition.is_leader:
                self.fail_for_leadership(partition, answer)
            if self.is_queued:
                self.check()

        self.desk.sync_partition(partition, done)

    def settle(self, waiter: _Unacknowledged) -> None:
        """Remove one batch that is committed or has failed. If no batch is left, complete the request."""
        self.pending.remove(waiter)
        if not self.pending and self.is_queued:
            self.check()

    def check(self) -> None:
        """Complete the request if no batch waits any more. Otherwise start the timer of the timeout."""
        self.is_queued = True
        if self.pending or self.unsynced:
            if self.timer is None:
                deadline = self.desk.clock.monotonic() + self.timeout_ms / 1000
                self.timer = self.desk.timers.at(deadline, self._time_out)
        elif self.response is None:
            if self.timer is not None:
                self.timer.cancel()
            self._answer()

    def fail_for_leadership(self, partition: Partition, answer: PartitionProduceResponse) -> None:
        """Set the error for a batch whose partition was deleted, has another leader, or is in a failed
        directory.
        """
        reached("produce.leadership_lost_while_waiting")
        code = self.partitions.lost_error(partition)
        set_error(answer, code, None)
        if code == ErrorCode.NOT_LEADER_OR_FOLLOWER and self.listener is not None:
            name_leader(answer, partition)
            self.names_leaders = True

    def _time_out(self) -> None:
        for waiter in self.pending:
            reached("produce.replicas_came_too_late")
            set_error(waiter.answer, ErrorCode.REQUEST_TIMED_OUT, None)
        self._forget()
        for _, answer in self.unsynced:
            set_error(answer, ErrorCode.REQUEST_TIMED_OUT, None)
        if self.response is None:
            self._answer()

    def _answer(self) -> None:
        if self.names_leaders and self.listener is not None:
            add_leader_endpoints(self.desk, self.listener, self.produce_response)
        self.complete(self.produce_response)

    def _forget(self) -> None:
        pending, self.pending = self.pending, []
        for waiter in pending:
            waiter.partition.waiting.forget_acks(waiter)

    def abandon(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        self._forget()


def set_error(answer: PartitionProduceResponse, code: ErrorCode, message: str | None) -> None:
    """Set an error in the answer, unless the answer already has an error.

    The first error shows the cause. For instance, a failed flush also ends the leadership, which would set a
    second error.
    """
    if answer.error_code:
        return
    answer.error_code = code
    answer.error_message = message
    answer.base_offset = -1
    answer.log_append_time_ms = -1
    answer.log_start_offset = -1


def name_leader(answer: PartitionProduceResponse, partition: Partition) -> None:
    """Write the partition's leader, if it is known, into an answer with an error (KIP-951)."""
    if partition.image is not None:
        answer.current_leader = LeaderIdAndEpoch(partition.image.leader, partition.image.leader_epoch)


def add_leader_endpoints(desk: Desk, listener: str, response: ProduceResponse) -> None:
    """Add the addresses of all leaders that the answers name to the response."""
    leaders = (
        answer.current_leader.leader_id
        for topic in response.responses
        for answer in topic.partition_responses
    )
    response.node_endpoints = leader_endpoints(desk.image, listener, leaders, NodeEndpoint)
