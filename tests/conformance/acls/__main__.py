"""The cases under ACLs, sent to a server.

python -m tests.conformance.acls record                  record what Apache Kafka answers (Java and its jars)
python -m tests.conformance.acls compare HOST:PORT       show how another server's answers differ
"""

from __future__ import annotations

import json
import os
import sys

from testkit.kafka_server import kafka_server
from tests.conformance.acls.asking import SETTINGS, answers_of
from tests.conformance.acls.recording import PATH, compare, write
from tests.conformance.servers import SETTINGS as BASE
from tests.conformance.servers import Place


def main() -> int:
    """Record the answers of Apache Kafka, or show how those of another server differ."""
    tag = os.urandom(3).hex()
    if sys.argv[1:] == ["record"]:
        place = Place.of({**BASE, **SETTINGS})
        with kafka_server(port=place.port, settings=place.settings) as server:
            answers = answers_of(server.bootstrap, tag)
        write(answers)
        print(f"{len(answers)} cases in {PATH}")
        return 0
    _, bootstrap = sys.argv[1:]
    answers = answers_of(bootstrap, tag)
    lines = compare(answers)
    for line in lines:
        print(line)
    print(f"{len(answers)} cases, {len(lines)} differences", file=sys.stderr)
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main())


__all__ = ["json", "main"]
