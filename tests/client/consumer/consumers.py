"""Consumers of a broker in memory, for tests of the consumer's machine."""

from __future__ import annotations

from typing import Any

from odradek.wire.batches.batch_header import assign_offsets, parse_header
from odradek.wire.record_batch import RecordBatchBuilder
from odradek.wire.topic_partition import TopicPartition
from tests.client.consumer.fake_group import FakeConsumer, GroupBroker

T0 = TopicPartition("t", 0)


def fill(
    broker: GroupBroker,
    count: int,
    *,
    topic: str = "t",
    partition: int = 0,
    per_batch: int = 3,
    epoch: int = 0,
) -> None:
    """Append records to a topic. The value of each record is its offset, as decimal digits."""
    target = broker.topics[topic].partitions[partition]
    for start in range(0, count, per_batch):
        builder = RecordBatchBuilder()
        for n in range(start, min(start + per_batch, count)):
            builder.append(1000 + n, None, b"%d" % (target.end_offset + n - start))
        data = builder.build()
        assign_offsets(data, 0, target.end_offset, epoch)
        target.batches.append((target.end_offset, bytes(data)))
        target.end_offset += parse_header(data).record_count


def consumer(count: int = 0, partitions: int = 1, **keys: Any) -> FakeConsumer:
    """Make a consumer of a broker whose topic `t` has `count` records in partition 0."""
    found = FakeConsumer(**keys)
    found.broker.add_topic("t", partitions)
    fill(found.broker, count)
    return found


def reading(count: int = 0, **keys: Any) -> FakeConsumer:
    """Make a consumer that reads partition 0 of `t`, by `assign`."""
    found = consumer(count, **keys)
    found.machine.assign_manually([T0])
    return found


def member(count: int = 0, partitions: int = 1, **keys: Any) -> FakeConsumer:
    """Make a consumer that has joined a group and owns all partitions of `t`."""
    found = consumer(count, partitions, group_id="g", **keys)
    found.machine.subscribe(["t"])
    found.join()
    assert len(found.machine.subscription.partitions) == partitions
    return found


def numbers(first: int, last: int) -> list[bytes]:
    return [b"%d" % n for n in range(first, last + 1)]


def everything(found: FakeConsumer, count: int) -> list[bytes]:
    """Poll until at least `count` records have come, and return their values."""
    values: list[bytes] = []
    while len(values) < count:
        values += found.values()
    return values
