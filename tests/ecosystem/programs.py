"""Third-party Java programs as child processes with their jars, and records that independent clients write and read."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka
import confluent_kafka.admin
import pytest

from testkit.kafka_server import KAFKA_VERSION, KafkaUnavailable, ensure_artifacts, java_command
from testkit.processes import ServerProcess, spawn

FLINK_VERSION, FLINK_CONNECTOR_VERSION = "2.2.0", "5.0.0-2.2"
PATIENCE_SECONDS = 240.0
"""How long a program may take for a step that takes seconds on an idle machine."""
POLL_SECONDS = 0.2
JVM = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
ARTIFACTS: Mapping[str, Sequence[str]] = {
    f"kafka-{KAFKA_VERSION}": [
        f"org.apache.kafka:{name}:{KAFKA_VERSION}"
        for name in (
            "kafka_2.13",
            "kafka-tools",
            "kafka-streams",
            "connect-runtime",
            "connect-file",
            "connect-mirror",
        )
    ],
    f"flink-{FLINK_VERSION}": [
        *(
            f"org.apache.flink:{name}:{FLINK_VERSION}"
            for name in ("flink-streaming-java", "flink-clients", "flink-connector-base")
        ),
        f"org.apache.flink:flink-connector-kafka:{FLINK_CONNECTOR_VERSION}",
    ],
}
"""The sets of jars, by the name of the folder in `~/.cache/odradek-ecosystem`."""


def jars(name: str) -> Path:
    """Return the folder of one set of jars, and fetch them at the first use. Skip the test without Java or mvn."""
    try:
        return ensure_artifacts(Path.home() / ".cache" / "odradek-ecosystem" / name, ARTIFACTS[name])
    except KafkaUnavailable as reason:
        pytest.skip(f"the jars of {name} are unavailable: {reason}")


def compiled(program: Path, folder: Path, target: Path) -> str:
    """Compile a Java program against jars. Return the class path for `java`. Skip the test without a compiler."""
    javac = shutil.which("javac")
    if javac is None:
        pytest.skip("no javac on the path")
    done = subprocess.run(
        [javac, "-cp", f"{folder}/*", "-d", target, program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return f"{target}{os.pathsep}{folder}/*"


@contextmanager
def java(
    name: str, path: str | Path, program: str, *arguments: str | Path, log: Path, options: Sequence[str] = JVM
) -> Iterator[ServerProcess]:
    """Run a class of the class path `path`, or of the jars in that folder, while the block runs."""
    classes = f"{path}/*" if isinstance(path, Path) else path
    command = [java_command(), *options, "-cp", classes, program, *arguments]
    process = spawn(name, command, bootstrap="", log_path=log)
    try:
        yield process
    finally:
        process.kill()


def until(what: str, is_so: Callable[[], Any], note: Callable[[], str]) -> Any:
    """Ask until the answer is true, and return it. If it never is, the error shows `note`."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        if found := is_so():
            return found
        time.sleep(POLL_SECONDS)
    raise AssertionError(f"{what}: not within {PATIENCE_SECONDS:.0f} s\n{note()}")


def create_topics(
    bootstrap: str, partitions: Mapping[str, int], replicas: int = -1, config: Mapping[str, str] | None = None
) -> None:
    """Create topics with librdkafka."""
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": bootstrap})
    wanted = [
        confluent_kafka.admin.NewTopic(name, count, replicas, config=dict(config or {}))
        for name, count in partitions.items()
    ]
    for done in admin.create_topics(wanted).values():
        done.result()


def produce(bootstrap: str, topic: str, values: Iterable[str]) -> int:
    """Write each value as a record with librdkafka, acks=all and idempotence. Return how many were acknowledged."""
    failures: list[object] = []
    acknowledged = 0

    def delivered(error: object, message: object) -> None:
        nonlocal acknowledged
        if error is None:
            acknowledged += 1
        else:
            failures.append(error)

    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number, value in enumerate(values):
        producer.produce(topic, value, key=f"k{number % 17}", on_delivery=delivered)
        producer.poll(0)
    producer.flush(PATIENCE_SECONDS)
    assert not failures, failures[:3]
    return acknowledged


def read_committed(bootstrap: str, topic: str) -> list[tuple[bytes | None, bytes | None]]:
    """Read keys and values of all committed records, each partition in order. Return an empty list if the topic is
    missing."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    found: list[tuple[bytes | None, bytes | None]] = []
    try:
        known = consumer.list_topics(topic, timeout=30).topics[topic]
        if known.error is not None:
            return []
        left = set(known.partitions)
        consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in left])
        deadline = time.monotonic() + PATIENCE_SECONDS
        while left:
            assert time.monotonic() < deadline, f"{topic} has no end in {left}"
            message = consumer.poll(1.0)
            if message is None:
                continue
            error = message.error()
            if error is None:
                found.append((message.key(), message.value()))
            elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                left.discard(message.partition())
    finally:
        consumer.close()
    return found


def counted(bootstrap: str, topic: str) -> Counter[str]:
    """Count how often each value is among the committed records of a topic."""
    return Counter((value or b"").decode() for _, value in read_committed(bootstrap, topic))


def rest(port: int, path: str, method: str = "GET", body: object = None) -> Any:
    """Send a REST request to a Connect worker. Return None if it fails."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}",
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            text = answer.read()
    except (urllib.error.URLError, TimeoutError, ConnectionError):
        return None
    return json.loads(text) if text else {}
