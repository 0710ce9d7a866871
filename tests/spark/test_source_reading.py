"""Plans and reads of the source, asked of its readers as Spark asks them, against a real node, without Java."""

from __future__ import annotations

import json
import logging
import pickle
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed (the extra spark)")

from pyspark.sql.datasource import EqualTo, Filter, GreaterThanOrEqual
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, ReadMinRows
from pyspark.sql.types import BinaryType, StructField, StructType

from bench.odradek_server import launch_odradek, prepare_odradek
from odradek import Admin
from odradek.client.admin import admin_offsets
from odradek.client.core.operation import Operation, Wait
from odradek.client.errors import RequestTimedOut
from spark import source
from spark.reading.fetching import close_idle_clients
from spark.reading.filters import push
from spark.reading.range_partition import RangePartition
from spark.reading.read_errors import DataLoss, ReadError
from spark.source_options import OptionError, SourceOptions
from spark.source_stream import OdradekStreamReader
from tests.node_process import RunningNode
from tests.spark.topics import Topics

Options = Callable[..., dict[str, str]]
ALL = ReadAllAvailable()


@pytest.fixture
def topics(node: RunningNode) -> Topics:
    return Topics(node.bootstrap)


@pytest.fixture
def options(node: RunningNode) -> Options:
    """Options as Spark hands them over: names in lower case."""

    def build(topic: str | None = None, **given: Any) -> dict[str, str]:
        named = {"kafka.bootstrap.servers": node.bootstrap, **given}
        if topic is not None:
            named["subscribe"] = topic
        return {name.lower(): str(value) for name, value in named.items()}

    return build


def rows(reader: Any, partitions: list[Any]) -> list[tuple[int, int, bytes | None]]:
    """(partition, offset, value) of what tasks read, after the journey that Spark sends readers and partitions on."""
    reader = pickle.loads(pickle.dumps(reader))
    found: list[tuple[int, int, bytes | None]] = []
    for partition in pickle.loads(pickle.dumps(partitions)):
        for batch in reader.read(partition):
            found += zip(
                *(batch.column(name).to_pylist() for name in ("partition", "offset", "value")), strict=True
            )
    return found


def read(given: dict[str, str], filters: list[Filter] | None = None) -> list[tuple[int, int, bytes | None]]:
    """A batch query."""
    reader = source.batch_reader(given, source.schema(given))
    if filters is not None:
        reader.pushed, _ = push(filters)
    return rows(reader, list(reader.partitions()))


