"""Records deleted below a stream raise an error or are skipped, with readers called as Spark calls them."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed (the extra spark)")


from odradek.spark.reading.read_errors import DataLoss, ReadError
from testkit.odradek_server import launch_odradek, prepare_odradek
from tests.spark.reading.readers import Options, StartQuery, options, query, topics
from tests.spark.topics import Topics

__all__ = ["options", "query", "topics"]


class TestStreamDataLoss:
    def test_the_topic_is_not_there_any_more(
        self, topics: Topics, options: Options, query: StartQuery, fresh_topic: Callable[[str], str]
    ) -> None:
        """If a subscribed topic is deleted, the query fails. With failOnDataLoss=false it continues with the other
        topics."""
        name, other = topics.create(fresh_topic("named")), topics.create(fresh_topic("other"))
        topics.send(name, [b"x"] * 3)
        given = {"startingOffsets": "earliest", "fetchOffset.retryIntervalMs": 1}
        running = query(options(f"{name},{other}", **given))
        running.batch()
        topics.delete(name)
        running.restart()
        with pytest.raises(
            DataLoss, match=rf"{name}-0 does not exist any more; the query has read it up to offset 3"
        ):
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
        """A recreated topic is recognised by its id and fails the query. With failOnDataLoss=false it is read from its
        beginning."""
        name = topics.create(fresh_topic("recreated"))
        topics.send(name, [b"old"] * 3)
        running = query(options(name, startingOffsets="earliest"))
        running.batch()
        topics.delete(name)
        topics.create(name)
        topics.send(name, [b"new"] * 5)
        running.restart()
        with pytest.raises(
            DataLoss,
            match=rf"topic {name} was deleted, .* the query has read the old topic up to the offsets \{{0: 3\}}",
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
        """If a log ends below the last offset read, or below the starting offset, this is data loss."""
        name = topics.create(fresh_topic("short"))
        topics.send(name, [b"x"] * 3)
        running = query(options(name))
        running.end = {name: {"0": 7}}
        with pytest.raises(DataLoss, match=rf"read to offset 7 of {name}-0, but its log ends at offset 3"):
            running.batch()
        beyond = query(options(name, startingOffsets=json.dumps({name: {"0": 9}})))
        with pytest.raises(
            DataLoss, match=rf"startingOffsets asks for offset 9 of {name}-0, but its log ends at offset 3"
        ):
            beyond.batch()

    def test_other_records_of_a_later_leader(
        self, query: StartQuery, tmp_path: Path, fresh_topic: Callable[[str], str]
    ) -> None:
        """If the log was truncated below the last offset read and grew again, the leader epochs show the data loss
        (KIP-320)."""
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
                DataLoss,
                match=rf"the query has read offsets 3 to 4 of {name}-0, but its leader now has other",
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
        """A batch whose start is after its end fails, which may happen when a query with a lost checkpoint starts
        later."""
        name = topics.create(fresh_topic("backwards"))
        running = query(options(name))
        with pytest.raises(
            ReadError, match=rf"the batch of {name}-0 starts at offset 5, which is after its end offset 3"
        ):
            running.reader.partitions({name: {"0": 5}}, {name: {"0": 3}})

    def test_retention_that_overtakes(
        self, topics: Topics, options: Options, query: StartQuery, fresh_topic: Callable[[str], str]
    ) -> None:
        """If retention removes unread records, the error names their offsets. With failOnDataLoss=false the rest is
        read, and lost offsets do not count for maxOffsetsPerTrigger."""
        name = topics.create(fresh_topic("expired"))
        topics.send(name, [b"%d" % number for number in range(20)])
        running = query(options(name, startingOffsets="earliest", maxOffsetsPerTrigger=2))
        running.batch()
        topics.delete_records(name, {0: 10})
        with pytest.raises(
            DataLoss, match=rf"offsets 2 to 3 of {name}-0 are lost: .* now begins at offset 10"
        ):
            running.batch()
        lenient = query(running.given | {"failondataloss": "false"})
        lenient.end = running.end
        assert [offset for _, offset, _ in lenient.batch() or ()] == [10, 11]

    def test_a_partition_is_not_there_any_more(
        self, topics: Topics, options: Options, query: StartQuery, fresh_topic: Callable[[str], str]
    ) -> None:
        """If a topic that matched the pattern is deleted, the query fails. With failOnDataLoss=false it continues
        without it."""
        name = topics.create(fresh_topic("gone"))
        kept = topics.create(f"{name}-kept")
        topics.send(name, [b"x"] * 3)
        given = {"startingOffsets": "earliest", "fetchOffset.retryIntervalMs": 1}
        running = query(options(subscribePattern=f"{name}.*", **given))
        running.batch()
        topics.delete(name)
        running.restart()
        with pytest.raises(
            DataLoss, match=rf"{name}-0 does not exist any more; the query has read it up to offset 3"
        ):
            running.batch()
        lenient = query(running.given | {"failondataloss": "false"})
        lenient.end = running.end
        assert lenient.batch() == []
        assert lenient.end is not None
        assert list(lenient.end["@id"]) == [kept]
