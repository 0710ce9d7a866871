"""Kafka's configuration keys: types, defaults, valid values, synonyms; the parser of their values, and the
check of a topic's overrides.

The facts are rows of `config_defs.tsv` (Apache Kafka 4.3.0). Their columns are scope (broker, topic, group,
client-metrics), name, type, default, valid values, importance, visibility and update. DescribeConfigs never
shows keys of visibility `internal`. Keys of update `dynamic` may be altered while a node runs. Texts are
parsed as Kafka's ConfigDef parses them. So a refused value gets Kafka's message, which names the key, the
value and the allowed values.
"""

from __future__ import annotations

import functools
import pkgutil
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import TypeAlias

import attrs

from odradek.wire.secret_fields import shown_value

ConfigValue: TypeAlias = bool | int | float | str | list[str] | None

REQUIRED = "(required)"

_BLANKS = "".join(map(chr, range(33)))
"""The characters that Java's `String.trim` removes: all characters up to U+0020, the space."""
_INTEGER_BITS = {"short": 16, "int": 32, "long": 64}
_INTEGER_TEXT = re.compile(r"[+-]?[0-9]+\Z")
_DOUBLE_TEXT = re.compile(r"[+-]?(NaN|Infinity|([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?[dDfF]?)\Z")
_THROTTLED_REPLICAS = re.compile(r"([0-9]+:[0-9]+)?\Z")
_BY_DURATION = re.compile(r"by_duration:P(?=.)([0-9]+D)?(T(?=.)([0-9]+H)?([0-9]+M)?([0-9]+(\.[0-9]+)?S)?)?\Z")


class ConfigError(Exception):
    """Raised if a configuration is refused.

    The text is one line with the key, the value and the allowed values.
    """

    def __init__(self, key: str, value: object, allowed: str) -> None:
        value = shown_value(key, value)
        super().__init__(f"Invalid value {_java_text(value)} for configuration {key}: {allowed}")
        self.key = key
        self.value = value
        self.allowed = allowed


class ConfigMissing(ConfigError):
    """Raised if a required key has no value."""

    def __init__(self, key: str) -> None:
        super().__init__(key, "", "the key has no default value")
        self.args = (f'Missing required configuration "{key}" which has no default value.',)


class InvalidConfiguration(ConfigError):
    """Raised if a configuration is refused for another reason than the syntax or range of a value. Examples
    are an unknown key, or keys that contradict each other.
    """

    def __init__(self, key: str, value: object, message: str) -> None:
        super().__init__(key, value, message)
        self.args = (message,)


@attrs.frozen(eq=False)
class ConfigDef:
    """The definition of one key. `default` is a text that `parse` accepts, or None for null, or `REQUIRED`
    for a key without a default.
    """

    scope: str
    name: str
    type: str
    default: str | None
    valid: str
    importance: str
    internal: bool
    dynamic: bool

    @property
    def sensitive(self) -> bool:
        return self.type == "password"

    @property
    def required(self) -> bool:
        return self.default == REQUIRED

    def parse(self, text: str | None) -> ConfigValue:
        """Parse a text, and return the typed value. Raises `ConfigError`."""
        value = _PARSERS[self.type](self.name, text.strip(_BLANKS)) if text is not None else None
        _validator(self.valid, self.type)(self.name, value)
        return value

    def default_value(self) -> ConfigValue:
        """Return the parsed default; None if it is null or the key is required.

        As in Kafka, defaults are not validated.
        """
        if self.default is None or self.required:
            return None
        if self.type == "list":
            return _parse_list(self.name, self.default)
        return _parsed_default(self.type, self.name, self.default)

    def canonical(self, text: str) -> str | None:
        """Parse an accepted text, and format the value as DescribeConfigs shows it."""
        return self.text_of(_PARSERS[self.type](self.name, text.strip(_BLANKS)))

    def text_of(self, value: ConfigValue) -> str | None:
        """Format a value as DescribeConfigs shows it. `parse` reads the text back as the same value."""
        if value is None:
            return None
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, list):
            return ",".join(value)
        return _java_text(value)


def _java_text(value: object) -> str:
    """Return a value as Java converts it to a string. Kafka's messages and descriptions show this form."""
    if isinstance(value, float):
        return _java_double(value)
    if isinstance(value, list):
        return "[" + ", ".join(str(item) for item in value) + "]"
    if value is None:
        return "null"
    return str(value)


