"""Members that join, stall, return and leave, while the group's coordinator and a partition's leader are killed.

Meanwhile a producer writes with acks=all, and a witness checks the group: committed offsets only rise, and each
partition has one owner at most. In the end each acknowledged record was read, and each partition has an owner.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

from jepsen_tests.network import Loopback
from jepsen_tests.real_cluster import FASTER, Cluster
from jepsen_tests.systems import Odradek, System
from odradek import Client, KafkaError
from odradek.client.errors import ClientError
from tests.other_clients.consumer_protocol.programs import Kind, Member, Place

__all__ = ["GROUPS", "play", "three_nodes"]

PARTITIONS = 6
PATIENCE_SECONDS = 150.0
LOOK_SECONDS = 0.2
CALL_MS = 10_000
RECORDS_PER_SECOND = 100
GROUP, TOPIC = "group", "numbers"
GROUPS: Mapping[str, str] = {
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "500",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "10000",
}
"""Settings with which a stalled member is fenced within seconds."""


@contextmanager
def three_nodes(directory: Path, system: System | None = None) -> Iterator[Cluster]:
    """Run three nodes with an empty topic of three replicas. Fail if a node ends by itself."""
    found = Cluster(system or Odradek(), Loopback(), directory / "nodes", {**FASTER, **GROUPS})
    found.prepare()
    try:
        found.start_all()
        admin = AdminClient({"bootstrap.servers": found.bootstrap})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)])[TOPIC].result()
        yield found
        assert not found.unexpected_ends()
    finally:
        found.close()


class Load:
    """An idempotent producer that writes numbers to all partitions in turn, and records which were acknowledged."""

    def __init__(self, bootstrap: str) -> None:
        self.acknowledged: set[str] = set()
        self.failures: list[object] = []
        self._ended = threading.Event()
        self._producer = confluent_kafka.Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5, "log_level": 0}
        )
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def _write(self) -> None:
        number = 0
        while not self._ended.wait(1 / RECORDS_PER_SECOND):
            self._producer.produce(
                TOPIC, str(number), partition=number % PARTITIONS, on_delivery=self._delivered
            )
            self._producer.poll(0)
            number += 1

    def _delivered(self, error: Any, message: Any) -> None:
        if error is None:
            self.acknowledged.add(message.value().decode())
        else:
            self.failures.append(error)

    def end(self) -> None:
        """Stop writing, and wait for the last acknowledgements."""
        self._ended.set()
        self._thread.join()
        self._producer.flush(PATIENCE_SECONDS)


@attrs.frozen
class View:
    """The partitions of each member, as the coordinator describes the group."""

    coordinator: int
    owners: Mapping[str, frozenset[int]]

    @property
    def shares(self) -> list[int]:
        return sorted(len(each) for each in self.owners.values())

    @property
    def is_whole(self) -> bool:
        """True if each partition has an owner."""
        return sum(self.shares) == PARTITIONS


class Witness:
    """A thread that observes the group all the time, and records each broken rule.

    It uses our client, since librdkafka's client ends the process by an assertion if the coordinator dies during a
    description.
    """

    def __init__(self, bootstrap: str) -> None:
        self.faults: list[str] = []
        self.view = View(-1, {})
        self.committed: dict[int, int] = {}
        self.looks = 0
        self._bootstrap = bootstrap
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look_on)
        self._thread.start()

    def _look_on(self) -> None:
        with Client(self._bootstrap, timeout_ms=CALL_MS) as client:
            while not self._ended.wait(LOOK_SECONDS):
                try:
                    self._look_at_owners(client)
                    self._look_at_offsets(client)
                    self.looks += 1
                except (KafkaError, ClientError):
                    continue  # the coordinator is dead or has just started

    def _look_at_owners(self, client: Client) -> None:
        (found,) = client.admin.describe_groups([GROUP])
        if found.error is not None:
            return
        owners = {
            each.member_id: frozenset(partition for _, partition in each.partitions) for each in found.members
        }
        view = View(found.coordinator, owners)
        if sum(view.shares) != len(frozenset[int]().union(*owners.values())):
            self.faults.append(f"a partition has two owners: {owners}")
        self.view = view

    def _look_at_offsets(self, client: Client) -> None:
        (found,) = client.admin.list_group_offsets({GROUP: None})
        if found.error is not None:
            return
        offsets = {partition: each.offset for (_, partition), each in found.offsets.items()}
        for partition, before in self.committed.items():
            if (now := offsets.get(partition)) is None or now < before:
                self.faults.append(f"partition {partition}: {before} was committed, now {now}")
        self.committed = {key: each for key, each in offsets.items() if each is not None}

    def end(self) -> None:
        self._ended.set()
        self._thread.join()


class _Run:
    """One group that works on a cluster."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self.cluster = cluster
        self.load = Load(cluster.bootstrap)
        self.witness = Witness(cluster.bootstrap)
        self.members: list[Member] = []
        self.present: list[Member] = []
        self._directory = directory

    def join(self, kind: Kind) -> Member:
        """Start a member, and wait for the new assignment."""
        place = Place(self.cluster.bootstrap, GROUP, TOPIC)
        member = Member(kind, place, self._directory, len(self.members) + 1)
        self.members.append(member)
        self.present.append(member)
        self.wait_for_shares(f"{member.name} joined")
        return member

    def wait_for_shares(self, when: str) -> None:
        """Wait until the present members share all partitions evenly and read new records."""
        count = len(self.present)
        even = sorted(PARTITIONS // count + (number < PARTITIONS % count) for number in range(count))
        self.wait(f"{when}: even shares", lambda: self.witness.view.shares == even)
        self.wait_for_progress(when)

    def wait_for_progress(self, when: str) -> None:
        """Wait until each partition has a record that was written after this call and has been read."""
        had = {each.value for member in self.members for each in list(member.records)}
        at = {partition: self._newest(partition) for partition in range(PARTITIONS)}

        def is_so() -> bool:
            return all(self._newest(partition) > offset for partition, offset in at.items())

        self.wait(f"{when}: new records of each partition, after {len(had)}", is_so)

    def _newest(self, partition: int) -> int:
        return max(
            (
                each.offset
                for member in self.members
                for each in member.records[-1000:]
                if each.partition == partition
            ),
            default=-1,
        )

    def wait(self, what: str, is_so: Callable[[], bool]) -> None:
        """Wait until a condition is true. Fail if a present member ends meanwhile."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not is_so():
            assert all(member.is_running for member in self.present), f"{what}\n{self.note()}"
            assert time.monotonic() < deadline, f"{what}: not in time\n{self.note()}"
            time.sleep(LOOK_SECONDS / 2)

    def note(self) -> str:
        """Describe the state of all parts, for an error message."""
        lines = [
            f"{len(self.load.acknowledged)} acknowledged; {self.witness.view}; committed {self.witness.committed}",
            f"{self.witness.looks} looks, faults: {self.witness.faults[:5]}",
            *(f"{each.name} has {sorted(each.owned)}, {len(each.records)} read" for each in self.members),
            *(each.last_words() for each in self.members),
            *(f"node {number}: {node.log_tail(6)}" for number, node in self.cluster.nodes.items()),
        ]
        return "\n".join(lines)

    def stall_and_return(self, member: Member) -> None:
        """Stop a member until the others have its partitions, then let it go on."""
        member.stall()
        self.present.remove(member)
        self.wait_for_shares(f"{member.name} stalls")
        member.go_on()
        self.present.append(member)
        self.wait_for_shares(f"{member.name} returned")

    def leave(self, member: Member) -> None:
        """Let a member leave."""
        self.present.remove(member)
        member.leave()
        self.wait_for_shares(f"{member.name} left")

    def kill_and_restart(self, what: str, number: int) -> None:
        """Kill a node by SIGKILL and restart it. The group must work without it and with it."""
        self.cluster.kill(number)
        self.wait_for_progress(f"without {what}, node {number}")
        self.cluster.start(number)
        self.cluster.wait_until_whole()
        self.wait_for_shares(f"{what}, node {number}, is back")

    def kill_coordinator(self) -> None:
        self.kill_and_restart("the coordinator", self.witness.view.coordinator)

    def kill_leader(self) -> None:
        """Kill the leader of a partition, if possible on a node that does not coordinate the group."""
        admin = AdminClient({"bootstrap.servers": self.cluster.bootstrap})
        leaders = {each.leader for each in admin.list_topics(TOPIC, 10).topics[TOPIC].partitions.values()}
        leaders.discard(-1)
        others = leaders - {self.witness.view.coordinator}
        self.kill_and_restart("a leader", min(others or leaders))

    def settle(self) -> None:
        """Stop the producer and check: all records are read and committed, and each partition has one owner."""
        self.load.end()
        assert not self.load.failures, self.load.failures[:3]

        def read() -> set[str]:
            return {value for member in self.members for value in member.values}

        self.wait("all acknowledged records are read", lambda: self.load.acknowledged <= read())
        ends = {partition: self._newest(partition) + 1 for partition in range(PARTITIONS)}
        self.wait("all is committed", lambda: self.witness.committed == ends)
        self.wait("each partition has an owner", lambda: self.witness.view.is_whole)
        if all(member.kind.says_what_it_owns for member in self.present):
            owners = sorted(tuple(sorted(each.owned)) for each in self.present)
            assert owners == sorted(tuple(sorted(each)) for each in self.witness.view.owners.values())
        assert self.witness.looks > 10
        assert not self.witness.faults, self.witness.faults[:5]

    def close(self) -> None:
        """End all members and the producer."""
        self.load.end()
        self.witness.end()
        for each in self.members:
            each.kill()


def play(cluster: Cluster, kinds: Sequence[Kind], directory: Path, *, rounds: int = 1) -> None:
    """Let members of these kinds share a topic, and check the result. In each round a member stalls, the coordinator
    is killed, a member leaves, a leader is killed, and a member joins."""
    run = _Run(cluster, directory)
    try:
        members = [run.join(kind) for kind in kinds]
        for number in range(rounds):
            run.stall_and_return(members[number % len(members)])
            run.kill_coordinator()
            run.leave(members.pop(number % len(members)))
            run.kill_leader()
            members.append(run.join(kinds[number % len(kinds)]))
        run.settle()
    finally:
        run.close()
