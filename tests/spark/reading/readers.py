"""Helpers and fixtures: readers of the source, called as Spark calls them, against a real node and without Java."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed (the extra spark)")

from pyspark.sql.datasource import Filter
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit

from odradek.spark import source
from odradek.spark.reading.filters import push
from odradek.spark.source_stream import OdradekStreamReader
from tests.node_process import RunningNode
from tests.spark.topics import Topics

__all__ = ["ALL", "Options", "Query", "StartQuery", "options", "query", "read", "rows", "topics"]

Options = Callable[..., dict[str, str]]
ALL = ReadAllAvailable()


@pytest.fixture
def topics(node: RunningNode) -> Topics:
    return Topics(node.bootstrap)


@pytest.fixture
def options(node: RunningNode) -> Options:
    """A function that builds options as Spark passes them, with names in lower case."""

    def build(topic: str | None = None, **given: Any) -> dict[str, str]:
        named = {"kafka.bootstrap.servers": node.bootstrap, **given}
        if topic is not None:
            named["subscribe"] = topic
        return {name.lower(): str(value) for name, value in named.items()}

    return build


def rows(reader: Any, partitions: list[Any]) -> list[tuple[int, int, bytes | None]]:
    """Read partitions as tasks do, after pickling reader and partitions like Spark; return (partition, offset, value)."""
    reader = pickle.loads(pickle.dumps(reader))
    found: list[tuple[int, int, bytes | None]] = []
    for partition in pickle.loads(pickle.dumps(partitions)):
        for batch in reader.read(partition):
            found += zip(
                *(batch.column(name).to_pylist() for name in ("partition", "offset", "value")), strict=True
            )
    return found


def read(given: dict[str, str], filters: list[Filter] | None = None) -> list[tuple[int, int, bytes | None]]:
    """Run a batch query; return (partition, offset, value) of its rows."""
    reader = source.batch_reader(given, source.schema(given))
    if filters is not None:
        reader.pushed, _ = push(filters)
    return rows(reader, list(reader.partitions()))


class Query:
    """A streaming query driven like Spark: offsets pass through JSON, and each batch starts at the last end."""

    def __init__(self, given: dict[str, str]) -> None:
        self.given = given
        self.reader = self._new()
        self.end: dict[str, Any] | None = None

    def _new(self) -> OdradekStreamReader:
        return source.stream_reader(self.given, source.schema(self.given))

    def restart(self) -> None:
        """Replace the driver's reader by a new one with the same checkpoint."""
        self.reader.stop()
        self.reader = self._new()

    def batch(self, limit: ReadLimit | None = None) -> list[tuple[int, int, bytes | None]] | None:
        """Return the rows of the next batch, or None if Spark would run none."""
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
    """A function that starts queries, which are stopped when the test ends."""
    started: list[Query] = []

    def start(given: dict[str, str]) -> Query:
        started.append(Query(given))
        return started[-1]

    yield start
    for each in started:
        each.reader.stop()


StartQuery = Callable[[dict[str, str]], Query]
