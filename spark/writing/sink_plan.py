"""The plan of a write, which the driver makes and checks before a task runs: columns, topic, producer.

The columns, their types and their meaning are those of Spark's own Kafka connector. Every error text is one sentence.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from enum import Enum

import attrs
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    CharType,
    DataType,
    IntegerType,
    StringType,
    StructType,
    VarcharType,
)

from odradek.client.core.client_keys import AdminSettings, ConsumerSettings, ProducerSettings
from odradek.client.core.known_cluster import NO_TOPIC_ID
from odradek.spark.delivery.decisions_topic import DECISIONS_TOPIC
from odradek.spark.delivery.task_protocol import TopicIds
from odradek.spark.option_table import SINK_OPTIONS

__all__ = ["SINK_DEFAULTS", "Delivery", "SinkPlan", "plan_write"]

_PREFIX = "kafka."
_BOOTSTRAP = "bootstrap.servers"
_SERIALIZERS = ("key.serializer", "value.serializer")
SINK_DEFAULTS: dict[str, str] = {
    # A task has thousands of rows at once. So large batches fill up without waiting.
    "batch.size": str(256 << 10),
    "client.id": "odradek-spark",
}
_LOOK_UP_MS = 15_000
"""The time limit for looking up a topic, in milliseconds. It is much shorter than the delivery timeout, for which rows
may wait for memory.
"""
_NAMES = tuple(each.name for each in SINK_OPTIONS)
_SPARKS = ("checkpointlocation", "path", "queryname")
"""The names of options that Spark itself uses, in lower case."""
_TIMEOUT = "transaction.timeout.ms"
_RESERVED = "2pc-"


class Delivery(Enum):
    """The guarantee of the option `delivery`."""

    EXACTLY_ONCE = "exactly-once"
    TWO_PHASE = "two-phase"
    AT_LEAST_ONCE = "at-least-once"


@attrs.frozen
class SinkPlan:
    """The plan of a write, which every task gets. `columns` has the index of each existing column."""

    columns: Mapping[str, int]
    topic: str | None
    """The option `topic`, which takes precedence over the column `topic`."""
    properties: Mapping[str, str] = attrs.field(repr=False)
    """The producer's configuration with Kafka's keys, perhaps with passwords."""
    metrics_path: str | None
    delivery: Delivery = Delivery.AT_LEAST_ONCE
    decisions_topic: str = DECISIONS_TOPIC
    adopts: bool = False
    """The option `adoptCheckpoint`: a stream may begin at a batch although the batch before has no marker."""
    app_id: str | None = None
    """The name that a batch job has in its markers. It consists of `txnAppId` and the topic."""
    version: int = 0
    run: str = ""
    """The run of the query: a random name, which Spark passes to all tasks with this plan."""
    is_fresh: bool = False
    """True for a batch job without `txnAppId`. It has no earlier run."""
    progress_begin: int = 0
    """The offset in the decisions topic at which the progress of a fresh job begins."""
    topic_id: bytes = NO_TOPIC_ID
    """The id of `topic` at the start of the query."""
    look_up_ms: int = _LOOK_UP_MS

    @property
    def settings(self) -> ProducerSettings:
        """The producer settings, typed."""
        return ProducerSettings.from_properties(self.properties)

    @property
    def look_up_properties(self) -> dict[str, str]:
        """The configuration for the driver's requests. Such a request waits at most `look_up_ms`."""
        return {**self.properties, "max.block.ms": str(self.look_up_ms)}

    @property
    def planned_topics(self) -> TopicIds:
        """The topic that the option `topic` names, with its id; empty if each row names its own topic."""
        return () if self.topic is None else ((self.topic, self.topic_id),)

    @property
    def hashed_columns(self) -> dict[str, int]:
        """The columns whose values are hashed in order to compare two attempts at a task. These are all columns that
        are written.
        """
        return {
            name: place
            for name, place in self.columns.items()
            if not (name == "topic" and self.topic is not None)
        }

    def with_transaction_timeout(self, timeout_max_ms: int | None) -> SinkPlan:
        """Return the plan with a transaction timeout that the brokers accept: at most `timeout_max_ms`. Raises
        `ValueError`.
        """
        given = self.properties.get(_TIMEOUT)
        if timeout_max_ms is None:
            return self
        if given is not None and int(given) > timeout_max_ms:
            raise ValueError(
                f"the option kafka.{_TIMEOUT} ({given}) is above the brokers' "
                f"transaction.max.timeout.ms ({timeout_max_ms}): lower the option."
            )
        return attrs.evolve(self, properties={_TIMEOUT: str(timeout_max_ms), **self.properties})


