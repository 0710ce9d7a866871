"""Tests that need their own Spark session, for `make test-spark`: Spark Connect, secrets, and a user's `spark.py`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from odradek import Admin
from odradek.client.admin import NewTopic
from odradek.spark.worker_process import worker_python
from testkit.kafka_server import KafkaUnavailable, java_command
from tests.docs.markdown import ROOT
from tests.node_process import RunningNode
from tests.security.secured_node import SecuredNode, secured
from tests.spark.python_path import python_path
from tests.spark.sessions.test_secured import PASSWORD, login
from tests.spark.topics import Topics

pytest.importorskip("pyspark", reason="Spark is not installed (the extra spark)")
__all__ = ["secured"]
TIMEOUT_SECONDS = 600.0


@pytest.fixture(scope="session", autouse=True)
def whole(whole_matrix: bool) -> None:
    """Skip the test in `make test`."""
    if not whole_matrix:
        pytest.skip("starts a Spark session, so it runs only in make test-spark")
    try:
        java_command()
    except KafkaUnavailable as reason:
        pytest.skip(f"Spark is unavailable: {reason}")


def run(
    words: list[str], path: list[Path], cwd: Path, conf: Path = ROOT / "spark" / "conf"
) -> subprocess.CompletedProcess[str]:
    """Run a process with these folders first on its path; return its output."""
    env = {
        **os.environ,
        "PYTHONPATH": python_path(*path),
        "PYSPARK_PYTHON": worker_python(),
        "SPARK_CONF_DIR": str(conf),
    }
    return subprocess.run(
        words, env=env, cwd=cwd, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
    )


def test_spark_connect_on_a_cluster(
    node: RunningNode, fresh_topic: Callable[[str], str], checkpoint: str
) -> None:
    """With Spark Connect and separate executors, batch and stream work. An error is one sentence without a
    traceback."""
    pytest.importorskip(
        "grpc_status", reason="Spark Connect is not installed: pip install 'pyspark[connect]'"
    )
    topics = Topics(node.bootstrap)
    origin, target = topics.create(fresh_topic("origin"), 2), topics.create(fresh_topic("target"), 2)
    topics.send(origin, [b"%d" % number for number in range(30)])
    words = [
        sys.executable,
        "-m",
        "tests.spark.sessions.connect_session",
        node.bootstrap,
        origin,
        target,
        checkpoint,
    ]
    done = run(words, [], ROOT)
    assert done.returncode == 0, done.stderr[-4000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["rows"] == [30, 60]
    option, missing = told["errors"]
    assert "failOnDataLoss must be true or false, not 'perhaps'" in option
    assert "has no record with the timestamp 99999999999999 or later, as startingTimestamp asks" in missing
    for text in told["errors"]:
        assert "Traceback" not in text.split("JVM stacktrace")[0]


def test_nothing_of_spark_shows_the_password(secured: SecuredNode, tmp_path: Path) -> None:
    """The password appears nowhere in Spark's pages, metrics, plans, progress, errors, logs or event log."""
    with Admin(bootstrap_servers=secured.plaintext) as admin:
        [created] = admin.create_topics([NewTopic("told", partitions=2)])
        assert created.error is None
    words = [sys.executable, "-m", "tests.spark.sessions.secret_session", str(tmp_path), "told"]
    settings = (ROOT / "spark" / "conf" / "log4j2.properties").read_text()
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "log4j2.properties").write_text(settings.replace("level = error", "level = info"))
    done = run([*words, json.dumps(login(secured))], [], ROOT, tmp_path / "conf")
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.endswith("THE END\n")
    events = [path for path in tmp_path.rglob("*") if path.is_file() and "local" not in path.parts]
    assert any(b"SparkListenerSQLExecutionStart" in path.read_bytes() for path in events)
    assert "SQL/ 200" in done.stdout
    assert " INFO " in done.stderr
    for text in (done.stdout, done.stderr):
        assert PASSWORD not in text, text[max(0, text.index(PASSWORD) - 300) :][:600]
    assert [path for path in events if PASSWORD.encode() in path.read_bytes()] == []


def test_a_job_beside_a_spark_py(
    node: RunningNode, fresh_topic: Callable[[str], str], tmp_path: Path
) -> None:
    """A job beside a user module `spark.py` runs a batch and a stream, and prints only one line of Spark's before its
    result."""
    topics = Topics(node.bootstrap)
    name = topics.create(fresh_topic("beside"))
    topics.send(name, [b"1", b"2", b"3"])
    (tmp_path / "spark.py").write_text("MINE = True\n")
    (tmp_path / "job.py").write_text(
        f"""
import spark as mine
assert mine.MINE
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
options = {{"kafka.bootstrap.servers": "{node.bootstrap}", "subscribe": "{name}"}}
frame = spark.read.format("odradek").options(**options).load()
frame.select("value").write.format("odradek").options(**options, topic="{name}").mode("append").save()
stream = spark.readStream.format("odradek").options(**options, startingOffsets="earliest").load()
writer = stream.select("value").writeStream.format("odradek").options(**options, topic="{name}")
query = writer.option("checkpointLocation", "{tmp_path}/checkpoint").trigger(availableNow=True).start()
query.awaitTermination()
print("rows", spark.read.format("odradek").options(**options).load().count())
"""
    )
    done = run([sys.executable, "job.py"], [tmp_path], tmp_path)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.splitlines() == ["rows 12"]
    # Progress bars overwrite their line.
    noise = [line for line in re.split(r"[\r\n]+", done.stderr) if line.strip() and "[Stage" not in line]
    # Each writer logs once, after its first batch, how to read the written records.
    told = [line for line in noise if "kafka.isolation.level=read_committed" in line]
    assert 1 <= len(told) <= 2, noise
    assert len(noise) - len(told) <= 1, noise
