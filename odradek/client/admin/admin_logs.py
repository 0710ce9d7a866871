"""Describes log directories and partitions' producers, moves replicas between directories, deletes records.
The functions are operations. PURE.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from odradek.client.admin.about_partitions import asking, outcomes_as
from odradek.client.core.operation import Operation
from odradek.client.core.partition_keys import ByPartition, by_topic, named
from odradek.client.core.scatter import deadline_of, item_error, reachable, scatter, this_broker, to_leaders
from odradek.wire.errors import KafkaError
from odradek.wire.topic_partition import TopicPartition

if TYPE_CHECKING:
    from odradek.client.core.client_core import ClientCore
    from odradek.client.core.scatter import CallError

__all__ = [
    "TO_HIGH_WATERMARK",
    "ActiveProducer",
    "BrokerLogDirs",
    "DeletedRecords",
    "LogDirDescription",
    "LogDirReplica",
    "PartitionProducers",
    "ReplicaCleaning",
    "alter_replica_log_dirs",
    "delete_records",
    "describe_log_dirs",
    "describe_producers",
]

TO_HIGH_WATERMARK = -1
"""The offset that makes `delete_records` delete all records below the high watermark."""


@attrs.frozen
class DeletedRecords:
    """The log start offset of a partition after DeleteRecords; -1 if `error` is set."""

    low_watermark: int
    error: CallError | None = None


@attrs.frozen
class ReplicaCleaning:
    """The state of log compaction at one replica. Sizes are in bytes, times in milliseconds."""

    first_dirty_offset: int
    """The first offset that is not cleaned yet."""
    clean_bytes: int
    dirty_bytes: int
    """The bytes that a cleaning pass could clean now. The active segment and records that are too young do
    not count.
    """
    is_under_way: bool
    uncleanable_reason: str | None
    """The reason why the cleaner skips this log until the broker restarts; None if the cleaner does not skip
    it.
    """
    last_pass_ended_ms: int | None
    """The end of the last cleaning pass, in milliseconds since 1970. This field and the fields below it are
    None until the first pass since the broker's start has ended.
    """
    last_pass_ms: int | None
    last_pass_bytes_before: int | None
    last_pass_bytes_after: int | None

    @property
    def dirty_ratio(self) -> float:
        """The share of the log that is not cleaned yet, from 0 to 1. The cleaner compares it with
        `min.cleanable.dirty.ratio`.
        """
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0


@attrs.frozen
class LogDirReplica:
    """A replica in a log directory. `offset_lag` is the number of offsets from the replica's end to the high watermark.
    For a future replica, it is the number of offsets from its end to the current replica's end.
    """

    topic: str
    partition: int
    size: int
    offset_lag: int
    is_future: bool
    cleaning: ReplicaCleaning | None = None
    """The state of log compaction. It is None unless it was requested, the topic is compacted, and the broker
    is Odradek's.
    """


@attrs.frozen
class DirectoryHealth:
    """The state of a log directory's disk, as measured by its broker. Only Odradek's brokers report it."""

    reserve_bytes: int
    """The bytes of the disk that the broker keeps free of records."""
    is_short: bool
    """True while only the reserve is free, so that the broker refuses records."""
    fill_bytes_per_second: int
    """The growth of the used bytes over the last hour, in bytes per second."""
    seconds_left: int | None
    """Seconds until only the reserve is free, at the rate `fill_bytes_per_second`; None if the used bytes do
    not grow.
    """
    sync_us: int
    usual_sync_us: int
    is_slow: bool
    """True while syncs of this disk take ten times as long as usual."""
    is_stalled: bool
    """True while the disk does not answer, and the directory's logs refuse requests."""
    errors: int
    """The number of disk operations that failed or were refused since the broker's start."""
    scrub_percent: int
    """The percentage of logs that the current scrub round has checked; 100 between rounds."""
    scrub_ended_ms: int | None
    """The end of the last complete scrub round, in milliseconds since 1970; None if there was none."""
    scrub_rotten: int
    """The number of logs with wrong checksums that the scrub has found since the broker's start."""
    is_released: bool = False
    """True once the broker has released the directory (`odradek disk retire`)."""


