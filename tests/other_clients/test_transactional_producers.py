"""Transactional producers of others, unmodified: commit, abort, and the end of a producer that was replaced."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections.abc import Callable

import aiokafka
import confluent_kafka
import kafka
import pytest

from bench.kafka_server import java_arguments, run_tool
from tests.node_process import RunningNode

SECONDS_MAX = 60.0


def committed(node: RunningNode, topic: str, count: int) -> list[bytes | None]:
    """The first records that a committed reader gets from partition 0."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": node.bootstrap,
            "group.id": f"reads-{topic}",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
    )
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        found = consumer.consume(count, SECONDS_MAX)
        assert not any(each.error() for each in found)
        return [each.value() for each in found]
    finally:
        consumer.close()


def confluent(node: RunningNode, transactional_id: str) -> confluent_kafka.Producer:
    """A producer of librdkafka that has begun."""
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": node.bootstrap, "transactional.id": transactional_id, "log_level": 0}
    )
    producer.init_transactions(SECONDS_MAX)
    return producer


def test_confluent_kafka(node: RunningNode, fresh_topic: Callable[[str], str]) -> None:
    """What was aborted is not read; a producer that was replaced is fenced for good."""
    topic = fresh_topic("txn-confluent")
    first = confluent(node, topic)
    for value, is_commit in ((b"one", True), (b"two", False), (b"three", True)):
        first.begin_transaction()
        first.produce(topic, value, partition=0)
        if is_commit:
            first.commit_transaction(SECONDS_MAX)
        else:
            first.flush(SECONDS_MAX)
            first.abort_transaction(SECONDS_MAX)
    first.begin_transaction()
    first.produce(topic, b"late", partition=0)
    first.flush(SECONDS_MAX)
    second = confluent(node, topic)
    with pytest.raises(confluent_kafka.KafkaException) as caught:
        first.commit_transaction(SECONDS_MAX)
    assert caught.value.args[0].fatal()
    second.begin_transaction()
    second.produce(topic, b"four", partition=0)
    second.commit_transaction(SECONDS_MAX)
    assert committed(node, topic, 3) == [b"one", b"three", b"four"]


def test_offsets_of_a_transaction(node: RunningNode, fresh_topic: Callable[[str], str]) -> None:
    """Offsets that a producer sends count when its transaction commits, and are forgotten when it aborts."""
    topic = fresh_topic("txn-offsets")
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": node.bootstrap, "group.id": topic, "enable.auto.commit": False}
    )
    producer = confluent(node, topic)
    try:
        for offset, is_commit, told in ((5, True, 5), (7, False, 5), (9, True, 9)):
            producer.begin_transaction()
            producer.produce(topic, b"x", partition=0)
            positions = [confluent_kafka.TopicPartition(topic, 0, offset)]
            producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), SECONDS_MAX)
            if is_commit:
                producer.commit_transaction(SECONDS_MAX)
            else:
                producer.abort_transaction(SECONDS_MAX)
            (found,) = consumer.committed([confluent_kafka.TopicPartition(topic, 0)], SECONDS_MAX)
            assert found.offset == told
    finally:
        consumer.close()


def test_kafka_python(node: RunningNode, fresh_topic: Callable[[str], str]) -> None:
    """What was aborted is not read."""
    topic = fresh_topic("txn-kafka-python")
    producer = kafka.KafkaProducer(
        bootstrap_servers=node.bootstrap, transactional_id=topic, max_block_ms=int(SECONDS_MAX * 1000)
    )
    with contextlib.closing(producer):
        producer.init_transactions()
        for value, is_commit in ((b"one", True), (b"two", False), (b"three", True)):
            producer.begin_transaction()
            producer.send(topic, value, partition=0).get(SECONDS_MAX)
            if is_commit:
                producer.commit_transaction()
            else:
                producer.abort_transaction()
    assert committed(node, topic, 2) == [b"one", b"three"]


@pytest.mark.java
def test_the_java_client(node: RunningNode, fresh_topic: Callable[[str], str]) -> None:
    """Kafka 4.3's producer, of transaction version 2, commits; its tool lists the transactional id."""
    topic = fresh_topic("txn-java")
    words = "--num-records 500 --record-size 10 --throughput -1 --transaction-duration-ms 100"
    done = subprocess.run(
        [
            *java_arguments(),
            "org.apache.kafka.tools.ProducerPerformance",
            *(*words.split(), "--topic", topic, "--transactional-id", topic),
            *("--bootstrap-server", node.bootstrap),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS_MAX,
    )
    assert done.returncode == 0, done.stderr
    assert "500 records sent" in done.stdout
    tool = ("org.apache.kafka.tools.TransactionsCommand", "--bootstrap-server", node.bootstrap)
    listed = [line.split() for line in run_tool(*tool, "list").splitlines()]
    (mine,) = [line for line in listed if line and line[0] == topic]
    assert "CompleteCommit" in mine


def test_aiokafka(node: RunningNode, fresh_topic: Callable[[str], str]) -> None:
    """Its transactions are blocks of code; one that fails is aborted."""
    topic = fresh_topic("txn-aiokafka")

    async def produce() -> None:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=node.bootstrap, transactional_id=topic)
        await producer.start()
        try:
            async with producer.transaction():
                await producer.send_and_wait(topic, b"one", partition=0)
            await producer.begin_transaction()
            await producer.send_and_wait(topic, b"two", partition=0)
            await producer.abort_transaction()
            async with producer.transaction():
                await producer.send_and_wait(topic, b"three", partition=0)
        finally:
            await producer.stop()

    asyncio.run(asyncio.wait_for(produce(), SECONDS_MAX))
    assert committed(node, topic, 2) == [b"one", b"three"]
