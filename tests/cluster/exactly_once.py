"""Helpers for tests of exactly-once. They start three nodes, wait until all replicas are in sync, and read topics to
the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from jepsen_tests.network import Loopback
from jepsen_tests.real_cluster import FASTER, Cluster
from jepsen_tests.systems import Odradek
from odradek import Client, Consumer, KafkaError
from odradek.client.admin import NewTopic
from odradek.client.errors import ClientError
from tests.cluster.copiers.api import PARTITIONS

PATIENCE_SECONDS = 90.0
SOURCE, TARGET = "numbers", "copies"
TOPICS = (SOURCE, TARGET, "__consumer_offsets", "__transaction_state")


@contextmanager
def three_nodes(directory: Path, **settings: str) -> Iterator[Cluster]:
    """Run three nodes with the source and target topics. In the keys of `settings`, `_` stands for a dot."""
    more = {key.replace("_", "."): value for key, value in settings.items()}
    found = Cluster(Odradek(), Loopback(), directory / "nodes", {**FASTER, **more})
    found.prepare()
    try:
        found.start_all()
        with Client(found.bootstrap, timeout_ms=20_000) as client:
            topics = [NewTopic(name, PARTITIONS, 3) for name in (SOURCE, TARGET)]
            for created in client.admin.create_topics(topics):
                assert created.error is None
        yield found
        assert not found.unexpected_ends()
    finally:
        found.close()


def until(what: str, is_so: Callable[[], bool], note: Callable[[], str]) -> None:
    """Poll until `is_so` returns true. Raises `AssertionError` after `PATIENCE_SECONDS`."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    last: object = None
    while time.monotonic() < deadline:
        try:
            if is_so():
                return
        except (KafkaError, ClientError) as error:
            last = error
        time.sleep(0.05)
    raise AssertionError(f"gave up waiting: {what}; the last error was {last}\n{note()}")


def is_in_sync(client: Client) -> bool:
    """True if every replica of every partition is in sync."""
    found = client.admin.describe_topics(TOPICS)
    return all(
        each.partitions and all(len(one.isr) == 3 for one in each.partitions.values()) for each in found
    )


def leads_nothing(client: Client, number: int) -> bool:
    """True if other nodes lead all partitions."""
    found = client.admin.describe_topics(TOPICS)
    return all(
        each.partitions and all(one.leader not in (number, -1) for one in each.partitions.values())
        for each in found
    )


def read(bootstrap: str, isolation_level: str) -> dict[int, list[bytes]]:
    """Return the values of each partition up to its end, in order."""
    found: dict[int, list[bytes]] = {partition: [] for partition in range(PARTITIONS)}
    keys = [(TARGET, partition) for partition in found]
    with Consumer(bootstrap_servers=bootstrap, isolation_level=isolation_level) as consumer:
        consumer.assign(keys)
        consumer.seek_to_beginning(*keys)
        ends = consumer.end_offsets(keys)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while any(consumer.position(key) < end for key, end in ends.items()):
            for record in consumer.poll(1.0):
                found[record.partition].append(record.value)
            assert time.monotonic() < deadline, consumer.statistics()
    return found


def committed(bootstrap: str, group: str) -> int:
    """Return the number of source records below a group's committed offsets.

    Pending offsets of open transactions do not count.
    """
    with Consumer(bootstrap_servers=bootstrap, group_id=group, isolation_level="read_committed") as consumer:
        found = consumer.committed([(SOURCE, partition) for partition in range(PARTITIONS)])
        return sum(place.offset for place in found.values() if place is not None)


def ends(bootstrap: str, isolation_level: str) -> Mapping[tuple[str, int], int]:
    """Return the end of each partition: the last stable offset for read_committed, else the high watermark."""
    with Client(bootstrap, timeout_ms=5_000) as client:
        keys = [
            (topic.name, partition)
            for topic in client.admin.describe_topics(TOPICS)
            for partition in topic.partitions
        ]
    with Consumer(bootstrap_servers=bootstrap, isolation_level=isolation_level) as consumer:
        return dict(consumer.end_offsets(keys))


def has_no_open_transaction(bootstrap: str) -> bool:
    """True if each partition's last stable offset equals its high watermark."""
    return ends(bootstrap, "read_committed") == ends(bootstrap, "read_uncommitted")


def tails(cluster: Cluster) -> str:
    """Return the last lines of each node's log."""
    return "\n".join(f"node {number}:\n{node.log_tail()}" for number, node in cluster.nodes.items())
