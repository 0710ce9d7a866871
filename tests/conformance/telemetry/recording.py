"""The recording of Apache Kafka 4.3's answers about client metrics, with a plugin that stores what clients push."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tests.conformance.telemetry.cases
from testkit.kafka_server import (
    HEAP,
    KafkaUnavailable,
    ensure_jars,
    start_kafka,
)
from testkit.processes import ServerProcess
from tests.conformance.recordings import Recording
from tests.conformance.telemetry.talk import CASES

__all__ = ["RECORDING", "ask_all", "plugged_kafka", "pushed_to"]

RECORDING = Recording(Path(__file__).parent, ("cases", "talk"), json.dumps)
PROBE = Path(__file__).with_name("TelemetryProbe.java")
assert tests.conformance.telemetry.cases


@contextmanager
def plugged_kafka(directory: Path, heap: tuple[str, ...] = HEAP) -> Iterator[ServerProcess]:
    """Run a Kafka that serves client metrics. It writes all pushes into the file that `pushed_to` returns.

    Raises `KafkaUnavailable` where the Java compiler or Kafka is missing.
    """
    compiler = shutil.which("javac")
    if compiler is None:
        raise KafkaUnavailable("no javac on the path to compile the plugin that KIP-714 needs")
    classes = directory / "classes"
    arguments = ["-nowarn", "-Xlint:none", "-d", classes, "-cp", f"{ensure_jars()}/*", PROBE]
    subprocess.run([compiler, *arguments], check=True, capture_output=True)
    keys = {"metric.reporters": "TelemetryProbe", "telemetry.probe.file": str(pushed_to(directory))}
    server = start_kafka(directory / "node", settings=keys, heap=heap, classes=classes)
    try:
        yield server
    finally:
        server.stop()


def pushed_to(directory: Path) -> Path:
    """Return the file of pushes of a `plugged_kafka`. It has a line for each push."""
    return directory / "pushed"


def ask_all(bootstrap: str) -> dict[str, list[Any]]:
    """Return the answers of a server, by the names of cases."""
    return {case.name: case.answers(bootstrap) for case in CASES}
