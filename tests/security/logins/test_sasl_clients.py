"""Other clients log in by SASL."""

from __future__ import annotations

from collections.abc import Callable

import confluent_kafka
import kafka
import kafka.errors
import pytest

from tests.security.secured_node import SecuredNode

MECHANISMS = {
    "PLAIN": ("carol", "carol-secret"),
    "SCRAM-SHA-256": ("alice", "alice-secret"),
    "SCRAM-SHA-512": ("bob", "bob-secret"),
}


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_confluent_kafka_produces_and_consumes(
    secured: SecuredNode, mechanism: str, fresh_topic: Callable[[str], str]
) -> None:
    """librdkafka logs in by each mechanism, on every connection, and gets its records back."""
    user, password = MECHANISMS[mechanism]
    common = {
        "bootstrap.servers": secured.sasl,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": password,
    }
    topic = fresh_topic("sasl")
    producer = confluent_kafka.Producer(common)
    producer.produce(topic, b"value")
    assert producer.flush(20) == 0
    consumer = confluent_kafka.Consumer(
        {
            **common,
            "group.id": topic,
            "auto.offset.reset": "earliest",
            "topic.metadata.refresh.interval.ms": 500,
        }
    )
    consumer.subscribe([topic])
    try:
        message = consumer.poll(30)
        assert message is not None
        assert message.value() == b"value"
    finally:
        consumer.close()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_python_logs_in(
    secured: SecuredNode, mechanism: str, fresh_topic: Callable[[str], str]
) -> None:
    """kafka-python logs in by each mechanism, and writes a record."""
    user, password = MECHANISMS[mechanism]
    producer = kafka.KafkaProducer(
        bootstrap_servers=secured.sasl,
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism=mechanism,
        sasl_plain_username=user,
        sasl_plain_password=password,
    )
    try:
        assert producer.send(fresh_topic("sasl"), b"value").get(20).offset == 0
    finally:
        producer.close()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_wrong_password_lets_nobody_in(secured: SecuredNode, mechanism: str) -> None:
    """librdkafka with a wrong password reports a failed authentication, and not a broken connection."""
    errors: list[confluent_kafka.KafkaError] = []
    client = confluent_kafka.Producer(
        {
            "bootstrap.servers": secured.sasl,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": mechanism,
            "sasl.username": MECHANISMS[mechanism][0],
            "sasl.password": "wrong",
            "error_cb": errors.append,
        }
    )
    with pytest.raises(confluent_kafka.KafkaException):
        client.list_topics(timeout=3)
    client.poll(0)
    assert any(error.code() == confluent_kafka.KafkaError._AUTHENTICATION for error in errors)
