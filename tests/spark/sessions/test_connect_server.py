"""A server of Spark Connect has the package, and its clients need none of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed (the extra spark)")

import pyspark

from odradek.spark.worker_process import worker_python
from testkit.kafka_server import KafkaUnavailable, java_command
from testkit.processes import free_ports
from tests.docs.markdown import ROOT
from tests.node_process import RunningNode
from tests.spark.sessions.spark_hosts import wait_for_port
from tests.spark.topics import Topics
from tests.spark.writing.test_sink_task import stored_committed

HOST = "127.0.0.1"
RECORDS = 50
TIMEOUT_SECONDS = 600.0


@pytest.fixture
def connect_url(whole_matrix: bool, tmp_path: Path) -> Iterator[str]:
    """The address of a server of Spark Connect, which runs its jobs in its own process."""
    if not whole_matrix:
        pytest.skip("starts a server of Spark Connect, so it runs only in make test-spark")
    pytest.importorskip(
        "grpc_status", reason="Spark Connect is not installed: pip install 'pyspark[connect]'"
    )
    try:
        java_command()
    except KafkaUnavailable as reason:
        pytest.skip(f"Spark is unavailable: {reason}")
    home, [port] = Path(pyspark.__path__[0]), free_ports(1)
    settings = {
        "spark.connect.grpc.binding.address": HOST,
        "spark.connect.grpc.binding.port": port,
        "spark.driver.host": HOST,
        "spark.driver.bindAddress": HOST,
        "spark.local.dir": tmp_path / "local",
        "spark.ui.enabled": "false",
    }
    words = [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
    name = "org.apache.spark.sql.connect.service.SparkConnectServer"
    command = [str(home / "bin" / "spark-submit"), "--master", "local[2]", "--class", name]
    variables = {
        "SPARK_HOME": str(home),
        "SPARK_CONF_DIR": str(ROOT / "spark" / "conf"),
        "PYSPARK_PYTHON": worker_python(),
    }
    with (tmp_path / "server.log").open("wb") as log:
        # `spark-submit` replaces itself by Java (exec), so the id of this process is that of the server.
        process = subprocess.Popen(
            [*command, *words, "spark-internal"],
            env=os.environ | variables,
            cwd=tmp_path,
            stdout=log,
            stderr=log,
        )
    try:
        wait_for_port(HOST, port, process)
        yield f"sc://{HOST}:{port}"
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def test_a_client_without_odradek(
    connect_url: str, node: RunningNode, fresh_topic: Callable[[str], str], tmp_path: Path
) -> None:
    """A client without odradek writes by a batch, a stream and `foreachBatch`. Each row is there once."""
    topics = Topics(node.bootstrap)
    origin, *targets = (topics.create(fresh_topic(name)) for name in ("origin", "batch", "streamed", "each"))
    topics.send(origin, [b"%d" % number for number in range(RECORDS)])
    job = Path(__file__).with_name("connect_client.py")
    done = subprocess.run(
        [sys.executable, str(job), connect_url, node.bootstrap, origin, *targets, str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.splitlines()[-1] == "done"
    for target in targets:
        stored = Counter(int(record.value) for record in stored_committed(node.bootstrap, target, 0))
        assert stored == Counter(range(RECORDS))
