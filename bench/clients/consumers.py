"""One function for each Python client that reads a topic, for `bench.clients`.

A pass reads the topic's `PARTITIONS` from the first record to the last, repeatedly until the time is over. It
accesses the value of every record. The time until the first record is not measured.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from odradek import Consumer

__all__ = ["CONSUMERS", "PARTITIONS", "Reading"]

PARTITIONS = 4

STALL_SECONDS = 30.0
WAIT_MS = 10
"""The value of fetch.max.wait.ms. It must be short, since at the end of the log a seek waits until the present long
poll has ended.
"""
POLL_RECORDS = 500
"""max.poll.records, with the default of Java's client and of most other clients."""


class Reading(NamedTuple):
    """The number of records that a pass has read, with its duration and the client's CPU time."""

    records: int
    seconds: float
    cpu_seconds: float


class _Watch:
    """Counts records and time from the first record on."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._started = 0.0
        self._cpu = 0.0
        self.count = 0

    def first_came(self) -> None:
        self._started, self._cpu = time.perf_counter(), time.process_time()

    @property
    def is_over(self) -> bool:
        return time.perf_counter() - self._started >= self._seconds

    def reading(self) -> Reading:
        return Reading(self.count, time.perf_counter() - self._started, time.process_time() - self._cpu)


def _read(records: int, seconds: float, rewind: Callable[[], object], take: Callable[[], int]) -> Reading:
    """Read all records repeatedly. `rewind` seeks to the start; `take` polls once and returns the number of records."""
    assert take()
    watch = _Watch(seconds)
    watch.first_came()
    while not watch.is_over:
        rewind()
        left = records
        while left:
            found = take()
            assert found, "no record came"
            left -= found
        watch.count += records
    return watch.reading()


def read_odradek(bootstrap: str, topic: str, records: int, seconds: float) -> Reading:
    """Read with our consumer, accessing each record."""

    def take(consumer: Consumer) -> int:
        found = consumer.poll(STALL_SECONDS)
        for record in found:
            assert record.value is not None
        return len(found)

    return _read_odradek(bootstrap, topic, records, seconds, take)


def read_odradek_batches(bootstrap: str, topic: str, records: int, seconds: float) -> Reading:
    """Read with our consumer as whole batches that are not parsed, as Arrow and Spark do."""

    def take(consumer: Consumer) -> int:
        return sum(batch.record_count for batch in consumer.poll_batches(STALL_SECONDS))

    return _read_odradek(bootstrap, topic, records, seconds, take)


def _read_odradek(
    bootstrap: str, topic: str, records: int, seconds: float, take: Callable[[Consumer], int]
) -> Reading:
    from odradek import Consumer

    with Consumer(
        bootstrap_servers=bootstrap, auto_offset_reset="earliest", fetch_max_wait_ms=WAIT_MS
    ) as consumer:
        keys = [(topic, index) for index in range(PARTITIONS)]
        consumer.assign(keys)

        def rewind() -> None:
            for key in keys:
                consumer.seek(key, 0)

        return _read(records, seconds, rewind, lambda: take(consumer))


def read_kafka_python(bootstrap: str, topic: str, records: int, seconds: float) -> Reading:
    """Read with kafka-python."""
    import kafka

    consumer = kafka.KafkaConsumer(
        bootstrap_servers=bootstrap,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        max_poll_records=POLL_RECORDS,
        fetch_max_wait_ms=WAIT_MS,
    )
    keys = [kafka.TopicPartition(topic, index) for index in range(PARTITIONS)]
    consumer.assign(keys)

    def rewind() -> None:
        for key in keys:
            consumer.seek(key, 0)

    def take() -> int:
        count = 0
        for some in consumer.poll(timeout_ms=int(STALL_SECONDS * 1000)).values():
            for record in some:
                assert record.value is not None
            count += len(some)
        return count

    reading = _read(records, seconds, rewind, take)
    consumer.close()
    return reading


def read_aiokafka(bootstrap: str, topic: str, records: int, seconds: float) -> Reading:
    """Read with aiokafka, which parses records in C."""

    async def run() -> Reading:
        import aiokafka

        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            fetch_max_wait_ms=WAIT_MS,
        )
        await consumer.start()
        keys = [aiokafka.TopicPartition(topic, index) for index in range(PARTITIONS)]
        consumer.assign(keys)
        milliseconds = int(STALL_SECONDS * 1000)
        assert await consumer.getmany(timeout_ms=milliseconds, max_records=POLL_RECORDS)
        watch = _Watch(seconds)
        watch.first_came()
        while not watch.is_over:
            for key in keys:
                consumer.seek(key, 0)
            left = records
            while left:
                found = await consumer.getmany(timeout_ms=milliseconds, max_records=POLL_RECORDS)
                assert found, "no record came"
                for some in found.values():
                    for record in some:
                        assert record.value is not None
                    left -= len(some)
            watch.count += records
        reading = watch.reading()
        await consumer.stop()
        return reading

    return asyncio.run(run())


def read_confluent(bootstrap: str, topic: str, records: int, seconds: float) -> Reading:
    """Read with confluent-kafka."""
    from confluent_kafka import Consumer, TopicPartition

    consumer: Any = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": WAIT_MS,
        }
    )

    left = records

    def rewind() -> None:
        nonlocal left
        left = records
        consumer.assign([TopicPartition(topic, index, 0) for index in range(PARTITIONS)])

    def take() -> int:
        nonlocal left
        # Without this limit, the client would wait for the full number of records.
        found = consumer.consume(min(POLL_RECORDS, left), STALL_SECONDS)
        for record in found:
            assert record.value() is not None
        left -= len(found)
        return len(found)

    rewind()
    reading = _read(records, seconds, rewind, take)
    consumer.close()
    return reading


CONSUMERS: dict[str, Callable[[str, str, int, float], Reading]] = {
    "odradek": read_odradek,
    "odradek-batches": read_odradek_batches,
    "kafka-python": read_kafka_python,
    "aiokafka": read_aiokafka,
    "confluent-kafka": read_confluent,
}
