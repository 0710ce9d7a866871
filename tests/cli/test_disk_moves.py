"""`odradek disk retire` and `odradek disk balance` against a node with three directories."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import attrs
import pytest

from testkit.odradek_server import launch_odradek, prepare_odradek
from testkit.processes import base_port
from tests.cli.nodes.test_dev import line, running
from tests.cli.running import Outcome, odradek_here, start, words_of
from tests.cluster.test_real_nodes import until

RATE = 1 << 18
THROTTLE = "replica.alter.log.dirs.io.max.bytes.per.second"
CHUNK_BYTES = 1 << 20
pytestmark = pytest.mark.xdist_group("cluster")


@attrs.frozen
class Host:
    """A running node: its address, process id and directories. The first directory holds the metadata log."""

    bootstrap: str
    paths: list[str]
    pid: int
    metrics: str = ""

    def run(self, *words: str, stdin: bytes = b"") -> Outcome:
        return odradek_here(*words, bootstrap=self.bootstrap, stdin=stdin)

    def state(self, path: str) -> dict[str, Any]:
        """Return the entry of `disk list` for a directory."""
        (broker,) = self.run("disk", "list", "--json").json()["brokers"]
        found: dict[str, Any] = next(each for each in broker["directories"] if each["path"] == path)
        return found

    def replicas(self) -> dict[str, set[tuple[str, int]]]:
        (broker,) = self.run("disk", "list", "--json").json()["brokers"]
        return {
            each["path"]: {(replica["topic"], replica["partition"]) for replica in each["replicas"]}
            for each in broker["directories"]
        }

    def settings(self) -> dict[str, str]:
        """Return the configurations set for the broker, except empty lists."""
        told = self.run("config", "get", "broker", "1", "--set-only", "--json").json()["configs"]
        return {each["key"]: each["value"] for each in told if each["value"]}

    def page(self) -> str:
        """Fetch the metrics page."""
        with urlopen(self.metrics, timeout=10) as answer:
            text: str = answer.read().decode()
        return text

    def holders(self, topic: str, partition: int) -> list[str]:
        """List the directories with a copy of this replica. There are two while it moves."""
        return [path for path, held in self.replicas().items() if (topic, partition) in held]


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """A running node with a topic of nine partitions, all with records."""
    root = tmp_path_factory.mktemp("disks")
    port = base_port(3)
    paths = [str(root / name) for name in "abc"]
    properties = root / "node.properties"
    settings = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{port + 1}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{port + 1}",
        "controller.listener.names": "CONTROLLER",
        "odradek.metrics.listener": f"127.0.0.1:{port + 2}",
        "log.dirs": ",".join(paths),
        "log.segment.delete.delay.ms": "1000",
    }
    properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    assert odradek_here("storage", "format", properties).code == 0
    with running("server", properties) as server:
        assert line(server.stdout) == "ready"
        found = Host(f"127.0.0.1:{port}", paths, server.pid, f"http://127.0.0.1:{port + 2}/metrics")
        assert found.run("topic", "create", "words", "--partitions", "9").code == 0
        for partition in range(9):
            assert found.run("produce", "words", "--partition", str(partition), stdin=b"one\ntwo\n").code == 0
        yield found


def test_a_disk_is_emptied_and_takes_no_more(host: Host) -> None:
    """A retired disk is cordoned and emptied. All records are kept, and new replicas go elsewhere. `--cancel` removes
    the retirement mark; a second `--cancel` is refused."""
    path = host.paths[1]
    name = f"1:{path}"
    before = host.replicas()
    assert len(before[path]) == 3
    plan = host.run("disk", "retire", name, "--dry-run", "--json").json()
    assert {(move["topic"], move["partition"]) for move in plan["moves"]} == before[path]
    assert host.replicas() == before
    assert "has not released it" in host.run("disk", "retire", name, "--throttle", "100M", "--keep").out
    assert host.state(path)["cordoned"]
    assert host.state(path)["retiring"]
    listed = host.run("disk", "list").out
    assert "retiring" in listed
    assert f"{path} is being retired, the directory is empty" in listed
    now = host.replicas()
    assert now[path] == set()
    assert set.union(*now.values()) == set.union(*before.values())
    assert host.run("consume", "words").out.split().count("two") == 9
    assert host.run("topic", "create", "more", "--partitions", "6").code == 0
    assert host.replicas()[path] == set()
    assert "has not released it" in host.run("disk", "retire", name, "--keep").out, (
        "the retired directory is already empty"
    )
    assert host.run("config", "set", "broker", "1", f"{THROTTLE}=1000000000").code == 0
    said = host.run("disk", "retire", name, "--cancel").out
    assert "accepts replicas again, with 0 moves given up" in said
    assert f"`odradek config unset broker 1 {THROTTLE}`" in said, "the throttle must be named"
    assert host.run("config", "unset", "broker", "1", THROTTLE).code == 0
    assert "is not being retired" in host.run("disk", "retire", name, "--cancel").refusal()
    assert host.run("disk", "balance", "--dry-run", "--json").json()["brokers"][0]["broker"] == 1


def test_what_cannot_be_retired_is_refused(host: Host) -> None:
    """Retiring the metadata log's directory, an unknown directory, or a disk of an unknown broker is refused."""
    assert "metadata log" in host.run("disk", "retire", f"1:{host.paths[0]}").refusal()
    assert "has no directory /none" in host.run("disk", "retire", "1:/none").refusal()
    assert "no broker 7" in host.run("disk", "retire", f"7:{host.paths[1]}").refusal()


