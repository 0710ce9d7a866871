"""Measures what exactly-once delivery costs in CPU seconds, beside a reference in the same run.

    python -m bench.spark.costs [--quick] [--spark]

This process calls the sink's writers as Spark's Python processes do. With `--spark`, a stream on Spark makes
micro-batches of one row, which 200 shuffle partitions write. The same job into an empty Python sink is the
reference. A figure of CPU counts the sink (in this process, or in Spark's Python processes) and the node.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from unittest.mock import patch
from uuid import uuid4

import attrs
import numpy as np
import pyarrow as pa
from pyspark.sql.types import BinaryType, StructField, StructType

from bench.spark.micro_batches import SHUFFLE_PARTITIONS, small_batches
from odradek.client.admin import NewTopic
from odradek.client.shells.blocking import Client
from odradek.client.shells.producer import Producer
from odradek.spark import sink
from odradek.spark.delivery.decisions_topic import DECISIONS_TOPIC
from odradek.spark.delivery.markers import marker_key, marker_value, partition_of
from odradek.spark.delivery.row_hash import hash_rows
from odradek.spark.delivery.task_protocol import Marker, RowSummary
from odradek.spark.writing.encode import Rows, encode, partitions_of
from testkit.odradek_server import odradek_server
from testkit.processes import ServerProcess

ROW_BYTES = (100, 400, 1024, 4096)
FOREIGN = 10_000
"""The number of markers of other queries in the partition that a driver reads."""
_PARTITIONS = 4
_TASKS = 4
_ROWS = 10_000
_ENCODED_BYTES = 16 << 20
_SCHEMA = StructType([StructField("value", BinaryType())])
_TOPIC = "costs"


@attrs.frozen
class Figure:
    """A figure, its reference in the same run, and the most that their ratio (or the figure itself) may be."""

    name: str
    value: float
    beside: float | None
    most: float | None

    def __str__(self) -> str:
        ratio = self.value if self.beside is None else self.value / self.beside
        beside = "" if self.beside is None else f"{self.beside:.4f}"
        goal = "" if self.most is None else f"at most {self.most:g}: "
        goal += "" if self.most is None else "holds" if ratio <= self.most else "**missed**"
        return f"| {self.name} | {self.value:.4f} | {beside} | {ratio:.2f} | {goal} |"


def values_of(size: int, count: int) -> pa.Array:
    """Return `count` binary values of `size` random bytes."""
    text = np.random.default_rng(size).bytes(size * count)
    return pa.array([text[begin : begin + size] for begin in range(0, len(text), size)], pa.binary())


def hashing(rounds: int) -> list[Figure]:
    """Compare the CPU of the hash of rows with that of their encoding, by the size of a row."""
    figures = []
    for size in ROW_BYTES:
        values = values_of(size, min(_ROWS, _ENCODED_BYTES // size))
        rows = Rows(pa.array([b"%010d" % row for row in range(len(values))], pa.binary()), values, None)
        hashed = _least(rounds, partial(hash_rows, [rows.key, rows.value]))
        encoded = _least(rounds, partial(_encode, rows))
        figures.append(Figure(f"hash over encoding, rows of {size} B with keys", hashed, encoded, 0.5))
    return figures


def _encode(rows: Rows) -> None:
    lanes = partitions_of(rows.key, _PARTITIONS, wanted=None, keyless=np.zeros(len(rows), np.int32))
    for _ in encode(rows, lanes, timestamp_ms=0, batch_bytes_max=256 << 10):
        pass


def _least(rounds: int, call: Callable[[], object]) -> float:
    """Return the least CPU seconds of this process over some rounds."""
    found = []
    for _ in range(rounds + 1):
        before = time.process_time()
        call()
        found.append(time.process_time() - before)
    return min(found[1:])


@attrs.define
class Spent:
    """CPU seconds: of the tasks, of the driver's commits, and of the node for both."""

    tasks: float = 0.0
    driver: float = 0.0
    node: float = 0.0

    @property
    def whole(self) -> float:
        """Return the sum of all three."""
        return self.tasks + self.driver + self.node


@contextmanager
def _as_task(query: str, batch: int, task: int) -> Iterator[None]:
    """Let the sink see the local properties that Spark gives to a task."""
    properties = {"sql.streaming.queryId": query, "streaming.sql.batchId": str(batch)}
    context = SimpleNamespace(
        partitionId=lambda: task, attemptNumber=lambda: 0, getLocalProperty=properties.get
    )
    with patch.object(sink, "TaskContext", SimpleNamespace(get=lambda: context)):
        yield