class TestBatch:
    def test_bounds(self, topics: Topics, options: Options, fresh_topic: Callable[[str], str]) -> None:
        """Offsets, times and words mean what they mean to the JVM connector."""
        name = topics.create(fresh_topic("bounds"))
        topics.send(name, [b"0", b"1"], timestamp=1000)
        topics.send(name, [b"2", b"3", b"4"], timestamp=2000)

        def offsets(**given: Any) -> list[int]:
            return [offset for _, offset, _ in read(options(name, **given))]

        def at(offset: int) -> str:
            return json.dumps({name: {"0": offset}})

        assert offsets() == [0, 1, 2, 3, 4]
        assert offsets(startingOffsets=at(1), endingOffsets=at(3)) == [1, 2]
        assert offsets(startingOffsets=at(-2), endingOffsets=at(-1)) == [0, 1, 2, 3, 4]
        assert offsets(startingTimestamp=1001) == [2, 3, 4]
        assert offsets(endingTimestamp=2000) == [0, 1]
        assert offsets(endingTimestamp=9000) == [0, 1, 2, 3, 4]
        assert offsets(startingOffsetsByTimestamp=at(2000), endingOffsetsByTimestamp=at(2000)) == []
        assert offsets(startingTimestamp=3000, startingOffsetsByTimestampStrategy="latest") == []
        with pytest.raises(ReadError, match=r"has no record as young as startingTimestamp asks \(3000\)"):
            offsets(startingTimestamp=3000)
        with pytest.raises(ReadError, match=r"startingOffsets of .*-0 \(4\) lies behind endingOffsets \(2\)"):
            offsets(startingOffsets=at(4), endingOffsets=at(2))

    def test_what_to_read(self, topics: Topics, options: Options, fresh_topic: Callable[[str], str]) -> None:
        """subscribe, subscribePattern (of whole names, without internal topics) and assign."""
        stem = fresh_topic("which")
        for letter in "abc":
            topics.create(f"{stem}-{letter}", partitions=2)
            topics.send(f"{stem}-{letter}", [letter.encode()], partition=1)

        def values(**given: Any) -> list[bytes | None]:
            return sorted(value or b"" for _, _, value in read(options(**given)))

        assert values(subscribe=f"{stem}-a, {stem}-c") == [b"a", b"c"]
        assert values(subscribePattern=f"{stem}-[ab]") == [b"a", b"b"]
        assert values(subscribePattern=stem) == []
        assert values(assign=json.dumps({f"{stem}-b": [1], f"{stem}-c": [0]})) == [b"b"]
        with pytest.raises(ReadError, match=rf"topic {stem}-x cannot be read"):
            values(subscribe=f"{stem}-x")
        with pytest.raises(ReadError, match=rf"assign names {stem}-a-7, and there is no such partition"):
            values(assign=json.dumps({f"{stem}-a": [7]}))
        with pytest.raises(
            OptionError, match=rf"must name exactly the partitions that are read: {stem}-a-1 is missing"
        ):
            values(subscribe=f"{stem}-a", startingOffsets=json.dumps({f"{stem}-a": {"0": 0}}))

    def test_tasks(self, topics: Topics, options: Options, fresh_topic: Callable[[str], str]) -> None:
        """minPartitions and maxRecordsPerPartition split what one partition has, small ranges share a task, nothing is
        read twice."""
        name = topics.create(fresh_topic("tasks"), partitions=2)
        topics.send(name, [b"%d" % number for number in range(90)])
        topics.send(name, [b"x"] * 10, partition=1)
        for given, tasks in (
            ({}, [2]),
            ({"minPartitions": 5}, [1] * 5),
            ({"minPartitions": 2}, [1, 1]),
            ({"maxRecordsPerPartition": 30}, [1] * 4),
            ({"maxRecordsPerPartition": 45}, [1, 1, 1]),
        ):
            named = options(name, **given)
            reader = source.batch_reader(named, source.schema(named))
            partitions = reader.partitions()
            assert [len(each.ranges) for each in partitions if isinstance(each, RangePartition)] == tasks
            assert [row[:2] for row in rows(reader, list(partitions))] == [
                *((0, offset) for offset in range(90)),
                *((1, offset) for offset in range(10)),
            ]

    def test_filters_save_reading(
        self, topics: Topics, options: Options, fresh_topic: Callable[[str], str]
    ) -> None:
        """Fewer partitions, shorter ranges, a start that is found by time."""
        name = topics.create(fresh_topic("pushed"), partitions=2)
        topics.send(name, [b"old"] * 3, partition=1, timestamp=1000)
        topics.send(name, [b"new"] * 2, partition=1, timestamp=2000)
        topics.send(name, [b"other"])
        from datetime import UTC, datetime

        since = datetime.fromtimestamp(1.5, UTC)
        assert read(options(name), [EqualTo(("partition",), 1), GreaterThanOrEqual(("offset",), 2)]) == [
            (1, 2, b"old"),
            (1, 3, b"new"),
            (1, 4, b"new"),
        ]
        assert read(
            options(name), [GreaterThanOrEqual(("timestamp",), since), EqualTo(("partition",), 1)]
        ) == [
            (1, 3, b"new"),
            (1, 4, b"new"),
        ]
        assert read(options(name), [EqualTo(("topic",), "another")]) == []

    def test_large_and_compressed(
        self, topics: Topics, options: Options, fresh_topic: Callable[[str], str]
    ) -> None:
        """Many fetches, a batch larger than one fetch asks for, and a start in the middle of a batch."""
        name = topics.create(fresh_topic("large"))
        values = [b"%05d" % number * 100 for number in range(2000)]
        topics.send(name, values, compression_type="lz4", linger_ms=50, batch_size=200_000)
        small = {"kafka.max.partition.fetch.bytes": 1000, "kafka.fetch.max.bytes": 1000}
        named = options(name, startingOffsets=json.dumps({name: {"0": 77}}), **small)
        assert [(offset, value) for _, offset, value in read(named)] == list(enumerate(values))[77:]

    def test_a_custom_schema_is_refused(self, options: Options) -> None:
        """The columns are fixed, as the JVM connector's are."""
        other = StructType([StructField("value", BinaryType())])
        with pytest.raises(OptionError, match=r"leave out schema\(\.\.\.\)"):
            source.batch_reader(options("t"), other)


