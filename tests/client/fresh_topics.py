"""Topics that a server has just created, and that its brokers may not know yet."""

from __future__ import annotations

import time

from odradek.client.shells.blocking import Client
from odradek.wire.errors import ErrorCode, KafkaError

KNOWN_SECONDS = 20.0
POLL_SECONDS = 0.02
_LOG_START = -2
"""The timestamp by which ListOffsets asks for a log's first offset."""


def wait_until_known(client: Client, topic: str) -> None:
    """Wait until the brokers know the topic, and its leaders serve it.

    Apache Kafka answers CreateTopics before its brokers have applied the metadata. Even a broker that lists the topic
    may not lead its partitions yet. So ListOffsets is repeated until it succeeds.
    """
    deadline = time.monotonic() + KNOWN_SECONDS
    while True:
        try:
            (described,) = client.admin.describe_topics([topic])
            break
        except KafkaError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION or time.monotonic() >= deadline:
                raise
        time.sleep(POLL_SECONDS)
    client.list_offsets({(topic, partition): _LOG_START for partition in described.partitions})
