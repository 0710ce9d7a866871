"""Measures a streaming query from `earliest` on many small records in skewed partitions: its speed, its memory, and how
evenly the partitions progress.

    python -m bench.spark.catching_up [--records 100000000] [--offsets 5000000] [--driver-memory 512m]

The topic has twelve partitions. The first one has 60% of the records, the second one 20%, and the others share the rest. A
record is a value of 20 random bytes. The node stores ready batches of 10,000 records, so that filling takes less time
than reading. The ways:

    one batch          no limit: one micro-batch has all records, and a task for each partition
    split              the same with minPartitions=32: the large partitions are divided among tasks
    limited            maxOffsetsPerTrigger: batch after batch, in shares by backlog
    limited, split     both

Each way counts the records, which have to be all. Memory is the proportional set size (PSS), sampled twice a second.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
from pyspark.sql import SparkSession

from odradek.client.admin import NewTopic
from odradek.client.shells.blocking import Client
from odradek.spark.worker_process import worker_python
from odradek.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from testkit.odradek_server import odradek_server
from testkit.raw_requests import RawClient, check_answer, record_batch

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["SHARES", "fill_skewed", "ways"]

PARTITIONS = 12
SHARES = (0.6, 0.2, *[0.2 / (PARTITIONS - 2)] * (PARTITIONS - 2))
"""The part of the records that each partition has."""
_BATCH_RECORDS = 10_000
_RECORD_BYTES = 30
"""The bytes of a record in its batch: a value of 20 bytes, and its frame."""
_BATCHES_PER_REQUEST = 3
_SAMPLE_SECONDS = 0.5
_MIB = 1 << 10


def fill_skewed(bootstrap: str, topic: str, records: int) -> list[int]:
    """Create the topic, and store about this number of records. Return the number in each partition."""
    with Client(bootstrap) as client:
        client.admin.create_topics([NewTopic(topic, PARTITIONS)])
    batch = record_batch(_BATCH_RECORDS * _RECORD_BYTES, _BATCH_RECORDS)
    counts = [max(1, round(records * share / _BATCH_RECORDS)) for share in SHARES]
    with RawClient(bootstrap) as node:
        for index, count in enumerate(counts):
            for _ in range(count):
                data = TopicProduceData(topic, bytes(16), [PartitionProduceData(index, batch)])
                check_answer(node.request(ProduceRequest(None, 1, 30_000, [data]), 9))
    return [count * _BATCH_RECORDS for count in counts]


@attrs.define
class Memory:
    """The highest memory of the processes below a Java process, in MiB."""

    java: int
    worker_max: float = 0.0
    workers_max: float = 0.0
    java_max: float = 0.0

    @contextmanager
    def sampled(self) -> Iterator[None]:
        """Sample the memory during a `with` block."""
        over = threading.Event()

        def sample() -> None:
            while not over.wait(_SAMPLE_SECONDS):
                sizes = [_pss_mib(pid) for pid in _below(self.java)]
                self.worker_max = max([self.worker_max, *sizes])
                self.workers_max = max(self.workers_max, sum(sizes))
                self.java_max = max(self.java_max, _pss_mib(self.java))

        sampler = threading.Thread(target=sample, name="memory", daemon=True)
        sampler.start()
        try:
            yield
        finally:
            over.set()
            sampler.join()


def _below(java: int) -> set[int]:
    """Return the pids of all processes below the Java process."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    below = {java}
    while more := {pid for pid, parent in parents.items() if parent in below} - below:
        below |= more
    return below - {java}


def _pss_mib(pid: int) -> float:
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / _MIB
    return 0.0


def ways(offsets: int) -> dict[str, dict[str, str]]:
    """Return the options of the source for each way."""
    split, limited = {"minPartitions": "32"}, {"maxOffsetsPerTrigger": str(offsets)}
    return {"one batch": {}, "split": split, "limited": limited, "limited, split": limited | split}


def measure(spark: SparkSession, options: Mapping[str, str], counts: list[int], topic: str) -> str:
    """Read the whole topic once, and return the cells of the way's row. Raises `RuntimeError` if records are missing."""
    memory = Memory(spark.sparkContext._gateway.proc.pid)  # type: ignore[union-attr]  # a local Spark has both
    with tempfile.TemporaryDirectory() as checkpoint, memory.sampled():
        frame = spark.readStream.format("odradek").options(**options).load()
        writer = frame.selectExpr("length(value) as bytes").writeStream.format("noop")
        started = time.perf_counter()
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()
        seconds = time.perf_counter() - started
    batches = [each for each in query.recentProgress if each["numInputRows"]]
    rows = sum(int(each["numInputRows"]) for each in batches)
    if rows != sum(counts):
        raise RuntimeError(f"{rows:,} of {sum(counts):,} records were read")
    slowest = max(each["batchDuration"] for each in batches) / 1000
    return (
        f"{len(batches)} | {slowest:.1f} | {seconds:.0f} | {rows / seconds / 1e6:.2f} | {memory.worker_max:.0f} |"
        f" {memory.workers_max:.0f} | {memory.java_max:.0f} | {_spread(query, counts, topic):.3f}"
    )


def _spread(query: StreamingQuery, counts: list[int], topic: str) -> float:
    """Return by how much the partitions differ in the part that is read, at most, after any batch."""
    spread = 0.0
    for progress in query.recentProgress:
        text = progress["sources"][0]["endOffset"]
        end = json.loads(text) if isinstance(text, str) else text
        if end is not None:
            parts = [int(end[topic].get(str(index), 0)) / count for index, count in enumerate(counts)]
            spread = max(spread, max(parts) - min(parts))
    return spread


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=20_000_000)
    parser.add_argument("--offsets", type=int, default=5_000_000, help="maxOffsetsPerTrigger (%(default)s)")
    parser.add_argument(
        "--driver-memory", default="512m", help="the heap of Spark's Java process (%(default)s)"
    )
    parser.add_argument("--only", default="", help="measure only ways whose names contain this text")
    arguments = parser.parse_args()
    os.environ["PYSPARK_PYTHON"] = worker_python()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.log.level", "ERROR").config("spark.ui.showConsoleProgress", "false")
    builder = builder.config("spark.driver.memory", arguments.driver_memory)
    builder = builder.config("spark.python.unix.domain.socket.enabled", "true")
    # By default a query remembers 100 batches.
    builder = builder.config("spark.sql.streaming.numRecentProgressUpdates", "10000")
    topic = "skewed"
    with odradek_server() as server:
        started = time.perf_counter()
        counts = fill_skewed(server.bootstrap, topic, arguments.records)
        print(f"{sum(counts):,} records were stored in {time.perf_counter() - started:.0f} s", flush=True)
        spark: SparkSession = builder.getOrCreate()
        base = {
            "kafka.bootstrap.servers": server.bootstrap,
            "subscribe": topic,
            "startingOffsets": "earliest",
        }
        print("| way | batches | slowest, s | all, s | million/s | worker, MiB | workers | Java | spread |")
        print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
        for name, options in ways(arguments.offsets).items():
            if arguments.only in name:
                print(f"| {name} | {measure(spark, base | options, counts, topic)} |", flush=True)
        print(f"the node: {server.rss_kib() / _MIB:.0f} MiB (RSS)")
        spark.stop()


if __name__ == "__main__":
    main()
