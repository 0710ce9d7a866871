"""The blocking producer: records are sent in the background, each with a future for its outcome. SHELL.

`send` puts a record into a batch and returns at once. A background thread (`IoThread`) runs the sender, which sends
the batches. All decisions are in `accumulator.py` and `sender.py`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

import attrs

from odradek.client.consumer.consumer_types import ConsumerGroupMetadata, OffsetAndMetadata, judged_offsets
from odradek.client.core.arguments import (
    INT32_MAX,
    NO_HEADERS,
    as_bytes,
    as_callback,
    as_headers,
    as_integer,
    as_partition,
    as_seconds,
    as_text,
    as_timestamp,
)
from odradek.client.core.client_keys import ProducerSettings, merged_properties
from odradek.client.core.notes import WARNING, Note
from odradek.client.core.operation import Operation
from odradek.client.core.partition_keys import ByPartition
from odradek.client.core.requests import refresh_metadata, topics_with_metadata
from odradek.client.errors import (
    BufferFull,
    ClientClosed,
    ClientError,
    IllegalTransactionCall,
    ProducerFencedError,
    RequestTimedOut,
)
from odradek.client.producer.accumulator import Accumulator, Batch
from odradek.client.producer.record_metadata import OnDelivery, RecordMetadata
from odradek.client.producer.sender import Sender
from odradek.client.shells.client_log import CRITICAL, write_error, write_notes
from odradek.client.shells.familiar_calls import FamiliarFace
from odradek.client.shells.io_thread import FORKED, IoThread
from odradek.client.shells.leaving import leave_when_dropped, weak_call
from odradek.client.shells.record_future import RecordFuture
from odradek.wire.batches.batch_header import HEADER_SIZE
from odradek.wire.batches.records import Header
from odradek.wire.errors import KafkaError
from odradek.wire.topic_partition import TopicPartition

if TYPE_CHECKING:
    from odradek.client.producer.transactions import Transactions

__all__ = ["Producer", "RecordFuture", "RecordMetadata"]

_LOGGER = logging.getLogger("odradek.client")

_TURN_BYTES = 64 << 10
"""The bytes of full batches after which `send` lets the sending thread run once."""
_TURN_SECONDS_MAX = 0.1
_BATCH_BYTES_MIN = 1024
"""For `_TURN_BYTES`, a smaller batch counts as this number of bytes, because every batch has a fixed cost."""


@attrs.define(eq=False)
class _End:
    """Ends a producer's work. The producer's thread has a reference to this object, which has references only
    to parts of the producer (`leaving.py`).
    """

    sender: Sender
    accumulator: Accumulator
    room: threading.Condition
    closing: bool = False
    because: str = "the producer is closed"
    failure: BaseException | None = None

    def send_all(self, io: IoThread) -> Operation[None]:
        """Run the sender to its end. If a bug ends it, all records fail with that error, and so does every later
        call.
        """
        try:
            yield from self.sender.run()
        except Exception as error:
            self._failed(error)
            on_error = io.core.config.on_error
            io.defer(partial(write_error, CRITICAL, "the producer failed", error, on_error))
            raise

    def _failed(self, error: BaseException) -> None:
        self.failure = error
        self.because = f"the producer failed: {error!r}"

    def stopped(self, io: IoThread) -> None:
        """Fail all records without an outcome, because the sender has ended: by `close`, or by an error."""
        self.closing = True
        if self.failure is None and io.failure is not None:
            self._failed(io.failure)
        self.sender.fail_unacknowledged(self.failure)
        self.room.notify_all()

    # For a producer that was never closed

    def begin(self) -> None:
        """Start to send the waiting records, and accept no further records."""
        self.closing = True
        self.sender.closing = True
        self.sender.signal.notify()

    @property
    def is_over(self) -> bool:
        """True once every record is acknowledged or has failed."""
        return not self.accumulator.incomplete

    @property
    def records_left(self) -> int:
        """The number of records that are neither acknowledged nor failed."""
        return sum(batch.record_count or len(batch.rows) for batch in list(self.accumulator.incomplete))


class Producer(FamiliarFace, known_as="Producer"):
    """A client that writes records. `config` has Kafka's keys ("linger.ms"); keyword arguments are the same keys with
    underscores (`linger_ms`).

    Several threads may use it. Use it as a context manager, or call `close`. A producer that is dropped still sends
    its waiting records. When the process ends, all producers together have 5 s to send theirs; a warning counts the
    records that were not sent. Raises `ValueError` for a bad configuration.
    """

    def __init__(self, config: Mapping[str, Any] | None = None, /, **keys: Any) -> None:
        settings = ProducerSettings.from_properties(merged_properties(config, keys))
        self.settings = settings
        name = settings.client_id or "odradek-producer"
        self._io = IoThread(settings.bootstrap_servers, settings.client_config(), name)
        self.lock = self._io.lock
        core = self._io.core
        self._accumulator = Accumulator(settings, core.cluster, core.rng)
        self._sender = Sender(core, settings, self._accumulator)
        self._transactions = self._sender.transactions
        self._end = _End(self._sender, self._accumulator, threading.Condition(self.lock))
        self._forked = False
        self._accumulator.on_room = self._end.room.notify_all
        self._bytes_since_turn = 0
        self._io.on_fork = weak_call(self._after_fork)
        self._io.start(self._end.send_all(self._io), partial(self._end.stopped, self._io))
        leave_when_dropped(self, self._io, self._end)

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Iterable[Header] | None = NO_HEADERS,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> RecordFuture:
        """Send a record in the background, and return a future for its position in the topic.

        `value` and `key` are bytes or None, or values for the serializers; a bytearray is copied. `headers` are pairs
        of a str and bytes, read once. `timestamp_ms` None means the present. The call blocks for at most
        `max.block.ms` if the topic's partitions are unknown, or `buffer.memory` is full. `on_delivery(error,
        delivered)` is called in the producer's thread once the record is acknowledged or has failed (`Delivered`).

        Raises:
            KafkaError: MESSAGE_TOO_LARGE (above `max.request.size`), or the broker's error for the topic.
            BufferFull: no memory within `max.block.ms`.
            ClientError: no metadata within `max.block.ms`, or the producer is closed.
            TransactionError: the transaction must be aborted, or the producer must be closed.
            IllegalTransactionCall: the producer has a `transactional.id`, but no transaction is open.
            TypeError, ValueError: an argument is wrong; the text names it.
        """
        settings = self.settings
        if settings.value_serializer is not None:
            value = settings.value_serializer(value)
        if settings.key_serializer is not None:
            key = settings.key_serializer(key)
        if value is not None and not isinstance(value, bytes):
            value = as_bytes("value", value)
        if key is not None and not isinstance(key, bytes):
            key = as_bytes("key", key)
        if headers is not NO_HEADERS:
            headers = as_headers("headers", headers)
        if partition is not None:
            partition = as_partition("partition", partition)
        if timestamp_ms is None:
            timestamp_ms = time.time_ns() // 1_000_000
        else:
            timestamp_ms = as_timestamp("timestamp_ms", timestamp_ms)
        if type(topic) is not str:
            topic = as_text("topic", topic)
        if on_delivery is not None:
            as_callback("on_delivery", on_delivery)
        with self.lock:
            if self._end.closing or self._transactions is not None:
                self._check_open()
            batch = self._accumulator.append(topic, partition, timestamp_ms, key, value, headers)
            if batch is not None:
                future = RecordFuture(self, batch, len(batch.rows) - 1, timestamp_ms)
                if on_delivery is None:
                    return future
        if batch is None:
            with self._failing_transaction():
                future = self._send_slowly(topic, partition, timestamp_ms, key, value, headers)
        if on_delivery is not None:
            future.call_with_outcome(on_delivery, key)
        return future

    def send_encoded(self, topic: str, partition: int, data: bytearray, record_count: int) -> Batch:
        """Send one encoded batch to a partition. The caller has encoded it in the format of
        `odradek.wire.batches.record_writer.encode_batch`.

        This method is for a caller that has thousands of records at once and needs no future for each record.
        The producer owns `data` from now on. Once the batch is `done`, `failure()` is its error or None;
        `flush` waits for it. Blocks and raises as `send` does.
        """
        topic = as_text("topic", topic)
        partition = as_partition("partition", partition)
        record_count = as_integer("record_count", record_count, 1, INT32_MAX)
        if not isinstance(data, bytearray) or len(data) < HEADER_SIZE:
            raise TypeError("data must be a bytearray that holds a batch")
        deadline = time.monotonic() + self.settings.max_block_ms / 1000
        accumulator = self._accumulator
        with self._failing_transaction():
            while True:
                self._learn(topic, deadline)
                with self.lock:
                    self._check_open()
                    if not accumulator.knows(topic):
                        continue
                    batch = accumulator.add_encoded(topic, partition, data, record_count, time.monotonic())
                    if batch is None:
                        self._wait_for_room(deadline)
                        continue
                    self._sender.signal.notify()
                self._io.wake()
                return batch

    def partitions_for(self, topic: str, timeout: float | None = None) -> list[int]:
        """Return the numbers of the topic's partitions, in order.

        Waits for at most `timeout` seconds (None: `max.block.ms`). If the partitions are still unknown by
        then, raises the error that `send` would raise.
        """
        topic = as_text("topic", topic)
        seconds = as_seconds("timeout", timeout)
        if seconds is None:
            seconds = self.settings.max_block_ms / 1000
        self._learn(topic, time.monotonic() + seconds)
        with self.lock:
            return sorted(self._io.core.cluster.topic(topic).partitions)

    def topic_id(self, topic: str) -> bytes:
        """Return the id of a topic that this producer has used (KIP-516): 16 bytes, all zero if the topic has no id.

        Raises `KafkaError` for a topic that this producer does not know.
        """
        topic = as_text("topic", topic)
        with self.lock:
            return self._io.core.cluster.topic(topic).topic_id

    def _refresh_topic(self, topic: str, timeout: float) -> None:
        """Fetch the metadata of a topic again. Raises `KafkaError`, `ClientError`."""
        self._io.run(refresh_metadata(self._io.core, [topic], timeout=timeout, auto_create=True))

    def flush(self, timeout: float | None = None) -> None:
        """Wait until every record sent so far is acknowledged or has failed. Raises `RequestTimedOut` after `timeout`
        seconds.
        """
        timeout = as_seconds("timeout", timeout)
        if self._io.is_own_thread():
            raise RuntimeError("a callback must not wait for its own producer")
        if self._forked:
            raise ClientClosed(FORKED)
        with self.lock:
            pending = set(self._accumulator.incomplete)
            if not pending:
                return
            finished = threading.Event()

            def done(batch: Batch) -> None:
                pending.discard(batch)
                if not pending:
                    finished.set()

            for batch in pending:
                batch.on_done.append(done)
            self._accumulator.close_all()
            self._accumulator.flushing += 1
            self._sender.signal.notify()
        self._io.wake()
        try:
            if not finished.wait(timeout):
                raise RequestTimedOut(f"{self._end.records_left} records were not sent within {timeout:g} s")
        finally:
            with self.lock:
                self._accumulator.flushing -= 1

    # Transactions

    def init_transactions(self) -> None:
        """Fetch a producer id. This must be the first call of a producer with a `transactional.id`. Waits for at most
        `max.block.ms`.

        If an earlier producer of this transactional id has an open transaction, the transaction is aborted,
        and that producer is fenced.

        Raises:
            RequestTimedOut: no answer in time; call again.
            TransactionFatalError: the coordinator refuses.
            IllegalTransactionCall: it was called before, or there is no `transactional.id`.
        """
        self._io.run(self._of_transactions().initialize(self.settings.max_block_ms / 1000))

    def begin_transaction(self) -> None:
        """Open a transaction. Raises `IllegalTransactionCall`, `TransactionError`."""
        with self.lock:
            self._of_transactions().begin()

    def send_offsets_to_transaction(
        self, offsets: ByPartition[OffsetAndMetadata | int], group: ConsumerGroupMetadata
    ) -> None:
        """Commit these offsets (of the next records to read) for a group if the transaction commits (KIP-447).

        `group` comes from `Consumer.group_metadata` of a consumer with `enable.auto.commit=false`. Waits for at most
        `max.block.ms`. After any error except `IllegalTransactionCall` the transaction can only be aborted.
        """
        commits = judged_offsets("offsets", offsets)
        if not isinstance(group, ConsumerGroupMetadata):
            raise TypeError(
                f"group is a {type(group).__name__}, expected the value of Consumer.group_metadata"
            )
        seconds = self.settings.max_block_ms / 1000
        self._io.run(self._of_transactions().send_offsets(commits, group, seconds))

    def commit_transaction(self) -> None:
        """Wait until all records are written, then commit the transaction. Waits for at most `max.block.ms`.

        Raises:
            TransactionAbortableError: a record or offset was not written; abort the transaction.
            TransactionFatalError: for instance `ProducerFencedError`; close this producer.
            RequestTimedOut: the outcome is unknown; call this again, or close the producer.
            IllegalTransactionCall: no transaction is open.
        """
        seconds = self.settings.max_block_ms / 1000
        self._io.run(self._of_transactions().end(commit=True, timeout=seconds))

    def abort_transaction(self) -> None:
        """Drop the records that were not sent yet, then abort the transaction. Raises as `commit_transaction` does;
        after `RequestTimedOut` call it again.
        """
        seconds = self.settings.max_block_ms / 1000
        self._io.run(self._of_transactions().end(commit=False, timeout=seconds))

    def prepare(self) -> str:
        """Wait until all records are written, and prepare the transaction: another system decides whether it
        commits (KIP-939).

        Returns the text that `resume` will return while the transaction is undecided. The key
        `transaction.two.phase.commit.enable` must be true. Raises the errors of `commit_transaction`.
        """
        return self._io.run(self._of_transactions().prepare(self.settings.max_block_ms / 1000))

    def _leave_open(self) -> str:
        """Wait until all records are written, and leave the transaction open: another process ends it.

        Returns its producer id and epoch as `ID:EPOCH`. Unlike after `prepare`, the transaction keeps its timeout.
        """
        return self._io.run(self._of_transactions().leave_open(self.settings.max_block_ms / 1000))

    def _change_transactional_id(self, transactional_id: str) -> None:
        """Become a new producer with another transactional id, before `init_transactions` or `resume`."""
        with self.lock:
            self._of_transactions().change_id(transactional_id)

    def resume(self) -> str | None:
        """Start like `init_transactions`, but do not abort a prepared transaction (KIP-939).

        Returns the text of the prepared transaction, or None if no transaction is prepared. If this text
        equals the text that `prepare` returned, commit the transaction; otherwise abort it.
        """
        return self._io.run(self._of_transactions().resume(self.settings.max_block_ms / 1000))

    @contextmanager
    def transaction(self) -> Iterator[Producer]:
        """Open a transaction for a `with` block: commit at its end, abort if an exception ends it.

        If the abort fails too, the error of the abort is raised, with the first exception as its context.
        """
        transactions = self._of_transactions()
        self.begin_transaction()
        try:
            yield self
            if transactions.machine.is_open:
                self.commit_transaction()
        except BaseException:
            if transactions.machine.may_abort:
                self.abort_transaction()
            raise

    def _of_transactions(self) -> Transactions:
        if self._transactions is None:
            raise IllegalTransactionCall("transactions need the configuration key transactional.id")
        return self._transactions

    def close(self, timeout: float | None = None) -> None:
        """Send all records, for at most `timeout` seconds (None: as long as it takes), then close all connections.

        Records that were not acknowledged by then fail with `ClientClosed`. An open transaction is aborted. A second `close`
        has no effect.
        """
        timeout = as_seconds("timeout", timeout)
        self._abort_open_transaction(timeout)
        with self.lock:
            self._end.closing = True
            self._end.room.notify_all()
        try:
            if not self._io.closed:
                self.flush(timeout)
        except RequestTimedOut:
            with self.lock:
                self._sender.fail_unacknowledged()
        finally:
            self._io.close()
            self._say_what_nobody_knows()

    def _say_what_nobody_knows(self) -> None:
        """Log one warning about the failed records whose error the application has not read."""
        failed = [batch for batch in self._sender.failed if not batch.is_heard_of]
        self._sender.failed.clear()
        if failed:
            count = sum(batch.record_count for batch in failed)
            text = (
                f"{count} records were not written, and the application has not asked for their "
                f"outcome: {failed[0].error}"
            )
            write_notes([Note(WARNING, text)], self.settings.odradek_on_error)

    def metrics(self) -> dict[str, int]:
        """Return counters by name: batches, records, requests and refusals since the start, and the present buffer
        use.
        """
        with self.lock:
            return self._sender.statistics()

    def partition_metrics(self) -> dict[TopicPartition, dict[str, int]]:
        """Return counters of each partition to which records were sent: `records`, `bytes`, `batches` and `errors`
        since the start.

        `bytes` counts whole batches as they were sent, `errors` counts failed records. `queued_records` and
        `queued_batches` count records and batches without an outcome.
        """
        with self.lock:
            return self._accumulator.partition_metrics()

    # For futures

    def wait_for(self, batch: Batch, timeout: float | None) -> None:
        """Wait until a batch is done. Raises `TimeoutError` after `timeout` seconds."""
        finished = threading.Event()
        with self.lock:
            if batch.done:
                return
            if self._forked:
                raise ClientClosed(FORKED)
            batch.on_done.append(lambda _: finished.set())
        if self._io.is_own_thread():
            raise RuntimeError("a callback must not wait for its own producer")
        if not finished.wait(timeout):
            raise TimeoutError

    def call_when_done(self, batch: Batch, function: Callable[[], None]) -> None:
        """Call `function` in the producer's thread once a batch is done."""
        with self.lock:
            if not batch.done:
                batch.on_done.append(lambda _: self._io.defer(function))
                return
        self._io.defer(function)

    # Internal

    def _check_open(self) -> None:
        """Raise an error if no record may be sent now."""
        if self._end.closing:
            raise ClientClosed(self._end.because) from self._end.failure
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
                with self.lock:
                    self._transactions.machine.fail(error)
            raise

    def _abort_open_transaction(self, timeout: float | None) -> None:
        transactions = self._transactions
        if transactions is None or self._io.closed or not transactions.machine.may_abort:
            return
        seconds = self.settings.max_block_ms / 1000
        try:
            self._io.run(
                transactions.end(commit=False, timeout=seconds if timeout is None else min(timeout, seconds))
            )
        except ProducerFencedError:
            _LOGGER.debug("the program that has fenced this producer has aborted its transaction")
        except (ClientError, IllegalTransactionCall) as error:
            text = f"the open transaction was not aborted, so the broker aborts it after its timeout: {error}"
            write_notes([Note(WARNING, text)], self.settings.odradek_on_error)

    def _send_slowly(
        self,
        topic: str,
        partition: int | None,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: tuple[Header, ...],
    ) -> RecordFuture:
        """Send a record that needs a new batch: wait for metadata and memory, open the batch, and wake the sender."""
        as_text("topic", topic)
        deadline = time.monotonic() + self.settings.max_block_ms / 1000
        accumulator = self._accumulator
        while True:
            self._learn(topic, deadline)
            with self.lock:
                self._check_open()
                if not accumulator.knows(topic):
                    continue
                now = time.monotonic()
                batch = accumulator.open_batch(topic, partition, timestamp_ms, key, value, headers, now)
                if batch is None:
                    self._wait_for_room(deadline)
                    continue
                future = RecordFuture(self, batch, len(batch.rows) - 1, timestamp_ms)
                turn = False
                if accumulator.has_filled(batch):
                    self._sender.signal.notify()
                    self._bytes_since_turn += max(self.settings.batch_size, batch.size, _BATCH_BYTES_MIN)
                    turn = self._bytes_since_turn >= _TURN_BYTES
                elif self._sender.sleeps_too_long(now):
                    self._sender.signal.notify()
                else:
                    return future
            if turn:
                self._bytes_since_turn = 0
                self._io.give_turn(_TURN_SECONDS_MAX)
            else:
                self._io.wake()
            return future

    def _learn(self, topic: str, deadline: float) -> None:
        """Wait until the topic's partitions are known. Raises the broker's or the client's error after `deadline`."""
        if self._accumulator.knows(topic):
            return
        core = self._io.core
        if self._io.is_own_thread():
            raise BufferFull(f"a callback must not wait for the metadata of {topic}")
        self._io.run(topics_with_metadata(core, [topic], deadline=deadline, auto_create=True))

    def _wait_for_room(self, deadline: float) -> None:
        """Wait until a batch has released memory. The caller holds the lock. Raises `BufferFull` after `deadline`."""
        left = deadline - time.monotonic()
        if left <= 0 or self._io.is_own_thread():
            raise self._accumulator.out_of_memory()
        self._accumulator.starving += 1
        self._sender.signal.notify()
        self._io.wake()
        try:
            self._end.room.wait(left)
        finally:
            self._accumulator.starving -= 1

    def _after_fork(self) -> None:
        """Close the producer in a forked child, with new locks. The batches are left as they are, because the
        parent's thread may have been changing them during the fork.
        """
        self.lock = self._io.lock
        self._end.room = threading.Condition(self.lock)
        self._end.closing = self._forked = True
        self._end.because = FORKED