def _java_double(value: float) -> str:
    """Format a number as Java's Double.toString does. At least one digit follows the point. Numbers outside
    of [1e-3, 1e7) are in scientific notation.
    """
    plain = repr(value)
    if plain.lstrip("-") in ("nan", "inf"):
        return plain.replace("nan", "NaN").replace("inf", "Infinity")
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return plain
    sign, digits, exponent = Decimal(plain).normalize().as_tuple()
    text = "".join(map(str, digits))
    scale = int(exponent) + len(text) - 1
    return f"{'-' if sign else ''}{text[0]}.{text[1:] or '0'}E{scale}"


def _parse_boolean(name: str, text: str) -> bool:
    lowered = text.lower()
    if lowered not in ("true", "false"):
        raise ConfigError(name, text, "Expected value to be either true or false")
    return lowered == "true"


def _integer_parser(kind: str) -> Callable[[str, str], int]:
    limit = 1 << (_INTEGER_BITS[kind] - 1)

    def parse(name: str, text: str) -> int:
        # The length is checked before `int()` is called, because `int()` takes long for a text of a million
        # digits.
        if _INTEGER_TEXT.match(text) and len(text) <= 64 and -limit <= int(text) < limit:
            return int(text)
        raise ConfigError(name, text, f"Not a number of type {kind.upper()}")

    return parse


def _parse_double(name: str, text: str) -> float:
    if not _DOUBLE_TEXT.match(text):
        raise ConfigError(name, text, "Not a number of type DOUBLE")
    return float(text.rstrip("dDfF") if text[-1:] in "dDfF" else text)


def _parse_list(name: str, text: str) -> list[str]:
    return [item.strip() for item in text.split(",")] if text else []


def _parse_text(name: str, text: str) -> str:
    return text


_PARSERS: dict[str, Callable[[str, str], ConfigValue]] = {
    "boolean": _parse_boolean,
    "short": _integer_parser("short"),
    "int": _integer_parser("int"),
    "long": _integer_parser("long"),
    "double": _parse_double,
    "list": _parse_list,
    "string": _parse_text,
    "class": _parse_text,
    "password": _parse_text,
}


@functools.cache
def _parsed_default(type: str, name: str, default: str) -> ConfigValue:
    """Return a parsed default. All callers share the returned object, so it is never a list, which a caller
    could change.
    """
    return _PARSERS[type](name, default)


_Validator: TypeAlias = Callable[[str, ConfigValue], None]


@functools.cache
def _validator(valid: str, type: str) -> _Validator:
    """Return the validator for an entry of the table's `valid` column."""
    if not valid:
        return _accept if type != "list" else _no_empty_items
    if valid in ("non-null string", "non-empty string"):
        return functools.partial(_check_text, valid == "non-empty string")
    if valid == "non-empty list":
        return _check_non_empty_list
    if valid.startswith("[partitionId]"):
        return _check_throttled_replicas
    if "..." in valid:
        span, _, extra = valid.partition(" or ")
        low, _, high = span.strip("[]").partition(",...")
        return functools.partial(_check_range, low, high.lstrip(","), extra)
    ignore_case = valid.startswith("(case insensitive) ")
    choices = tuple(valid.removeprefix("(case insensitive) ").strip("[]").split(", "))
    return functools.partial(_check_choice, choices, ignore_case)


def _accept(name: str, value: ConfigValue) -> None:
    """Accept any value."""


def _no_empty_items(name: str, value: ConfigValue) -> None:
    if isinstance(value, list) and "" in value:
        raise InvalidConfiguration(name, value, f"Configuration '{name}' values must not be empty.")


def _check_text(non_empty: bool, name: str, value: ConfigValue) -> None:
    if value is None and not non_empty:
        raise ConfigError(name, value, "entry must be non null")
    if value == "" and non_empty:
        raise ConfigError(name, value, "String must be non-empty")


def _check_non_empty_list(name: str, value: ConfigValue) -> None:
    if value == []:
        raise InvalidConfiguration(
            name,
            value,
            f"Configuration '{name}' must not be empty. Valid values include: any non-empty value",
        )
    _no_empty_items(name, value)


def _check_throttled_replicas(name: str, value: ConfigValue) -> None:
    items = value if isinstance(value, list) else []
    if "".join(items) == "*" or all(_THROTTLED_REPLICAS.match(item) for item in items):
        return
    raise ConfigError(
        name,
        value,
        f"{name} must be the literal '*' or a list of replicas in the following format: "
        "[partitionId]:[brokerId],[partitionId]:[brokerId],...",
    )


