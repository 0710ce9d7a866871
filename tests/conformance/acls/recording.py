"""The recorded answers of Apache Kafka 4.3 under ACLs. The file has a line for each case."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from testkit.kafka_server import KAFKA_VERSION
from tests.conformance.comparison import differences
from tests.conformance.seals import asking_code

__all__ = ["DELIBERATE", "PATH", "SEAL", "compare", "load", "seal", "write"]

PATH = Path(__file__).with_name("kafka_4.3.json")
SEAL = Path(__file__).with_name("seal.txt")


DELIBERATE = tuple(f"create_acls of kind {kind} v3: ALTER cluster: " for kind in (0, 4, 5, 10, 12, 16))
"""Cases in which an ACL contains ANY. Kafka fails the whole request with UNKNOWN_SERVER_ERROR. Our node refuses only
that ACL, with INVALID_REQUEST and a reason."""


def write(answers: dict[str, Any]) -> None:
    """Write the recording: a line for each case, in the order of asking."""
    lines = [
        f"{json.dumps(name)}: {json.dumps(answer, ensure_ascii=False)}" for name, answer in answers.items()
    ]
    PATH.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    SEAL.write_text(seal() + "\n")


def seal() -> str:
    """Return the digest of the questions, of the code that asks them, and of Kafka's answers."""
    digest = hashlib.sha256(KAFKA_VERSION.encode())
    for name in ("questions", "asking"):
        digest.update(asking_code(PATH.with_name(f"{name}.py")))
    digest.update(PATH.read_bytes())
    return digest.hexdigest()


def load() -> dict[str, Any]:
    """Load the recorded answers, by the names of cases."""
    recorded: dict[str, Any] = json.loads(PATH.read_text())
    return recorded


def compare(answers: dict[str, Any]) -> list[str]:
    """Return the differences from the recording, a line each, without the cases of `DELIBERATE`."""
    recorded = load()
    lines = [
        f"{name}: {difference}"
        for name, answer in answers.items()
        for difference in differences(recorded[name], answer)
    ]
    return [line for line in lines if not line.startswith(DELIBERATE)]