def plan_write(options: Mapping[str, str], schema: StructType) -> SinkPlan:
    """Check the options and the columns of a write, and make its plan. Raises `ValueError` with one sentence."""
    given = {key.lower(): value for key, value in options.items()}
    _check_names(given)
    topic = _topic(given)
    app_id, version = _job(given, topic)
    plan = SinkPlan(
        columns=_columns(schema, has_topic="topic" in given),
        topic=topic,
        properties=_properties(given),
        metrics_path=given.get("metricspath"),
        delivery=_delivery(given),
        decisions_topic=given.get("decisionstopic", "").strip() or DECISIONS_TOPIC,
        adopts=_flag(given, "adoptCheckpoint"),
        app_id=app_id,
        version=version,
        look_up_ms=_LOOK_UP_MS,
    )
    try:
        settings = plan.settings
    except ValueError as error:
        raise ValueError(f"an option kafka.* is not valid: {error}.") from None
    if settings.partitioner_class is not None:
        raise ValueError(
            "the option kafka.partitioner.class is not supported: give each row its partition in a column"
            " 'partition' of type int."
        )
    if app_id is not None and plan.delivery is Delivery.AT_LEAST_ONCE:
        raise ValueError("the options txnAppId and txnVersion need delivery=exactly-once or two-phase.")
    if plan.delivery is Delivery.TWO_PHASE and f"kafka.{_TIMEOUT}" in given:
        raise ValueError(
            f"the option kafka.{_TIMEOUT} has no effect with delivery=two-phase: prepared transactions "
            "have no timeout."
        )
    if "kafka.max.block.ms" in given:
        return attrs.evolve(plan, look_up_ms=settings.max_block_ms)
    wait = str(settings.delivery_timeout_ms)
    return attrs.evolve(plan, properties={**plan.properties, "max.block.ms": wait})


def _check_names(options: Mapping[str, str]) -> None:
    """Refuse an unknown name that is similar to an option, as a typing error. Other unknown names are ignored,
    because they may be for another program.
    """
    ours = {name.lower(): name for name in _NAMES}
    for name in options:
        if name in ours or name in _SPARKS or name.startswith(("kafka.", "option.")):
            continue
        near = difflib.get_close_matches(
            name, [*ours, "kafka.bootstrap.servers"], 1, 0.85 if len(name) > 6 else 0.75
        )
        if near:
            raise ValueError(f"the option '{name}' is unknown: did you mean {ours.get(near[0], near[0])}?")


def _delivery(options: Mapping[str, str]) -> Delivery:
    text = options.get("delivery", Delivery.EXACTLY_ONCE.value).strip().lower()
    try:
        return Delivery(text)
    except ValueError:
        raise ValueError(
            f"the option delivery must be exactly-once, two-phase or at-least-once, not '{text}'."
        ) from None


def _flag(options: Mapping[str, str], name: str) -> bool:
    text = options.get(name.lower(), "false").strip().lower()
    if text not in ("true", "false"):
        raise ValueError(f"the option {name} must be true or false, not '{text}'.")
    return text == "true"


