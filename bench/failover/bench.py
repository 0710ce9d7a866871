"""One cluster of real nodes: makes what events hit, lets them happen, and measures the standstills."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

import attrs
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.failover.silence import Prober, longest_gap
from bench.failover.subjects import IDS_TOPIC, OFFSETS_TOPIC, Subject
from jepsen_tests.real_cluster import Cluster
from odradek.wire.messages.find_coordinator import FindCoordinatorRequest
from testkit.raw_requests import RawClient

if TYPE_CHECKING:
    from bench.failover.watches import Watch

__all__ = ["SERVERS", "Bench", "Done", "Place", "Row"]

SERVERS = "servers"
"""The part of a row that has the silence of the servers alone."""
SILENCE_SECONDS_MAX = 120.0
SETTLED_SECONDS = 3.0
"""How long the cluster rests before each event. Controllers connect to new brokers, and brokers fetch."""
FRESH_SECONDS = 0.1
AFTER_SECONDS = 0.5
ADMIN_SECONDS = 60.0
FLOWING = 50
"""Clients have recovered when each has got so many records after the event."""
Place = tuple[str, int]
Done = Callable[[], bool]


@attrs.frozen
class Row:
    """One event. `subject` makes what it hits. `prepare` runs before it is measured. `event` lets it hit a leader, and
    returns a function that is true when it is over. `goal` is the longest silence in seconds that we want.
    """

    name: str
    title: str
    goal: float
    event: Callable[[Bench, int], Done]
    subject: Callable[[Bench], Subject]
    answers: bool = False
    """True if the leader still answers, or soon answers again. Otherwise only the others are asked."""
    needs_links: bool = False
    prepare: Callable[[Bench], None] | None = None


class Bench:
    """Lets events hit the leaders of one cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.serial = 0
        self.place: Place = ("", 0)
        self._admin: AdminClient | None = None

    def measure(self, row: Row, watches: Mapping[str, type[Watch]]) -> dict[str, float]:
        """Run one row once. Return the longest standstill of each part in seconds. Raises `Doubled` if a client's
        record is lost or doubled, and `Lost` if a commit or a transactional id is lost.
        """
        self.cluster.wait_until_whole()
        subject = row.subject(self)
        self.place = subject.place
        if row.prepare is not None:
            row.prepare(self)
        victim = self.leader(self.place)
        with subject.prober as prober, ExitStack() as stack:
            self._rest(prober)
            watching = [stack.enter_context(watch(self, victim)) for watch in watches.values()]
            for each in watching:
                prober.wait_until(partial(each.flows, FLOWING, 0.0), SILENCE_SECONDS_MAX)
            began = time.monotonic()
            is_over = row.event(self, victim)
            has_hit = time.monotonic()
            if not row.answers:
                prober.leave_out(victim)
            prober.wait_until(lambda: is_over() and prober.has_served_since(has_hit), SILENCE_SECONDS_MAX)
            until = time.monotonic() + AFTER_SECONDS
            prober.wait_until(lambda: time.monotonic() > until, SILENCE_SECONDS_MAX)
            for each in watching:
                prober.wait_until(partial(each.flows, FLOWING, until), SILENCE_SECONDS_MAX)
        gaps = {SERVERS: longest_gap(prober.served_at, began)}
        for each in watching:
            gaps |= each.gaps(began)
        self._heal()
        for each in watching:
            each.check()
        return gaps

    def _rest(self, prober: Prober) -> None:
        """Wait until all replicas are in sync, and requests have been served for a while."""
        until = time.monotonic() + SETTLED_SECONDS

        def rests() -> bool:
            served = prober.served_at and time.monotonic() - prober.served_at[-1] < FRESH_SECONDS
            return bool(served) and time.monotonic() > until and self.is_in_sync(self.place)

        prober.wait_until(rests, SILENCE_SECONDS_MAX)

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
        self._admin = None

    @property
    def addresses(self) -> dict[int, str]:
        """The address (host:port) of each broker, by its id."""
        return {number: f"{node.host}:{node.port}" for number, node in self.cluster.nodes.items()}

    def admin(self) -> AdminClient:
        """Return librdkafka's admin client. The next row gets another one, which has seen no dead node."""
        if self._admin is None:
            self._admin = AdminClient({"bootstrap.servers": self.cluster.bootstrap, "log_level": 0})
        return self._admin

    def active_controller(self) -> int:
        """Wait until a controller is active, and return its id."""
        while (active := self.cluster.active_controller()) is None:
            time.sleep(0.05)
        return active

    def new_topic(self, partitions: int, replicas: int) -> str:
        """Create a topic, wait until each partition has a leader, and return its name."""
        self.serial += 1
        topic = f"silence-{self.serial}"
        made = self.admin().create_topics(
            [NewTopic(topic, partitions, replicas)], operation_timeout=ADMIN_SECONDS
        )
        made[topic].result(ADMIN_SECONDS)
        while len(self.leaders(topic)) < partitions:
            time.sleep(0.05)
        return topic

    def create_coordinators(self) -> None:
        """Ask for coordinators until their topics are there and have leaders."""
        with RawClient(next(iter(self.addresses.values()))) as client:
            for kind in (0, 1):
                while client.request(FindCoordinatorRequest(key_type=kind, coordinator_keys=["a"]), 4).coordinators[0].error_code:  # fmt: skip
                    time.sleep(0.05)
        for topic in (OFFSETS_TOPIC, IDS_TOPIC):
            while not self.leaders(topic):
                time.sleep(0.05)

    def leaders(self, topic: str) -> dict[int, int]:
        """Return the leader of each partition that has one."""
        found = self.admin().list_topics(topic, timeout=ADMIN_SECONDS).topics[topic].partitions
        return {index: each.leader for index, each in found.items() if each.leader >= 0}

    def leader(self, place: Place) -> int:
        """Wait until this partition has a leader, and return the leader's id."""
        topic, index = place
        while (leader := self.leaders(topic).get(index)) is None:
            time.sleep(0.05)
        return leader

    def replicas(self, place: Place) -> list[int]:
        """Return the ids of this partition's replicas, in order."""
        topic, index = place
        found = self.admin().list_topics(topic, timeout=ADMIN_SECONDS).topics[topic].partitions
        return list(found[index].replicas)

    def is_in_sync(self, place: Place) -> bool:
        """Return whether all replicas of the partition's topic are in sync."""
        topic, _ = place
        found = self.admin().list_topics(topic, timeout=ADMIN_SECONDS).topics[topic].partitions
        return bool(found) and all(len(each.isrs) == len(each.replicas) for each in found.values())
