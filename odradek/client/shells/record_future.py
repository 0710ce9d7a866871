"""The future of a record that was sent: it reads its outcome from the record's batch. SHELL."""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable
from typing import Any, Protocol

from odradek.client.producer.accumulator import Batch
from odradek.client.producer.record_metadata import Delivered, OnDelivery, RecordMetadata

__all__ = ["RecordFuture"]


class Keeper(Protocol):
    """The methods of a producer that its futures call."""

    lock: threading.RLock

    def wait_for(self, batch: Batch, timeout: float | None) -> None:
        """Wait until a batch is done. Raises `TimeoutError`."""

    def call_when_done(self, batch: Batch, function: Callable[[], None]) -> None:
        """Call `function` in the producer's thread once a batch is done."""


class RecordFuture(concurrent.futures.Future[RecordMetadata]):
    """The future of a record: `result()` is a `RecordMetadata`, or raises the record's error.

    `concurrent.futures.wait` and `asyncio.wrap_future` work with it. It cannot be cancelled, as the record may be on
    its way. It takes its state from the record's batch and its lock from the producer, so it costs little more than
    any object.
    """

    __slots__ = ("_batch", "_index", "_producer", "_timestamp_ms")

    def __init__(self, producer: Keeper, batch: Batch, index: int, timestamp_ms: int) -> None:
        self._producer = producer
        self._batch = batch
        self._index = index
        self._timestamp_ms = timestamp_ms

    def cancel(self) -> bool:
        """Return False: a record that was handed to the producer cannot be taken back."""
        return False

    def cancelled(self) -> bool:
        """Return False, because `cancel` is impossible."""
        return False

    def running(self) -> bool:
        """Return True until the record is acknowledged, or fails for good."""
        return not self._batch.done

    def done(self) -> bool:
        """True if the record is acknowledged, or has failed for good."""
        return self._batch.done

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Wait until the record is acknowledged, and return its place.

        Raises the record's error, or `TimeoutError` after `timeout` seconds.
        """
        self._batch.outcome_taken = True
        if not self._batch.done:
            self._producer.wait_for(self._batch, timeout)
        return RecordMetadata.of(self._batch, self._index, self._timestamp_ms)

    def exception(self, timeout: float | None = None) -> Exception | None:
        """Wait for the outcome; return the record's error, None if it was acknowledged. Raises `TimeoutError`."""
        self._batch.outcome_taken = True
        if not self._batch.done:
            self._producer.wait_for(self._batch, timeout)
        return self._batch.outcome(self._index)[2]

    def add_done_callback(self, function: Callable[[concurrent.futures.Future[RecordMetadata]], Any]) -> None:
        """Call `function(future)` once there is an outcome, in the producer's thread."""
        self._batch.outcome_taken = True
        self._producer.call_when_done(self._batch, lambda: function(self))

    def call_with_outcome(self, function: OnDelivery, key: bytes | None) -> None:
        """Call `function(error, delivered)` once there is an outcome, in the producer's thread."""
        batch, index, timestamp_ms = self._batch, self._index, self._timestamp_ms

        def call() -> None:
            function(*Delivered.of(batch, index, timestamp_ms, key))

        batch.outcome_taken = True
        self._producer.call_when_done(batch, call)

    def __getattr__(self, name: str) -> Any:
        """Provide the private attributes of a future that `concurrent.futures.wait`, `as_completed` and `repr`
        read.
        """
        batch = self._batch
        if name == "_state":
            return "FINISHED" if batch.done else "RUNNING"
        if name == "_condition":
            return self._producer.lock
        if name == "_waiters":
            return _Waiters(self)
        if name == "_exception":
            return batch.outcome(self._index)[2] if batch.done else None
        if name == "_result":
            return self.result() if batch.done and self.exception() is None else None
        raise AttributeError(name)


class _Waiters:
    """The list of waiters that `concurrent.futures` keeps in a future, kept in the batch instead."""

    def __init__(self, future: RecordFuture) -> None:
        self._future = future

    def append(self, waiter: Any) -> None:
        future = self._future

        def done(_: Batch) -> None:
            if future.exception() is None:
                waiter.add_result(future)
            else:
                waiter.add_exception(future)

        future._batch.on_done.append(done)

    def remove(self, waiter: Any) -> None:
        """Do nothing: later calls do no harm to a waiter that is no longer used."""
