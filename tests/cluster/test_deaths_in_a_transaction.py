"""kill -9 of a coordinator or of a partition leader, between any two calls of a transaction.

All clients share the cluster and its deaths: each makes its next call at the same time, and then a node dies.
"""

from __future__ import annotations

import shutil
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import attrs
import pytest

from jepsen_tests.real_cluster import Cluster
from odradek import Client
from testkit.kafka_server import KafkaUnavailable, ensure_jars
from tests.cluster.copiers.api import PARTITIONS, Abortable, Fatal, Transactor
from tests.cluster.copiers.clients import CLASSES, transactor_of
from tests.cluster.exactly_once import (
    PATIENCE_SECONDS,
    SOURCE,
    TARGET,
    TOPICS,
    committed,
    has_no_open_transaction,
    is_in_sync,
    read,
    tails,
    three_nodes,
    until,
)

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(shutil.which("setpriv") is None, reason="no setpriv (util-linux)"),
]
RECORDS = 30
NEW_FOR_EACH = ("confluent",)
"""Clients that get a new producer of the same id for each transaction.

librdkafka 2.16 remembers the coordinator of a group. If Metadata then leaves out this broker, the client waits for it
forever (issues 5511 and 5456 of librdkafka).
"""
LOSES_REQUESTS = ("kafka_python",)
"""Clients that are excluded from the deaths of coordinators.

kafka-python 3.0.12 forgets its request when the coordinator refuses the connection, and waits for an answer forever.
Apache Kafka has the same effect.
"""
COORDINATED = ("__transaction_state", "__consumer_offsets")
GAPS = 5
"""The gaps where a node may die: before begin, and after begin, records, offsets and commit."""


@attrs.define
class Mover:
    """One client, the transactions that it committed, and the faults that the test found."""

    client: str
    bootstrap: str
    transactor: Transactor | None = None
    outcome: str = ""
    whole: list[int] = attrs.field(factory=list)
    faults: list[str] = attrs.field(factory=list)
    copies: dict[int, list[bytes]] = attrs.field(factory=dict)

    @property
    def name(self) -> str:
        """The client's transactional id, which is also its group."""
        return f"mover-{self.client}"

    def start(self) -> None:
        """Start a producer, which fences the previous one."""
        make = transactor_of(self.client)
        self.transactor = make(self.bootstrap, SOURCE, TARGET, self.name)

    def values_of(self, number: int, partition: int) -> list[bytes]:
        """Return the values that a transaction writes to a partition."""
        name = self.client.encode()
        return [b"%s-%d-%d" % (name, number, at) for at in range(partition, RECORDS, PARTITIONS)]

    def write(self, number: int) -> None:
        assert self.transactor is not None
        for partition in range(PARTITIONS):
            for value in self.values_of(number, partition):
                self.transactor.write(partition, value)
        self.transactor.flush()

    def step(self, number: int, at: int) -> None:
        """Make call `at` of transaction number `number`, which moves the group's offset to `number`.

        Do nothing if an earlier call of the transaction has failed.
        """
        assert self.transactor is not None
        mover = self.transactor
        if at == 0:
            self.outcome = "committed"
        elif self.outcome != "committed":
            return
        try:
            (
                mover.begin,
                partial(self.write, number),
                partial(mover.send_offsets, {0: number}),
                mover.commit,
            )[at]()
        except Abortable as error:
            self.outcome = f"aborted: {error}"
            try:
                mover.abort()
            except Fatal as fatal:
                self.outcome = f"fatal after an abort: {fatal}"
        except Fatal as error:
            self.outcome = f"fatal: {error}"

    def settle(self, number: int) -> None:
        """Check that the group's offset agrees with the outcome of the transaction."""
        assert self.transactor is not None
        if self.outcome.startswith("fatal") or self.client in NEW_FOR_EACH:
            self.transactor.close()
            self.start()
        told = committed(self.bootstrap, self.name)
        assert told in (number, self.whole[-1] if self.whole else 0)
        assert told == number or not self.outcome.startswith("committed")
        assert told != number or not self.outcome.startswith("aborted")
        if told == number:
            self.whole.append(number)

    def close(self) -> None:
        assert self.transactor is not None
        self.transactor.close()


def together(movers: Iterable[Mover], what: str, call: Callable[[Mover], None]) -> None:
    """Let all movers without a fault make a call at the same time. A call that hangs or fails is recorded as a fault."""

    def make(mover: Mover) -> None:
        try:
            call(mover)
        except Exception:  # noqa: BLE001 the test must see any error of the thread
            mover.faults.append(f"{what}: {mover.outcome}\n{traceback.format_exc()}")

    deadline = time.monotonic() + PATIENCE_SECONDS
    threads = [
        (mover, threading.Thread(target=make, args=(mover,), daemon=True))
        for mover in movers
        if not mover.faults
    ]
    for _, thread in threads:
        thread.start()
    for mover, thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
        if thread.is_alive():
            mover.faults.append(f"{what}: no end after {PATIENCE_SECONDS} s")


