"""What Apache Kafka 4.3 said in these conversations, and where our answers differ from it on purpose."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from testkit.kafka_server import KAFKA_VERSION
from tests.conformance.comparison import differences
from tests.conformance.sasl.cases import all_cases
from tests.conformance.sasl.servers import Place
from tests.conformance.sasl.talk import conversation
from tests.conformance.seals import asking_code

__all__ = ["PATH", "SEAL", "ask_all", "compare", "load", "seal", "write"]

PATH = Path(__file__).with_name("kafka_4.3.json")
SEAL = Path(__file__).with_name("seal.txt")


def ask_all(place: Place) -> dict[str, list[Any]]:
    """Return the answers of a server, by the names of cases."""
    return {case.name: conversation(case, place) for case in all_cases()}


def write(answers: dict[str, list[Any]]) -> None:
    """Write the recording: a line for each case, sorted as asked."""
    lines = [
        f"{json.dumps(name)}: {json.dumps(answer, ensure_ascii=False)}" for name, answer in answers.items()
    ]
    PATH.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    SEAL.write_text(seal() + "\n")


def seal() -> str:
    """Return the digest of the conversations, of the servers' keys, and of Kafka's answers."""
    digest = hashlib.sha256(KAFKA_VERSION.encode())
    for name in ("cases", "servers", "talk"):
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
