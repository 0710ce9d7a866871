"""Names of kafka-python, aiokafka and confluent-kafka.

A name with an equivalent here is accepted. The error for any other name says what to use here.
"""

from __future__ import annotations

import logging
import re
import threading
from typing import Any

import attrs
import pytest

from odradek import Admin, Consumer, Producer
from odradek.client.core.client_keys import (
    NEUTRAL_ONLY,
    WITHOUT_EFFECT,
    AdminSettings,
    CommonSettings,
    ConsumerSettings,
    ProducerSettings,
)
from odradek.client.core.familiar_names import (
    AIOKAFKA,
    FAMILIAR_ARGUMENTS,
    FAMILIAR_KEYS,
    FAMILIAR_METHODS,
    FamiliarKey,
    FamiliarMethod,
    Treatment,
)
from odradek.client.shells.aio_admin import AsyncAdmin
from odradek.client.shells.aio_consumer import AsyncConsumer
from odradek.client.shells.aio_producer import AsyncProducer
from tests.client.core.test_client_log import nobody
from tests.client.shells.familiar_page import PAGE, page_with_tables

__all__ = ["nobody"]

SERVERS: dict[str, Any] = {"bootstrap.servers": "a:1"}
KINDS: tuple[type[CommonSettings], ...] = (ProducerSettings, ConsumerSettings, AdminSettings)
FACES: dict[str, tuple[type, type]] = {
    "Producer": (Producer, AsyncProducer),
    "Consumer": (Consumer, AsyncConsumer),
    "Admin": (Admin, AsyncAdmin),
}
GOOD_VALUES: dict[str, Any] = {
    "odradek.consumer.timeout.ms": 1000,
    "bootstrap.servers": "b:2",
    "linger.ms": 7,
    "compression.type": "gzip",
    "retries": 3,
    "acks": "1",
    "fetch.max.wait.ms": 100,
    "max.partition.fetch.bytes": 1000,
}
"""Values of keys that do not accept text."""


def keys_of(treatment: Treatment) -> list[Any]:
    """Return pytest parameters for the table's keys with this treatment."""
    return [pytest.param(key, id=key.name) for key in FAMILIAR_KEYS if key.treatment is treatment]


def with_key(key: str) -> type[CommonSettings]:
    """Return the settings class that has this key."""
    name = key.replace(".", "_")
    return next(kind for kind in KINDS if name in {field.name for field in attrs.fields(kind)})


@pytest.mark.parametrize("key", keys_of(Treatment.ACCEPTED))
def test_a_key_that_is_taken_is_ours_by_another_name(key: FamiliarKey) -> None:
    """An accepted key is another name of our key.

    Equal values give equal settings, None changes nothing, and setting both keys is an error.
    """
    kind, value = with_key(key.ours), GOOD_VALUES.get(key.ours, "x")
    servers = {} if key.ours == "bootstrap.servers" else SERVERS
    ours = kind.from_properties({**servers, key.ours: value, **dict(key.also)})
    assert kind.from_properties({**servers, key.name: value}) == ours
    assert kind.from_properties({**servers, key.name.replace(".", "_"): value}) == ours
    if servers:
        assert kind.from_properties({**servers, key.name: None}) == kind.from_properties(servers)
    both = {**servers, key.ours: value, key.name: value}
    with pytest.raises(
        ValueError, match=f"{re.escape(key.ours)} and {re.escape(key.name)} are two names of one key"
    ):
        kind.from_properties(both)


@pytest.mark.parametrize("key", keys_of(Treatment.IGNORED))
def test_a_key_that_is_ignored_is_said_once(key: FamiliarKey, caplog: pytest.LogCaptureFixture) -> None:
    """An ignored key changes nothing, whatever its value is, and the log says so once."""
    assert ProducerSettings.from_properties(
        {**SERVERS, key.name: (2, 6)}
    ) == ProducerSettings.from_properties(SERVERS)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.message == f"keys that have no effect in this client: {key.name}"


