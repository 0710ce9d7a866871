"""Faults of real disks, each a separate file system: only the partitions of the faulty disk suffer.

`make test` uses ext4; `make test-disks` adds XFS.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from odradek import Client, KafkaError, Producer
from odradek.client.admin.admin_topics import NewTopic
from odradek.client.errors import ClientError
from odradek.data_plane.log.directory.checkpoints import CLEAN_SHUTDOWN_FILE
from testkit.odradek_server import launch_odradek, prepare_odradek, start_odradek
from testkit.processes import ServerProcess
from tests.cli.running import odradek
from tests.cluster.disks.real_disks import RealDisk, real_disk
from tests.cluster.test_real_nodes import PATIENCE_SECONDS, until

pytestmark = pytest.mark.xdist_group("cluster")

KINDS = os.environ.get("ODRADEK_TEST_DISKS", "ext4").split(",")
RESERVE_BYTES = 8 << 20
SETTINGS = {
    "odradek.log.dir.reserve.bytes": str(RESERVE_BYTES),
    "odradek.disk.full.ms": "300",
    "odradek.disk.hung.ms": "1000",
    "log.flush.offset.checkpoint.interval.ms": "500",
    "log.flush.interval.messages": "1",
}


class Node:
    """A node with several small disks, and a topic `t` with one partition on each of them."""

    def __init__(self, server: ServerProcess, disks: dict[str, RealDisk]) -> None:
        self.at = server.bootstrap
        self.disks = disks

        def create() -> bool:
            with Client(self.at) as client:
                (created,) = client.admin.create_topics([NewTopic("t", len(disks), 1)])
                assert created.error is None, created.error
            return True

        until("a topic", create)
        self.partitions = {
            name: until(f"a log on {name}", self._found_on(disk)) for name, disk in disks.items()
        }

    def _found_on(self, disk: RealDisk) -> Callable[[], int | None]:
        return lambda: next((int(each.name[2:]) for each in (disk.path / "data").glob("t-*")), None)

    def write(self, name: str, size: int = 100) -> str | None:
        """Write one record to the partition on this disk; return None, or the name of the error."""
        options = {"acks": "all", "delivery_timeout_ms": 3000, "request_timeout_ms": 2000, "linger_ms": 0}
        with Producer(bootstrap_servers=self.at, **options) as producer:
            try:
                producer.send("t", value=bytes(size), partition=self.partitions[name]).result(
                    PATIENCE_SECONDS
                )
            except KafkaError as error:
                return error.code.name
            except ClientError as error:
                return type(error).__name__
        return None

    def directory(self, name: str) -> dict[str, Any]:
        """Return the entry of `odradek disk list` for a disk of this node."""
        return self.entry(self.at, str(self.disks[name].path / "data"))

    @staticmethod
    def entry(bootstrap: str, path: str) -> dict[str, Any]:
        """Return the entry of `odradek disk list` for a path. There must be only one broker."""
        (broker,) = odradek("disk", "list", "--json", bootstrap=bootstrap).json()["brokers"]
        found: dict[str, Any] = next(each for each in broker["directories"] if each["path"] == path)
        return found

    def serves(self, name: str) -> bool | None:
        return self.write(name) is None or None

    def refuses(self, name: str) -> bool | None:
        return self.write(name) is not None or None


@pytest.fixture(params=KINDS)
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Node]:
    with ExitStack() as stack:
        names = ("sound", "full", "dead", "hung")
        disks = {name: stack.enter_context(real_disk(tmp_path / name, request.param)) for name in names}
        paths = ",".join(str(disk.path / "data") for disk in disks.values())
        settings = {"log.dirs": paths, "metadata.log.dir": str(tmp_path / "metadata"), **SETTINGS}
        server = start_odradek(tmp_path / "node", settings=settings)
        stack.callback(server.kill)
        yield Node(server, disks)


def test_each_trouble_stays_on_its_disk(node: Node) -> None:
    """A full, frozen or dead disk refuses writes and is reported by `disk list`. The other disks serve."""
    for name in node.disks:
        until(f"a record on {name}", lambda name=name: node.serves(name))

    node.disks["full"].fill_up_to(RESERVE_BYTES - (1 << 20))
    until("a refusal at the reserve", lambda: node.refuses("full"))
    until("the word full", lambda: node.directory("full")["trouble"] == "full" or None)
    assert node.directory("full")["health"]["is_short"]
    free = os.statvfs(node.disks["full"].path)
    assert free.f_bavail * free.f_frsize > RESERVE_BYTES // 2, "the reserve must stay free"
    with Client(node.at) as client:
        (created,) = client.admin.create_topics([NewTopic("u", 4, 1)])
        assert created.error is None
        client.admin.delete_topics(["u"])
    assert node.serves("sound")
    node.disks["full"].empty()
    until("a record again", lambda: node.serves("full"))

    node.disks["hung"].freeze()
    try:
        until("the word hung", lambda: node.directory("hung")["trouble"] == "hung" or None)
        assert node.directory("hung")["health"]["is_stalled"]
        assert node.refuses("hung")
        assert node.serves("sound")
    finally:
        node.disks["hung"].thaw()
    until("the end of the hang", lambda: node.serves("hung"))

    node.disks["dead"].kill()
    until(
        "an offline directory",
        lambda: (node.refuses("dead"), not node.directory("dead")["online"])[1] or None,
    )
    for name in ("sound", "full", "hung"):
        assert node.serves(name), name


@pytest.mark.skipif("ext4" not in KINDS, reason="only ext4 turns read-only by itself")
def test_a_disk_that_turns_read_only_takes_its_own_partitions_offline(tmp_path: Path) -> None:
    """EROFS takes the directory offline for good, like EIO. The other disk serves, and the broker keeps running."""
    with ExitStack() as stack:
        disks = {
            name: stack.enter_context(real_disk(tmp_path / name, "ext4")) for name in ("sound", "damaged")
        }
        paths = ",".join(str(disk.path / "data") for disk in disks.values())
        settings = {"log.dirs": paths, "metadata.log.dir": str(tmp_path / "metadata"), **SETTINGS}
        server = start_odradek(tmp_path / "node", settings=settings)
        stack.callback(server.kill)
        node = Node(server, disks)
        for name in disks:
            until(f"a record on {name}", lambda name=name: node.serves(name))
        disks["damaged"].make_read_only()
        until(
            "offline", lambda: (node.refuses("damaged"), not node.directory("damaged")["online"])[1] or None
        )
        assert node.serves("sound")


def test_a_node_whose_metadata_disk_dies_says_so_and_ends(tmp_path: Path) -> None:
    """If the metadata disk dies, the node ends with status 1 and no traceback. Its last log line names the
    directory."""
    with ExitStack() as stack:
        disks = {
            name: stack.enter_context(real_disk(tmp_path / name, KINDS[0])) for name in ("metadata", "a")
        }
        settings = {
            "log.dirs": str(disks["a"].path / "data"),
            "metadata.log.dir": str(disks["metadata"].path / "data"),
            **SETTINGS,
        }
        server = start_odradek(tmp_path / "node", settings=settings)
        stack.callback(server.kill)
        disks["metadata"].kill()
        with suppress(KafkaError, ClientError), Client(server.bootstrap) as client:
            client.admin.create_topics([NewTopic("t", 1, 1)])
        assert server.process.wait(PATIENCE_SECONDS) == 1
        lines = (tmp_path / "node" / "server.log").read_text().splitlines()
        assert "Traceback" not in "".join(lines)
        assert str(disks["metadata"].path / "data") in lines[-1], lines[-5:]
        print(*lines[-4:], sep="\n")


@pytest.mark.skipif("ODRADEK_TEST_DISKS" not in os.environ, reason="runs in make test-disks")
@pytest.mark.parametrize("kind", KINDS)
def test_a_node_stops_although_a_disk_hangs(kind: str, tmp_path: Path) -> None:
    """On SIGTERM with a hung disk, the node closes and unlocks its other directories and names the hung one in its log.
    A new node can then start without it."""
    with ExitStack() as stack:
        disks = {name: stack.enter_context(real_disk(tmp_path / name, kind)) for name in ("sound", "hung")}
        paths = {name: disk.path / "data" for name, disk in disks.items()}
        metadata = str(tmp_path / "metadata")
        settings = {
            "log.dirs": ",".join(map(str, paths.values())),
            "metadata.log.dir": metadata,
            **SETTINGS,
        }
        properties = prepare_odradek(tmp_path / "node", settings=settings)
        server = launch_odradek(properties)
        stack.callback(server.kill)
        node = Node(server, disks)
        for name in disks:
            until(f"a record on {name}", lambda name=name: node.serves(name))
        disks["hung"].freeze()
        try:
            until("a refusal", lambda: node.refuses("hung"))
            server.process.terminate()
            until("the end", lambda: "do not return" in server.log_path.read_text() or None)
            assert (paths["sound"] / CLEAN_SHUTDOWN_FILE).exists()
            assert not (paths["hung"] / CLEAN_SHUTDOWN_FILE).exists()
            alone = tmp_path / "node" / "alone.properties"
            alone.write_text(properties.read_text().replace(f",{paths['hung']}", ""))
            other = launch_odradek(alone)
            stack.callback(other.kill)
            assert node.serves("sound")
            other.stop()
        finally:
            disks["hung"].thaw()
        assert server.process.wait(PATIENCE_SECONDS) == 1


@pytest.mark.skipif("ODRADEK_TEST_DISKS" not in os.environ, reason="runs in make test-disks")
def test_a_disk_is_retired_pulled_replaced_and_adopted(tmp_path: Path) -> None:
    """A released disk can be unmounted under a running node. A blank disk in its place is used only after `storage
    adopt` or by the adoption policy."""
    with ExitStack() as stack:
        metadata = tmp_path / "metadata"
        disks = {name: stack.enter_context(real_disk(tmp_path / name, KINDS[0])) for name in ("a", "b")}
        paths = {name: str(disk.path / "data") for name, disk in disks.items()}
        settings = {"log.dirs": ",".join(paths.values()), "metadata.log.dir": str(metadata), **SETTINGS}
        properties = prepare_odradek(tmp_path / "node", settings=settings)
        server = launch_odradek(properties)
        stack.callback(server.kill)
        node = Node(server, disks)
        for name in disks:
            until(f"a record on {name}", lambda name=name: node.serves(name))
        assert "may be pulled" in odradek("disk", "retire", f"1:{paths['b']}", bootstrap=node.at).out
        subprocess.run(["umount", disks["b"].path], check=True)
        assert node.serves("a")
        assert node.serves("b"), "the partition of the unmounted disk must have moved"
        server.stop()

        assert "not on a blank disk of its own" in odradek("storage", "adopt", properties).refusal()
        fresh = stack.enter_context(real_disk(tmp_path / "fresh", KINDS[0]))
        subprocess.run(["mount", "--bind", fresh.path, disks["b"].path], check=True)
        server = launch_odradek(properties)
        stack.callback(server.kill)
        assert "event=log_dir.blank" in server.log_path.read_text()
        assert not Node.entry(server.bootstrap, paths["b"])["online"]
        server.stop()
        assert f"adopted {paths['b']}" in odradek("storage", "adopt", properties).out
        assert "no directory to adopt" in odradek("storage", "adopt", properties).out
        server = launch_odradek(properties)
        stack.callback(server.kill)
        assert Node.entry(server.bootstrap, paths["b"])["online"]
        server.stop()

        shutil.rmtree(paths["b"])
        properties.write_text(f"{properties.read_text()}odradek.log.dir.adopt.blank=true\n")
        server = launch_odradek(properties)
        stack.callback(server.kill)
        assert "event=log_dir.adopted" in server.log_path.read_text()
        assert Node.entry(server.bootstrap, paths["b"])["online"]
