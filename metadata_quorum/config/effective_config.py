"""The value in force of a configuration key and its source (override, broker value, default), and the entries
that DescribeConfigs and CreateTopics show.

A topic's key is looked up in the topic's overrides, then in the broker keys that are its synonyms, then in
the defaults. The broker keys have three layers: dynamic values of this broker, dynamic values of all brokers,
and the properties file. All these values are texts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from enum import IntEnum

import attrs

from odradek.metadata_quorum.config.config_defs import (
    ConfigDef,
    ConfigError,
    ConfigValue,
    broker_defs,
    client_metrics_defs,
    group_defs,
    group_synonym,
    running_def,
    topic_defs,
    topic_synonyms,
    topic_to_broker_synonym,
)
from odradek.metadata_quorum.config.config_values import as_topic_text, broker_def, listener_of

MIN_ISR = "min.insync.replicas"
SASL_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI")
"""The names of SASL mechanisms. In lower case, such a name may be a prefix of a listener's key, e.g.
`plain.sasl.jaas.config`.
"""


class ConfigSource(IntEnum):
    """The source of a value. The numbers are those of DescribeConfigs."""

    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    DYNAMIC_CLIENT_METRICS_CONFIG = 7
    DYNAMIC_GROUP_CONFIG = 8


CONFIG_TYPES = {
    "boolean": 1,
    "string": 2,
    "int": 3,
    "short": 4,
    "long": 5,
    "double": 6,
    "list": 7,
    "class": 8,
    "password": 9,
}
"""The number of each value type in DescribeConfigs."""


@attrs.frozen
class ConfigSynonym:
    """The value of a key in one source."""

    name: str
    value: str | None
    source: ConfigSource


@attrs.frozen
class ConfigEntry:
    """The description of one key.

    A sensitive value is None. `synonyms` lists the key's values in all sources as they were given. The value
    in force comes first.
    """

    name: str
    value: str | None
    source: ConfigSource
    sensitive: bool
    read_only: bool
    type: int
    synonyms: tuple[ConfigSynonym, ...] = ()


@attrs.frozen
class BrokerConfigLayers:
    """The three layers of a broker's values: the properties file, the dynamic values for all brokers, and the
    dynamic values for this broker.
    """

    static: Mapping[str, str]
    dynamic: Mapping[str, str] = attrs.field(factory=dict)
    dynamic_default: Mapping[str, str] = attrs.field(factory=dict)

    one_min_isr: bool = False
    """True if brokers and controllers use only the cluster-wide dynamic value of `min.insync.replicas`, so
    that all of them use the same value (KIP-966).
    """

    def layers(self) -> Iterator[tuple[ConfigSource, Mapping[str, str]]]:
        """Yield the layers except the defaults, in the order of precedence."""
        yield ConfigSource.DYNAMIC_BROKER_CONFIG, self.dynamic
        yield ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG, self.dynamic_default
        yield ConfigSource.STATIC_BROKER_CONFIG, self.static


def broker_value(name: str, broker: BrokerConfigLayers) -> ConfigValue:
    """Return the typed value in force of a broker key. The key's synonyms are ignored. A malformed text is
    skipped, and the next layer is used.
    """
    definition = broker_def(name)
    assert definition is not None, f"brokers have no configuration key {name}"
    for _, layer in broker.layers():
        if name in layer:
            try:
                return definition.parse(layer[name])
            except ConfigError:
                continue
    return definition.default_value()


def _candidates(
    definition: ConfigDef, overrides: Mapping[str, str], broker: BrokerConfigLayers
) -> Iterator[tuple[str | None, ConfigSource]]:
    """Yield the values that a topic key could have, with their sources, in the order of precedence.

    The default is last.
    """
    name = definition.name
    if name in overrides:
        yield overrides[name], ConfigSource.DYNAMIC_TOPIC_CONFIG
    for source, layer in broker.layers():
        if (
            name == MIN_ISR
            and broker.one_min_isr
            and source is not ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
        ):
            continue
        for synonym in topic_synonyms(name):
            if synonym.name in layer:
                with suppress(ConfigError):
                    yield as_topic_text(name, synonym, layer[synonym.name]), source
    yield definition.default, ConfigSource.DEFAULT_CONFIG


def _resolve(
    definition: ConfigDef, overrides: Mapping[str, str], broker: BrokerConfigLayers
) -> tuple[str | None, ConfigSource]:
    return next(_candidates(definition, overrides, broker))


def inherited_text(name: str, broker: BrokerConfigLayers) -> str:
    """Return the text that a topic inherits from its broker for this key, even if the text is invalid for
    topics. The key must have a default.
    """
    text, _ = _resolve(topic_defs()[name], {}, broker)
    assert text is not None, f"the configuration key {name} has no default"
    return text


def topic_value(name: str, overrides: Mapping[str, str], broker: BrokerConfigLayers) -> ConfigValue:
    """Return the typed value in force of a topic's key. Both the leaders and the controller use this
    function.

    If a layer has a malformed text, the next layer is used.
    """
    definition = topic_defs()[name]
    for text, source in _candidates(definition, overrides, broker):
        if source is not ConfigSource.DEFAULT_CONFIG and text is not None:
            with suppress(ConfigError):
                return definition.parse(text)
    return definition.default_value()


def group_value(name: str, overrides: Mapping[str, str], broker: BrokerConfigLayers) -> ConfigValue:
    """Return the typed value in force of a group's key."""
    definition = group_defs()[name]
    if name in overrides:
        with suppress(ConfigError):
            return definition.parse(overrides[name])
    followed = group_synonym(name)
    return definition.default_value() if followed is None else broker_value(followed, broker)


