"""The values that a consumer returns and accepts as arguments, and its errors. PURE."""

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
    """One record. `timestamp` in milliseconds since 1970; `value` None is a tombstone.

    `timestamp_type`: 0 CreateTime, 1 LogAppendTime. `leader_epoch` is the epoch in which it was written, for
    commits (KIP-320). `key` and `value` are bytes, unless the consumer has deserializers.
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
    """One record batch as it is in the log; its checksum is verified with `check.crcs`. `data` keeps the whole
    answer to its fetch in memory.

    A broker sends only whole batches, so drop records below `start_offset`, which were read before.
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
    """A position to commit: the next offset to read, the leader epoch of the previous record, and any text."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


def judged_offsets(
    what: str, offsets: ByPartition[OffsetAndMetadata | int]
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return positions to commit in the client's own form. Raises `TypeError` and `ValueError`, which name the
    argument.
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

    The defaults are those of a client outside of the group, whose offsets are never refused.
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
    """A pattern in RE2's syntax, for a subscription that the coordinator matches: whole names of topics.

    It takes a group of the new protocol. With the classic one the client matches the pattern itself, as one of Python's.
    """

    pattern: str = attrs.field()

    @pattern.validator
    def _check(self, _attribute: Any, value: Any) -> None:
        as_text("pattern", value)


class OffsetAndTimestamp(NamedTuple):
    """The answer for a time in a partition: the offset and timestamp of the first record that is at least as new."""

    offset: int
    timestamp: int
    leader_epoch: int = -1


class RebalanceListener:
    """Callbacks about the partitions of a consumer; override those that you need.

    All are called within `poll`, `close` and `unsubscribe`, in their caller's thread, and may use the consumer
    (commit, seek). With the cooperative protocol, each call gets only the partitions that change.
    """

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        """Called when these partitions will be given to other members: this is the last moment to commit for them."""

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        """Called when these partitions are new; reading has not begun."""

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
        """Called when these partitions are lost, so that other members may read them already. A commit for them
        would fail. By default it calls `on_partitions_revoked`.
        """
        self.on_partitions_revoked(partitions)


class RebalanceKind(Enum):
    """The method of the listener to call."""

    REVOKED = "revoked"
    ASSIGNED = "assigned"
    LOST = "lost"


@attrs.frozen
class RebalanceEvent:
    """A call that a listener must get. The machine continues when the shell reports its end
    (`ConsumerMachine.notified`).
    """

    kind: RebalanceKind
    partitions: list[TopicPartition]

    def call(self, listener: Any) -> Any:
        """Call the listener's method for this event. Returns its result: an awaitable if the method is async."""
        if self.kind is RebalanceKind.ASSIGNED:
            return listener.on_partitions_assigned(self.partitions)
        if self.kind is RebalanceKind.REVOKED:
            return listener.on_partitions_revoked(self.partitions)
        return listener.on_partitions_lost(self.partitions)


CommitCallback: TypeAlias = Callable[[dict[TopicPartition, OffsetAndMetadata], Exception | None], None]


class Wakeup(ClientError):
    """Raised by `poll` because `Consumer.wakeup` was called from another thread."""


class UndecodableRecord(ClientError):
    """Raised if the record at `offset`, or its batch, cannot be decoded; all earlier records have been returned.
    Every poll that reaches it raises this again. `seek((topic, partition), next_offset)` skips the record, `pause`
    postpones it. `__cause__` is the deserializer's exception, or `odradek.wire.batches.batch_errors.CorruptBatch`
    or `InvalidRecord`. `record` has the bytes that a deserializer refused; None if the record itself cannot be
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
    """Raised if the topic that an offset was read from was deleted, or replaced by a topic of the same name."""

    def __init__(self, topic: str) -> None:
        super().__init__(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic} was deleted, or deleted and created again"
        )


class CommitRefused(KafkaError):
    """Raised if a coordinator has finally refused the offsets of some partitions; it committed the offsets of all
    others.

    `errors` has the error of each refused partition; `code` is the code of the first.
    """

    def __init__(self, errors: Mapping[TopicPartition, KafkaError]) -> None:
        first = next(iter(errors.values()))
        more = f", and {len(errors) - 1} more partitions" if len(errors) > 1 else ""
        super().__init__(first.code, f"{first.message}{more}")
        self.errors = dict(errors)


class OffsetsOutOfRange(ClientError):
    """Raised if positions are outside of the log, and `auto.offset.reset` is `none`."""

    def __init__(self, offsets: dict[TopicPartition, int]) -> None:
        names = ", ".join(f"{key} at {offset}" for key, offset in offsets.items())
        super().__init__(
            f"positions are outside the log ({names}), and auto.offset.reset is none: seek, or set "
            "auto.offset.reset"
        )
        self.offsets = offsets


class TruncationDetected(ClientError):
    """Raised if the log was truncated below the position: records that were read are no longer part of it
    (KIP-320).

    `diverging` is the end of the common history; None if the broker does not know it.
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