@attrs.frozen
class LogDirDescription:
    """A log directory. `total_bytes` and `usable_bytes` are the size and free space of its disk, or -1 if the
    broker does not report them.
    """

    path: str
    total_bytes: int
    usable_bytes: int
    replicas: tuple[LogDirReplica, ...]
    error: KafkaError | None = None
    is_cordoned: bool = False
    """True if the directory gets no new replicas as long as another directory can take them
    (`cordoned.log.dirs`).
    """
    health: DirectoryHealth | None = None

    @property
    def size(self) -> int:
        """The bytes of all replicas in the directory."""
        return sum(replica.size for replica in self.replicas)


@attrs.frozen
class BrokerLogDirs:
    """The log directories of a broker, sorted by path; none if `error` is set."""

    broker: int
    directories: tuple[LogDirDescription, ...]
    error: CallError | None = None


@attrs.frozen
class ActiveProducer:
    """The state that a partition keeps of an idempotent producer (KIP-664). Unknown values are -1."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    current_transaction_start_offset: int


@attrs.frozen
class PartitionProducers:
    """The idempotent producers that a partition's leader knows."""

    producers: tuple[ActiveProducer, ...]
    error: CallError | None = None


def delete_records(
    core: ClientCore, before: ByPartition[int], *, timeout: float | None = None
) -> Operation[dict[TopicPartition, DeletedRecords]]:
    """Delete the records of each partition below the given offset (`TO_HIGH_WATERMARK`: below the high
    watermark). Return each partition's new start offset. Raises `ClientError`.
    """
    from odradek.wire.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest

    offsets = named(before)

    def message(keys: list[TopicPartition], timeout_ms: int) -> DeleteRecordsRequest:
        request = DeleteRecordsRequest(timeout_ms=timeout_ms)
        return asking(request, keys, lambda key: DeleteRecordsPartition(key.partition, offsets[key]))

    take = outcomes_as(lambda _, result: DeletedRecords(result.low_watermark))
    outcomes = yield from scatter(
        core, offsets, to_leaders, message, take, deadline=deadline_of(core, timeout)
    )
    return {
        key: found if isinstance(found, DeletedRecords) else DeletedRecords(-1, found)
        for key, found in outcomes.items()
    }


def describe_log_dirs(
    core: ClientCore,
    brokers: Sequence[int] | None = None,
    *,
    include_cleaning: bool = False,
    timeout: float | None = None,
) -> Operation[list[BrokerLogDirs]]:
    """Describe the log directories of these brokers (None: of all brokers).

    With `include_cleaning`, Odradek's brokers also report the state of compaction for replicas of compacted
    topics. Raises `ClientError`.
    """
    from odradek.wire.messages.describe_log_dirs import DescribeLogDirsRequest

    deadline = deadline_of(core, timeout)
    yield from reachable(core, deadline)

    def message(_: list[int], __: int) -> DescribeLogDirsRequest:
        return DescribeLogDirsRequest(topics=None, include_cleaning=include_cleaning)

    def take(response: Any, nodes: list[int]) -> Iterable[tuple[int, BrokerLogDirs | CallError]]:
        (node,) = nodes
        error = item_error(response.error_code, None, f"broker {node}")
        directories = sorted((_directory(each) for each in response.results), key=lambda each: each.path)
        yield node, error or BrokerLogDirs(node, tuple(directories))

    wanted = sorted(core.cluster.brokers) if brokers is None else list(brokers)
    outcomes = yield from scatter(
        core, wanted, this_broker(lambda node: int(node)), message, take, deadline=deadline
    )
    return [
        found if isinstance(found, BrokerLogDirs) else BrokerLogDirs(node, (), found)
        for node, found in outcomes.items()
        # If all brokers were meant, leave out a broker that has left the cluster during the request.
        if brokers is not None or node in core.cluster.brokers
    ]


