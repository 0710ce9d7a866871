"""A plain model of a group's coordinator, for one client: who owns each partition, and the committed offsets. PURE.

The model shares no code with the product's coordinator. Each time a partition gets another owner, or the same one anew,
its ownership has a new number. The client's application writes this number into the text of each offset that it
commits. So the model knows for which ownership an offset was requested.

Laws
----
* An offset is accepted only in the ownership for which it was requested. The coordinator checks only the member and
  its generation, as Kafka's does, so the client has to keep this law.
* A partition's committed offset never goes back.
* An offset whose commit has succeeded was accepted before.

The other members follow the rules. They get a partition only after this client has given it up, or was thrown out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from random import Random

from odradek.client.consumer.consumer_types import OffsetAndMetadata
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from odradek.wire.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from odradek.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from odradek.wire.topic_partition import TopicPartition
from sim.alone.consumers.loose_core import Sent
from sim.history import SafetyViolation

__all__ = ["KEYS", "TOPIC", "TOPIC_ID", "PlainGroup", "metadata"]

TOPIC = "t"
TOPIC_ID = bytes([1]) * 16
KEYS = tuple(TopicPartition(TOPIC, index) for index in range(4))
_PASSING = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
)
_LASTING = (ErrorCode.OFFSET_METADATA_TOO_LARGE, ErrorCode.TOPIC_AUTHORIZATION_FAILED)


def metadata() -> MetadataResponse:
    """Make the answer to a Metadata request: one broker and one topic."""
    partitions = [MetadataResponsePartition(0, key.partition, 1, 0, [1], [1]) for key in KEYS]
    return MetadataResponse(
        brokers=[MetadataResponseBroker(1, "broker", 9092)],
        cluster_id="c",
        controller_id=1,
        topics=[MetadataResponseTopic(0, TOPIC, TOPIC_ID, False, partitions)],
    )


class PlainGroup(ABC):
    """The part of the model that both group protocols share."""

    def __init__(self, random: Random, trouble_chance: float) -> None:
        self.random = random
        self.trouble_chance = trouble_chance
        self.member = ""
        """The id of the simulated client's member; empty while it is outside of the group."""
        self.ours: dict[TopicPartition, None] = {}
        """The partitions that the simulated client owns."""
        self.theirs: dict[TopicPartition, None] = {}
        """The partitions that other members own. A partition may be free."""
        self.ownership = dict.fromkeys(KEYS, 0)
        self.committed = dict.fromkeys(KEYS, 0)
        self._best: dict[tuple[TopicPartition, int], int] = {}
        """The last offset that was accepted from the client, by partition and ownership."""
        self.accepted = 0
        self.refused = 0
        self.thrown_out = 0
        self._handlers: dict[type, Callable[[Sent], None]] = {
            FindCoordinatorRequest: self._find,
            MetadataRequest: self._describe,
            OffsetCommitRequest: self._commit,
        }

    # -- requests -------------------------------------------------------------------------------------------------

    def handle(self, sent: Sent) -> None:
        """Handle a request that arrives now. The answer may come later."""
        sent.has_arrived = True
        self._handlers[type(sent.call.request)](sent)

    def _find(self, sent: Sent) -> None:
        sent.answer = FindCoordinatorResponse(
            coordinators=[Coordinator(key="g", node_id=1, host="broker", port=9092)]
        )

    def _describe(self, sent: Sent) -> None:
        sent.answer = metadata()

    def is_troubled(self) -> bool:
        """True if the schedule lets the next request fail."""
        return self.random.random() < self.trouble_chance

    def _commit(self, sent: Sent) -> None:
        request: OffsetCommitRequest = sent.call.request
        verdict = self._verdict(request.member_id, request.generation_id_or_member_epoch)
        if self.is_troubled():
            verdict = self.random.choice(_PASSING)
        topics = []
        for topic in request.topics:
            answers = []
            for each in topic.partitions:
                code = verdict
                if code is ErrorCode.NONE and self.is_troubled():
                    code = self.random.choice((*_PASSING, *_LASTING))
                if code is ErrorCode.NONE:
                    key = TopicPartition(topic.name, each.partition_index)
                    self._accept(key, each.committed_offset, int(each.committed_metadata or -1))
                else:
                    self.refused += 1
                answers.append(OffsetCommitResponsePartition(each.partition_index, int(code)))
            topics.append(OffsetCommitResponseTopic(topic.name, topic.topic_id, answers))
        sent.answer = OffsetCommitResponse(topics=topics)

    @abstractmethod
    def _verdict(self, member_id: str, generation: int) -> ErrorCode:
        """Return the error for a commit in the name of this member; NONE if the commit is accepted."""

    # -- laws -----------------------------------------------------------------------------------------------------

    def _accept(self, key: TopicPartition, offset: int, ownership: int) -> None:
        if ownership != self.ownership[key]:
            raise SafetyViolation(
                f"{key}: offset {offset} was requested in ownership {ownership}, "
                f"and is accepted in ownership {self.ownership[key]}"
            )
        if offset < self.committed[key]:
            raise SafetyViolation(
                f"{key}: the committed offset goes back from {self.committed[key]} to {offset}"
            )
        self.committed[key] = self._best[key, ownership] = offset
        self.accepted += 1

    def check_success(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Check that offsets whose commit has succeeded were accepted."""
        for key, (offset, _, ownership) in offsets.items():
            best = self._best.get((key, int(ownership)), -1)
            if best < offset:
                raise SafetyViolation(
                    f"{key}: the commit of {offset} has succeeded, but only {best} was accepted"
                )

    # -- the group ------------------------------------------------------------------------------------------------

    def grant(self, key: TopicPartition, owners: dict[TopicPartition, None]) -> None:
        """Make a free partition the property of `owners`."""
        if key in self.ours or key in self.theirs:
            raise AssertionError(f"{key} has an owner already")
        owners[key] = None
        self.ownership[key] += 1

    def release(self, keys: Iterable[TopicPartition]) -> None:
        """Take partitions from the client, which has given them up or was thrown out."""
        for key in list(keys):
            del self.ours[key]

    def let_others_commit(self) -> None:
        """Let another member commit an offset."""
        if self.theirs:
            self.committed[self.random.choice(list(self.theirs))] += self.random.randint(1, 9)

    def throw_out(self) -> None:
        """Remove the client's member from the group, as after the end of its session."""
        if self.member:
            self.thrown_out += 1
            self.member = ""
            self.release(self.ours)

    @abstractmethod
    def rebalance(self) -> None:
        """Begin a rebalance, because another member has come or gone."""

    @abstractmethod
    def advance(self) -> None:
        """Take the next step of a rebalance that does not need the client."""

    @abstractmethod
    def is_settled(self) -> bool:
        """True if no rebalance is under way, and the client is a member."""
