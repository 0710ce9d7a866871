"""aiokafka's producer and consumer, which speak the first protocol of transactions, on a loop of their own."""

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
    """Its calls wait until they end: a cancelled one cannot be made again. The caller watches.

    It names the group of its offsets alone, without the member by which a broker fences those that were replaced (KIP-447).
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
        """The outcome of a call, made on the loop."""
        try:
            return asyncio.run_coroutine_threadsafe(call, self.loop).result()
        except (errors.ProducerFenced, errors.OutOfOrderSequenceNumber) as error:
            raise Fatal(repr(error)) from error
        except (errors.KafkaError, AssertionError) as error:
            # It asserts that the state is right for the call: after an error it is another one.
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
        """The group's offset, 0 where there is none yet."""
        return self.run(self.consumer.committed(key)) or 0

    def committed(self) -> int:
        return sum(map(self._offset, self.keys))

    def close(self) -> None:
        """Close the clients, and the loop; a producer that failed says so here once more."""
        for each in (self.consumer, self.producer):
            try:
                self.run(each.stop())
            except (Fatal, Abortable):
                continue
        self.loop.call_soon_threadsafe(self.loop.stop)
