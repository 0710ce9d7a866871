"""The accumulator: the choice of a partition, the filling of batches, and the limit of memory."""

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
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)


def cluster(partitions: int, leaderless: tuple[int, ...] = (), brokers: int = 1) -> Cluster:
    """Make a cluster that knows topic `t`. The brokers lead its partitions in turn."""
    known = Cluster()
    topic = MetadataResponseTopic(
        name="t",
        topic_id=bytes(15) + b"\1",
        partitions=[
            MetadataResponsePartition(
                partition_index=index,
                leader_id=-1 if index in leaderless else 1 + index % brokers,
                leader_epoch=0,
                replica_nodes=[1],
                isr_nodes=[1],
            )
            for index in range(partitions)
        ],
    )
    told = [MetadataResponseBroker(node_id=node, host="b", port=node) for node in range(1, brokers + 1)]
    known.update(MetadataResponse(brokers=told, cluster_id="c", controller_id=1, topics=[topic]))
    assert known.brokers[1] == Broker(1, "b", 1)
    return known


def make(partitions: int = 3, leaderless: tuple[int, ...] = (), brokers: int = 1, **keys: Any) -> Accumulator:
    """Make an accumulator with these settings."""
    properties = {name.replace("_", "."): value for name, value in keys.items()}
    settings = ProducerSettings.from_properties({"bootstrap.servers": "b:1", **properties})
    return Accumulator(settings, cluster(partitions, leaderless, brokers), random.Random(1))


def put(
    accumulator: Accumulator, value: bytes, key: bytes | None = None, partition: int | None = None
) -> Batch | None:
    """Append a record to an open batch, or open a batch, as the producers do."""
    return accumulator.append("t", partition, 5, key, value, ()) or accumulator.open_batch(
        "t", partition, 5, key, value, (), 0.0
    )


def test_records_without_a_key_stick_for_a_batchs_bytes() -> None:
    """Records without a key stay on one partition until `batch.size` bytes are written and the batch is full (KIP-794).

    Nine records fill a batch with 961 bytes. That is below `batch.size`, so the partition changes only after the next
    batch, as in Java. In the long run all partitions get equally many.
    """
    accumulator = make(batch_size=1000, buffer_memory=1 << 30)
    runs: list[int] = []
    for _ in range(3000):
        batch = put(accumulator, b"x" * 84)
        assert batch is not None
        runs.append(batch.lane.partition)
    changes = [number for number in range(1, 3000) if runs[number] != runs[number - 1]]
    assert {b - a for a, b in pairwise(changes)} == {18}
    counts = Counter(runs)
    assert max(counts.values()) - min(counts.values()) < 300


@pytest.mark.parametrize("burst", [1, 3, 8], ids=["slowly", "in bursts", "nearly full batches"])
def test_records_without_a_key_spread_at_every_rate(burst: int) -> None:
    """Records without a key spread over all partitions even if batches are sent before they are full (KIP-794)."""
    accumulator = make(6, batch_size=1000, buffer_memory=1 << 30)
    runs: list[int] = []
    for _ in range(3000 // burst):
        batches = {put(accumulator, b"x" * 84) for _ in range(burst)}
        runs += [batch.lane.partition for batch in batches if batch is not None for _ in batch.rows]
        for batch in batches:
            assert batch is not None
            accumulator.take(batch.lane)
    counts = Counter(runs)
    assert counts.keys() == set(range(6))
    assert max(counts.values()) - min(counts.values()) < 400
    changes = [number for number in range(1, len(runs)) if runs[number] != runs[number - 1]]
    assert max(b - a for a, b in pairwise(changes)) <= 18


def test_records_with_a_key_do_not_move_the_stickiness() -> None:
    """Records with a given partition do not count towards the change of the sticky partition."""
    accumulator = make(batch_size=1000)
    first = put(accumulator, b"x" * 84)
    assert first is not None
    for _ in range(30):
        batch = put(accumulator, b"x" * 84, partition=first.lane.partition)
        assert batch is not None
    last = put(accumulator, b"x" * 84)
    assert last is not None
    assert last.lane is first.lane


def test_a_leader_that_takes_nothing_is_left_out() -> None:
    """Partitions of a blocked broker are not chosen, unless all are blocked (`partitioner.availability.timeout.ms`)."""
    for blocked, drawn in (({2}, {0, 2}), ({1, 2}, {0, 1, 2, 3})):
        accumulator = make(4, brokers=2, batch_size=100)
        accumulator.blocked = frozenset(blocked)
        batches = [put(accumulator, b"x" * 60) for _ in range(100)]
        assert {batch.lane.partition for batch in batches if batch is not None} == drawn


def test_a_batch_that_left_early_does_not_move_the_stickiness() -> None:
    """A batch is sent early.

    The sticky partition stays until `batch.size` bytes are written, in any number of batches (KIP-794).
    """
    accumulator = make(batch_size=1000)
    first = put(accumulator, b"x" * 84)
    assert first is not None
    accumulator.take(first.lane)
    second = put(accumulator, b"x" * 84)
    assert second is not None
    assert second is not first
    assert second.lane is first.lane


def test_a_partition_without_a_leader_is_not_drawn() -> None:
    """Records without a key go only to partitions that have a leader."""
    accumulator = make(4, (1, 2), batch_size=100)
    partitions = {batch.lane.partition for _ in range(100) if (batch := put(accumulator, b"x" * 60))}
    assert partitions == {0, 3}


def test_a_long_queue_is_drawn_less() -> None:
    """A partition with a long queue is chosen less often (`partitioner.adaptive.partitioning.enable`)."""
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
    """With `partitioner.ignore.keys`, records with a key also go to the sticky partition."""
    accumulator = make(5, partitioner_ignore_keys=True)
    lanes = {batch.lane.partition for n in range(50) if (batch := put(accumulator, b"v", b"key %d" % n))}
    assert len(lanes) == 1


def test_memory_is_taken_by_the_batch_and_given_back() -> None:
    """`buffer.memory` limits the memory of batches, which is freed with the batch.

    A record above the batch size takes what it needs.
    """
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
    """`buffer.memory` counts the memory of Python's objects, which exceeds the bytes of small records."""
    limit = 2 << 20
    accumulator = make(buffer_memory=limit)
    tracemalloc.start()
    try:
        count = 0
        # Each value, key and time is an object of its own, as in an application.
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
    """A record that exceeds the limits fails at once with MESSAGE_TOO_LARGE, and does not wait for `max.block.ms`."""
    accumulator = make(**limit)
    with pytest.raises(KafkaError) as caught:
        put(accumulator, b"x" * size)
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
    assert accumulator.memory_used == 0
