"""Logins that last three seconds. Clients renew them in time, on their open connections (KIP-368)."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import confluent_kafka
import pytest

from odradek.client.shells.consumer import Consumer
from odradek.client.shells.producer import Producer
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.metadata import MetadataRequest
from odradek.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from odradek.wire.messages.sasl_handshake import SaslHandshakeRequest
from odradek.wire.topic_partition import TopicPartition
from testkit.kafka_server import java_arguments
from testkit.raw_requests import RawClient, frame
from tests.security.secured_node import PLAIN_MODULE, SecuredNode

LIFETIME_SECONDS = 3.0
TOKEN_SECONDS = 3
LIFETIMES = 1.8
"""The time for which a test works, in lifetimes of a login. It is long enough that the client must renew."""


def _paced() -> Iterator[int]:
    """Yield ten numbers a second, for some lifetimes of a login."""
    until = time.monotonic() + LIFETIMES * LIFETIME_SECONDS
    number = 0
    while time.monotonic() < until:
        yield number
        number += 1
        time.sleep(0.1)


def test_librdkafka_and_our_client_renew_in_time(
    secured: SecuredNode, fresh_topic: Callable[[str], str]
) -> None:
    """librdkafka and our client run side by side.

    Every record is delivered, all logins stay valid, and librdkafka never reconnects.
    """
    log = len(secured.log)
    seen: list[str] = []
    common = {
        "bootstrap.servers": secured.renewing,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
    }
    theirs = confluent_kafka.Producer(
        {
            **common,
            "sasl.username": "carol",
            "sasl.password": "carol-secret",
            "statistics.interval.ms": 500,
            "stats_cb": seen.append,
        }
    )
    jaas = f'{PLAIN_MODULE} required username="carol" password="carol-secret";'
    topic = fresh_topic("renewed")
    with Producer({**common, "sasl.jaas.config": jaas}) as ours:
        for number in _paced():
            theirs.produce(topic, b"%d" % number)
            assert theirs.flush(20) == 0
            assert ours.send(topic, b"%d" % number).result(20)
    brokers = json.loads(seen[-1])["brokers"].values()
    assert any(each["connects"] for each in brokers)
    assert all(each["connects"] <= 1 and not each["disconnects"] for each in brokers)
    assert "login has expired" not in secured.log[log:]


def test_a_renewal_under_load_loses_nothing(secured: SecuredNode, fresh_topic: Callable[[str], str]) -> None:
    """Many requests are in flight when a login ends. Each record comes once and in order, and the group goes on."""
    log = len(secured.log)
    keys = {
        "bootstrap.servers": secured.renewing,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": f'{PLAIN_MODULE} required username="carol" password="carol-secret";',
    }
    group = {"group.id": fresh_topic("group"), "auto.offset.reset": "earliest", "heartbeat.interval.ms": 200}
    topic = fresh_topic("renewed")
    futures = []
    read: list[int] = []
    with (
        Producer({**keys, "linger.ms": 0, "batch.size": 200}) as producer,
        Consumer({**keys, **group, "auto.commit.interval.ms": 50}) as consumer,
    ):
        consumer.subscribe([topic])
        for number in _paced():
            futures += [producer.send(topic, b"%d" % (100 * number + k), partition=0) for k in range(100)]
            read += [int(record.value or b"") for record in consumer.poll(0)]
        offsets = [future.result(20).offset for future in futures]
        deadline = time.monotonic() + 60
        while len(read) < len(futures) and time.monotonic() < deadline:
            read += [int(record.value or b"") for record in consumer.poll(1)]
        consumer.commit()
        committed = consumer.committed([(topic, 0)])[TopicPartition(topic, 0)]
        assert consumer.statistics()["rebalances"] == 1
    assert offsets == read == list(range(len(futures)))
    assert committed is not None
    assert committed.offset == len(futures)
    assert "login has expired" not in secured.log[log:]


def test_tokens_that_end_are_replaced_in_time(
    secured: SecuredNode, fresh_topic: Callable[[str], str]
) -> None:
    """A login lasts as long as its token. Our client logs in by a newer token in time."""
    log = len(secured.log)
    given: list[str] = []

    def token() -> str:
        now = int(time.time())
        given.append(secured.issuer.token(iat=now, exp=now + TOKEN_SECONDS))
        return given[-1]

    keys = {
        "bootstrap.servers": secured.sasl,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "odradek.sasl.oauthbearer.token.callback": token,
    }
    topic = fresh_topic("renewed")
    with Producer(keys) as producer:
        for number in _paced():
            assert producer.send(topic, b"%d" % number).result(20)
    # There are at most two connections, of which the first is for metadata, so more tokens are renewals.
    assert len(given) > 2
    assert "login has expired" not in secured.log[log:]


@pytest.mark.java
@pytest.mark.attack
def test_the_java_client_renews_in_time(
    secured: SecuredNode, kafka_jars: object, tmp_path: Path, fresh_topic: Callable[[str], str]
) -> None:
    """Kafka's console producer sends a record now and then. All records come, and no login expires."""
    log = len(secured.log)
    jaas = f'{PLAIN_MODULE} required username="carol" password="carol-secret";'
    path = tmp_path / "client.properties"
    path.write_text(f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.jaas.config={jaas}\n")
    topic = fresh_topic("renewed")
    tool = [*java_arguments(), "org.apache.kafka.tools.ConsoleProducer"]
    options = ["--bootstrap-server", secured.renewing, "--topic", topic, "--command-config", str(path)]
    with subprocess.Popen(
        [*tool, *options], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as java:
        assert java.stdin is not None
        sent = 0
        for number in _paced():
            java.stdin.write(f"{number}\n")
            java.stdin.flush()
            sent += 1
        _, errors = java.communicate(timeout=60)
    assert java.returncode == 0, errors
    reader = confluent_kafka.Consumer({"bootstrap.servers": secured.plaintext, "group.id": topic})
    assert reader.get_watermark_offsets(confluent_kafka.TopicPartition(topic, 0), 20) == (0, sent)
    reader.close()
    assert "login has expired" not in secured.log[log:]


def _log_in(client: RawClient, password: str = "carol-secret") -> int:
    client.send(frame(SaslHandshakeRequest("PLAIN"), 1))
    assert not client.receive(17, 1).error_code
    client.send(frame(SaslAuthenticateRequest(f"\0carol\0{password}".encode()), 2))
    code: int = client.receive(36, 2).error_code
    return code


def test_a_login_that_is_not_renewed_ends_with_the_next_request(secured: SecuredNode) -> None:
    """A request after the login has expired closes the connection. A renewal is still possible then."""
    with RawClient(secured.renewing) as idle, RawClient(secured.renewing) as late:
        assert (_log_in(idle), _log_in(late)) == (0, 0)
        time.sleep(LIFETIME_SECONDS + 0.1)  # this test is about the lifetime itself
        idle.send(frame(MetadataRequest([]), 9))
        with pytest.raises(ConnectionError):
            idle.read_frame()
        assert _log_in(late) == 0
        late.send(frame(MetadataRequest([]), 9))
        assert late.receive(3, 9).brokers


def test_a_refused_renewal_is_answered_and_ends_the_connection(secured: SecuredNode) -> None:
    """A renewal is refused. It gets an answer, and the connection ends without serving later requests."""
    with RawClient(secured.renewing) as client:
        assert _log_in(client) == 0
        client.send(frame(SaslHandshakeRequest("PLAIN"), 1))
        assert not client.receive(17, 1).error_code
        tokens = frame(SaslAuthenticateRequest(b"\0carol\0wrong"), 2)
        client.send(tokens + frame(MetadataRequest([]), 9))
        assert client.receive(36, 2).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        with pytest.raises(ConnectionError):
            client.read_frame()
