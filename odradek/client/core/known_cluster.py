"""The cluster as the client knows it: brokers, topics, leaders; which Metadata answer or leader hint replaces
older knowledge. PURE.

Rules
-----
* Older metadata never replaces newer metadata. If an answer has an older leader epoch for the same topic id, the
  partition keeps its leader (KIP-320). Such answers occur because brokers apply changes at different moments.
* If an answer names a leader with an older epoch than the leader epoch of a commit, this leader is ignored
  (KIP-320). The broker that answered has old metadata. After `STALE_TIMES` such answers in a row the leader
  is accepted, because the commit may come from a deleted topic.
* A topic with a new id is a new topic: nothing of the old topic is kept. An id that has been replaced is accepted
  again only after `ANSWERS_IN_A_ROW` answers in a row. A broker with old metadata may still list the deleted topic.
* An error for a topic (say UNKNOWN_TOPIC_OR_PARTITION) removes the topic, and is stored as the topic's error.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

import attrs

from odradek.client.errors import broker_error, error_code
from odradek.named_states import reached
from odradek.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from odradek.wire.messages.metadata import (
        MetadataResponse,
        MetadataResponsePartition,
        MetadataResponseTopic,
    )

__all__ = ["NO_TOPIC_ID", "Broker", "Cluster", "Partition", "Topic"]

NO_TOPIC_ID = bytes(16)
ANSWERS_IN_A_ROW = 5
STALE_TIMES = 20
_IDS_KEPT_MAX = 8


@attrs.frozen
class Broker:
    """A broker: its id, and the host and port for clients."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


@attrs.frozen
class Partition:
    """A partition. `leader` is -1 while no broker leads it. `leader_epoch` is -1 if the broker does not report it.

    Only `describe_topic_partitions` sets `elr` and `last_known_elr` (KIP-966).
    """

    index: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline_replicas: tuple[int, ...] = ()
    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()


@attrs.define
class _SeenEpoch:
    """A partition's leader epoch from a committed offset, and the number of successive Metadata answers with an older
    epoch.
    """

    leader_epoch: int
    denied: int = 0


@attrs.frozen
class Topic:
    """A topic with its partitions. `topic_id` is zero if the brokers are older than 2.8."""

    name: str
    topic_id: bytes
    is_internal: bool
    partitions: dict[int, Partition]


