"""A whole node compacts a topic while its companion process, and then the node itself, is killed during a pass."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from testkit.odradek_server import launch_odradek, prepare_odradek
from testkit.processes import ServerProcess

pytestmark = pytest.mark.long

TOPIC = "table"
CONFIG = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": "20000",
    "min.cleanable.dirty.ratio": "0.01",
}
SLOW = "log.cleaner.io.max.bytes.per.second=20000"
FAST = "log.cleaner.io.max.bytes.per.second=1e12"
SETTINGS = {"log.cleaner.backoff.ms": "300"}
WAIT_SECONDS = 60


def wait_logged(server: ServerProcess, pattern: str, count: int = 1) -> None:
    """Wait until the node has logged `count` lines that match the pattern."""
    deadline = time.monotonic() + WAIT_SECONDS
    while len(re.findall(pattern, server.log_path.read_text())) < count:
        assert server.is_running(), server.log_tail()
        assert time.monotonic() < deadline, server.log_tail()
        time.sleep(0.02)


def companions_of(server: ServerProcess) -> list[int]:
    """Return the process ids of the node's companions. Any thread of the node may be their parent."""
    found = []
    for children in Path(f"/proc/{server.pid}/task").glob("*/children"):
        for pid in children.read_text().split():
            if b"odradek.env.companion_main" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(int(pid))
    return found


def produce(bootstrap: str) -> dict[bytes, bytes]:
    """Produce 3,000 updates of 50 keys; return the last value of each key."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    table = {}
    for at in range(3000):
        key, value = b"key-%d" % (at * 7 % 50), b"value %d " % at * 5
        table[key] = value
        producer.produce(TOPIC, value, key)
        if at % 20 == 19:
            producer.flush()
    return table


def consumed(bootstrap: str) -> list[tuple[bytes, bytes]]:
    """Consume all keys and values, from the start."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "enable.partition.eof": True})
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    rows = []
    while True:
        message = consumer.poll(30)
        assert message is not None
        error = message.error()
        if error:
            assert error.code() == KafkaError._PARTITION_EOF, error
            break
        rows.append((message.key(), message.value()))
    consumer.close()
    return rows


def test_kills_in_a_pass_lose_nothing(tmp_path: Path) -> None:
    """A kill of the companion ends a cleaning pass, and so does kill -9 of the node. A later pass succeeds, and no
    record is lost."""
    properties = prepare_odradek(tmp_path, settings=SETTINGS)
    settings = properties.read_text()
    properties.write_text(f"{settings}{SLOW}\n")
    server = launch_odradek(properties)
    try:
        admin = AdminClient({"bootstrap.servers": server.bootstrap})
        admin.create_topics([NewTopic(TOPIC, 1, 1, config=CONFIG)])[TOPIC].result()
        table = produce(server.bootstrap)
        wait_logged(server, "event=log.cleaning_began")
        for number in (1, 2):
            deadline = time.monotonic() + WAIT_SECONDS
            while not (found := companions_of(server)):
                assert time.monotonic() < deadline, server.log_tail()
                time.sleep(0.01)
            (pid,) = found
            os.kill(pid, signal.SIGKILL)
            wait_logged(server, "event=log.cleaning_failed", number)
            assert dict(consumed(server.bootstrap)) == table
        # Kill the node during a slow pass.
        wait_logged(server, "event=log.cleaning_began", 3)
        server.kill()
        properties.write_text(f"{settings}{FAST}\n")
        server = launch_odradek(properties)
        wait_logged(server, r"event=log\.cleaned ")
        rows = consumed(server.bootstrap)
        assert dict(rows) == table
        assert len(rows) < 600
        log_text = server.log_path.read_text()
        assert "log.segment_dropped" not in log_text
        assert "log.uncleanable" not in log_text
        assert server.stop() == 0
    finally:
        server.kill()
