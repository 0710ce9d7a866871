"""A member of a consumer-protocol group by our own client, in a process that can stall, leave and return.

    python -m tests.other_clients.consumer_protocol.odradek_member BOOTSTRAP GROUP TOPIC

It commits after each batch. On SIGTERM it leaves the group. `programs.py` describes the lines that it prints.
"""

from __future__ import annotations

import json
import signal
import sys

from odradek import Consumer, KafkaError
from odradek.client.consumer.consumer_types import RebalanceListener
from odradek.client.errors import ClientError
from odradek.wire.topic_partition import TopicPartition

POLL_SECONDS = 0.1


def write(*event: object) -> None:
    """Print one event without buffering."""
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


class Owned(RebalanceListener):
    """Prints which partitions the member gets and gives up."""

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        write("assigned", sorted(each.partition for each in partitions))

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        write("revoked", sorted(each.partition for each in partitions))

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
        self.on_partitions_revoked(partitions)


def main() -> None:
    """Read and commit until SIGTERM."""
    bootstrap, group, topic = sys.argv[1:]
    asked_to_leave = False

    def leave(*_: object) -> None:
        nonlocal asked_to_leave
        asked_to_leave = True

    signal.signal(signal.SIGTERM, leave)
    with Consumer(
        bootstrap_servers=bootstrap,
        group_id=group,
        group_protocol="consumer",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    ) as consumer:
        consumer.subscribe([topic], listener=Owned())
        while not asked_to_leave:
            records = consumer.poll(POLL_SECONDS)
            for each in records:
                assert each.value is not None
                write("record", each.partition, each.offset, each.value.decode())
            if records:
                try:
                    consumer.commit()
                except (KafkaError, ClientError) as refused:
                    write("refused", str(refused))


if __name__ == "__main__":
    main()
