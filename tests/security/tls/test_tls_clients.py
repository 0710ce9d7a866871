"""Other clients over TLS, with certificates and with SASL."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import confluent_kafka
import kafka
import pytest

from tests.security.secured_node import SecuredNode

RECORDS = 2_000


def _round_trip(common: Mapping[str, object], topic: str) -> None:
    """Produce and read many records. An answer takes several TLS records, with data of files and of memory."""
    producer = confluent_kafka.Producer({**common, "linger.ms": 20})
    for number in range(RECORDS):
        producer.produce(topic, b"%06d" % number + bytes(1000))
    assert producer.flush(30) == 0
    consumer = confluent_kafka.Consumer({**common, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    try:
        got: list[int] = []
        while len(got) < RECORDS:
            messages = consumer.consume(500, timeout=20)
            assert messages, f"only {len(got)} of {RECORDS} records came"
            got += (int((message.value() or b"")[:6]) for message in messages if message.error() is None)
        assert got == list(range(RECORDS))
    finally:
        consumer.close()


def test_confluent_kafka_over_tls(secured: SecuredNode, fresh_topic: Callable[[str], str]) -> None:
    """librdkafka verifies the server's certificate and name. It has no certificate of its own."""
    common = {
        "bootstrap.servers": secured.tls,
        "security.protocol": "SSL",
        "ssl.ca.location": secured.authority,
        "ssl.endpoint.identification.algorithm": "https",
    }
    _round_trip(common, fresh_topic("tls"))


def test_confluent_kafka_with_a_certificate(secured: SecuredNode, fresh_topic: Callable[[str], str]) -> None:
    """librdkafka logs in by a certificate of the right authority."""
    common = {
        "bootstrap.servers": secured.tls,
        "security.protocol": "SSL",
        "ssl.ca.location": secured.authority,
        "ssl.certificate.location": secured.client_pem,
        "ssl.key.location": secured.client_pem,
    }
    _round_trip(common, fresh_topic("tls"))


@pytest.mark.parametrize(("mechanism", "user"), [("SCRAM-SHA-512", "alice"), ("PLAIN", "carol")])
def test_confluent_kafka_with_sasl_over_tls(
    secured: SecuredNode, mechanism: str, user: str, fresh_topic: Callable[[str], str]
) -> None:
    """librdkafka logs in by SASL over TLS."""
    common = {
        "bootstrap.servers": secured.sasl_tls,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": secured.authority,
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": f"{user}-secret",
    }
    _round_trip(common, fresh_topic("tls"))


def test_kafka_python_with_sasl_over_tls(secured: SecuredNode, fresh_topic: Callable[[str], str]) -> None:
    """kafka-python logs in by SASL over Python's TLS."""
    producer = kafka.KafkaProducer(
        bootstrap_servers=secured.sasl_tls,
        security_protocol="SASL_SSL",
        ssl_cafile=secured.authority,
        sasl_mechanism="SCRAM-SHA-256",
        sasl_plain_username="bob",
        sasl_plain_password="bob-secret",
    )
    try:
        assert producer.send(fresh_topic("tls"), b"value").get(20).offset == 0
    finally:
        producer.close()
