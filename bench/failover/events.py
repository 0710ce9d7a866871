"""Events that hit a leader on real nodes, and the measurements around them."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack

import attrs
from confluent_kafka import ElectionType, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.failover.clients import Clients
from bench.failover.silence import Writer, longest_gap
from jepsen_tests.real_cluster import Cluster
from odradek import Admin

__all__ = ["ROWS", "Bench", "Gaps", "Row"]

SILENCE_SECONDS_MAX = 90.0
SETTLED_SECONDS = 3.0
"""How long the cluster rests before each event. Controllers connect to new brokers, and brokers fetch."""
BACK_SECONDS = 0.2
"""A supervisor such as systemd starts a dead process again after this time (`RestartSec`)."""
AFTER_SECONDS = 0.5
ADMIN_SECONDS = 60.0
FLOWING = 50
"""Clients have recovered when each has got so many records after the event."""
Done = Callable[[], bool]


@attrs.frozen
class Row:
    """One event. `event` lets it hit a leader, and returns a function that is true when it is over. `goal` is the
    longest silence in seconds that we want.
    """

    name: str
    title: str
    goal: float
    event: Callable[[Bench, int], Done]
    leads: str = "other"
    """Which node leads: that of the active controller (`controller`), or another one (`other`)."""
    answers: bool = False
    """True if the leader still answers, or soon answers again. Otherwise only the others are asked."""
    needs_links: bool = False


@attrs.frozen
class Gaps:
    """The longest standstills in one run, in seconds: of the servers alone, and of librdkafka's two clients. The latter
    are None if they were not measured.
    """

    servers: float
    produce: float | None = None
    consume: float | None = None


@attrs.frozen
class Replicas:
    """A partition: the id of its leader, the ids of its replicas in order, and how many of them are in sync."""

    leader: int
    replicas: list[int]
    in_sync: int


class Bench:
    """Lets events hit the leaders of one cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._serial = 0
        self.topic = ""

    def measure(self, row: Row, *, with_clients: bool) -> Gaps:
        """Run one row once. Raises `Doubled` if a client's record is lost or doubled."""
        writer, leader = self._fresh(row.leads)
        with writer, ExitStack() as stack:
            clients = (
                stack.enter_context(Clients(self.cluster.bootstrap, self.topic)) if with_clients else None
            )
            if clients is not None:
                writer.write_until(lambda: clients.flow(FLOWING, 0.0), SILENCE_SECONDS_MAX)
            if not row.answers:
                writer.leave_out(leader)
            began = time.monotonic()
            is_over = row.event(self, leader)
            writer.write_until(lambda: is_over() and writer.acknowledged_at[-1] > began, SILENCE_SECONDS_MAX)
            until = time.monotonic() + AFTER_SECONDS
            writer.write_until(lambda: time.monotonic() > until, SILENCE_SECONDS_MAX)
            if clients is None:
                gaps = Gaps(longest_gap(writer.acknowledged_at, began))
            else:
                writer.write_until(lambda: clients.flow(FLOWING, until), SILENCE_SECONDS_MAX)
                times = (writer.acknowledged_at, clients.delivered_at, clients.consumed_at)
                gaps = Gaps(*(longest_gap(each, began) for each in times))
        self._heal()
        if clients is not None:
            clients.check()
        return gaps

    def _fresh(self, leads: str) -> tuple[Writer, int]:
        """Make a topic with a leader as a row wants it. Return a writer to it and the leader, when all is at rest."""
        self.cluster.wait_until_whole()
        active = None
        while active is None:
            active = self.cluster.active_controller()
        while True:
            self._serial += 1
            self.topic = f"silence-{self._serial}"
            admin = self.admin()
            made = admin.create_topics([NewTopic(self.topic, 1, 3)], operation_timeout=ADMIN_SECONDS)
            made[self.topic].result(ADMIN_SECONDS)
            leader = self.partition().leader
            if (leader == active) == (leads == "controller"):
                break
        nodes = self.cluster.nodes.items()
        writer = Writer(self.topic, {number: f"{node.host}:{node.port}" for number, node in nodes})
        until = time.monotonic() + SETTLED_SECONDS
        writer.write_until(
            lambda: time.monotonic() > until and self.partition().in_sync == 3, SILENCE_SECONDS_MAX
        )
        return writer, leader

    def _heal(self) -> None:
        """Let everything run again."""
        network = self.cluster.network
        for number, node in self.cluster.nodes.items():
            self.cluster.resume(number)
            if not node.is_running:
                self.cluster.start(number)
            if network.can_partition:
                for other in self.cluster.nodes:
                    network.unblock(number, other)

    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.cluster.bootstrap, "log_level": 0})

    def partition(self) -> Replicas:
        """Return the topic's partition as clients see it, when it has a leader."""
        while True:
            partitions = (
                self.admin().list_topics(self.topic, timeout=ADMIN_SECONDS).topics[self.topic].partitions
            )
            if partitions and partitions[0].leader >= 0:
                found = partitions[0]
                return Replicas(found.leader, list(found.replicas), len(found.isrs))
            time.sleep(0.05)


