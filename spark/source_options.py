"""The options of the source, checked and typed. Names, defaults and meaning are those of Spark's own Kafka connector.
PURE.

Spark passes the names in lower case, and the values unchanged. A missing, contradictory or unknown option raises
`OptionError`, whose sentence spells the option as the documentation does.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from enum import Enum
from typing import Any, Final, TypeVar

import attrs

from odradek.client.core.client_keys import AdminSettings, ConsumerSettings, ProducerSettings
from odradek.client.core.partition_offsets import EARLIEST, LATEST
from odradek.spark.option_table import SOURCE_OPTIONS
from odradek.wire.topic_partition import TopicPartition

__all__ = [
    "READING_KEYS",
    "REFUSED_KEYS",
    "SOURCE_DEFAULTS",
    "Bound",
    "OptionError",
    "Query",
    "SourceOptions",
]

T = TypeVar("T")

_OFFSET_MAX: Final = 2**63 - 1
_SHOWN_MAX: Final = 200
"""The most characters of a wrong value that an error shows."""
_NAMES: Final = {each.name.lower(): each.name for each in SOURCE_OPTIONS}
"""The documented spelling of each option, by its name in lower case. The options `kafka.*` are not included."""
_STRATEGIES: Final = ("assign", "subscribe", "subscribePattern")
_STREAM_ONLY: Final = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
_BATCH_ONLY: Final = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
REFUSED_KEYS: Final = {
    "auto.offset.reset": "startingOffsets says where to start",
    "key.deserializer": "keys are read as bytes: cast the column",
    "value.deserializer": "values are read as bytes: cast the column",
    "enable.auto.commit": "the query's checkpoint says what was read",
    "interceptor.classes": "interceptors are Java classes",
}
READING_KEYS: Final = (
    "client.rack",
    "default.api.timeout.ms",
    "fetch.max.bytes",
    "fetch.max.wait.ms",
    "fetch.min.bytes",
    "group.id",
    "isolation.level",
    "max.partition.fetch.bytes",
)
"""The consumer keys that have an effect. The source accepts all other consumer keys, and ignores them."""
SOURCE_DEFAULTS: Final = {"max.partition.fetch.bytes": str(4 << 20)}
"""The consumer defaults that the source replaces. 4 MiB are more than 20,000 rows of 100 bytes."""
BATCH_BYTES_DEFAULT: Final = 256 << 20
BATCH_BYTES_MAX: Final = 1 << 30
"""The largest value of the option `maxBatchBytes`. Larger batches could exceed the 32 bits of Arrow's offsets."""
_CREATE_TABLE: Final = (
    "CREATE TABLE keeps no OPTIONS of a Python data source (Spark 4.3 and before): use CREATE TEMPORARY VIEW name USING "
    "odradek OPTIONS (...), or spark.read"
)
_UNITS_MS: Final = {
    "us": 0.001,
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}


class OptionError(ValueError):
    """Raised if an option is missing, contradicts another option, or has an impossible value."""


class Query(Enum):
    """The kind of query that the options are for."""

    BATCH = "batch"
    STREAM = "stream"
    UNKNOWN = "unknown"
    """The kind while it is not known. Spark asks for the schema before it makes a reader."""


@attrs.frozen
class Bound:
    """The start or the end of a query: one rule for all partitions, or an offset for each.

    Exactly one field besides `what` is set.
    """

    what: str
    """The name of the option, for errors."""
    everywhere: int | None = None
    """One of `EARLIEST` and `LATEST`, for all partitions."""
    offsets: dict[TopicPartition, int] | None = None
    """For each partition an offset, `EARLIEST` or `LATEST`."""
    timestamp: int | None = None
    """A time in milliseconds since 1970, for all partitions."""
    timestamps: dict[TopicPartition, int] | None = None

    @property
    def named(self) -> frozenset[TopicPartition] | None:
        """The partitions that the bound names, which must be the partitions that the query reads. None if the bound
        is for all partitions.
        """
        each = self.offsets if self.offsets is not None else self.timestamps
        return None if each is None else frozenset(each)


