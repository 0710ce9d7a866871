"""Batch queries: their plans and reads, with readers called as Spark calls them, against a real node."""

from __future__ import annotations

import json
import logging
import pickle
import time
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed (the extra spark)")

from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual
from pyspark.sql.types import BinaryType, StructField, StructType

from odradek.spark import source
from odradek.spark.reading import fetching
from odradek.spark.reading.fetching import close_idle_clients
from odradek.spark.reading.range_partition import RangePartition
from odradek.spark.reading.read_errors import DataLoss, ReadError
from odradek.spark.source_options import OptionError, SourceOptions
from tests.spark.reading.readers import Options, options, query, read, rows, topics
from tests.spark.topics import Topics

__all__ = ["options", "query", "topics"]


class TestBatch:
    def test_bounds(self, topics: Topics, options: Options, fresh_topic: Callable[[str], str]) -> None:
        """Starting and ending offsets, timestamps and the words earliest and latest mean the same as in the JVM
        connector."""
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
        with pytest.raises(
            ReadError, match=r"has no record with the timestamp 3000 or later, as startingTimestamp"
        ):
            offsets(startingTimestamp=3000)
        with pytest.raises(
            ReadError, match=r"startingOffsets of .*-0 is 4, which is after endingOffsets \(2\)"
        ):
            offsets(startingOffsets=at(4), endingOffsets=at(2))

    def test_a_wrong_address(self, options: Options) -> None:
        """With a wrong address, the driver retries and then names the option to check."""
        given = options("t", **{"kafka.bootstrap.servers": "127.0.0.1:9", "fetchOffset.retryIntervalMs": 1})
        with pytest.raises(
            ReadError, match=r"(?s)127\.0\.0\.1:9: .*check kafka\.bootstrap\.servers=127\.0\.0\.1:9,"
        ):
            read(given)

    def test_an_authority_that_is_not_there(self, options: Options) -> None:
        """A missing certificate file is noticed only when a client connects. The error still names the option."""
        tls = {"kafka.security.protocol": "SSL", "kafka.ssl.truststore.type": "PEM"}
        with pytest.raises(
            OptionError,
            match=r"option kafka\.\* is not valid: /none\.pem does not contain usable certificates",
        ):
            read(options("t", **tls, **{"kafka.ssl.truststore.location": "/none.pem"}))

    def test_what_to_read(self, topics: Topics, options: Options, fresh_topic: Callable[[str], str]) -> None:
        """Topics are chosen by subscribe, by subscribePattern (whole names, without internal topics), or by assign."""
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
        with pytest.raises(ReadError, match=rf"assign names {stem}-a-7, and this partition does not exist"):
            values(assign=json.dumps({f"{stem}-a": [7]}))
        with pytest.raises(
            OptionError,
            match=rf"must name exactly the partitions that the query reads: {stem}-a-1 is missing",
        ):
            values(subscribe=f"{stem}-a", startingOffsets=json.dumps({f"{stem}-a": {"0": 0}}))

    def test_tasks(self, topics: Topics, options: Options, fresh_topic: Callable[[str], str]) -> None:
        """minPartitions and maxRecordsPerPartition split a partition's records, small ranges share a task, and no
        record is read twice."""
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
        """Filters reduce the reading: fewer partitions, shorter ranges, and a start found by time."""
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
        """Many fetches, a batch larger than a fetch, and a start within a batch give all records."""
        name = topics.create(fresh_topic("large"))
        values = [b"%05d" % number * 100 for number in range(2000)]
        topics.send(name, values, compression_type="lz4", linger_ms=50, batch_size=200_000)
        small = {"kafka.max.partition.fetch.bytes": 1000, "kafka.fetch.max.bytes": 1000}
        named = options(name, startingOffsets=json.dumps({name: {"0": 77}}), **small)
        assert [(offset, value) for _, offset, value in read(named)] == list(enumerate(values))[77:]

    def test_a_custom_schema_is_refused(self, options: Options) -> None:
        """A schema given by the user is refused, because the columns are fixed, as in the JVM connector."""
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
        """If retention has removed starting offsets, the query fails. With failOnDataLoss=false it reads the rest and
        warns."""
        name = topics.create(fresh_topic("loss"))
        topics.send(name, [b"%d" % number for number in range(10)])
        topics.delete_records(name, {0: 6})
        named = options(name, startingOffsets=json.dumps({name: {"0": 2}}))
        with pytest.raises(
            DataLoss, match=rf"offsets 2 to 5 of {name}-0 do not exist: its log begins at offset 6"
        ):
            read(named)
        with caplog.at_level(logging.WARNING, "odradek.spark"):
            found = read(named | {"failondataloss": "false"})
        assert [offset for _, offset, _ in found] == [6, 7, 8, 9]
        assert "offsets 2 to 5" in caplog.text
        behind = options(name, endingOffsets=json.dumps({name: {"0": 12}}))
        with pytest.raises(
            DataLoss, match=rf"offsets 10 to 11 of {name}-0 do not exist: its log ends at offset 10"
        ):
            read(behind)

    def test_one_of_several_small_ranges(
        self, topics: Topics, options: Options, fresh_topic: Callable[[str], str]
    ) -> None:
        """If one of several ranges in a Fetch has lost offsets, the error names them. With failOnDataLoss=false all
        other rows are returned."""
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
        """If records are deleted between plan and task, the task names the lost offsets, or reads the rest."""
        name = topics.create(fresh_topic("overtaken"))
        topics.send(name, [b"%d" % number for number in range(10)])
        for fail in ("true", "false"):
            named = options(name, failOnDataLoss=fail, startingOffsets=json.dumps({name: {"0": 0}}))
            if fail == "true":
                reader = source.batch_reader(named, source.schema(named))
                partitions = list(reader.partitions())
                topics.delete_records(name, {0: 4})
                with pytest.raises(
                    DataLoss, match=rf"offsets 0 to 3 of {name}-0 are lost: .* now begins at offset 4"
                ):
                    rows(reader, partitions)
            else:
                reader = source.batch_reader(named, source.schema(named))
                assert [offset for _, offset, _ in rows(reader, partitions)] == [4, 5, 6, 7, 8, 9]

    def test_another_topic_of_the_same_name(
        self, topics: Topics, options: Options, fresh_topic: Callable[[str], str]
    ) -> None:
        """A plan for a deleted topic does not read another topic of the same name (KIP-516)."""
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


