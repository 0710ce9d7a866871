"""The consumer methods that never wait: they choose partitions and positions, pause and resume. The blocking
and the async consumer share these methods. PURE.

Each of the two shells defines how a method reaches the core: the blocking shell under a lock, the async shell
directly.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeAlias, TypeVar

from odradek.client.consumer.consumer_machine import ConsumerMachine
from odradek.client.consumer.consumer_types import (
    ConsumerGroupMetadata,
    ConsumerRecord,
    OffsetAndMetadata,
    RebalanceListener,
    SubscriptionPattern,
    judged_offsets,
)
from odradek.client.core.arguments import (
    INT64_MAX,
    as_integer,
    as_seconds,
    as_text,
    as_topic_partition,
    as_topic_partitions,
    by_partition,
)
from odradek.client.core.partition_keys import ByPartition
from odradek.client.shells.familiar_calls import FamiliarFace
from odradek.wire.topic_partition import TopicPartition

T = TypeVar("T")
Committable: TypeAlias = ByPartition[OffsetAndMetadata | int] | ConsumerRecord
"""The argument of a commit: the offsets of the next records to read, or a record that has been processed."""


class ConsumerSteering(FamiliarFace, ABC, known_as="Consumer"):
    """The consumer methods that never wait. A shell provides `_machine`, and `_timeout`: the default timeout of calls
    in seconds.
    """

    _machine: ConsumerMachine
    _timeout: float
    _is_warned_of_seconds = False

    @abstractmethod
    def _change(self, change: Callable[[], None], *, settles: bool = True) -> None:
        """Call `change`, which changes the consumer machine, and let the core take a step. With `settles`,
        the records that an iterator has yielded count as processed before the change.
        """

    @abstractmethod
    def _look(self, question: Callable[[], T]) -> T:
        """Read from the consumer machine. Only the thread or task that uses the consumer may call this."""

    @abstractmethod
    def _peek(self, question: Callable[[], T]) -> T:
        """Read from the consumer machine, from any thread."""

    # Partitions and topics

    def assign(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Read exactly these partitions, without a group assignment.

        If there is a `group.id`, reading starts at the group's committed offsets.
        """
        keys = as_topic_partitions("partitions", partitions)
        self._change(lambda: self._machine.assign_manually(keys))

    def assignment(self) -> set[TopicPartition]:
        """Return the partitions that this consumer reads: assigned by its group, or by `assign`."""
        return self._look(lambda: set(self._machine.subscription.partitions))

    def subscription(self) -> set[str]:
        """Return the subscribed topics, or the topics that match the subscribed pattern. If the coordinator matches
        the pattern, the topics are unknown, and the set is empty.
        """
        return self._look(lambda: set(self._machine.subscription.topics))

    # Positions

    def seek(self, partition: tuple[str, int], offset: int, *, leader_epoch: int = -1) -> None:
        """Set the position of a partition to `offset`. Raises `ValueError` if the partition is not assigned."""
        key = as_topic_partition("partition", partition)
        offset = as_integer("offset", offset, most=INT64_MAX)
        leader_epoch = as_integer("leader_epoch", leader_epoch, -1)
        self._change(lambda: self._machine.seek(key, offset, leader_epoch))

    def seek_to_beginning(self, *partitions: tuple[str, int]) -> None:
        """Set the position of these partitions (without arguments: of all assigned partitions) to their
        start.
        """
        keys = as_topic_partitions("partitions", partitions)
        self._change(lambda: self._machine.reset(keys, "earliest"))

    def seek_to_end(self, *partitions: tuple[str, int]) -> None:
        """Set the position of these partitions (without arguments: of all assigned partitions) to the end.
        The end is looked up at the next poll.
        """
        keys = as_topic_partitions("partitions", partitions)
        self._change(lambda: self._machine.reset(keys, "latest"))

    def pause(self, *partitions: tuple[str, int]) -> None:
        """Pause these partitions: polls return none of their records until `resume`. They stay assigned, without a
        rebalance.
        """
        keys = as_topic_partitions("partitions", partitions)
        self._change(lambda: self._machine.pause(keys, paused=True))

    def resume(self, *partitions: tuple[str, int]) -> None:
        """Resume paused partitions, so that polls return their records again."""
        keys = as_topic_partitions("partitions", partitions)
        self._change(lambda: self._machine.pause(keys, paused=False))

    def paused(self) -> set[TopicPartition]:
        """Return the partitions that are paused."""
        return self._look(self._machine.paused)

    def lag(self, partition: tuple[str, int]) -> int | None:
        """Return by how many offsets the position was behind the partition's end at the last fetch; None if
        unknown.
        """
        key = as_topic_partition("partition", partition)
        return self._look(lambda: self._machine.lag(key))

    # The group

    @property
    def member_id(self) -> str:
        """The member id of this consumer; empty outside of a group. In the classic protocol the coordinator
        has chosen this id; in the new protocol this client has chosen it.
        """
        return self._peek(self._machine.member_id)

    def group_metadata(self) -> ConsumerGroupMetadata:
        """Return the member id and generation of this consumer, for `Producer.send_offsets_to_transaction` (KIP-447).

        Raises `ValueError` without a `group.id`.
        """
        return self._peek(self._machine.group_metadata)

    def enforce_rebalance(self, reason: str = "the application asked for it") -> None:
        """Make the group assign its partitions again, starting with the next poll.

        It has no effect in a group of the new protocol, where the coordinator decides.
        """
        reason = as_text("reason", reason, may_be_empty=True)
        self._change(lambda: self._machine.enforce_rebalance(reason), settles=False)

    def statistics(self) -> dict[str, int | str]:
        """Return the consumer's counters and its present state by name. It may be called from any thread."""
        return self._peek(self._machine.statistics)

    def partition_metrics(self) -> dict[TopicPartition, dict[str, int]]:
        """Return `position`, `lag`, `records` and `bytes` of each assigned partition.

        `records` and `bytes` count since the assignment; `bytes` counts whole batches as they were fetched. An
        unknown value is -1. It may be called from any thread.
        """
        return self._peek(self._machine.partition_metrics)

    def _offsets(self, offsets: Committable | None) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the offsets to commit: the given offsets, the offset after a given record, or all positions."""
        if offsets is None:
            return self._peek(self._all_positions)
        if isinstance(offsets, ConsumerRecord):
            key = as_topic_partition("offsets", (offsets.topic, offsets.partition))
            next_offset = as_integer("the offset of offsets", offsets.offset, most=INT64_MAX - 1) + 1
            return judged_offsets("offsets", {key: OffsetAndMetadata(next_offset, offsets.leader_epoch)})
        return judged_offsets("offsets", offsets)

    def _seconds(self, timeout: float | None) -> float:
        seconds = as_seconds("timeout", timeout)
        return self._timeout if seconds is None else seconds

    def _run_callbacks(self) -> None:
        """Call the callbacks of completed commits, in the thread or task that polls."""
        completed = self._machine.commits.completed
        while completed:
            callback, offsets, error = completed.popleft()
            if callback is not None:
                callback(offsets, error)

    def _run_last_callbacks(self) -> None:
        """Call the callbacks of all completed commits. Afterwards raise the first exception that a callback
        has raised.
        """
        errors = []
        while self._machine.commits.completed:
            try:
                self._run_callbacks()
            except Exception as error:  # noqa: BLE001 - the first error is raised below
                errors.append(error)
        if errors:
            raise errors[0]

    def _all_positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        self._machine.committed_by_hand()
        return self._machine.positions()


def poll_seconds(timeout: float) -> float:
    """Check the timeout of a poll, and return it in seconds. Raises `TypeError` and `ValueError`."""
    seconds = as_seconds("timeout", timeout)
    if seconds is None:
        raise TypeError("timeout is None, expected a number of seconds")
    return seconds


def topics_of(
    topics: Iterable[str] | str | re.Pattern[str] | SubscriptionPattern,
) -> list[str] | re.Pattern[str] | SubscriptionPattern:
    """Check the topics or the pattern of a subscription, and return them; an iterable is read once. Raises
    `TypeError` and `ValueError`.
    """
    if isinstance(topics, SubscriptionPattern):
        return topics
    if isinstance(topics, re.Pattern):
        if not isinstance(topics.pattern, str):
            raise TypeError("topics is a pattern of bytes, expected a pattern of text")
        return topics
    if isinstance(topics, str):
        return [as_text("topics", topics)]
    if isinstance(topics, (bytes, bytearray, Mapping)) or not isinstance(topics, Iterable):
        raise TypeError(f"topics is a {type(topics).__name__}, expected names, or a pattern from re.compile")
    return [as_text("one of topics", each) for each in topics]


def listener_of(listener: Any) -> Any:
    """Check a rebalance listener, and return it. Raises `TypeError`."""
    if listener is None:
        return RebalanceListener()
    methods = ("on_partitions_revoked", "on_partitions_assigned", "on_partitions_lost")
    if isinstance(listener, type) or not all(callable(getattr(listener, name, None)) for name in methods):
        raise TypeError(f"listener is a {type(listener).__name__}, expected a RebalanceListener")
    return listener


def times_of(times_ms: ByPartition[int]) -> dict[TopicPartition, int]:
    """Check a mapping of times by partition, and return it. Raises `TypeError` and `ValueError`."""
    return by_partition("times_ms", times_ms, partial(as_integer, most=INT64_MAX))


__all__ = [
    "Committable",
    "ConsumerSteering",
    "listener_of",
    "poll_seconds",
    "times_of",
    "topics_of",
]
