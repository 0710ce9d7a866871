"""An ordinary client for an hour: it writes one topic with acks=all, reads it in a group, and accounts for each record.

    python -m tests.attacks.ordinary KIND BOOTSTRAP AUTHORITY TOPIC RATE

Three kinds: `confluent` by TLS and SCRAM, `kafka-python` by PLAIN, `odradek` (our own client) by PLAIN. It writes numbered
records until its standard input ends. Then it reads the topic to the end and prints one line of JSON: how many records
were acknowledged, failed, read, missing, and read twice.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import attrs

from odradek.env.real_descriptors import readable
from tests.attacks.place import PLAIN_USERS

READ_TO_THE_END_SECONDS = 120.0
DELIVERY_TIMEOUT_MS = 120_000


@attrs.define
class Account:
    """The numbers that one client has written and read."""

    sent: int = 0
    acknowledged: set[int] = attrs.field(factory=set)
    failed: list[str] = attrs.field(factory=list)
    read: Counter[int] = attrs.field(factory=Counter)
    slowest_seconds: float = 0.0
    """The longest time from a send to its acknowledgement."""

    def settle(self, number: int, since: float, error: object) -> None:
        """Record how a send ended, and how long it took."""
        if error is not None:
            self.failed.append(str(error))
            return
        self.acknowledged.add(number)
        self.slowest_seconds = max(self.slowest_seconds, time.monotonic() - since)

    @property
    def missing(self) -> int:
        return len(self.acknowledged - self.read.keys())

    def report(self) -> dict[str, Any]:
        return {
            "sent": self.sent,
            "acknowledged": len(self.acknowledged),
            "failed": len(self.failed),
            "first_failure": self.failed[0] if self.failed else None,
            "read": len(self.read),
            "missing": self.missing,
            "twice": sum(count > 1 for count in self.read.values()),
            "slowest_seconds": round(self.slowest_seconds, 3),
        }


def paced(rate: float) -> Iterable[None]:
    """Yield `rate` times a second, until standard input ends."""
    due = time.monotonic()
    while True:
        due += 1 / rate
        wait = max(0.0, due - time.monotonic())
        if readable([sys.stdin.fileno()], wait) and not sys.stdin.readline():
            return
        yield None


def run(account: Account, rate: float, send: Callable[[int, float], None], read: Callable[[], None]) -> None:
    """Send records at the given rate, and read them meanwhile. Then read on until nothing is missing or the time is
    up."""
    stop = threading.Event()

    def reading() -> None:
        while not stop.is_set():
            read()

    reader = threading.Thread(target=reading, name="reader")
    reader.start()
    try:
        for _ in paced(rate):
            send(account.sent, time.monotonic())
            account.sent += 1
    finally:
        deadline = time.monotonic() + DELIVERY_TIMEOUT_MS / 1000 + 10
        while len(account.acknowledged) + len(account.failed) < account.sent and time.monotonic() < deadline:
            wait_for_threads(0.05)
        deadline = time.monotonic() + READ_TO_THE_END_SECONDS
        while account.missing and time.monotonic() < deadline:
            wait_for_threads(0.05)
        stop.set()
        reader.join()


def wait_for_threads(seconds: float) -> None:
    """Wait until the client's own threads have settled all sends and read all records."""
    threading.Event().wait(seconds)


def by_confluent(account: Account, bootstrap: str, authority: str, topic: str, rate: float) -> None:
    """Run librdkafka over TLS, logged in by SCRAM."""
    import confluent_kafka

    keys: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": authority,
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "ordinary",
        "sasl.password": "ordinary-secret",
    }
    producer = confluent_kafka.Producer({**keys, "enable.idempotence": True, "linger.ms": 5})
    consumer = confluent_kafka.Consumer({**keys, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])

    def send(number: int, now: float) -> None:
        producer.produce(
            topic, b"%d" % number, on_delivery=lambda error, _: account.settle(number, now, error)
        )

    def read() -> None:
        producer.poll(0)
        for message in consumer.consume(500, 0.1):
            if not message.error():
                account.read[int(message.value())] += 1

    run(account, rate, send, read)
    producer.flush(10)
    consumer.close()


def by_kafka_python(account: Account, bootstrap: str, authority: str, topic: str, rate: float) -> None:
    """Run kafka-python, logged in by PLAIN."""
    import kafka

    keys: dict[str, Any] = {
        "bootstrap_servers": bootstrap,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "carol",
        "sasl_plain_password": PLAIN_USERS["carol"],
    }
    producer = kafka.KafkaProducer(**keys, acks="all", enable_idempotence=True, linger_ms=5)
    consumer = kafka.KafkaConsumer(topic, **keys, group_id=topic, auto_offset_reset="earliest")

    def send(number: int, now: float) -> None:
        future = producer.send(topic, b"%d" % number)
        future.add_callback(lambda _: account.settle(number, now, None))
        future.add_errback(lambda error: account.settle(number, now, error))

    def read() -> None:
        for records in consumer.poll(100).values():
            account.read.update(int(record.value) for record in records)

    run(account, rate, send, read)
    producer.close()
    consumer.close()


def by_odradek(account: Account, bootstrap: str, authority: str, topic: str, rate: float) -> None:
    """Run our own client, logged in by PLAIN."""
    from odradek import Consumer, Producer

    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    keys: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": f'{module} required username="dora" password="{PLAIN_USERS["dora"]}";',
    }
    producer = Producer({**keys, "linger.ms": 5})
    consumer = Consumer({**keys, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])

    def send(number: int, now: float) -> None:
        future = producer.send(topic, value=b"%d" % number)
        future.add_done_callback(lambda done: account.settle(number, now, done.exception()))

    def read() -> None:
        account.read.update(int(record.value) for record in consumer.poll(0.1))

    run(account, rate, send, read)
    producer.close()
    consumer.close()


KINDS = {"confluent": by_confluent, "kafka-python": by_kafka_python, "odradek": by_odradek}


def main() -> int:
    kind, bootstrap, authority, topic, rate = sys.argv[1:]
    account = Account()
    KINDS[kind](account, bootstrap, authority, topic, float(rate))
    print(json.dumps(account.report()), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
