"""kill -9 during load: every acknowledged record is there afterwards, once and in order."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from pathlib import Path

import attrs
import confluent_kafka
import confluent_kafka.admin

from testkit.odradek_server import launch_odradek, prepare_odradek
from testkit.processes import ServerProcess

PARTITIONS = 3
ROUNDS = 3
ACKNOWLEDGED_PER_ROUND = 4_000
IN_FLIGHT_MAX = 2_000
WAIT_SECONDS = 30.0


@attrs.define
class Load:
    """An idempotent producer with acks=all that runs until it is stopped, and the acknowledgements that it got."""

    bootstrap: str
    topic: str
    acknowledged: dict[int, tuple[int, int]] = attrs.field(factory=dict)
    """(partition, offset) by serial number, from the delivery reports."""
    failures: list[str] = attrs.field(factory=list)
    _sent: int = 0
    _stopping: threading.Event = attrs.field(factory=threading.Event)
    _progress: threading.Condition = attrs.field(factory=threading.Condition)

    def run(self) -> None:
        """Produce until `stop`, then wait for the records in flight. This is the body of a thread."""
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "enable.idempotence": True,
                "acks": -1,
                "linger.ms": 1,
                "batch.size": 16384,
                "reconnect.backoff.max.ms": 100,
                "message.timeout.ms": int(WAIT_SECONDS * 1000),
                "log_level": 0,
            }
        )
        for serial in itertools.count():
            if self._stopping.is_set():
                break
            value = b"%d:" % serial + b"x" * 200
            producer.produce(
                self.topic, value, partition=serial % PARTITIONS, on_delivery=self._report(serial)
            )
            self._sent += 1
            producer.poll(0)
            while self._sent - len(self.acknowledged) - len(self.failures) >= IN_FLIGHT_MAX:
                producer.poll(0.01)
        producer.flush(WAIT_SECONDS)

    def _report(self, serial: int) -> Callable[[object, confluent_kafka.Message], None]:
        def delivered(error: object, message: confluent_kafka.Message) -> None:
            with self._progress:
                if error is not None:
                    self.failures.append(f"{serial}: {error}")
                else:
                    partition, offset = message.partition(), message.offset()
                    assert partition is not None
                    assert offset is not None
                    self.acknowledged[serial] = (partition, offset)
                self._progress.notify_all()

        return delivered

    def wait_for(self, count: int) -> None:
        """Wait until `count` records have been acknowledged."""
        with self._progress:
            done = self._progress.wait_for(lambda: len(self.acknowledged) >= count, WAIT_SECONDS)
        assert done, (
            f"only {len(self.acknowledged)} of {count} records acknowledged; failures: {self.failures[:3]}"
        )

    def stop(self) -> None:
        self._stopping.set()


def read_all(bootstrap: str, topic: str) -> dict[tuple[int, int], int]:
    """Read all partitions up to their high watermarks; return the serial number by (partition, offset)."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False}
    )
    try:
        places = [confluent_kafka.TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)]
        total = sum(consumer.get_watermark_offsets(place, timeout=WAIT_SECONDS)[1] for place in places)
        consumer.assign(places)
        found: dict[tuple[int, int], int] = {}
        while len(found) < total:
            messages = consumer.consume(10_000, timeout=1.0)
            assert messages, f"got only {len(found)} of {total} records"
            for message in messages:
                assert message.error() is None, message.error()
                partition, offset, value = message.partition(), message.offset(), message.value()
                assert partition is not None
                assert offset is not None
                assert isinstance(value, bytes)
                found[partition, offset] = int(value.partition(b":")[0])
        return found
    finally:
        consumer.close()


def test_kill9_loses_no_acknowledged_record(tmp_path: Path) -> None:
    """After several kill -9 under load, each acknowledged record is there once, in order and at its offset."""
    properties = prepare_odradek(tmp_path, settings={"log.segment.bytes": str(1 << 20)})
    server: ServerProcess = launch_odradek(properties)
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 0})
    admin.create_topics([confluent_kafka.admin.NewTopic("killed", PARTITIONS, 1)])["killed"].result(
        WAIT_SECONDS
    )
    load = Load(server.bootstrap, "killed")
    producing = threading.Thread(target=load.run)
    producing.start()
    try:
        for _ in range(ROUNDS):
            load.wait_for(len(load.acknowledged) + ACKNOWLEDGED_PER_ROUND)
            server.kill()
            server = launch_odradek(properties)
        load.wait_for(len(load.acknowledged) + ACKNOWLEDGED_PER_ROUND)
        load.stop()
        producing.join()
        assert load.failures == []
        found = read_all(server.bootstrap, "killed")
    finally:
        load.stop()
        server.kill()
        producing.join()
    missing = {serial: at for serial, at in load.acknowledged.items() if found.get(at) != serial}
    assert missing == {}
    for partition in range(PARTITIONS):
        serials = [found[at] for at in sorted(found) if at[0] == partition]
        assert serials == list(range(partition, len(found), PARTITIONS)), (
            "records are lost, duplicated or out of order"
        )
