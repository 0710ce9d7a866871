"""Layers of configuration: a node uses and describes the same value, which is that of the strongest layer."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.data_plane.broker_settings import BrokerSettings
from odradek.data_plane.groups.group_settings import GroupSettings
from odradek.data_plane.log.directory.log_dir import LogDirContext
from odradek.data_plane.log.log_config import LogConfig, log_config
from odradek.data_plane.metadata_log import MetadataLogSettings, MetadataRetention
from odradek.data_plane.replication.replication_settings import ReplicationSettings
from odradek.metadata_quorum.config.config_defs import (
    ConfigDef,
    broker_defs,
    group_defs,
    group_synonym,
    topic_defs,
    topic_synonyms,
)
from odradek.metadata_quorum.config.config_values import ConfigError, check_value
from odradek.metadata_quorum.config.effective_config import (
    MIN_ISR,
    BrokerConfigLayers,
    ConfigEntry,
    ConfigSource,
    broker_value,
    describe_broker_config,
    describe_group_config,
    describe_topic_config,
    group_value,
    topic_value,
)
from odradek.metadata_quorum.config.typed_settings import setting_of_field, settings_of
from odradek.metadata_quorum.controller.controller_settings import ControllerSettings
from odradek.metadata_quorum.controller.partitions.topic_rules import TopicRules
from odradek.metadata_quorum.raft.core_state import RaftConfig
from odradek.metadata_quorum.replica.snapshots import SnapshotSettings
from odradek.node.broker_lifecycle import LifecycleSettings
from odradek.node.configuration.dynamic_config import DynamicSettings
from odradek.node.configuration.node_config import NodeConfig
from odradek.node.connections.connection_limits import ConnectionLimits
from odradek.node.connections.listener_settings import ListenerSettings
from odradek.wire.config_resources import RESOURCE_BROKER, RESOURCE_GROUP, RESOURCE_TOPIC
from testkit.lone_node import SETTINGS

ROOT = Path(__file__).parents[2]
CLASSES: tuple[type, ...] = (
    BrokerSettings,
    ConnectionLimits,
    ControllerSettings,
    DynamicSettings,
    GroupSettings,
    LifecycleSettings,
    ListenerSettings,
    LogConfig,
    LogDirContext,
    MetadataLogSettings,
    MetadataRetention,
    RaftConfig,
    ReplicationSettings,
    SnapshotSettings,
    TopicRules,
)
TEXTS = (
    *("-2", "-1", "0", "1", "2", "4", "17", "1000", "5000", "60000", "1048576", "104857600"),
    *(" 77 ", "0.5", "0.25", "true", " FALSE", "gzip", "zstd", "producer", "uncompressed"),
    *("compact", "delete", "compact,delete", "LogAppendTime", "CreateTime", "PLAINTEXT", "earliest", "0:1"),
)
ALTERNATIVES = frozenset(
    f"log.{name}.{unit}"
    for name in ("retention", "roll", "roll.jitter")
    for unit in ("ms", "minutes", "hours")
) | {"log.flush.interval.ms", "log.flush.scheduler.interval.ms"}
"""Broker keys that replace each other, such as minutes and hours. tests/config/test_effective_config.py tests them."""


@cache
def accepted(kind: int, name: str) -> tuple[str, ...]:
    """Return the texts of `TEXTS` that this key accepts."""
    found = []
    for text in TEXTS:
        try:
            check_value(kind, name, text)
        except ConfigError:
            continue
        found.append(text)
    return tuple(found)


def layer_of(kind: int, definitions: Mapping[str, ConfigDef]) -> st.SearchStrategy[dict[str, str]]:
    """Generate a few keys with accepted values. They are few so that several layers often set the same key."""
    names = sorted(name for name in definitions if accepted(kind, name) and name not in ALTERNATIVES)
    some = st.lists(st.sampled_from(names), max_size=12, unique=True)
    return some.flatmap(
        lambda keys: st.fixed_dictionaries({key: st.sampled_from(accepted(kind, key)) for key in keys})
    )


BROKER_LAYER = st.deferred(lambda: layer_of(RESOURCE_BROKER, broker_defs()))
TOPIC_LAYER = st.deferred(lambda: layer_of(RESOURCE_TOPIC, topic_defs()))
GROUP_LAYER = st.deferred(lambda: layer_of(RESOURCE_GROUP, group_defs()))
LAYERS = st.builds(BrokerConfigLayers, BROKER_LAYER, BROKER_LAYER, BROKER_LAYER, st.booleans())


def strongest(
    name: str, layers: BrokerConfigLayers, own: ConfigDef | None = None
) -> tuple[Any, ConfigSource]:
    """Look a key up by the plain rule: value and source of the first layer that has it, or the table's default."""
    for source, layer in (
        (ConfigSource.DYNAMIC_BROKER_CONFIG, layers.dynamic),
        (ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG, layers.dynamic_default),
        (ConfigSource.STATIC_BROKER_CONFIG, layers.static),
    ):
        if name in layer:
            return (own or broker_defs()[name]).parse(layer[name]), source
    return (own or broker_defs()[name]).default_value(), ConfigSource.DEFAULT_CONFIG


