"""Unmodified transactional producers: commit, abort, a producer that was replaced, and a transaction that timed out.

Each test was run against Apache Kafka 4.3 (`ODRADEK_TEST_BOOTSTRAP`) and passes there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial

import attrs
import pytest

from odradek import Client, Consumer
from odradek.client.admin import NewTopic
from testkit.kafka_server import KafkaUnavailable, ensure_jars
from tests.cluster.copiers.api import PARTITIONS, TRANSACTION_TIMEOUT_MS, Abortable, Fatal, Transactor
from tests.cluster.copiers.clients import CLASSES, transactor_of
from tests.kafka_tools import run_tool_here
from tests.node_process import RunningNode

SECONDS_MAX = 60.0


@attrs.define
class Transactors:
    """Producers of one client library, with a source and a target topic."""

    client: str
    bootstrap: str
    source: str
    target: str
    started: list[Transactor] = attrs.field(factory=list)

    def start(self, timeout_ms: int = TRANSACTION_TIMEOUT_MS) -> Transactor:
        """Start a producer, which replaces the one before."""
        make = transactor_of(self.client)
        self.started.append(make(self.bootstrap, self.source, self.target, self.target, timeout_ms))
        return self.started[-1]

    def values(self) -> list[bytes]:
        """Return the committed values in partition 0, once the last transaction has ended. Check that the other
        partitions are empty."""
        found: list[bytes] = []
        keys = [(self.target, partition) for partition in range(PARTITIONS)]
        with Consumer(bootstrap_servers=self.bootstrap, isolation_level="read_uncommitted") as consumer:
            ends = consumer.end_offsets(keys)
        with Consumer(bootstrap_servers=self.bootstrap, isolation_level="read_committed") as consumer:
            consumer.assign(keys)
            consumer.seek_to_beginning(*keys)
            while any(consumer.position(key) < end for key, end in ends.items()):
                for record in consumer.poll(1.0):
                    assert record.partition == 0
                    found.append(record.value)
        return found


@pytest.fixture(
    params=[pytest.param(name, marks=pytest.mark.java if name == "java" else ()) for name in CLASSES]
)
def transactors(
    request: pytest.FixtureRequest, node: RunningNode, fresh_topic: Callable[[str], str]
) -> Iterator[Transactors]:
    """Return the producers of each client in turn."""
    if request.param == "java":
        try:
            ensure_jars()
        except KafkaUnavailable as reason:
            pytest.skip(f"Apache Kafka is unavailable: {reason}")
    found = Transactors(request.param, node.bootstrap, fresh_topic("txn-source"), fresh_topic("txn-target"))
    with Client(node.bootstrap) as client:
        topics = [NewTopic(name, PARTITIONS, 1) for name in (found.source, found.target)]
        assert not any(created.error for created in client.admin.create_topics(topics))
    yield found
    for each in found.started:
        with suppress(Fatal, Abortable):
            each.close()


def transact(producer: Transactor, value: bytes, offset: int, *, is_commit: bool = True) -> None:
    """Run a transaction of one record and one offset."""
    producer.begin()
    producer.write(0, value)
    producer.send_offsets({0: offset})
    if is_commit:
        producer.commit()
    else:
        producer.abort()


def error_of(*calls: Callable[[], None]) -> Abortable | Fatal | None:
    """Return the error of the first call that fails."""
    try:
        for call in calls:
            call()
    except (Abortable, Fatal) as error:
        return error
    return None


def test_commits_and_aborts(transactors: Transactors) -> None:
    """KIP-98: if a transaction commits, its records and its offset count. If it aborts, neither counts."""
    producer = transactors.start()
    for value, offset, is_commit, told in (
        (b"one", 5, True, 5),
        (b"two", 7, False, 5),
        (b"three", 9, True, 9),
    ):
        transact(producer, value, offset, is_commit=is_commit)
        assert offset_of(transactors) == told
    assert transactors.values() == [b"one", b"three"]


def offset_of(transactors: Transactors) -> int:
    """Return the group's committed offset. The request waits until no open transaction can change it (KIP-447)."""
    with Consumer(
        bootstrap_servers=transactors.bootstrap, group_id=transactors.target, isolation_level="read_committed"
    ) as consumer:
        found = consumer.committed([(transactors.source, 0)])[transactors.source, 0]
        return 0 if found is None else found.offset


def test_a_replaced_producer_is_fenced(transactors: Transactors) -> None:
    """KIP-98: a new producer aborts the open transaction. The old one can no longer write, commit or abort."""
    first = transactors.start()
    transact(first, b"one", 1)
    first.begin()
    first.write(0, b"late")
    first.flush()
    second = transactors.start()
    error = error_of(partial(first.send_offsets, {0: 2}), first.commit)
    assert error is not None
    if isinstance(error, Abortable):
        assert isinstance(error_of(first.abort), Fatal)
    transact(second, b"two", 3)
    assert offset_of(transactors) == 3
    assert transactors.values() == [b"one", b"two"]


def test_time_runs_out(transactors: Transactors) -> None:
    """After `transaction.timeout.ms` the coordinator aborts a transaction. It cannot be committed, and a new producer
    goes on."""
    transact(transactors.start(), b"one", 1)
    producer = transactors.start(timeout_ms=1_000)
    producer.begin()
    # On a loaded machine the time may run out before the record is sent.
    error = error_of(partial(producer.write, 0, b"late"), producer.flush)
    assert transactors.values() == [b"one"]
    assert error is not None or error_of(producer.commit) is not None
    transact(transactors.start(), b"two", 2)
    assert offset_of(transactors) == 2
    assert transactors.values() == [b"one", b"two"]


@pytest.mark.java
def test_the_java_client(node: RunningNode, fresh_topic: Callable[[str], str]) -> None:
    """Kafka 4.3's producer commits with transaction version 2, and its tool lists the transactional id."""
    topic = fresh_topic("txn-java")
    words = "--num-records 500 --record-size 10 --throughput -1 --transaction-duration-ms 100"
    done = run_tool_here(
        "org.apache.kafka.tools.ProducerPerformance",
        *(*words.split(), "--topic", topic, "--transactional-id", topic),
        *("--bootstrap-server", node.bootstrap),
    )
    assert "500 records sent" in done
    tool = ("org.apache.kafka.tools.TransactionsCommand", "--bootstrap-server", node.bootstrap)
    listed = [line.split() for line in run_tool_here(*tool, "list").splitlines()]
    (mine,) = [line for line in listed if line and line[0] == topic]
    assert "CompleteCommit" in mine
