"""The sender of a leader's proposals for its in-sync replicas to the controller (AlterPartition). One request
is sent at a time, and contains many proposals. PORTED.

A proposal is sent until the controller has decided it, or until the partition has dropped it. The partition
drops it when newer metadata arrive, or when the leadership ends. Repeating a proposal is safe. The controller
accepts a proposal only for the partition epoch in which it was made. It also checks that the proposed
replicas are still the incarnations whose fetches the leader has counted (KIP-903). So a proposal keeps the
broker epochs from the time when it was made. A broker that has restarted since then may lack records that it
had at that time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import attrs

from odradek.data_plane.replication.isr_state import CommittedIsr, PendingIsr
from odradek.data_plane.replication.partition import Partition
from odradek.env.ports import Clock, ConnectionLost, Log, TaskGroup
from odradek.named_states import reached
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionRequestPartitionData,
    AlterPartitionRequestTopicData,
    AlterPartitionResponse,
    BrokerState,
)
from odradek.wire.topic_partition import TopicIdPartition

if TYPE_CHECKING:
    from odradek.metadata_quorum.ports import PeerChannel

RETRY_SECONDS_MIN = 0.05
RETRY_SECONDS_MAX = 1.0
PARTITIONS_PER_REQUEST = 200
"""The most proposals in one request. The controller decides such a request at once, in about 5 ms. Larger ones are long
work, a twelfth of its loop: with 20,000 partitions, they would come faster than they are decided.
"""
LEADER_RECOVERED = 0


@attrs.frozen(eq=False)
class _Change:
    """A proposal that the controller has not decided yet."""

    partition: Partition
    proposal: PendingIsr
    broker_epochs: dict[int, int]
    """The broker epochs of the proposed followers when the proposal was made."""


class AlterPartitionSender:
    """Sends each proposal until the controller has decided it. Its task runs only while a proposal is
    pending.
    """

    def __init__(
        self,
        node_id: int,
        controller: PeerChannel,
        clock: Clock,
        tasks: TaskGroup,
        broker_epoch: Callable[[], int],
        *,
        timeout_ms: int,
        after_answer: Callable[[], None],
        log: Log,
    ) -> None:
        self._after_answer = after_answer
        self._node_id = node_id
        self._controller = controller
        self._clock = clock
        self._tasks = tasks
        self._broker_epoch = broker_epoch
        self._timeout_seconds = timeout_ms / 1000
        self._log = log
        self._pending: dict[TopicIdPartition, _Change] = {}
        self._is_running = False
        self.requests = 0
        self.expansions = 0
        self.shrinks = 0
        self.failures = 0
        """The number of proposals that were refused or got no answer; each repetition counts."""

    def submit(self, partition: Partition) -> None:
        """Send the pending proposal of this partition (`partition.isr_state`) to the controller."""
        proposal = partition.isr_state
        assert not isinstance(proposal, CommittedIsr), "the partition has no ISR proposal to send"
        log = partition.log
        epochs = {
            broker_id: partition.followers.broker_epoch_of(broker_id) for broker_id in proposal.proposed
        }
        self._pending[TopicIdPartition(log.topic_id, log.partition)] = _Change(partition, proposal, epochs)
        if not self._is_running:
            self._is_running = True
            self._tasks.start_soon(self._run, name="alter partition")

    async def _run(self) -> None:
        clock = self._clock
        pause = RETRY_SECONDS_MIN
        # Wait for the next turn, so that other changes proposed in this turn go into the same request.
        await clock.sleep_until(0.0)
        while self._drop_outdated():
            if await self._send():
                pause = RETRY_SECONDS_MIN
                await clock.sleep_until(0.0)
            else:
                await clock.sleep_until(clock.monotonic() + pause)
                pause = min(2 * pause, RETRY_SECONDS_MAX)
        self._is_running = False

    def _drop_outdated(self) -> bool:
        """Drop proposals that are decided or replaced, and proposals for partitions that this broker no
        longer leads. Returns True if any proposal is left to send.
        """
        for replica, change in list(self._pending.items()):
            partition = change.partition
            if partition.isr_state is not change.proposal or not partition.is_leader:
                del self._pending[replica]
        return bool(self._pending)

    async def _send(self) -> bool:
        """Send one AlterPartition request. Returns true if the controller has decided all proposals in it."""
        asked = dict(list(self._pending.items())[:PARTITIONS_PER_REQUEST])
        request = AlterPartitionRequest(self._node_id, self._broker_epoch(), self._topics(asked))
        self.requests += 1
        try:
            deadline = self._clock.monotonic() + self._timeout_seconds
            response: AlterPartitionResponse = await self._controller.request(request, deadline, version=3)
        except (KafkaError, ConnectionLost) as error:
            reached("replication.isr_change_not_sent")
            self.failures += len(asked)
            self._log.warning("isr.not_reported", error=str(error))
            return False
        if response.error_code:
            reached("replication.isr_changes_refused")
            self.failures += len(asked)
            self._log.warning("isr.not_reported", error=ErrorCode(response.error_code).name)
            return False
        for topic in response.topics:
            for answer in topic.partitions:
                replica = TopicIdPartition(topic.topic_id, answer.partition_index)
                sent = asked.get(replica)
                if sent is not None and self._take(sent, answer) and self._pending.get(replica) is sent:
                    del self._pending[replica]
        self._after_answer()
        return not any(self._pending.get(replica) is sent for replica, sent in asked.items())

    def _topics(self, asked: dict[TopicIdPartition, _Change]) -> list[AlterPartitionRequestTopicData]:
        topics: dict[bytes, AlterPartitionRequestTopicData] = {}
        for (topic_id, index), change in asked.items():
            partition = change.partition
            assert self._node_id in change.broker_epochs, (
                "a leader proposed to leave the ISR of its own partition"
            )
            topic = topics.get(topic_id)
            if topic is None:
                topic = topics[topic_id] = AlterPartitionRequestTopicData(topic_id, [])
            isr = [
                BrokerState(broker_id, self._broker_epoch() if broker_id == self._node_id else epoch)
                for broker_id, epoch in change.broker_epochs.items()
            ]
            topic.partitions.append(
                AlterPartitionRequestPartitionData(
                    index, partition.leader_epoch, [], isr, LEADER_RECOVERED, partition.partition_epoch
                )
            )
        return list(topics.values())

    def _take(self, change: _Change, answer: Any) -> bool:
        """Apply the controller's answer to one proposal. Returns true if the proposal need not be sent again."""
        partition, proposal = change.partition, change.proposal
        log = partition.log
        before = proposal.isr
        code = answer.error_code
        if not code:
            partition.isr_decided(proposal, answer.leader_epoch, answer.partition_epoch, tuple(answer.isr))
            grown = len(answer.isr) > len(before)
            self.expansions += grown
            self.shrinks += not grown
            self._log.info(
                "isr.expanded" if grown else "isr.shrunk",
                topic=log.topic,
                partition=log.partition,
                isr=list(answer.isr),
                before=list(before),
            )
            return True
        self.failures += 1
        again = partition.isr_refused(proposal, ErrorCode(code))
        self._log.info(
            "isr.refused",
            topic=log.topic,
            partition=log.partition,
            proposed=list(proposal.proposed),
            error=ErrorCode(code).name,
        )
        return not again

    def statistics(self) -> dict[str, int]:
        """Return figures: pending proposals, and requests and ISR changes since the start."""
        return {
            "pending": len(self._pending),
            "requests": self.requests,
            "expansions": self.expansions,
            "shrinks": self.shrinks,
            "failures": self.failures,
        }
