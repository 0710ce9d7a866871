"""Typed settings from the layers of configuration: a class names its keys and gets typed values. PURE.

A class of settings is an attrs class. Each field that follows a key of Kafka's is made by `setting` or
`topic_setting`, so its default is in `config_defs.tsv` alone. `settings_of` fills the class by the layers, the
strongest first (`effective_config.py`). A part of a node gets such a class, and is independent of keys, texts and
layers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import attrs

from odradek.metadata_quorum.config.config_defs import ConfigDef, ConfigValue, broker_defs, topic_defs
from odradek.metadata_quorum.config.effective_config import BrokerConfigLayers, broker_value, topic_value

__all__ = [
    "milliseconds_as_seconds",
    "minutes_as_milliseconds",
    "seconds_as_milliseconds",
    "setting",
    "setting_of_field",
    "settings_of",
    "topic_setting",
]

S = TypeVar("S")
_METADATA = "configuration"
_NO_OVERRIDES: Mapping[str, str] = {}

Convert = Callable[[Any], Any]
"""Converts a key's value to the form that a part needs, for example minutes to milliseconds."""


@attrs.frozen
class Setting:
    """The configuration key of a field."""

    definition: ConfigDef
    convert: Convert | None

    def of(self, value: ConfigValue) -> Any:
        """Convert a value of the key to the field's form. Lists become tuples, which cannot be changed."""
        if self.convert is not None:
            return self.convert(value)
        return tuple(value) if isinstance(value, list) else value

    def value(self, layers: BrokerConfigLayers, overrides: Mapping[str, str]) -> Any:
        """Return the typed value in force. A topic's `overrides` count for topic keys alone."""
        name = self.definition.name
        if self.definition.scope == "topic":
            return self.of(topic_value(name, overrides, layers))
        return self.of(broker_value(name, layers))


def setting(key: str, convert: Convert | None = None) -> Any:
    """Make an attrs field whose value comes from a broker's key; the default is that of the table."""
    return _field(broker_defs()[key], convert)


def topic_setting(key: str, convert: Convert | None = None) -> Any:
    """Make an attrs field whose value comes from a topic's key, or else from the broker keys that are its synonyms."""
    return _field(topic_defs()[key], convert)


def _field(definition: ConfigDef, convert: Convert | None) -> Any:
    made = Setting(definition, convert)
    return attrs.field(default=made.of(definition.default_value()), metadata={_METADATA: made})


def setting_of_field(field: attrs.Attribute[Any]) -> Setting | None:
    """Return the key of a field; None for a field without a key."""
    found: Setting | None = field.metadata.get(_METADATA)
    return found


def settings_of(
    kind: type[S], layers: BrokerConfigLayers, overrides: Mapping[str, str] = _NO_OVERRIDES, **others: Any
) -> S:
    """Make a class of settings from the present values. `overrides` are a topic's own values; `others` are the
    fields without a key.
    """
    values = dict(others)
    settings_class: Any = kind
    for name, followed in _followed(settings_class):
        if name not in others:
            values[name] = followed.value(layers, overrides)
    return kind(**values)


@functools.cache
def _followed(kind: Any) -> tuple[tuple[str, Setting], ...]:
    """List the fields of a class that have a key, by name."""
    found = ((field.name, setting_of_field(field)) for field in attrs.fields(kind))
    return tuple((name, followed) for name, followed in found if followed is not None)


def seconds_as_milliseconds(seconds: int) -> int:
    return seconds * 1000


def minutes_as_milliseconds(minutes: int) -> int:
    return minutes * 60_000


def milliseconds_as_seconds(milliseconds: int) -> float:
    return milliseconds / 1000