def _check_range(low: str, high: str, extra: str, name: str, value: ConfigValue) -> None:
    if not isinstance(value, int | float):
        return
    if extra:
        if not (float(low) <= value <= float(high) or value == float(extra)):
            raise ConfigError(name, value, f"Value must be between {low} and {high} or equal to {extra}")
    elif value < float(low):
        raise ConfigError(name, value, f"Value must be at least {low}")
    elif high and value > float(high):
        raise ConfigError(name, value, f"Value must be no more than {high}")


def _check_choice(choices: tuple[str, ...], ignore_case: bool, name: str, value: ConfigValue) -> None:
    _no_empty_items(name, value)
    items = value if isinstance(value, list) else [value]
    for item in items:
        if not isinstance(item, str):
            continue
        if (item.upper() if ignore_case else item) in choices:
            continue
        if "by_duration:PnDTnHnMn.nS" in choices and _BY_DURATION.match(item):
            continue
        hint = " (case insensitive)" if ignore_case else ""
        raise ConfigError(name, item, f"String must be one of{hint}: {', '.join(choices)}")


@functools.cache
def _table() -> dict[str, dict[str, ConfigDef]]:
    data = pkgutil.get_data("odradek.metadata_quorum.config", "config_defs.tsv")
    assert data is not None, "the file config_defs.tsv is missing from the package"
    scopes: dict[str, dict[str, ConfigDef]] = {"broker": {}, "topic": {}, "group": {}, "client-metrics": {}}
    for line in data.decode().splitlines()[1:]:
        scope, name, kind, default, valid, importance, visibility, update = line.split("\t")
        scopes[scope][name] = ConfigDef(
            scope,
            name,
            kind,
            None if default == "null" else default,
            valid,
            importance,
            visibility == "internal",
            update == "dynamic",
        )
    return scopes


def broker_defs() -> Mapping[str, ConfigDef]:
    """Return the definitions of all keys of a node's properties file, by name."""
    return _table()["broker"]


def topic_defs() -> Mapping[str, ConfigDef]:
    """Return the definitions of all keys that a topic can override, by name."""
    return _table()["topic"]


def group_defs() -> Mapping[str, ConfigDef]:
    """Return the definitions of all keys that a group can override, by name."""
    return _table()["group"]


def client_metrics_defs() -> Mapping[str, ConfigDef]:
    """Return the definitions of all keys of a client metrics subscription, by name (KIP-714)."""
    return _table()["client-metrics"]


THROTTLE_DEFS: Mapping[str, ConfigDef] = {
    name: ConfigDef("broker", name, "long", None, "[0,...]", "medium", False, True)
    for name in (
        "follower.replication.throttled.rate",
        "leader.replication.throttled.rate",
        "replica.alter.log.dirs.io.max.bytes.per.second",
    )
}
"""The definitions of keys that brokers accept as dynamic configurations, but not in their properties files
(KIP-73, KIP-113).
"""
DISCONNECT_PREFIX = "odradek.disconnect."
"""The prefix of keys that only Odradek has. A new value of `odradek.disconnect.PRINCIPAL` makes running
brokers close all connections of this principal.
"""


def running_def(name: str) -> ConfigDef | None:
    """Return the definition of a key that can be set only as a dynamic configuration of a broker. Returns
    None for all other keys.
    """
    if name.startswith(DISCONNECT_PREFIX):
        return ConfigDef("broker", name, "string", None, "", "low", False, True)
    return THROTTLE_DEFS.get(name)


@attrs.frozen
class Synonym:
    """A broker key from which a topic key takes its default. `milliseconds` is the number of milliseconds in
    the broker key's unit.
    """

    name: str
    milliseconds: int = 1


_HOUR_MS = 3_600_000
_MINUTE_MS = 60_000

