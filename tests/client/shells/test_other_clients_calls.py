"""Features that other clients have: on_delivery, topics, commit(record), the end of a loop, metrics by partition."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import trio

from odradek import Consumer, ConsumerRecord, Delivered, Producer
from odradek.client.admin import NewTopic
from odradek.client.shells.admin_client import Admin
from odradek.trio import open_consumer, open_producer
from odradek.wire.api import ApiKey
from odradek.wire.errors import ErrorCode, KafkaError
from tests.client.producer.test_producer import LoopbackBroker, broker
from tests.node_process import RunningNode

__all__ = ["broker"]

Outcome = tuple[Exception | None, Delivered]


def test_on_delivery_knows_the_record(broker: LoopbackBroker) -> None:
    """`on_delivery` is called once for each record, with error, topic, partition, key and offset.

    It may use the producer.
    """
    outcomes: list[Outcome] = []
    free: list[bool] = []

    def lock_is_free() -> bool:
        taken: list[bool] = []

        def take() -> None:
            taken.append(producer.lock.acquire(timeout=10))
            if taken[0]:
                producer.lock.release()

        other = threading.Thread(target=take)
        other.start()
        other.join()
        return taken == [True]

    def on_delivery(error: Exception | None, delivered: Delivered) -> None:
        outcomes.append((error, delivered))

    with Producer(bootstrap_servers=broker.bootstrap, linger_ms=0) as producer:
        for number in range(20):
            producer.send("t", b"v", bytearray(b"k%d" % number), timestamp_ms=number, on_delivery=on_delivery)
        producer.flush()
        broker.broker.trouble[ApiKey.PRODUCE].append(int(ErrorCode.INVALID_TIMESTAMP))
        refused = producer.send("t", b"v", b"refused", timestamp_ms=7, on_delivery=on_delivery)
        assert refused.exception(10) is not None
        producer.send("t", b"v", on_delivery=lambda *_: free.append(lock_is_free()))
        producer.send("t", b"v", on_delivery=lambda: None).result(10)  # type: ignore[misc,arg-type]
        with pytest.raises(TypeError, match="on_delivery"):
            producer.send("t", b"v", on_delivery=5)  # type: ignore[arg-type]
    assert [outcome for outcome in outcomes if outcome[0] is None] == [
        (None, Delivered("t", 0, number, number, b"k%d" % number)) for number in range(20)
    ]
    (failed,) = [outcome for outcome in outcomes if outcome[0] is not None]
    assert isinstance(failed[0], KafkaError)
    assert failed[1] == Delivered("t", 0, -1, 7, b"refused")
    assert free == [True]


def test_figures_of_a_producer_by_partition(broker: LoopbackBroker) -> None:
    """A producer's metrics by partition count records, batches, bytes and errors.

    Waiting records are not counted yet.
    """
    with Producer(bootstrap_servers=broker.bootstrap, linger_ms=60_000) as producer:
        producer.partitions_for("t")
        assert producer.partition_metrics() == {}
        for _ in range(3):
            producer.send("t", b"v")
        waiting = producer.partition_metrics()[("t", 0)]  # type: ignore[index]
        assert (waiting["queued_records"], waiting["queued_batches"], waiting["records"]) == (3, 1, 0)
        producer.flush()
        broker.broker.trouble[ApiKey.PRODUCE].append(int(ErrorCode.INVALID_TIMESTAMP))
        producer.send("t", b"v")
        producer.flush()
        figures = producer.partition_metrics()[("t", 0)]  # type: ignore[index]
    assert figures.pop("bytes") > 61
    assert figures == {
        "records": 3,
        "batches": 1,
        "errors": 1,
        "queued_records": 0,
        "queued_batches": 0,
    }


def filled(node: RunningNode, topic: str, count: int) -> None:
    """Create a topic of two partitions, with records in the first."""
    with Admin(bootstrap_servers=node.bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 2)])
    with Producer(bootstrap_servers=node.bootstrap) as producer:
        for number in range(count):
            producer.send(topic, b"%d" % number, partition=0)


def test_a_loop_ends_when_nothing_comes(node: RunningNode, fresh_topic: Callable[[str], str]) -> None:
    """With `odradek.consumer.timeout.ms` a loop ends when no more records come. A later loop continues after it."""
    topic = fresh_topic("ending")
    filled(node, topic, 5)
    with Consumer(bootstrap_servers=node.bootstrap, consumer_timeout_ms=1500) as consumer:
        assert topic in consumer.topics()
        assert "__consumer_offsets" not in consumer.topics()
        consumer.assign([(topic, 0), (topic, 1)])
        consumer.seek_to_beginning()
        assert [record.offset for record in consumer] == [0, 1, 2, 3, 4]
        with Producer(bootstrap_servers=node.bootstrap) as producer:
            producer.send(topic, b"late", partition=0)
        assert [record.offset for record in consumer] == [5]


def test_a_record_is_committed_by_itself(node: RunningNode, fresh_topic: Callable[[str], str]) -> None:
    """`commit(record)` commits the offset after this record, in its partition only. The next member continues there."""
    topic = fresh_topic("committed")
    filled(node, topic, 5)
    keys: dict[str, Any] = {
        "bootstrap_servers": node.bootstrap,
        "group_id": topic,
        "enable_auto_commit": False,
        "auto_offset_reset": "earliest",
    }
    with Consumer(keys) as consumer:
        consumer.assign([(topic, 0), (topic, 1)])
        for record in consumer:
            if record.offset == 2:
                consumer.commit(record)
            if record.offset == 4:
                break
        found = consumer.committed([(topic, 0), (topic, 1)])
        first, second = found.values()
        assert first is not None
        assert (first.offset, second) == (3, None)
        done: list[Exception | None] = []
        consumer.commit_async(record, lambda _, error: done.append(error))
        while not done:
            consumer.poll(0.1)
        assert done == [None]
        assert [each.offset for each in consumer.committed([(topic, 0)]).values() if each] == [5]
        with pytest.raises((TypeError, ValueError), match="offsets"):
            consumer.commit(ConsumerRecord(5, 0, 0, 0, None, None))  # type: ignore[arg-type]
        with pytest.raises((TypeError, ValueError), match="offsets"):
            consumer.commit(record._replace(offset=(1 << 63) - 1))


def test_figures_of_a_consumer_by_partition(node: RunningNode, fresh_topic: Callable[[str], str]) -> None:
    """A consumer's metrics by partition are position, lag, records and bytes.

    Records that were polled but have yet to be yielded are left out.
    """
    topic = fresh_topic("figures")
    filled(node, topic, 10)
    with Consumer(bootstrap_servers=node.bootstrap) as consumer:
        consumer.assign([(topic, 0), (topic, 1)])
        unknown = {"position": -1, "lag": -1, "records": 0, "bytes": 0}
        assert dict(consumer.partition_metrics()) == {(topic, 0): unknown, (topic, 1): unknown}
        consumer.seek_to_beginning()
        for record in consumer:
            if record.offset == 3:
                break
        consumer.assign([(topic, 0)])
        (figures,) = consumer.partition_metrics().values()
        assert figures.pop("bytes") > 61
        assert figures == {"position": 4, "lag": 6, "records": 4}
        while consumer.position((topic, 0)) < 10:
            consumer.poll(1)
        (figures,) = consumer.partition_metrics().values()
        assert (figures["position"], figures["lag"], figures["records"]) == (10, 0, 10)


def test_all_of_it_on_trio(node: RunningNode, fresh_topic: Callable[[str], str]) -> None:
    """The async clients have the same features. A callback that raises is logged."""
    topic = fresh_topic("trio")
    outcomes: list[Outcome] = []

    def on_delivery(error: Exception | None, delivered: Delivered) -> None:
        outcomes.append((error, delivered))
        raise ValueError("this callback is broken")

    async def main() -> None:
        async with open_producer(bootstrap_servers=node.bootstrap) as producer:
            for number in range(5):
                await producer.send(
                    topic, b"v", b"k", partition=0, timestamp_ms=number, on_delivery=on_delivery
                )
            with pytest.raises(TypeError, match="on_delivery"):
                await producer.send(topic, b"v", on_delivery=5)  # type: ignore[arg-type]
            await producer.flush()
            (figures,) = producer.partition_metrics().values()
            assert (figures["records"], figures["errors"]) == (5, 0)
        async with open_consumer(
            bootstrap_servers=node.bootstrap, odradek_consumer_timeout_ms=1500, group_id=topic
        ) as consumer:
            assert topic in await consumer.topics()
            consumer.assign([(topic, 0)])
            consumer.seek_to_beginning()
            records = [record async for record in consumer]
            assert [record.offset for record in records] == [0, 1, 2, 3, 4]
            await consumer.commit(records[1])
            (committed,) = (await consumer.committed([(topic, 0)])).values()
            assert committed is not None
            assert committed.offset == 2
            (consumed,) = consumer.partition_metrics().values()
            assert (consumed["position"], consumed["lag"], consumed["records"]) == (5, 0, 5)

    trio.run(main)
    assert outcomes == [(None, Delivered(topic, 0, number, number, b"k")) for number in range(5)]
