"""`odradek dev` and `odradek server`: nodes are started as users start them, then killed and brought back."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from testkit.odradek_server import living_nursery
from testkit.processes import base_port, free_ports
from tests.cli.running import ROOT, odradek, start

pytestmark = pytest.mark.xdist_group("cli")


@contextmanager
def running(
    *words: str | Path, stop: signal.Signals = signal.SIGTERM, command: str | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a long-lived command. It gets `stop` at the end and must exit with status 0.

    `command` replaces our executable.
    """
    if command is None:
        process = start(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    else:
        process = subprocess.Popen(
            [command, *words], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
    try:
        yield process
    except BaseException as error:
        process.kill()
        _, err = process.communicate()
        error.add_note(f"what the command wrote to stderr: {err.decode()}")
        raise
    process.send_signal(stop)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err.decode()


@contextmanager
def all_running(*commands: Sequence[str | Path]) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Run several nodes and send SIGTERM to all of them at once. Nodes that still run then must exit with status 0.

    If they stopped one by one, the last voter of a quorum would wait for a response that cannot come.
    """
    processes: list[subprocess.Popen[bytes]] = [
        living_nursery().start_with_pipes(words) for words in commands
    ]
    try:
        yield processes
    except BaseException as error:
        for process in processes:
            process.kill()
            _, err = process.communicate()
            error.add_note(f"what the command wrote to stderr: {err.decode()}")
        raise
    ending = [process for process in processes if process.poll() is None]
    for process in ending:
        process.send_signal(signal.SIGTERM)
    for process in ending:
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0, err.decode()


def line(stream: IO[bytes] | None) -> str:
    """Wait for the next line of output."""
    assert stream is not None
    return stream.readline().decode().rstrip("\n")


def alive(pid: int) -> bool:
    """True if a process with this id exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_node_is_killed_stays_dead_and_is_brought_back(tmp_path: Path) -> None:
    """Records acknowledged before kill -9 are there when `odradek server` brings the node back."""
    port = base_port(1)
    address = f"127.0.0.1:{port}"
    with running("dev", "--port", str(port), "--data", tmp_path / "data", stop=signal.SIGINT) as dev:
        found = re.fullmatch(
            rf"node=1 pid=(\d+) address={re.escape(address)} metrics=(\S+)", line(dev.stdout)
        )
        assert found is not None
        pid = int(found[1])
        assert line(dev.stdout) == "ready"
        console = line(dev.stdout).removeprefix("look at the cluster in a browser: ")
        with urllib.request.urlopen(f"{console}api/session") as answer:
            assert json.load(answer)["login_needed"] is False
        with urllib.request.urlopen(found[2]) as page:
            assert b'odradek_info{node_id="1"' in page.read()
        assert odradek("topic", "create", "words", bootstrap=address).code == 0
        assert odradek("produce", "words", bootstrap=address, stdin=b"one\ntwo\n").code == 0

        os.kill(pid, signal.SIGKILL)
        properties = tmp_path / "data" / "node-1.properties"
        told = line(dev.stdout)
        before, _, hint = told.partition("; to bring it back: ")
        assert before == f"node=1 pid={pid} ended: killed by SIGKILL"
        command, *words = shlex.split(hint)
        assert words[-2:] == ["server", str(properties)]
        assert "Connection refused" in odradek("topic", "list", bootstrap=address).refusal()

        with running(*words, command=command) as server:
            assert line(server.stdout) == "ready"
            assert odradek("consume", "words", bootstrap=address).out == "one\ntwo\n"


def test_dev_ends_its_node_and_starts_it_again_on_the_same_data(tmp_path: Path) -> None:
    """SIGTERM to `dev` stops its node cleanly. The next start finds all data, even on another port."""
    data = tmp_path / "data"
    port = base_port(1)
    with running("dev", "--port", str(port), "--data", data, "--json") as dev:
        started = line(dev.stdout)
        pid = int(re.search(r'"pid":(\d+)', started)[1])  # type: ignore[index] # no match is a failure too
        assert line(dev.stdout) == '{"ready":true}'
        assert odradek("topic", "create", "kept", bootstrap=f"127.0.0.1:{port}").code == 0
    assert not alive(pid)
    assert "node.stopped" in (data / "node-1.log").read_text()

    properties = data / "node-1.properties"
    properties.write_text(properties.read_text() + "num.partitions=5\n")
    other = base_port(1)
    with running("dev", "--port", str(other), "--data", data) as dev:
        line(dev.stdout)
        assert line(dev.stdout) == "ready"
        bootstrap = f"127.0.0.1:{other}"
        assert odradek("topic", "create", "five", bootstrap=bootstrap, stdin=b"").code == 0
        topics = {
            t["topic"]: t["partitions"]
            for t in odradek("topic", "list", "--json", bootstrap=bootstrap).json()["topics"]
        }
        assert topics == {"five": 5, "kept": 1}, (
            "the restart keeps the keys that the user added to the properties file"
        )


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    """`dev` on a port in use prints one line with the reason and the log file, and leaves no node running."""
    with socket.create_server(("127.0.0.1", base_port(1))) as taken:
        port = taken.getsockname()[1]
        outcome = odradek("dev", "--port", str(port), "--data", tmp_path / "data")
    assert outcome.code == 1
    (message,) = outcome.err.splitlines()
    assert message.startswith(f"odradek: node 1 did not start: cannot listen on 127.0.0.1:{port}")
    assert "(give another --port; with make: make run PORT=...)" in message
    assert str(tmp_path / "data" / "node-1.log") in message
    assert not (tmp_path / "data" / "node-1.properties").exists()
    found = re.search(r"pid=(\d+)", outcome.out)
    assert found is not None
    assert not alive(int(found[1]))


def test_a_start_on_data_in_use_leaves_the_running_nodes_properties(tmp_path: Path) -> None:
    """A second `dev` on a locked data directory is refused and does not change the properties of the running node."""
    data = tmp_path / "data"
    with running("dev", "--port", str(base_port(1)), "--data", data) as dev:
        line(dev.stdout)
        assert line(dev.stdout) == "ready"
        properties = data / "node-1.properties"
        before = properties.read_bytes()
        outcome = odradek("dev", "--port", str(base_port(1)), "--data", data)
        assert outcome.code == 1
        assert "another process has locked the directory" in outcome.err
        assert properties.read_bytes() == before


def test_a_data_directory_that_cannot_be_made(tmp_path: Path) -> None:
    """`dev` with an impossible data path is refused with the path and the reason, before it starts a node."""
    (tmp_path / "file").write_text("in the way")
    message = odradek("dev", "--data", tmp_path / "file" / "data").refusal()
    assert f"{tmp_path / 'file' / 'data'} cannot be used: Not a directory" in message


def test_server_with_a_bad_configuration(tmp_path: Path) -> None:
    """A bad value ends `server` with 78 and one line that names the key and the value. A missing file also ends it with
    78."""
    properties = write_properties(tmp_path)
    properties.write_text(properties.read_text() + "num.partitions=many\n")
    outcome = odradek("server", properties)
    assert outcome.code == 78
    (message,) = outcome.err.splitlines()
    assert "num.partitions" in message
    assert "many" in message
    missing = odradek("server", tmp_path / "missing.properties")
    assert missing.code == 78
    assert len(missing.err.splitlines()) == 1


def test_server_on_a_directory_that_was_never_formatted(tmp_path: Path) -> None:
    """`server` on an unformatted directory ends with a message that says to format it."""
    properties = write_properties(tmp_path)
    for _ in range(2):  # status 1 asks for a retry: a mount may still appear
        outcome = odradek("server", properties)
        assert outcome.code == 1
        assert "format" in outcome.err.splitlines()[-1]
        (tmp_path / "a").mkdir(exist_ok=True)


def write_properties(directory: Path) -> Path:
    """Write the properties of a node that has two log directories below `directory`."""
    port, controller = free_ports(2)
    path = directory / "node.properties"
    path.write_text(
        "process.roles=broker,controller\nnode.id=7\ncontroller.listener.names=CONTROLLER\n"
        f"controller.quorum.voters=7@127.0.0.1:{controller}\n"
        f"listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}\n"
        f"log.dirs={directory}/a,{directory}/b\n"
    )
    return path


def test_storage_format_and_info(tmp_path: Path) -> None:
    """`storage format` formats all directories of log.dirs. A second run is refused without `--ignore-formatted`."""
    properties = write_properties(tmp_path)
    before = odradek("storage", "info", properties, "--json")
    assert before.code == 1
    assert before.out.count('"problem":"does not exist"') == 2
    cluster_id = "MkU3OEVBNTcwNTJENDM2Qg"
    done = odradek("storage", "format", properties, "--cluster-id", cluster_id, "--json").json()
    paths = [str(tmp_path / "a"), str(tmp_path / "b")]
    assert done == {"cluster_id": cluster_id, "node_id": 7, "directories": paths}
    found = odradek("storage", "info", properties, "--json").json()["directories"]
    assert [each["directory"] for each in found] == paths
    assert {each["cluster_id"] for each in found} == {cluster_id}
    assert len({each["directory_id"] for each in found}) == 2
    assert [each["metadata_log"] for each in found] == [True, False]
    assert "--ignore-formatted" in odradek("storage", "format", properties).refusal()
    assert (
        odradek("storage", "format", properties, "--ignore-formatted").out == "there is nothing to format\n"
    )
