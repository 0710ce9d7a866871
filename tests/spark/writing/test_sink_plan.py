"""A write is refused before it runs, with one sentence for each mistake."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed (the extra spark)")

from pyspark.sql.types import StructType

from odradek.spark.sink import BatchWriter, batch_writer
from odradek.spark.writing.sink_plan import plan_write

GOOD = {"kafka.bootstrap.servers": "127.0.0.1:9", "topic": "t"}


def schema(ddl: str) -> StructType:
    """Make a schema from SQL column definitions, without a session."""
    kinds = {
        "binary": "binary",
        "string": "string",
        "int": "integer",
        "long": "long",
        "headers": {
            "type": "array",
            "containsNull": True,
            "elementType": {
                "type": "struct",
                "fields": [
                    {"name": "key", "type": "string", "nullable": True, "metadata": {}},
                    {"name": "value", "type": "binary", "nullable": True, "metadata": {}},
                ],
            },
        },
    }
    fields = [
        {"name": name, "type": kinds[kind], "nullable": True, "metadata": {}}
        for name, kind in (column.split() for column in ddl.split(","))
    ]
    return StructType.fromJson({"type": "struct", "fields": fields})


@pytest.mark.parametrize(
    ("columns", "options", "sentence"),
    [
        (
            "key string",
            {},
            "the column 'value' is missing: it must have the records' values as string or binary (columns: key).",
        ),
        (
            "value int",
            {},
            "the column 'value' is of type int and must be string or binary: cast it in the query.",
        ),
        (
            "key long,value string",
            {},
            "the column 'key' is of type bigint and must be string or binary: cast it",
        ),
        (
            "value string,partition long",
            {},
            "the column 'partition' is of type bigint and must be int: cast it",
        ),
        ("value string,topic binary", {}, "the column 'topic' is of type binary and must be string: cast it"),
        (
            "value string,headers string",
            {},
            "the column 'headers' is of type string and must be array<struct<key:string,value:binary>>: cast it",
        ),
        (
            "value string",
            {"topic": None},
            "no topic is named: set the option 'topic', or give each row a column 'topic'.",
        ),
        ("value string", {"topic": " "}, "the option 'topic' is empty: set it to the topic to write to."),
        (
            "value string",
            {"kafka.bootstrap.servers": None},
            "the option 'kafka.bootstrap.servers' is missing",
        ),
        ("value string", {"kafka.acks": "two"}, "an option kafka.* is not valid: acks='two': expected all"),
        ("value string", {"kafka.linger": "2"}, "unknown configuration key 'linger' (did you mean"),
        (
            "value string",
            {"kafka.value.serializer": "x"},
            "the option 'kafka.value.serializer' is not supported",
        ),
        (
            "value string",
            {"kafka.transactional.id": "x"},
            "the option 'kafka.transactional.id' is not supported",
        ),
        ("value string", {"tpoic": "x"}, "the option 'tpoic' is unknown: did you mean topic?"),
        (
            "value string",
            {"metricPath": "/m"},
            "the option 'metricpath' is unknown: did you mean metricsPath?",
        ),
        (
            "value string",
            {"delivery": "twice"},
            "the option delivery must be exactly-once, two-phase or at-least-once, not 'twice'.",
        ),
        (
            "value string",
            {"delivery": "two-phase", "kafka.transaction.timeout.ms": "1000"},
            "the option kafka.transaction.timeout.ms has no effect with delivery=two-phase",
        ),
        (
            "value string",
            {"kafka.transaction.two.phase.commit.enable": "true"},
            "is not supported: delivery=two-phase sets it.",
        ),
        (
            "value string",
            {"txnAppId": "a"},
            "the options txnAppId and txnVersion must be given together, or not at all.",
        ),
        (
            "value string",
            {"txnAppId": "a", "txnVersion": "-1"},
            "the option txnVersion must be a number from 0 on",
        ),
        (
            "value string",
            {"txnAppId": " 2pc-a", "txnVersion": "1"},
            "the option txnAppId begins with '2pc-', which is reserved",
        ),
        (
            "value string",
            {"txnAppId": "a", "txnVersion": "1", "delivery": "at-least-once"},
            "the options txnAppId and txnVersion need delivery=exactly-once or two-phase.",
        ),
        (
            "value string",
            {"kafka.partitioner.class": "RoundRobinPartitioner"},
            "kafka.partitioner.class is not supported",
        ),
    ],
)
def test_mistakes_are_told_in_a_sentence(columns: str, options: dict[str, str | None], sentence: str) -> None:
    """The driver refuses wrong types, missing columns, a missing topic and wrong options, with one sentence each."""
    merged = {key: value for key, value in {**GOOD, **options}.items() if value is not None}
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the sentence is compared below
        plan_write(merged, schema(columns))
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_the_plan_takes_over() -> None:
    """Options are accepted in any case, consumer settings are ignored, and other columns are not written. The option
    `topic` takes precedence over the column."""
    options = {**GOOD, "KAFKA.Compression.Type": "zstd", "kafka.max.poll.records": "7", "metricsPath": "/m"}
    plan = plan_write(options, schema("extra long,value binary,headers headers,topic string"))
    assert plan.columns == {"value": 1, "headers": 2, "topic": 3}
    assert (plan.topic, plan.metrics_path) == ("t", "/m")
    assert plan.settings.compression_type == "zstd"
    assert plan.settings.batch_size == 256 << 10
    assert plan.settings.enable_idempotence


def test_how_long_rows_and_questions_wait() -> None:
    """Rows wait for memory as long as for delivery, and looking up a topic may take 15 s. `max.block.ms` sets both
    times."""
    plan = plan_write({**GOOD, "kafka.delivery.timeout.ms": "90000"}, schema("value string"))
    assert (plan.settings.max_block_ms, plan.look_up_ms) == (90_000, 15_000)
    plan = plan_write({**GOOD, "kafka.max.block.ms": "7000"}, schema("value string"))
    assert (plan.settings.max_block_ms, plan.look_up_ms) == (7_000, 7_000)


def test_the_time_of_a_transaction() -> None:
    """The transaction timeout is the longest that the brokers allow, or a shorter one set by the user. For a longer one
    the error names the setting."""
    plan = plan_write(GOOD, schema("value string"))
    assert plan.with_transaction_timeout(60_000).settings.transaction_timeout_ms == 60_000
    plan = plan_write({**GOOD, "kafka.transaction.timeout.ms": "70000"}, schema("value string"))
    assert plan.with_transaction_timeout(80_000).settings.transaction_timeout_ms == 70_000
    with pytest.raises(ValueError, match=r"kafka\.transaction\.timeout\.ms \(70000\) is above"):
        plan.with_transaction_timeout(60_000)


def test_figures_that_cannot_be_written_fail_no_batch(caplog: pytest.LogCaptureFixture) -> None:
    """A wrong `metricsPath` only logs a warning, because the rows are already written and Spark must not repeat
    them."""
    options = {**GOOD, "metricsPath": "/no/such/directory/m.jsonl", "delivery": "at-least-once"}
    BatchWriter(plan_write(options, schema("value string"))).commit([])
    assert "the metrics of a batch could not be written" in caplog.text


def test_a_topic_is_not_overwritten() -> None:
    """Mode overwrite is refused for batch queries, because it would mean to delete the topic's records."""
    with pytest.raises(ValueError, match=r"the sink cannot overwrite a topic: use \.mode\('append'\)\."):
        batch_writer(GOOD, schema("value string"), True)


def test_nobody_answers() -> None:
    """The topic is looked up before the first task. Without a broker this fails with a clear error."""
    options = {**GOOD, "kafka.max.block.ms": "300"}
    with pytest.raises(ValueError, match=r"no broker answers for the topic 't' at 127\.0\.0\.1:9: "):
        batch_writer(options, schema("value string"), False)
