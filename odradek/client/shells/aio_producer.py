"""The async producer: the accumulator and the sender over `AsyncClient`. PORTED.

Trio programs open this producer by `odradek.trio.open_producer`. The simulator also runs this producer.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

from odradek.client.consumer.consumer_types import ConsumerGroupMetadata, OffsetAndMetadata, judged_offsets
from odradek.client.core.arguments import (
    NO_HEADERS,
    as_bytes,
    as_callback,
    as_headers,
    as_partition,
    as_seconds,
    as_text,
    as_timestamp,
)
from odradek.client.core.client_keys import ProducerSettings, merged_properties
from odradek.client.core.notes import WARNING, Note
from odradek.client.core.operation import Operation
from odradek.client.core.partition_keys import ByPartition
from odradek.client.core.requests import topics_with_metadata
from odradek.client.errors import ClientClosed, ClientError, IllegalTransactionCall, ProducerFencedError
from odradek.client.producer.accumulator import Accumulator, Batch
from odradek.client.producer.producer_upkeep import Identity
from odradek.client.producer.record_metadata import Delivered, OnDelivery, RecordMetadata
from odradek.client.producer.sender import Sender
from odradek.client.shells.aio import AsyncClient
from odradek.client.shells.client_log import CRITICAL, write_error, write_notes
from odradek.client.shells.familiar_calls import FamiliarFace
from odradek.env.ports import Env, Event, TaskGroup
from odradek.wire.batches.records import Header
from odradek.wire.errors import KafkaError
from odradek.wire.topic_partition import TopicPartition

if TYPE_CHECKING:
    from odradek.client.producer.transactions import Transactions

__all__ = ["AsyncProducer", "SentRecord"]

_LOGGER = logging.getLogger("odradek.client")


class SentRecord:
    """A record that was given to the producer. Its outcome can be awaited."""

    __slots__ = ("_batch", "_env", "_index", "_timestamp_ms")

    def __init__(self, env: Env, batch: Batch, index: int, timestamp_ms: int) -> None:
        self._env = env
        self._batch = batch
        self._index = index
        self._timestamp_ms = timestamp_ms

    def done(self) -> bool:
        """True if the record was acknowledged, or has finally failed."""
        return self._batch.done

    async def result(self) -> RecordMetadata:
        """Wait until the record is acknowledged, and return its position in the topic. Raises the record's error."""
        await wait_done(self._env, self._batch)
        return RecordMetadata.of(self._batch, self._index, self._timestamp_ms)


async def wait_done(env: Env, batch: Batch) -> None:
    """Wait until a batch is acknowledged or has failed."""
    if not batch.done:
        finished = env.event()
        batch.on_done.append(lambda _: finished.set())
        await finished.wait()


