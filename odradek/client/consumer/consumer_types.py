"""The data types that a consumer returns or accepts as arguments, and its errors. PURE."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import attrs

from odradek.client.core.arguments import INT64_MAX, as_integer, as_text, by_partition
from odradek.client.core.partition_keys import ByPartition
from odradek.client.errors import ClientError, is_retriable
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.topic_partition import TopicPartition

if TYPE_CHECKING:
    from odradek.wire.batches.records import Header

__all__ = [
    "CommitCallback",
    "CommitRefused",
    "ConsumerGroupMetadata",
    "ConsumerRecord",
    "NoOffsetForPartition",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "OffsetsOutOfRange",
    "RawBatch",
    "RebalanceEvent",
    "RebalanceKind",
    "RebalanceListener",
    "SubscriptionPattern",
    "TopicGone",
    "TopicPartition",
    "TruncationDetected",
    "UndecodableRecord",
    "Wakeup",
    "judged_offsets",
]


class ConsumerRecord(NamedTuple):
    """One record. `timestamp` is in milliseconds since 1970; the `value` None is a tombstone.

    `timestamp_type` is 0 for CreateTime and 1 for LogAppendTime. `leader_epoch` is the epoch in which the record was
    written; commits include it (KIP-320). `key` and `value` are bytes, unless the consumer has deserializers.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: Any
    value: Any
    headers: tuple[Header, ...] = ()
    leader_epoch: int = -1
    timestamp_type: int = 0


class RawBatch(NamedTuple):
    """One record batch, as the bytes that are in the log. Its checksum is verified if `check.crcs` is true.
    `data` refers to the whole fetch response, which therefore stays in memory.

    Brokers return only whole batches, so the batch may begin with records below `start_offset`. Ignore these records,
    because they were read before.
    """

    topic: str
    partition: int
    base_offset: int
    last_offset: int
    start_offset: int
    leader_epoch: int
    high_watermark: int
    record_count: int
    data: memoryview


class OffsetAndMetadata(NamedTuple):
    """A position to commit: the next offset to read, the leader epoch of the previous record, and a text that
    the application may choose.
    """

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


