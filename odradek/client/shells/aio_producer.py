"""The async producer: the accumulator and the sender over `AsyncClient`. PORTED; the simulator runs it.

`odradek.trio.open_producer` opens one in a trio program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from odradek.client.core.client_keys import ProducerSettings, merged_properties
from odradek.client.core.requests import topics_with_metadata
from odradek.client.errors import ClientClosed
from odradek.client.producer.accumulator import Accumulator, Batch
from odradek.client.producer.record_metadata import RecordMetadata, as_bytes
from odradek.client.producer.sender import Sender
from odradek.client.shells.aio import AsyncClient
from odradek.env.ports import Env, Event, TaskGroup
from wire.batches.records import Header

__all__ = ["AsyncProducer", "SentRecord"]


class SentRecord:
    """A record that was handed to the producer; its outcome can be awaited."""

    __slots__ = ("_batch", "_env", "_index", "_timestamp_ms")

    def __init__(self, env: Env, batch: Batch, index: int, timestamp_ms: int) -> None:
        self._env = env
        self._batch = batch
        self._index = index
        self._timestamp_ms = timestamp_ms

    def done(self) -> bool:
        """True if the record is acknowledged, or has failed for good."""
        return self._batch.done

    async def result(self) -> RecordMetadata:
        """The place of the record, once it is acknowledged. Raises its error."""
        await wait_done(self._env, self._batch)
        return RecordMetadata.of(self._batch, self._index, self._timestamp_ms)


async def wait_done(env: Env, batch: Batch) -> None:
    """Wait until a batch has its outcome."""
    if not batch.done:
        finished = env.event()
        batch.on_done.append(lambda _: finished.set())
        await finished.wait()


class AsyncProducer:
    """A producer whose tasks run in `tasks`; `config` has Kafka's keys, keyword arguments the same with underscores.

    Ends with `close`, or with the task group: what was not sent by then is lost. Raises `ValueError` for a bad
    configuration.
    """

    def __init__(
        self, env: Env, tasks: TaskGroup, config: Mapping[str, Any] | None = None, /, **keys: Any
    ) -> None:
        settings = ProducerSettings.from_properties(merged_properties(config, keys))
        self.settings = settings
        self.client = AsyncClient(env, tasks, settings.bootstrap_servers, settings.client_config())
        self._env = env
        core = self.client.core
        self._accumulator = Accumulator(settings, core.cluster, core.rng)
        self._sender = Sender(core, settings, self._accumulator)
        self._accumulator.on_room = self._on_room
        self._room: Event | None = None
        self._closing = False
        self._sending = core.start(self._sender.run(), env.clock.monotonic())
        self._sending.on_done = self._stopped

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Sequence[Header] = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> SentRecord:
        """Send a record; see `odradek.client.shells.producer.Producer.send` for arguments and errors.

        Returns as soon as the record is in a batch; gives other tasks their turn once in a batch.
        """
        settings = self.settings
        if settings.value_serializer is not None:
            value = settings.value_serializer(value)
        if settings.key_serializer is not None:
            key = settings.key_serializer(key)
        value = as_bytes("value", value)
        key = as_bytes("key", key)
        clock = self._env.clock
        if timestamp_ms is None:
            timestamp_ms = clock.wall_ms()
        accumulator = self._accumulator
        if self._closing:
            raise ClientClosed("the producer is closed")
        batch = accumulator.append(topic, partition, timestamp_ms, key, value, headers)
        if batch is None:
            deadline = clock.monotonic() + settings.max_block_ms / 1000
            while batch is None:
                if not accumulator.knows(topic):
                    await self._learn(topic, deadline)
                if self._closing:
                    raise ClientClosed("the producer is closed")
                now = clock.monotonic()
                batch = accumulator.open_batch(topic, partition, timestamp_ms, key, value, headers, now)
                if batch is None:
                    await self._wait_for_room(deadline)
            record = SentRecord(self._env, batch, len(batch.rows) - 1, timestamp_ms)
            full = accumulator.has_filled(batch)
            if full or self._sender.sleeps_too_long(clock.monotonic()):
                self._step()
            if full:
                # Give the tasks of the connections their turn: a program that only sends would starve them.
                await clock.sleep_until(now)
            return record
        return SentRecord(self._env, batch, len(batch.rows) - 1, timestamp_ms)

    async def partitions_for(self, topic: str) -> list[int]:
        """The topic's partitions. Raises as `send` does when they are not known within `max.block.ms`."""
        if not self._accumulator.knows(topic):
            await self._learn(topic, self._env.clock.monotonic() + self.settings.max_block_ms / 1000)
        return sorted(self.client.core.cluster.topic(topic).partitions)

    async def flush(self) -> None:
        """Wait until every record sent so far has its outcome."""
        pending = list(self._accumulator.incomplete)
        self._accumulator.close_all()
        self._accumulator.flushing += 1
        try:
            self._step()
            for batch in pending:
                await wait_done(self._env, batch)
        finally:
            self._accumulator.flushing -= 1

    async def close(self, timeout: float | None = None) -> None:
        """Send what is there, for at most `timeout` seconds (None: as long as it takes), then end.

        Records that were not acknowledged by then fail with `ClientClosed`. Safe to call twice.
        """
        self._closing = True
        try:
            if not self.client.core.closed:
                if timeout is None:
                    await self.flush()
                else:
                    with self._env.clock.timeout_at(self._env.clock.monotonic() + timeout):
                        await self.flush()
        finally:
            self.client.close()

    def metrics(self) -> dict[str, int]:
        """Figures since the start (batches, records, requests, refusals by code) and of this moment."""
        return self._sender.statistics()

    def _step(self) -> None:
        self._sender.signal.notify()
        self.client.step()

    async def _learn(self, topic: str, deadline: float) -> None:
        core = self.client.core
        await self.client.run(topics_with_metadata(core, [topic], deadline=deadline, auto_create=True))

    async def _wait_for_room(self, deadline: float) -> None:
        room = self._room
        if room is None:
            room = self._room = self._env.event()
        self._accumulator.starving += 1
        try:
            self._step()
            with self._env.clock.timeout_at(deadline) as scope:
                await room.wait()
        finally:
            self._accumulator.starving -= 1
        if scope.expired:
            raise self._accumulator.out_of_memory()

    def _on_room(self) -> None:
        if self._room is not None:
            self._room.set()
            self._room = None

    def _stopped(self) -> None:
        self._closing = True
        self._sender.fail_unacknowledged()
        self._on_room()
