"""Clients of coordinators: a group of ten consumers, and a producer with a transaction open nearly all the time."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from typing import TYPE_CHECKING, ClassVar

import confluent_kafka
from confluent_kafka import ElectionType, KafkaException, TopicPartition

from bench.failover.silence import longest_gap
from bench.failover.subjects import IDS_TOPIC, OFFSETS_TOPIC, SHARDS, key_of_shard
from bench.failover.watches import POLL_SECONDS, PRODUCE_PAUSE_SECONDS, Watch

if TYPE_CHECKING:
    from bench.failover.bench import Bench

__all__ = ["Group", "Transactions"]

MEMBERS = 10
FLUSH_SECONDS_MAX = 60.0
IN_TRANSACTION = 3
ADMIN_SECONDS = 60.0
PAUSE_SECONDS = 0.1


def _led_shard(bench: Bench, topic: str, leader: int) -> int:
    """Return a partition of a coordinators' topic that this broker leads. Let preferred leaders lead, if need be."""
    bench.create_coordinators()
    until = time.monotonic() + ADMIN_SECONDS
    while time.monotonic() < until:
        led = [index for index, each in bench.leaders(topic).items() if each == leader]
        if led:
            return led[0]
        places = [TopicPartition(topic, index) for index in range(SHARDS)]
        bench.admin().elect_leaders(ElectionType.PREFERRED, places).result(ADMIN_SECONDS)
        time.sleep(PAUSE_SECONDS)
    raise TimeoutError(f"broker {leader} leads no partition of {topic}")


class Group(Watch):
    """Ten consumers of a classic group, coordinated by the victim, and an idempotent producer for their ten partitions.
    The gap is that of the partition from which nothing is read for the longest time.
    """

    parts: ClassVar = {"group": "a group of 10 consumes"}

    def __init__(self, bench: Bench, victim: int) -> None:
        super().__init__(bench, victim)
        shard = _led_shard(bench, OFFSETS_TOPIC, victim)
        self._topic = bench.new_topic(MEMBERS, len(bench.addresses))
        self._group = key_of_shard(f"group-{bench.serial}", shard)
        self._delivered: list[bytes] = []
        self._consumed: dict[int, list[float]] = defaultdict(list)
        self.threads = [threading.Thread(target=self._consume) for _ in range(MEMBERS)]
        self.threads.append(threading.Thread(target=self._produce))

    def flows(self, count: int, since: float) -> bool:
        times = list(self._consumed.values())
        return len(times) == MEMBERS and all(
            sum(at > since for at in each[-count:]) >= count for each in times
        )

    def gaps(self, since: float) -> dict[str, float]:
        return {"group": max(longest_gap(each, since) for each in self._consumed.values())}

    def _produce(self) -> None:
        settings = {"bootstrap.servers": self.bootstrap, "enable.idempotence": True, "log_level": 0}
        producer = confluent_kafka.Producer(settings)

        def delivered(error: object, message: confluent_kafka.Message) -> None:
            value = message.value()
            if error is None and isinstance(value, bytes):
                self._delivered.append(value)

        number = 0
        while not self.ends.is_set():
            for partition in range(MEMBERS):
                producer.produce(self._topic, self.prefix + b"%d" % number, partition=partition, on_delivery=delivered)  # fmt: skip
                number += 1
            producer.poll(2 * PRODUCE_PAUSE_SECONDS)
        producer.flush(FLUSH_SECONDS_MAX)

    def _consume(self) -> None:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": self._group,
                "auto.offset.reset": "earliest",
                "log_level": 0,
            }
        )
        consumer.subscribe([self._topic])
        while not self.ends.is_set():
            message = consumer.poll(POLL_SECONDS)
            partition = None if message is None or message.error() is not None else message.partition()
            if partition is not None:
                self._consumed[partition].append(time.monotonic())
        consumer.close()

    def check(self) -> None:
        self.read_once(self._topic, range(MEMBERS), self._delivered)


class Transactions(Watch):
    """A transactional producer, coordinated by the victim, which commits one small transaction after the other."""

    parts: ClassVar = {"transactions": "transactions commit"}

    def __init__(self, bench: Bench, victim: int) -> None:
        super().__init__(bench, victim)
        bench.serial += 1
        self._id = key_of_shard(f"writer-{bench.serial}", _led_shard(bench, IDS_TOPIC, victim))
        self._committed: list[bytes] = []
        self.threads = [threading.Thread(target=self._write)]
        self.aborted = 0

    def _write(self) -> None:
        settings = {"bootstrap.servers": self.bootstrap, "transactional.id": self._id, "log_level": 0}
        producer = confluent_kafka.Producer(settings)
        producer.init_transactions()
        topic, partition = self.place
        number = 0
        while not self.ends.is_set():
            values = [self.prefix + b"%d" % each for each in range(number, number + IN_TRANSACTION)]
            number += IN_TRANSACTION
            try:
                producer.begin_transaction()
                for value in values:
                    producer.produce(topic, value, partition=partition)
                producer.commit_transaction()
            except KafkaException as failed:
                if not failed.args[0].txn_requires_abort():
                    raise
                producer.abort_transaction()
                self.aborted += 1
                continue
            self.times["transactions"].append(time.monotonic())
            self._committed += values

    def check(self) -> None:
        self.read_once(self.place[0], [self.place[1]], self._committed)
