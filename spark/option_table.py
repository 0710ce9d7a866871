"""The options of the data source and the sink: names, defaults and effects. docs/spark-options.md is generated from
this table. PURE.
"""

from __future__ import annotations

from typing import Final

import attrs

from odradek.spark.delivery.decisions_topic import DECISIONS_TOPIC

__all__ = ["SINK_OPTIONS", "SOURCE_OPTIONS", "Option"]


@attrs.frozen
class Option:
    """One option, spelled as in the documentation. (Spark passes the name in lower case.)"""

    name: str
    default: str
    """The default: a value, or a description; empty if there is none."""
    about: str
    queries: str = "both"
    """The queries that have the option: `batch`, `stream` or `both`."""
    is_ours: bool = False
    """True if Spark's own Kafka connector does not have the option."""


_BOUNDS: Final = (
    'the bound for all partitions, or JSON such as `{"t": {"0": 23, "1": -2}}` (-2 earliest, -1 latest)'
)

SOURCE_OPTIONS: Final = (
    Option("assign", "", 'partitions to read, as JSON: `{"t": [0, 1]}`'),
    Option("subscribe", "", "topics to read, with commas between them"),
    Option(
        "subscribePattern",
        "",
        "topics to read, as a regular expression of Python (`re`) that the whole name has to match; Java's `\\p{Alpha}` and "
        "`&&` in classes are not known there",
    ),
    Option("startingTimestamp", "", "start at the first record of that time or later (ms since 1970)"),
    Option(
        "startingOffsetsByTimestamp",
        "",
        'the same for each partition, as JSON: `{"t": {"0": 1700000000000}}`',
    ),
    Option(
        "startingOffsetsByTimestampStrategy",
        "`error`",
        "where no record is that young: `error`, or `latest` to start at the end",
    ),
    Option("startingOffsets", "`earliest` (batch), `latest` (stream)", f"where to start: {_BOUNDS}"),
    Option(
        "endingTimestamp", "", "end before the first record of that time or later (ms since 1970)", "batch"
    ),
    Option("endingOffsetsByTimestamp", "", "the same for each partition, as JSON", "batch"),
    Option("endingOffsets", "`latest`", f"where to end: {_BOUNDS}", "batch"),
    Option(
        "failOnDataLoss",
        "`true`",
        "records that are gone fail the query; with `false` a warning names their offsets, and the query goes on",
    ),
    Option(
        "kafkaConsumer.pollTimeoutMs",
        "`120000`",
        "milliseconds that a task waits without progress; `spark.network.timeout` plays no part",
    ),
    Option("fetchOffset.numRetries", "`3`", "how often the driver asks again after an error that passes"),
    Option("fetchOffset.retryIntervalMs", "`1000`", "milliseconds between two of these questions"),
    Option("maxOffsetsPerTrigger", "", "offsets of a micro-batch at most, shared out by backlog", "stream"),
    Option("minOffsetsPerTrigger", "", "offsets that a micro-batch waits for", "stream"),
    Option("maxTriggerDelay", "`15m`", "how long it waits for them at most: `30s`, `15m`, `1h`", "stream"),
    Option("minPartitions", "", "tasks at least: large ranges are split"),
    Option("maxRecordsPerPartition", "", "offsets of a task's range at most: larger ranges are split"),
    Option(
        "groupIdPrefix",
        "`spark-kafka-source`",
        "begins the name of the group to which offsets are committed",
        "stream",
    ),
    Option("includeHeaders", "`false`", "a column `headers` as well; else headers are passed over"),
    Option("filterPushdown", "`true`", "take filters where the session pushes them", "batch", is_ours=True),
    Option(
        "jvmOffsets",
        "`false`",
        "write a checkpoint that Spark's own Kafka connector can go on with",
        "stream",
        is_ours=True,
    ),
    Option(
        "maxBatchBytes",
        "`268435456`",
        "bytes of one record batch, decompressed, that a task takes; at most 1073741824",
        is_ours=True,
    ),
)

SINK_OPTIONS: Final = (
    Option("topic", "", "the topic to write to; wins over the column `topic`"),
    Option(
        "delivery",
        "`exactly-once`",
        "`exactly-once`: each task commits with its progress; `two-phase`: all tasks of a batch at once, for any plan, on "
        "brokers with KIP-939; `at-least-once`: without transactions",
        is_ours=True,
    ),
    Option(
        "decisionsTopic",
        f"`{DECISIONS_TOPIC}`",
        "the compacted topic with the progress of queries; created where it is not there",
        is_ours=True,
    ),
    Option(
        "adoptCheckpoint",
        "`false`",
        "`true`, once: take the checkpoint's word where the topic knows less, or another topic of the name; with `two-phase` "
        "also keep the rows of a decided batch that is repeated with others",
        is_ours=True,
    ),
    Option(
        "txnAppId",
        "",
        "the name of a batch write, which is known by it when it is repeated; with `txnVersion`",
        "batch",
        is_ours=True,
    ),
    Option(
        "txnVersion",
        "",
        "its number, from 0 on: the same one is not written twice, a smaller one is refused",
        "batch",
        is_ours=True,
    ),
    Option("metricsPath", "", "a file on the driver that gets a line of JSON for each batch", is_ours=True),
    Option("includeHeaders", "", "passed over: a column `headers` is written"),
)
