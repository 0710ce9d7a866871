"""The check of one configuration value against its key's type and valid values, and the keys of single
listeners (`listener.name.LISTENER.`). PURE.

Each value is checked three times. The broker checks it when it gets the request, and the controller before it
writes the record. Every node checks it when it replays the log. So nodes can apply each accepted value.

The result depends only on the resource's type, the key and the text. So if another program has written a
value that this version cannot apply, all nodes notice this at the same offset.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from odradek.metadata_quorum.config.client_metrics_configs import validate_client_metrics
from odradek.metadata_quorum.config.config_defs import (
    ConfigDef,
    ConfigError,
    InvalidConfiguration,
    Synonym,
    broker_defs,
    client_metrics_defs,
    group_defs,
    running_def,
    topic_defs,
    topic_synonyms,
)
from odradek.wire.config_resources import (
    RESOURCE_BROKER,
    RESOURCE_CLIENT_METRICS,
    RESOURCE_GROUP,
    RESOURCE_TOPIC,
)
from odradek.wire.errors import KafkaError

__all__ = ["LISTENER_PREFIX", "as_topic_text", "broker_def", "check_value", "listener_of", "parse_overrides"]

LISTENER_PREFIX = "listener.name."
CREATION_RATE = "max.connection.creation.rate"
IP_OVERRIDES = "max.connections.per.ip.overrides"
LOCALHOST_ADDRESSES = ("127.0.0.1", "::1")
_COUNT = re.compile(r"[+-]?[0-9]{1,10}\Z")


def check_value(kind: int, key: str, text: str) -> None:
    """Check that a node of this version can apply a value; raises `ConfigError` otherwise.

    `kind` is the type of the resource. If the key or the type is unknown, every value passes, since no node
    reads such a value.
    """
    if kind == RESOURCE_BROKER:
        _check_broker_value(key, text)
    elif kind == RESOURCE_CLIENT_METRICS:
        _check_metrics_value(key, text)
    else:
        definitions: Mapping[str, ConfigDef] = {}
        if kind == RESOURCE_TOPIC:
            definitions = topic_defs()
        elif kind == RESOURCE_GROUP:
            definitions = group_defs()
        if key in definitions:
            definitions[key].parse(text)


def _check_broker_value(key: str, text: str) -> None:
    name = key.removeprefix(listener_of(key))
    definition = broker_def(name)
    if definition is None:
        return
    value = definition.parse(text)
    if name == IP_OVERRIDES:
        parse_overrides(text)
    elif name == CREATION_RATE and value == 0:
        raise ConfigError(name, text, "Value must be at least 1")
    for topic_key, synonym in _topic_keys_of(name):
        try:
            topic_defs()[topic_key].parse(as_topic_text(topic_key, synonym, text))
        except ConfigError as error:
            raise ConfigError(name, text, error.allowed) from error


def _check_metrics_value(key: str, text: str) -> None:
    """Check one value of a client metrics subscription.

    The patterns in `match` are checked only by the node that receives the change. A replay keeps even
    patterns that this node cannot compile, because a subscription without them would apply to all clients.
    """
    if key == "match":
        client_metrics_defs()[key].parse(text)
    elif key in client_metrics_defs():
        try:
            validate_client_metrics("any", {key: text})
        except KafkaError as error:
            raise InvalidConfiguration(key, text, error.message or "") from error


def broker_def(key: str) -> ConfigDef | None:
    """Return the definition of a broker's key. Some of these keys are for the properties file, others can
    only be set dynamically. Returns None for an unknown key.
    """
    return broker_defs().get(key) or running_def(key)


def listener_of(key: str) -> str:
    """Return the prefix `listener.name.LISTENER.` of a key, or an empty text if it has no such prefix."""
    if not key.startswith(LISTENER_PREFIX):
        return ""
    listener, dot, _ = key[len(LISTENER_PREFIX) :].partition(".")
    return LISTENER_PREFIX + listener + dot


def _topic_keys_of(broker_key: str) -> list[tuple[str, Synonym]]:
    """List the topic keys that have this broker key as a synonym, each with the synonym."""
    return [
        (name, synonym)
        for name in topic_defs()
        for synonym in topic_synonyms(name)
        if synonym.name == broker_key
    ]


def as_topic_text(topic_key: str, synonym: Synonym, text: str) -> str:
    """Convert the text of a broker key to the unit of the topic key, e.g. from hours to milliseconds. Raises
    `ConfigError`.
    """
    value = broker_defs()[synonym.name].parse(text)
    if topic_key == "retention.ms" and isinstance(value, int) and value < 0:
        return "-1"  # Any negative retention of a broker means no limit.
    if synonym.milliseconds == 1:
        return text
    assert isinstance(value, int), f"{synonym.name} must count minutes or hours"
    return str(value * synonym.milliseconds)


def parse_overrides(text: str) -> dict[str, int]:
    """Parse `max.connections.per.ip.overrides`, i.e. `address:count,...`. Returns the counts by address. Host
    names other than localhost are not resolved.

    Raises `ConfigError`.
    """
    overrides: dict[str, int] = {}
    for item in filter(None, (each.strip() for each in text.split(","))):
        host, colon, count = item.rpartition(":")
        if not (colon and host and _COUNT.match(count.strip())):
            message = f"Error parsing configuration property '{IP_OVERRIDES}': {item} is not host:count"
            raise InvalidConfiguration(IP_OVERRIDES, text, message)
        for address in LOCALHOST_ADDRESSES if host == "localhost" else (host.strip("[]"),):
            overrides[address] = int(count)
    return overrides
