"""Apache Kafka's recorded answers, and the differences of other answers from them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

RECORDING = Path(__file__).with_name("kafka_4.3")


def load(api: str) -> dict[str, list[Any]]:
    """Load Apache Kafka's answers in the cases of one API, by the name of the case."""
    path = RECORDING / f"{api}.json"
    recorded: dict[str, list[Any]] = json.loads(path.read_text()) if path.exists() else {}
    return recorded


def save(api: str, answers: dict[str, list[Any]]) -> None:
    """Write one answer a line, so that a change shows in a diff."""
    cases = [
        f"{json.dumps(name)}: [\n"
        + ",\n".join(json.dumps(answer, sort_keys=True) for answer in given)
        + "\n]"
        for name, given in answers.items()
    ]
    RECORDING.mkdir(exist_ok=True)
    (RECORDING / f"{api}.json").write_text("{\n" + ",\n".join(cases) + "\n}\n")


def differences(expected: Any, given: Any, path: str = "") -> Iterator[str]:
    """Yield one line per field that differs: its path, Kafka's value, the given value."""
    if isinstance(expected, dict) and isinstance(given, dict):
        for key in sorted(expected.keys() | given.keys()):
            yield from differences(expected.get(key), given.get(key), f"{path}.{key}")
    elif isinstance(expected, list) and isinstance(given, list) and len(expected) == len(given):
        for index, (one, other) in enumerate(zip(expected, given, strict=True)):
            yield from differences(one, other, f"{path}[{index}]")
    elif expected != given:
        yield f"{path}: Kafka {json.dumps(expected)}, here {json.dumps(given)}"
