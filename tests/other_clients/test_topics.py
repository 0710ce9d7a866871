"""Topics created with the libraries' admin clients, and topics that are auto-created."""

from __future__ import annotations

import time
from collections.abc import Callable

import confluent_kafka
import confluent_kafka.admin
import kafka.admin
import kafka.errors
import pytest

from tests.node_process import RunningNode
from tests.other_clients.drivers import (
    TIMEOUT_SECONDS,
    AioKafkaDriver,
    ConfluentDriver,
    Driver,
    KafkaPythonDriver,
    Sent,
)


def wait_for_partitions(driver: Driver, topic: str, count: int | None) -> None:
    """Ask until the metadata show the topic with so many partitions, or no topic (None). Metadata follow the
    controller late."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while (shown := driver.topics().get(topic)) != count:
        assert time.monotonic() < deadline, f"{topic} has {shown} partitions, expected {count}"


def test_create_and_delete(driver: Driver, fresh_topic: Callable[[str], str]) -> None:
    """A created topic is listed with its partitions. A deleted topic is not listed, and its name can be used again."""
    topic = fresh_topic("admin")
    driver.create_topic(topic, 3)
    wait_for_partitions(driver, topic, 3)
    driver.produce(topic, [Sent(b"old", partition=2)], codec="none", idempotent=False, acks=-1)
    driver.delete_topic(topic)
    wait_for_partitions(driver, topic, None)
    driver.create_topic(topic, 1)
    wait_for_partitions(driver, topic, 1)
    assert driver.watermarks(topic, 0) == (0, 0)


def test_automatic_creation(driver: Driver, fresh_topic: Callable[[str], str]) -> None:
    """With `auto.create.topics.enable`, which is the default, a producer's Metadata request creates the topic."""
    topic = fresh_topic("auto")
    [(partition, offset)] = driver.produce(topic, [Sent(b"first")], codec="none", idempotent=False, acks=-1)
    assert (partition, offset) == (0, 0)
    [record] = driver.consume(topic, {0: 0}, 1)
    assert record.value == b"first"


def test_create_twice(node: RunningNode, fresh_topic: Callable[[str], str]) -> None:
    """An existing name is refused with TOPIC_ALREADY_EXISTS (36), which each library reports in its own words."""
    topic = fresh_topic("twice")
    ConfluentDriver(node.bootstrap).create_topic(topic, 1)
    with pytest.raises(confluent_kafka.KafkaException) as raised:
        ConfluentDriver(node.bootstrap).create_topic(topic, 1)
    assert raised.value.args[0].code() == confluent_kafka.KafkaError.TOPIC_ALREADY_EXISTS
    with pytest.raises(kafka.errors.TopicAlreadyExistsError):
        KafkaPythonDriver(node.bootstrap).create_topic(topic, 1)
    with pytest.raises(AssertionError, match="36"):
        AioKafkaDriver(node.bootstrap).create_topic(topic, 1)


def test_delete_unknown(node: RunningNode, fresh_topic: Callable[[str], str]) -> None:
    """An unknown name is refused with UNKNOWN_TOPIC_OR_PARTITION (3)."""
    with pytest.raises(confluent_kafka.KafkaException) as raised:
        ConfluentDriver(node.bootstrap).delete_topic(fresh_topic("never-made"))
    assert raised.value.args[0].code() == confluent_kafka.KafkaError.UNKNOWN_TOPIC_OR_PART


@pytest.mark.parametrize(
    ("name", "partitions", "code"),
    [
        ("bad name!", 1, confluent_kafka.KafkaError.TOPIC_EXCEPTION),
        ("..", 1, confluent_kafka.KafkaError.TOPIC_EXCEPTION),
        ("x" * 250, 1, confluent_kafka.KafkaError.TOPIC_EXCEPTION),
    ],
)
def test_bad_topic(node: RunningNode, name: str, partitions: int, code: int) -> None:
    """Names beyond [a-zA-Z0-9._-]{1,249}, "." and ".." are refused with INVALID_TOPIC_EXCEPTION (17)."""
    with pytest.raises(confluent_kafka.KafkaException) as raised:
        ConfluentDriver(node.bootstrap).create_topic(name, partitions)
    assert raised.value.args[0].code() == code


def test_topic_configs(node: RunningNode, fresh_topic: Callable[[str], str]) -> None:
    """Configurations given at creation are described as dynamic topic configs, the others as defaults."""
    topic = fresh_topic("configs")
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": node.bootstrap})
    new = confluent_kafka.admin.NewTopic(
        topic, num_partitions=1, replication_factor=1, config={"retention.ms": "3600000"}
    )
    admin.create_topics([new])[topic].result(10)
    resource = confluent_kafka.admin.ConfigResource(confluent_kafka.admin.ResourceType.TOPIC, topic)
    described = admin.describe_configs([resource])[resource].result(10)
    assert described["retention.ms"].value == "3600000"
    assert described["retention.ms"].source == confluent_kafka.admin.ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    assert described["segment.bytes"].value == str(1 << 30)
    assert described["segment.bytes"].is_default


def test_timestamps_by_log_append(node: RunningNode, fresh_topic: Callable[[str], str]) -> None:
    """With message.timestamp.type=LogAppendTime the broker's time replaces the producer's."""
    topic = fresh_topic("append-time")
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": node.bootstrap})
    config = {"message.timestamp.type": "LogAppendTime"}
    new = confluent_kafka.admin.NewTopic(topic, num_partitions=1, replication_factor=1, config=config)
    admin.create_topics([new])[topic].result(10)
    driver = ConfluentDriver(node.bootstrap)
    before_ms = int(time.time() * 1000) - 1
    records = [Sent(b"x", timestamp_ms=1), Sent(b"y", timestamp_ms=2)]
    driver.produce(topic, records, codec="zstd", idempotent=False, acks=-1)
    received = driver.consume(topic, {0: 0}, 2)
    after_ms = int(time.time() * 1000) + 1
    # If the client was slow, the two records are in two batches.
    assert all(before_ms <= record.timestamp_ms <= after_ms for record in received)
