"""A copier with aiokafka, which uses the first version of the transaction protocol. Its event loop runs in a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

import aiokafka
from aiokafka import errors

from tests.cluster.copiers.api import (
    PARTITIONS,
    RECORDS,
    TRANSACTION_TIMEOUT_MS,
    Abortable,
    Fatal,
    at_the_last,
)

T = TypeVar("T")


class ByAiokafka:
    """A copier without timeouts, because aiokafka fails to repeat a cancelled call. The test must supervise it.

    Its offset commits carry only the group id. So replaced members are not fenced: that needs a member id (KIP-447).
    """

    def __init__(
        self, bootstrap: str, source: str, target: str, name: str, timeout_ms: int = TRANSACTION_TIMEOUT_MS
    ) -> None:
        self.name = name
        self.target = target
        self.keys = [aiokafka.TopicPartition(source, partition) for partition in range(PARTITIONS)]
        self.sent: list[asyncio.Future[Any]] = []
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

        async def start() -> None:
            self.producer = aiokafka.AIOKafkaProducer(
                bootstrap_servers=bootstrap, transactional_id=name, transaction_timeout_ms=timeout_ms
            )
            self.consumer = aiokafka.AIOKafkaConsumer(
                bootstrap_servers=bootstrap,
                group_id=name,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                isolation_level="read_committed",
                session_timeout_ms=6_000,
                heartbeat_interval_ms=500,
                max_poll_records=RECORDS,
            )
            await self.producer.start()
            await self.consumer.start()

        self.run(start())

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        """Run the coroutine on the event loop and return its result.

        Raises `Abortable` or `Fatal` for the client's errors.
        """
        try:
            return asyncio.run_coroutine_threadsafe(call, self.loop).result()
        except (errors.ProducerFenced, errors.OutOfOrderSequenceNumber) as error:
            raise Fatal(repr(error)) from error
        except (errors.KafkaError, AssertionError) as error:
            # aiokafka asserts that the call fits the transaction's state, which an earlier error may have changed.
            if self.producer._txn_manager.is_fatal_error():
                raise Fatal(repr(error)) from error
            raise Abortable(repr(error)) from error

    def subscribe(self) -> None:
        async def subscribe() -> None:
            self.consumer.subscribe([self.keys[0].topic])

        self.run(subscribe())

    def poll(self) -> list[tuple[int, int, bytes]]:
        found = self.run(self.consumer.getmany(timeout_ms=500))
        return [(each.partition, each.offset, each.value) for records in found.values() for each in records]

    def begin(self) -> None:
        self.sent.clear()
        self.run(self.producer.begin_transaction())

    def write(self, partition: int, value: bytes) -> None:
        self.sent.append(self.run(self.producer.send(self.target, value, partition=partition)))

    def flush(self) -> None:
        async def outcomes() -> None:
            await asyncio.gather(*self.sent)

        self.run(self.producer.flush())
        self.run(outcomes())

    def send_offsets(self, positions: Mapping[int, int]) -> None:
        offsets = {self.keys[partition]: offset for partition, offset in positions.items()}
        self.run(self.producer.send_offsets_to_transaction(offsets, self.name))

    def commit(self) -> None:
        self.run(self.producer.commit_transaction())

    def abort(self) -> None:
        with at_the_last():
            self.run(self.producer.abort_transaction())
        for key in self.consumer.assignment():
            self.consumer.seek(key, self._offset(key))

    def _offset(self, key: aiokafka.TopicPartition) -> int:
        """Return the group's committed offset, or 0 if there is none."""
        return self.run(self.consumer.committed(key)) or 0

    def committed(self) -> int:
        return sum(map(self._offset, self.keys))

    def close(self) -> None:
        """Close the clients and stop the loop. Errors are ignored, because a failed producer raises them again here."""
        for each in (self.consumer, self.producer):
            try:
                self.run(each.stop())
            except (Fatal, Abortable):
                continue
        self.loop.call_soon_threadsafe(self.loop.stop)
