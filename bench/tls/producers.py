"""A producer of another library over TLS, for `bench.instruments.supervised`: `python -m bench.tls.producers JSON`.

Clients fill TLS records in different ways, which determines half of a server's cost for receiving a batch.
"""

from __future__ import annotations

import json
import os
import sys

import attrs
import cattrs

from bench.clients.producers import PRODUCERS

__all__ = ["Producing"]


@attrs.frozen
class Producing:
    """The task: one pass of one client library."""

    client: str
    address: str
    authority: str
    topic: str
    seconds: float
    value_bytes: int = 1024


def main() -> None:
    """Produce as the only argument describes, and print the result as JSON."""
    task = cattrs.structure(json.loads(sys.argv[1]), Producing)
    value = os.urandom(task.value_bytes)
    print("ready", flush=True)
    if not sys.stdin.readline():
        raise SystemExit("the parent is gone")
    records, seconds = PRODUCERS[task.client](task.address, task.topic, value, task.seconds, task.authority)
    print(json.dumps({"records": records, "seconds": seconds}), flush=True)


if __name__ == "__main__":
    main()
