"""Three real nodes with something to see on each page: traffic, groups with lag, transactions, moves, rules, history."""

from __future__ import annotations

import json
import random
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import attrs
from confluent_kafka import Consumer, Producer

from testkit.processes import base_port
from tests.cli.nodes.test_dev import line, running
from tests.cli.running import odradek_here

__all__ = ["StagedCluster", "nodes", "stage"]

SETTINGS = """\
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
"""
TOWNS = ("Praha", "København", "São Paulo", "Kraków", "Zürich", "Łódź", "Αθήνα", "Reykjavík")


@attrs.frozen
class StagedCluster:
    """Nodes that run: their address for clients, and their process ids by number."""

    bootstrap: str
    pids: dict[int, int]

    def run(self, *words: str, stdin: bytes = b"") -> str:
        """Run a command of `odradek` on the cluster, and return what it prints."""
        done = odradek_here(*words, bootstrap=self.bootstrap, stdin=stdin)
        assert done.code == 0, done.err
        return done.out


@contextmanager
def nodes(directory: Path, count: int = 3) -> Iterator[StagedCluster]:
    """Run some nodes with rules, and with short sessions, so that a dead one is noticed soon."""
    port = base_port(count)
    for node in range(1, count + 1):
        (directory / f"node-{node}.properties").write_text(SETTINGS)
    words = ("dev", "--nodes", str(count), "--port", str(port), "--data", directory)
    with running(*words, stop=signal.SIGINT) as dev:
        pids = {}
        while (told := line(dev.stdout)) != "ready":
            pairs = dict(word.split("=", 1) for word in told.split() if "=" in word)
            if "pid" in pairs:
                pids[int(pairs["node"])] = int(pairs["pid"])
        yield StagedCluster(",".join(f"127.0.0.1:{port + each}" for each in range(count)), pids)


@contextmanager
def stage(cluster: StagedCluster) -> Iterator[None]:
    """Make topics, rules, users and quotas, and keep producers and groups at work until the end."""
    _configure(cluster)
    ended = threading.Event()
    with ExitStack() as stack:
        for work in (_sell, _move_money, _bill, _audit_slowly):
            thread = threading.Thread(target=work, args=(cluster.bootstrap, ended))
            thread.start()
            stack.callback(thread.join)
        stack.callback(ended.set)
        stack.enter_context(_left_open(cluster.bootstrap))
        yield


TOPICS = {
    "orders": ("12", "3", "retention.ms=86400000"),
    "payments": ("6", "3", "min.insync.replicas=2"),
    "sensors.raw": ("48", "2", "retention.ms=604800000"),
    "customers": ("3", "3", "cleanup.policy=compact"),
    "archive": ("2", "1", "retention.ms=-1"),
}
"""The partitions, replicas and configuration of each topic."""


def _configure(cluster: StagedCluster) -> None:
    run = cluster.run
    for name, (partitions, replicas, config) in TOPICS.items():
        words = ("--partitions", partitions, "--replication-factor", replicas, "--config", config)
        run("topic", "create", name, *words)
    run("config", "set", "topic", "orders", "segment.bytes=134217728", "max.message.bytes=2097152")
    run("config", "set", "client-metrics", "all", "interval.ms=5000", "metrics=*")
    run("quota", "set", "--client-id", "warehouse", "--produce-rate", "40M", "--fetch-rate", "40M")
    run("quota", "set", "--user", "alice", "--request-percentage", "50")
    for user in ("alice", "billing"):
        run("user", "add", user, "--password-file", "-", stdin=b"correct horse battery staple\n")
    run(
        "acl",
        "add",
        "--user",
        "alice",
        "--operation",
        "read",
        "--operation",
        "write",
        "--topic",
        "pay",
        "--prefixed",
    )
    run("acl", "add", "--user", "billing", "--operation", "read", "--topic", "orders", "--group", "billing")
    run("acl", "add", "--user", "mallory", "--operation", "all", "--topic", "*", "--deny")


