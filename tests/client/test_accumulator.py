"""Batches by partition: which partition, which batch, how much memory."""

from __future__ import annotations

import random
import tracemalloc
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

from odradek.client.core.client_keys import ProducerSettings
from odradek.client.core.known_cluster import Broker, Cluster
from odradek.client.producer.accumulator import Accumulator, Batch
from wire.errors import ErrorCode, KafkaError
from wire.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)


def cluster(partitions: int, leaderless: tuple[int, ...] = ()) -> Cluster:
    """A cluster that knows the topic `t`."""
    known = Cluster()
    topic = MetadataResponseTopic(
        name="t",
        topic_id=bytes(15) + b"\1",
        partitions=[
            MetadataResponsePartition(
                partition_index=index,
                leader_id=-1 if index in leaderless else 1,
                leader_epoch=0,
                replica_nodes=[1],
                isr_nodes=[1],
            )
            for index in range(partitions)
        ],
    )
    broker = MetadataResponseBroker(node_id=1, host="b", port=1)
    known.update(MetadataResponse(brokers=[broker], cluster_id="c", controller_id=1, topics=[topic]))
    assert known.brokers == {1: Broker(1, "b", 1)}
    return known


def make(partitions: int = 3, leaderless: tuple[int, ...] = (), **keys: Any) -> Accumulator:
    """An accumulator with these settings."""
    properties = {name.replace("_", "."): value for name, value in keys.items()}
    settings = ProducerSettings.from_properties({"bootstrap.servers": "b:1", **properties})
    return Accumulator(settings, cluster(partitions, leaderless), random.Random(1))


def put(
    accumulator: Accumulator, value: bytes, key: bytes | None = None, partition: int | None = None
) -> Batch | None:
    """As the producers do it: append, else open a batch."""
    return accumulator.append("t", partition, 5, key, value, ()) or accumulator.open_batch(
        "t", partition, 5, key, value, (), 0.0
    )


def test_records_without_a_key_stick_until_the_batch_is_full() -> None:
    """KIP-794: one partition for `batch.size` bytes, then another; in the long run all alike."""
    accumulator = make(batch_size=1000, buffer_memory=1 << 30)
    runs: list[int] = []
    for _ in range(3000):
        batch = put(accumulator, b"x" * 84)
        assert batch is not None
        runs.append(batch.lane.partition)
    changes = [number for number in range(1, 3000) if runs[number] != runs[number - 1]]
    assert {b - a for a, b in pairwise(changes)} == {9}
    counts = Counter(runs)
    assert max(counts.values()) - min(counts.values()) < 300


def test_a_batch_that_left_early_does_not_move_the_stickiness() -> None:
    """KIP-794: the sticky partition changes after `batch_size` bytes, however many batches they fill."""
    accumulator = make(batch_size=1000)
    first = put(accumulator, b"x" * 84)
    assert first is not None
    accumulator.take(first.lane)
    second = put(accumulator, b"x" * 84)
    assert second is not None
    assert second is not first
    assert second.lane is first.lane


def test_a_partition_without_a_leader_is_not_drawn() -> None:
    """Records without a key go where they can be written."""
    accumulator = make(4, (1, 2), batch_size=100)
    partitions = {batch.lane.partition for _ in range(100) if (batch := put(accumulator, b"x" * 60))}
    assert partitions == {0, 3}


def test_a_long_queue_is_drawn_less() -> None:
    """partitioner.adaptive.partitioning.enable: a slow broker's partition gets fewer records."""
    for adaptive, low, high in ((True, 0, 60), (False, 130, 200)):
        accumulator = make(
            3, batch_size=100, buffer_memory=1 << 30, partitioner_adaptive_partitioning_enable=adaptive
        )
        for _ in range(50):
            put(accumulator, b"x" * 60, partition=0)
        drawn: Counter[int] = Counter()
        for _ in range(500):
            batch = put(accumulator, b"x" * 60)
            assert batch is not None
            drawn[batch.lane.partition] += 1
            if batch.lane.partition != 0:
                accumulator.take(batch.lane)
        assert low <= drawn[0] <= high


def test_keys_may_be_ignored() -> None:
    """partitioner.ignore.keys: the sticky partition takes them all."""
    accumulator = make(5, partitioner_ignore_keys=True)
    lanes = {batch.lane.partition for n in range(50) if (batch := put(accumulator, b"v", b"key %d" % n))}
    assert len(lanes) == 1


def test_memory_is_taken_by_the_batch_and_given_back() -> None:
    """`buffer.memory` bounds what is in use; a record larger than a batch takes what it needs."""
    accumulator = make(batch_size=1000, buffer_memory=3600)
    batches = [put(accumulator, b"x" * 900, partition=0) for _ in range(3)]
    assert accumulator.memory_used == 3600
    assert put(accumulator, b"x" * 900, partition=0) is None
    assert batches[0] is not None
    accumulator.complete(accumulator.take(batches[0].lane))
    assert accumulator.memory_used == 2400
    large = put(accumulator, b"x" * 1500, partition=1)
    assert large is None
    assert batches[1] is not None
    accumulator.complete(accumulator.take(batches[1].lane))
    assert put(accumulator, b"x" * 1500, partition=1) is not None
    assert accumulator.memory_used == 1200 + 1500 + 16 + 61 + 200


@pytest.mark.parametrize("size", [0, 2, 50, 1000])
@pytest.mark.parametrize("key", [None, b"a key"])
def test_memory_is_that_of_the_rows_and_not_of_their_bytes(size: int, key: bytes | None) -> None:
    """`buffer.memory` holds for what Python keeps, however small the records are."""
    limit = 2 << 20
    accumulator = make(buffer_memory=limit)
    tracemalloc.start()
    try:
        count = 0
        # Each value, key and time is an object of its own, as where an application makes its records.
        while accumulate(accumulator, bytearray(size), key and bytearray(key), (1 << 40) + count):
            count += 1
        used = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert limit // 3 < used < limit * 1.1
    assert limit - 20_000 < accumulator.memory_used <= limit


def accumulate(accumulator: Accumulator, value: bytearray, key: bytearray | None, time_ms: int) -> bool:
    row = ("t", None, time_ms, None if key is None else bytes(key), bytes(value), ())
    return (accumulator.append(*row) or accumulator.open_batch(*row, 0.0)) is not None


@pytest.mark.parametrize(("limit", "size"), [({"max_request_size": 500}, 450), ({"buffer_memory": 500}, 450)])
def test_what_can_never_be_sent_is_refused(limit: dict[str, int], size: int) -> None:
    """MESSAGE_TOO_LARGE at once, not after `max.block.ms`."""
    accumulator = make(**limit)
    with pytest.raises(KafkaError) as caught:
        put(accumulator, b"x" * size)
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
    assert accumulator.memory_used == 0
