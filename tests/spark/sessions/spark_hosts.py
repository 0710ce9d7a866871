"""A small Spark cluster on several hosts: a master and two workers on different loopback addresses.

Spark starts a duplicate of a slow task only on another host (`TaskSetManager.hasAttemptOnHost`), and all workers of
`local-cluster` have the same host. So here each worker has one core and its own address in 127.0.0.0/8.

SIGPWR decommissions a worker: it gets no more tasks, and its executors end when theirs have ended.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import attrs
import pyspark

from testkit.processes import free_ports
from tests.spark.kills.executors import executor_processes

__all__ = ["SparkHosts", "spark_hosts", "wait_for_port"]

_DEPLOY = "org.apache.spark.deploy"
_HOSTS = ("127.0.0.2", "127.0.0.3")
_MASTER_HOST = "127.0.0.1"
_START_SECONDS_MAX = 60.0
_DAEMON_MEMORY = "256m"
_EXECUTOR_MEMORY = "1024M"
_ENDING = {"SPARK_DAEMON_JAVA_OPTS": "-Dspark.decommission.enabled=true"}


@attrs.frozen
class SparkHosts:
    """A running cluster: the master's address for a driver, and the process ids of its workers."""

    master: str
    workers: Sequence[int]

    def executors(self) -> list[int]:
        """Return the Java processes that are executors at present."""
        return executor_processes(lambda parent: parent in self.workers)


@contextmanager
def spark_hosts(folder: Path, environment: Mapping[str, str] | None = None) -> Iterator[SparkHosts]:
    """Run a cluster within the block, with its files in `folder`. Raises `AssertionError` if it does not start.

    The daemons and their executors have the variables of `environment`, or else those of this process.
    """
    mine = os.environ if environment is None else environment
    port, *others = free_ports(1 + len(_HOSTS))
    master = f"spark://{_MASTER_HOST}:{port}"
    # By default the master removes an application whose executors die repeatedly.
    lasting = {
        "SPARK_MASTER_OPTS": f"-D{_DEPLOY.removeprefix('org.apache.')}.maxExecutorRetries=-1",
        **_ENDING,
    }
    with ExitStack() as stack:
        own = ["--host", _MASTER_HOST, "--port", str(port)]
        process = stack.enter_context(_daemon(folder, "master.Master", own, {**mine, **lasting}))
        wait_for_port(_MASTER_HOST, port, process)
        workers = []
        for host, worker_port in zip(_HOSTS, others, strict=True):
            words = ["--host", host, "--port", str(worker_port), "--cores", "1", "--memory", _EXECUTOR_MEMORY]
            words += ["--work-dir", str(folder / host), master]
            process = stack.enter_context(_daemon(folder, "worker.Worker", words, {**mine, **_ENDING}))
            wait_for_port(host, worker_port, process)
            workers.append(process.pid)
        yield SparkHosts(master, workers)


@contextmanager
def _daemon(
    folder: Path, name: str, words: Sequence[str], environment: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    home = Path(pyspark.__file__).parent
    environment = {**environment, "SPARK_HOME": str(home), "SPARK_DAEMON_MEMORY": _DAEMON_MEMORY}
    # `spark-class` replaces itself by Java (exec), so the id of this process is that of the daemon.
    command = [str(home / "bin" / "spark-class"), f"{_DEPLOY}.{name}", "--webui-port", "0", *words]
    with (folder / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(
            command, env=environment, stdout=log, stderr=log, cwd=folder, start_new_session=True
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait()


def wait_for_port(host: str, port: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until a process listens. Raises `AssertionError` if it ends, or does not listen within a minute."""
    deadline = time.monotonic() + _START_SECONDS_MAX
    while True:
        assert process.poll() is None, (
            f"Spark's daemon for {host}:{port} ended with status {process.returncode}"
        )
        try:
            socket.create_connection((host, port), timeout=1.0).close()
            return
        except OSError:
            assert time.monotonic() < deadline, (
                f"nothing listens at {host}:{port} after {_START_SECONDS_MAX:g} s"
            )
            time.sleep(0.05)
