"""Other clients behind one interface.

Each produces and reads a record, with the configuration keys that it has for a login.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiokafka
import aiokafka.abc
import attrs
import confluent_kafka
import kafka
import kafka.net.sasl.oauth
from cryptography.hazmat.primitives import serialization

from tests.security.secured_node import SecuredNode

__all__ = ["LOGINS", "Login", "by_aiokafka", "by_confluent_kafka", "by_kafka_python", "java_properties"]

MODULES = {
    "PLAIN": "plain.PlainLoginModule",
    "SCRAM-SHA-256": "scram.ScramLoginModule",
    "SCRAM-SHA-512": "scram.ScramLoginModule",
    "OAUTHBEARER": "oauthbearer.OAuthBearerLoginModule",
}
PACKAGE = "org.apache.kafka.common.security."


@attrs.frozen
class Login:
    """A way to log in over TLS. Without a mechanism, the login is by certificate."""

    mechanism: str | None
    user: str = ""

    @property
    def password(self) -> str:
        return f"{self.user}-secret"


LOGINS = {
    "PLAIN": Login("PLAIN", "carol"),
    "SCRAM-SHA-256": Login("SCRAM-SHA-256", "alice"),
    "SCRAM-SHA-512": Login("SCRAM-SHA-512", "bob"),
    "OAUTHBEARER": Login("OAUTHBEARER"),
    "certificate": Login(None),
}


def _bootstrap(secured: SecuredNode, login: Login) -> str:
    return secured.tls if login.mechanism is None else secured.sasl_tls


def by_confluent_kafka(secured: SecuredNode, login: Login, topic: str) -> bytes | None:
    """Produce a record by librdkafka, and return the record that it reads."""
    keys: dict[str, Any] = {
        "bootstrap.servers": _bootstrap(secured, login),
        "security.protocol": "SSL" if login.mechanism is None else "SASL_SSL",
        "ssl.ca.location": secured.authority,
        "ssl.endpoint.identification.algorithm": "https",
    }
    if login.mechanism is None:
        keys |= {"ssl.certificate.location": secured.client_pem, "ssl.key.location": secured.client_pem}
    elif login.mechanism == "OAUTHBEARER":
        keys |= {
            "sasl.mechanism": login.mechanism,
            "oauth_cb": lambda _: (secured.issuer.token(), time.time() + 600),
        }
    else:
        keys |= {
            "sasl.mechanism": login.mechanism,
            "sasl.username": login.user,
            "sasl.password": login.password,
        }
    producer = confluent_kafka.Producer(keys)
    producer.produce(topic, b"value")
    assert producer.flush(20) == 0
    consumer = confluent_kafka.Consumer({**keys, "group.id": topic})
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    try:
        message = consumer.poll(20)
        return None if message is None or message.error() else message.value()
    finally:
        consumer.close()


class _Tokens(kafka.net.sasl.oauth.AbstractTokenProvider):
    def __init__(self, secured: SecuredNode) -> None:
        self._secured = secured

    def token(self) -> str:
        return self._secured.issuer.token()


def by_kafka_python(secured: SecuredNode, login: Login, topic: str) -> bytes | None:
    """Produce a record by kafka-python, and return the record that it reads."""
    keys: dict[str, Any] = {
        "bootstrap_servers": _bootstrap(secured, login),
        "security_protocol": "SSL" if login.mechanism is None else "SASL_SSL",
        "ssl_cafile": secured.authority,
        "sasl_mechanism": login.mechanism,
    }
    if login.mechanism is None:
        keys |= {"ssl_certfile": secured.client_pem, "ssl_keyfile": secured.client_pem}
    elif login.mechanism == "OAUTHBEARER":
        keys |= {"sasl_oauth_token_provider": _Tokens(secured)}
    else:
        keys |= {"sasl_plain_username": login.user, "sasl_plain_password": login.password}
    producer = kafka.KafkaProducer(**keys)
    try:
        producer.send(topic, b"value").get(20)
    finally:
        producer.close()
    consumer = kafka.KafkaConsumer(**keys, consumer_timeout_ms=20_000)
    try:
        place = kafka.TopicPartition(topic, 0)
        consumer.assign([place])
        consumer.seek_to_beginning(place)
        return next((record.value for record in consumer), None)
    finally:
        consumer.close()


class _AsyncTokens(aiokafka.abc.AbstractTokenProvider):
    def __init__(self, secured: SecuredNode) -> None:
        self._secured = secured

    async def token(self) -> str:
        return self._secured.issuer.token()


def by_aiokafka(secured: SecuredNode, login: Login, topic: str) -> bytes | None:
    """Produce a record by aiokafka, and return the record that it reads."""
    context = ssl.create_default_context(cafile=secured.authority)
    keys: dict[str, Any] = {
        "bootstrap_servers": _bootstrap(secured, login),
        "security_protocol": "SSL" if login.mechanism is None else "SASL_SSL",
        "ssl_context": context,
    }
    if login.mechanism is None:
        context.load_cert_chain(secured.client_pem)
    else:
        keys["sasl_mechanism"] = login.mechanism
        if login.mechanism == "OAUTHBEARER":
            keys["sasl_oauth_token_provider"] = _AsyncTokens(secured)
        else:
            keys |= {"sasl_plain_username": login.user, "sasl_plain_password": login.password}

    async def talk() -> bytes | None:
        async with aiokafka.AIOKafkaProducer(**keys) as producer:
            await producer.send_and_wait(topic, b"value")
        async with aiokafka.AIOKafkaConsumer(**keys) as consumer:
            place = aiokafka.TopicPartition(topic, 0)
            consumer.assign([place])
            await consumer.seek_to_beginning(place)
            record = await asyncio.wait_for(consumer.getone(), 20)
            return record.value

    return asyncio.run(talk())


def _write_pkcs8(source: Path, target: Path) -> None:
    """Write key and certificates as Java reads them, with the key in PKCS #8."""
    data = source.read_bytes()
    key = serialization.load_pem_private_key(data, None).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    target.write_bytes(key + data[data.index(b"-----BEGIN CERTIFICATE") :])


def java_properties(secured: SecuredNode, login: Login, directory: Path) -> Mapping[str, str]:
    """Return the keys of Java's client for a login. A token is written to a file in `directory`."""
    keys = {
        "security.protocol": "SSL" if login.mechanism is None else "SASL_SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": secured.authority,
    }
    if login.mechanism is None:
        _write_pkcs8(Path(secured.client_pem), directory / "client.pem")
        return {**keys, "ssl.keystore.type": "PEM", "ssl.keystore.location": str(directory / "client.pem")}
    options = f'username="{login.user}" password="{login.password}"'
    keys["sasl.mechanism"] = login.mechanism
    if login.mechanism == "OAUTHBEARER":
        (directory / "token.jwt").write_text(secured.issuer.token())
        options = ""
        keys |= {
            "sasl.oauthbearer.token.endpoint.url": f"file://{directory}/token.jwt",
            "sasl.login.callback.handler.class": f"{PACKAGE}oauthbearer.OAuthBearerLoginCallbackHandler",
        }
    return {**keys, "sasl.jaas.config": f"{PACKAGE}{MODULES[login.mechanism]} required {options};"}
