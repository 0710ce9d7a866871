"""Measures the CPU of Spark's Python processes and of the node for micro-batches of one row in 200 shuffle partitions.
They are written into a topic exactly once, and into an empty Python sink.

Both sinks note the CPU seconds of their processes within `write` and `commit`. The rest is Spark's own.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import attrs
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from bench.spark.sink import session
from odradek.client.admin import NewTopic
from odradek.client.shells.blocking import Client
from odradek.client.shells.producer import Producer
from odradek.spark.sink import StreamWriter, stream_writer
from odradek.spark.worker_process import spare_collector
from testkit.processes import ServerProcess

__all__ = ["SHUFFLE_PARTITIONS", "small_batches", "spark_seconds"]

SHUFFLE_PARTITIONS = 200
_WARM = 2
_TICKS = os.sysconf("SC_CLK_TCK")


class Measured(DataSource):
    """A streaming sink that notes its CPU seconds. The option `into` is `topic` for our sink, or `nowhere`."""

    @classmethod
    def name(cls) -> str:
        return "measured"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        options = {key: value for key, value in self.options.items() if key not in ("into", "notes")}
        ours = stream_writer(options, schema, overwrite) if self.options["into"] == "topic" else None
        return MeasuredWriter(ours, self.options["notes"])


class MeasuredWriter(DataSourceStreamArrowWriter):
    """The writer of `Measured`. Without `ours` it discards the rows."""

    def __init__(self, ours: StreamWriter | None, notes: str) -> None:
        self._ours = ours
        self._notes = notes

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write, or discard, the rows of one task."""
        with self._noting():
            if self._ours is not None:
                return self._ours.write(iterator)
            for _ in iterator:
                pass
        # Our sink does the same. Otherwise each task would collect garbage for tens of milliseconds.
        spare_collector()
        return WriterCommitMessage()

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Finish a micro-batch."""
        with self._noting():
            if self._ours is not None:
                self._ours.commit(messages, batchId)

    @contextmanager
    def _noting(self) -> Iterator[None]:
        before = time.process_time()
        yield
        with Path(self._notes).open("a") as notes:
            notes.write(f"{time.process_time() - before}\n")


def spark_seconds() -> tuple[float, float]:
    """Return the CPU seconds of Spark below this process: of Java itself, and of all Python processes, including those
    that have ended.
    """
    java: dict[int, float] = {}
    parents: dict[int, int] = {}
    spent: dict[int, float] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            name, _, rest = (entry / "stat").read_text().partition(" (")[2].rpartition(") ")
        except OSError:
            continue  # It has ended meanwhile.
        fields = rest.split()
        parents[int(entry.name)] = int(fields[1])
        own, reaped = (sum(map(int, times)) / _TICKS for times in (fields[11:13], fields[13:15]))
        # What Java has reaped are Python processes.
        java[int(entry.name)] = own if "java" in name else 0.0
        spent[int(entry.name)] = reaped if "java" in name else own + reaped
    below = [pid for pid in spent if _is_below(pid, os.getpid(), parents)]
    return sum(java[pid] for pid in below), sum(spent[pid] for pid in below)


def python_seconds() -> float:
    """Return the CPU seconds of all Python processes below this one, including those that have ended."""
    return spark_seconds()[1]


def _is_below(pid: int, ancestor: int, parents: dict[int, int]) -> bool:
    while pid in parents:
        pid = parents[pid]
        if pid == ancestor:
            return True
    return False


@attrs.frozen
class Spent:
    """CPU seconds: within the sink, of the node, and of Spark's Python processes as a whole."""

    sink: float
    node: float
    python: float


def _run(
    spark: SparkSession, server: ServerProcess, source: dict[str, str], options: dict[str, str]
) -> Spent:
    python, node = python_seconds(), server.cpu_seconds()
    rows = spark.readStream.format("odradek").options(**source).load().select("value")
    with tempfile.TemporaryDirectory() as folder:
        notes = Path(folder) / "notes"
        writer = rows.repartition(SHUFFLE_PARTITIONS, "value").writeStream.format("measured")
        writer = writer.options(**options, notes=str(notes)).option(
            "checkpointLocation", f"{folder}/checkpoint"
        )
        writer.trigger(availableNow=True).start().awaitTermination()
        sink = sum(map(float, notes.read_text().split()))
    return Spent(sink, server.cpu_seconds() - node, python_seconds() - python)


def small_batches(server: ServerProcess, topic: str, batches: int) -> dict[str, Spent]:
    """Return the CPU seconds of one micro-batch, written to the topic (`topic`) and to the empty sink (`nowhere`).

    A longer and a shorter query are compared, so the start of a query does not count.
    """
    spark = session(None)
    spark.dataSource.register(Measured)
    where = {"kafka.bootstrap.servers": server.bootstrap}
    counts = (_WARM, _WARM + batches)
    with Client(server.bootstrap) as client:
        client.admin.create_topics([NewTopic(f"rows-{count}", 1) for count in counts])
    with Producer(bootstrap_servers=server.bootstrap) as producer:
        for count in counts:
            for number in range(count):
                producer.send(f"rows-{count}", b"%d" % number, partition=0)
    found: dict[str, Spent] = {}
    for into in ("topic", "nowhere"):
        spent = {}
        # The first run warms everything up.
        for count in (_WARM, *counts):
            first = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "1"}
            source = {**where, **first, "subscribe": f"rows-{count}"}
            spent[count] = _run(spark, server, source, {**where, "topic": topic, "into": into})
        one, other = (attrs.astuple(spent[count]) for count in counts)
        found[into] = Spent(*((more - less) / batches for less, more in zip(one, other, strict=True)))
        print(f"  a micro-batch into {into}: {found[into]}", flush=True)
    spark.stop()
    return found
