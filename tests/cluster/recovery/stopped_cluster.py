"""Combined nodes as processes. Each metadata log has its own folder, which tests destroy, copy and restore like a disk."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import attrs

from odradek.wire.uuid_text import uuid_to_text
from testkit.processes import free_ports
from tests.cli.nodes.test_dev import line
from tests.cli.running import Outcome, odradek_here
from tests.cli.running import start as start_command

CLUSTER_ID = "H5nlA7uKR0-zDRxvMJS5iw"


@attrs.define
class Cluster:
    """A cluster of nodes 1 to `count`, the first `voters` of which are voters."""

    directory: Path
    voters: int
    brokers: list[int]
    controllers: list[int]
    is_static: bool = False
    """True where configurations name the voters (`controller.quorum.voters`)."""
    settings: Mapping[str, str] = attrs.field(factory=dict)
    """Further keys of all properties files."""
    first_users: Sequence[str] = ()
    """The users with which the nodes are formatted, as `--add-scram` takes them."""
    processes: dict[int, subprocess.Popen[bytes]] = attrs.field(factory=dict)

    @classmethod
    def make(
        cls,
        directory: Path,
        count: int = 3,
        voters: int = 3,
        formatted: int = 4,
        *,
        is_static: bool = False,
        settings: Mapping[str, str] | None = None,
        first_users: Sequence[str] = (),
    ) -> Cluster:
        ports = free_ports(2 * count)
        cluster = cls(directory, voters, ports[:count], ports[count:], is_static, settings or {}, first_users)
        for node_id in range(1, min(count, formatted) + 1):
            cluster.format(node_id)
        return cluster

    @property
    def ids(self) -> range:
        return range(1, len(self.brokers) + 1)

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.brokers)

    @property
    def configs(self) -> list[Path]:
        return [self.properties(each) for each in self.ids]

    def properties(self, node_id: int) -> Path:
        return self.directory / f"node-{node_id}.properties"

    def metadata(self, node_id: int) -> Path:
        """Return the folder that stands for the disk of a node's metadata log."""
        return self.directory / f"metadata-{node_id}"

    def records(self, node_id: int) -> Path:
        """Return the folder that stands for the disk of a node's records."""
        return self.directory / f"records-{node_id}"

    def key(self, node_id: int) -> str:
        """Write a voter in the notation of `--lost`."""
        return str(node_id) if self.is_static else f"{node_id}:{uuid_to_text(b'directory %06d' % node_id)}"

    def format(self, node_id: int) -> None:
        servers = ",".join(f"127.0.0.1:{port}" for port in self.controllers[: self.voters])
        at = node_id - 1
        settings = {
            "node.id": str(node_id),
            "process.roles": "broker,controller",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.brokers[at]},CONTROLLER://127.0.0.1:{self.controllers[at]}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(self.records(node_id)),
            "metadata.log.dir": str(self.metadata(node_id)),
            "min.insync.replicas": "2",
            "broker.session.timeout.ms": "3000",
            "broker.heartbeat.interval.ms": "300",
            "offsets.topic.num.partitions": "3",
            "transaction.state.log.num.partitions": "3",
        }
        settings |= self.settings
        if self.is_static:
            settings["controller.quorum.voters"] = ",".join(
                f"{number}@{server}" for number, server in enumerate(servers.split(","), 1)
            )
        else:
            settings["controller.quorum.bootstrap.servers"] = servers
        self.properties(node_id).write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        voters = ",".join(
            f"{each}@127.0.0.1:{self.controllers[each - 1]}:{uuid_to_text(b'directory %06d' % each)}"
            for each in range(1, self.voters + 1)
        )
        words: tuple[str, ...] = ()
        if not self.is_static:
            is_voter = node_id <= self.voters
            words = ("--initial-controllers", voters) if is_voter else ("--no-initial-controllers",)
        words += tuple(word for each in self.first_users for word in ("--add-scram", each))
        formatted = odradek_here(
            "storage", "format", self.properties(node_id), "--cluster-id", CLUSTER_ID, *words
        )
        assert formatted.code == 0, formatted.err

    # -- processes ----------------------------------------------------------------------------------------------------

    def start(self, *node_ids: int, wait: bool = True) -> None:
        """Start nodes, and wait until they serve."""
        for node_id in node_ids:
            log = (self.directory / f"node-{node_id}.log").open("ab")
            with log:
                self.processes[node_id] = start_command(
                    ("server", self.properties(node_id)), stdout=subprocess.PIPE, stderr=log
                )
        for node_id in node_ids if wait else ():
            assert line(self.processes[node_id].stdout) == "ready", self.log(node_id)

    def kill(self, *node_ids: int) -> None:
        """End nodes by SIGKILL."""
        for node_id in node_ids:
            process = self.processes.pop(node_id)
            process.kill()
            process.communicate()

    def stop(self, *node_ids: int) -> None:
        """Stop nodes cleanly, all at once."""
        for node_id in node_ids:
            self.processes[node_id].terminate()
        for node_id in node_ids:
            process = self.processes.pop(node_id)
            process.communicate(timeout=60)
            assert process.returncode == 0, self.log(node_id)

    def end_of(self, node_id: int, status: int = 1) -> str:
        """Wait until a node exits with this status. Return its last log line. systemd restarts a node after
        status 1, and leaves it stopped after status 78.
        """
        process = self.processes.pop(node_id)
        process.communicate(timeout=60)
        assert process.returncode == status, self.log(node_id)
        return self.log(node_id).splitlines()[-1]

    def log(self, node_id: int) -> str:
        return (self.directory / f"node-{node_id}.log").read_text()

    @contextmanager
    def ended(self) -> Iterator[Cluster]:
        """Kill all running nodes when the block ends."""
        with ExitStack() as stack:
            stack.callback(lambda: self.kill(*list(self.processes)))
            yield self

    # -- disks --------------------------------------------------------------------------------------------------------

    def destroy_metadata(self, *node_ids: int) -> None:
        for node_id in node_ids:
            shutil.rmtree(self.metadata(node_id))

    def copy_metadata(self, name: str, *node_ids: int) -> None:
        """Copy the metadata disks of stopped nodes under this name."""
        for node_id in node_ids:
            shutil.copytree(self.metadata(node_id), self.directory / f"{name}-{node_id}")

    def copy_back(self, name: str, node_id: int) -> None:
        """Restore a metadata disk that was removed, from the copy with this name."""
        shutil.copytree(self.directory / f"{name}-{node_id}", self.metadata(node_id))

    def put_metadata(self, name: str, *node_ids: int) -> None:
        """Replace metadata disks by the copies with this name."""
        for node_id in node_ids:
            shutil.rmtree(self.metadata(node_id))
            shutil.copytree(self.directory / f"{name}-{node_id}", self.metadata(node_id))

    # -- recovery -----------------------------------------------------------------------------------------------------

    def recover(
        self, *words: str | Path, lost: tuple[int, ...] = (1, 2), configs: Sequence[Path] | None = None
    ) -> Outcome:
        """Run `quorum recover`, for all nodes or for those of `configs`."""
        named = [word for each in lost for word in ("--lost", self.key(each))]
        return odradek_here("quorum", "recover", *(configs or self.configs), *named, *words, "--json")

    def recovered(
        self, *words: str | Path, lost: tuple[int, ...] = (1, 2), configs: Sequence[Path] | None = None
    ) -> Any:
        """Run `quorum recover --execute`; return the JSON document that it prints."""
        return self.recover("--execute", *words, lost=lost, configs=configs).json()
