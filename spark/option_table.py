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
    Option("subscribe", "", "topics to read, separated by commas"),
    Option(
        "subscribePattern",
        "",
        "topics to read, as a regular expression of Python (`re`) that must match the whole name; Java's `\\p{Alpha}` and "
        "`&&` in classes are not supported",
    ),
    Option("startingTimestamp", "", "start at the first record at or after this time (ms since 1970)"),
    Option(
        "startingOffsetsByTimestamp",
        "",
        'as `startingTimestamp`, but for each partition, as JSON: `{"t": {"0": 1700000000000}}`',
    ),
    Option(
        "startingOffsetsByTimestampStrategy",
        "`error`",
        "if no record is at or after the starting time: `error`, or `latest` to start at the end",
    ),
    Option("startingOffsets", "`earliest` (batch), `latest` (stream)", f"where to start: {_BOUNDS}"),
    Option(
        "endingTimestamp", "", "end before the first record at or after this time (ms since 1970)", "batch"
    ),
    Option("endingOffsetsByTimestamp", "", "as `endingTimestamp`, but for each partition, as JSON", "batch"),
    Option("endingOffsets", "`latest`", f"where to end: {_BOUNDS}", "batch"),
    Option(
        "failOnDataLoss",
        "`true`",
        "`true`: deleted records that were not read yet fail the query; `false`: a warning has their offsets, and the query continues",
    ),
    Option(
        "kafkaConsumer.pollTimeoutMs",
        "`120000`",
        "milliseconds that a task waits without progress; `spark.network.timeout` has no effect",
    ),
    Option(
        "fetchOffset.numRetries",
        "`3`",
        "the number of times that the driver repeats a request after a temporary error",
    ),
    Option("fetchOffset.retryIntervalMs", "`1000`", "milliseconds between these repetitions"),
    Option(
        "maxOffsetsPerTrigger",
        "",
        "the most offsets of a micro-batch; a partition's share is in proportion to its backlog",
        "stream",
    ),
    Option("minOffsetsPerTrigger", "", "the number of new offsets that a micro-batch waits for", "stream"),
    Option(
        "maxTriggerDelay",
        "`15m`",
        "the longest wait for `minOffsetsPerTrigger`: `30s`, `15m`, `1h`",
        "stream",
    ),
    Option("minPartitions", "", "the least number of tasks: large ranges are split"),
    Option("maxRecordsPerPartition", "", "the most offsets in a task's range: larger ranges are split"),
    Option(
        "groupIdPrefix",
        "`spark-kafka-source`",
        "the prefix of the name of the group to which offsets are committed",
        "stream",
    ),
    Option("includeHeaders", "`false`", "`true` adds the column `headers`"),
    Option(
        "filterPushdown",
        "`true`",
        "apply filters while reading, if the session pushes them down",
        "batch",
        is_ours=True,
    ),
    Option(
        "jvmOffsets",
        "`false`",
        "write a checkpoint from which Spark's own Kafka connector can continue",
        "stream",
        is_ours=True,
    ),
    Option(
        "maxBatchBytes",
        "`268435456`",
        "the most decompressed bytes of a record batch that a task accepts; at most 1073741824",
        is_ours=True,
    ),
)

SINK_OPTIONS: Final = (
    Option("topic", "", "the topic to write to; it takes precedence over the column `topic`"),
    Option(
        "delivery",
        "`exactly-once`",
        "`exactly-once`: each task commits its rows with its progress; `two-phase`: all tasks of a batch commit together, "
        "for any plan, on brokers with KIP-939; `at-least-once`: without transactions",
        is_ours=True,
    ),
    Option(
        "decisionsTopic",
        f"`{DECISIONS_TOPIC}`",
        "the compacted topic with the progress of queries; it is created if it does not exist",
        is_ours=True,
    ),
    Option(
        "adoptCheckpoint",
        "`false`",
        "set to `true` once: follow the checkpoint although the progress in the topic is older, or the topic was created again; "
        "with `two-phase` also keep the rows of a decided batch whose repetition has other rows",
        is_ours=True,
    ),
    Option(
        "txnAppId",
        "",
        "the name that identifies a batch write when it is repeated; needs `txnVersion`",
        "batch",
        is_ours=True,
    ),
    Option(
        "txnVersion",
        "",
        "the number of the batch write, from 0 on: the same number is not written twice, a smaller number is refused",
        "batch",
        is_ours=True,
    ),
    Option(
        "metricsPath",
        "",
        "a file on the driver to which a line of JSON is appended for each batch",
        is_ours=True,
    ),
    Option("includeHeaders", "", "ignored: a column `headers` is always written"),
)
