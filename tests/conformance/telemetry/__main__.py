"""The conversations about client metrics, run against a server.

python -m tests.conformance.telemetry record                record Apache Kafka's answers (needs a JDK)

python -m tests.conformance.telemetry compare HOST:PORT     show how another server's answers differ
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.conformance.telemetry.recording import RECORDING, ask_all, plugged_kafka


def main() -> int:
    """Record the answers of Apache Kafka, or show how those of another server differ."""
    if sys.argv[1:] == ["record"]:
        with tempfile.TemporaryDirectory() as name, plugged_kafka(Path(name)) as server:
            answers = ask_all(server.bootstrap)
        RECORDING.write(answers)
        print(f"{len(answers)} conversations in {RECORDING.path}")
        return 0
    _, bootstrap = sys.argv[1:]
    answers = ask_all(bootstrap)
    lines = RECORDING.compare(answers)
    for line in lines:
        print(line)
    print(f"{len(answers)} conversations, {len(lines)} differences", file=sys.stderr)
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main())