def _job(options: Mapping[str, str], topic: str | None) -> tuple[str | None, int]:
    """Return the name and the version of a batch job, from `txnAppId` and `txnVersion`. Delta has the same
    options.
    """
    app, version = options.get("txnappid"), options.get("txnversion")
    if app is None and version is None:
        return None, 0
    if app is None or version is None or not app.strip():
        raise ValueError("the options txnAppId and txnVersion must be given together, or not at all.")
    if app.strip().startswith(_RESERVED):
        # The transactional ids of two-phase delivery begin with this prefix. A job with such a name would end
        # transactions that another job has prepared.
        raise ValueError(
            f"the option txnAppId begins with '{_RESERVED}', which is reserved: choose another name."
        )
    if not re.fullmatch(r"\d{1,18}", version.strip()):
        raise ValueError(f"the option txnVersion must be a number from 0 on, not '{version}'.")
    # A job may write to several topics with the same version, as a job may write to several Delta tables. So the
    # topic is part of the name.
    return f"{app.strip()}/{topic or '*'}", int(version)


def _topic(options: Mapping[str, str]) -> str | None:
    topic = options.get("topic")
    if topic is not None and not topic.strip():
        raise ValueError("the option 'topic' is empty: set it to the topic to write to.")
    return topic


def _properties(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options `kafka.*` that are producer keys, together with the sink's defaults.

    A query that reads and writes often has the same options for both sides. So the keys of consumers are ignored.
    """
    given = {key.removeprefix(_PREFIX): value for key, value in options.items() if key.startswith(_PREFIX)}
    if not given.get(_BOOTSTRAP, "").strip():
        raise ValueError(
            "the option 'kafka.bootstrap.servers' is missing: set it to brokers as HOST:PORT,HOST:PORT."
        )
    for key in _SERIALIZERS:
        if key in given:
            raise ValueError(
                f"the option 'kafka.{key}' is not supported: keys and values are written as the bytes of their columns,"
                " so cast or encode them in the query."
            )
    if given.get("transactional.id"):
        raise ValueError(
            "the option 'kafka.transactional.id' is not supported: the sink names its own transactions."
        )
    if "transaction.two.phase.commit.enable" in given:
        raise ValueError(
            "the option 'kafka.transaction.two.phase.commit.enable' is not supported: delivery=two-phase sets it."
        )
    ours = {field.name for field in attrs.fields(ProducerSettings)}
    others = {
        field.name for settings in (ConsumerSettings, AdminSettings) for field in attrs.fields(settings)
    }
    kept = {key: value for key, value in given.items() if key.replace(".", "_") not in others - ours}
    return {**SINK_DEFAULTS, **kept}


# Columns


def _is_text(kind: DataType) -> bool:
    return isinstance(kind, (StringType, CharType, VarcharType))


def _is_text_or_bytes(kind: DataType) -> bool:
    return _is_text(kind) or isinstance(kind, BinaryType)


def _is_headers(kind: DataType) -> bool:
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    fields = kind.elementType.fields
    return (
        [field.name for field in fields] == ["key", "value"]
        and _is_text(fields[0].dataType)
        and isinstance(fields[1].dataType, BinaryType)
    )


_COLUMNS = {
    "key": (_is_text_or_bytes, "string or binary"),
    "value": (_is_text_or_bytes, "string or binary"),
    "headers": (_is_headers, "array<struct<key:string,value:binary>>"),
    "topic": (_is_text, "string"),
    "partition": (lambda kind: isinstance(kind, IntegerType), "int"),
}
"""The type that each column must have. Further columns are not written, as in Spark's own connector."""


def _columns(schema: StructType, *, has_topic: bool) -> dict[str, int]:
    found: dict[str, int] = {}
    for place, field in enumerate(schema.fields):
        known = _COLUMNS.get(field.name)
        if known is None:
            continue
        fits, expected = known
        if not fits(field.dataType):
            raise ValueError(
                f"the column '{field.name}' is of type {field.dataType.simpleString()} and must be {expected}:"
                " cast it in the query."
            )
        found[field.name] = place
    if "value" not in found:
        there = ", ".join(schema.fieldNames()) or "none"
        raise ValueError(
            "the column 'value' is missing: it must have the records' values as string or binary "
            f"(columns: {there})."
        )
    if "topic" not in found and not has_topic:
        raise ValueError("no topic is named: set the option 'topic', or give each row a column 'topic'.")
    return found
