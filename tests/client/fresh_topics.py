"""Topics that a server has just been told to create, and that its brokers may not know of yet."""

from __future__ import annotations

import time

from odradek.client.shells.blocking import Client
from wire.errors import ErrorCode, KafkaError

KNOWN_SECONDS = 20.0
POLL_SECONDS = 0.02


def wait_until_known(client: Client, topic: str) -> None:
    """A broker of Apache Kafka answers CreateTopics before it has applied the metadata: ask until it knows the topic."""
    deadline = time.monotonic() + KNOWN_SECONDS
    while True:
        try:
            client.admin.describe_topics([topic])
            return
        except KafkaError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION or time.monotonic() >= deadline:
                raise
        time.sleep(POLL_SECONDS)