def test_a_damaged_batch_among_small_ranges(
    topics: Topics,
    options: Options,
    fresh_topic: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If several ranges are decoded together and one is damaged, the error names its partition."""
    name = topics.create(fresh_topic("damaged"), partitions=3)
    for partition in range(3):
        topics.send(name, [b"x"], partition=partition)
    fetch_first = fetching._fetch_first

    def damaged(*arguments: Any) -> Any:
        answers = fetch_first(*arguments)
        for reader, answer in answers.items():
            if reader.wanted.partition == 1:
                records = bytearray(answer.records)
                records[-1] ^= 1
                answer.records = memoryview(records)
        return answers

    assert read(options(name)) == [(partition, 0, b"x") for partition in range(3)]
    monkeypatch.setattr(fetching, "_fetch_first", damaged)
    with pytest.raises(ReadError, match=rf"a record batch of {name}-1 from offset 0 on is damaged"):
        read(options(name))


def test_idle_clients_are_closed(topics: Topics, options: Options, fresh_topic: Callable[[str], str]) -> None:
    """A worker keeps the clients for its last eight sets of options. It closes them after five idle minutes."""
    name = topics.create(fresh_topic("idle"))
    topics.send(name, [b"x"])
    for number in range(10):
        assert len(read(options(name, **{"kafka.client.id": f"reader-{number}"}))) == 1
    now = time.monotonic()
    assert close_idle_clients(now) == 8
    assert close_idle_clients(now + 301) == 0
    assert len(read(options(name))) == 1


def test_options_are_pickled() -> None:
    """Options and partitions can be pickled for the executors."""
    parsed = SourceOptions.parse({"kafka.bootstrap.servers": "a:1", "subscribe": "t"})
    assert pickle.loads(pickle.dumps(parsed)) == parsed
    assert pickle.loads(pickle.dumps(RangePartition(()))).ranges == ()
