"""A disk freezes under load on a real file system.

Only its own partitions wait; other brokers lead them until it thaws.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from odradek import Client, KafkaError, Producer
from odradek.client.admin.admin_topics import NewTopic
from odradek.client.errors import ClientError
from testkit.processes import free_ports
from tests.cli.nodes.test_dev import line
from tests.cluster.disks.real_disks import RealDisk, real_disk
from tests.cluster.test_real_nodes import PATIENCE_SECONDS, in_sync, server, until, values

pytestmark = pytest.mark.xdist_group("cluster")

KINDS = os.environ.get("ODRADEK_TEST_DISKS", "ext4").split(",")
PARTITIONS = 4
WORTH_OF_LOAD = 50


class Writer(threading.Thread):
    """A thread that writes records one by one to one partition, each after the acknowledgement of the one before."""

    def __init__(self, bootstrap: str, partition: int) -> None:
        super().__init__(daemon=True)
        self._servers = bootstrap
        self._partition = partition
        self._is_over = threading.Event()
        self.acknowledged: list[int] = []
        self.refused = 0

    def run(self) -> None:
        """Write until `stop` is called."""
        options = {"acks": "all", "delivery_timeout_ms": 4000, "request_timeout_ms": 2000, "linger_ms": 0}
        number = self._partition
        with Producer(bootstrap_servers=self._servers, **options) as producer:
            while not self._is_over.is_set():
                number += PARTITIONS
                value = str(number).encode()
                try:
                    producer.send("t", value=value, partition=self._partition).result(PATIENCE_SECONDS)
                except (KafkaError, ClientError):
                    self.refused += 1
                else:
                    self.acknowledged.append(number)

    def stop(self) -> None:
        self._is_over.set()
        self.join(PATIENCE_SECONDS)

    def went_on(self, since: int) -> bool | None:
        """True if many more records than `since` are acknowledged; else None."""
        return len(self.acknowledged) >= since + WORTH_OF_LOAD or None


@contextmanager
def two_brokers(tmp_path: Path, disks: dict[str, RealDisk]) -> Iterator[str]:
    """Run a controller, broker 1 with these disks, and broker 2 with an ordinary folder; yield the brokers' addresses."""
    controller, first, second = free_ports(3)
    common = {
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": f"9@127.0.0.1:{controller}",
        "log.flush.interval.messages": "100",
        "odradek.disk.hung.ms": "4000",
        "odradek.disk.write.wait.ms": "500",
    }
    broker = {**common, "process.roles": "broker"}
    nodes = [
        {
            **common,
            "node.id": "9",
            "process.roles": "controller",
            "listeners": f"CONTROLLER://127.0.0.1:{controller}",
            "log.dirs": str(tmp_path / "9"),
        },
        {
            **broker,
            "node.id": "1",
            "listeners": f"PLAINTEXT://127.0.0.1:{first}",
            "log.dirs": ",".join(str(disk.path / "data") for disk in disks.values()),
            "metadata.log.dir": str(tmp_path / "1"),
        },
        {
            **broker,
            "node.id": "2",
            "listeners": f"PLAINTEXT://127.0.0.1:{second}",
            "log.dirs": str(tmp_path / "2"),
        },
    ]
    with ExitStack() as stack:
        processes = [stack.enter_context(server(tmp_path, each, "H5nlA7uKR0-zDRxvMJS5iw")) for each in nodes]
        for process in processes:
            assert line(process.stdout) == "ready"
        yield f"127.0.0.1:{first},127.0.0.1:{second}"


def led_by(bootstrap: str, node_id: int, partitions: set[int]) -> bool | None:
    with Client(bootstrap) as client:
        (described,) = client.admin.describe_topics(["t"])
        return all(described.partitions[each].leader == node_id for each in partitions) or None


def on_disk(disk: RealDisk) -> set[int]:
    return {int(each.name[2:]) for each in (disk.path / "data").glob("t-?")}


