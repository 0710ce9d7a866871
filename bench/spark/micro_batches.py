"""Measures the CPU of Spark's Python processes and of the node for micro-batches of one row in 200 shuffle partitions.
They are written into a topic exactly once, and into an empty Python sink.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

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
from odradek.spark.worker_process import spare_collector
from testkit.processes import ServerProcess

__all__ = ["SHUFFLE_PARTITIONS", "small_batches"]

SHUFFLE_PARTITIONS = 200
_WARM = 2
_TICKS = os.sysconf("SC_CLK_TCK")


class _Nowhere(DataSource):
    """A streaming sink that discards all rows."""

    @classmethod
    def name(cls) -> str:
        return "nowhere"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        return _NowhereWriter()


class _NowhereWriter(DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        try:
            for _ in iterator:
                pass
            return WriterCommitMessage()
        finally:
            # Our sink does the same. Otherwise each task would collect garbage for tens of milliseconds.
            spare_collector()

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Do nothing."""


def python_seconds() -> float:
    """Return the CPU seconds of all Python processes below this one, including those that have ended."""
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
        # Of Java only the Python processes count that it has started and reaped.
        times = fields[13:15] if "java" in name else fields[11:15]
        spent[int(entry.name)] = sum(map(int, times)) / _TICKS
    return sum(seconds for pid, seconds in spent.items() if _is_below(pid, os.getpid(), parents))


def _is_below(pid: int, ancestor: int, parents: dict[int, int]) -> bool:
    while pid in parents:
        pid = parents[pid]
        if pid == ancestor:
            return True
    return False


def _run(spark: SparkSession, source: dict[str, str], sink: str, options: dict[str, str]) -> None:
    rows = spark.readStream.format("odradek").options(**source).load().select("value")
    with tempfile.TemporaryDirectory() as folder:
        writer = rows.repartition(SHUFFLE_PARTITIONS, "value").writeStream.format(sink).options(**options)
        query = writer.option("checkpointLocation", folder).trigger(availableNow=True).start()
        query.awaitTermination()


def small_batches(server: ServerProcess, topic: str, batches: int) -> tuple[float, float]:
    """Return the CPU seconds of one micro-batch, written to the topic and to the empty sink.

    A longer and a shorter query are compared, so the start of a query does not count.
    """
    spark = session(None)
    spark.dataSource.register(_Nowhere)
    where = {"kafka.bootstrap.servers": server.bootstrap}
    counts = (_WARM, _WARM + batches)
    with Client(server.bootstrap) as client:
        client.admin.create_topics([NewTopic(f"rows-{count}", 1) for count in counts])
    with Producer(bootstrap_servers=server.bootstrap) as producer:
        for count in counts:
            for number in range(count):
                producer.send(f"rows-{count}", b"%d" % number, partition=0)
    found: dict[tuple[str, int], float] = {}
    for name, options in (("odradek", {**where, "topic": topic}), ("nowhere", {})):
        # The first run warms everything up.
        for count in (_WARM, *counts):
            source = {
                **where,
                "subscribe": f"rows-{count}",
                "startingOffsets": "earliest",
                "maxOffsetsPerTrigger": "1",
            }
            before = python_seconds() + server.cpu_seconds()
            _run(spark, source, name, options)
            found[name, count] = python_seconds() + server.cpu_seconds() - before
    spark.stop()
    ours, nothing = (
        (found[name, counts[1]] - found[name, _WARM]) / batches for name in ("odradek", "nowhere")
    )
    print(f"  a micro-batch: {ours:.3f} s into the topic, {nothing:.3f} s into the empty sink")
    return ours, nothing
