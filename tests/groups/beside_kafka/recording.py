"""What Apache Kafka 4.3 answered to the conversations: data, kept beside them with a seal over both."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from testkit.kafka_server import KAFKA_VERSION
from tests.conformance.comparison import differences
from tests.conformance.seals import asking_code
from tests.groups.beside_kafka.deliberate import DELIBERATE

__all__ = ["PATH", "compare", "is_sealed", "load", "write"]

PATH = Path(__file__).with_name("kafka_4.3.json")
SEAL = Path(__file__).with_name("seal.txt")


def write(answers: dict[str, list[Any]]) -> None:
    """Write the recording: a line for each answer."""
    lines = []
    for name, talk in answers.items():
        of_talk = ",\n  ".join(json.dumps(each, ensure_ascii=False, sort_keys=True) for each in talk)
        lines.append(f"{json.dumps(name)}: [\n  {of_talk}\n]")
    PATH.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    SEAL.write_text(_seal() + "\n")


def _seal() -> str:
    digest = hashlib.sha256(KAFKA_VERSION.encode())
    for name in ("asking.py", "cases.py"):
        digest.update(asking_code(PATH.with_name(name)))
    digest.update(PATH.read_bytes())
    return digest.hexdigest()


def is_sealed() -> bool:
    """True if the conversations are those that Kafka was asked."""
    return SEAL.read_text().strip() == _seal()


def load() -> dict[str, list[Any]]:
    """Load the recorded answers, by the names of conversations."""
    recorded: dict[str, list[Any]] = json.loads(PATH.read_text())
    return recorded


def compare(answers: dict[str, list[Any]]) -> list[str]:
    """List the differences from the recording, a line each, but for the deliberate ones."""
    recorded = load()
    lines = [
        f"{name}: {difference}"
        for name, talk in answers.items()
        for difference in differences(recorded[name], json.loads(json.dumps(talk)))
    ]
    return [line for line in lines if not line.startswith(DELIBERATE)]
