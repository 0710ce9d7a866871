"""Kafka's configuration keys for clients: values, defaults, contradictions and mistakes."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import attrs
import pytest

from odradek.client.core.client_keys import (
    WITHOUT_EFFECT,
    AdminSettings,
    CommonSettings,
    ConsumerSettings,
    ProducerSettings,
    merged_properties,
)

ROOT = Path(__file__).parents[3]
SERVERS = {"bootstrap.servers": "a:1, b:2"}


def test_texts_and_values_are_the_same() -> None:
    """Values as text (from a properties file) and as Python objects give equal settings."""
    texts = {"linger.ms": "20", "acks": "all", "enable.idempotence": "True", "compression.type": "zstd"}
    values = {"linger.ms": 20, "acks": -1, "enable.idempotence": True, "compression.type": "zstd"}
    settings = ProducerSettings.from_properties({**SERVERS, **texts})
    assert settings == ProducerSettings.from_properties({**SERVERS, **values})
    assert (settings.linger_ms, settings.acks, settings.enable_idempotence) == (20, -1, True)
    assert settings.bootstrap_servers == (("a", 1), ("b", 2))


@pytest.mark.parametrize(
    ("kind", "defaults"),
    [
        (ProducerSettings, {"acks": -1, "linger_ms": 5, "batch_size": 16384, "delivery_timeout_ms": 120_000}),
        (
            ConsumerSettings,
            {"max_poll_records": 500, "auto_offset_reset": "latest", "fetch_max_bytes": 52428800},
        ),
        (AdminSettings, {"default_api_timeout_ms": 60_000}),
    ],
)
def test_defaults_are_kafkas(kind: type[CommonSettings], defaults: dict[str, Any]) -> None:
    """Defaults are those of the Java clients of Apache Kafka 4.3."""
    settings = kind.from_properties(SERVERS)
    for name, value in {**defaults, "request_timeout_ms": 30_000, "retry_backoff_ms": 100}.items():
        assert getattr(settings, name) == value


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("linger.mss", 1, "unknown configuration key 'linger.mss' (did you mean linger.ms"),
        ("linger.ms", "soon", "linger.ms='soon': expected a whole number"),
        ("linger.ms", -1, "linger.ms=-1: expected a number from 0"),
        ("linger.ms", True, "linger.ms=True: expected a whole number"),
        ("acks", "2", "acks='2': expected all, -1, 0 or 1"),
        ("enable.idempotence", "yes", "enable.idempotence='yes': expected true or false"),
        ("compression.type", "rar", "compression.type='rar': expected one of none, gzip"),
        ("bootstrap.servers", "nowhere", "bootstrap.servers='nowhere': the address"),
        ("security.protocol", "SASL_SSL", "sasl.mechanism='GSSAPI' is not supported"),
        ("transactional.id", "", "transactional.id='': expected a text that is not empty"),
        ("transaction.timeout.ms", "soon", "transaction.timeout.ms='soon': expected a whole number"),
        ("key.serializer", "com.example.Mine", "key.serializer='com.example.Mine': expected a callable"),
    ],
)
def test_mistakes_are_named(key: str, value: Any, message: str) -> None:
    """The error of a mistake names the key, the mistake, and the key that was probably meant."""
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        ProducerSettings.from_properties({**SERVERS, key: value})


def test_a_cluster_must_be_named() -> None:
    """`bootstrap.servers` has no default, so it is required."""
    with pytest.raises(ValueError, match=r"bootstrap\.servers is missing"):
        ProducerSettings.from_properties({})


@pytest.mark.parametrize(
    "obstacle", [{"acks": "1"}, {"retries": 0}, {"max.in.flight.requests.per.connection": 6}]
)
def test_idempotence_gives_way_unless_it_was_asked_for(obstacle: dict[str, Any]) -> None:
    """Idempotence is on by default, and off if other keys rule it out (KIP-679).

    Setting it to true beside such a key is an error.
    """
    assert not ProducerSettings.from_properties({**SERVERS, **obstacle}).enable_idempotence
    with pytest.raises(ValueError, match=r"enable\.idempotence=true: "):
        ProducerSettings.from_properties({**SERVERS, **obstacle, "enable.idempotence": True})


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"acks": "1"}, "acks must be all"),
        ({"retries": 0}, "retries must be above 0"),
        (
            {"max.in.flight.requests.per.connection": 6},
            "max.in.flight.requests.per.connection must be at most 5",
        ),
        ({"enable.idempotence": False}, "enable.idempotence must be true"),
        (
            {"transaction.two.phase.commit.enable": True, "transaction.timeout.ms": 1},
            "transaction.timeout.ms must not be set with transaction.two.phase.commit.enable=true",
        ),
    ],
)
def test_transactions_take_what_idempotence_takes(more: dict[str, Any], reason: str) -> None:
    """A transactional id requires acks=all, retries, at most five requests in flight, and idempotence (KIP-98).

    Two-phase commit excludes a timeout (KIP-939).
    """
    with pytest.raises(ValueError, match=re.escape(reason)):
        ProducerSettings.from_properties({**SERVERS, "transactional.id": "x", **more})
    settings = ProducerSettings.from_properties({**SERVERS, "transactional.id": "x"})
    assert (settings.transactional_id, settings.transaction_timeout_ms) == ("x", 60_000)
    with pytest.raises(ValueError, match=r"needs a transactional\.id"):
        ProducerSettings.from_properties({**SERVERS, "transaction.two.phase.commit.enable": True})


def test_a_delivery_has_time_for_a_request() -> None:
    """`delivery.timeout.ms` is at least `linger.ms` plus `request.timeout.ms`.

    The default grows with them, and a smaller value is an error.
    """
    settings = ProducerSettings.from_properties({**SERVERS, "request.timeout.ms": 200_000})
    assert settings.delivery_timeout_ms == 200_005
    with pytest.raises(ValueError, match=r"delivery\.timeout\.ms"):
        ProducerSettings.from_properties({**SERVERS, "delivery.timeout.ms": 30_000})


def test_keys_without_effect_and_neutral_values_are_accepted() -> None:
    """A configuration for Kafka's clients is accepted if it uses only features that this client has.

    Keys without effect are ignored.
    """
    properties = {"metrics.num.samples": 3, "security.protocol": "plaintext", "interceptor.classes": []}
    assert ProducerSettings.from_properties({**SERVERS, **properties}) == ProducerSettings.from_properties(
        SERVERS
    )


def test_keys_without_effect_are_named_by_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    """One warning names the keys that have no effect here. Keys with values that change nothing are left out."""
    ProducerSettings.from_properties(
        {**SERVERS, "send.buffer.bytes": 1, "metric.reporters": "x", "acks": 1, "transactional.id": None}
    )
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.message == "keys that have no effect in this client: metric.reporters, send.buffer.bytes"


def test_the_page_says_why_each_key_has_no_effect() -> None:
    """The table in docs/client.md lists exactly the keys without effect, each with a reason."""
    page = (ROOT / "docs" / "client.md").read_text()
    rows = re.findall(
        r"^\| ((?:`[a-z.]+`,? ?)+) \| (.+) \|$", page.partition("## Keys without effect")[2], re.M
    )
    named = [key for keys, reason in rows if reason for key in re.findall(r"`([a-z.]+)`", keys)]
    assert sorted(named) == sorted(WITHOUT_EFFECT)


@pytest.mark.parametrize("kind", [ProducerSettings, ConsumerSettings, AdminSettings])
def test_every_key_that_is_taken_has_a_reader(kind: type[CommonSettings]) -> None:
    """The client's code reads every setting. A key whose value is never read belongs in `WITHOUT_EFFECT`."""
    read: set[str] = set()
    for path in sorted((ROOT / "odradek" / "client").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                read.add(node.attr)
    fields = [field.name for field in attrs.fields(kind)]
    assert [name for name in fields if name not in read] == []


@pytest.mark.parametrize(
    ("key", "value", "field", "found"),
    [
        ("connections.max.idle.ms", "-1", "connection_idle_max", None),
        ("connections.max.idle.ms", "1500", "connection_idle_max", 1.5),
        ("metadata.recovery.strategy", "NONE", "rebootstrap", False),
        ("metadata.recovery.rebootstrap.trigger.ms", "1000", "rebootstrap_trigger", 1.0),
        ("socket.connection.setup.timeout.max.ms", "1000", "connect_timeout_max", 1.0),
    ],
)
def test_keys_of_connections_reach_the_core(key: str, value: str, field: str, found: object) -> None:
    """Keys of connections, given as text, arrive in the core's configuration."""
    config = ConsumerSettings.from_properties({**SERVERS, key: value}).client_config()
    assert getattr(config, field) == found


@pytest.mark.parametrize(
    ("kind", "idle_seconds"), [(ProducerSettings, 540), (ConsumerSettings, 540), (AdminSettings, 300)]
)
def test_defaults_of_connections_are_kafkas(kind: type[CommonSettings], idle_seconds: int) -> None:
    """Defaults of connections are those of Kafka 4.3: idle time, setup timeouts, and rebootstrap."""
    config = kind.from_properties(SERVERS).client_config()
    assert (config.connection_idle_max, config.connect_timeout, config.connect_timeout_max) == (
        idle_seconds,
        10,
        30,
    )
    assert (config.rebootstrap, config.rebootstrap_trigger) == (True, 300)


@pytest.mark.parametrize(
    ("value", "fine"),
    [
        ("by_duration:P1DT2H3.5S", True),
        ("by_duration:PT0.5S", True),
        ("by_duration:P", False),
        ("first", False),
    ],
)
def test_offset_resets(value: str, fine: bool) -> None:
    """`auto.offset.reset` accepts a duration in ISO 8601 (KIP-1106)."""
    properties = {**SERVERS, "auto.offset.reset": value}
    if fine:
        assert ConsumerSettings.from_properties(properties).auto_offset_reset == value
    else:
        with pytest.raises(ValueError, match=r"auto\.offset\.reset"):
            ConsumerSettings.from_properties(properties)


def test_keywords_are_keys_with_underscores() -> None:
    """Keyword arguments are keys with underscores. They override the mapping."""
    assert merged_properties({"linger.ms": 1, "acks": 0}, {"linger_ms": 2}) == {"linger.ms": 2, "acks": 0}
