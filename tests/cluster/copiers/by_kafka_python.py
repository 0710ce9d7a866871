"""kafka-python's producer and consumer, which use the first version of the transaction protocol."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import kafka
from kafka import errors

from tests.cluster.copiers.api import (
    PARTITIONS,
    RECORDS,
    TRANSACTION_TIMEOUT_MS,
    Abortable,
    Fatal,
    at_the_last,
)

ENDS = (errors.ProducerFencedError, errors.InvalidProducerEpochError, errors.IllegalStateError)
T = TypeVar("T")


class ByKafkaPython:
    """A copier whose calls have no timeout, except `init_transactions`. The test must supervise it."""

    def __init__(
        self, bootstrap: str, source: str, target: str, name: str, timeout_ms: int = TRANSACTION_TIMEOUT_MS
    ) -> None:
        self.target = target
        self.keys = [kafka.TopicPartition(source, partition) for partition in range(PARTITIONS)]
        servers = bootstrap.split(",")
        self.sent: list[Any] = []
        self.producer = kafka.KafkaProducer(
            bootstrap_servers=servers, transactional_id=name, transaction_timeout_ms=timeout_ms
        )
        self.call(self.producer.init_transactions)
        self.consumer = kafka.KafkaConsumer(
            bootstrap_servers=servers,
            group_id=name,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level="read_committed",
            session_timeout_ms=6_000,
            heartbeat_interval_ms=500,
            max_poll_records=RECORDS,
        )

    def call(self, make: Callable[[], T]) -> T:
        """Make the call, and translate the client's errors to `Abortable` or `Fatal`."""
        try:
            return make()
        except errors.KafkaError as error:
            manager = self.producer._transaction_manager
            if isinstance(error, ENDS) or manager.has_fatal_error():
                raise Fatal(repr(error)) from error
            raise Abortable(repr(error)) from error

    def subscribe(self) -> None:
        self.consumer.subscribe([self.keys[0].topic])

    def poll(self) -> list[tuple[int, int, bytes]]:
        found = self.consumer.poll(timeout_ms=500)
        return [(each.partition, each.offset, each.value) for records in found.values() for each in records]

    def begin(self) -> None:
        self.sent.clear()
        self.call(self.producer.begin_transaction)

    def write(self, partition: int, value: bytes) -> None:
        self.sent.append(self.call(lambda: self.producer.send(self.target, value, partition=partition)))

    def flush(self) -> None:
        self.producer.flush()
        for each in self.sent:
            self.call(each.get)

    def send_offsets(self, positions: Mapping[int, int]) -> None:
        offsets = {
            self.keys[partition]: kafka.OffsetAndMetadata(offset, "", -1)
            for partition, offset in positions.items()
        }
        member = self.consumer.group_metadata()
        self.call(lambda: self.producer.send_offsets_to_transaction(offsets, member))

    def commit(self) -> None:
        self.call(self.producer.commit_transaction)

    def abort(self) -> None:
        with at_the_last():
            self.call(self.producer.abort_transaction)
        for key in self.consumer.assignment():
            self.consumer.seek(key, self._offset(key))

    def _offset(self, key: kafka.TopicPartition) -> int:
        """Return the group's committed offset, or 0 if there is none."""
        return self.call(lambda: self.consumer.committed(key)) or 0

    def committed(self) -> int:
        return sum(map(self._offset, self.keys))

    def close(self) -> None:
        self.consumer.close(autocommit=False)
        self.producer.close(timeout=0)