_TOPIC_SYNONYMS: dict[str, tuple[Synonym, ...]] = {
    "cleanup.policy": (Synonym("log.cleanup.policy"),),
    "compression.gzip.level": (Synonym("compression.gzip.level"),),
    "compression.lz4.level": (Synonym("compression.lz4.level"),),
    "compression.type": (Synonym("compression.type"),),
    "compression.zstd.level": (Synonym("compression.zstd.level"),),
    "delete.retention.ms": (Synonym("log.cleaner.delete.retention.ms"),),
    "file.delete.delay.ms": (Synonym("log.segment.delete.delay.ms"),),
    "flush.messages": (Synonym("log.flush.interval.messages"),),
    "flush.ms": (Synonym("log.flush.interval.ms"), Synonym("log.flush.scheduler.interval.ms")),
    "index.interval.bytes": (Synonym("log.index.interval.bytes"),),
    "local.retention.bytes": (Synonym("log.local.retention.bytes"),),
    "local.retention.ms": (Synonym("log.local.retention.ms"),),
    "max.compaction.lag.ms": (Synonym("log.cleaner.max.compaction.lag.ms"),),
    "max.message.bytes": (Synonym("message.max.bytes"),),
    "message.timestamp.after.max.ms": (Synonym("log.message.timestamp.after.max.ms"),),
    "message.timestamp.before.max.ms": (Synonym("log.message.timestamp.before.max.ms"),),
    "message.timestamp.type": (Synonym("log.message.timestamp.type"),),
    "min.cleanable.dirty.ratio": (Synonym("log.cleaner.min.cleanable.ratio"),),
    "min.compaction.lag.ms": (Synonym("log.cleaner.min.compaction.lag.ms"),),
    "min.insync.replicas": (Synonym("min.insync.replicas"),),
    "preallocate": (Synonym("log.preallocate"),),
    "retention.bytes": (Synonym("log.retention.bytes"),),
    "retention.ms": (
        Synonym("log.retention.ms"),
        Synonym("log.retention.minutes", _MINUTE_MS),
        Synonym("log.retention.hours", _HOUR_MS),
    ),
    "segment.bytes": (Synonym("log.segment.bytes"),),
    "segment.index.bytes": (Synonym("log.index.size.max.bytes"),),
    "segment.jitter.ms": (Synonym("log.roll.jitter.ms"), Synonym("log.roll.jitter.hours", _HOUR_MS)),
    "segment.ms": (Synonym("log.roll.ms"), Synonym("log.roll.hours", _HOUR_MS)),
    "unclean.leader.election.enable": (Synonym("unclean.leader.election.enable"),),
}


def topic_synonyms(name: str) -> tuple[Synonym, ...]:
    """Return the broker keys from which a topic key takes its default, in the order of precedence; empty if
    there are none.
    """
    return _TOPIC_SYNONYMS.get(name, ())


def topic_to_broker_synonym(name: str) -> str | None:
    """Return the main broker key for a topic key, e.g. `log.segment.bytes` for `segment.bytes`; None if there
    is none.
    """
    synonyms = topic_synonyms(name)
    return synonyms[0].name if synonyms else None


def group_synonym(name: str) -> str | None:
    """Return the broker key from which a group's key takes its default; None if there is none."""
    broker_name = f"group.{name}"
    return broker_name if broker_name in broker_defs() else None


def validate_topic_configs(configs: Mapping[str, str], *, remote_storage: bool = False) -> None:
    """Check the overrides of one topic. The order of checks is Kafka's (LogConfig.validate).

    First, unknown names are refused. Then each value is checked, in the order of the table. Finally the rules
    between keys are checked. Raises `ConfigError` with Kafka's message.
    """
    defs = topic_defs()
    for name in configs:
        if name not in defs:
            raise InvalidConfiguration(name, configs[name], f"Unknown topic config name: {name}")
    values: dict[str, ConfigValue] = {}
    for name, definition in defs.items():
        if name in configs:
            values[name] = definition.parse(configs[name])
    for name in ("min.compaction.lag.ms", "max.compaction.lag.ms", "remote.storage.enable"):
        if name not in values:
            values[name] = defs[name].default_value()
    shortest, longest = values["min.compaction.lag.ms"], values["max.compaction.lag.ms"]
    if isinstance(shortest, int) and isinstance(longest, int) and shortest > longest:
        raise InvalidConfiguration(
            "min.compaction.lag.ms",
            shortest,
            "conflict topic config setting min.compaction.lag.ms "
            f"({shortest}) > max.compaction.lag.ms ({longest})",
        )
    if values["remote.storage.enable"] and not remote_storage:
        raise InvalidConfiguration(
            "remote.storage.enable",
            True,
            "Tiered Storage functionality is disabled in the broker. "
            "Topic cannot be configured with remote log storage.",
        )
