"""Clients outside of the hosts during a test: they write without pause and account for every record.

Producers (confluent-kafka, acks=all, idempotent) write numbered records at a steady rate, and a group of consumers
reads them meanwhile. At the end a separate reader reads every partition from its beginning. Each acknowledged record
must be at its acknowledged offset, and no record may be there twice.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from typing import Any

import attrs
import confluent_kafka
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

TOPIC = "orders"
_PARTITIONS = 12
DELIVERY_SECONDS = 180
_ANY_PARTITION = -1
"""The partition number by which librdkafka lets the producer choose."""
_QUIET = {"log_level": 2, "log.connection.close": False}


class RecordsLost(AssertionError):
    """The records in the topic differ from the acknowledged records."""


@attrs.define
class Load:
    """Producers and consumers in threads of this process, from `start` to `finish`."""

    bootstrap: str
    replicas: int = 3
    keys: dict[str, Any] = attrs.field(factory=dict)
    """The security keys in the clients' configurations."""
    producers: int = 2
    records_per_second: int = 100
    """The rate of all producers together."""
    delivery_seconds: int = DELIVERY_SECONDS
    """How long a producer tries to deliver a record."""
    acknowledged: dict[tuple[int, int], str] = attrs.field(factory=dict)
    """The value of each acknowledged record, by partition and offset."""
    seen: set[str] = attrs.field(factory=set)
    latencies: list[tuple[float, float]] = attrs.field(factory=list)
    """For each acknowledged record: the moment of its call, and the seconds until the acknowledgement."""
    errors: dict[str, int] = attrs.field(factory=lambda: defaultdict(int))
    attempted: int = 0
    _stop: threading.Event = attrs.field(factory=threading.Event)
    _stop_reading: threading.Event = attrs.field(factory=threading.Event)
    _threads: list[threading.Thread] = attrs.field(factory=list)
    _readers: list[threading.Thread] = attrs.field(factory=list)
    _lock: threading.Lock = attrs.field(factory=threading.Lock)

    def start(self) -> None:
        """Create the topic, and start producers and consumers."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        made = admin.create_topics(
            [NewTopic(TOPIC, num_partitions=_PARTITIONS, replication_factor=self.replicas)]
        )
        made[TOPIC].result(DELIVERY_SECONDS)
        self._set_to_work()

    def _set_to_work(self) -> None:
        first = len(self._threads)
        threads = [
            threading.Thread(target=self._write, args=(first + number,), daemon=True)
            for number in range(self.producers)
        ]
        self._threads += threads
        self._readers.append(threading.Thread(target=self._read_along, daemon=True))
        for thread in (*threads, self._readers[-1]):
            thread.start()

    def move(self, bootstrap: str, keys: dict[str, Any]) -> None:
        """Stop all clients, and start others with this bootstrap address and these security keys."""
        self._stop.set()
        self._stop_reading.set()
        for thread in (*self._threads, *self._readers):
            thread.join()
        self.bootstrap, self.keys = bootstrap, keys
        self._stop.clear()
        self._stop_reading.clear()
        self._set_to_work()

    def _write(self, number: int) -> None:
        producer = confluent_kafka.Producer(
            {
                **_QUIET,
                **self.keys,
                "bootstrap.servers": self.bootstrap,
                "client.id": f"writer-{number}",
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 5,
                "delivery.timeout.ms": self.delivery_seconds * 1000,
                "reconnect.backoff.max.ms": 1000,
                "topic.metadata.refresh.interval.ms": 10_000,
            }
        )
        pause_seconds = self.producers / self.records_per_second
        begun = time.monotonic()
        sequence = 0
        while not self._stop.is_set():
            self._send(producer, f"{number}-{sequence}")
            sequence += 1
            producer.poll(0)
            while (ahead := begun + sequence * pause_seconds - time.monotonic()) > 0:
                producer.poll(min(ahead, 0.05))
        left = producer.flush(self.delivery_seconds)
        if left:
            self._fail(f"{left} records of writer {number} without an answer")

    def _send(self, producer: Any, value: str) -> None:
        sent = time.monotonic()

        def delivered(error: Any, message: Any) -> None:
            now = time.monotonic()
            with self._lock:
                if error is not None:
                    self.errors[str(error)] += 1
                    return
                self.acknowledged[message.partition(), message.offset()] = value
                self.latencies.append((sent, now - sent))

        self.attempted += 1
        producer.produce(TOPIC, value.encode(), partition=self.place(), on_delivery=delivered)

    def place(self) -> int:
        """Choose the partition of the next record; by default the producer does."""
        return _ANY_PARTITION

    def _read_along(self) -> None:
        consumer = confluent_kafka.Consumer(
            {
                **_QUIET,
                **self.keys,
                "bootstrap.servers": self.bootstrap,
                "group.id": "along",
                "auto.offset.reset": "earliest",
                "reconnect.backoff.max.ms": 1000,
            }
        )
        consumer.subscribe([TOPIC])
        while not self._stop_reading.is_set():
            for message in consumer.consume(500, 0.2):
                if message.error() is None:
                    self.seen.add((message.value() or b"").decode())
        consumer.close()

    def _fail(self, text: str) -> None:
        with self._lock:
            self.errors[text] += 1

    def acknowledged_since(self, moment: float, seconds: float = 180.0) -> bool:
        """True if a record that is sent after `moment` is acknowledged within `seconds` from now."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            with self._lock:
                if self.latencies and any(sent > moment for sent, _ in self.latencies[-50:]):
                    return True
            time.sleep(0.05)
        return False

    def p99_ms(self, begin: float, end: float) -> float | None:
        """Return the latency that 99 of 100 records did not exceed, of all records sent between two moments."""
        with self._lock:
            found = sorted(latency for sent, latency in self.latencies if begin <= sent < end)
        return round(found[int(len(found) * 0.99)] * 1000, 1) if found else None

    def worst_ms(self, begin: float, end: float) -> float | None:
        """Return the longest latency of the records sent between two moments."""
        with self._lock:
            found = [latency for sent, latency in self.latencies if begin <= sent < end]
        return round(max(found) * 1000, 1) if found else None

    def finish(self) -> str:
        """Stop writing, read everything, and return a summary.

        Raises `RecordsLost` if a record is lost, changed, duplicated or not seen by the group, or if a client had an
        error.
        """
        self._stop.set()
        for thread in self._threads:
            thread.join()
        there = self._read_all()
        lost = [value for place, value in self.acknowledged.items() if there.get(place) != value]
        values = list(there.values())
        twice = len(values) - len(set(values))
        wanted = set(self.acknowledged.values())
        deadline = time.monotonic() + DELIVERY_SECONDS
        while not wanted <= self.seen and time.monotonic() < deadline:
            time.sleep(0.1)
        self._stop_reading.set()
        for thread in self._readers:
            thread.join()
        unseen = len(wanted - self.seen)
        line = (
            f"{self.attempted} records sent, {len(self.acknowledged)} acknowledged, {len(lost)} lost, {twice} twice, "
            f"{unseen} not seen by the group, errors: {dict(self.errors) or 'none'}"
        )
        if lost or twice or unseen or self.errors or not self.acknowledged:
            raise RecordsLost(f"{line}; lost, for example: {lost[:5]}")
        return line

    def _read_all(self) -> dict[tuple[int, int], str]:
        """Return the values of all records in the topic, by partition and offset."""
        consumer = confluent_kafka.Consumer(
            {
                **_QUIET,
                **self.keys,
                "bootstrap.servers": self.bootstrap,
                "group.id": "judge",
                "enable.auto.commit": False,
            }
        )
        there: dict[tuple[int, int], str] = {}
        ends = {}
        parts = [confluent_kafka.TopicPartition(TOPIC, index, 0) for index in range(_PARTITIONS)]
        for part in parts:
            ends[part.partition] = consumer.get_watermark_offsets(part, timeout=DELIVERY_SECONDS)[1]
        consumer.assign(parts)
        reached = dict.fromkeys(ends, 0)
        deadline = time.monotonic() + DELIVERY_SECONDS
        while any(reached[partition] < end for partition, end in ends.items()):
            if time.monotonic() > deadline:
                raise RecordsLost(f"read to {reached}, the partitions end at {ends}")
            for message in consumer.consume(1000, 0.2):
                if message.error() is None:
                    place = (message.partition() or 0, message.offset() or 0)
                    there[place] = (message.value() or b"").decode()
            for part in consumer.position(parts):
                reached[part.partition] = max(reached[part.partition], part.offset)
        consumer.close()
        return there