@pytest.mark.parametrize("key", keys_of(Treatment.REFUSED))
def test_the_error_of_a_key_names_ours(key: FamiliarKey) -> None:
    """A key that this client lacks is an error with advice. Each key that the advice names is one of ours."""
    advice = key.ours.replace("`", "")
    with pytest.raises(
        ValueError, match=re.escape(f"unknown configuration key '{key.name}'. In this client: {advice}")
    ):
        ConsumerSettings.from_properties({**SERVERS, key.name: 1}, on_trio=key.clients == (AIOKAFKA,))
    known = {field.name.replace("_", ".") for kind in KINDS for field in attrs.fields(kind)}
    for named in re.findall(r"`([a-z]+(?:\.[a-z]+)+)(?:=\w+)?`", key.ours):
        assert named in known | {"odradek.client", "odradek.trio"}, named


def test_no_familiar_key_is_one_of_ours() -> None:
    """The table contains only names that this client lacks. Each is listed once for each meaning."""
    known = {field.name.replace("_", ".") for kind in KINDS for field in attrs.fields(kind)}
    assert not {key.name for key in FAMILIAR_KEYS} & (known | WITHOUT_EFFECT | set(NEUTRAL_ONLY))
    readings = [(key.name, AIOKAFKA in key.clients) for key in FAMILIAR_KEYS]
    assert len(set(readings)) == len(readings)


def test_a_name_with_two_meanings_is_that_of_the_nearer_client() -> None:
    """kafka-python's `consumer_timeout_ms` ends a loop, but aiokafka's does not.

    So a consumer on trio refuses this key.
    """
    given = {**SERVERS, "consumer.timeout.ms": 200}
    assert ConsumerSettings.from_properties(given).odradek_consumer_timeout_ms == 200
    with pytest.raises(ValueError, match=r"odradek\.consumer\.timeout\.ms"):
        ConsumerSettings.from_properties(given, on_trio=True)
    endless = ConsumerSettings.from_properties({**SERVERS, "consumer.timeout.ms": float("inf")})
    assert endless.odradek_consumer_timeout_ms is None


def test_two_spellings_and_contradictions_are_named() -> None:
    """Two spellings of one key, or a value that contradicts an implied one, are an error.

    The error names the keys and hides secrets.
    """
    with pytest.raises(ValueError, match=r"linger\.ms and linger_ms are two names of one key"):
        ProducerSettings.from_properties({**SERVERS, "linger.ms": 1, "linger_ms": 1})
    with pytest.raises(ValueError, match=r"sasl_plain_username and sasl.username are two names of one key"):
        ProducerSettings.from_properties({**SERVERS, "sasl_plain_username": "a", "sasl.username": "a"})
    with pytest.raises(ValueError, match=r"ssl_cafile means ssl\.truststore\.type=PEM, which contradicts"):
        ProducerSettings.from_properties({**SERVERS, "ssl_cafile": "a", "ssl.truststore.type": "JKS"})
    with pytest.raises(ValueError, match=r"^sasl_plain_password=(?!5)"):
        ProducerSettings.from_properties({**SERVERS, "sasl_plain_password": 5})
    with pytest.raises(
        ValueError, match=r"means fetch\.max\.wait\.ms, which this kind of client does not have"
    ):
        ProducerSettings.from_properties({**SERVERS, "fetch.wait.max.ms": 5})
    with pytest.raises(TypeError, match="a configuration key is a int"):
        ProducerSettings.from_properties({**SERVERS, 5: 5})  # type: ignore[dict-item]
    with pytest.raises(
        ValueError, match=r"odradek\.ssl\.keystore\.key\.location needs ssl\.keystore\.location"
    ):
        ProducerSettings.from_properties({**SERVERS, "security_protocol": "SSL", "ssl_keyfile": "key.pem"})


def test_a_program_of_kafka_python_logs_in() -> None:
    """The security keys of a kafka-python program are accepted: name, password, certificates and private key."""
    security = ConsumerSettings.from_properties(
        {
            "bootstrap_servers": ["a:1"],
            "group_id": None,
            "api_version": (2, 6),
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": "SCRAM-SHA-512",
            "sasl_plain_username": "ann",
            "sasl_plain_password": "secret",
            "ssl_cafile": "ca.pem",
            "ssl_certfile": "own.pem",
            "ssl_keyfile": "key.pem",
        }
    ).security()
    assert security is not None
    assert security.credentials is not None
    assert security.tls is not None
    assert (security.credentials.username, security.credentials.password) == ("ann", "secret")
    assert security.tls.files == ("own.pem", "key.pem", "ca.pem")