def test_a_move_names_a_directory(host: Host) -> None:
    """`partition move --to ID:DIR` moves replicas between the disks of a broker."""
    target = host.paths[2]
    assert "would move 1 replica" in host.run("partition", "move", "words:0", "--to", f"1:{target}").out
    assert host.run("partition", "move", "words:0", "--to", f"1:{target}", "--execute").code == 0
    deadline = time.monotonic() + 30
    while host.holders("words", 0) != [target]:
        assert time.monotonic() < deadline
    assert (
        "LOG_DIR_NOT_FOUND"
        in host.run("partition", "move", "words:0", "--to", "1:/none", "--execute").refusal()
    )


@pytest.mark.parametrize("is_killed", [False, True], ids=["its command waits", "its command was killed"])
def test_a_retirement_under_way_is_cancelled(host: Host, is_killed: bool) -> None:
    """`--cancel` stops the copies and removes the throttle. A command still waiting for them fails with the reason."""
    path = host.paths[1]
    assert host.run("partition", "move", "words:3", "--to", f"1:{path}", "--execute").code == 0
    # Earlier tests may have left replicas here, because new replicas go where the most room was measured.
    for topic, partition in host.replicas()[path] - {("words", 3)}:
        elsewhere = f"1:{host.paths[0]}"
        assert host.run("partition", "move", f"{topic}:{partition}", "--to", elsewhere, "--execute").code == 0
    until("the replica there alone", lambda: host.replicas()[path] == {("words", 3)} or None)
    until("no copy of it", lambda: host.holders("words", 3) == [path] or None)
    big = b"".join(b"%d" % number + b"x" * 200_000 + b"\n" for number in range(40))
    assert host.run("produce", "words", "--partition", "3", stdin=big).code == 0
    words = ("disk", "retire", f"1:{path}", "--throttle", "1K", "--bootstrap-server", host.bootstrap)
    with ExitStack() as stack:
        retiring = start(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        stack.callback(retiring.kill)
        until("a copy", lambda: "1 replica on the way to" in host.run("disk", "list").out or None)
        if is_killed:
            retiring.kill()
            retiring.wait()
        assert "1 move given up" in host.run("disk", "retire", f"1:{path}", "--cancel").out
        _, err = retiring.communicate(timeout=30)
        if not is_killed:
            assert (retiring.returncode, b"its retirement was cancelled" in err) == (1, True)
    assert host.replicas()[path] == {("words", 3)}
    told = host.state(path)
    assert (told["cordoned"], told["retiring"]) == (False, False)
    assert THROTTLE not in host.settings()
    until("no copy", lambda: not list(Path(path).parent.glob("*/*-future")) or None)


def test_a_retired_disk_is_released(host: Host) -> None:
    """The broker closes all files of the empty directory and keeps serving. The cordon is removed."""
    path = host.paths[1]
    out = host.run("disk", "retire", f"1:{path}").out
    assert "has released it: its disk may be pulled" in out
    told = host.state(path)
    assert (told["released"], told["online"], told["cordoned"], told["retiring"]) == (
        True,
        False,
        False,
        False,
    )
    listed = host.run("disk", "list").out
    assert f"{path} is released, so its disk may be pulled" in listed
    (row,) = [each for each in words_of(listed) if "released" in each]
    assert row[2:] == ["-"] * 9 + [path], "a released disk must have no figures"
    page = host.page()
    assert f'odradek_directory_released{{directory="{path}"}} 1' in page
    assert f'odradek_directory_offline{{directory="{path}"}} 0' in page, (
        "a released directory must not count as offline"
    )
    assert f'odradek_directory_time_left_seconds{{directory="{path}"}} -1' in page
    opened = [link.readlink() for link in Path(f"/proc/{host.pid}/fd").iterdir() if link.is_symlink()]
    assert not [each for each in opened if each.is_relative_to(path)]
    assert "may be pulled" in host.run("disk", "retire", f"1:{path}").out, (
        "a second retirement must end at once"
    )
    assert host.run("consume", "words").out.split().count("two") == 9
    assert host.run("topic", "create", "last", "--partitions", "6").code == 0
    assert not [each for each in Path(path).iterdir() if each.name.startswith("last")]


def test_two_disks_are_retired_at_once(tmp_path: Path) -> None:
    """Two retirements at once keep each other's cordons, marks and throttles. Both disks end empty, and all settings
    are restored."""
    paths = [str(tmp_path / name) for name in "abcd"]
    settings = {"log.dirs": ",".join(paths), "metadata.log.dir": str(tmp_path / "metadata")}
    properties = prepare_odradek(tmp_path / "node", settings=settings)
    with ExitStack() as stack:
        server = launch_odradek(properties)
        stack.callback(server.kill)
        host = Host(server.bootstrap, paths, server.pid)
        assert host.run("topic", "create", "words", "--partitions", "12").code == 0
        big = b"".join(b"%d" % number + b"x" * 100_000 + b"\n" for number in range(60))
        assert host.run("produce", "words", stdin=big).code == 0
        assert host.run("config", "set", "broker", "1", f"{THROTTLE}=900000000").code == 0
        before = host.settings()
        assert before[THROTTLE] == "900000000"
        here = ("--bootstrap-server", host.bootstrap)
        commands = []
        for path, rate in zip(paths[:2], ("2M", "3M"), strict=True):
            words = ("disk", "retire", f"1:{path}", "--throttle", rate, *here)
            commands.append(start(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
            stack.callback(commands[-1].kill)
        for command in commands:
            out, err = command.communicate(timeout=60)
            assert b"may be pulled" in out, err
        for path in paths[:2]:
            told = host.state(path)
            assert (told["released"], told["cordoned"], told["retiring"]) == (True, False, False)
        held = host.replicas()
        assert {name: len(held.get(name, ())) for name in paths[:2]} == dict.fromkeys(paths[:2], 0)
        assert host.settings() == before
        assert len(host.run("consume", "words").out.split()) == 60


@pytest.mark.skipif("ODRADEK_TEST_DISKS" not in os.environ, reason="runs in make test-disks")
def test_a_retirement_is_throttled_and_goes_on_after_a_death(tmp_path: Path) -> None:
    """Copying respects the throttle. After kill -9 the restarted broker resumes the copy, and a new command completes
    the retirement."""
    paths = [str(tmp_path / name) for name in "abc"]
    properties = prepare_odradek(tmp_path / "node", settings={"log.dirs": ",".join(paths)})
    with ExitStack() as stack:
        server = launch_odradek(properties)
        stack.callback(server.kill)
        host = Host(server.bootstrap, paths, server.pid)
        assert host.run("topic", "create", "big", "--partitions", "3").code == 0
        ((_, partition),) = host.replicas()[paths[1]]
        big = b"".join(b"%d" % number + b"x" * 200_000 + b"\n" for number in range(40))
        assert host.run("produce", "big", "--partition", str(partition), stdin=big).code == 0
        words = ("disk", "retire", f"1:{paths[1]}", "--bootstrap-server", host.bootstrap)
        retiring = start((*words, "--throttle", str(RATE)))
        stack.callback(retiring.kill)

        def copied(at_least: int = 1) -> int | None:
            (broker,) = host.run("disk", "list", "--json").json()["brokers"]
            futures = [each for disk in broker["directories"] for each in disk["replicas"] if each["future"]]
            size = sum(each["size"] for each in futures)
            return size if size >= at_least else None

        first = until("a copy", copied)
        began = time.monotonic()
        more = until("more of the copy", lambda: copied(first + RATE))
        assert more - first <= (time.monotonic() - began + 2) * RATE + CHUNK_BYTES
        server.kill()
        retiring.kill()
        retiring.wait()
        stack.callback(launch_odradek(properties).kill)
        assert until("the copy again", copied) >= first
        assert "may be pulled" in host.run("disk", "retire", f"1:{paths[1]}", "--throttle", "100M").out
        assert host.replicas()[paths[1]] == set()
        assert len(host.run("consume", "big").out.split()) == 40
