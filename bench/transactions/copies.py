"""One copy function per client for `bench.transactions`: consume, produce 100 records, send the group's offsets,
commit.

librdkafka speaks the protocol before KIP-890, and pauses for long after CONCURRENT_TRANSACTIONS. Our own client uses
transaction version 2 and first pauses for 20 ms, as Java's does. If a broker ends transactions slowly, both pause,
our client for a shorter time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import confluent_kafka

from odradek import Consumer, Producer

__all__ = ["COPIED", "COPIERS", "WAIT_SECONDS", "reader", "transactional"]

COPIED = 100
WAIT_SECONDS = 60.0


def transactional(bootstrap: str, name: str) -> confluent_kafka.Producer:
    """Make a librdkafka producer that can begin transactions."""
    made = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": 0,
            "socket.nagle.disable": True,
            "transactional.id": name,
        }
    )
    made.init_transactions(WAIT_SECONDS)
    return made


def reader(bootstrap: str, group: str, isolation: str) -> confluent_kafka.Consumer:
    """Make a librdkafka consumer that begins at the earliest offset and does not commit automatically."""
    return confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "enable.partition.eof": True,
        }
    )


def _librdkafka(bootstrap: str, source: str, sink: str, seconds: float) -> float:
    made, read = transactional(bootstrap, f"copy-{sink}"), reader(bootstrap, sink, "read_committed")
    read.subscribe([source])
    done, began, position, wait_until = 0, 0.0, 0, time.perf_counter() + WAIT_SECONDS
    while not began or time.perf_counter() - began < seconds:
        found = [each for each in read.consume(COPIED, 1.0) if each.error() is None]
        if not found:
            if position or time.perf_counter() > wait_until:
                raise RuntimeError(f"{source} cannot be read, or has too few records for {seconds:g} s")
            continue
        began = began or time.perf_counter()
        made.begin_transaction()
        for each in found:
            made.produce(sink, each.value())
        position += len(found)
        made.send_offsets_to_transaction(
            [confluent_kafka.TopicPartition(source, 0, position)],
            read.consumer_group_metadata(),
            WAIT_SECONDS,
        )
        made.commit_transaction(WAIT_SECONDS)
        done += 1
    took = time.perf_counter() - began
    read.close()
    return done / took


def _odradek(bootstrap: str, source: str, sink: str, seconds: float) -> float:
    with (
        Consumer(
            bootstrap_servers=bootstrap,
            group_id=sink,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level="read_committed",
            max_poll_records=COPIED,
        ) as read,
        Producer(bootstrap_servers=bootstrap, transactional_id=f"copy-{sink}", linger_ms=0) as made,
    ):
        made.init_transactions()
        read.subscribe([source])
        done, began, wait_until = 0, 0.0, time.perf_counter() + WAIT_SECONDS
        while not began or time.perf_counter() - began < seconds:
            found = read.poll(1.0)
            if not found:
                if began or time.perf_counter() > wait_until:
                    raise RuntimeError(f"{source} cannot be read, or has too few records for {seconds:g} s")
                continue
            began = began or time.perf_counter()
            with made.transaction():
                for each in found:
                    made.send(sink, each.value)
                made.send_offsets_to_transaction({(source, 0): found[-1].offset + 1}, read.group_metadata())
            done += 1
        return done / (time.perf_counter() - began)


COPIERS: Mapping[str, Callable[[str, str, str, float], float]] = {
    "librdkafka": _librdkafka,
    "odradek": _odradek,
}
"""Copy functions by the client's name: they get (bootstrap, source, sink, seconds) and return transactions per
second.
"""