@pytest.mark.parametrize(
    "method", [pytest.param(each, id=f"{each.of}.{each.name}") for each in FAMILIAR_METHODS]
)
def test_the_error_of_a_method_names_ours(method: FamiliarMethod) -> None:
    """A method of another client is missing here. The error names our method, which exists."""
    for face in FACES[method.of]:
        client = face.__new__(face)
        assert not hasattr(client, method.name)
        with pytest.raises(
            AttributeError, match=re.escape(f"In this client: {method.ours.replace('`', '')}")
        ):
            getattr(client, method.name)
    blocking, _ = FACES[method.of]
    for named in re.findall(r"`(?:Admin\.)?([a-z_]+)(?:\(|`)", method.ours):
        assert hasattr(blocking, named) or hasattr(Admin, named) or named == "result", named
    with pytest.raises(AttributeError, match=r"has no attribute 'quite_another'$"):
        _ = blocking.__new__(blocking).quite_another


@pytest.mark.parametrize(
    "argument", [pytest.param(each, id=f"{each.of}.{each.name}") for each in FAMILIAR_ARGUMENTS]
)
def test_the_error_of_an_argument_names_ours(argument: FamiliarMethod) -> None:
    """An unknown argument of another client raises in the call, blocking or async, and the error names ours."""
    kind, _, name = argument.of.partition(".")
    for face in FACES[kind]:
        call = getattr(face.__new__(face), name)
        with pytest.raises(TypeError, match=re.escape(f"In this client: {argument.ours.replace('`', '')}")):
            call(**{argument.name: 1})


def test_the_page_has_the_table() -> None:
    """docs/coming-from.md contains the current tables. `python -m tests.client.shells.familiar_page` writes them."""
    page = PAGE.read_text()
    assert page == page_with_tables(page)
    assert page.count("\n| `") > len(FAMILIAR_KEYS) + len(FAMILIAR_METHODS)


def test_a_poll_that_looks_like_milliseconds_is_warned_of_once(
    nobody: str, caplog: pytest.LogCaptureFixture
) -> None:
    """`poll(500)` may mean milliseconds. One warning is logged for a positional number above 300.

    A number by keyword gives no warning.
    """
    heard: list[tuple[int, str]] = []
    with Consumer(
        bootstrap_servers=nobody, odradek_on_error=lambda level, text: heard.append((level, text))
    ) as consumer:
        for call in (
            lambda: consumer.poll(timeout=1000),
            lambda: consumer.poll(300),
            lambda: consumer.poll(1000),
            lambda: consumer.poll(1000),
        ):
            consumer.wakeup()
            with pytest.raises(Exception, match="called wakeup"):
                call()
    said = [record.message for record in caplog.records if "seconds, not milliseconds" in record.message]
    assert len(said) == 1
    assert said[0].startswith("poll(1000)")
    assert (logging.WARNING, said[0]) in heard


def test_on_error_hears_what_the_log_warns_of(nobody: str) -> None:
    """`on_error` is called with the level and the text of each log line.

    It may use the client, and its own errors are ignored.
    """
    heard, bound = threading.Event(), threading.Event()
    calls: list[tuple[int, str, bool]] = []

    def on_error(level: int, text: str) -> None:
        bound.wait(10)
        calls.append((level, text, "last_error" in consumer.statistics()))
        heard.set()
        raise ValueError("this callback is broken")

    with Consumer(bootstrap_servers=nobody, group_id="g", odradek_on_error=on_error) as consumer:
        bound.set()
        consumer.subscribe(["t"])
        assert consumer.poll(0.1) == []
        assert heard.wait(10)
        assert consumer.poll(0.1) == []
    level, text, usable = calls[0]
    assert level == logging.WARNING
    assert nobody in text
    assert usable
