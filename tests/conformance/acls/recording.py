"""What Apache Kafka 4.3 answered under ACLs. The recording is data: cases with the same answer share it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.conformance.comparison import differences

__all__ = ["PATH", "compare", "load", "write"]

PATH = Path(__file__).with_name("kafka_4.3.json")


def write(answers: dict[str, Any]) -> None:
    """Write the recording: a line for each case, sorted as asked."""
    lines = [
        f"{json.dumps(name)}: {json.dumps(answer, ensure_ascii=False)}" for name, answer in answers.items()
    ]
    PATH.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def load() -> dict[str, Any]:
    """The recorded answers, by the names of cases."""
    recorded: dict[str, Any] = json.loads(PATH.read_text())
    return recorded


def compare(answers: dict[str, Any]) -> list[str]:
    """Each difference from the recording, a line each."""
    recorded = load()
    return [
        f"{name}: {difference}"
        for name, answer in answers.items()
        for difference in differences(recorded[name], answer)
    ]
