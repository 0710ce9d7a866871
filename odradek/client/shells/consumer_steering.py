"""Those calls of a consumer that do not wait: choose partitions and positions, pause and resume. Both shells share
them. PURE.

Each shell defines how a change reaches its core: under a lock from one thread at a time, or directly.
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
"""The argument of a commit: the next offsets to be read, or a record that has been handled."""


class ConsumerSteering(FamiliarFace, ABC, known_as="Consumer"):
    """The calls that do not wait. `_machine` is the shell's; a call waits `_timeout` seconds by default."""

    _machine: ConsumerMachine
    _timeout: float
    _is_warned_of_seconds = False

    @abstractmethod
    def _change(self, change: Callable[[], None], *, settles: bool = True) -> None:
        """Change the machine and step the core. With `settles`, the records that were yielded count as done first."""

    @abstractmethod
    def _look(self, question: Callable[[], T]) -> T:
        """Read from the machine, as a call of the one thread that uses the consumer."""

    @abstractmethod
    def _peek(self, question: Callable[[], T]) -> T:
        """Ask the machine, from any thread."""

    # What to read

    def assign(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Read exactly these partitions, without the group's assignment.

        The group's committed offsets are used if there is a `group.id`.
        """
        keys = as_topic_partitions("partitions", partitions)
        self._change(lambda: self._machine.assign_manually(keys))

    def assignment(self) -> set[TopicPartition]:
        """Return the partitions that this consumer reads: assigned by its group, or by `assign`."""
        return self._look(lambda: set(self._machine.subscription.partitions))

    def subscription(self) -> set[str]:
        """Return the topics subscribed to, or those that match the pattern. Topics that the coordinator matches are not
        known here."""
        return self._look(lambda: set(self._machine.subscription.topics))

    # Positions

    def seek(self, partition: tuple[str, int], offset: int, *, leader_epoch: int = -1) -> None:
        """Go on at `offset`. Raises `ValueError` unless the partition is assigned."""
        key = as_topic_partition("partition", partition)
        offset = as_integer("offset", offset, most=INT64_MAX)
        leader_epoch = as_integer("leader_epoch", leader_epoch, -1)
        self._change(lambda: self._machine.seek(key, offset, leader_epoch))

    def seek_to_beginning(self, *partitions: tuple[str, int]) -> None:
        """Go on at the first offset of these partitions; without arguments, of all that are assigned."""
        keys = as_topic_partitions("partitions", partitions)
        self._change(lambda: self._machine.reset(keys, "earliest"))

    def seek_to_end(self, *partitions: tuple[str, int]) -> None:
        """Go on at the end that each partition has at the next poll; without arguments, for all that are assigned."""
        keys = as_topic_partitions("partitions", partitions)
        self._change(lambda: self._machine.reset(keys, "latest"))

    def pause(self, *partitions: tuple[str, int]) -> None:
        """Return no records of these partitions until they are resumed. The consumer keeps them, without a rebalance."""
        keys = as_topic_partitions("partitions", partitions)
        self._change(lambda: self._machine.pause(keys, paused=True))

    def resume(self, *partitions: tuple[str, int]) -> None:
        """Go on with partitions that were paused."""
        keys = as_topic_partitions("partitions", partitions)
        self._change(lambda: self._machine.pause(keys, paused=False))

    def paused(self) -> set[TopicPartition]:
        """Return the partitions that are paused."""
        return self._look(self._machine.paused)

    def lag(self, partition: tuple[str, int]) -> int | None:
        """Return the offsets from the position to the partition's end, by the last fetch; None while they are unknown."""
        key = as_topic_partition("partition", partition)
        return self._look(lambda: self._machine.lag(key))

    # The group

    @property
    def member_id(self) -> str:
        """The id of this member, made by the coordinator or, with the new protocol, by this client. Empty outside of a group."""
        return self._peek(self._machine.member_id)

    def group_metadata(self) -> ConsumerGroupMetadata:
        """Return this member's place in its group, for `Producer.send_offsets_to_transaction` (KIP-447).

        Raises `ValueError` without a `group.id`.
        """
        return self._peek(self._machine.group_metadata)

    def enforce_rebalance(self, reason: str = "the application asked for it") -> None:
        """Make the group assign its partitions again, beginning with the next poll.

        It has no effect in a group of the new protocol, where the coordinator decides.
        """
        reason = as_text("reason", reason, may_be_empty=True)
        self._change(lambda: self._machine.enforce_rebalance(reason), settles=False)

    def statistics(self) -> dict[str, int | str]:
        """Return figures of this moment. May be called from any thread."""
        return self._peek(self._machine.statistics)

    def partition_metrics(self) -> dict[TopicPartition, dict[str, int]]:
        """Return figures of each partition since it was assigned: `position`, `lag`, `records` and `bytes`.

        `bytes` counts whole batches, as they were fetched. -1 stands for a figure that is not known yet. May be called from
        any thread.
        """
        return self._peek(self._machine.partition_metrics)

    def _offsets(self, offsets: Committable | None) -> dict[TopicPartition, OffsetAndMetadata]:
        """Collect the offsets to commit: these, or the offset behind a record, or all positions."""
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
        """Call the callbacks of commits that ended, in the thread or task that polls."""
        completed = self._machine.commits.completed
        while completed:
            callback, offsets, error = completed.popleft()
            if callback is not None:
                callback(offsets, error)

    def _run_last_callbacks(self) -> None:
        """Run all callbacks that are left. Raises the first of their errors once each has been called."""
        errors = []
        while self._machine.commits.completed:
            try:
                self._run_callbacks()
            except Exception as error:  # noqa: BLE001 - raised below
                errors.append(error)
        if errors:
            raise errors[0]

    def _all_positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        self._machine.committed_by_hand()
        return self._machine.positions()


def poll_seconds(timeout: float) -> float:
    """Return how long a poll may wait. Raises `TypeError` and `ValueError`."""
    seconds = as_seconds("timeout", timeout)
    if seconds is None:
        raise TypeError("timeout is None, expected a number of seconds")
    return seconds


def topics_of(
    topics: Iterable[str] | str | re.Pattern[str] | SubscriptionPattern,
) -> list[str] | re.Pattern[str] | SubscriptionPattern:
    """Check the topics or the pattern to subscribe to, read once. Raises `TypeError` and `ValueError`."""
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
    """Check a rebalance listener; returns it. Raises `TypeError`."""
    if listener is None:
        return RebalanceListener()
    methods = ("on_partitions_revoked", "on_partitions_assigned", "on_partitions_lost")
    if isinstance(listener, type) or not all(callable(getattr(listener, name, None)) for name in methods):
        raise TypeError(f"listener is a {type(listener).__name__}, expected a RebalanceListener")
    return listener


def times_of(times_ms: ByPartition[int]) -> dict[TopicPartition, int]:
    """Return times by partition. Raises `TypeError` and `ValueError`."""
    return by_partition("times_ms", times_ms, partial(as_integer, most=INT64_MAX))


__all__ = [
    "Committable",
    "ConsumerSteering",
    "listener_of",
    "poll_seconds",
    "times_of",
    "topics_of",
]
