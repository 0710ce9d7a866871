"""A producer and a consumer of librdkafka, with its defaults, on one partition: how long each stands still.

The producer is idempotent, and has up to five requests in flight. In the end each of its records must be in the topic
once.
"""

from __future__ import annotations

import threading
import time
from collections import Counter

import confluent_kafka
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, TopicPartition

__all__ = ["Clients", "Doubled"]

PRODUCE_PAUSE_SECONDS = 0.005
POLL_SECONDS = 0.1
READ_SECONDS_MAX = 60.0
PREFIX = b"counted "


class Doubled(Exception):
    """Raised if an acknowledged record is missing, or is there twice."""


class Clients:
    """A producer and a consumer in threads of their own. The consumer reads what anybody writes."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._bootstrap, self._topic = bootstrap, topic
        self._ends = threading.Event()
        self.delivered_at: list[float] = []
        self.consumed_at: list[float] = []
        self._delivered: list[bytes] = []
        self._threads = [threading.Thread(target=each) for each in (self._produce, self._consume)]

    def __enter__(self) -> Clients:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        for thread in self._threads:
            thread.join()

    def flow(self, count: int, since: float) -> bool:
        """Return whether both clients have got `count` records after `since`."""
        return all(
            sum(each > since for each in times[-count:]) >= count
            for times in (self.delivered_at, self.consumed_at)
        )

    def _produce(self) -> None:
        settings = {"bootstrap.servers": self._bootstrap, "enable.idempotence": True, "log_level": 0}
        producer = confluent_kafka.Producer(settings)

        def delivered(error: object, message: confluent_kafka.Message) -> None:
            if error is None:
                self.delivered_at.append(time.monotonic())
                value = message.value()
                assert isinstance(value, bytes)
                self._delivered.append(value)

        number = 0
        while not self._ends.is_set():
            producer.produce(self._topic, PREFIX + b"%d" % number, partition=0, on_delivery=delivered)
            number += 1
            producer.poll(PRODUCE_PAUSE_SECONDS)
        producer.flush(READ_SECONDS_MAX)

    def _consume(self) -> None:
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": self._bootstrap, "group.id": "unused", "log_level": 0}
        )
        consumer.assign([TopicPartition(self._topic, 0, OFFSET_END)])
        while not self._ends.is_set():
            message = consumer.poll(POLL_SECONDS)
            if message is not None and message.error() is None:
                self.consumed_at.append(time.monotonic())
        consumer.close()

    def check(self) -> int:
        """Read the topic. Return the number of acknowledged records. Raises `Doubled`."""
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": self._bootstrap, "group.id": "unused", "log_level": 0}
        )
        place = TopicPartition(self._topic, 0, OFFSET_BEGINNING)
        _, end = consumer.get_watermark_offsets(place, timeout=READ_SECONDS_MAX)
        consumer.assign([place])
        found: Counter[bytes] = Counter()
        position, until = 0, time.monotonic() + READ_SECONDS_MAX
        while position < end:
            message = consumer.poll(POLL_SECONDS)
            if time.monotonic() > until:
                raise Doubled(f"{self._topic} cannot be read up to offset {end}, only to {position}")
            if message is None or message.error() is not None:
                continue
            offset, value = message.offset(), message.value()
            assert offset is not None
            position = offset + 1
            if isinstance(value, bytes) and value.startswith(PREFIX):
                found[value] += 1
        consumer.close()
        missing = [each for each in self._delivered if not found[each]]
        twice = [each for each, times in found.items() if times > 1]
        if missing or twice:
            raise Doubled(
                f"{self._topic}: {len(missing)} acknowledged records are missing, {len(twice)} are doubled"
            )
        return len(self._delivered)