class Cluster:
    """The brokers of the cluster, and the topics whose metadata was requested."""

    def __init__(self) -> None:
        self.cluster_id: str | None = None
        self.controller_id = -1
        self.brokers: dict[int, Broker] = {}
        self.topics: dict[str, Topic] = {}
        self.topic_errors: dict[str, ErrorCode] = {}
        self.features: dict[str, int] = {}
        """The finalized level of each feature of the cluster (KIP-584)."""
        self._features_epoch = -1
        self._ids: dict[str, deque[bytes]] = {}
        """The ids that topics of each name have had, the current id last."""
        self._denied: dict[str, tuple[bytes, int]] = {}
        """For each topic name, a former id that brokers report again, with the number of successive answers
        that have it.
        """
        self._seen_epochs: dict[tuple[str, int], _SeenEpoch] = {}
        self.updates = 0

    def update(self, response: MetadataResponse, *, complete: bool = False) -> None:
        """Apply a Metadata answer. With `complete`, the answer lists every topic, so topics that the answer lacks are
        removed.
        """
        self.updates += 1
        if response.cluster_id != self.cluster_id:
            self._ids.clear()
            self._denied.clear()
            self._seen_epochs.clear()
            self._features_epoch = -1
        self.cluster_id = response.cluster_id
        self.controller_id = response.controller_id
        self.brokers = {b.node_id: Broker(b.node_id, b.host, b.port, b.rack) for b in response.brokers}
        if complete:
            listed = {topic.name for topic in response.topics}
            self.topics = {name: topic for name, topic in self.topics.items() if name in listed}
            self.topic_errors = {}
        for topic in response.topics:
            if topic.name is not None:
                self._update_topic(topic.name, topic)

    def _update_topic(self, name: str, answer: MetadataResponseTopic) -> None:
        error = error_code(answer.error_code)
        if error is not ErrorCode.NONE:
            self.topics.pop(name, None)
            self.topic_errors[name] = error
            return
        if not self._is_present_id(name, bytes(answer.topic_id)):
            return
        self.topic_errors.pop(name, None)
        known = self.topics.get(name)
        if known is not None and known.topic_id != answer.topic_id:
            for index in known.partitions:
                self._seen_epochs.pop((name, index), None)
            known = None
        partitions = {}
        for partition in answer.partitions:
            news = self._without_stale_leader(name, _partition(partition))
            old = known.partitions.get(news.index) if known is not None else None
            partitions[news.index] = (
                old if old is not None and old.leader_epoch > news.leader_epoch >= 0 else news
            )
        self.topics[name] = Topic(name, bytes(answer.topic_id), answer.is_internal, partitions)

    def _without_stale_leader(self, name: str, partition: Partition) -> Partition:
        seen = self._seen_epochs.get((name, partition.index))
        if seen is None or partition.leader_epoch < 0:
            return partition
        if partition.leader_epoch < seen.leader_epoch and seen.denied < STALE_TIMES:
            reached("client.earlier_leader_not_believed")
            seen.denied += 1
            return attrs.evolve(partition, leader=-1)
        del self._seen_epochs[name, partition.index]
        return partition

    def note_epoch(self, name: str, index: int, leader_epoch: int) -> bool:
        """Record that a committed offset has this leader epoch. Return True if the known leader has an older
        epoch.

        That leader then gets no more requests, because its log may end before the committed records.
        """
        topic = self.topics.get(name)
        partition = topic.partitions.get(index) if topic is not None else None
        if leader_epoch < 0 or (partition is not None and not 0 <= partition.leader_epoch < leader_epoch):
            return False
        seen = self._seen_epochs.get((name, index))
        if seen is None or seen.leader_epoch < leader_epoch:
            self._seen_epochs[name, index] = _SeenEpoch(leader_epoch)
        if topic is None or partition is None:
            return False
        topic.partitions[index] = attrs.evolve(partition, leader=-1)
        return True

    def _is_present_id(self, name: str, topic_id: bytes) -> bool:
        """Record the topic id of an answer. Return False if it is the id of a topic that was replaced."""
        if topic_id == NO_TOPIC_ID:
            return True
        seen = self._ids.setdefault(name, deque(maxlen=_IDS_KEPT_MAX))
        if topic_id in seen and seen[-1] != topic_id:
            refused_id, times = self._denied.get(name, (topic_id, 0))
            times = times + 1 if refused_id == topic_id else 1
            if times < ANSWERS_IN_A_ROW:
                reached("client.former_topic_not_believed")
                self._denied[name] = (topic_id, times)
                return False
            seen.remove(topic_id)
        self._denied.pop(name, None)
        if not seen or seen[-1] != topic_id:
            seen.append(topic_id)
        return True

    def note_features(self, features: dict[str, int], epoch: int) -> None:
        """Store the features that a broker reports. Ignore the report if a report with a later epoch is
        stored already.
        """
        if epoch >= self._features_epoch:
            self.features, self._features_epoch = features, epoch

    def add_brokers(self, brokers: Iterable[Broker]) -> None:
        """Add the brokers that came with a leader hint (KIP-951)."""
        for broker in brokers:
            self.brokers[broker.node_id] = broker

    def set_leader(self, name: str, index: int, leader: int, leader_epoch: int) -> bool:
        """Apply a leader hint from a refused Produce or Fetch (KIP-951). Return False if the hint is not newer than
        the known leader.
        """
        topic = self.topics.get(name)
        partition = topic.partitions.get(index) if topic is not None else None
        if (
            topic is None
            or partition is None
            or leader not in self.brokers
            or leader_epoch <= partition.leader_epoch
        ):
            return False
        seen = self._seen_epochs.get((name, index))
        if seen is not None and leader_epoch < seen.leader_epoch:
            reached("client.leader_of_earlier_epoch_passed_over")
            return False
        topic.partitions[index] = attrs.evolve(partition, leader=leader, leader_epoch=leader_epoch)
        return True

    def topic(self, name: str) -> Topic:
        """Return a topic. Raises `KafkaError` with the broker's code for the topic, or UNKNOWN_TOPIC_OR_PARTITION."""
        topic = self.topics.get(name)
        if topic is None:
            code = self.topic_errors.get(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            raise broker_error(code, None, f"topic {name}")
        return topic

    def partition(self, name: str, index: int) -> Partition:
        """Return a partition. Raises as `topic` does, and UNKNOWN_TOPIC_OR_PARTITION for a number that the topic does
        not have.
        """
        partition = self.topic(name).partitions.get(index)
        if partition is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"topic {name} has no partition {index} (it has {len(self.topics[name].partitions)})",
            )
        return partition

    def leader(self, name: str, index: int) -> int:
        """Return the broker id of a partition's leader. Raises LEADER_NOT_AVAILABLE if there is no leader, and the
        errors of `partition`.
        """
        partition = self.partition(name, index)
        if partition.leader < 0:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"the partition {name}-{index} has no leader")
        return partition.leader

    def topic_name(self, topic_id: bytes) -> str | None:
        """Find the name of the topic with this id; None if the client does not know it."""
        return next((topic.name for topic in self.topics.values() if topic.topic_id == topic_id), None)


def _partition(answer: MetadataResponsePartition) -> Partition:
    return Partition(
        answer.partition_index,
        answer.leader_id,
        answer.leader_epoch,
        tuple(answer.replica_nodes),
        tuple(answer.isr_nodes),
        tuple(answer.offline_replicas),
    )