@pytest.mark.parametrize("kind", KINDS)
def test_a_disk_that_freezes_under_load_stalls_its_own_partitions_alone(kind: str, tmp_path: Path) -> None:
    """While one disk is frozen, the node serves the other one. Another broker leads the frozen partitions. No record is
    lost."""
    with ExitStack() as stack:
        disks = {name: stack.enter_context(real_disk(tmp_path / name, kind)) for name in ("sound", "frozen")}
        bootstrap = stack.enter_context(two_brokers(tmp_path, disks))
        with Client(bootstrap) as client:
            placed = {number: [1, 2] for number in range(PARTITIONS)}
            (created,) = client.admin.create_topics([NewTopic("t", assignments=placed)])
            assert created.error is None, created.error
        until("all replicas", lambda: in_sync(bootstrap, "t", 2))
        # A new topic's replicas count as in sync before their logs exist, so wait for the logs, too.
        until("all logs", lambda: sum(len(on_disk(each)) for each in disks.values()) == PARTITIONS or None)
        sound, frozen = on_disk(disks["sound"]), on_disk(disks["frozen"])
        assert len(sound) == len(frozen) == PARTITIONS // 2
        writers = [Writer(bootstrap, number) for number in range(PARTITIONS)]
        for writer in writers:
            writer.start()
        for number, writer in enumerate(writers):
            until(f"records to {number}", lambda writer=writer: writer.went_on(0))

        disks["frozen"].freeze()
        try:
            counts = [len(writer.acknowledged) for writer in writers]
            for number in sound:
                until(
                    f"records to {number} meanwhile",
                    lambda number=number: writers[number].went_on(counts[number]),
                )
            until("another leader", lambda: led_by(bootstrap, 2, frozen))
            assert led_by(bootstrap, 1, sound)
            counts = [len(writer.acknowledged) for writer in writers]
            for number, writer in enumerate(writers):
                until(
                    f"records to {number} under other leaders",
                    lambda number=number, writer=writer: writer.went_on(counts[number]),
                )
        finally:
            disks["frozen"].thaw()
        until("all replicas again", lambda: in_sync(bootstrap, "t", 2))
        for writer in writers:
            writer.stop()
        for number in sound:
            assert not writers[number].refused
        assert {each for writer in writers for each in writer.acknowledged} <= set(values(bootstrap, "t"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_deletion_and_a_creation_meet_a_frozen_disk(kind: str, tmp_path: Path) -> None:
    """A deletion and a creation reach the frozen disk first. The node serves its other disk, and completes both after
    the thaw."""
    with ExitStack() as stack:
        disks = {name: stack.enter_context(real_disk(tmp_path / name, kind)) for name in ("sound", "frozen")}
        bootstrap = stack.enter_context(two_brokers(tmp_path, disks))
        client = stack.enter_context(Client(bootstrap))

        def create(name: str, partitions: int) -> None:
            placed = {number: [1] for number in range(partitions)}
            (created,) = client.admin.create_topics([NewTopic(name, assignments=placed)])
            assert created.error is None, created.error

        def logs(name: str, disk: str) -> int | None:
            return len(list((disks[disk].path / "data").glob(f"{name}-?"))) or None

        create("t", PARTITIONS)
        create("gone", 2)
        for name in ("t", "gone"):
            for disk in disks:
                until(f"logs of {name}", lambda name=name, disk=disk: logs(name, disk))
        writers = [Writer(bootstrap, number) for number in on_disk(disks["sound"])]
        for writer in writers:
            writer.start()
        for writer in writers:
            until("records", lambda writer=writer: writer.went_on(0))

        disks["frozen"].freeze()
        try:
            assert client.admin.delete_topics(["gone"]) == [("gone", None)]
            create("fresh", 2)
            until("a log on the sound disk", lambda: logs("fresh", "sound") == 2 or None)
            for writer in writers:
                before = len(writer.acknowledged)
                until("records meanwhile", lambda writer=writer, before=before: writer.went_on(before))
            assert logs("gone", "frozen") == 1, "the directory must keep its name while the disk is frozen"
        finally:
            disks["frozen"].thaw()
        until("another name", lambda: logs("gone", "frozen") is None or None)
        for writer in writers:
            writer.stop()
            assert not writer.refused
        assert logs("fresh", "frozen") is None
        create("gone", 2)
        until("new logs", lambda: (logs("gone", "frozen") or 0) + (logs("gone", "sound") or 0) == 2 or None)
        number = on_disk(disks["frozen"]).pop()
        with Producer(bootstrap_servers=bootstrap, acks="all") as producer:
            producer.send("t", value=b"x", partition=number).result(PATIENCE_SECONDS)
