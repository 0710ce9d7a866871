"""Typed settings: classes whose fields name configuration keys, and are filled with the typed values in
force. PURE.

A class of settings is an attrs class. Each field for a key of Kafka is made by `setting` or `topic_setting`,
so that its default is only in `config_defs.tsv`. `settings_of` creates an object of the class from the layers
of configuration (`effective_config.py`). Each part of a node gets such an object, so it does not depend on
keys, texts and layers.
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
"""A function that converts a key's value to the form that the field needs, e.g. minutes to milliseconds."""


@attrs.frozen
class Setting:
    """The configuration key of one field, and the conversion of its value."""

    definition: ConfigDef
    convert: Convert | None

    def of(self, value: ConfigValue) -> Any:
        """Convert a value of the key to the field's form. A list becomes a tuple."""
        if self.convert is not None:
            return self.convert(value)
        return tuple(value) if isinstance(value, list) else value

    def value(self, layers: BrokerConfigLayers, overrides: Mapping[str, str]) -> Any:
        """Return the value in force, in the field's form.

        `overrides` are a topic's values, and apply to topic keys only.
        """
        name = self.definition.name
        if self.definition.scope == "topic":
            return self.of(topic_value(name, overrides, layers))
        return self.of(broker_value(name, layers))


def setting(key: str, convert: Convert | None = None) -> Any:
    """Make an attrs field that gets its value from a broker's key. The default of the key is also the default
    of the field.
    """
    return _field(broker_defs()[key], convert)


def topic_setting(key: str, convert: Convert | None = None) -> Any:
    """Make an attrs field that gets its value from a topic's key, or else from the broker keys that are its
    synonyms.
    """
    return _field(topic_defs()[key], convert)


def _field(definition: ConfigDef, convert: Convert | None) -> Any:
    made = Setting(definition, convert)
    return attrs.field(default=made.of(definition.default_value()), metadata={_METADATA: made})


def setting_of_field(field: attrs.Attribute[Any]) -> Setting | None:
    """Return the `Setting` of a field; None for a field without a key."""
    found: Setting | None = field.metadata.get(_METADATA)
    return found


def settings_of(
    kind: type[S], layers: BrokerConfigLayers, overrides: Mapping[str, str] = _NO_OVERRIDES, **others: Any
) -> S:
    """Create a settings object of class `kind` from the values in force. `overrides` are a topic's values.
    `others` are the values of fields that have no key.
    """
    values = dict(others)
    settings_class: Any = kind
    for name, followed in _followed(settings_class):
        if name not in others:
            values[name] = followed.value(layers, overrides)
    return kind(**values)


@functools.cache
def _followed(kind: Any) -> tuple[tuple[str, Setting], ...]:
    """List the settings of those fields of a class that have a key, each with the field's name."""
    found = ((field.name, setting_of_field(field)) for field in attrs.fields(kind))
    return tuple((name, followed) for name, followed in found if followed is not None)


def seconds_as_milliseconds(seconds: int) -> int:
    return seconds * 1000


def minutes_as_milliseconds(minutes: int) -> int:
    return minutes * 60_000


def milliseconds_as_seconds(milliseconds: int) -> float:
    return milliseconds / 1000
