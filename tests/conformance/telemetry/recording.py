"""What Apache Kafka 4.3 answered in the conversations about client metrics, with a plugin that takes what clients push."""

from __future__ import annotations

import hashlib
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
    KAFKA_VERSION,
    KafkaUnavailable,
    ensure_jars,
    start_kafka,
)
from testkit.processes import ServerProcess
from tests.conformance.comparison import differences
from tests.conformance.seals import asking_code
from tests.conformance.telemetry.talk import CASES

__all__ = ["PATH", "SEAL", "ask_all", "compare", "load", "plugged_kafka", "pushed_to", "seal", "write"]

PATH = Path(__file__).with_name("kafka_4.3.json")
SEAL = Path(__file__).with_name("seal.txt")
PROBE = Path(__file__).with_name("TelemetryProbe.java")
assert tests.conformance.telemetry.cases


@contextmanager
def plugged_kafka(directory: Path, heap: tuple[str, ...] = HEAP) -> Iterator[ServerProcess]:
    """Run a Kafka that serves client metrics. It writes what clients push into a file; `pushed_to` finds it.

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
    """Return the file of a `plugged_kafka`: a line for each push."""
    return directory / "pushed"


def ask_all(bootstrap: str) -> dict[str, list[Any]]:
    """Return the answers of a server, by the names of cases."""
    return {case.name: case.answers(bootstrap) for case in CASES}


def write(answers: dict[str, list[Any]]) -> None:
    """Write the recording: a line for each case, sorted as asked."""
    lines = [f"{json.dumps(name)}: {json.dumps(answer)}" for name, answer in answers.items()]
    PATH.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    SEAL.write_text(seal() + "\n")


def seal() -> str:
    """Return the digest of the conversations and of Kafka's answers."""
    digest = hashlib.sha256(KAFKA_VERSION.encode())
    for name in ("cases", "talk"):
        digest.update(asking_code(PATH.with_name(f"{name}.py")))
    digest.update(PATH.read_bytes())
    return digest.hexdigest()


def load() -> dict[str, list[Any]]:
    """Load the recorded answers, by the names of cases."""
    recorded: dict[str, list[Any]] = json.loads(PATH.read_text())
    return recorded


def compare(answers: dict[str, list[Any]]) -> list[str]:
    """List the differences from the recording, a line each."""
    recorded = load()
    return [
        f"{name}: {difference}"
        for name, answer in answers.items()
        for difference in differences(recorded[name], answer)
    ]
