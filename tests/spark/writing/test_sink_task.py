"""A task of the sink alone, as a Python worker runs it but without Spark: what it sends and what it refuses."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed (the extra spark)")

import pyarrow as pa

from odradek import Consumer
from odradek.client.producer.partitioner import partition_for_key
from odradek.client.shells.blocking import Client
from odradek.spark.sink import BatchWriter, TaskReport
from odradek.spark.writing.sink_plan import SinkPlan
from tests.node_process import RunningNode
from tests.spark.topics import Topics

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@pytest.fixture
def topics(node: RunningNode) -> Topics:
    return Topics(node.bootstrap)


def run_task(
    bootstrap: str,
    columns: Mapping[str, pa.Array],
    *,
    rows_per_batch: int = 1000,
    topic: str | None = None,
    **keys: str,
) -> TaskReport:
    """Run a task with these columns in Arrow batches, as Spark passes them."""
    properties = {
        "bootstrap.servers": bootstrap,
        **{key.replace("_", "."): value for key, value in keys.items()},
    }
    plan = SinkPlan({name: place for place, name in enumerate(columns)}, topic, properties, None)
    table = pa.table(dict(columns))
    report = BatchWriter(plan).write(iter(table.to_batches(max_chunksize=rows_per_batch)))
    assert isinstance(report, TaskReport)
    return report


def stored_committed(bootstrap: str, topic: str, count: int) -> list[Any]:
    """Wait until no transaction is open in a topic; return its records, at least `count` of them."""
    # A task that Spark kills late may have begun a transaction after the driver has looked for open ones. Its timeout of
    # a minute ends it then.
    deadline = time.monotonic() + 180
    with Client(bootstrap) as client:
        wanted = [(topic, partition) for partition in client.metadata([topic]).topic(topic).partitions]
        while True:
            # The coordinator answers before the transaction's markers are written.
            stable = client.list_offsets(dict.fromkeys(wanted, -1), isolation_level=1)
            ends = client.list_offsets(dict.fromkeys(wanted, -1))
            if all(stable[key].offset == end.offset for key, end in ends.items()):
                break
            assert time.monotonic() < deadline, "a transaction of the topic stays open"
            time.sleep(0.02)
    with Consumer(
        bootstrap_servers=bootstrap,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level="read_committed",
    ) as consumer:
        consumer.assign(wanted)
        found: list[Any] = []
        while any(consumer.position(key) < each.offset for key, each in ends.items()):
            found += consumer.poll(timeout=1)
        assert len(found) >= count
        return found


def stored(bootstrap: str, topic: str, count: int) -> list[Any]:
    """Return the `count` records of a topic."""
    with Consumer(
        bootstrap_servers=bootstrap, auto_offset_reset="earliest", enable_auto_commit=False
    ) as consumer:
        consumer.assign([(topic, partition.index) for partition in consumer.partitions_for(topic)])
        found: list[Any] = []
        while len(found) < count:
            polled = consumer.poll(timeout=60)
            assert polled, f"only {len(found)} of {count} records came"
            found += polled
        return found


def test_partitions_and_topics_by_column(topics: Topics, fresh_topic: Callable[[str], str]) -> None:
    """The columns `topic` and `partition` choose each row's place. A null partition follows the key, and the option
    `topic` takes precedence over the column."""
    both = [topics.create(fresh_topic("sink"), partitions=4) for _ in range(2)]
    numbers = range(400)
    columns = {
        "topic": pa.array([both[number % 2] for number in numbers]),
        "key": pa.array([str(number) for number in numbers]),
        "partition": pa.array([number % 3 if number % 4 < 2 else None for number in numbers], pa.int32()),
        "value": pa.array([b"%d" % number for number in numbers], pa.binary()),
    }
    report = run_task(topics.bootstrap, columns, rows_per_batch=64)
    assert report.rows == 400
    for odd, topic in enumerate(both):
        records = stored(topics.bootstrap, topic, 200)
        assert sorted(int(record.key) for record in records) == list(range(odd, 400, 2))
        for record in records:
            number = int(record.key)
            assert record.value == record.key
            assert record.partition == (number % 3 if number % 4 < 2 else partition_for_key(record.key, 4))
        for partition in range(4):
            offsets = [record.offset for record in records if record.partition == partition]
            written = report.written[topic, partition]
            assert (written.rows, written.first_offset, written.last_offset) == (
                len(offsets),
                0,
                len(offsets) - 1,
            )
    report = run_task(topics.bootstrap, columns, topic=both[1])
    assert {topic for topic, _ in report.written} == {both[1]}


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_rows_without_keys_are_spread_and_counted(
    topics: Topics, fresh_topic: Callable[[str], str], codec: str
) -> None:
    """Rows without keys are spread over all partitions, each once. The report has the totals."""
    topic = topics.create(fresh_topic("sink"), partitions=3)
    values = pa.array([b"%0100d" % number for number in range(20_000)], pa.binary())
    report = run_task(
        topics.bootstrap, {"value": values}, topic=topic, batch_size="100000", compression_type=codec
    )
    assert (report.rows, report.record_bytes, report.batches_repeated) == (20_000, 2_000_000, 0)
    assert (report.batch_bytes < 2_000_000) is (codec == "lz4")
    records = stored(topics.bootstrap, topic, 20_000)
    assert Counter(int(record.value) for record in records) == Counter(range(20_000))
    assert min(Counter(record.partition for record in records).values()) > 3000
    assert not any(record.key is not None or record.headers for record in records)


def test_batches_hold_what_they_may(topics: Topics, fresh_topic: Callable[[str], str]) -> None:
    """A row larger than a batch is sent alone, and batches respect the topic's `max.message.bytes`. Headers and nulls
    are kept."""
    topic = topics.create(fresh_topic("sink"), max_message_bytes="150000")
    values = [b"a" * 100_000, None, b"b" * 70_000, b"c" * 70_000, b"", b"d"]
    headers = [[("h", b"1"), ("n", None)], None, [], None, None, [("é", b"")]]
    lists = pa.array(
        [
            None if each is None else [{"key": name, "value": value} for name, value in each]
            for each in headers
        ],
        HEADERS,
    )
    columns = {"value": pa.array(values, pa.large_binary()), "headers": lists}
    assert run_task(topics.bootstrap, columns, topic=topic).rows == 6
    records = stored(topics.bootstrap, topic, 6)
    assert [record.value for record in records] == values
    assert [list(record.headers) for record in records] == [each or [] for each in headers]


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        (
            {"partition": pa.array([0, 7], pa.int32())},
            "the column 'partition' has 7, but the topic '{topic}' has",
        ),
        (
            {"topic": pa.array(["{topic}", None])},
            "the column 'topic' is null in 1 of 2 rows: name a topic in each row",
        ),
        ({"topic": pa.array(["a/b", "a/b"])}, "the topic 'a/b' cannot be written to at"),
        (
            {"headers": pa.array([None, [{"key": None, "value": b""}]], HEADERS)},
            "the column 'headers' has a header without a key: give every header a key.",
        ),
        (
            {"headers": pa.array([None, [{"key": "h", "value": b"x" * 2_000_000}]], HEADERS)},
            "has 2000002 bytes, which is above max.request.size (1048576): set the option",
        ),
        (
            {"value": pa.array([b"", b"x" * 2_000_000])},
            "has 2000000 bytes, which is above max.request.size (1048576): set the option 'kafka.max.request.size'",
        ),
    ],
)
def test_rows_that_cannot_be_written(
    topics: Topics, fresh_topic: Callable[[str], str], columns: dict[str, pa.Array], sentence: str
) -> None:
    """A row that cannot be written fails the task with one sentence before rows around it are sent. The worker can run
    other tasks."""
    topic = topics.create(fresh_topic("sink"), partitions=2)
    good = {"value": pa.array([b"1", b"2"], pa.binary())}
    named = None if "topic" in columns else topic
    with pytest.raises(Exception, match=r".") as caught:
        run_task(topics.bootstrap, {**good, **columns}, topic=named)
    assert sentence.format(topic=topic) in str(caught.value)
    assert run_task(topics.bootstrap, good, topic=topic).rows == 2
    assert sorted(record.value for record in stored(topics.bootstrap, topic, 2)) == [b"1", b"2"]


def test_a_topic_made_anew_under_a_running_query(topics: Topics, fresh_topic: Callable[[str], str]) -> None:
    """If the topic is recreated while a query runs, its tasks refuse to write, because the plan has the old id."""
    topic = topics.create(fresh_topic("sink"))
    plan = SinkPlan({"value": 0}, topic, {"bootstrap.servers": topics.bootstrap}, None, topic_id=b"\1" * 16)
    rows = pa.record_batch({"value": pa.array([b"1"], pa.binary())})
    with pytest.raises(
        RuntimeError, match=f"the topic '{topic}' was deleted and created again while the query ran"
    ):
        BatchWriter(plan).write(iter([rows]))


def test_no_rows_are_no_mistake(topics: Topics, fresh_topic: Callable[[str], str]) -> None:
    """A task without rows, as after a filter, succeeds."""
    topic = topics.create(fresh_topic("sink"))
    assert run_task(topics.bootstrap, {"value": pa.array([], pa.binary())}, topic=topic) == TaskReport(
        seconds=pytest.approx(0.0, abs=1e9)
    )
