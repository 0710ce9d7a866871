"""A plain model of one partition on three brokers, for one consumer: leaders change, and logs are cut and filled again.
PURE.

Any broker may be elected, whatever its log lacks. A leader that was deposed leads on, and appends, until it learns of
its successor. A broker that knows the leader copies the leader's log, and cuts what the leader does not have. All that
a leader has counts as committed. So consumers read records that are lost later.

Each record knows the record before it, so the last record of a log determines the whole log.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import attrs

from odradek.wire.batches.records import RecordBatchBuilder
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    PartitionData,
)
from odradek.wire.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from odradek.wire.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from odradek.wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from odradek.wire.topic_partition import TopicPartition
from sim.alone.consumers.loose_core import Sent

__all__ = ["KEY", "LoggedRecord", "PlainPartition", "Replica"]

KEY = TopicPartition("t", 0)
TOPIC_ID = bytes([1]) * 16
NODES = (1, 2, 3)
BATCHES_MAX = 4
_LATEST = -1


@attrs.frozen(eq=False)
class LoggedRecord:
    """One record, in a batch of its own."""

    offset: int
    epoch: int
    value: bytes
    former: LoggedRecord | None
    """The record before this one in the log; None for the first record."""
    batch: bytes


@attrs.define(eq=False)
class Replica:
    """One broker's log, and the leader that the broker knows."""

    node: int
    leader: int = 1
    epoch: int = 0
    log: list[LoggedRecord] = attrs.field(factory=list)

    @property
    def is_leader(self) -> bool:
        """True if the broker leads the partition, as far as it knows."""
        return self.leader == self.node

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        """Return the last epoch up to `epoch` that the log has, and the offset at which its records end. Return -1 and
        -1 without such an epoch.
        """
        found = [record for record in self.log if record.epoch <= epoch]
        if epoch >= self.epoch:
            return (self.epoch, len(self.log)) if epoch == self.epoch else (-1, -1)
        return (found[-1].epoch, found[-1].offset + 1) if found else (-1, -1)