def alter_replica_log_dirs(
    core: ClientCore, wanted: Mapping[tuple[str, int, int], str], *, timeout: float | None = None
) -> Operation[dict[tuple[str, int, int], CallError | None]]:
    """Move replicas to other log directories of their brokers. `wanted` maps (topic, partition, broker) to
    the path of the directory.

    Returns each replica's error, or None on success. The broker answers first and moves the replicas later.
    Until then `describe_log_dirs` lists the new copy as a future replica. Raises `ClientError`.
    """
    from odradek.wire.messages.alter_replica_log_dirs import (
        AlterReplicaLogDir,
        AlterReplicaLogDirsRequest,
        AlterReplicaLogDirTopic,
    )

    def message(keys: list[tuple[str, int, int]], _: int) -> AlterReplicaLogDirsRequest:
        by_path: dict[str, list[TopicPartition]] = {}
        for topic, partition, broker in keys:
            by_path.setdefault(wanted[topic, partition, broker], []).append(TopicPartition(topic, partition))
        return AlterReplicaLogDirsRequest(
            dirs=[
                AlterReplicaLogDir(
                    path=path,
                    topics=[
                        AlterReplicaLogDirTopic(name=name, partitions=indexes)
                        for name, indexes in by_topic(partitions).items()
                    ],
                )
                for path, partitions in by_path.items()
            ]
        )

    def take(
        response: Any, keys: list[tuple[str, int, int]]
    ) -> Iterable[tuple[tuple[str, int, int], KafkaError | None]]:
        broker = keys[0][2]
        for topic in response.results:
            for each in topic.partitions:
                subject = f"{topic.topic_name}-{each.partition_index} on broker {broker}"
                error = item_error(each.error_code, None, subject)
                yield (topic.topic_name, each.partition_index, broker), error

    outcomes = yield from scatter(
        core, wanted, this_broker(lambda key: int(key[2])), message, take, deadline=deadline_of(core, timeout)
    )
    return dict(outcomes)


def describe_producers(
    core: ClientCore, partitions: Sequence[tuple[str, int]], *, timeout: float | None = None
) -> Operation[dict[TopicPartition, PartitionProducers]]:
    """List the idempotent producers that the leader of each partition knows. Raises `ClientError`."""
    from odradek.wire.messages.describe_producers import DescribeProducersRequest

    wanted = [TopicPartition(*each) for each in partitions]

    def message(keys: list[TopicPartition], _: int) -> DescribeProducersRequest:
        return asking(DescribeProducersRequest(), keys)

    def producers(_: TopicPartition, result: Any) -> PartitionProducers:
        return PartitionProducers(
            tuple(
                ActiveProducer(
                    each.producer_id,
                    each.producer_epoch,
                    each.last_sequence,
                    each.last_timestamp,
                    each.coordinator_epoch,
                    each.current_txn_start_offset,
                )
                for each in result.active_producers
            )
        )

    outcomes = yield from scatter(
        core, wanted, to_leaders, message, outcomes_as(producers), deadline=deadline_of(core, timeout)
    )
    return {
        key: found if isinstance(found, PartitionProducers) else PartitionProducers((), found)
        for key, found in outcomes.items()
    }


def _directory(answer: Any) -> LogDirDescription:
    return LogDirDescription(
        answer.log_dir,
        answer.total_bytes,
        answer.usable_bytes,
        tuple(
            LogDirReplica(
                topic.name,
                each.partition_index,
                each.partition_size,
                each.offset_lag,
                each.is_future_key,
                _cleaning(each.cleaning),
            )
            for topic in sorted(answer.topics, key=lambda topic: topic.name)
            for each in sorted(topic.partitions, key=lambda each: each.partition_index)
        ),
        item_error(answer.error_code, None, answer.log_dir),
        answer.is_cordoned,
        _health(answer.health),
    )


def _health(answer: Any) -> DirectoryHealth | None:
    if answer is None:
        return None
    return DirectoryHealth(
        answer.reserve_bytes,
        answer.is_short,
        answer.fill_bytes_per_second,
        answer.seconds_left if answer.seconds_left >= 0 else None,
        answer.sync_us,
        answer.usual_sync_us,
        answer.is_slow,
        answer.is_stalled,
        answer.errors,
        answer.scrub_percent,
        answer.scrub_ended_ms if answer.scrub_ended_ms >= 0 else None,
        answer.scrub_rotten,
        answer.is_released,
    )


def _cleaning(answer: Any) -> ReplicaCleaning | None:
    if answer is None:
        return None
    was_cleaned = answer.last_pass_ended_ms >= 0
    return ReplicaCleaning(
        first_dirty_offset=answer.first_dirty_offset,
        clean_bytes=answer.clean_bytes,
        dirty_bytes=answer.dirty_bytes,
        is_under_way=answer.is_under_way,
        uncleanable_reason=answer.uncleanable_reason,
        last_pass_ended_ms=answer.last_pass_ended_ms if was_cleaned else None,
        last_pass_ms=answer.last_pass_ms if was_cleaned else None,
        last_pass_bytes_before=answer.last_pass_bytes_before if was_cleaned else None,
        last_pass_bytes_after=answer.last_pass_bytes_after if was_cleaned else None,
    )
