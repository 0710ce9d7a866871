"""Clients with the defaults of their libraries, and how long each stands still: librdkafka's, and those of Java.

Idempotent producers have up to five requests in flight. In the end each acknowledged record must be there once.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar, Self

import confluent_kafka
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, TopicPartition

from bench.failover.silence import longest_gap

if TYPE_CHECKING:
    from bench.failover.bench import Bench

__all__ = ["POLL_SECONDS", "PRODUCE_PAUSE_SECONDS", "Doubled", "Librdkafka", "Watch"]

PRODUCE_PAUSE_SECONDS = 0.005
POLL_SECONDS = 0.1
READ_SECONDS_MAX = 60.0


class Doubled(Exception):
    """Raised if an acknowledged record is missing, or is there twice."""


class Watch(ABC):
    """Clients in threads of their own, which work until the end of the `with`."""

    parts: ClassVar[Mapping[str, str]]
    """What each of its clients does, by the name of its part."""

    def __init__(self, bench: Bench, victim: int) -> None:
        """Work at the place of `bench`, whose leader is `victim`."""
        self.bootstrap, self.place = bench.cluster.bootstrap, bench.place
        self.prefix = f"{type(self).__name__} ".encode()
        """How the value of each record of this kind of clients begins."""
        self.ends = threading.Event()
        self.times: dict[str, list[float]] = {part: [] for part in self.parts}
        """When each part has got something done, in monotonic seconds."""
        self.threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ends.set()
        for thread in self.threads:
            thread.join()

    def flows(self, count: int, since: float) -> bool:
        """Return whether each part has got `count` things done after `since`."""
        return all(sum(each > since for each in times[-count:]) >= count for times in self.times.values())

    def gaps(self, since: float) -> dict[str, float]:
        """Return the longest standstill of each part, in seconds."""
        return {part: longest_gap(times, since) for part, times in self.times.items()}

    @abstractmethod
    def check(self) -> None:
        """Check that each acknowledged record is there once. Raises `Doubled`."""

    def read_once(self, topic: str, partitions: Iterable[int], expected: Collection[bytes]) -> None:
        """Read committed records of these partitions. Raises `Doubled` unless each expected value is there, and none
        that begins with `prefix` is there twice.
        """
        found = Counter(
            each for each in _values(self.bootstrap, topic, partitions) if each.startswith(self.prefix)
        )
        missing = [each for each in expected if not found[each]]
        twice = [each for each, times in found.items() if times > 1]
        if missing or twice:
            raise Doubled(
                f"{topic}: {len(missing)} acknowledged records are missing, {len(twice)} are doubled"
            )


class Librdkafka(Watch):
    """A producer and a consumer on one partition. The consumer reads what anybody writes."""

    parts: ClassVar = {"produce": "librdkafka produces", "consume": "librdkafka consumes"}

    def __init__(self, bench: Bench, victim: int) -> None:
        super().__init__(bench, victim)
        self.threads = [threading.Thread(target=each) for each in (self._produce, self._consume)]
        self._delivered: list[bytes] = []

    def _produce(self) -> None:
        topic, partition = self.place
        settings = {"bootstrap.servers": self.bootstrap, "enable.idempotence": True, "log_level": 0}
        producer = confluent_kafka.Producer(settings)

        def delivered(error: object, message: confluent_kafka.Message) -> None:
            if error is None:
                self.times["produce"].append(time.monotonic())
                value = message.value()
                assert isinstance(value, bytes)
                self._delivered.append(value)

        number = 0
        while not self.ends.is_set():
            producer.produce(topic, self.prefix + b"%d" % number, partition=partition, on_delivery=delivered)
            number += 1
            producer.poll(PRODUCE_PAUSE_SECONDS)
        producer.flush(READ_SECONDS_MAX)

    def _consume(self) -> None:
        consumer = _reader(self.bootstrap)
        consumer.assign([TopicPartition(*self.place, OFFSET_END)])
        while not self.ends.is_set():
            message = consumer.poll(POLL_SECONDS)
            if message is not None and message.error() is None:
                self.times["consume"].append(time.monotonic())
        consumer.close()

    def check(self) -> None:
        self.read_once(self.place[0], [self.place[1]], self._delivered)


def _reader(bootstrap: str) -> confluent_kafka.Consumer:
    return confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "unused", "log_level": 0})


def _values(bootstrap: str, topic: str, partitions: Iterable[int]) -> Iterator[bytes]:
    consumer = _reader(bootstrap)
    until = time.monotonic() + READ_SECONDS_MAX
    for place in (TopicPartition(topic, each, OFFSET_BEGINNING) for each in partitions):
        _, end = consumer.get_watermark_offsets(place, timeout=READ_SECONDS_MAX)
        consumer.assign([place])
        while consumer.position([place])[0].offset < end:
            message = consumer.poll(POLL_SECONDS)
            if time.monotonic() > until:
                raise Doubled(f"{topic}-{place.partition} cannot be read up to offset {end}")
            value = None if message is None or message.error() is not None else message.value()
            if isinstance(value, bytes):
                yield value
    consumer.close()
