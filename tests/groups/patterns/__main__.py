"""The patterns, tried on a server without topics. Without an address, `record` starts an Apache Kafka (Java and its
jars).

* python -m tests.groups.patterns record
* python -m tests.groups.patterns compare HOST:PORT
"""

from __future__ import annotations

import sys

from testkit.kafka_server import kafka_server
from testkit.processes import free_ports
from tests.groups.patterns.asking import answers_of
from tests.groups.patterns.recording import RECORDING

SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.max.session.timeout.ms": "600000",
    "group.consumer.session.timeout.ms": "600000",
}
"""Settings with which members need not send heartbeats while other patterns are tried."""


def main() -> int:
    """Record the answers of Apache Kafka, or show how those of another server differ."""
    match sys.argv[1:]:
        case ["record"]:
            (port,) = free_ports(1)
            with kafka_server(port=port, settings=SETTINGS) as server:
                RECORDING.write(answers_of(server.bootstrap))
        case ["compare", bootstrap]:
            lines = RECORDING.compare(answers_of(bootstrap))
            print("\n".join(lines))
            return bool(lines)
        case _:
            print(__doc__)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
