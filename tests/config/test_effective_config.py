"""Effective values, their sources and synonyms are those that Apache Kafka 4.3 described. Its answers are recorded.

`record_describe_configs.py` made the data: a broker with unusual settings, a topic with overrides, and a topic without.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from odradek.data_plane.log.log_config import log_config
from odradek.metadata_quorum.config.effective_config import (
    BrokerConfigLayers,
    ConfigEntry,
    ConfigSource,
    describe_broker_config,
    describe_topic_config,
    topic_creation_entries,
    topic_value,
)
from odradek.node.configuration.node_config import NodeConfig
from tests.config.record_describe_configs import TUNED

RECORDED: dict[str, Any] = json.loads((Path(__file__).parent / "data" / "described.json").read_text())

# Kafka's format sets this dynamic default in a new cluster, since eligible leader replicas are enabled there.
LAYERS = BrokerConfigLayers(
    NodeConfig.from_properties(RECORDED["properties"]).config_layers.static, {}, {"min.insync.replicas": "1"}
)


def recorded_form(entries: list[ConfigEntry]) -> dict[str, list[Any]]:
    return {
        entry.name: [
            entry.value,
            entry.source,
            entry.sensitive,
            entry.read_only,
            entry.type,
            [[synonym.name, synonym.value, synonym.source] for synonym in entry.synonyms],
        ]
        for entry in entries
    }


@pytest.mark.parametrize(("topic", "overrides"), [("plain", {}), ("tuned", TUNED)])
def test_a_topic_is_described_as_kafka_does(topic: str, overrides: dict[str, str]) -> None:
    """Value, source, type and synonyms of every topic key are Kafka's. A topic's own value is shown as it was
    parsed."""
    found = recorded_form(describe_topic_config(overrides, LAYERS))
    assert found.keys() == RECORDED[topic].keys()
    for name, entry in RECORDED[topic].items():
        assert [name, *found[name]] == [name, *entry]


def test_a_broker_is_described_as_kafka_does() -> None:
    """All 340 broker keys that are not internal are described as by Kafka."""
    found = recorded_form(describe_broker_config(LAYERS))
    assert found.keys() == RECORDED["broker"].keys()
    for name, entry in RECORDED["broker"].items():
        assert [name, *found[name]] == [name, *entry]


def test_only_dynamic_values_of_the_default_broker() -> None:
    """An empty broker name asks for the dynamic values of all brokers, and nothing else is in the answer."""
    entries = describe_broker_config(LAYERS, for_all=True)
    assert [(entry.name, entry.source) for entry in entries] == [
        ("min.insync.replicas", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)
    ]


def test_a_sensitive_value_is_never_shown() -> None:
    """A secret is shown neither as a value nor as a synonym."""
    entry = next(entry for entry in describe_broker_config(LAYERS) if entry.name == "ssl.key.password")
    assert RECORDED["properties"]["ssl.key.password"] == "secret"
    assert entry.sensitive
    assert "secret" not in repr(entry)


def test_logs_get_values_that_can_be_read_again() -> None:
    """As in Java, ` gzip `, `0.5d` and ` TRUE ` are valid values. A log gets them trimmed and in canonical form."""
    overrides = {
        "compression.type": " gzip ",
        "min.cleanable.dirty.ratio": "0.5d",
        "preallocate": " TRUE ",
        "retention.ms": " +77 ",
        "cleanup.policy": " compact , delete ",
    }
    config = log_config(overrides, LAYERS)
    assert (config.compression_type, config.min_cleanable_dirty_ratio) == ("gzip", 0.5)
    assert topic_value("preallocate", overrides, LAYERS) is True
    assert (config.retention_ms, config.cleanup_policy) == (77, ("compact", "delete"))


def test_a_value_of_another_version_counts_as_none() -> None:
    """A value that this version cannot read, written by a newer one, is ignored by logs and described as it is."""
    assert (
        log_config({"retention.ms": "P7D"}, BrokerConfigLayers({"log.retention.ms": "5"})).retention_ms == 5
    )
    layers = BrokerConfigLayers({"log.roll.ms": "5"}, {"log.roll.ms": "P7D", "log.retention.ms": "P7D"})
    config = log_config({}, layers)
    assert (config.segment_ms, config.retention_ms) == (5, 604_800_000)
    entries = describe_topic_config({"retention.ms": "P7D"}, LAYERS)
    assert [entry.value for entry in entries if entry.name == "retention.ms"] == ["P7D"]


def test_logs_get_milliseconds_whatever_the_unit_was() -> None:
    """A log gets milliseconds, whether the effective key counts hours, minutes or milliseconds."""
    config = log_config({}, LAYERS)
    assert config.retention_ms == 360_000_000
    assert config.segment_ms == 5_000_000
    assert config.segment_jitter_ms == 7_200_000
    stronger = BrokerConfigLayers({"log.retention.hours": "1", "log.retention.minutes": "2"})
    assert log_config({}, stronger).retention_ms == 120_000
    assert log_config({"retention.ms": "5"}, stronger).retention_ms == 5
    dynamic = BrokerConfigLayers({"log.retention.ms": "1"}, {"log.retention.hours": "1"})
    assert log_config({}, dynamic).retention_ms == 3_600_000


def test_a_new_topics_configuration_is_reported_as_given() -> None:
    """From version 5 on, CreateTopics answers with the sorted configuration of the topic. Values are the texts of the
    request, each with its source."""
    entries = topic_creation_entries({"retention.ms": " 5 "}, LAYERS)
    assert [entry.name for entry in entries] == sorted(entry.name for entry in entries)
    assert len(entries) == 33
    by_name = {entry.name: entry for entry in entries}
    assert by_name["retention.ms"].value == " 5 "
    assert by_name["retention.ms"].source is ConfigSource.DYNAMIC_TOPIC_CONFIG
    assert by_name["segment.ms"].source is ConfigSource.STATIC_BROKER_CONFIG
    assert by_name["min.insync.replicas"].source is ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
    assert by_name["preallocate"].source is ConfigSource.DEFAULT_CONFIG


def test_a_key_of_one_listener_is_described_with_the_one_of_all_behind_it() -> None:
    """As in Kafka 4.3, a listener's key has the general key among its synonyms. Secrets and unknown keys have
    no value."""
    base, own = "max.connections", "listener.name.plaintext.max.connections"
    jaas = "listener.name.plaintext.plain.sasl.jaas.config"
    layers = BrokerConfigLayers(
        {own: "1000", jaas: "planted-58", "sasl.jaas.config": "planted-59", "my.unknown": "planted-60"},
        {base: "900"},
    )
    described = {entry.name: entry for entry in describe_broker_config(layers)}
    entry = described[own]
    assert (entry.value, entry.source, entry.sensitive) == ("1000", ConfigSource.STATIC_BROKER_CONFIG, False)
    assert [(each.name, each.value, each.source) for each in entry.synonyms] == [
        (own, "1000", ConfigSource.STATIC_BROKER_CONFIG),
        (base, "2147483647", ConfigSource.DEFAULT_CONFIG),
    ]
    assert [each.name for each in described[jaas].synonyms] == [jaas, "sasl.jaas.config"]
    assert "planted" not in str(described)
