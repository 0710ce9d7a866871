"""The future of a record that was sent: it reads the record's outcome from its batch. SHELL."""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable
from typing import Any, Protocol

from odradek.client.producer.accumulator import Batch
from odradek.client.producer.record_metadata import Delivered, OnDelivery, RecordMetadata

__all__ = ["RecordFuture"]


class Keeper(Protocol):
    """The producer's methods that the futures of its records call."""

    lock: threading.RLock

    def wait_for(self, batch: Batch, timeout: float | None) -> None:
        """Wait until a batch is done. Raises `TimeoutError` after `timeout` seconds."""

    def call_when_done(self, batch: Batch, function: Callable[[], None]) -> None:
        """Call `function` in the producer's thread once a batch is done."""


class RecordFuture(concurrent.futures.Future[RecordMetadata]):
    """The future of a sent record. `result()` returns a `RecordMetadata`, or raises the record's error.

    `concurrent.futures.wait` and `asyncio.wrap_future` work with it. It cannot be cancelled, because the record may
    have been sent already. The future itself has neither state nor a lock. It uses the state of the record's batch, and
    the producer's lock. So it is as cheap as any other small object.
    """

    __slots__ = ("_batch", "_index", "_producer", "_timestamp_ms")

    def __init__(self, producer: Keeper, batch: Batch, index: int, timestamp_ms: int) -> None:
        self._producer = producer
        self._batch = batch
        self._index = index
        self._timestamp_ms = timestamp_ms

    def cancel(self) -> bool:
        """Return False, because a record that was given to the producer cannot be taken back."""
        return False

    def cancelled(self) -> bool:
        """Return False, because a record cannot be cancelled."""
        return False

    def running(self) -> bool:
        """Return True until the record is acknowledged or has finally failed."""
        return not self._batch.done

    def done(self) -> bool:
        """True if the record was acknowledged, or has finally failed."""
        return self._batch.done

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Wait until the record is acknowledged, and return its position in the topic.

        Raises the record's error, or `TimeoutError` after `timeout` seconds.
        """
        self._batch.outcome_taken = True
        if not self._batch.done:
            self._producer.wait_for(self._batch, timeout)
        return RecordMetadata.of(self._batch, self._index, self._timestamp_ms)

    def exception(self, timeout: float | None = None) -> Exception | None:
        """Wait for the record's outcome. Return its error, or None if it was acknowledged. Raises `TimeoutError`
        after `timeout` seconds.
        """
        self._batch.outcome_taken = True
        if not self._batch.done:
            self._producer.wait_for(self._batch, timeout)
        return self._batch.outcome(self._index)[2]

    def add_done_callback(self, function: Callable[[concurrent.futures.Future[RecordMetadata]], Any]) -> None:
        """Call `function(future)` in the producer's thread once the record is acknowledged or has failed."""
        self._batch.outcome_taken = True
        self._producer.call_when_done(self._batch, lambda: function(self))

    def call_with_outcome(self, function: OnDelivery, key: bytes | None) -> None:
        """Call `function(error, delivered)` in the producer's thread once the record is acknowledged or has failed."""
        batch, index, timestamp_ms = self._batch, self._index, self._timestamp_ms

        def call() -> None:
            function(*Delivered.of(batch, index, timestamp_ms, key))

        batch.outcome_taken = True
        self._producer.call_when_done(batch, call)

    def __getattr__(self, name: str) -> Any:
        """Return a private attribute of a future, such as `_state`, which `concurrent.futures.wait`, `as_completed`
        and `repr` read.
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
    """The waiters of a future, as a list for `concurrent.futures`. They are stored as callbacks of the batch."""

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
        """Do nothing. The batch will still call the waiter, which does no harm."""
