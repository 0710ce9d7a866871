"""Checkpoints that Spark's own connector can continue, with readers called as Spark calls them, against a real node."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed (the extra spark)")


from odradek.spark.reading.read_errors import DataLoss
from tests.spark.reading.readers import ALL, Options, StartQuery, options, query, topics
from tests.spark.topics import Topics

__all__ = ["options", "query", "topics"]


class TestOffsetsOfTheJvmConnector:
    def test_the_checkpoint_has_offsets_alone(
        self, topics: Topics, options: Options, query: StartQuery, fresh_topic: Callable[[str], str]
    ) -> None:
        """With jvmOffsets the checkpoint has only the JVM connector's fields, and each record is read once across
        restarts."""
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
        """A query from `latest` crashes in its empty first batch. After the restart it reads records that came
        meanwhile."""
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
        """If jvmOffsets is set later, an empty batch removes the additional fields from the checkpoint. The query also
        continues after jvmOffsets is unset."""
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
        """With jvmOffsets, the running process detects a recreated topic by its remembered id. After a restart it
        cannot."""
        name = topics.create(fresh_topic("plain-again"))
        topics.send(name, [b"old"] * 3)
        running = query(options(name, jvmOffsets="true", startingOffsets="earliest"))
        running.batch()
        assert len(running.batch() or ()) == 3
        topics.delete(name)
        topics.create(name)
        topics.send(name, [b"new"] * 5)
        with pytest.raises(DataLoss, match="was deleted, and another topic has its name now"):
            running.batch()