def is_led_as_preferred(admin: Client) -> bool:
    """Elect the preferred leaders; true if the first replica of each partition leads."""
    admin.admin.elect_leaders(None)
    found = admin.admin.describe_topics(TOPICS)
    return all(one.leader == one.replicas[0] for each in found for one in each.partitions.values())


def victim_of(admin: Client, topic: str) -> int:
    """Return the leader of the topic's first partition.

    For the target topic, return one of its leaders that coordinates no group or transaction of this test.
    """
    leaders = {
        found.name: [found.partitions[index].leader for index in sorted(found.partitions)]
        for found in admin.admin.describe_topics([*COORDINATED, TARGET])
    }
    coordinators = {leaders[name][0] for name in COORDINATED} if topic == TARGET else set()
    return next(leader for leader in leaders[topic] if leader not in coordinators)


@pytest.fixture(scope="module")
def movers(tmp_path_factory: pytest.TempPathFactory, whole_matrix: bool) -> dict[str, Mover]:
    """Run all clients through all deaths. Java's client is included if Kafka's jars are available."""
    victims = (TARGET, *COORDINATED) if whole_matrix else (TARGET, COORDINATED[0])
    cases = [(topic, gap) for topic in victims for gap in range(GAPS)]
    settings = {
        "broker_session_timeout_ms": "2000",
        "broker_heartbeat_interval_ms": "200",
        "transaction_state_log_num_partitions": "1",
        "offsets_topic_num_partitions": "1",
    }
    names = list(CLASSES)
    try:
        ensure_jars()
    except KafkaUnavailable:
        names.remove("java")
    with three_nodes(tmp_path_factory.mktemp("deaths"), **settings) as cluster:
        found = [Mover(name, cluster.bootstrap) for name in names]
        kill_between_calls(cluster, found, cases)
    return {mover.client: mover for mover in found}


def kill_between_calls(cluster: Cluster, movers: list[Mover], cases: Sequence[tuple[str, int]]) -> None:
    """Run one transaction of each client for each pair of victim and gap, then read the committed records."""
    bootstrap = cluster.bootstrap
    begun = time.monotonic()
    together(movers, "start", Mover.start)
    for number, (topic, gap) in enumerate(cases, 1):
        if topic == TARGET:
            present = movers
        else:
            present = [mover for mover in movers if mover.client not in LOSES_REQUESTS]
        with Client(bootstrap, timeout_ms=5_000) as admin:
            until("preferred leaders", partial(is_led_as_preferred, admin), partial(tails, cluster))
            victim = victim_of(admin, topic)
            for at in range(GAPS):
                if at == gap:
                    cluster.kill(victim)
                if at < GAPS - 1:
                    call = partial(Mover.step, number=number, at=at)
                    together(present, f"{topic} dies at {gap}, call {at}", call)
            together(present, f"{topic} died at {gap}", partial(Mover.settle, number=number))
            for mover in present:
                about = mover.faults or mover.outcome
                spent = time.monotonic() - begun
                print(f"{spent:.1f} s: {topic} at {gap}, node {victim}, {mover.client}: {about}")
            cluster.start(victim)
            cluster.wait_until_whole()
            until("all in sync", partial(is_in_sync, admin), partial(tails, cluster))
    together(movers, "close", Mover.close)
    until("no open transaction", partial(has_no_open_transaction, bootstrap), partial(tails, cluster))
    copies = read(bootstrap, "read_committed")
    for mover in movers:
        mine = mover.client.encode() + b"-"
        mover.copies = {
            key: [each for each in values if each.startswith(mine)] for key, values in copies.items()
        }


@pytest.mark.parametrize(
    "client", [pytest.param(name, marks=pytest.mark.java if name == "java" else ()) for name in CLASSES]
)
def test_a_transaction_commits_or_aborts_whole(client: str, movers: dict[str, Mover]) -> None:
    """When any leader dies at any point, records and offsets are committed together or aborted, and the producer
    continues (KIP-98)."""
    if client not in movers:
        pytest.skip("Apache Kafka's jars are unavailable")
    mover = movers[client]
    assert not mover.faults, mover.faults[0]
    assert mover.whole, "no transaction was committed"
    for partition, values in mover.copies.items():
        assert values == [value for number in mover.whole for value in mover.values_of(number, partition)]
