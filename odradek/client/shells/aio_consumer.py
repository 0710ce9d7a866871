"""The async consumer: `ConsumerMachine` on an `AsyncClient`. PORTED; `odradek.trio` binds it to trio, the simulator runs it.

The face is that of `odradek.client.shells.consumer.Consumer`, with `await` where something is waited for. Fetches, heartbeats
and rebalances go on in the background as long as the task group lives; listeners' methods may be async.

Not for several tasks at a time, but for `wakeup`: a poll beside another raises `RuntimeError`. A poll that is cancelled has
lost no records.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from inspect import isawaitable
from typing import Any, TypeVar

from odradek.client.consumer.consumer_machine import ConsumerMachine
from odradek.client.consumer.consumer_types import (
    CommitCallback,
    ConsumerRecord,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    RawBatch,
    RebalanceEvent,
    RebalanceKind,
    RebalanceListener,
    TopicPartition,
)
from odradek.client.core.client_keys import ConsumerSettings, merged_properties
from odradek.client.core.known_cluster import Partition
from odradek.client.core.operation import Operation
from odradek.client.shells.aio import AsyncClient
from odradek.env.ports import Env, TaskGroup

__all__ = ["AsyncConsumer"]

T = TypeVar("T")
_ITERATION_SECONDS = 3600.0
_CLOSE_SECONDS = 30.0


class AsyncConsumer:
    """See the module. Configuration by Kafka's keys, as a mapping, or as keywords with underscores, or both."""

    def __init__(
        self, env: Env, tasks: TaskGroup, config: Mapping[str, Any] | None = None, /, **keywords: Any
    ) -> None:
        """Connects in the background. Raises `ValueError` for keys and values that are none."""
        self.settings = ConsumerSettings.from_properties(merged_properties(config, keywords))
        self._env = env
        self._listener: Any = RebalanceListener()
        self._timeout = self.settings.default_api_timeout_ms / 1000
        self._closed = False
        self._polling = False
        self.client = AsyncClient(env, tasks, self.settings.bootstrap_servers, self.settings.client_config())
        self._machine = ConsumerMachine(self.client.core, self.settings, env.clock.wall_ms)
        for operation in self._machine.background():
            self._start(operation)

    async def close(self, timeout: float = _CLOSE_SECONDS) -> None:
        """Commit (`enable.auto.commit`), give partitions up, leave the group, end. Safe to call twice.

        All of it takes at most `timeout` seconds, but for what a listener takes.
        """
        if self._closed:
            return
        self._closed = True
        deadline = self._env.clock.monotonic() + timeout
        try:
            self._machine.settle()
            await self._give_up(self._left(deadline))
            await self.client.run(self._machine.leave("the consumer was closed", self._left(deadline)))
            self._run_callbacks()
            await self.client.run(self._machine.close_sessions(min(1.0, self._left(deadline))))
        finally:
            self.client.close()

    def _start(self, operation: Operation[None]) -> None:
        self.client.core.start(operation, self._env.clock.monotonic())
        self.client.step()

    # What to read

    def subscribe(self, topics: Iterable[str] | str | re.Pattern[str], *, listener: Any = None) -> None:
        """Have the group assign partitions of these topics, or of all whose whole name matches a pattern.

        `listener` is a `RebalanceListener`, or has methods of the same names that are async.
        """
        self._machine.settle()
        if isinstance(topics, re.Pattern):
            self._machine.subscription.subscribe_pattern(topics)
        else:
            self._machine.subscription.subscribe([topics] if isinstance(topics, str) else topics)
        self._listener = listener if listener is not None else RebalanceListener()
        self._machine.resubscribed()
        self.client.step()

    async def unsubscribe(self) -> None:
        """Give all partitions up, and leave the group."""
        self._machine.settle()
        await self._give_up(self._timeout)
        await self.client.run(self._machine.leave("the consumer unsubscribed", self._timeout))

    def assign(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Read exactly these partitions, without a group's say; its commits are used if there is a `group.id`."""
        self._machine.settle()
        self._machine.assign_manually(_keys(partitions))
        self.client.step()

    def assignment(self) -> set[TopicPartition]:
        """The partitions of this consumer."""
        return set(self._machine.subscription.partitions)

    def subscription(self) -> set[str]:
        """The topics subscribed to, or those that match the pattern."""
        return set(self._machine.subscription.topics)

    # Reading

    async def poll(self, timeout: float = 1.0) -> list[ConsumerRecord]:
        """Records, at most `max.poll.records`, in order within each partition; none after `timeout` seconds."""
        return await self._poll(timeout, self._machine.take_records)

    async def poll_batches(self, timeout: float = 1.0) -> list[RawBatch]:
        """As `poll`, but whole record batches as bytes, unparsed."""
        return await self._poll(timeout, self._machine.take_batches)

    async def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        """Records for ever, one by one; positions meanwhile are those of the blocking consumer's iterator."""
        while True:
            for record in self._machine.hand_out(await self.poll(_ITERATION_SECONDS)):
                yield record

    def wakeup(self) -> None:
        """Have the `poll` that runs, or else the next, raise `Wakeup`."""
        self._machine.wakeup()
        self.client.step()

    async def _poll(self, timeout: float, what: Callable[[], list[T]]) -> list[T]:
        if self._polling:
            raise RuntimeError("another task is polling this consumer; only wakeup may be called beside it")
        self._polling = True
        try:
            return await self._polled(timeout, what)
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
                await self._tell(event)
                waited = False

    async def _tell(self, event: RebalanceEvent) -> None:
        listener = self._listener
        methods: dict[RebalanceKind, Callable[[list[TopicPartition]], Awaitable[None] | None]] = {
            RebalanceKind.ASSIGNED: listener.on_partitions_assigned,
            RebalanceKind.REVOKED: listener.on_partitions_revoked,
            RebalanceKind.LOST: listener.on_partitions_lost,
        }
        try:
            outcome = methods[event.kind](event.partitions)
            if isawaitable(outcome):
                await outcome
        finally:
            self._machine.told(event)
            self.client.step()

    async def _give_up(self, timeout: float) -> None:
        event = await self.client.run(self._machine.give_up(timeout))
        if event is not None:
            await self._tell(event)

    def _run_callbacks(self) -> None:
        while self._machine.completed:
            callback, offsets, error = self._machine.completed.popleft()
            if callback is not None:
                callback(offsets, error)

    # Positions

    def seek(self, partition: tuple[str, int], offset: int, *, leader_epoch: int = -1) -> None:
        """Go on at `offset`. Raises `ValueError` unless the partition is assigned."""
        self._machine.settle()
        self._machine.seek(TopicPartition(*partition), offset, leader_epoch)
        self.client.step()

    def seek_to_beginning(self, *partitions: tuple[str, int]) -> None:
        """Go on at the first offset; no partitions: all that are assigned."""
        self._machine.settle()
        self._machine.reset(_keys(partitions), "earliest")
        self.client.step()

    def seek_to_end(self, *partitions: tuple[str, int]) -> None:
        """Go on behind the last offset; no partitions: all that are assigned."""
        self._machine.settle()
        self._machine.reset(_keys(partitions), "latest")
        self.client.step()

    def pause(self, *partitions: tuple[str, int]) -> None:
        """Hand out nothing of these; the group is not told."""
        self._machine.settle()
        self._machine.pause(_keys(partitions), paused=True)
        self.client.step()

    def resume(self, *partitions: tuple[str, int]) -> None:
        """Go on with partitions that were paused."""
        self._machine.settle()
        self._machine.pause(_keys(partitions), paused=False)
        self.client.step()

    def paused(self) -> set[TopicPartition]:
        """The partitions that are paused."""
        return self._machine.paused()

    def lag(self, partition: tuple[str, int]) -> int | None:
        """How many offsets the position is behind the partition's end, by the last fetch; None: not known yet."""
        return self._machine.lag(TopicPartition(*partition))

    async def position(self, partition: tuple[str, int], timeout: float | None = None) -> int:
        """The next offset that `poll` returns. Raises `RequestTimedOut` when it cannot be found out in time."""
        operation = self._machine.position(TopicPartition(*partition), self._seconds(timeout))
        return await self.client.run(operation)

    async def beginning_offsets(
        self, partitions: Iterable[tuple[str, int]], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """The first offset of each partition."""
        keys, seconds = _keys(partitions), self._seconds(timeout)
        return await self.client.run(self._machine.offsets_at(keys, end=False, timeout=seconds))

    async def end_offsets(
        self, partitions: Iterable[tuple[str, int]], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """The offset behind the last record that this consumer may see, of each partition."""
        keys, seconds = _keys(partitions), self._seconds(timeout)
        return await self.client.run(self._machine.offsets_at(keys, end=True, timeout=seconds))

    async def offsets_for_times(
        self, times_ms: Mapping[tuple[str, int], int], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record at or after a time (milliseconds since 1970) of each partition; None where there is none."""
        wanted = {TopicPartition(*key): timestamp for key, timestamp in times_ms.items()}
        if any(timestamp < 0 for timestamp in wanted.values()):
            raise ValueError("times are milliseconds since 1970, not negative")
        found = await self.client.run(self._machine.list_offsets(wanted, self._seconds(timeout)))
        return {key: listed if listed.offset >= 0 else None for key, listed in found.items()}

    async def partitions_for(self, topic: str, timeout: float | None = None) -> list[Partition]:
        """The topic's partitions. Raises `KafkaError` UNKNOWN_TOPIC_OR_PARTITION."""
        found = await self.client.run(self._machine.topic(topic, self._seconds(timeout)))
        return [found.partitions[index] for index in sorted(found.partitions)]

    # Commits

    async def commit(
        self,
        offsets: Mapping[tuple[str, int], OffsetAndMetadata | int] | None = None,
        timeout: float | None = None,
    ) -> None:
        """Commit these offsets (the next to be read), or all positions, and wait for it. Errors as the blocking one."""
        await self.client.run(self._machine.commit(self._offsets(offsets), timeout=self._seconds(timeout)))

    def commit_soon(
        self,
        offsets: Mapping[tuple[str, int], OffsetAndMetadata | int] | None = None,
        callback: CommitCallback | None = None,
    ) -> None:
        """As `commit` without waiting; `callback(offsets, error)` is called by a later `poll`, or by `close`."""
        self._start(self._machine.commit_later(self._offsets(offsets), callback))

    async def committed(
        self, partitions: Iterable[tuple[str, int]], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The group's commits; None where there is none."""
        return await self.client.run(self._machine.committed(_keys(partitions), self._seconds(timeout)))

    def _offsets(
        self, offsets: Mapping[tuple[str, int], OffsetAndMetadata | int] | None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        if offsets is None:
            self._machine.committed_by_hand()
            return self._machine.positions()
        return {
            TopicPartition(*key): OffsetAndMetadata(offset) if isinstance(offset, int) else offset
            for key, offset in offsets.items()
        }

    @property
    def member_id(self) -> str:
        """The id that the coordinator gave this member; empty while it is none."""
        return self._machine.membership.member_id if self._machine.membership is not None else ""

    def enforce_rebalance(self, reason: str = "the application asked for it") -> None:
        """Have the group assign again, beginning with the next poll."""
        if self._machine.membership is not None:
            self._machine.membership.want_rejoin(reason)
        self.client.step()

    def statistics(self) -> dict[str, int | str]:
        """Figures of this moment."""
        return self._machine.statistics()

    def _left(self, deadline: float) -> float:
        return max(0.0, deadline - self._env.clock.monotonic())

    def _seconds(self, timeout: float | None) -> float:
        return self._timeout if timeout is None else timeout


def _keys(partitions: Iterable[tuple[str, int]]) -> list[TopicPartition]:
    return [TopicPartition(*partition) for partition in partitions]
