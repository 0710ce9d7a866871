"""User modules beside a job may have any name: the format still works."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from odradek.spark.worker_process import worker_python
from testkit.kafka_server import KafkaUnavailable, java_command
from tests.docs.markdown import ROOT
from tests.hostile_names import lay_out
from tests.node_process import RunningNode
from tests.spark.python_path import python_path

pyspark = pytest.importorskip("pyspark", reason="Spark is not installed (the extra spark)")

LOAD = """
import pickle, sys
from pyspark_odradek import DefaultSource
options = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t", "topic": "t"}
source = DefaultSource(options)
columns = source.schema()
readers = [source.reader(columns), source.streamReader(columns)]
from odradek.spark import sink
sys.stdout.buffer.write(pickle.dumps(readers))
"""
UNPICKLE = """
import pickle, sys
for each in pickle.load(sys.stdin.buffer):
    print(type(each).__module__, type(each.options).__module__)
import spark
assert spark.MINE
"""
JOB = """
import sys
from pyspark.sql import SparkSession
how, bootstrap, topic, checkpoint = sys.argv[1:]
builder = SparkSession.builder
builder = builder.remote("local[2]") if how == "connect" else builder.master("local[2]")
for key, value in {
    "spark.ui.enabled": "false", "spark.log.level": "ERROR", "spark.local.dir": checkpoint + ".local",
    "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
}.items():
    builder = builder.config(key, value)
spark = builder.getOrCreate()
server = {"kafka.bootstrap.servers": bootstrap}
spark.range(5).selectExpr("cast(id as string) as value").write.format("odradek").options(
    **server, topic=topic).mode("append").save()
rows = spark.readStream.format("odradek").options(**server, subscribe=topic, startingOffsets="earliest").load()
query = rows.select("value").writeStream.format("odradek").options(
    **server, topic=topic, checkpointLocation=checkpoint).trigger(availableNow=True).start()
query.awaitTermination()
print("rows", spark.read.format("odradek").options(**server, subscribe=topic).load().count())
spark.stop()
"""
"""A job that writes five rows as a batch, copies them with a stream into the same topic, and reads all."""


def run(code: str, beside: Path, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run Python like Spark, with the job's folder first on the path."""
    env = {**os.environ, "PYTHONPATH": python_path(beside)}
    return subprocess.run(
        [sys.executable, "-c", code],
        input=given,
        env=env,
        cwd=beside,
        capture_output=True,
        timeout=120,
        check=False,
    )


def test_a_process_has_the_spark_of_the_tests(tmp_path: Path) -> None:
    """`make test-spark` names a version of Spark by PYTHONPATH. Processes that tests start have it, too."""
    done = run("import pyspark; print(pyspark.__file__)", tmp_path)
    assert done.stdout.decode().strip() == pyspark.__file__, done.stderr.decode()


def test_spark_py_of_the_users(tmp_path: Path) -> None:
    """A user's module `spark.py` keeps its name, in the driver and where readers are unpickled."""
    lay_out(tmp_path)
    (tmp_path / "spark.py").write_text("MINE = True\n")
    pickled = run(LOAD, tmp_path)
    assert pickled.returncode == 0, pickled.stderr.decode()
    done = run(UNPICKLE, tmp_path, pickled.stdout)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.decode().split() == [
        *("odradek.spark.source", "odradek.spark.source_options"),
        *("odradek.spark.source_stream", "odradek.spark.source_options"),
    ]


def test_the_format_is_found_from_anywhere(tmp_path: Path) -> None:
    """Spark searches the path for modules named `pyspark_*`, so an editable installation must add a path, and not an
    import hook."""
    code = "import pkgutil; print(*(each.name for each in pkgutil.iter_modules()))"
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "pyspark_odradek" in done.stdout.split()


@pytest.mark.parametrize("how", ["classic", "connect"])
def test_source_and_sink_beside_modules_of_any_name(
    node: RunningNode, fresh_topic: Callable[[str], str], tmp_path: Path, how: str
) -> None:
    """In a directory with misleading module names, a session writes a batch, copies it with a stream, and reads all
    rows."""
    if how == "connect":
        pytest.importorskip(
            "grpc_status", reason="Spark Connect is not installed: pip install 'pyspark[connect]'"
        )
    try:
        java_command()
    except KafkaUnavailable as reason:
        pytest.skip(f"Spark is unavailable: {reason}")
    folder = tmp_path / "job"
    folder.mkdir()
    lay_out(folder)
    (folder / "job.py").write_text(JOB)
    # `make test-spark` names the version of Spark, and what Spark Connect needs, by PYTHONPATH.
    path = [
        each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each and Path(each) != ROOT
    ]
    clean = os.environ | {"PYTHONPATH": os.pathsep.join(path)}
    done = subprocess.run(
        [sys.executable, "job.py", how, node.bootstrap, fresh_topic("beside"), str(tmp_path / "checkpoint")],
        cwd=folder,
        env=clean | {"PYSPARK_PYTHON": worker_python()},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "rows 10"