class TestBatchDataLoss:
    def test_offsets_that_retention_took(
        self,
        topics: Topics,
        options: Options,
        fresh_topic: Callable[[str], str],
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """Named offsets that are gone are an error; failOnDataLoss=false reads the rest with a warning."""
        name = topics.create(fresh_topic("loss"))
        topics.send(name, [b"%d" % number for number in range(10)])
        topics.delete_records(name, {0: 6})
        named = options(name, startingOffsets=json.dumps({name: {"0": 2}}))
        with pytest.raises(DataLoss, match=rf"offsets 2 to 5 of {name}-0 are not there: its log begins at 6"):
            read(named)
        with caplog.at_level(logging.WARNING, "odradek.spark"):
            found = read(named | {"failondataloss": "false"})
        assert [offset for _, offset, _ in found] == [6, 7, 8, 9]
        assert "offsets 2 to 5" in caplog.text
        behind = options(name, endingOffsets=json.dumps({name: {"0": 12}}))
        with pytest.raises(
            DataLoss, match=rf"offsets 10 to 11 of {name}-0 are not there: its log ends at 10"
        ):
            read(behind)

    def test_one_of_several_small_ranges(
        self, topics: Topics, options: Options, fresh_topic: Callable[[str], str]
    ) -> None:
        """Ranges that come by one Fetch fail and go on like others: lost offsets are named, the other rows are there."""
        name = topics.create(fresh_topic("one-of"), partitions=3)
        for partition in range(3):
            topics.send(name, [b"x"] * 4, partition=partition)
        everything = [(partition, at) for partition in range(3) for at in range(4)]
        plans = {}
        for fails in ("true", "false"):
            given = options(name, failOnDataLoss=fails)
            reader = source.batch_reader(given, source.schema(given))
            plans[fails] = (reader, list(reader.partitions()))
            assert len(plans[fails][1]) == 1
        assert [row[:2] for row in rows(*plans["true"])] == everything
        topics.delete_records(name, {1: 3})
        assert [row[:2] for row in rows(*plans["false"])] == [
            each for each in everything if each[0] != 1 or each[1] == 3
        ]
        with pytest.raises(DataLoss, match=rf"offsets 0 to 2 of {name}-1 are lost"):
            rows(*plans["true"])

    def test_between_the_plan_and_the_task(
        self, topics: Topics, options: Options, fresh_topic: Callable[[str], str]
    ) -> None:
        """Retention that overtakes a running query is found by the task, which names the offsets."""
        name = topics.create(fresh_topic("overtaken"))
        topics.send(name, [b"%d" % number for number in range(10)])
        for fail in ("true", "false"):
            named = options(name, failOnDataLoss=fail, startingOffsets=json.dumps({name: {"0": 0}}))
            if fail == "true":
                reader = source.batch_reader(named, source.schema(named))
                partitions = list(reader.partitions())
                topics.delete_records(name, {0: 4})
                with pytest.raises(
                    DataLoss, match=rf"offsets 0 to 3 of {name}-0 are lost: .* begins at 4 now"
                ):
                    rows(reader, partitions)
            else:
                reader = source.batch_reader(named, source.schema(named))
                assert [offset for _, offset, _ in rows(reader, partitions)] == [4, 5, 6, 7, 8, 9]

    def test_another_topic_of_the_same_name(
        self, topics: Topics, options: Options, fresh_topic: Callable[[str], str]
    ) -> None:
        """A plan for a topic reads no other one, whatever its name is (KIP-516)."""
        name = topics.create(fresh_topic("again"))
        topics.send(name, [b"old"] * 5)
        named = options(name)
        reader = source.batch_reader(named, source.schema(named))
        partitions = list(reader.partitions())
        topics.delete(name)
        topics.create(name)
        topics.send(name, [b"new"] * 9)
        with pytest.raises(DataLoss, match=rf"offsets 0 to 4 of {name}-0 are lost: topic {name} was deleted"):
            rows(reader, partitions)


class Query:
    """A streaming query as Spark drives it: offsets go through JSON, starts are what the last end was."""

    def __init__(self, given: dict[str, str]) -> None:
        self.given = given
        self.reader = self._new()
        self.end: dict[str, Any] | None = None

    def _new(self) -> OdradekStreamReader:
        return source.stream_reader(self.given, source.schema(self.given))

    def restart(self) -> None:
        """Another driver, the same checkpoint."""
        self.reader.stop()
        self.reader = self._new()

    def batch(self, limit: ReadLimit | None = None) -> list[tuple[int, int, bytes | None]] | None:
        """The rows of the next batch; None where Spark would make none."""
        start = self.end
        if start is None:
            start = json.loads(json.dumps(self.reader.initialOffset()))
        end = self.reader.latestOffset(start, limit or self.reader.getDefaultReadLimit())
        end = json.loads(json.dumps(end))
        if json.dumps(end) == json.dumps(start):
            return None
        found = rows(self.reader, list(self.reader.partitions(start, end)))
        self.end = end
        self.reader.commit(end)
        return found


@pytest.fixture
def query() -> Iterator[Callable[[dict[str, str]], Query]]:
    """Queries that are stopped when the test ends."""
    started: list[Query] = []

    def start(given: dict[str, str]) -> Query:
        started.append(Query(given))
        return started[-1]

    yield start
    for each in started:
        each.reader.stop()


StartQuery = Callable[[dict[str, str]], Query]


class TestStream:
    def test_from_the_end_without_a_gap(
        self, topics: Topics, options: Options, query: StartQuery, fresh_topic: Callable[[str], str]
    ) -> None:
        """`latest` is where the log ended when the query started, however often Spark asks and whatever comes meanwhile."""
        name = topics.create(fresh_topic("latest"))
        topics.send(name, [b"before"])
        running = query(options(name))
        start = running.reader.initialOffset()
        topics.send(name, [b"between"])
        assert running.reader.initialOffset() == start
        assert running.batch() == [(0, 1, b"between")]
        topics.send(name, [b"after"])
        assert running.batch() == [(0, 2, b"after")]

    def test_the_first_batch_comes_at_once_and_once(
        self, topics: Topics, options: Options, query: StartQuery, fresh_topic: Callable[[str], str]
    ) -> None:
        """Spark writes a start into the checkpoint only as a part of the first end: so that comes even if it is empty."""
        name = topics.create(fresh_topic("first"))
        running = query(options(name))
        assert running.batch() == []
        assert running.batch() is None

    def test_a_crash_in_the_first_batch(
        self, topics: Topics, options: Options, query: StartQuery, fresh_topic: Callable[[str], str]
    ) -> None:
        """After it Spark asks for the initial offset again, and has the old end: the batch reads what it was to read."""
        name = topics.create(fresh_topic("crash"))
        topics.send(name, [b"before"])
        running = query(options(name))
        start = running.reader.initialOffset()
        topics.send(name, [b"1", b"2"])
        end = json.loads(json.dumps(running.reader.latestOffset(start, ALL)))
        running.restart()
        topics.send(name, [b"3", b"4", b"5"])
        again = running.reader.initialOffset()
        assert again != start
        found = rows(running.reader, list(running.reader.partitions(again, end)))
        assert found == [(0, 1, b"1"), (0, 2, b"2")]
        running.end = end
        assert running.batch() == [(0, 3, b"3"), (0, 4, b"4"), (0, 5, b"5")]

    def test_a_checkpoint_of_the_jvm_connector_is_gone_on_with(
        self, topics: Topics, options: Options, query: StartQuery, fresh_topic: Callable[[str], str]
    ) -> None:
        """Its offsets are ours: the name of the format is all that changes."""
        name = topics.create(fresh_topic("migrated"), partitions=2)
        topics.send(name, [b"%d" % number for number in range(5)])
        running = query(options(name))
        running.end = {name: {"0": 3, "1": 0}}
        assert running.batch() == [(0, 3, b"3"), (0, 4, b"4")]

    def test_limits(
        self, topics: Topics, options: Options, query: StartQuery, fresh_topic: Callable[[str], str]
    ) -> None:
        """maxOffsetsPerTrigger bounds a batch, unless Spark asks for all; the rest comes with the next ones."""
        name = topics.create(fresh_topic("limits"), partitions=2)
        topics.send(name, [b"%d" % number for number in range(30)])
        topics.send(name, [b"x"] * 10, partition=1)
        running = query(options(name, startingOffsets="earliest", maxOffsetsPerTrigger=8))
        assert running.reader.getDefaultReadLimit() == ReadMaxRows(8)
        batches = [running.batch() for _ in range(6)]
        assert [len(each or ()) for each in batches] == [8, 8, 8, 8, 8, 0]
        assert batches[5] is None
        read_all = sorted(row for each in batches for row in each or ())
        assert [row[:2] for row in read_all] == [
            *((0, offset) for offset in range(30)),
            *((1, offset) for offset in range(10)),
        ]
        again = query(running.given)
        assert len(again.batch(ALL) or ()) == 40

    def test_too_little_waits(
        self, topics: Topics, options: Options, query: StartQuery, fresh_topic: Callable[[str], str]
    ) -> None:
        """minOffsetsPerTrigger holds a batch back until there is enough, or maxTriggerDelay has passed."""
        name = topics.create(fresh_topic("least"))
        running = query(options(name, minOffsetsPerTrigger=3))
        assert running.reader.getDefaultReadLimit() == ReadMinRows(3)
        assert running.batch() == []
        topics.send(name, [b"1", b"2"])
        assert running.batch() is None
        topics.send(name, [b"3"])
        assert len(running.batch() or ()) == 3
        topics.send(name, [b"4"])
        assert running.batch() is None
        impatient = query(options(name, minOffsetsPerTrigger=3, maxTriggerDelay="1ms"))
        impatient.end = running.end
        assert len(impatient.batch() or ()) == 1
        assert query(
            options(name, minOffsetsPerTrigger=3, maxOffsetsPerTrigger=9)
        ).reader.getDefaultReadLimit() == (ReadMaxRows(9))

    def test_available_now(
        self, topics: Topics, options: Options, query: StartQuery, fresh_topic: Callable[[str], str]
    ) -> None:
        """Records that come after the start are left to the next run, and the run ends (no more to read)."""
        name = topics.create(fresh_topic("now"))
        topics.send(name, [b"1", b"2", b"3"])
        running = query(options(name, startingOffsets="earliest", maxOffsetsPerTrigger=2))
        running.reader.prepareForTriggerAvailableNow()
        topics.send(name, [b"4"])
        assert running.batch() == [(0, 0, b"1"), (0, 1, b"2")]
        assert running.batch() == [(0, 2, b"3")]
        assert running.batch() is None
        running.restart()
        running.reader.prepareForTriggerAvailableNow()
        assert running.batch() == [(0, 3, b"4")]

    def test_new_partitions_are_read_from_their_beginning(
        self, topics: Topics, options: Options, query: StartQuery, fresh_topic: Callable[[str], str]
    ) -> None:
        """However the query began (Spark's guide: newly discovered partitions start at earliest)."""
        name = topics.create(fresh_topic("grows"))
        running = query(options(name))
        assert running.batch() == []
        topics.grow(name, 2)
        topics.send(name, [b"new"], partition=1)
        running.restart()
        assert running.batch() == [(1, 0, b"new")]

    def test_news_end_the_wait(
        self, topics: Topics, options: Options, query: StartQuery, fresh_topic: Callable[[str], str]
    ) -> None:
        """A query with nothing to do waits at the leaders, and records that come are read at once."""
        name = topics.create(fresh_topic("news"), partitions=2)
        running = query(options(name))
        assert running.batch() == []
        assert running.batch() is None
        for number in range(5):
            topics.send(name, [b"%d" % number], partition=number % 2)
            assert running.batch() == [(number % 2, number // 2, b"%d" % number)]


class TestOffsetsOfTheJvmConnector:
    def test_the_checkpoint_has_offsets_alone(
        self, topics: Topics, options: Options, query: StartQuery, fresh_topic: Callable[[str], str]
    ) -> None:
        """With jvmOffsets no end has more than the JVM connector reads, and each record comes once across restarts."""
        name = topics.create(fresh_topic("plain"), partitions=2)
        topics.send(name, [b"1", b"2"])
        running = query(options(name, jvmOffsets="true", startingOffsets="earliest", maxOffsetsPerTrigger=1))
        assert running.batch() == []
        assert running.end == {name: {"0": 0, "1": 0}}
        assert running.batch() == [(0, 0, b"1")]
        running.restart()
        assert running.batch() == [(0, 1, b"2")]
        assert running.end == {name: {"0": 2, "1": 0}}
        assert running.batch() is None

    def test_a_crash_in_the_first_batch(
        self, topics: Topics, options: Options, query: StartQuery, fresh_topic: Callable[[str], str]
    ) -> None:
        """What comes between the start at `latest` and a restart is read: the first batch is empty, its end is the start."""
        name = topics.create(fresh_topic("plain-crash"))
        topics.send(name, [b"old"])
        running = query(options(name, jvmOffsets="true"))
        end = running.reader.latestOffset(running.reader.initialOffset(), ALL)
        topics.send(name, [b"new"])
        running.restart()
        start = running.reader.initialOffset()
        assert [each for part in running.reader.partitions(start, end) for each in part.ranges] == []
        running.end = end
        assert running.batch() == [(0, 1, b"new")]

    def test_a_checkpoint_that_has_more_loses_it(
        self, topics: Topics, options: Options, query: StartQuery, fresh_topic: Callable[[str], str]
    ) -> None:
        """A query that gets the option later writes an empty batch at once, and then as before; and the other way around."""
        name = topics.create(fresh_topic("plain-later"))
        topics.send(name, [b"1"])
        running = query(options(name, startingOffsets="earliest"))
        assert running.batch() == [(0, 0, b"1")]
        later = query(options(name, jvmOffsets="true"))
        later.end = running.end
        assert later.batch() == []
        assert later.end == {name: {"0": 1}}
        assert later.batch() is None
        running.end = later.end
        topics.send(name, [b"2"])
        assert running.batch() == [(0, 1, b"2")]

    def test_another_topic_of_the_same_name(
        self, topics: Topics, options: Options, query: StartQuery, fresh_topic: Callable[[str], str]
    ) -> None:
        """As long as the process lives, the topic's id is known."""
        name = topics.create(fresh_topic("plain-again"))
        topics.send(name, [b"old"] * 3)
        running = query(options(name, jvmOffsets="true", startingOffsets="earliest"))
        running.batch()
        assert len(running.batch() or ()) == 3
        topics.delete(name)
        topics.create(name)
        topics.send(name, [b"new"] * 5)
        with pytest.raises(DataLoss, match="was deleted, and the one that has its name now is another"):
            running.batch()


class TestStreamTold:
    def test_lag_in_records_and_seconds(
        self, topics: Topics, options: Options, query: StartQuery, fresh_topic: Callable[[str], str]
    ) -> None:
        """The latestOffset in Spark says how far behind it the batch ends: records, and the age of the oldest."""
        name = topics.create(fresh_topic("lag"))
        topics.send(name, [b"x"] * 10, timestamp=1_000_000)
        running = query(options(name, startingOffsets="earliest", maxOffsetsPerTrigger=4))
        assert running.reader.reportLatestOffset() is None
        running.batch()
        told = running.reader.reportLatestOffset() or {}
        assert told[name] == {"0": 10}
        assert told["@lag"]["records"] == 6
        assert told["@lag"]["seconds"] > 1_000_000
        running.batch()
        running.batch()
        assert (running.reader.reportLatestOffset() or {})["@lag"] == {"records": 0, "seconds": 0.0}

    def test_committed_batches_show_in_a_group(
        self,
        topics: Topics,
        options: Options,
        query: StartQuery,
        node: RunningNode,
        fresh_topic: Callable[[str], str],
    ) -> None:
        """The group has groupIdPrefix and an id that the checkpoint keeps, or the name that kafka.group.id gives."""
        name = topics.create(fresh_topic("group"))
        topics.send(name, [b"x"] * 10)
        group = fresh_topic("readers")
        given = options(name, startingOffsets="earliest", maxOffsetsPerTrigger=4, groupIdPrefix=group)
        running = query(given)
        running.batch()
        running.restart()
        running.batch()
        running.reader.stop()
        assert running.end is not None
        assert running.end["@group"].startswith(f"{group}-")
        named = query(options(name, startingOffsets="earliest", **{"kafka.group.id": f"{group}-own"}))
        named.batch()
        named.reader.stop()
        now = query(options(name, startingOffsets="earliest", **{"kafka.group.id": f"{group}-now"}))
        now.reader.prepareForTriggerAvailableNow()
        now.batch()
        # The last batch of AvailableNow is published without `stop`, which Spark does not always call.
        with Admin(bootstrap_servers=node.bootstrap) as admin:
            assert [each.lag for each in admin.describe_group_lag(f"{group}-now")] == [0]
        with Admin(bootstrap_servers=node.bootstrap) as admin:
            lags = admin.describe_group_lag(running.end["@group"])
            assert [(each.topic, each.lag) for each in lags] == [(name, 2)]
            assert [each.lag for each in admin.describe_group_lag(f"{group}-own")] == [0]

    def test_the_group_of_a_run_that_ends_by_itself(
        self,
        topics: Topics,
        options: Options,
        query: StartQuery,
        node: RunningNode,
        fresh_topic: Callable[[str], str],
    ) -> None:
        """With AvailableNow the group knows of the last batch when Spark has asked for another one, stopped or not."""
        name = topics.create(fresh_topic("now-group"))
        topics.send(name, [b"x"] * 10)
        running = query(options(name, startingOffsets="earliest"))
        running.reader.prepareForTriggerAvailableNow()
        assert len(running.batch() or ()) == 10
        assert running.batch() is None
        assert running.end is not None
        with Admin(bootstrap_servers=node.bootstrap) as admin:
            assert [each.lag for each in admin.describe_group_lag(running.end["@group"])] == [0]

    def test_an_age_that_nobody_tells(
        self,
        topics: Topics,
        options: Options,
        query: StartQuery,
        fresh_topic: Callable[[str], str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Leaders that are silent, or a topic that has gone, cost the figure, not the query."""
        name = topics.create(fresh_topic("no-age"))
        topics.send(name, [b"x"] * 10)
        running = query(options(name, startingOffsets="earliest", maxOffsetsPerTrigger=4))
        running.batch()
        with monkeypatch.context() as patched:
            patched.setattr(admin_offsets, "record_times", _silent)
            told = running.reader.reportLatestOffset() or {}
            assert told["@lag"] == {"records": 6, "seconds": -1.0}
        topics.delete(name)
        told = running.reader.reportLatestOffset() or {}
        assert told["@lag"] == {"records": 6, "seconds": -1.0}


def _silent(*_: Any) -> Operation[Any]:
    yield Wait(until=0.0)
    raise RequestTimedOut("the leaders are silent")


class TestStreamDataLoss:
    def test_the_topic_is_not_there_any_more(
        self, topics: Topics, options: Options, query: StartQuery, fresh_topic: Callable[[str], str]
    ) -> None:
        """A topic that was named: an error, or the query lives on with the others."""
        name, other = topics.create(fresh_topic("named")), topics.create(fresh_topic("other"))
        topics.send(name, [b"x"] * 3)
        given = {"startingOffsets": "earliest", "fetchOffset.retryIntervalMs": 1}
        running = query(options(f"{name},{other}", **given))
        running.batch()
        topics.delete(name)
        running.restart()
        with pytest.raises(DataLoss, match=rf"{name}-0 does not exist any more; it was read to offset 3"):
            running.batch()
        lenient = query(running.given | {"failondataloss": "false"})
        lenient.end = running.end
        assert lenient.batch() == []
        topics.send(other, [b"y"])
        assert lenient.batch() == [(0, 0, b"y")]

    def test_another_topic_of_the_same_name(
        self,
        topics: Topics,
        options: Options,
        query: StartQuery,
        fresh_topic: Callable[[str], str],
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """Told by its id, even when it has more records; without failing it is read from its beginning."""
        name = topics.create(fresh_topic("recreated"))
        topics.send(name, [b"old"] * 3)
        running = query(options(name, startingOffsets="earliest"))
        running.batch()
        topics.delete(name)
        topics.create(name)
        topics.send(name, [b"new"] * 5)
        running.restart()
        with pytest.raises(
            DataLoss, match=rf"topic {name} was deleted, .* the old one was read to offsets \{{0: 3\}}"
        ):
            running.batch()
        lenient = query(running.given | {"failondataloss": "false"})
        lenient.end = running.end
        with caplog.at_level(logging.WARNING, "odradek.spark"):
            assert [offset for _, offset, _ in lenient.batch() or ()] == [0, 1, 2, 3, 4]
        assert "was deleted" in caplog.text
        assert lenient.batch() is None

    def test_a_log_that_ends_below(
        self, topics: Topics, options: Options, query: StartQuery, fresh_topic: Callable[[str], str]
    ) -> None:
        """A log that ends below what was read, or below the starting offset, is a loss of data."""
        name = topics.create(fresh_topic("short"))
        topics.send(name, [b"x"] * 3)
        running = query(options(name))
        running.end = {name: {"0": 7}}
        with pytest.raises(DataLoss, match=rf"read to offset 7 of {name}-0, and its log ends at 3"):
            running.batch()
        beyond = query(options(name, startingOffsets=json.dumps({name: {"0": 9}})))
        with pytest.raises(
            DataLoss, match=rf"startingOffsets asks for offset 9 of {name}-0, and its log ends at 3"
        ):
            beyond.batch()

    def test_other_records_of_a_later_leader(
        self, query: StartQuery, tmp_path: Path, fresh_topic: Callable[[str], str]
    ) -> None:
        """KIP-320: what was read in an epoch whose records end below was truncated, though the log is longer again."""
        properties = prepare_odradek(tmp_path)
        server = launch_odradek(properties)
        try:
            topics = Topics(server.bootstrap)
            name = topics.create(fresh_topic("truncated"))
            topics.send(name, [b"first"] * 3)
            server.stop()
            server = launch_odradek(properties)
            topics.send(name, [b"second"] * 6)
            given = {"kafka.bootstrap.servers": server.bootstrap, "subscribe": name}
            running = query(given)
            running.end = {name: {"0": 5}, "@epoch": {name: {"0": 0}}}
            with pytest.raises(
                DataLoss, match=rf"offsets 3 to 4 of {name}-0 were read, and its leader has other"
            ):
                running.batch()
            running.end = {name: {"0": 3}, "@epoch": {name: {"0": 0}}}
            assert [offset for _, offset, _ in running.batch() or ()] == [3, 4, 5, 6, 7, 8]
            running.reader.stop()
        finally:
            server.stop()

    def test_a_batch_that_starts_behind_its_end(
        self, topics: Topics, options: Options, query: StartQuery, fresh_topic: Callable[[str], str]
    ) -> None:
        """Never silent: a checkpoint whose first start is lost, and a later one was asked for."""
        name = topics.create(fresh_topic("backwards"))
        running = query(options(name))
        with pytest.raises(ReadError, match=rf"the batch of {name}-0 starts at 5, behind its end at 3"):
            running.reader.partitions({name: {"0": 5}}, {name: {"0": 3}})

    def test_retention_that_overtakes(
        self, topics: Topics, options: Options, query: StartQuery, fresh_topic: Callable[[str], str]
    ) -> None:
        """An error that names the offsets; or the rest, and what is gone does not use up maxOffsetsPerTrigger."""
        name = topics.create(fresh_topic("expired"))
        topics.send(name, [b"%d" % number for number in range(20)])
        running = query(options(name, startingOffsets="earliest", maxOffsetsPerTrigger=2))
        running.batch()
        topics.delete_records(name, {0: 10})
        with pytest.raises(DataLoss, match=rf"offsets 2 to 3 of {name}-0 are lost: .* begins at 10 now"):
            running.batch()
        lenient = query(running.given | {"failondataloss": "false"})
        lenient.end = running.end
        assert [offset for _, offset, _ in lenient.batch() or ()] == [10, 11]

    def test_a_partition_is_not_there_any_more(
        self, topics: Topics, options: Options, query: StartQuery, fresh_topic: Callable[[str], str]
    ) -> None:
        """A topic that matched a pattern and was deleted."""
        name = topics.create(fresh_topic("gone"))
        kept = topics.create(f"{name}-kept")
        topics.send(name, [b"x"] * 3)
        given = {"startingOffsets": "earliest", "fetchOffset.retryIntervalMs": 1}
        running = query(options(subscribePattern=f"{name}.*", **given))
        running.batch()
        topics.delete(name)
        running.restart()
        with pytest.raises(DataLoss, match=rf"{name}-0 does not exist any more; it was read to offset 3"):
            running.batch()
        lenient = query(running.given | {"failondataloss": "false"})
        lenient.end = running.end
        assert lenient.batch() == []
        assert lenient.end is not None
        assert list(lenient.end["@id"]) == [kept]


def test_idle_clients_are_closed(topics: Topics, options: Options, fresh_topic: Callable[[str], str]) -> None:
    """A worker keeps the connections of its last sets of options, eight at most, and for five idle minutes."""
    name = topics.create(fresh_topic("idle"))
    topics.send(name, [b"x"])
    for number in range(10):
        assert len(read(options(name, **{"kafka.client.id": f"reader-{number}"}))) == 1
    now = time.monotonic()
    assert close_idle_clients(now) == 8
    assert close_idle_clients(now + 301) == 0
    assert len(read(options(name))) == 1


def test_options_are_pickled() -> None:
    """Readers travel to executors with nothing but their options."""
    parsed = SourceOptions.parse({"kafka.bootstrap.servers": "a:1", "subscribe": "t"})
    assert pickle.loads(pickle.dumps(parsed)) == parsed
    assert pickle.loads(pickle.dumps(RangePartition(()))).ranges == ()
