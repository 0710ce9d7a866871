"""The plan of a write, settled and checked on the driver before a task runs: columns, topic, producer.

The columns, their types and their meaning are those of Spark's own Kafka connector. Every complaint is one sentence.
"""

from __future__ import annotations

from collections.abc import Mapping

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

__all__ = ["SINK_DEFAULTS", "SinkPlan", "plan_write"]

_PREFIX = "kafka."
_BOOTSTRAP = "bootstrap.servers"
_SERIALIZERS = ("key.serializer", "value.serializer")
SINK_DEFAULTS: dict[str, str] = {
    # A task has thousands of rows at once, so batches are full without waiting for more.
    "batch.size": str(256 << 10),
    "client.id": "odradek-spark",
    "max.block.ms": "15000",
}


@attrs.frozen
class SinkPlan:
    """The plan that every task of a write gets. `columns` names the place of each column that there is."""

    columns: Mapping[str, int]
    topic: str | None
    """The option `topic`, which wins over the column."""
    properties: Mapping[str, str] = attrs.field(repr=False)
    """The producer's, by Kafka's keys, maybe with passwords."""
    metrics_path: str | None

    @property
    def settings(self) -> ProducerSettings:
        """The producer's settings, typed."""
        return ProducerSettings.from_properties(self.properties)


def plan_write(options: Mapping[str, str], schema: StructType) -> SinkPlan:
    """Check the options and the columns of a write. Raises `ValueError` with one sentence."""
    given = {key.lower(): value for key, value in options.items()}
    plan = SinkPlan(
        columns=_columns(schema, has_topic="topic" in given),
        topic=_topic(given),
        properties=_properties(given),
        metrics_path=given.get("metricspath"),
    )
    try:
        settings = plan.settings
    except ValueError as error:
        raise ValueError(f"an option kafka.* is not right: {error}.") from None
    if settings.partitioner_class is not None:
        raise ValueError(
            "the option kafka.partitioner.class is not supported: give each row its partition in a column"
            " 'partition' of type int."
        )
    return plan


def _topic(options: Mapping[str, str]) -> str | None:
    topic = options.get("topic")
    if topic is not None and not topic.strip():
        raise ValueError("the option 'topic' is empty: it names the topic to write to.")
    return topic


def _properties(options: Mapping[str, str]) -> dict[str, str]:
    """The options `kafka.*` that a producer knows, over the sink's defaults.

    A query that reads and writes often gives both ends the same options: a consumer's keys are passed over.
    """
    given = {key.removeprefix(_PREFIX): value for key, value in options.items() if key.startswith(_PREFIX)}
    if not given.get(_BOOTSTRAP, "").strip():
        raise ValueError(
            "the option 'kafka.bootstrap.servers' is missing: it names brokers as HOST:PORT,HOST:PORT."
        )
    for key in _SERIALIZERS:
        if key in given:
            raise ValueError(
                f"the option 'kafka.{key}' is not supported: keys and values are written as the bytes of their columns,"
                " so cast or encode them in the query."
            )
    if given.get("transactional.id"):
        raise ValueError(
            "the option 'kafka.transactional.id' is not supported: the sink writes at least once, without transactions."
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
"""The type that each column must have; others are not written, as with Spark's own connector."""


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
            f"the column 'value' is missing: it holds what is written, as string or binary (columns: {there})."
        )
    if "topic" not in found and not has_topic:
        raise ValueError("no topic is named: set the option 'topic', or give each row a column 'topic'.")
    return found
