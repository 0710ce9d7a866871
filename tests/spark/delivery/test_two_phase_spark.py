"""Two-phase delivery in a real Spark: a repeated batch job, a stream whose driver died, and a checkpoint from a backup."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed (the extra spark)")

from pyspark.errors import StreamingQueryException

from testkit.processes import ServerProcess
from tests.node_process import RunningNode
from tests.spark.delivery.test_two_phase_kills import server
from tests.spark.topics import Topics
from tests.spark.writing.test_sink import write
from tests.spark.writing.test_sink_task import stored_committed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["server"]
TWO_PHASE = "two-phase"


def values_of(bootstrap: str, topic: str) -> Counter[int]:
    """Count the committed values of a topic. No transaction may be open."""
    return Counter(int(record.value) for record in stored_committed(bootstrap, topic, 0))


def test_a_job_writes_all_its_rows_once(
    spark: SparkSession, server: ServerProcess, node: RunningNode, fresh_topic: Callable[[str], str]
) -> None:
    """A repeated `txnVersion` writes no rows again, even if tasks have other rows. If one task fails, no rows are
    written."""
    topic = Topics(server.bootstrap).create(fresh_topic("two-phase"), partitions=2)
    rows = spark.range(0, 100, 1, 2).selectExpr("cast(id as string) as value")
    job = {"topic": topic, "delivery": TWO_PHASE, "txnAppId": "daily"}
    write(rows, server.bootstrap, **job, txnVersion=7)
    write(rows.repartition(3), server.bootstrap, **job, txnVersion=7)
    assert values_of(server.bootstrap, topic) == Counter(range(100))
    bad = rows.selectExpr("value", "cast(if(value = '99', 7, 0) as int) as partition")
    with pytest.raises(Exception, match="the column 'partition' has 7"):
        write(bad, server.bootstrap, **job, txnVersion=8)
    assert values_of(server.bootstrap, topic) == Counter(range(100))
    with pytest.raises(Exception, match="txnVersion must only grow"):
        write(rows, server.bootstrap, **job, txnVersion=6)
    with pytest.raises(Exception, match="needs brokers with two-phase commit"):
        write(rows, node.bootstrap, topic=fresh_topic("none"), delivery=TWO_PHASE)


def test_a_stream_goes_on_from_its_decision(
    spark: SparkSession,
    server: ServerProcess,
    fresh_topic: Callable[[str], str],
    streams: Callable[[StreamingQuery], StreamingQuery],
    tmp_path: Path,
) -> None:
    """The commit of a batch is lost from Spark's checkpoint. The restarted query writes no rows again. A checkpoint
    from a backup is refused."""
    topics = Topics(server.bootstrap)
    origin, target = (topics.create(fresh_topic(name), partitions=2) for name in ("from", "to"))
    options = {"kafka.bootstrap.servers": server.bootstrap}
    checkpoint, backup = tmp_path / "checkpoint", tmp_path / "backup"

    def run() -> None:
        records = spark.readStream.format("odradek").options(**options, subscribe=origin)
        frame = records.option("startingOffsets", "earliest").load().select("value")
        # The rows of a task differ in each run.
        writer = frame.repartition(2).writeStream.format("odradek")
        writer = writer.options(**options, topic=target, delivery=TWO_PHASE)
        query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        assert streams(query).awaitTermination(300)

    for begin in (0, 50):
        topics.send(origin, [b"%d" % number for number in range(begin, begin + 50)], partition=begin // 50)
        run()
        if begin == 0:
            shutil.copytree(checkpoint, backup)
    assert values_of(server.bootstrap, target) == Counter(range(100))
    last = max((file for file in (checkpoint / "commits").glob("[0-9]*")), key=lambda file: int(file.name))
    for file in (last, last.with_name(f".{last.name}.crc")):
        file.unlink(missing_ok=True)
    run()
    assert values_of(server.bootstrap, target) == Counter(range(100))
    topics.send(origin, [b"100"])
    shutil.rmtree(checkpoint)
    shutil.copytree(backup, checkpoint)
    with pytest.raises(
        StreamingQueryException, match=r"the checkpoint comes from a backup|older than the topic"
    ):
        run()
    assert values_of(server.bootstrap, target) == Counter(range(100))