class AsyncProducer(FamiliarFace, known_as="Producer"):
    """A producer whose tasks run in the task group `tasks`.

    `config` has Kafka's keys. The keys may also be given as keyword arguments, with `_` for `.`. The producer
    ends when `close` is called or the task group ends. Records that were not sent by then are lost. Raises
    `ValueError` for a bad configuration.
    """

    def __init__(
        self, env: Env, tasks: TaskGroup, config: Mapping[str, Any] | None = None, /, **keys: Any
    ) -> None:
        settings = ProducerSettings.from_properties(merged_properties(config, keys), on_trio=True)
        self.settings = settings
        self.client = AsyncClient(env, tasks, settings.bootstrap_servers, settings.client_config())
        self._env = env
        core = self.client.core
        self._accumulator = Accumulator(settings, core.cluster, core.rng)
        self._sender = Sender(core, settings, self._accumulator)
        self._transactions = self._sender.transactions
        self._accumulator.on_room = self._on_room
        self._room: Event | None = None
        self._closing = False
        self._failure: Exception | None = None
        self._sending = core.start(self._send_all(), env.clock.monotonic())
        self._sending.on_done = self._stopped

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Iterable[Header] | None = NO_HEADERS,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> SentRecord:
        """Add a record to a batch, and return without waiting for the acknowledgement. Arguments and errors are those
        of the blocking `Producer.send`.

        When a new batch is needed, other tasks may run before the call returns.
        """
        settings = self.settings
        if settings.value_serializer is not None:
            value = settings.value_serializer(value)
        if settings.key_serializer is not None:
            key = settings.key_serializer(key)
        value = as_bytes("value", value)
        key = as_bytes("key", key)
        headers = as_headers("headers", headers)
        if partition is not None:
            partition = as_partition("partition", partition)
        clock = self._env.clock
        if timestamp_ms is None:
            timestamp_ms = clock.wall_ms()
        else:
            timestamp_ms = as_timestamp("timestamp_ms", timestamp_ms)
        topic = as_text("topic", topic)
        as_callback("on_delivery", on_delivery)
        accumulator = self._accumulator
        self._check_open()
        batch = accumulator.append(topic, partition, timestamp_ms, key, value, headers)
        if batch is None:
            deadline = clock.monotonic() + settings.max_block_ms / 1000
            with self._failing_transaction():
                while batch is None:
                    if not accumulator.knows(topic):
                        await self._learn(topic, deadline)
                    self._check_open()
                    now = clock.monotonic()
                    batch = accumulator.open_batch(topic, partition, timestamp_ms, key, value, headers, now)
                    if batch is None:
                        await self._wait_for_room(deadline)
            record = self._sent(batch, timestamp_ms, key, on_delivery)
            full = accumulator.has_filled(batch)
            if full or self._sender.sleeps_too_long(clock.monotonic()):
                self._step()
            if full:
                # Let the tasks of the connections run. Otherwise a program that only sends would leave them
                # no time.
                await clock.sleep_until(now)
            return record
        return self._sent(batch, timestamp_ms, key, on_delivery)

    def _sent(
        self, batch: Batch, timestamp_ms: int, key: bytes | None, on_delivery: OnDelivery | None
    ) -> SentRecord:
        index = len(batch.rows) - 1
        if on_delivery is not None:

            def deliver() -> None:
                on_delivery(*Delivered.of(batch, index, timestamp_ms, key))

            batch.outcome_taken = True
            batch.on_done.append(lambda _: self.client.defer(deliver))
        return SentRecord(self._env, batch, index, timestamp_ms)

    async def partitions_for(self, topic: str) -> list[int]:
        """Return the numbers of the topic's partitions. Raises as `send` does when they are not known within `max.block.ms`."""
        topic = as_text("topic", topic)
        if not self._accumulator.knows(topic):
            await self._learn(topic, self._env.clock.monotonic() + self.settings.max_block_ms / 1000)
        return sorted(self.client.core.cluster.topic(topic).partitions)

    async def flush(self) -> None:
        """Wait until every record sent so far is acknowledged or has failed."""
        pending = list(self._accumulator.incomplete)
        self._accumulator.close_all()
        self._accumulator.flushing += 1
        try:
            self._step()
            for batch in pending:
                await wait_done(self._env, batch)
        finally:
            self._accumulator.flushing -= 1

    # Transactions: `odradek.client.shells.producer.Producer` documents the calls and their errors.

    def limit_transaction_version(self, level_max: int) -> None:
        """Use at most this level of `transaction.version`, like an older client. The limit applies from the next
        transaction.
        """
        self._of_transactions().level_max = level_max

    @property
    def identity(self) -> Identity | None:
        """The producer id and epoch of the open transaction, or of the next transaction if none is open. The
        value is None before `init_transactions`.
        """
        return self._of_transactions().current

    async def init_transactions(self) -> None:
        """Fetch a producer id. This must be the first call of a producer with a `transactional.id`."""
        await self.client.run(self._of_transactions().initialize(self.settings.max_block_ms / 1000))

    def begin_transaction(self) -> None:
        """Open a transaction."""
        self._of_transactions().begin()

    async def send_offsets_to_transaction(
        self, offsets: ByPartition[OffsetAndMetadata | int], group: ConsumerGroupMetadata
    ) -> None:
        """Commit these offsets for a group if the transaction commits (KIP-447)."""
        commits = judged_offsets("offsets", offsets)
        if not isinstance(group, ConsumerGroupMetadata):
            raise TypeError(
                f"group is a {type(group).__name__}, expected the value of Consumer.group_metadata"
            )
        seconds = self.settings.max_block_ms / 1000
        await self.client.run(self._of_transactions().send_offsets(commits, group, seconds))

    async def commit_transaction(self) -> None:
        """Wait until all records are written, then commit the transaction."""
        seconds = self.settings.max_block_ms / 1000
        await self.client.run(self._of_transactions().end(commit=True, timeout=seconds))

    async def abort_transaction(self) -> None:
        """Drop the records that were not sent yet, then abort the transaction."""
        seconds = self.settings.max_block_ms / 1000
        await self.client.run(self._of_transactions().end(commit=False, timeout=seconds))

    async def prepare(self) -> str:
        """Wait until all records are written, and prepare the transaction: another system decides whether it
        commits (KIP-939).

        Returns the text that `resume` will return while the transaction is undecided. The key
        `transaction.two.phase.commit.enable` must be true. Raises the errors of `commit_transaction`.
        """
        return await self.client.run(self._of_transactions().prepare(self.settings.max_block_ms / 1000))

    async def resume(self) -> str | None:
        """Start like `init_transactions`, but do not abort a prepared transaction (KIP-939).

        Returns the text of the prepared transaction, or None if no transaction is prepared. If this text
        equals the text that `prepare` returned, commit the transaction; otherwise abort it.
        """
        return await self.client.run(self._of_transactions().resume(self.settings.max_block_ms / 1000))

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncProducer]:
        """Open a transaction for an `async with` block: commit at its end, abort if an exception ends it.

        A cancelled block cannot wait for the abort. In that case `close` aborts the transaction, or the
        coordinator does so after the transaction's timeout.
        """
        transactions = self._of_transactions()
        self.begin_transaction()
        try:
            yield self
            if transactions.machine.is_open:
                await self.commit_transaction()
        except BaseException:
            if transactions.machine.may_abort:
                await self.abort_transaction()
            raise

    def _of_transactions(self) -> Transactions:
        if self._transactions is None:
            raise IllegalTransactionCall("transactions need the configuration key transactional.id")
        return self._transactions

    def _check_open(self) -> None:
        if self._closing:
            failure = self._failure
            raise ClientClosed(
                "the producer is closed" if failure is None else f"the producer failed: {failure!r}"
            ) from failure
        if self._transactions is not None:
            self._transactions.machine.check("send")

    @contextmanager
    def _failing_transaction(self) -> Iterator[None]:
        """Run a `with` block that adds a record. If the block raises, make the transaction fail, as in
        Kafka's client.
        """
        try:
            yield
        except (KafkaError, ClientError) as error:
            if self._transactions is not None:
                self._transactions.machine.fail(error)
            raise

    async def _abort_open_transaction(self, timeout: float | None) -> None:
        transactions = self._transactions
        if transactions is None or self.client.core.closed or not transactions.machine.may_abort:
            return
        seconds = self.settings.max_block_ms / 1000
        try:
            await self.client.run(
                transactions.end(commit=False, timeout=seconds if timeout is None else min(timeout, seconds))
            )
        except ProducerFencedError:
            _LOGGER.debug("the program that has fenced this producer has aborted its transaction")
        except (ClientError, IllegalTransactionCall) as error:
            text = f"the open transaction was not aborted, so the broker aborts it after its timeout: {error}"
            write_notes([Note(WARNING, text)], self.settings.odradek_on_error)

    async def close(self, timeout: float | None = None) -> None:
        """Send all records, for at most `timeout` seconds (None: as long as it takes), then close all connections.

        Records that were not acknowledged by then fail with `ClientClosed`. An open transaction is aborted. A second `close`
        has no effect.
        """
        timeout = as_seconds("timeout", timeout)
        await self._abort_open_transaction(timeout)
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
        """Return counters by name: batches, records, requests and refusals since the start, and the present buffer
        use.
        """
        return self._sender.statistics()

    def partition_metrics(self) -> dict[TopicPartition, dict[str, int]]:
        """Return counters of each partition to which records were sent, as `Producer.partition_metrics` does."""
        return self._accumulator.partition_metrics()

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

    def _send_all(self) -> Operation[None]:
        """Run the sender to its end. If a bug ends it, all records fail with that error, and so does every later
        call.
        """
        try:
            yield from self._sender.run()
        except Exception as error:
            self._failure = error
            write_error(CRITICAL, "the producer failed", error, self.settings.odradek_on_error)
            raise

    def _stopped(self) -> None:
        self._closing = True
        self._sender.fail_unacknowledged(self._failure)
        self._on_room()
