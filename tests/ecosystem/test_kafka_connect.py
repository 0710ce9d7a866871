"""Kafka Connect: two workers run an exactly-once source and a sink, while a worker and a node are killed."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from jepsen_tests.real_cluster import Cluster
from testkit.kafka_server import KAFKA_VERSION
from testkit.processes import free_ports
from tests.ecosystem.programs import counted, jars, java, rest, until

pytestmark = [pytest.mark.ecosystem, pytest.mark.java]

WORKER = "org.apache.kafka.connect.cli.ConnectDistributed"
FILE = "org.apache.kafka.connect.file.FileStream"
LINES = 1_000
"""How many lines each of three parts has: before the deaths, after a node's death, after a worker's death."""


def properties(bootstrap: str, port: int) -> str:
    """Write the properties file of a worker."""
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": "connect",
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "org.apache.kafka.connect.storage.StringConverter",
        **{f"{kind}.storage.topic": f"connect-{kind}" for kind in ("config", "offset", "status")},
        **{f"{kind}.storage.replication.factor": "-1" for kind in ("config", "offset", "status")},
        "offset.storage.partitions": "3",
        "offset.flush.interval.ms": "1000",
        "exactly.once.source.support": "enabled",
        "session.timeout.ms": "10000",
        "scheduled.rebalance.max.delay.ms": "1000",
        "listeners": f"http://127.0.0.1:{port}",
    }
    return "".join(f"{key}={value}\n" for key, value in settings.items())


def connectors(source: Path, sink: Path) -> dict[str, dict[str, object]]:
    """Describe both connectors: file to topic, topic to file."""
    return {
        "source": {
            "connector.class": f"{FILE}SourceConnector",
            "tasks.max": 1,
            "file": str(source),
            "topic": "lines",
            "exactly.once.support": "requested",
            "transaction.boundary": "poll",
            "batch.size": 100,
            "topic.creation.default.replication.factor": -1,
            "topic.creation.default.partitions": 2,
        },
        "sink": {
            "connector.class": f"{FILE}SinkConnector",
            "tasks.max": 2,
            "file": str(sink),
            "topics": "lines",
            "consumer.override.isolation.level": "read_committed",
        },
    }


def test_lines_go_through_exactly_once(cluster: Cluster, tmp_path: Path) -> None:
    """KIP-618: each line of the file is committed once in the topic, and the sink gets all lines.

    A node is killed and restarted. Then the first worker is killed, and the other one goes on. The source's offsets can
    be read, and while it is stopped they can be deleted (KIP-875).
    """
    folder = jars(f"kafka-{KAFKA_VERSION}")
    first, second = free_ports(2)
    source, sink = tmp_path / "in.txt", tmp_path / "out.txt"
    logs = [tmp_path / f"worker-{port}.log" for port in (first, second)]

    def note() -> str:
        return "\n".join(log.read_text()[-3000:] for log in logs)

    def write(part: int) -> None:
        with source.open("a") as file:
            file.writelines(f"line-{number:06d}\n" for number in range(part * LINES, (part + 1) * LINES))

    def arrived(count: int) -> bool:
        return sink.exists() and len(set(sink.read_text().splitlines())) == count

    with ExitStack() as stack:
        workers = []
        for port, log in zip((first, second), logs, strict=True):
            path = tmp_path / f"worker-{port}.properties"
            path.write_text(properties(cluster.bootstrap, port))
            workers.append(stack.enter_context(java(f"Connect {port}", folder, WORKER, path, log=log)))
        for port in (first, second):
            until("a worker", lambda port=port: rest(port, "/"), note)
        write(0)
        for name, settings in connectors(source, sink).items():
            put = f"/connectors/{name}/config"
            until(name, lambda put=put, settings=settings: rest(first, put, "PUT", settings), note)
        until("the first lines", lambda: arrived(LINES), note)
        cluster.kill(1)
        write(1)
        until("the lines written while a node is dead", lambda: arrived(2 * LINES), note)
        cluster.start(1)
        workers[0].kill()
        write(2)
        until("the lines written while a worker is dead", lambda: arrived(3 * LINES), note)
        assert counted(cluster.bootstrap, "lines") == Counter(source.read_text().splitlines())
        size = source.stat().st_size
        until("the source's offset", lambda: offsets(second) == [size], note)
        until("a stop", lambda: rest(second, "/connectors/source/stop", "PUT") is not None, note)
        until(
            "no offset",
            lambda: rest(second, "/connectors/source/offsets", "DELETE") and not offsets(second),
            note,
        )


def offsets(port: int) -> list[int]:
    """Return the positions in the source file that Connect has committed."""
    found = rest(port, "/connectors/source/offsets") or {}
    return [each["offset"]["position"] for each in found.get("offsets", ())]
