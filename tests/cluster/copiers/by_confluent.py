"""librdkafka's producer and consumer, by confluent-kafka."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import confluent_kafka

from tests.cluster.copiers.api import (
    CALL_SECONDS,
    PARTITIONS,
    RECORDS,
    TRANSACTION_TIMEOUT_MS,
    Abortable,
    Fatal,
    at_the_last,
    say,
)

T = TypeVar("T")


class ByConfluent:
    """librdkafka's producer, which uses the first version of the transaction protocol."""

    def __init__(
        self, bootstrap: str, source: str, target: str, name: str, timeout_ms: int = TRANSACTION_TIMEOUT_MS
    ) -> None:
        self.target = target
        self.source = source
        self.keys = [(source, partition) for partition in range(PARTITIONS)]
        quiet = {"bootstrap.servers": bootstrap, "log_level": 0}
        self.producer = confluent_kafka.Producer(
            {**quiet, "transactional.id": name, "transaction.timeout.ms": timeout_ms}
        )
        self.call(lambda: self.producer.init_transactions(CALL_SECONDS))
        self.consumer = confluent_kafka.Consumer(
            {
                **quiet,
                "group.id": name,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "session.timeout.ms": 6_000,
                "heartbeat.interval.ms": 500,
            }
        )

    def call(self, make: Callable[[], T]) -> T:
        """Repeat the call until its outcome is known. Raises `Abortable` or `Fatal`."""
        while True:
            try:
                return make()
            except confluent_kafka.KafkaException as raised:
                error = raised.args[0]
                if error.fatal():
                    raise Fatal(error) from raised
                if error.txn_requires_abort():
                    raise Abortable(error) from raised
                if not error.retriable():
                    raise Fatal(f"neither fatal, abortable nor retriable: {error}") from raised
                say("again", error)

    def subscribe(self) -> None:
        self.consumer.subscribe([self.source])

    def poll(self) -> list[tuple[int, int, bytes]]:
        found = []
        for message in self.consumer.consume(RECORDS, 0.5):
            partition, offset, value = message.partition(), message.offset(), message.value()
            if message.error() is not None or partition is None or offset is None or value is None:
                say("consumer", message.error())
            else:
                found.append((partition, offset, value))
        return found

    def begin(self) -> None:
        self.call(self.producer.begin_transaction)

    def write(self, partition: int, value: bytes) -> None:
        self.call(lambda: self.producer.produce(self.target, value, partition=partition))

    def flush(self) -> None:
        self.call(lambda: self.producer.flush(CALL_SECONDS))

    def send_offsets(self, positions: Mapping[int, int]) -> None:
        offsets = [confluent_kafka.TopicPartition(self.source, *each) for each in positions.items()]
        member = self.consumer.consumer_group_metadata()
        self.call(lambda: self.producer.send_offsets_to_transaction(offsets, member, CALL_SECONDS))

    def commit(self) -> None:
        self.call(lambda: self.producer.commit_transaction(CALL_SECONDS))

    def abort(self) -> None:
        with at_the_last():
            self.call(lambda: self.producer.abort_transaction(CALL_SECONDS))
        mine = self.consumer.assignment()
        for each in self._offsets([(each.topic, each.partition) for each in mine]):
            self.consumer.seek(each)

    def _offsets(self, keys: list[tuple[str, int]]) -> list[confluent_kafka.TopicPartition]:
        """Return the group's committed offsets, with 0 where there are none."""
        asked = [confluent_kafka.TopicPartition(*key) for key in keys]
        found = self.call(lambda: self.consumer.committed(asked, CALL_SECONDS)) if asked else []
        return [
            confluent_kafka.TopicPartition(each.topic, each.partition, max(each.offset, 0)) for each in found
        ]

    def committed(self) -> int:
        return sum(each.offset for each in self._offsets(self.keys))

    def close(self) -> None:
        self.consumer.close()