def run_stream(
    server: ServerProcess, delivery: str, tasks: Sequence[pa.Array], batches: int, query: str | None = None
) -> Spent:
    """Write batches with these rows by task, as one run of a stream. The first batch is not counted. Return the CPU
    seconds of one batch.
    """
    query = query or str(uuid4())
    options = {"kafka.bootstrap.servers": server.bootstrap, "topic": _TOPIC, "delivery": delivery}
    writer = sink.stream_writer(options, _SCHEMA, overwrite=False)
    spent = Spent()
    for batch in range(batches + 1):
        reports = []
        at_node, before = server.cpu_seconds(), time.process_time()
        for task, values in enumerate(tasks):
            with _as_task(query, batch, task):
                reports.append(writer.write(iter([pa.record_batch({"value": values})])))
        between = time.process_time()
        writer.commit(reports, batch)
        if batch:
            spent.tasks += between - before
            spent.driver += time.process_time() - between
            spent.node += server.cpu_seconds() - at_node
    return Spent(spent.tasks / batches, spent.driver / batches, spent.node / batches)


def delivering(server: ServerProcess, batches: int) -> list[Figure]:
    """Compare the CPU of the deliveries: full tasks, small tasks, and tasks without rows."""
    full = [values_of(1024, _ROWS)] * _TASKS
    turns = [
        (
            run_stream(server, "exactly-once", full, batches),
            run_stream(server, "at-least-once", full, batches),
        )
        for _ in range(3)
    ]
    once, least = (statistics.median(each.whole for each in way) for way in zip(*turns, strict=True))
    small, none = [values_of(100, 10)], values_of(100, 0)
    name = f"{_TASKS} tasks of {_ROWS:,} rows of 1 KiB, exactly once over at least once"
    figures = [Figure(name, once, least, 1.25)]
    for name, tasks in (
        ("1 task of 10 rows", small),
        ("10 tasks of 10 rows", small * 10),
        ("1 task of 10 rows and 199 without rows", [*small, *[none] * (SHUFFLE_PARTITIONS - 1)]),
    ):
        found = run_stream(server, "exactly-once", tasks, batches)
        print(f"  {name}: tasks {found.tasks:.4f}, driver {found.driver:.4f}, node {found.node:.4f}")
        reference = run_stream(server, "at-least-once", tasks, batches)
        figures.append(
            Figure(
                f"a batch of {name}, exactly once beside at least once", found.whole, reference.whole, None
            )
        )
        if len(tasks) == SHUFFLE_PARTITIONS:
            figures.append(Figure(f"a batch of {name}, exactly once alone", found.whole, None, 0.3))
    return figures


def among_foreign(server: ServerProcess, batches: int) -> list[Figure]:
    """Compare batches of two queries. One is alone in its partition of the decisions topic. The partition of the other
    is full of other queries' markers.
    """
    one = [values_of(100, 10)]
    with Client(server.bootstrap) as client:
        partitions = len(client.metadata([DECISIONS_TOPIC]).topic(DECISIONS_TOPIC).partitions)
    full = partitions - 1
    queries = {place: _query_in(place, partitions) for place in (0, full)}
    value = marker_value(Marker(3, RowSummary(10, 77), ((_TOPIC, bytes(range(16))),), uuid4().hex))
    with Producer(bootstrap_servers=server.bootstrap) as producer:
        for number in range(FOREIGN):
            producer.send(DECISIONS_TOPIC, value, marker_key(str(uuid4()), number % 4), partition=full)
    alone, crowded = (run_stream(server, "exactly-once", one, batches, queries[place]) for place in (0, full))
    for name, found in (("alone", alone), ("beside others", crowded)):
        print(f"  {name}: tasks {found.tasks:.4f}, driver {found.driver:.4f}, node {found.node:.4f}")
    name = f"a batch beside {FOREIGN:,} foreign markers, over one without"
    return [Figure(name, crowded.whole, alone.whole, 1.25)]


def _query_in(place: int, partitions: int) -> str:
    """Return the id of a query whose progress is in this partition of the decisions topic."""
    while partition_of(query := str(uuid4()), partitions) != place:
        pass
    return query


def main() -> None:
    """Measure all figures, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="only check that the benchmark runs")
    parser.add_argument(
        "--spark", action="store_true", help="measure 200 shuffle partitions on Spark instead"
    )
    arguments = parser.parse_args()
    rounds, batches = (1, 1) if arguments.quick else (7, 10)
    with odradek_server() as server:
        with Client(server.bootstrap) as client:
            client.admin.create_topics([NewTopic(_TOPIC, _PARTITIONS)])
        if arguments.spark:
            found = small_batches(server, _TOPIC, 2 if arguments.quick else 8)
            ours, nothing = (found[into].sink + found[into].node for into in ("topic", "nowhere"))
            name = (
                f"a micro-batch of one row in {SHUFFLE_PARTITIONS} tasks, sink and node, less an empty sink"
            )
            figures = [Figure(name, ours - nothing, None, 0.3)]
        else:
            figures = [*hashing(rounds), *delivering(server, batches), *among_foreign(server, batches)]
    print("\n| figure | CPU s | beside | ratio | goal |\n| --- | ---: | ---: | ---: | --- |")
    print("\n".join(map(str, figures)))


if __name__ == "__main__":
    main()
