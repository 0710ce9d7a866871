"""What views know of all topics: partitions, sizes, rates. A user without the right to describe the cluster gets less."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from odradek.client.admin import BrokerLogDirs, LogDirReplica, Reassignment
from odradek.client.core.known_cluster import Partition, Topic
from odradek.console.sessions.samples import Sample, records_by_partition
from odradek.console.sessions.session import Session
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.topic_partition import TopicPartition

__all__ = ["HeldReplica", "TopicFacts", "topic_facts"]

_SECONDS = 1.0


@attrs.frozen
class HeldReplica:
    """A replica in a log directory of a broker."""

    broker: int
    directory: str
    replica: LogDirReplica


@attrs.frozen(eq=False)
class TopicFacts:
    """The topics of the cluster at one moment."""

    topics: Mapping[str, Topic]
    missing: frozenset[int] = frozenset()
    """The brokers that are down, or do not answer."""
    replicas: Mapping[TopicPartition, Sequence[HeldReplica]] | None = None
    """The replicas of each partition; None if the user may not see them."""
    rates: Mapping[str, float] = attrs.field(factory=dict)
    """The records per second of each topic, as far as they are known."""
    moving: Mapping[TopicPartition, Reassignment] = attrs.field(factory=dict)
    log_dirs: Sequence[BrokerLogDirs] = ()
    older_log_dirs: Sequence[BrokerLogDirs] = ()
    """The log directories in the older sample, if there is one."""
    seconds_apart: float | None = None
    """The time between the two looks at the log directories; None if there is no older one."""
    under_min_isr: frozenset[str] = frozenset()
    """The topics with a partition below `min.insync.replicas`."""
    under_replicated: frozenset[str] | None = None
    """The partitions that lack replicas in sync. Replicas that a move is adding do not count.
    None if they are unknown."""

    def is_under_replicated(self, topic: str, partition: Partition) -> bool:
        """True if the partition lacks replicas in sync, as the cluster's page counts it."""
        if self.under_replicated is not None:
            return f"{topic}-{partition.index}" in self.under_replicated
        return len(set(partition.isr) - self.missing) < len(partition.replicas)

    def size_of(self, key: TopicPartition) -> int | None:
        """Return the bytes of the largest replica of a partition; None if no replica is known."""
        if self.replicas is None:
            return None
        sizes = [each.replica.size for each in self.replicas.get(key, ()) if not each.replica.is_future]
        return max(sizes, default=None)

    def size_of_topic(self, topic: Topic) -> int | None:
        """Return the bytes of a topic, each partition counted once; None if the user may not see sizes."""
        if self.replicas is None:
            return None
        return sum(self.size_of(TopicPartition(topic.name, index)) or 0 for index in topic.partitions)


def topic_facts(session: Session) -> TopicFacts:
    """Return the facts of the newest sample. Raises `KafkaError` and `ClientError`."""
    return session.cache.value("topic_facts", _SECONDS, lambda: _facts(session))


def _facts(session: Session) -> TopicFacts:
    try:
        before, now = session.samples.latest()
    except KafkaError as error:
        if error.code is not ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            raise
        return TopicFacts({each.name: each for each in session.client.describe_topics()})
    picture = now.picture
    return TopicFacts(
        {each.name: each for each in picture.topics},
        frozenset((*picture.cluster.fenced, *picture.silent)),
        _held(picture.log_dirs),
        _rates(before, now),
        picture.moving or {},
        picture.log_dirs,
        () if before is None else before.picture.log_dirs,
        None if before is None else picture.log_dirs_at - before.picture.log_dirs_at,
        frozenset(name.rpartition("-")[0] for name in picture.partitions.under_min_isr),
        frozenset(picture.partitions.under_replicated),
    )


def _held(log_dirs: Sequence[BrokerLogDirs]) -> dict[TopicPartition, list[HeldReplica]] | None:
    if not log_dirs:
        return None
    found: dict[TopicPartition, list[HeldReplica]] = {}
    for broker in log_dirs:
        for directory in broker.directories:
            for each in directory.replicas:
                held = HeldReplica(broker.broker, directory.path, each)
                found.setdefault(TopicPartition(each.topic, each.partition), []).append(held)
    return found


def _rates(before: Sample | None, now: Sample) -> dict[str, float]:
    rates: dict[str, float] = {}
    for key, rate in records_by_partition(before, now).items():
        rates[key.topic] = rates.get(key.topic, 0.0) + rate
    return rates
