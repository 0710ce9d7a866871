"""librdkafka's own mock cluster as a reference: a broker in C that stores in memory and checks little.

    python -m bench.throughput.mock_cluster      prints its bootstrap address, serves until its input ends

It shows the lowest possible cost of a broker. It keeps only a few megabytes per partition, so only producing to it is
measured. It drops old records, but its end offsets count every record.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import confluent_kafka

from testkit.processes import ServerFailed, ServerProcess, command_prefix

PARTITIONS = 4
"""The number of partitions of its topics, which are created automatically."""


@contextmanager
def mock_cluster(*, cpus: Sequence[int] | None = None) -> Iterator[ServerProcess]:
    """Run a mock cluster with one broker in a separate process for the block."""
    with tempfile.TemporaryDirectory(prefix="mock-cluster-") as name:
        log_path = Path(name) / "server.log"
        with log_path.open("wb") as log:
            process = subprocess.Popen(
                [*command_prefix(cpus), sys.executable, "-m", "bench.throughput.mock_cluster"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        assert process.stdout is not None
        bootstrap = process.stdout.readline().decode().strip()
        server = ServerProcess("librdkafka mock", process, bootstrap, log_path)
        try:
            if not bootstrap:
                raise ServerFailed(f"the mock cluster did not start:\n{server.log_tail()}")
            yield server
        finally:
            server.kill()


def main() -> None:
    """Run the cluster until standard input ends."""
    handle = confluent_kafka.Producer({"test.mock.num.brokers": 1, "log_level": 3})
    brokers = handle.list_topics(timeout=10).brokers
    for broker in brokers.values():
        print(f"{broker.host}:{broker.port}", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
