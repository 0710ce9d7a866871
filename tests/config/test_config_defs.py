"""Values are parsed as by Kafka's ConfigDef. The messages were compared with those of Apache Kafka 4.3."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.metadata_quorum.config.config_defs import (
    ConfigDef,
    ConfigError,
    ConfigValue,
    broker_defs,
    group_defs,
    topic_defs,
    topic_synonyms,
    topic_to_broker_synonym,
    validate_topic_configs,
)

GOOD = [
    ("retention.ms", "5", 5),
    ("retention.ms", " -1 ", -1),
    ("retention.ms", "+7", 7),
    ("retention.ms", "9223372036854775807", (1 << 63) - 1),
    ("min.insync.replicas", "2147483647", 2147483647),
    ("preallocate", "TRUE", True),
    ("preallocate", " false", False),
    ("cleanup.policy", "", []),
    ("cleanup.policy", "compact", ["compact"]),
    ("cleanup.policy", " compact , delete ", ["compact", "delete"]),
    ("cleanup.policy", "delete,delete", ["delete", "delete"]),
    ("compression.type", "zstd", "zstd"),
    ("compression.gzip.level", "-1", -1),
    ("compression.gzip.level", "9", 9),
    ("compression.zstd.level", "-131072", -131072),
    ("min.cleanable.dirty.ratio", ".5", 0.5),
    ("min.cleanable.dirty.ratio", "1e-2", 0.01),
    ("min.cleanable.dirty.ratio", "0.25f", 0.25),
    ("leader.replication.throttled.replicas", "*", ["*"]),
    ("leader.replication.throttled.replicas", "0:1,1:2", ["0:1", "1:2"]),
    ("leader.replication.throttled.replicas", "", []),
    ("leader.replication.throttled.replicas", "0:1,", ["0:1", ""]),
    ("leader.replication.throttled.replicas", ",*", ["", "*"]),
    ("leader.replication.throttled.replicas", "99999999999:1", ["99999999999:1"]),
]


@pytest.mark.parametrize(("name", "text", "value"), GOOD)
def test_values_that_kafka_takes(name: str, text: str, value: ConfigValue) -> None:
    """Blanks around a value and around each item of a list are removed. Booleans may have any case."""
    assert topic_defs()[name].parse(text) == value
    validate_topic_configs({name: text})


BAD = [
    ("retention.ms", "abc", "Invalid value abc for configuration retention.ms: Not a number of type LONG"),
    ("retention.ms", "", "Invalid value  for configuration retention.ms: Not a number of type LONG"),
    (
        "retention.ms",
        "1_000",
        "Invalid value 1_000 for configuration retention.ms: Not a number of type LONG",
    ),
    ("retention.ms", "9223372036854775808", "Not a number of type LONG"),
    ("retention.ms", "-5", "Invalid value -5 for configuration retention.ms: Value must be at least -1"),
    ("min.insync.replicas", "99999999999", "Not a number of type INT"),
    ("min.insync.replicas", "1.0", "Not a number of type INT"),
    ("min.insync.replicas", "0", "Value must be at least 1"),
    ("preallocate", "yes", "Expected value to be either true or false"),
    (
        "cleanup.policy",
        "compact,foo",
        "Invalid value foo for configuration cleanup.policy: String must be one of",
    ),
    ("cleanup.policy", "compact,", "Configuration 'cleanup.policy' values must not be empty."),
    ("message.timestamp.type", "createtime", "String must be one of: CreateTime, LogAppendTime"),
    ("compression.gzip.level", "0", "Value must be between 1 and 9 or equal to -1"),
    ("compression.gzip.level", "10", "Value must be between 1 and 9 or equal to -1"),
    ("compression.zstd.level", "23", "Value must be no more than 22"),
    ("min.cleanable.dirty.ratio", "2", "Invalid value 2.0 for configuration"),
    ("min.cleanable.dirty.ratio", "x", "Not a number of type DOUBLE"),
    ("min.cleanable.dirty.ratio", "0_1", "Not a number of type DOUBLE"),
    ("leader.replication.throttled.replicas", "0:1,1", "Invalid value [0:1, 1] for configuration"),
    ("segment.bytes", "1", "Value must be at least 1048576"),
    ("no.such.key", "1", "Unknown topic config name: no.such.key"),
]


@pytest.mark.parametrize(("name", "text", "message"), BAD)
def test_values_that_kafka_refuses(name: str, text: str, message: str) -> None:
    """A value that Kafka refuses raises one line with the key, the value and the allowed values."""
    with pytest.raises(ConfigError) as caught:
        validate_topic_configs({name: text})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.key == name


def test_keys_that_contradict_each_other_are_refused() -> None:
    """Two topic keys that are valid alone but contradict each other are refused, as by Kafka's LogConfig."""
    with pytest.raises(ConfigError, match=r"min\.compaction\.lag\.ms \(2\) > max\.compaction\.lag\.ms \(1\)"):
        validate_topic_configs({"min.compaction.lag.ms": "2", "max.compaction.lag.ms": "1"})
    with pytest.raises(ConfigError, match="Tiered Storage functionality is disabled"):
        validate_topic_configs({"remote.storage.enable": "true"})
    validate_topic_configs({"remote.storage.enable": "true"}, remote_storage=True)


@pytest.mark.parametrize(
    "definition", [*broker_defs().values(), *topic_defs().values(), *group_defs().values()]
)
def test_every_default_prints_as_it_is_written(definition: ConfigDef) -> None:
    """Each default in the table can be parsed, and its canonical text is the text in the table."""
    if definition.default is None or definition.required:
        assert definition.default_value() is None
    else:
        assert definition.canonical(definition.default) == definition.default


@given(st.sampled_from(sorted(broker_defs())), st.text(max_size=30))
def test_any_text_is_parsed_or_refused(name: str, text: str) -> None:
    """Any text of a properties file gives a value or a `ConfigError`. A value's text parses to the same value."""
    definition = broker_defs()[name]
    try:
        shown = definition.text_of(definition.parse(text))
    except ConfigError as error:
        outcome = str(error)
    else:
        assert shown is not None
        assert definition.text_of(definition.parse(shown)) == shown
        outcome = name
    assert name in outcome


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1e-5, "1.0E-5"),
        (1.7976931348623157e308, "1.7976931348623157E308"),
        (1e7, "1.0E7"),
        (123456789.0, "1.23456789E8"),
        (0.001, "0.001"),
        (0.0, "0.0"),
        (-2.5e-4, "-2.5E-4"),
        (float("inf"), "Infinity"),
    ],
)
def test_doubles_print_as_in_java(value: float, text: str) -> None:
    """DescribeConfigs shows a double as Java's Double.toString prints it."""
    assert topic_defs()["min.cleanable.dirty.ratio"].text_of(value) == text


def test_synonyms_name_keys_that_exist() -> None:
    """Every broker key behind a topic key is in the table. If it counts minutes or hours, its name ends with the
    unit."""
    for name in topic_defs():
        for synonym in topic_synonyms(name):
            assert synonym.name in broker_defs()
            unit = {1: None, 60_000: "minutes", 3_600_000: "hours"}[synonym.milliseconds]
            assert unit is None or synonym.name.endswith(unit)
    assert topic_to_broker_synonym("segment.bytes") == "log.segment.bytes"
    assert topic_to_broker_synonym("remote.storage.enable") is None