def topic_creation_entries(overrides: Mapping[str, str], broker: BrokerConfigLayers) -> list[ConfigEntry]:
    """List the configuration of a new topic as CreateTopics reports it, sorted by name.

    Values are shown as they were given.
    """
    entries = []
    for name, definition in sorted(topic_defs().items()):
        value, source = _resolve(definition, overrides, broker)
        if value is not None:
            kind = CONFIG_TYPES[definition.type]
            entries.append(ConfigEntry(name, value, source, definition.sensitive, False, kind))
    return entries


def describe_topic_config(overrides: Mapping[str, str], broker: BrokerConfigLayers) -> list[ConfigEntry]:
    """List a topic's configuration as DescribeConfigs shows it, sorted by name."""
    return with_overrides(inherited_topic_entries(broker), overrides)


def inherited_topic_entries(broker: BrokerConfigLayers) -> dict[str, ConfigEntry]:
    """Return the entries of all topic keys for a topic without overrides, by key and sorted by key. They are
    the same for all topics of a broker.

    As in Kafka, only the main broker key counts as a synonym. So if `log.retention.hours` sets the retention,
    the entry has no synonyms, and its source is the default.
    """
    entries = {}
    for name, definition in sorted(topic_defs().items()):
        value, _ = _resolve(definition, {}, broker)
        text = None if value is None else _shown(definition, value)
        main = topic_to_broker_synonym(name)
        synonyms = () if main is None else tuple(_broker_synonyms(broker_defs()[main], broker))
        source = synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG
        kind = CONFIG_TYPES[definition.type]
        entries[name] = ConfigEntry(name, text, source, definition.sensitive, False, kind, synonyms)
    return entries


def _shown(definition: ConfigDef, text: str) -> str | None:
    """Return a value in the form that DescribeConfigs shows. A malformed value is returned unchanged."""
    try:
        return definition.canonical(text)
    except ConfigError:
        return text


def with_overrides(inherited: Mapping[str, ConfigEntry], overrides: Mapping[str, str]) -> list[ConfigEntry]:
    """Combine the inherited entries with a topic's overrides.

    Internal keys are included only if the topic overrides them.
    """
    definitions = topic_defs()
    entries = []
    for name, entry in inherited.items():
        if name in overrides:
            source = ConfigSource.DYNAMIC_TOPIC_CONFIG
            text = _shown(definitions[name], overrides[name])
            synonyms = (ConfigSynonym(name, text, source), *entry.synonyms)
            entries.append(
                ConfigEntry(name, text, source, entry.sensitive, entry.read_only, entry.type, synonyms)
            )
        elif not definitions[name].internal:
            entries.append(entry)
    return entries


def describe_broker_config(
    broker: BrokerConfigLayers, *, for_all: bool = False, computed: Mapping[str, str] | None = None
) -> list[ConfigEntry]:
    """List a broker's configuration as DescribeConfigs shows it, sorted by name. Internal keys are included
    only if they are set.

    `computed` has values that a node derives for keys without a value, e.g. the advertised listeners. If
    `for_all` is set, only the dynamic values for all brokers are listed. Unknown keys are listed without
    their values, which may be secrets.
    """
    if for_all:
        broker = BrokerConfigLayers({}, {}, broker.dynamic_default)
    entries = []
    for name, definition in sorted(broker_defs().items()):
        is_set = any(name in layer for _, layer in broker.layers())
        if not is_set and (definition.internal or for_all):
            continue
        synonyms = tuple(_broker_synonyms(definition, broker))
        if for_all:
            synonyms = synonyms[:1]
        value = synonyms[0].value if synonyms else (computed or {}).get(name)
        source = synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG
        shown = None if definition.sensitive or value is None else _shown(definition, value)
        kind = CONFIG_TYPES[definition.type]
        read_only = not definition.dynamic
        entries.append(ConfigEntry(name, shown, source, definition.sensitive, read_only, kind, synonyms))
    return entries + _unknown_entries(broker)


