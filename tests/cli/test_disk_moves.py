"""`odradek disk retire|balance` against a node with three directories."""

from __future__ import annotations

import time
from collections.abc import Iterator

import attrs
import pytest

from bench.processes import base_port
from tests.cli.running import Outcome, odradek
from tests.cli.test_dev import line, running

pytestmark = pytest.mark.xdist_group("cluster")


@attrs.frozen
class Host:
    """The node's address, and its directories: the first has the metadata log."""

    bootstrap: str
    paths: list[str]

    def run(self, *words: str, stdin: bytes = b"") -> Outcome:
        return odradek(*words, bootstrap=self.bootstrap, stdin=stdin)

    def replicas(self) -> dict[str, set[tuple[str, int]]]:
        (broker,) = self.run("disk", "list", "--json").json()["brokers"]
        return {
            each["path"]: {(replica["topic"], replica["partition"]) for replica in each["replicas"]}
            for each in broker["directories"]
        }


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """A running node with a topic of nine partitions, each with records."""
    root = tmp_path_factory.mktemp("disks")
    port = base_port(2)
    paths = [str(root / name) for name in "abc"]
    properties = root / "node.properties"
    settings = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{port + 1}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{port + 1}",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": ",".join(paths),
        "file.delete.delay.ms": "1000",
    }
    properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    assert odradek("storage", "format", properties).code == 0
    with running("server", properties) as server:
        assert line(server.stdout) == "ready"
        found = Host(f"127.0.0.1:{port}", paths)
        assert found.run("topic", "create", "words", "--partitions", "9").code == 0
        for partition in range(9):
            assert found.run("produce", "words", "--partition", str(partition), stdin=b"one\ntwo\n").code == 0
        yield found


def test_a_disk_is_emptied_and_takes_no_more(host: Host) -> None:
    """A dry run changes nothing. Then the disk is cordoned and empty, the records are all there, and new replicas go
    elsewhere. `--cancel` undoes the mark, once."""
    path = host.paths[1]
    name = f"1:{path}"
    before = host.replicas()
    assert len(before[path]) == 3
    plan = host.run("disk", "retire", name, "--dry-run", "--json").json()
    assert {(move["topic"], move["partition"]) for move in plan["moves"]} == before[path]
    assert host.replicas() == before
    assert "may be pulled" in host.run("disk", "retire", name, "--throttle", "100M").out
    now = host.replicas()
    assert now[path] == set()
    assert set.union(*now.values()) == set.union(*before.values())
    assert host.run("consume", "words").out.split().count("two") == 9
    assert host.run("topic", "create", "more", "--partitions", "6").code == 0
    assert host.replicas()[path] == set()
    assert "may be pulled" in host.run("disk", "retire", name).out, "a second time there is nothing to do"
    assert "takes replicas again" in host.run("disk", "retire", name, "--cancel").out
    assert "is not being retired" in host.run("disk", "retire", name, "--cancel").refusal()
    assert host.run("disk", "balance", "--dry-run", "--json").json()["brokers"][0]["broker"] == 1


def test_what_cannot_be_retired_is_refused(host: Host) -> None:
    """The metadata log's directory, an unknown directory, an unknown broker."""
    assert "metadata log" in host.run("disk", "retire", f"1:{host.paths[0]}").refusal()
    assert "has no directory /none" in host.run("disk", "retire", "1:/none").refusal()
    assert "no broker 7" in host.run("disk", "retire", f"7:{host.paths[1]}").refusal()


def test_a_move_names_a_directory(host: Host) -> None:
    """`partition move --to ID:DIR` moves replicas between the disks of their broker."""
    target = host.paths[2]
    assert "would move 1 replica" in host.run("partition", "move", "words:0", "--to", f"1:{target}").out
    assert host.run("partition", "move", "words:0", "--to", f"1:{target}", "--execute").code == 0
    deadline = time.monotonic() + 30
    while [path for path, held in host.replicas().items() if ("words", 0) in held] != [target]:
        assert time.monotonic() < deadline
    assert (
        "LOG_DIR_NOT_FOUND"
        in host.run("partition", "move", "words:0", "--to", "1:/none", "--execute").refusal()
    )
