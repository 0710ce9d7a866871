"""The three client libraries behind one interface. Each is used as its documentation shows, and none is patched.

A driver opens its clients for each call and closes them again. So each test also covers the beginning (ApiVersions,
Metadata) and the end of a connection.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol

import aiokafka
import aiokafka.admin
import attrs
import confluent_kafka
import confluent_kafka.admin
import kafka
import kafka.admin
import kafka.partitioner.default

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
TIMEOUT_SECONDS = 15.0


@attrs.frozen
class Sent:
    """A record to produce. Without a partition, the client's own partitioner chooses one."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    partition: int | None = 0
    timestamp_ms: int | None = None


@attrs.frozen
class Received:
    """A record as a library's consumer returns it."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]


class Driver(Protocol):
    """The operations that every library offers."""

    name: str

    def create_topic(self, topic: str, partitions: int) -> None: ...

    def delete_topic(self, topic: str) -> None: ...

    def topics(self) -> dict[str, int]:
        """Return the number of partitions by topic name."""

    def produce(
        self, topic: str, records: Sequence[Sent], *, codec: str, idempotent: bool, acks: int
    ) -> list[tuple[int, int]]:
        """Produce records in order. Return partition and offset of each. With acks=0 the offset is -1."""

    def consume(self, topic: str, starts: Mapping[int, int], count: int) -> list[Received]:
        """Assign partitions at start offsets and read `count` records."""

    def watermarks(self, topic: str, partition: int) -> tuple[int, int]:
        """Return the first and the next offset of a partition."""

    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        """Return the first offset at or after a time, or None if there is none."""


class ConfluentDriver:
    """confluent-kafka: librdkafka, in C."""

    name = "confluent-kafka"

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        # The client is an attribute, because its futures fail if it is collected before they are done.
        self.admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})

    def _consumer(self) -> confluent_kafka.Consumer:
        return confluent_kafka.Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "assigned-only",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "check.crcs": True,
            }
        )

    def create_topic(self, topic: str, partitions: int) -> None:
        new = confluent_kafka.admin.NewTopic(topic, num_partitions=partitions, replication_factor=1)
        self.admin.create_topics([new])[topic].result(TIMEOUT_SECONDS)

    def delete_topic(self, topic: str) -> None:
        self.admin.delete_topics([topic])[topic].result(TIMEOUT_SECONDS)

    def topics(self) -> dict[str, int]:
        listed = self.admin.list_topics(timeout=TIMEOUT_SECONDS).topics
        return {name: len(topic.partitions) for name, topic in listed.items()}

    def produce(
        self, topic: str, records: Sequence[Sent], *, codec: str, idempotent: bool, acks: int
    ) -> list[tuple[int, int]]:
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "compression.type": codec,
                "enable.idempotence": idempotent,
                "acks": acks,
                "partitioner": "murmur2_random",
            }
        )
        places: dict[int, tuple[int, int]] = {}
        for index, record in enumerate(records):

            def delivered(error: Any, message: Any, index: int = index) -> None:
                assert error is None, error
                offset = message.offset()
                places[index] = (message.partition(), -1 if offset is None or offset < 0 else offset)

            producer.produce(
                topic,
                record.value,
                record.key,
                partition=-1 if record.partition is None else record.partition,
                timestamp=record.timestamp_ms or 0,
                headers=list(record.headers),
                on_delivery=delivered,
            )
        assert producer.flush(TIMEOUT_SECONDS) == 0
        return [places[index] for index in range(len(records))]

    def consume(self, topic: str, starts: Mapping[int, int], count: int) -> list[Received]:
        consumer = self._consumer()
        try:
            consumer.assign(
                [confluent_kafka.TopicPartition(topic, number, offset) for number, offset in starts.items()]
            )
            received: list[Received] = []
            deadline = time.monotonic() + TIMEOUT_SECONDS
            while len(received) < count and time.monotonic() < deadline:
                for message in consumer.consume(count - len(received), timeout=1.0):
                    assert message.error() is None, message.error()
                    received.append(
                        Received(
                            message.partition(),
                            message.offset(),
                            message.timestamp()[1],
                            message.key(),
                            message.value(),
                            tuple(message.headers() or ()),
                        )
                    )
            return received
        finally:
            consumer.close()

    def watermarks(self, topic: str, partition: int) -> tuple[int, int]:
        consumer = self._consumer()
        try:
            place = confluent_kafka.TopicPartition(topic, partition)
            low, high = consumer.get_watermark_offsets(place, timeout=TIMEOUT_SECONDS)
            return low, high
        finally:
            consumer.close()

    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        consumer = self._consumer()
        try:
            asked = confluent_kafka.TopicPartition(topic, partition, timestamp_ms)
            [answer] = consumer.offsets_for_times([asked], timeout=TIMEOUT_SECONDS)
            assert answer.error is None, answer.error
            return None if answer.offset == confluent_kafka.OFFSET_END else answer.offset
        finally:
            consumer.close()


class KafkaPythonDriver:
    """kafka-python: pure Python, blocking."""

    name = "kafka-python"

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def _consumer(self) -> kafka.KafkaConsumer:
        return kafka.KafkaConsumer(
            bootstrap_servers=self.bootstrap, group_id=None, auto_offset_reset="none", check_crcs=True
        )

    def create_topic(self, topic: str, partitions: int) -> None:
        admin = kafka.admin.KafkaAdminClient(bootstrap_servers=self.bootstrap)
        try:
            admin.create_topics({topic: {"num_partitions": partitions, "replication_factor": 1}})
        finally:
            admin.close()

    def delete_topic(self, topic: str) -> None:
        admin = kafka.admin.KafkaAdminClient(bootstrap_servers=self.bootstrap)
        try:
            admin.delete_topics([topic])
        finally:
            admin.close()

    def topics(self) -> dict[str, int]:
        admin = kafka.admin.KafkaAdminClient(bootstrap_servers=self.bootstrap)
        try:
            return {topic["name"]: len(topic["partitions"]) for topic in admin.describe_topics()}
        finally:
            admin.close()

    def produce(
        self, topic: str, records: Sequence[Sent], *, codec: str, idempotent: bool, acks: int
    ) -> list[tuple[int, int]]:
        producer = kafka.KafkaProducer(
            bootstrap_servers=self.bootstrap,
            compression_type=None if codec == "none" else codec,
            enable_idempotence=idempotent,
            acks="all" if acks == -1 else acks,
        )
        try:
            futures = [
                producer.send(
                    topic,
                    record.value,
                    record.key,
                    headers=list(record.headers),
                    partition=record.partition,
                    timestamp_ms=record.timestamp_ms,
                )
                for record in records
            ]
            producer.flush(TIMEOUT_SECONDS)
            answers = [future.get(TIMEOUT_SECONDS) for future in futures]
            return [(answer.partition, answer.offset if acks else -1) for answer in answers]
        finally:
            producer.close(TIMEOUT_SECONDS)

    def consume(self, topic: str, starts: Mapping[int, int], count: int) -> list[Received]:
        consumer = self._consumer()
        try:
            consumer.assign([kafka.TopicPartition(topic, number) for number in starts])
            for number, offset in starts.items():
                consumer.seek(kafka.TopicPartition(topic, number), offset)
            received: list[Received] = []
            deadline = time.monotonic() + TIMEOUT_SECONDS
            while len(received) < count and time.monotonic() < deadline:
                for messages in consumer.poll(timeout_ms=1000).values():
                    received += _received(messages)
            return received
        finally:
            consumer.close(autocommit=False)

    def watermarks(self, topic: str, partition: int) -> tuple[int, int]:
        consumer = self._consumer()
        try:
            place = kafka.TopicPartition(topic, partition)
            return consumer.beginning_offsets([place])[place], consumer.end_offsets([place])[place]
        finally:
            consumer.close(autocommit=False)

    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        consumer = self._consumer()
        try:
            place = kafka.TopicPartition(topic, partition)
            answer = consumer.offsets_for_times({place: timestamp_ms})[place]
            return None if answer is None else int(answer.offset)
        finally:
            consumer.close(autocommit=False)


class AioKafkaDriver:
    """aiokafka: asyncio."""

    name = "aiokafka"

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    @asynccontextmanager
    async def _admin(self) -> AsyncIterator[aiokafka.admin.AIOKafkaAdminClient]:
        admin = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
        await admin.start()
        try:
            yield admin
        finally:
            await admin.close()

    def create_topic(self, topic: str, partitions: int) -> None:
        async def run() -> None:
            async with self._admin() as admin:
                new = aiokafka.admin.NewTopic(topic, num_partitions=partitions, replication_factor=1)
                response = await admin.create_topics([new])
                assert response.topic_errors[0][1] == 0, response

        asyncio.run(run())

    def delete_topic(self, topic: str) -> None:
        async def run() -> None:
            async with self._admin() as admin:
                response = await admin.delete_topics([topic])
                assert response.topic_error_codes[0][1] == 0, response

        asyncio.run(run())

    def topics(self) -> dict[str, int]:
        async def run() -> dict[str, int]:
            async with self._admin() as admin:
                described = await admin.describe_topics(await admin.list_topics())
                return {topic["topic"]: len(topic["partitions"]) for topic in described}

        return asyncio.run(run())

    def produce(
        self, topic: str, records: Sequence[Sent], *, codec: str, idempotent: bool, acks: int
    ) -> list[tuple[int, int]]:
        async def run() -> list[tuple[int, int]]:
            async with aiokafka.AIOKafkaProducer(
                bootstrap_servers=self.bootstrap,
                compression_type=None if codec == "none" else codec,
                enable_idempotence=idempotent,
                acks="all" if acks == -1 else acks,
            ) as producer:
                futures = [
                    await producer.send(
                        topic,
                        record.value,
                        record.key,
                        partition=record.partition,
                        timestamp_ms=record.timestamp_ms,
                        headers=list(record.headers),
                    )
                    for record in records
                ]
                answers = await asyncio.wait_for(asyncio.gather(*futures), TIMEOUT_SECONDS)
            if acks == 0:
                return [(record.partition or 0, -1) for record in records]
            return [(answer.partition, answer.offset) for answer in answers]

        return asyncio.run(run())

    def consume(self, topic: str, starts: Mapping[int, int], count: int) -> list[Received]:
        async def run() -> list[Received]:
            async with aiokafka.AIOKafkaConsumer(
                bootstrap_servers=self.bootstrap, group_id=None, auto_offset_reset="none", check_crcs=True
            ) as consumer:
                consumer.assign([aiokafka.TopicPartition(topic, number) for number in starts])
                for number, offset in starts.items():
                    consumer.seek(aiokafka.TopicPartition(topic, number), offset)
                received: list[Received] = []
                deadline = time.monotonic() + TIMEOUT_SECONDS
                while len(received) < count and time.monotonic() < deadline:
                    for messages in (await consumer.getmany(timeout_ms=1000)).values():
                        received += _received(messages)
                return received

        return asyncio.run(run())

    def watermarks(self, topic: str, partition: int) -> tuple[int, int]:
        async def run() -> tuple[int, int]:
            place = aiokafka.TopicPartition(topic, partition)
            async with aiokafka.AIOKafkaConsumer(bootstrap_servers=self.bootstrap) as consumer:
                low = await consumer.beginning_offsets([place])
                high = await consumer.end_offsets([place])
                return low[place], high[place]

        return asyncio.run(run())

    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        async def run() -> int | None:
            place = aiokafka.TopicPartition(topic, partition)
            async with aiokafka.AIOKafkaConsumer(bootstrap_servers=self.bootstrap) as consumer:
                answer = (await consumer.offsets_for_times({place: timestamp_ms}))[place]
                return None if answer is None else int(answer.offset)

        return asyncio.run(run())


def _received(messages: Iterable[Any]) -> list[Received]:
    """Convert the record class that kafka-python and aiokafka share."""
    return [
        Received(
            message.partition,
            message.offset,
            message.timestamp,
            message.key,
            message.value,
            tuple(message.headers),
        )
        for message in messages
    ]


DRIVERS: tuple[type[ConfluentDriver | KafkaPythonDriver | AioKafkaDriver], ...] = (
    ConfluentDriver,
    KafkaPythonDriver,
    AioKafkaDriver,
)
