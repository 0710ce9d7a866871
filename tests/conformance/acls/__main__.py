"""`python -m tests.conformance.acls record|compare HOST:PORT`: the cases under ACLs, asked of a server."""

from __future__ import annotations

import json
import os
import sys

from tests.conformance.acls.asking import answers_of
from tests.conformance.acls.recording import PATH, compare, write


def main() -> int:
    """Record the answers of Apache Kafka, or show how another server's differ."""
    command, bootstrap = sys.argv[1:]
    answers = answers_of(bootstrap, os.urandom(3).hex())
    if command == "record":
        write(answers)
        print(f"{len(answers)} cases in {PATH}")
        return 0
    lines = compare(answers)
    for line in lines:
        print(line)
    print(f"{len(answers)} cases, {len(lines)} differences", file=sys.stderr)
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main())


__all__ = ["json", "main"]