def _unknown_entries(broker: BrokerConfigLayers) -> list[ConfigEntry]:
    """List the keys in the layers that are not keys of the properties file. They may be dynamic keys, or keys
    with a listener's prefix.

    If a key has no definition at all, its value is hidden, because it may be a password.
    """
    names = {name for _, layer in broker.layers() for name in layer if name not in broker_defs()}
    entries = []
    for name in sorted(names):
        running = running_def(name)
        definition = running or _listener_def(name)
        is_hidden = definition is None or definition.sensitive
        # As in Kafka, the key of the single listener comes first, then the key for all listeners.
        in_turn = (name,) if definition is None or running is not None else (name, definition.name)
        synonyms = tuple(_synonyms(in_turn, broker, is_hidden=is_hidden))
        kind = 0 if definition is None else CONFIG_TYPES[definition.type]
        strongest = synonyms[0]
        is_fixed = running is None
        entries.append(
            ConfigEntry(name, strongest.value, strongest.source, is_hidden, is_fixed, kind, synonyms)
        )
    return entries


def _listener_def(name: str) -> ConfigDef | None:
    """Return the definition of a key without its prefix. The prefix names one listener, or one listener and a
    SASL mechanism. Returns None for other keys.
    """
    key = name.removeprefix(listener_of(name))
    if key == name:
        return None
    mechanism, _, rest = key.partition(".")
    return broker_defs().get(rest if mechanism.upper() in SASL_MECHANISMS else key)


def describe_group_config(overrides: Mapping[str, str], broker: BrokerConfigLayers) -> list[ConfigEntry]:
    """List a group's configuration as DescribeConfigs shows it, sorted by name. The group need not exist."""
    entries = []
    for name, definition in sorted(group_defs().items()):
        synonyms: list[ConfigSynonym] = []
        if name in overrides:
            text = _shown(definition, overrides[name])
            synonyms.append(ConfigSynonym(name, text, ConfigSource.DYNAMIC_GROUP_CONFIG))
        main = group_synonym(name)
        if main is not None:
            synonyms += _broker_synonyms(broker_defs()[main], broker)
        elif definition.default is not None:
            synonyms.append(ConfigSynonym(name, definition.default, ConfigSource.DEFAULT_CONFIG))
        value = synonyms[0].value
        kind = CONFIG_TYPES[definition.type]
        entries.append(ConfigEntry(name, value, synonyms[0].source, False, False, kind, tuple(synonyms)))
    return entries


def describe_client_metrics(overrides: Mapping[str, str]) -> list[ConfigEntry]:
    """List the configuration of a client metrics subscription as DescribeConfigs shows it.

    The subscription need not exist.
    """
    entries = []
    for name, definition in sorted(client_metrics_defs().items()):
        source = ConfigSource.DEFAULT_CONFIG
        synonyms: tuple[ConfigSynonym, ...] = ()
        text = definition.default
        if name in overrides:
            source = ConfigSource.DYNAMIC_CLIENT_METRICS_CONFIG
            text = _shown(definition, overrides[name])
            synonyms = (ConfigSynonym(name, text, source),)
        entries.append(ConfigEntry(name, text, source, False, False, CONFIG_TYPES[definition.type], synonyms))
    return entries


_BROKER_ALTERNATIVES = {
    "log.retention.ms": ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    "log.roll.ms": ("log.roll.ms", "log.roll.hours"),
    "log.roll.jitter.ms": ("log.roll.jitter.ms", "log.roll.jitter.hours"),
    "log.flush.interval.ms": ("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
}
"""Groups of broker keys that set the same value, in different units or under different names. Each group is
in the order of precedence.
"""


def _broker_synonyms(definition: ConfigDef, broker: BrokerConfigLayers) -> list[ConfigSynonym]:
    """List the values of a broker key in all layers, in the order of precedence. The values of alternative
    keys are appended, if these keys come after this key in the order of precedence.
    """
    names = next(
        (group for group in _BROKER_ALTERNATIVES.values() if definition.name in group), (definition.name,)
    )
    return _synonyms(names, broker, is_hidden=definition.sensitive, wanted=definition.name)


def _synonyms(
    names: tuple[str, ...], broker: BrokerConfigLayers, *, is_hidden: bool, wanted: str = ""
) -> list[ConfigSynonym]:
    """List the values of keys that mean the same, layer by layer. Within a layer the keys are in the order of
    `names`.

    The list begins with the first value of the key `wanted`, and leaves out the values before it. If `wanted`
    is empty, the first key in `names` takes its place.
    """
    defs = broker_defs()
    found = []
    for source, layer in broker.layers():
        for name in names:
            if name in layer:
                found.append(ConfigSynonym(name, None if is_hidden else layer[name], source))
    for name in names:
        definition = defs.get(name)
        if definition is not None and definition.default is not None and not definition.required:
            found.append(ConfigSynonym(name, definition.default, ConfigSource.DEFAULT_CONFIG))
    while found and found[0].name != (wanted or names[0]):
        found.pop(0)
    return found