def judged_offsets(
    what: str, offsets: ByPartition[OffsetAndMetadata | int]
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Check the offsets to commit, and return them as `OffsetAndMetadata`. Raises `TypeError` and `ValueError`, which
    name the argument `what`.
    """
    return by_partition(what, offsets, _judged_offset)


def _judged_offset(what: str, value: Any) -> OffsetAndMetadata:
    if not isinstance(value, tuple):
        return OffsetAndMetadata(as_integer(what, value, most=INT64_MAX))
    if len(value) != len(OffsetAndMetadata._fields):
        raise TypeError(f"{what} has {len(value)} parts, expected an offset or OffsetAndMetadata")
    offset, leader_epoch, metadata = value
    return OffsetAndMetadata(
        as_integer(f"the offset of {what}", offset, most=INT64_MAX),
        as_integer(f"the leader epoch of {what}", leader_epoch, -1),
        as_text(f"the metadata of {what}", metadata, may_be_empty=True),
    )


@attrs.frozen
class ConsumerGroupMetadata:
    """A consumer's identity in its group, for offsets that a producer commits in its transaction (KIP-447).

    The defaults describe a client outside of the group; coordinators accept all its offsets.
    """

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None

    def __attrs_post_init__(self) -> None:
        if self.generation_id > 0 and not self.member_id:
            raise ValueError(f"generation {self.generation_id} of group {self.group_id} needs a member id")


@attrs.frozen
class SubscriptionPattern:
    """A subscription to all topics whose whole name matches a pattern in RE2's syntax.

    In a group of the new protocol (KIP-848), the coordinator matches the pattern. In a classic group the
    client itself matches the pattern, as a Python regular expression.
    """

    pattern: str = attrs.field()

    @pattern.validator
    def _check(self, _attribute: Any, value: Any) -> None:
        as_text("pattern", value)


class OffsetAndTimestamp(NamedTuple):
    """The first record of a partition whose timestamp is a given time or later: its offset and its timestamp."""

    offset: int
    timestamp: int
    leader_epoch: int = -1


class RebalanceListener:
    """Callbacks about the partitions of a consumer; override the methods that you need.

    All methods are called within `poll`, `close` and `unsubscribe`, in the thread of that call. They may use the
    consumer (commit, seek). With the cooperative protocol, each call gets only the partitions that change.
    """

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        """Called before these partitions go to other members. This is the last moment to commit their
        offsets.
        """

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        """Called when these partitions have been assigned, before the first record is read from them."""

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
        """Called when these partitions were lost, so that other members may already read them and a commit would
        fail. The default calls `on_partitions_revoked`.
        """
        self.on_partitions_revoked(partitions)


class RebalanceKind(Enum):
    """The kind of a rebalance event: which method of the listener to call."""

    REVOKED = "revoked"
    ASSIGNED = "assigned"
    LOST = "lost"


@attrs.frozen
class RebalanceEvent:
    """A call of the rebalance listener that the shell must make. The consumer continues the rebalance after
    `ConsumerMachine.notified`.
    """

    kind: RebalanceKind
    partitions: list[TopicPartition]

    def call(self, listener: Any) -> Any:
        """Call the listener's method for this event, and return its result: an awaitable if the method is async."""
        if self.kind is RebalanceKind.ASSIGNED:
            return listener.on_partitions_assigned(self.partitions)
        if self.kind is RebalanceKind.REVOKED:
            return listener.on_partitions_revoked(self.partitions)
        return listener.on_partitions_lost(self.partitions)


CommitCallback: TypeAlias = Callable[[dict[TopicPartition, OffsetAndMetadata], Exception | None], None]


class Wakeup(ClientError):
    """Raised by `poll` because `Consumer.wakeup` was called from another thread."""


class UndecodableRecord(ClientError):
    """Raised if the record at `offset`, or its batch, cannot be decoded. All earlier records have been returned.

    Each further poll raises the error again. `seek((topic, partition), next_offset)` skips the record, and `pause`
    postpones it. `__cause__` is the deserializer's exception, or `odradek.wire.batches.batch_errors.CorruptBatch` or
    `InvalidRecord`. `record` has the bytes that a deserializer refused; it is None if the record itself cannot be
    decoded.
    """

    def __init__(
        self,
        partition: TopicPartition,
        offset: int,
        next_offset: int,
        cause: Exception,
        record: ConsumerRecord | None = None,
    ) -> None:
        what = "cannot be deserialized" if record is not None else "cannot be read"
        super().__init__(
            f"{partition}: the record at offset {offset} {what}: {type(cause).__name__}: {cause}; seek "
            f"to {next_offset} to skip the record"
        )
        self.topic, self.partition = partition
        self.offset = offset
        self.next_offset = next_offset
        self.record = record
        self.retriable = is_retriable(cause)
        self.__cause__ = cause


class NoOffsetForPartition(ClientError):
    """Raised if the group has no committed offset for some partitions, and `auto.offset.reset` is `none`."""

    def __init__(self, partitions: list[TopicPartition]) -> None:
        names = ", ".join(map(str, partitions))
        super().__init__(
            f"there is no committed offset for {names}, and auto.offset.reset is none: seek, or set "
            "auto.offset.reset"
        )
        self.partitions = partitions


class TopicGone(KafkaError):
    """Raised if a topic was deleted, or replaced by a new topic of the same name, after an offset was read
    from it.
    """

    def __init__(self, topic: str) -> None:
        super().__init__(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic} was deleted, or deleted and created again"
        )


class CommitRefused(KafkaError):
    """Raised if a coordinator has finally refused the offsets of some partitions. It has committed the offsets of all
    other partitions.

    `errors` has the error of each refused partition. `code` is the code of the first of these errors.
    """

    def __init__(self, errors: Mapping[TopicPartition, KafkaError]) -> None:
        first = next(iter(errors.values()))
        more = f", and {len(errors) - 1} more partitions" if len(errors) > 1 else ""
        super().__init__(first.code, f"{first.message}{more}")
        self.errors = dict(errors)


class OffsetsOutOfRange(ClientError):
    """Raised if a position is outside of the partition's log, and `auto.offset.reset` is `none`."""

    def __init__(self, offsets: dict[TopicPartition, int]) -> None:
        names = ", ".join(f"{key} at {offset}" for key, offset in offsets.items())
        super().__init__(
            f"positions are outside the log ({names}), and auto.offset.reset is none: seek, or set "
            "auto.offset.reset"
        )
        self.offsets = offsets


class TruncationDetected(ClientError):
    """Raised if the log was truncated below the position: the log no longer has some records that the
    consumer has read (KIP-320).

    `diverging` is the offset up to which the log still has the records that were read. It is None if the
    broker does not know this offset.
    """

    def __init__(self, partition: TopicPartition, position: int, diverging: OffsetAndMetadata | None) -> None:
        where = "at an unknown offset" if diverging is None else f"at {diverging.offset}"
        super().__init__(
            f"{partition}: the log was truncated {where}, below this consumer's position {position}: "
            "seek to continue"
        )
        self.partition = partition
        self.position = position
        self.diverging = diverging