def _forever(ended: threading.Event, seconds: float) -> Iterator[int]:
    number = 0
    while not ended.wait(seconds):
        yield number
        number += 1


def _order(number: int, draw: random.Random) -> bytes:
    lines = [
        {
            "article": f"A-{draw.randrange(10_000):04}",
            "count": draw.randrange(1, 9),
            "price": f"{draw.uniform(2, 90):.2f}",
        }
        for _ in range(draw.randrange(1, 4))
    ]
    order = {
        "id": 9_007_199_254_740_993 + number,
        "town": draw.choice(TOWNS),
        "express": draw.random() < 0.2,
        "lines": lines,
    }
    return json.dumps(order, ensure_ascii=False).encode()


def _sell(bootstrap: str, ended: threading.Event) -> None:
    draw = random.Random(7)
    producer = Producer({"bootstrap.servers": bootstrap, "client.id": "warehouse", "linger.ms": 20})
    # Enough bytes that a move of them takes a while.
    for _ in range(16_000):
        producer.produce("archive", draw.randbytes(1_024))
        producer.poll(0)
    for number in _forever(ended, 0.05):
        for _ in range(20):
            key = f"customer-{draw.randrange(500)}"
            producer.produce(
                "orders",
                _order(number, draw),
                key,
                headers={"trace": draw.randbytes(4).hex(), "from": "shop"},
            )
            producer.produce("sensors.raw", draw.randbytes(24), f"sensor-{draw.randrange(99)}")
        if number % 50 == 0:
            producer.produce(
                "customers", None if number % 100 else b'{"name":"Odradek"}', f"customer-{number}"
            )
        producer.poll(0)
    producer.flush(10)


def _move_money(bootstrap: str, ended: threading.Event) -> None:
    keys = {"bootstrap.servers": bootstrap, "client.id": "bank", "transactional.id": "bank-1"}
    producer = Producer(keys)
    producer.init_transactions(30)
    for number in _forever(ended, 0.3):
        producer.begin_transaction()
        for _ in range(3):
            producer.produce(
                "payments",
                json.dumps({"order": number, "cents": number * 37 % 9_900}).encode(),
                f"account-{number % 40}",
            )
        if number % 5 == 4:
            # An abort drops records that are not sent yet, and the topic would have none of the transaction.
            producer.flush(30)
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)


@contextmanager
def _left_open(bootstrap: str) -> Iterator[None]:
    """Keep a transaction open, which holds readers of committed records up."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "client.id": "forgetful",
            "transactional.id": "forgetful-1",
            "transaction.timeout.ms": 900_000,
        }
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("payments", b'{"order":0,"cents":1}', "account-1", partition=1)
    producer.flush(30)
    yield
    producer.abort_transaction(30)


def _consumer(bootstrap: str, group: str, client: str, **keys: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "client.id": client,
            "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": 500,
            **{name.replace("_", "."): value for name, value in keys.items()},
        }
    )


def _read(consumer: Consumer, topics: list[str], ended: threading.Event, pause: Callable[[], float]) -> None:
    consumer.subscribe(topics)
    while not ended.wait(pause()):
        consumer.poll(0.1)
    consumer.close()


def _bill(bootstrap: str, ended: threading.Event) -> None:
    consumer = _consumer(bootstrap, "billing", "billing-1", group_protocol="consumer")
    other = threading.Thread(
        target=_read,
        args=(
            _consumer(bootstrap, "billing", "billing-2", group_protocol="consumer"),
            ["orders"],
            ended,
            lambda: 0,
        ),
    )
    other.start()
    _read(consumer, ["orders"], ended, lambda: 0)
    other.join()


def _audit_slowly(bootstrap: str, ended: threading.Event) -> None:
    consumer = _consumer(bootstrap, "audit", "audit-1")
    _read(consumer, ["orders", "payments"], ended, lambda: 0.01)