def _at_once() -> bool:
    return True


def _kill(bench: Bench, leader: int) -> Done:
    bench.cluster.kill(leader)
    return _at_once


def _restart(bench: Bench, leader: int) -> Done:
    bench.cluster.kill(leader)
    time.sleep(BACK_SECONDS)
    bench.cluster.start(leader)
    return _at_once


def _pause(bench: Bench, leader: int) -> Done:
    bench.cluster.pause(leader)
    return _at_once


def _cut(*, hears: bool, is_heard: bool) -> Callable[[Bench, int], Done]:
    """Make an event that drops the packets between the leader's node and the others, in one direction or in both."""

    def event(bench: Bench, leader: int) -> Done:
        network = bench.cluster.network
        for other in bench.cluster.nodes:
            if other != leader:
                if not is_heard:
                    network.block(leader, other)
                if not hears:
                    network.block(other, leader)
        return _at_once

    return event


def _stop(bench: Bench, leader: int) -> Done:
    process = bench.cluster.nodes[leader].process
    assert process is not None
    process.terminate()
    return lambda: process.poll() is not None


def _elect(bench: Bench, leader: int) -> Done:
    """Let another replica become the preferred leader, and elect it."""
    replicas = bench.partition().replicas
    turned = [*(each for each in replicas if each != leader), leader]
    with Admin(bootstrap_servers=bench.cluster.bootstrap) as ours:
        ours.alter_partition_reassignments({(bench.topic, 0): turned})
    while bench.partition().replicas != turned:
        time.sleep(0.05)
    admin = bench.admin()
    chosen: Future[object] = admin.elect_leaders(ElectionType.PREFERRED, [TopicPartition(bench.topic, 0)])
    # The client must live as long as its request.
    return lambda: admin is not None and chosen.done()


ROWS = (
    Row("killed", "kill -9 of the leader", 1.0, _kill),
    Row("controller", "kill -9 of the leader that is the active controller", 1.0, _kill, "controller"),
    Row("restarted", f"kill -9 of the leader, started again after {BACK_SECONDS * 1000:.0f} ms", 1.0, _restart, answers=True),
    Row("host", "the leader's host dies", 3.5, _cut(hears=False, is_heard=False), needs_links=True),
    Row("host-controller", "the host of leader and active controller dies", 6.0, _cut(hears=False, is_heard=False), "controller", needs_links=True),
    Row("stopped", "the leader's process hangs (SIGSTOP)", 3.5, _pause),
    Row("mute", "the leader hears the others, and they do not hear it", 3.5, _cut(hears=True, is_heard=False), needs_links=True),
    Row("deaf", "the others hear the leader, and it does not hear them", 9.5, _cut(hears=False, is_heard=True), needs_links=True),
    Row("ended", "the leader's node stops in order (SIGTERM)", 0.05, _stop, answers=True),
    Row("moved", "the preferred leader is elected", 0.05, _elect, answers=True),
)  # fmt: skip
