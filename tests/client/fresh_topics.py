"""Topics whose creation a server has just acknowledged, and that its brokers may not know of yet."""

from __future__ import annotations

import time

from odradek.client.shells.blocking import Client
from odradek.wire.errors import ErrorCode, KafkaError

KNOWN_SECONDS = 20.0
POLL_SECONDS = 0.02
_LOG_START = -2
"""ListOffsets' word for a log's first offset."""


def wait_until_known(client: Client, topic: str) -> None:
    """Wait until the brokers know the topic, and its leaders serve it.

    Apache Kafka answers CreateTopics before its brokers have applied the metadata. A broker lists a topic before it
    leads its partitions: ListOffsets is asked anew until it does.
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
