"""Batches of streams, with readers called as Spark calls them, against a real node."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed (the extra spark)")

from pyspark.sql.streaming.datasource import ReadMaxRows, ReadMinRows

from odradek import Admin
from odradek.client.admin import admin_offsets
from odradek.client.core.operation import Operation, Wait
from odradek.client.errors import RequestTimedOut
from tests.node_process import RunningNode
from tests.spark.reading.readers import ALL, Options, StartQuery, options, query, rows, topics
from tests.spark.topics import Topics

__all__ = ["options", "query", "topics"]


class TestStream:
    def test_from_the_end_without_a_gap(
        self, topics: Topics, options: Options, query: StartQuery, fresh_topic: Callable[[str], str]
    ) -> None:
        """`latest` means the end of the log when the query starts, however often Spark asks for it later."""
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
        """The first batch comes at once, even if it is empty: Spark saves the start offsets only together with the
        first end offsets."""
        name = topics.create(fresh_topic("first"))
        running = query(options(name))
        assert running.batch() == []
        assert running.batch() is None

    def test_a_crash_in_the_first_batch(
        self, topics: Topics, options: Options, query: StartQuery, fresh_topic: Callable[[str], str]
    ) -> None:
        """After a crash in the first batch, Spark asks for new start offsets but keeps the old end. The batch still has
        the records between the old start and the old end."""
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
        """A query can continue from the JVM connector's checkpoint, after only the format's name was changed."""
        name = topics.create(fresh_topic("migrated"), partitions=2)
        topics.send(name, [b"%d" % number for number in range(5)])
        running = query(options(name))
        running.end = {name: {"0": 3, "1": 0}}
        assert running.batch() == [(0, 3, b"3"), (0, 4, b"4")]

    def test_limits(
        self, topics: Topics, options: Options, query: StartQuery, fresh_topic: Callable[[str], str]
    ) -> None:
        """maxOffsetsPerTrigger limits a batch, unless Spark asks for everything. The rest comes with the next
        batches."""
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
        """minOffsetsPerTrigger delays a batch until there are enough records, or until maxTriggerDelay has passed."""
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
        """With AvailableNow the run ends with the records that existed at its start. Later ones are left to the next
        run."""
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
        """A new partition is read from its beginning, even if the query began at `latest`, as in Spark's guide."""
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
        """An idle query waits at the leaders, and a new record starts a batch at once."""
        name = topics.create(fresh_topic("news"), partitions=2)
        running = query(options(name))
        assert running.batch() == []
        assert running.batch() is None
        for number in range(5):
            topics.send(name, [b"%d" % number], partition=number % 2)
            assert running.batch() == [(number % 2, number // 2, b"%d" % number)]


class TestStreamTold:
    def test_lag_in_records_and_seconds(
        self, topics: Topics, options: Options, query: StartQuery, fresh_topic: Callable[[str], str]
    ) -> None:
        """The reported latest offset includes the lag after the batch, as a number of records and as the age of the
        oldest unread one."""
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
        """Committed batches appear as a consumer group, named by kafka.group.id, or by groupIdPrefix with an id kept in
        the checkpoint."""
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
        # With AvailableNow the last batch is committed without `stop`, which Spark does not always call.
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
        """With AvailableNow, the last batch is committed to the group when Spark finds that there is no further
        batch."""
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
        """If leaders do not answer, or the topic is gone, the age of the lag is reported as -1, and the query
        continues."""
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
