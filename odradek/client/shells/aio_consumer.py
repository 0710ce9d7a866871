"""The async consumer: `ConsumerMachine` on an `AsyncClient`. PORTED. `odradek.trio` runs it on trio; tests
run it in the simulator.

It has the methods of `odradek.client.shells.consumer.Consumer`; the methods that wait are async. Fetches,
heartbeats and rebalances run in the background as long as the task group is open. Listeners' methods may be
async.

One task at a time may use a consumer: a poll during another poll raises `RuntimeError`. Only `wakeup` may be called
at any time. A cancelled poll loses no records.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from inspect import isawaitable
from typing import Any, TypeVar

import attrs

from odradek.client.consumer.consumer_machine import ConsumerMachine
from odradek.client.consumer.consumer_types import (
    CommitCallback,
    ConsumerRecord,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    RawBatch,
    RebalanceEvent,
    RebalanceListener,
    SubscriptionPattern,
)
from odradek.client.core.arguments import as_callback, as_text, as_topic_partition, as_topic_partitions
from odradek.client.core.client_keys import ConsumerSettings, merged_properties
from odradek.client.core.known_cluster import Partition
from odradek.client.core.operation import Operation
from odradek.client.core.partition_keys import ByPartition
from odradek.client.core.requests import all_topics
from odradek.client.shells.aio import AsyncClient
from odradek.client.shells.consumer_steering import (
    Committable,
    ConsumerSteering,
    listener_of,
    poll_seconds,
    times_of,
    topics_of,
)
from odradek.client.shells.familiar_calls import knows_other_names, warns_of_milliseconds
from odradek.env.ports import Env, TaskGroup
from odradek.wire.topic_partition import TopicPartition

__all__ = ["AsyncConsumer"]

T = TypeVar("T")
_ITERATION_SECONDS = 3600.0
_CLOSE_SECONDS = 30.0


# No async generator: a `break` leaves it unfinished, and then trio warns. Loops over a topic usually end by `break`.
@attrs.define
class _Loop:
    """The iterator of an `async for` over a consumer."""

    _next_records: Callable[[], Awaitable[Iterator[ConsumerRecord] | None]]
    _left: Iterator[ConsumerRecord] | None = attrs.field(factory=lambda: iter(()))

    def __aiter__(self) -> _Loop:
        return self

    async def __anext__(self) -> ConsumerRecord:
        while self._left is not None:
            for record in self._left:
                return record
            self._left = await self._next_records()
        raise StopAsyncIteration


class AsyncConsumer(ConsumerSteering):
    """A consumer for programs that use trio.

    `config` has Kafka's keys ("group.id"); keyword arguments are the same keys with underscores (`group_id`).
    """

    def __init__(
        self, env: Env, tasks: TaskGroup, config: Mapping[str, Any] | None = None, /, **keywords: Any
    ) -> None:
        """Create the consumer, which connects in the background. Raises `ValueError` for unknown keys and invalid
        values.
        """
        properties = merged_properties(config, keywords)
        self.settings = ConsumerSettings.from_properties(properties, on_trio=True)
        self._env = env
        self._listener: Any = RebalanceListener()
        self._timeout = self.settings.default_api_timeout_ms / 1000
        self._closed = False
        self._polling = False
        self.client = AsyncClient(env, tasks, self.settings.bootstrap_servers, self.settings.client_config())
        self._machine = ConsumerMachine(self.client.core, self.settings, env.clock.wall_ms)
        for operation in self._machine.background():
            self._start(operation)

    @knows_other_names("Consumer.close")
    async def close(self, timeout: float = _CLOSE_SECONDS) -> None:
        """Commit (`enable.auto.commit`), give up all partitions, leave the group and close all connections. A second `close`
        has no effect.

        The call takes at most `timeout` seconds, plus the time that a listener needs.
        """
        timeout = poll_seconds(timeout)
        if self._closed:
            return
        self._closed = True
        deadline = self._env.clock.monotonic() + timeout
        try:
            self._machine.settle()
            try:
                await self._leave_group("the consumer was closed", deadline)
            finally:
                await self.client.run(self._machine.close_sessions(min(1.0, self._left(deadline))))
                self._run_last_callbacks()
        finally:
            self.client.close()

    async def _leave_group(self, reason: str, deadline: float) -> None:
        try:
            await self._give_up(self._left(deadline))
        finally:
            # Leave even if the listener has raised, so that other members get the partitions at once.
            await self.client.run(self._machine.leave(reason, self._left(deadline)))

    def _start(self, operation: Operation[None]) -> None:
        self.client.core.start(operation, self._env.clock.monotonic())
        self.client.step()

    # Subscriptions

    @knows_other_names("Consumer.subscribe")
    def subscribe(
        self, topics: Iterable[str] | str | re.Pattern[str] | SubscriptionPattern, *, listener: Any = None
    ) -> None:
        """Subscribe to topics, or to all topics whose whole name matches a pattern; the group assigns their
        partitions.

        `listener` is a `RebalanceListener`, or an object with async methods of the same names. The subscription takes
        effect with the next `poll`.
        """
        wanted, heard_by = topics_of(topics), listener_of(listener)
        self._machine.settle()
        self._machine.subscribe(wanted)
        self._listener = heard_by
        self.client.step()

    async def unsubscribe(self) -> None:
        """Give up all partitions, and leave the group."""
        self._machine.settle()
        await self._leave_group("the consumer unsubscribed", self._env.clock.monotonic() + self._timeout)

    # Reading

    @warns_of_milliseconds
    @knows_other_names("Consumer.poll")
    async def poll(self, timeout: float = 1.0) -> list[ConsumerRecord]:
        """Return at most `max.poll.records` records, in order within each partition; an empty list if none arrive
        within `timeout` seconds.
        """
        return await self._poll(poll_seconds(timeout), self._machine.take_records)

    async def poll_batches(self, timeout: float = 1.0) -> list[RawBatch]:
        """Wait for records as `poll` does, but return whole record batches as unparsed bytes."""
        return await self._poll(poll_seconds(timeout), self._machine.take_batches)

    def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        """Yield records one by one. As in the blocking consumer, positions include only the yielded records."""
        return _Loop(self._next_records)

    async def _next_records(self) -> Iterator[ConsumerRecord] | None:
        """Return the records of the next poll for a loop, or None if the loop ends."""
        timeout_ms = self.settings.odradek_consumer_timeout_ms
        records = await self.poll(timeout=_ITERATION_SECONDS if timeout_ms is None else timeout_ms / 1000)
        if not records and timeout_ms is not None:
            return None
        return self._machine.hand_out(records)

    def wakeup(self) -> None:
        """Make the running `poll`, or else the next one, raise `Wakeup`."""
        self._machine.wakeup()
        self.client.step()

    async def _poll(self, timeout: float, what: Callable[[], list[T]]) -> list[T]:
        if self._polling:
            await self.client.give_turn()
            raise RuntimeError("another task is using this consumer; a second task may call only wakeup")
        self._polling = True
        try:
            return await self._polled(timeout, what)
        except Exception:
            # An error may stay for good, such as a record that cannot be decoded. A program that catches it and polls
            # again must not keep other tasks from running.
            await self.client.give_turn()
            raise
        finally:
            self._polling = False

    async def _polled(self, timeout: float, what: Callable[[], list[T]]) -> list[T]:
        machine, clock = self._machine, self._env.clock
        machine.settle()
        deadline = clock.monotonic() + timeout
        waited = False
        while True:
            self._run_callbacks()
            now = clock.monotonic()
            found = machine.take(now, what, waited=waited)
            if machine.stirred:
                machine.stirred = False
                self.client.step()
            if found or (waited and now >= deadline):
                return found
            event = await self.client.run(machine.wait(max(0.0, deadline - now)))
            waited = True
            if event is not None:
                await self._call_listener(event)
                waited = False

    async def _call_listener(self, event: RebalanceEvent) -> None:
        try:
            outcome = event.call(self._listener)
            if isawaitable(outcome):
                await outcome
        finally:
            self._machine.notified(event)
            self.client.step()

    async def _give_up(self, timeout: float) -> None:
        event = await self.client.run(self._machine.give_up(timeout))
        if event is not None:
            await self._call_listener(event)

    # Positions

    async def position(self, partition: tuple[str, int], timeout: float | None = None) -> int:
        """Return the offset of the next record that `poll` would return. Raises `RequestTimedOut` if it is not known
        in time.
        """
        operation = self._machine.position(as_topic_partition("partition", partition), self._seconds(timeout))
        return await self.client.run(operation)

    async def beginning_offsets(
        self, partitions: Iterable[tuple[str, int]], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """Return the start offset of each partition."""
        keys, seconds = as_topic_partitions("partitions", partitions), self._seconds(timeout)
        return await self.client.run(self._machine.offsets_at(keys, end=False, timeout=seconds))

    async def end_offsets(
        self, partitions: Iterable[tuple[str, int]], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """Return the end offset of each partition: the offset after the last record that this consumer may see."""
        keys, seconds = as_topic_partitions("partitions", partitions), self._seconds(timeout)
        return await self.client.run(self._machine.offsets_at(keys, end=True, timeout=seconds))

    async def offsets_for_times(
        self, times_ms: ByPartition[int], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Find the first record of each partition at or after a time in milliseconds since 1970. The value is
        None if there is no such record.
        """
        return await self.client.run(
            self._machine.offsets_for_times(times_of(times_ms), self._seconds(timeout))
        )

    async def partitions_for(self, topic: str, timeout: float | None = None) -> list[Partition]:
        """Return the topic's partitions, sorted by number. Raises `KafkaError` UNKNOWN_TOPIC_OR_PARTITION."""
        return await self.client.run(
            self._machine.partitions_of(as_text("topic", topic), self._seconds(timeout))
        )

    async def topics(self, timeout: float | None = None) -> set[str]:
        """Return the names of all topics that this consumer may read. Internal topics are included with
        `exclude.internal.topics=false`.
        """
        seconds, skip_internal = self._seconds(timeout), self.settings.exclude_internal_topics
        return await self.client.run(
            all_topics(self._machine.core, timeout=seconds, skip_internal=skip_internal)
        )

    # Commits

    @knows_other_names("Consumer.commit")
    async def commit(
        self,
        offsets: Committable | None = None,
        timeout: float | None = None,
    ) -> None:
        """Commit offsets, and wait until they are stored. `offsets` has offsets by partition, or is a record; then
        the offset after the record is committed. None commits all positions.
        """
        await self.client.run(
            self._machine.commits.commit(self._offsets(offsets), timeout=self._seconds(timeout))
        )

    def commit_soon(
        self,
        offsets: Committable | None = None,
        callback: CommitCallback | None = None,
    ) -> None:
        """Start a commit without waiting for it. A later `poll`, or `close`, calls `callback(offsets, error)`."""
        self._start(
            self._machine.commits.commit_later(self._offsets(offsets), as_callback("callback", callback))
        )

    async def committed(
        self, partitions: Iterable[tuple[str, int]], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Fetch the group's committed offsets of these partitions. The value is None for a partition without
        a commit.
        """
        return await self.client.run(
            self._machine.commits.committed(
                as_topic_partitions("partitions", partitions), self._seconds(timeout)
            )
        )

    def _change(self, change: Callable[[], None], *, settles: bool = True) -> None:
        if settles:
            self._machine.settle()
        change()
        self.client.step()

    def _look(self, question: Callable[[], T]) -> T:
        return question()

    def _peek(self, question: Callable[[], T]) -> T:
        return question()

    def _left(self, deadline: float) -> float:
        return max(0.0, deadline - self._env.clock.monotonic())