class PlainPartition:
    """The partition with its replicas. Handles the requests of the client."""

    def __init__(self, random: Random, hint_chance: float) -> None:
        self.random = random
        self.hint_chance = hint_chance
        self.replicas = {node: Replica(node) for node in NODES}
        self.records: dict[bytes, LoggedRecord] = {}
        """All records that were ever written, by their values."""
        self.elections = 0
        self.cuts = 0
        """How many elections chose a broker with another log, and how often a deposed leader appended records."""
        self._handlers: dict[type, Callable[[Sent, Replica], None]] = {
            FetchRequest: self._fetch,
            OffsetForLeaderEpochRequest: self._find_end,
            ListOffsetsRequest: self._list,
        }

    # -- the brokers ----------------------------------------------------------------------------------------------

    @property
    def leader(self) -> Replica:
        """Return the leader of the latest epoch."""
        return max((each for each in self.replicas.values() if each.is_leader), key=lambda each: each.epoch)

    def elect(self) -> None:
        """Elect a random broker, which alone knows of its election."""
        former, chosen = self.leader, self.random.choice(list(self.replicas.values()))
        self.cuts += former.log != chosen.log
        chosen.epoch, chosen.leader = former.epoch + 1, chosen.node
        self.elections += 1

    def spread(self) -> None:
        """Let a random broker learn of the leader, and copy some of the leader's log."""
        leader, each = self.leader, self.random.choice(list(self.replicas.values()))
        if each is not leader:
            each.leader, each.epoch = leader.node, leader.epoch
            common = sum(mine is its for mine, its in zip(each.log, leader.log, strict=False))
            each.log = leader.log[: self.random.randint(common, len(leader.log))]

    def append(self) -> None:
        """Let a leader append records. It may be a leader that does not know that it was deposed."""
        leading = self.random.choice([each for each in self.replicas.values() if each.is_leader])
        self.cuts += leading is not self.leader
        for _ in range(self.random.randint(1, 3)):
            self._append_to(leading)

    def _append_to(self, leading: Replica) -> None:
        offset, value = len(leading.log), b"%d" % len(self.records)
        builder = RecordBatchBuilder(base_offset=offset, leader_epoch=leading.epoch)
        builder.append(0, None, value)
        former = leading.log[-1] if leading.log else None
        record = LoggedRecord(offset, leading.epoch, value, former, bytes(builder.build()))
        self.records[value] = record
        leading.log.append(record)

    def heal(self) -> None:
        """Let all brokers learn of the leader and copy its log. The leader appends a last record."""
        leader = self.leader
        self._append_to(leader)
        for each in self.replicas.values():
            each.leader, each.epoch, each.log = leader.node, leader.epoch, list(leader.log)

    # -- requests -------------------------------------------------------------------------------------------------

    def handle(self, sent: Sent) -> None:
        """Answer a request that arrives now."""
        sent.has_arrived = True
        node = sent.call.node
        replica = self.random.choice(list(self.replicas.values())) if node is None else self.replicas[node]
        if isinstance(sent.call.request, MetadataRequest):
            sent.answer = self.metadata(replica)
        else:
            self._handlers[type(sent.call.request)](sent, replica)

    def metadata(self, replica: Replica) -> MetadataResponse:
        """Make a Metadata answer with what a broker knows."""
        partition = MetadataResponsePartition(0, 0, replica.leader, replica.epoch, list(NODES), list(NODES))
        return MetadataResponse(
            brokers=[MetadataResponseBroker(node, "broker", node) for node in NODES],
            cluster_id="c",
            controller_id=1,
            topics=[MetadataResponseTopic(0, KEY.topic, TOPIC_ID, False, [partition])],
        )

    def _refusal(self, replica: Replica, epoch: int) -> ErrorCode:
        if epoch < replica.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if epoch > replica.epoch:
            return ErrorCode.UNKNOWN_LEADER_EPOCH
        return ErrorCode.NONE if replica.is_leader else ErrorCode.NOT_LEADER_OR_FOLLOWER

    def _fetch(self, sent: Sent, replica: Replica) -> None:
        request: FetchRequest = sent.call.request
        topics = []
        for topic in request.topics:
            (asked,) = topic.partitions
            code, log = self._refusal(replica, asked.current_leader_epoch), replica.log
            if code is ErrorCode.NONE and asked.fetch_offset > len(log):
                code = ErrorCode.OFFSET_OUT_OF_RANGE
            answer = PartitionData(0, int(code))
            if code is ErrorCode.NONE:
                count = self.random.randint(1, BATCHES_MAX)
                found = log[asked.fetch_offset : asked.fetch_offset + count]
                answer.high_watermark = answer.last_stable_offset = len(log)
                answer.log_start_offset = 0
                answer.records = b"".join(record.batch for record in found)
            elif self.random.random() < self.hint_chance:
                answer.current_leader = LeaderIdAndEpoch(replica.leader, replica.epoch)
            topics.append(FetchableTopicResponse(topic.topic, topic.topic_id, [answer]))
        sent.answer = FetchResponse(responses=topics)

    def _find_end(self, sent: Sent, replica: Replica) -> None:
        request: OffsetForLeaderEpochRequest = sent.call.request
        (asked,) = request.topics[0].partitions
        code, epoch, end = self._refusal(replica, asked.current_leader_epoch), -1, -1
        if code is ErrorCode.NONE:
            epoch, end = replica.epoch_end(asked.leader_epoch)
        sent.answer = OffsetForLeaderEpochResponse(
            topics=[OffsetForLeaderTopicResult(KEY.topic, [EpochEndOffset(int(code), 0, epoch, end)])]
        )

    def _list(self, sent: Sent, replica: Replica) -> None:
        request: ListOffsetsRequest = sent.call.request
        (asked,) = request.topics[0].partitions
        answer = ListOffsetsPartitionResponse(0, int(self._refusal(replica, asked.current_leader_epoch)))
        if not answer.error_code:
            answer.offset = len(replica.log) if asked.timestamp == _LATEST else 0
            answer.leader_epoch = replica.epoch
        sent.answer = ListOffsetsResponse(topics=[ListOffsetsTopicResponse(KEY.topic, [answer])])