@attrs.frozen
class SourceOptions:
    """The typed options of a reader. The options can be pickled, because executors need them."""

    properties: dict[str, str] = attrs.field(repr=False)
    """The consumer configuration with Kafka's keys, including `bootstrap.servers`, and perhaps passwords."""
    starting: Bound
    ending: Bound
    topics: tuple[str, ...] | None = None
    pattern: str | None = None
    assigned: tuple[TopicPartition, ...] | None = None
    without_match_latest: bool = False
    """True if `startingOffsetsByTimestampStrategy` is `latest`. Then a query starts at the end if no record has the
    requested time or a later one.
    """
    fail_on_data_loss: bool = True
    poll_timeout_ms: int = 120_000
    retries: int = 3
    retry_interval_ms: int = 1000
    offsets_per_trigger_max: int | None = None
    offsets_per_trigger_min: int | None = None
    trigger_delay_max: timedelta = timedelta(minutes=15)
    partitions_min: int | None = None
    records_per_partition_max: int | None = None
    group_id_prefix: str = "spark-kafka-source"
    group_id: str | None = None
    include_headers: bool = False
    filter_pushdown: bool = True
    jvm_offsets: bool = False
    """True if the checkpoint has only offsets, like a checkpoint of the JVM connector (option `jvmOffsets`)."""
    batch_bytes_max: int = BATCH_BYTES_DEFAULT
    """The largest size of a decompressed record batch in bytes."""
    ignored: tuple[str, ...] = ()
    """The given options that have no effect on this kind of query."""

    @property
    def consumer(self) -> ConsumerSettings:
        """The consumer settings, typed."""
        return ConsumerSettings.from_properties(self.properties)

    @classmethod
    def parse(cls, options: Mapping[str, str], query: Query = Query.UNKNOWN) -> SourceOptions:
        """Check and parse Spark's options.

        Raises:
            OptionError: an option is unknown, or its value is refused.
        """
        return _Parser({name.lower(): value for name, value in options.items()}).parse(query)


