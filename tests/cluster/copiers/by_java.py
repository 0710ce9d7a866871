"""Apache Kafka's own producer, with the second version of the transaction protocol (KIP-890).

One JVM serves all instances. py4j, which comes with PySpark, calls into the JVM. So nothing is compiled, and a JRE is
enough.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from py4j.java_gateway import is_instance_of
from py4j.protocol import Py4JJavaError

from tests.cluster.copiers.api import (
    CALL_SECONDS,
    PARTITIONS,
    TRANSACTION_TIMEOUT_MS,
    Abortable,
    Fatal,
    at_the_last,
    say,
)
from tests.kafka_tools import jvm

ERRORS = "org.apache.kafka.common.errors."
ENDS = (
    "ProducerFencedException",
    "OutOfOrderSequenceException",
    "AuthorizationException",
    "UnsupportedVersionException",
)
"""Errors after which KafkaProducer's documentation says to close the producer.

After other errors, the transaction is aborted.
"""
T = TypeVar("T")


class ByJava:
    """A KafkaProducer with default settings, and a KafkaConsumer, which supplies the group of the offsets."""

    def __init__(
        self, bootstrap: str, source: str, target: str, name: str, timeout_ms: int = TRANSACTION_TIMEOUT_MS
    ) -> None:
        self.gateway = jvm()
        self.kafka = self.gateway.jvm.org.apache.kafka
        self.target = target
        self.keys = [self.kafka.common.TopicPartition(source, each) for each in range(PARTITIONS)]
        serialization = "org.apache.kafka.common.serialization.ByteArray"
        ours = {"bootstrap.servers": bootstrap}
        formats = itertools.product(("key", "value"), ("serializer", "deserializer"))
        ours |= {f"{what}.{how}": serialization + how.capitalize() for what, how in formats}
        limits = {"max.block.ms": str(int(CALL_SECONDS * 1000)), "transaction.timeout.ms": str(timeout_ms)}
        self.producer = self.kafka.clients.producer.KafkaProducer(
            {**ours, **limits, "transactional.id": name}
        )
        self.consumer = self.kafka.clients.consumer.KafkaConsumer(
            {**ours, "group.id": name, "enable.auto.commit": "false", "isolation.level": "read_committed"}
        )
        self.call(self.producer.initTransactions)

    def call(self, make: Callable[[], T]) -> T:
        """Repeat the call until its outcome is known. Raises `Abortable` or `Fatal`."""
        while True:
            try:
                return make()
            except Py4JJavaError as raised:
                error = raised.java_exception
                if self._is_any(error, "TimeoutException"):
                    say("again", error)
                elif self._is_any(error, *ENDS) or not self._is_any(error, "ApiException", "KafkaException"):
                    raise Fatal(error.toString()) from None
                else:
                    raise Abortable(error.toString()) from None

    def _is_any(self, error: Any, *names: str) -> bool:
        """True if the Java error is an instance of one of these classes."""
        prefixes = {"KafkaException": ERRORS.removesuffix("errors.")}
        return any(is_instance_of(self.gateway, error, prefixes.get(each, ERRORS) + each) for each in names)

    def begin(self) -> None:
        self.call(self.producer.beginTransaction)

    def write(self, partition: int, value: bytes) -> None:
        record = self.kafka.clients.producer.ProducerRecord(self.target, partition, None, value)
        self.call(lambda: self.producer.send(record))

    def flush(self) -> None:
        self.call(self.producer.flush)

    def send_offsets(self, positions: Mapping[int, int]) -> None:
        place = self.kafka.clients.consumer.OffsetAndMetadata
        offsets = {self.keys[each]: place(offset) for each, offset in positions.items()}
        member = self.consumer.groupMetadata()
        self.call(lambda: self.producer.sendOffsetsToTransaction(offsets, member))

    def commit(self) -> None:
        self.call(self.producer.commitTransaction)

    def abort(self) -> None:
        with at_the_last():
            self.call(self.producer.abortTransaction)

    def close(self) -> None:
        at_once = self.gateway.jvm.java.time.Duration.ZERO
        self.producer.close(at_once)
        self.consumer.close()
