"""A librdkafka member of a consumer-protocol group, in a process that can stall, leave and return.

    python -m tests.other_clients.consumer_protocol.librdkafka_member BOOTSTRAP GROUP TOPIC

It commits after each batch. On SIGTERM it leaves the group. `programs.py` describes the lines that it prints.
"""

from __future__ import annotations

import json
import signal
import sys
from typing import Any

import confluent_kafka

POLL_SECONDS = 0.1
RECORDS = 100


def write(*event: object) -> None:
    """Print one event without buffering."""
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Read and commit until SIGTERM."""
    bootstrap, group, topic = sys.argv[1:]
    asked_to_leave = False

    def leave(*_: object) -> None:
        nonlocal asked_to_leave
        asked_to_leave = True

    signal.signal(signal.SIGTERM, leave)
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )

    def has(kind: str) -> Any:
        return lambda _, partitions: write(kind, sorted(each.partition for each in partitions))

    consumer.subscribe([topic], on_assign=has("assigned"), on_revoke=has("revoked"), on_lost=has("revoked"))
    while not asked_to_leave:
        messages = consumer.consume(RECORDS, POLL_SECONDS)
        good = [each for each in messages if each.error() is None]
        for each in good:
            value = each.value()
            assert isinstance(value, bytes)
            write("record", each.partition(), each.offset(), value.decode())
        if good:
            try:
                consumer.commit(asynchronous=False)
            except confluent_kafka.KafkaException as refused:
                write("refused", str(refused))
    consumer.close()


if __name__ == "__main__":
    main()