@attrs.define
class _Parser:
    """Parses the options of one query, which have lower-case names."""

    given: Mapping[str, str]

    def parse(self, query: Query) -> SourceOptions:
        self._check_names()
        properties = self._properties()
        strategies = [name for name in _STRATEGIES if self._text(name) is not None]
        if len(strategies) != 1:
            names = "assign, subscribe or subscribePattern"
            raise OptionError(
                f"one of the options {names} must say what to read, and none is given{self._without_any()}"
                if not strategies
                else f"only one of the options {names} may be given, not both {' and '.join(strategies)}"
            )
        ending = self._bound("ending", LATEST)
        starting = self._bound("starting", LATEST if query is Query.STREAM else EARLIEST)
        self._check_query(query, starting, ending)
        stream_only = [name for name in _STREAM_ONLY if self._text(name) is not None]
        max_offsets, min_offsets = (
            self._number(name, 1) for name in ("maxOffsetsPerTrigger", "minOffsetsPerTrigger")
        )
        if max_offsets is not None and min_offsets is not None and min_offsets > max_offsets:
            raise OptionError(
                f"minOffsetsPerTrigger ({min_offsets}) must not be above maxOffsetsPerTrigger ({max_offsets})"
            )
        return SourceOptions(
            properties=properties,
            starting=starting,
            ending=ending,
            topics=self._topics(),
            pattern=self._pattern(),
            assigned=self._assigned(),
            without_match_latest=self._choice("startingOffsetsByTimestampStrategy", "error", "latest")
            == "latest",
            fail_on_data_loss=self._flag("failOnDataLoss", True),
            poll_timeout_ms=self._number("kafkaConsumer.pollTimeoutMs", 1) or 120_000,
            retries=_or(self._number("fetchOffset.numRetries", 0), 3),
            retry_interval_ms=_or(self._number("fetchOffset.retryIntervalMs", 0), 1000),
            offsets_per_trigger_max=max_offsets,
            offsets_per_trigger_min=min_offsets,
            trigger_delay_max=self._duration("maxTriggerDelay", timedelta(minutes=15)),
            partitions_min=self._number("minPartitions", 1),
            records_per_partition_max=self._number("maxRecordsPerPartition", 1),
            group_id_prefix=self._text("groupIdPrefix") or "spark-kafka-source",
            group_id=properties.get("group.id"),
            include_headers=self._flag("includeHeaders", False),
            filter_pushdown=self._flag("filterPushdown", True),
            jvm_offsets=self._flag("jvmOffsets", False),
            batch_bytes_max=self._number("maxBatchBytes", 1, BATCH_BYTES_MAX) or BATCH_BYTES_DEFAULT,
            ignored=tuple(stream_only) if query is Query.BATCH else (),
        )

    # Checks of several options together

    def _check_names(self) -> None:
        """Refuse an unknown name that is similar to an option, as a typing error. Other unknown names are ignored,
        because they may be for another program.
        """
        if any(name.startswith("option.") for name in self.given):
            # In a table made with CREATE TABLE, Spark passes the options twice, and drops them before a query selects
            # from the table. So such a table cannot work.
            raise OptionError(_CREATE_TABLE)
        for name in self.given:
            if name in _NAMES or name.startswith("kafka."):
                continue
            near = difflib.get_close_matches(name, [*_NAMES, "kafka.bootstrap.servers"], 1, 0.85)
            if near:
                meant = _NAMES.get(near[0], near[0])
                raise OptionError(f"the option {name!r} is unknown: did you mean {meant}?")

    def _properties(self) -> dict[str, str]:
        properties = {
            name[len("kafka.") :]: value for name, value in self.given.items() if name.startswith("kafka.")
        }
        if not properties.get("bootstrap.servers", "").strip():
            raise OptionError(
                f"the option kafka.bootstrap.servers is missing (HOST:PORT,HOST:PORT){self._without_any()}"
            )
        for key, reason in REFUSED_KEYS.items():
            if key in properties:
                raise OptionError(f"kafka.{key} cannot be given: {reason}")
        known = {each.name.replace("_", ".") for each in attrs.fields(ConsumerSettings)}
        others = {
            each.name.replace("_", ".")
            for each in (*attrs.fields(ProducerSettings), *attrs.fields(AdminSettings))
        }
        properties = {key: value for key, value in properties.items() if key in known or key not in others}
        try:
            ConsumerSettings.from_properties(properties)
        except ValueError as error:
            raise OptionError(f"an option kafka.* is not valid: {error}") from None
        return properties

    def _without_any(self) -> str:
        return "" if self.given else f"; no option was passed at all: {_CREATE_TABLE}"

    def _check_query(self, query: Query, starting: Bound, ending: Bound) -> None:
        if query is Query.STREAM:
            for name in _BATCH_ONLY:
                if self._text(name) is not None:
                    raise OptionError(f"{name} is only for batch queries: a streaming query has no end")
        if query is Query.BATCH:
            for bound, never, word in ((starting, LATEST, "latest"), (ending, EARLIEST, "earliest")):
                if bound.everywhere == never:
                    raise OptionError(f"{bound.what} of a batch query cannot be {word}")
                for key, offset in (bound.offsets or {}).items():
                    if offset == never:
                        raise OptionError(
                            f"{bound.what} of a batch query cannot be {word} ({never}): give {key} another offset"
                        )

    def _bound(self, side: str, default: int) -> Bound:
        """Return the bound of the first option that is given: timestamp, offsets by timestamp, or offsets. The JVM
        connector has the same order.
        """
        name = f"{side}Timestamp"
        timestamp = self._number(name, 0)
        if timestamp is not None:
            return Bound(name, timestamp=timestamp)
        name = f"{side}OffsetsByTimestamp"
        if self._text(name) is not None:
            return Bound(name, timestamps=self._by_partition(name, 0))
        name = f"{side}Offsets"
        text = (self._text(name) or "").strip()
        words = {"earliest": EARLIEST, "latest": LATEST, "": default}
        if text.lower() in words:
            return Bound(name, everywhere=words[text.lower()])
        return Bound(name, offsets=self._by_partition(name, EARLIEST))

    # Topics and partitions

    def _topics(self) -> tuple[str, ...] | None:
        text = self._text("subscribe")
        if text is None:
            return None
        topics = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
        if not topics:
            raise OptionError(f"subscribe names no topic ({_shown(text)})")
        return topics

    def _pattern(self) -> str | None:
        text = self._text("subscribePattern")
        if text is None:
            return None
        if not text.strip():
            raise OptionError("subscribePattern is empty")
        try:
            re.compile(text)
        except (re.error, RecursionError, OverflowError) as error:
            raise OptionError(
                f"subscribePattern {_shown(text)} is not a regular expression: {error}"
            ) from None
        return text

    def _assigned(self) -> tuple[TopicPartition, ...] | None:
        text = self._text("assign")
        if text is None:
            return None
        example = '{"topic": [0, 1]}'
        found = _json(text)
        if not isinstance(found, dict) or not all(isinstance(each, list) for each in found.values()):
            raise OptionError(f"assign must be JSON like {example}, not {_shown(text)}")
        _check_topics("assign", found)
        pairs = [TopicPartition(topic, index) for topic, indexes in found.items() for index in indexes]
        if not pairs or not all(type(each.partition) is int and each.partition >= 0 for each in pairs):
            raise OptionError(f"assign must name partitions like {example}, not {_shown(text)}")
        return tuple(sorted(set(pairs)))

    def _by_partition(self, name: str, least: int) -> dict[TopicPartition, int]:
        text = self._text(name) or ""
        example = '{"topic": {"0": 23, "1": -2}}' if least else '{"topic": {"0": 1700000000000}}'
        words = "earliest, latest or " if least else ""
        found = _json(text)
        if not isinstance(found, dict) or not all(isinstance(each, dict) for each in found.values()):
            raise OptionError(f"{name} must be {words}JSON like {example}, not {_shown(text)}")
        _check_topics(name, found)
        offsets: dict[TopicPartition, int] = {}
        for topic, by_index in found.items():
            for index, offset in by_index.items():
                if not re.fullmatch(r"\d{1,9}", index) or type(offset) is not int:
                    raise OptionError(f"{name} must be {words}JSON like {example}, not {_shown(text)}")
                if not least <= offset <= _OFFSET_MAX:
                    raise OptionError(f"{name} has the invalid offset {offset} for {topic}-{index}")
                offsets[TopicPartition(topic, int(index))] = offset
        if not offsets:
            raise OptionError(f"{name} names no partition ({_shown(text)})")
        return offsets

    # Single values

    def _text(self, name: str) -> str | None:
        return self.given.get(name.lower())

    def _value(self, name: str, parse: Callable[[str], T | None], expected: str) -> T | None:
        text = self._text(name)
        if text is None:
            return None
        value = parse(text.strip())
        if value is None:
            raise OptionError(f"{name} must be {expected}, not {_shown(text)}")
        return value

    def _number(self, name: str, least: int, most: int = _OFFSET_MAX) -> int | None:
        def parse(text: str) -> int | None:
            number = int(text) if re.fullmatch(r"[+-]?\d{1,19}", text) else None
            return number if number is not None and least <= number <= most else None

        above = "" if most == _OFFSET_MAX else f" and at most {most}"
        return self._value(name, parse, f"a whole number of at least {least}{above}")

    def _flag(self, name: str, default: bool) -> bool:
        parse = {"true": True, "false": False}
        return _or(self._value(name, lambda text: parse.get(text.lower()), "true or false"), default)

    def _choice(self, name: str, *choices: str) -> str:
        found = self._value(
            name, lambda text: text.lower() if text.lower() in choices else None, " or ".join(choices)
        )
        return _or(found, choices[0])

    def _duration(self, name: str, default: timedelta) -> timedelta:
        def parse(text: str) -> timedelta | None:
            found = re.fullmatch(r"(\d{1,12})\s*([a-z]*)", text.lower())
            unit = _UNITS_MS.get((found[2] or "ms") if found else "")
            try:
                return timedelta(milliseconds=int(found[1]) * unit) if found and unit else None
            except OverflowError:
                return None

        return _or(self._value(name, parse, "a time like 30s, 15m or 1h"), default)


def _or(value: T | None, default: T) -> T:
    return default if value is None else value


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _check_topics(option: str, topics: Iterable[str]) -> None:
    """Raise `OptionError` for a topic name that cannot be encoded. An example from JSON is a name with only half of a
    UTF-16 pair.
    """
    for topic in topics:
        try:
            topic.encode()
        except UnicodeEncodeError:
            raise OptionError(f"{option} has a topic that is not a text: {_shown(topic)}") from None


def _shown(text: str) -> str:
    """Shorten a text for an error, so that the error stays one sentence."""
    if len(text) <= _SHOWN_MAX:
        return repr(text)
    return f"{text[:_SHOWN_MAX]!r}... ({len(text)} characters)"
