"""Debezium's change events, read as rows of Spark.

A change event (an envelope) has the row before and after the change, and the kind of change in `op`. Under `source` it
has the change's place in the database's log. The kinds are `r` (read by a snapshot), `c` (created), `u` (updated) and `d`
(deleted). A connector with `schemas.enable=true` puts the envelope into a field `payload`. After a deletion Debezium
writes a tombstone, a record with a null value, so that compaction removes the key. The `d` before it has
already said the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's usual name
from pyspark.sql.types import StructType

__all__ = ["CHANGED", "DELETED", "FAULT", "POSITION", "Captured", "changes", "last_changes"]

DELETED, POSITION, CHANGED, FAULT = "_deleted", "_position", "_changed_ms", "_fault"
_UNAVAILABLE = "__debezium_unavailable_value"
"""Debezium's text for a long value of PostgreSQL that a change has left as it was."""


@attrs.frozen
class Captured:
    """The table of the database whose changes are captured."""

    columns: StructType
    keys: Sequence[str]
    """The columns of the primary key."""
    position: str = "lsn"
    """The field of `source` with the place of a change in the database's log, a whole number. It is `lsn` for
    PostgreSQL.
    """


def changes(records: DataFrame, captured: Captured) -> DataFrame:
    """Parse the records of a topic of change events, without its tombstones.

    A row has the columns of the table, `_deleted`, `_position`, `_changed_ms`, and the record's `partition` and
    `offset`. `_fault` says why an event cannot be applied, and is null for a good one.
    """
    row = captured.columns.simpleString()
    source = f"struct<`{captured.position}`: bigint, ts_ms: bigint>"
    fields = {"before": row, "after": row, "op": "string", "ts_ms": "bigint", "source": source}
    envelope = ", ".join(f"{name}: {kind}" for name, kind in fields.items())
    schema = f"struct<{envelope}, payload: struct<{envelope}>, _corrupt: string>"
    parsed = (
        records.where("value is not null")
        .select(
            "partition",
            "offset",
            F.from_json(
                F.col("value").cast("string"), schema, {"columnNameOfCorruptRecord": "_corrupt"}
            ).alias("json"),
        )
        .withColumn("event", F.coalesce("json.payload", F.struct(*(f"json.{name}" for name in fields))))
    )
    is_deletion = F.col("event.op") == "d"
    return parsed.withColumn(
        "row", F.when(is_deletion, F.col("event.before")).otherwise(F.col("event.after"))
    ).select(
        "partition",
        "offset",
        "row.*",
        is_deletion.alias(DELETED),
        F.col(f"event.source.`{captured.position}`").alias(POSITION),
        F.coalesce("event.source.ts_ms", "event.ts_ms").alias(CHANGED),
        _fault(captured).alias(FAULT),
    )


def _fault(captured: Captured) -> Column:
    """Make the column with the reason why an event cannot be applied."""
    op = F.col("event.op")
    no_key = F.lit(False)
    for key in captured.keys:
        no_key = no_key | F.col("row").isNull() | F.col(f"row.`{key}`").isNull()
    unavailable = F.lit(False)
    for column in captured.columns:
        if column.dataType.typeName() == "string":
            unavailable = unavailable | F.coalesce(
                F.col(f"row.`{column.name}`") == _UNAVAILABLE, F.lit(False)
            )
    reasons = (
        (F.col("json._corrupt").isNotNull(), "is no JSON, or has a value of another type than the column"),
        (op.isNull(), "has no op"),
        (op == "t", "empties the table, which is not supported"),
        (~op.isin("r", "c", "u", "d"), "has an unknown op"),
        (
            F.col(f"event.source.`{captured.position}`").isNull(),
            f"has no number source.{captured.position}, so its order is unknown",
        ),
        (no_key, f"lacks the key ({', '.join(captured.keys)})"),
        (unavailable, "leaves out a long value: set REPLICA IDENTITY FULL on the table"),
    )
    fault = F.lit(None).cast("string")
    for is_so, reason in reversed(reasons):
        fault = F.when(is_so, F.lit(reason)).otherwise(fault)
    return fault


def last_changes(rows: DataFrame, captured: Captured) -> DataFrame:
    """Select the last change of each key by the order of the database's log, whatever the order of the records."""
    names = [*captured.columns.names, DELETED, POSITION, CHANGED]
    last = F.max_by(F.struct(*(f"`{name}`" for name in names)), F.struct(POSITION, "offset"))
    return rows.groupBy(*(f"`{key}`" for key in captured.keys)).agg(last.alias("last")).select("last.*")
