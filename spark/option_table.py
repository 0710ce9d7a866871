"""The options of the data source and the sink: names, defaults and effects. The page docs/spark-options.md is
generated from this table. PURE.
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
    """The default: a value, or a description of the default. The text is empty if there is no default."""
    about: str
    queries: str = "both"
    """The kind of query for which the option is: `batch`, `stream` or `both`."""
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
        "topics to read, as a regular expression of Python (`re`) that must match the whole name; Python lacks Java's `\\p{Alpha}`, and `&&` in classes",
    ),
    Option(
        "startingTimestamp",
        "",
        "start at the first record with this timestamp or a later one (ms since 1970)",
    ),
    Option(
        "startingOffsetsByTimestamp",
        "",
        'a startingTimestamp for each partition, as JSON: `{"t": {"0": 1700000000000}}`',
    ),
    Option(
        "startingOffsetsByTimestampStrategy",
        "`error`",
        "if no record has the timestamp or a later one: `error`, or `latest` to start at the end",
    ),
    Option("startingOffsets", "`earliest` (batch), `latest` (stream)", f"where to start: {_BOUNDS}"),
    Option(
        "endingTimestamp",
        "",
        "end before the first record with this timestamp or a later one (ms since 1970)",
        "batch",
    ),
    Option("endingOffsetsByTimestamp", "", "an endingTimestamp for each partition, as JSON", "batch"),
    Option("endingOffsets", "`latest`", f"where to end: {_BOUNDS}", "batch"),
    Option(
        "failOnDataLoss",
        "`true`",
        "`true`: the query fails if records were deleted before it read them; `false`: a warning names their offsets, and the query continues",
    ),
    Option(
        "kafkaConsumer.pollTimeoutMs",
        "`120000`",
        "milliseconds after which a task without progress fails; `spark.network.timeout` has no effect on it",
    ),
    Option(
        "fetchOffset.numRetries", "`3`", "how many times the driver repeats a request after a temporary error"
    ),
    Option("fetchOffset.retryIntervalMs", "`1000`", "milliseconds between two of these attempts"),
    Option(
        "maxOffsetsPerTrigger",
        "",
        "the most offsets in a micro-batch, divided among partitions in proportion to their backlog",
        "stream",
    ),
    Option(
        "minOffsetsPerTrigger", "", "a micro-batch waits until at least so many offsets are new", "stream"
    ),
    Option(
        "maxTriggerDelay",
        "`15m`",
        "how long a micro-batch waits for `minOffsetsPerTrigger`, at most: `30s`, `15m`, `1h`",
        "stream",
    ),
    Option("minPartitions", "", "the least number of tasks: large ranges of offsets are split"),
    Option(
        "maxRecordsPerPartition", "", "the most offsets in the range of one task: larger ranges are split"
    ),
    Option(
        "groupIdPrefix",
        "`spark-kafka-source`",
        "prefix of the name of the consumer group for which offsets are committed",
        "stream",
    ),
    Option("includeHeaders", "`false`", "`true` adds a column `headers`; otherwise headers are ignored"),
    Option(
        "filterPushdown",
        "`true`",
        "apply the filters that Spark pushes down to the source",
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
        "the most bytes of one decompressed record batch that a task accepts, up to 1073741824",
        is_ours=True,
    ),
)

SINK_OPTIONS: Final = (
    Option("topic", "", "the topic to write to; takes precedence over the column `topic`"),
    Option(
        "delivery",
        "`exactly-once`",
        "`exactly-once`: each task commits its rows together with its progress; `two-phase`: all tasks of a batch commit together, for any plan, on brokers with KIP-939; `at-least-once`: no transactions",
        is_ours=True,
    ),
    Option(
        "decisionsTopic",
        f"`{DECISIONS_TOPIC}`",
        "the compacted topic with the progress of queries; created if it is missing",
        is_ours=True,
    ),
    Option(
        "adoptCheckpoint",
        "`false`",
        "`true` in one run: trust the checkpoint although the decisions topic lacks its batches, or the topic was created again; also keep the rows of a finished batch if its repetition has other rows",
        is_ours=True,
    ),
    Option(
        "txnAppId",
        "",
        "a name that identifies a batch write when it is repeated; needs `txnVersion`",
        "batch",
        is_ours=True,
    ),
    Option(
        "txnVersion",
        "",
        "the number of the batch write, from 0 on: a finished number is not written twice, a smaller one is refused",
        "batch",
        is_ours=True,
    ),
    Option(
        "metricsPath",
        "",
        "a file on the driver, to which a line of JSON is appended for each batch",
        is_ours=True,
    ),
    Option("includeHeaders", "", "ignored: a column `headers` is always written"),
)