def told(entries: list[ConfigEntry], name: str, definition: ConfigDef) -> tuple[Any, ConfigSource]:
    """Return the value and source that DescribeConfigs shows."""
    (entry,) = (each for each in entries if each.name == name)
    return None if entry.value is None else definition.parse(entry.value), entry.source


@settings(max_examples=50, deadline=None)
@given(LAYERS)
def test_a_brokers_value_is_that_of_the_strongest_layer(layers: BrokerConfigLayers) -> None:
    """A broker's value is its own dynamic one, else that of all brokers, else the file's, else the table's default."""
    entries = describe_broker_config(layers)
    described = {entry.name for entry in entries}
    for name, definition in broker_defs().items():
        value, source = strongest(name, layers)
        assert broker_value(name, layers) == value, name
        if name in described and name not in ALTERNATIVES and not definition.sensitive:
            in_words = definition.text_of(value), source
            (entry,) = (each for each in entries if each.name == name)
            if source is not ConfigSource.DEFAULT_CONFIG:
                assert (entry.value, entry.source) == in_words
            else:
                assert entry.source is source


@settings(max_examples=50, deadline=None)
@given(TOPIC_LAYER, LAYERS)
def test_a_topics_value_is_that_of_the_strongest_layer(
    overrides: dict[str, str], layers: BrokerConfigLayers
) -> None:
    """A topic's own value beats all values of the broker. A log uses the value that DescribeConfigs shows."""
    entries = describe_topic_config(overrides, layers)
    described = {entry.name for entry in entries}
    for name, definition in topic_defs().items():
        if name in overrides:
            expected = definition.parse(overrides[name]), ConfigSource.DYNAMIC_TOPIC_CONFIG
            assert (topic_value(name, overrides, layers)) == expected[0]
            assert told(entries, name, definition) == expected
            continue
        if name in described:
            assert told(entries, name, definition)[0] == topic_value(name, overrides, layers), name
        synonyms = topic_synonyms(name)
        if len(synonyms) == 1 and not (name == MIN_ISR and layers.one_min_isr):
            assert topic_value(name, overrides, layers) == strongest(synonyms[0].name, layers, definition)[0]
    config = log_config(overrides, layers)
    for field in attrs.fields(LogConfig):
        followed = setting_of_field(field)
        if followed is not None and not (name := followed.definition.name).startswith("segment.bytes"):
            shown = told(entries, name, followed.definition)[0]
            assert getattr(config, field.name) == followed.of(shown), name


@settings(max_examples=30, deadline=None)
@given(GROUP_LAYER, LAYERS)
def test_a_groups_value_is_that_of_the_strongest_layer(
    overrides: dict[str, str], layers: BrokerConfigLayers
) -> None:
    """A group's own value beats the values of the broker key that gives it its default."""
    entries = describe_group_config(overrides, layers)
    for name, definition in group_defs().items():
        followed = group_synonym(name)
        if name in overrides:
            expected = definition.parse(overrides[name]), ConfigSource.DYNAMIC_GROUP_CONFIG
        elif followed is not None:
            expected = strongest(followed, layers)
        else:
            expected = definition.default_value(), ConfigSource.DEFAULT_CONFIG
        assert group_value(name, overrides, layers) == expected[0], name
        assert told(entries, name, definition) == expected, name


@pytest.mark.parametrize("kind", CLASSES)
def test_defaults_of_settings_are_the_tables(kind: type) -> None:
    """A settings field that follows a key has the table's default, in the type of the field."""
    followed = {field.name: found for field in attrs.fields(kind) if (found := setting_of_field(field))}
    assert followed
    types = {"int": int, "float": float, "bool": bool, "str": str}
    for name, found in followed.items():
        field = getattr(attrs.fields(kind), name)
        assert field.default == found.of(found.definition.default_value())
        wanted = types.get(field.type)
        assert type(field.default) is wanted if wanted else isinstance(field.default, tuple), name


