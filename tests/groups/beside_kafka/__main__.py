"""The conversations about consumer groups, run against a server. Without an address, `record` starts an Apache Kafka
(Java and its jars).

* python -m tests.groups.beside_kafka record [HOST:PORT]
* python -m tests.groups.beside_kafka compare HOST:PORT
"""

from __future__ import annotations

import sys

from testkit.kafka_server import kafka_server
from testkit.processes import free_ports
from tests.groups.beside_kafka import cases, refusals, transactions
from tests.groups.beside_kafka.asking import answers_of, run_tag
from tests.groups.beside_kafka.recording import RECORDING, SETTINGS, unexplained


def main() -> int:
    """Record the answers of Apache Kafka, or show how those of another server differ."""
    assert cases.case is refusals.case is transactions.case, "importing the cases enters them"
    match sys.argv[1:]:
        case ["record"]:
            (port,) = free_ports(1)
            settings = {**SETTINGS, "group.initial.rebalance.delay.ms": "0"}
            with kafka_server(port=port, settings=settings) as server:
                RECORDING.write(answers_of(server.bootstrap, run_tag()))
        case ["record", bootstrap]:
            RECORDING.write(answers_of(bootstrap, run_tag()))
        case ["compare", bootstrap]:
            lines = unexplained(answers_of(bootstrap, run_tag()))
            print("\n".join(lines))
            return bool(lines)
        case _:
            print(__doc__)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
