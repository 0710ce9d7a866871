"""What docs/spark-catching-up.md says: the driver's page for Prometheus, a listener for lag, and `spark-pipelines`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.request import urlopen

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed (the extra spark)")
pytest.importorskip("prometheus_client", reason="prometheus_client is not installed")

import prometheus_client
import pyspark

from odradek import Producer
from odradek.spark.pipelines.flight_table import flight_table
from odradek.spark.worker_process import worker_python
from tests.docs.markdown import ROOT, blocks
from tests.node_process import RunningNode
from tests.spark.python_path import python_path
from tests.spark.streaming import wait_for
from tests.spark.topics import Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = "docs/spark-catching-up.md"
FLIGHTS = 1500
WAIT_SECONDS = 600


def test_the_listener_reports_the_lag(
    spark: SparkSession, node: RunningNode, fresh_topic: Callable[[str], str], checkpoint: str
) -> None:
    """The page's listener has the lag after each batch, by the query's name, on its page for Prometheus."""
    topics = Topics(node.bootstrap)
    name = topics.create(fresh_topic("lag"))
    topics.send(name, [b"1"] * 5)
    listener, _ = blocks(PAGE, "python")
    servers = []
    code = listener.code.replace("from prometheus_client import Gauge, start_http_server", "")
    known = {
        "spark": spark,
        "Gauge": prometheus_client.Gauge,
        "start_http_server": lambda _: servers.append(prometheus_client.start_http_server(0, "127.0.0.1")),
    }
    exec(compile(code, f"{PAGE}:{listener.line}", "exec"), known)
    stream = spark.readStream.format("odradek").option("kafka.bootstrap.servers", node.bootstrap)
    stream = stream.option("subscribe", name).option("startingOffsets", "earliest")
    writer = stream.option("maxOffsetsPerTrigger", "3").load().writeStream.format("noop").queryName("lagging")
    query = writer.option("checkpointLocation", checkpoint).trigger(processingTime="1 hour").start()
    [(server, thread)] = servers

    def shown() -> str:
        with urlopen(f"http://127.0.0.1:{server.server_port}/metrics", timeout=60) as answer:
            return str(answer.read().decode())

    try:
        wait_for(lambda: 'spark_query_lag_records{query="lagging"} ' in shown(), query)
        [lag] = [line for line in shown().splitlines() if line.startswith("spark_query_lag_records{")]
        assert lag.endswith(" 2.0")
    finally:
        query.stop()
        server.shutdown()
        server.server_close()
        thread.join()


def environment() -> dict[str, str]:
    """Return the environment of a session of its own."""
    commands = Path(sys.executable).parent
    return {
        **os.environ,
        "PYTHONPATH": python_path(),
        "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}",
        "PYSPARK_PYTHON": worker_python(),
        "PYSPARK_DRIVER_PYTHON": worker_python(),
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "SPARK_CONF_DIR": str(ROOT / "spark" / "conf"),
    }


def test_the_pages_of_the_driver(
    node: RunningNode, fresh_topic: Callable[[str], str], checkpoint: str, whole_matrix: bool
) -> None:
    """The driver's page for Prometheus has the figures by the query's name. Descriptions and pages are as the page says:
    Spark names the source by its class, and shows no lag."""
    if not whole_matrix:
        pytest.skip("starts a Spark session, so it runs only in make test-spark")
    topics = Topics(node.bootstrap)
    name = topics.create(fresh_topic("watched"))
    topics.send(name, [b"1"] * 25)
    words = [sys.executable, "-m", "tests.spark.sessions.watched_session", node.bootstrap, name, checkpoint]
    done = subprocess.run(
        words,
        env=environment(),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    shown = json.loads(done.stdout.splitlines()[-1])
    figures = shown["pages"]["metrics/prometheus"]
    for figure in (
        "inputRate_total",
        "processingRate_total",
        "latency",
        "eventTime_watermark",
        "states_rowsTotal",
        "states_usedBytes",
    ):
        assert f"metrics_job_driver_spark_streaming_watched_{figure}_Value" in figures
    last = shown["progress"][-1]["sources"][0]
    assert last["latestOffset"]["@lag"]["records"] == 0
    assert "PythonMicroBatchStream" in last["description"]
    assert not last.get("metrics")
    assert not any("@lag" in text for text in shown["pages"].values())


def run_pipeline(folder: Path, *more: str, kill_when: Path | None = None) -> str:
    """Run the pipeline in a folder, and return what it prints. Kill it with its JVM as soon as a file is there."""
    log = folder / "run.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            ["spark-pipelines", "run", "--spec", "pipeline.yml", *more],
            env=environment(),
            cwd=folder,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    deadline = time.monotonic() + WAIT_SECONDS
    try:
        while process.poll() is None and not (kill_when is not None and kill_when.exists()):
            assert time.monotonic() < deadline, log.read_text()[-4000:]
            time.sleep(0.02)
        assert (process.poll() is None) == (kill_when is not None), log.read_text()[-4000:]
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert kill_when is not None or process.returncode == 0, log.read_text()[-4000:]
    return log.read_text()


def test_a_declarative_pipeline(
    spark: SparkSession,
    node: RunningNode,
    fresh_topic: Callable[[str], str],
    tmp_path: Path,
    whole_matrix: bool,
) -> None:
    """The page's pipeline, killed in its second batch and run again, writes each row once, and then nothing. A full
    refresh begins a new checkpoint, and writes all rows again."""
    if not whole_matrix:
        pytest.skip("starts four Spark sessions, so it runs only in make test-spark")
    pytest.importorskip(
        "grpc_status", reason="Spark Connect is not installed: pip install 'pyspark[connect]'"
    )
    pytest.importorskip("yaml", reason="PyYAML is not installed: pip install 'pyspark[pipelines]'")
    topics = Topics(node.bootstrap)
    source, target = topics.create(fresh_topic("flights"), 3), topics.create(fresh_topic("late"))
    flights = flight_table().sort_values("time_hour", kind="stable").head(FLIGHTS)
    with Producer(bootstrap_servers=node.bootstrap) as producer:
        for number, value in enumerate(flights.to_json(orient="records", lines=True).splitlines()):
            producer.send(source, value.encode(), partition=number % 3)
    [settings] = blocks(PAGE, "yaml")
    _, pipeline = blocks(PAGE, "python")
    (tmp_path / "transformations").mkdir()
    (tmp_path / "pipeline.yml").write_text(settings.code.replace("/tmp/late-pipeline", f"{tmp_path}/storage"))
    code = pipeline.code.replace("127.0.0.1:9092", node.bootstrap).replace('"flights")\n', f'"{source}")\n')
    code = code.replace("late-flights", target).replace("50000", "500")
    (tmp_path / "transformations" / "late.py").write_text(code)
    checkpoint = tmp_path / "storage" / "_checkpoints" / "late_flights" / "late"

    def rows() -> Counter[str]:
        reader = spark.read.format("odradek").option("kafka.bootstrap.servers", node.bootstrap)
        reader = reader.option("kafka.isolation.level", "read_committed").option("subscribe", target)
        return Counter(row[0] for row in reader.load().selectExpr("cast(value as string)").collect())

    run_pipeline(tmp_path, kill_when=checkpoint / "0" / "offsets" / "1")
    assert "Run is COMPLETED" in run_pipeline(tmp_path)
    late = flights[flights["dep_delay"] > 60]
    once = rows()
    assert once.total() == len(once) == len(late)
    assert "Run is COMPLETED" in run_pipeline(tmp_path)
    assert rows() == once
    assert {path.name for path in checkpoint.iterdir()} == {"0"}
    run_pipeline(tmp_path, "--full-refresh-all")
    assert rows() == once + once
    assert {path.name for path in checkpoint.iterdir()} == {"0", "1"}
