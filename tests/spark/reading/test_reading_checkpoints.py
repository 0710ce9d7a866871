"""Checkpoints that Spark's own connector can go on with, against a real node, without Java."""

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
        with pytest.raises(DataLoss, match="was deleted, and another topic has its name now"):
            running.batch()
