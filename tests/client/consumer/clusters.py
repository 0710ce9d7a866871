"""Helpers for tests of consumers against servers: a cluster that can be changed during a test, and loops that wait."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from odradek import Consumer
from odradek.client.admin import NewTopic
from odradek.client.consumer.consumer_types import ConsumerRecord, RebalanceListener
from odradek.client.shells.blocking import Client
from odradek.wire.topic_partition import TopicPartition
from sim.load.producing import ProduceConfig, Producing, RecordToSend
from tests.client.fresh_topics import wait_until_known

__all__ = ["PATIENCE_SECONDS", "SERVERS", "TIME", "Cluster", "Told", "keys", "poll_until", "read"]

TIME = 1_700_000_000_000
PATIENCE_SECONDS = 60.0
SERVERS = [
    pytest.param("node", marks=pytest.mark.xdist_group("client-node")),
    pytest.param("apache_kafka", marks=[pytest.mark.java, pytest.mark.xdist_group("apache-kafka")]),
]
"""The parameters of a fixture that gives each server in turn: our node, and Apache Kafka."""


class Cluster:
    """A server, on which tests create topics, produce records and open consumers."""

    def __init__(self, bootstrap: str, fresh_topic: Callable[[str], str]) -> None:
        self.bootstrap = bootstrap
        self.client = Client(bootstrap, timeout_ms=20_000)
        self.name = fresh_topic("consumer")
        self.opened: list[Consumer] = []

    def topic(self, partitions: int, suffix: str = "") -> str:
        """Create a new topic."""
        name = self.name + suffix
        (created,) = self.client.admin.create_topics([NewTopic(name, partitions)])
        assert created.error is None
        wait_until_known(self.client, name)
        return name

    def produce(self, topic: str, count: int, partitions: int, *, first: int = 0, **config: Any) -> None:
        """Produce records `first` to `first + count - 1` to the partitions in turn. Their timestamps are 1 ms apart."""
        wanted = [
            RecordToSend(topic, b"%d" % n, b"key", (), n % partitions, TIME + n)
            for n in range(first, first + count)
        ]
        producing = Producing(self.client.core, ProduceConfig(auto_create=False, **config))
        deliveries = self.client.run(producing.produce(wanted, timeout=20))
        assert [delivery.error for delivery in deliveries if delivery.error is not None] == []

    def consumer(self, **keys: Any) -> Consumer:
        """Open a consumer that is closed at the end of the test."""
        settings: dict[str, Any] = {"auto_offset_reset": "earliest", "fetch_max_wait_ms": 100}
        if keys.get("group_protocol") != "consumer":
            settings["heartbeat_interval_ms"] = 300
        found = Consumer(bootstrap_servers=self.bootstrap, **{**settings, **keys})
        self.opened.append(found)
        return found

    def close(self) -> None:
        for consumer in self.opened:
            consumer.close(5)
        self.client.close()


def read(consumer: Consumer, count: int) -> list[ConsumerRecord]:
    """Poll until at least `count` records have come, and return them."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    found: list[ConsumerRecord] = []
    while len(found) < count:
        found += consumer.poll(1)
        assert time.monotonic() < deadline, (len(found), consumer.statistics())
    return found


def poll_until(
    consumers: Iterable[Consumer], done: Callable[[], bool], keep: list[ConsumerRecord] | None = None
) -> None:
    """Poll all consumers in turn until `done` is true. Add the records to `keep`."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not done():
        for consumer in consumers:
            found = consumer.poll(0.05)
            if keep is not None:
                keep += found
        assert time.monotonic() < deadline, [consumer.statistics() for consumer in consumers]


def keys(topic: str, count: int) -> list[TopicPartition]:
    return [TopicPartition(topic, index) for index in range(count)]


class Told(RebalanceListener):
    """A rebalance listener that remembers its calls."""

    def __init__(self) -> None:
        self.events: list[tuple[str, list[TopicPartition]]] = []

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        self.events.append(("revoked", sorted(partitions)))

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        self.events.append(("assigned", sorted(partitions)))

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
        self.events.append(("lost", sorted(partitions)))