@settings(max_examples=30, deadline=None)
@given(LAYERS, st.sampled_from([each for each in CLASSES if each not in (LogConfig, TopicRules)]))
def test_settings_have_the_values_that_hold(layers: BrokerConfigLayers, kind: type) -> None:
    """A settings field that follows a key has the value in force, in the field's unit, for any layers."""
    others = {
        field.name: None
        for field in attrs.fields(kind)
        if (field.default is attrs.NOTHING or getattr(field.default, "takes_self", False))
        and not setting_of_field(field)
    }
    made = settings_of(kind, layers, **others)
    for field in attrs.fields(kind):
        followed = setting_of_field(field)
        if followed is not None:
            holds = broker_value(followed.definition.name, layers)
            assert getattr(made, field.name) == followed.of(holds), field.name


@settings(max_examples=30, deadline=None)
@given(BROKER_LAYER)
def test_a_node_starts_with_what_its_layers_say(static: dict[str, str]) -> None:
    """A node may read a key directly or as a field of its settings. Both give the same value."""
    try:
        config = NodeConfig.from_properties(static | SETTINGS)
    except ConfigError:
        return
    for name in broker_defs():
        assert config.get(name) == broker_value(name, config.config_layers) or name == "broker.id"


OURS = {
    "RaftConfig.fetch_wait_seconds_max": "a constant of Kafka's",
    "GroupSettings.new_member_join_timeout_ms": "a constant of Kafka's",
    "LogConfig.decompressed_bytes_max": "ours",
    "LogConfig.verifies_transactions": "of a broker's key, which `TopicConfigs` reads",
    "BrokerSettings.cleaner_threads_per_disk": "a key of ours",
    "BrokerSettings.suspicion_ms": "a key of ours",
    "CleanerSettings.threads_per_disk": "a key of ours",
    "ControllerSettings.has_authorizer": "of a key that is a name",
    "ControllerSettings.suspicion_ms": "a key of ours",
    "ControllerSettings.tokens_per_owner_max": "a key of ours",
    "ControllerSettings.unclean_recovery_manager_enabled": "a key of KIP-966 that Kafka does not have yet",
    "ControllerSettings.unclean_recovery_timeout_ms": "a key of KIP-966 that Kafka does not have yet",
    "TransactionSettings.ids_per_partition_max": "a key of ours",
    "GroupSettings.consumer_members_per_partition_max": "a key of ours",
    "BrokerSettings.scrub_interval_ms": "a key of ours",
    "UpkeepContext.reserve_bytes": "a key of ours",
    "UpkeepContext.unsynced_bytes_max": "a key of ours",
    "UpkeepContext.flush_cycle_ms": "ours",
    "UpkeepContext.space_interval_ms": "ours",
    "UpkeepContext.index_idle_ms": "ours",
    "TopicRules.eligible_replicas": "of the version of a feature",
    "ConnectionLimits.room": "what the limit of open files leaves",
}
"""Defaults of settings for which Kafka has no key, each with its reason."""
SETTINGS_CLASS = re.compile(r"(Settings|Config|Context|Times|Limits|Rules)\Z")
NO_SETTINGS = ("DecisionContext", "DynamicConfig", "NodeConfig")
"""Classes that look like settings but are not: arguments of a decision, and readers of configurations."""


def written_defaults() -> Iterator[tuple[str, str]]:
    """Yield class and field of each default in a class of settings, with its source text."""
    for package in ("metadata_quorum", "data_plane", "odradek/node"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if not isinstance(node, ast.ClassDef) or node.name in NO_SETTINGS:
                    continue
                if not SETTINGS_CLASS.search(node.name) or not node.decorator_list:
                    continue
                for line in node.body:
                    if isinstance(line, ast.AnnAssign) and line.value is not None:
                        yield f"{node.name}.{ast.unparse(line.target)}", ast.unparse(line.value)


def test_kafkas_defaults_stand_in_the_table_alone() -> None:
    """Kafka's defaults are written in the table alone. A literal default in a class of settings could differ
    from it."""
    found = dict(written_defaults())
    made = [name for name, text in found.items() if text.startswith(("setting(", "topic_setting("))]
    assert len(made) > 60
    literal = re.compile(r"-?[0-9]|True\b|False\b|['\"]|INT_MAX|LONG_MAX")
    numbers = sorted(name for name, text in found.items() if literal.match(text))
    assert numbers == sorted(OURS)
