"""The test nursery forks processes. They start faster than those of the test itself, but otherwise behave alike."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from odradek.node.main import NEEDS_OPERATOR
from odradek.version import version_line
from testkit.odradek_server import launch_odradek, living_nursery, prepare_odradek
from testkit.processes import ServerFailed
from tests.cli.running import ROOT, has_ended

pytestmark = pytest.mark.long
WAIT_SECONDS = 60.0

ORPHAN = """
import signal, sys
from testkit.nursery import Nursery
process = Nursery().start_with_pipes(["server", sys.argv[1]])
assert process.stdout.readline() == b"ready\\n"
print(process.pid, flush=True)
signal.pause()
"""


def test_a_command_has_its_streams_and_its_status() -> None:
    """Stdout and stderr stay separate, also after an earlier command. A refused command keeps its exit status."""
    said = living_nursery().start_with_pipes(["--version"])
    assert said.communicate(timeout=WAIT_SECONDS) == (f"{version_line()}\n".encode(), b"")
    refused = living_nursery().start_with_pipes(["server", "/no/such/file"])
    out, err = refused.communicate(timeout=WAIT_SECONDS)
    assert (refused.returncode, out) == (NEEDS_OPERATOR, b"")
    assert b"cannot read /no/such/file" in err


def test_it_has_the_surroundings_of_the_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A started process has the environment, the working directory and the umask that the test has at that moment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ODRADEK_BOOTSTRAP", "127.0.0.1:1")
    refused = living_nursery().start_with_pipes(["topic", "list"])
    assert b"127.0.0.1:1" in refused.communicate(timeout=WAIT_SECONDS)[1]
    prepare_odradek(tmp_path)
    before = os.umask(0o077)
    try:
        server = launch_odradek(Path("server.properties"))
    finally:
        os.umask(before)
    try:
        assert Path("server.log").stat().st_mode & 0o077 == 0
        assert (tmp_path / "data" / ".lock").stat().st_mode & 0o077 == 0
        assert os.readlink(f"/proc/{server.pid}/cwd") == str(tmp_path)
    finally:
        server.kill()
    assert server.process.returncode == -signal.SIGKILL
    assert not server.is_running()


def test_a_node_that_does_not_come_up_says_why(tmp_path: Path) -> None:
    """If a node fails to start, the error shows its exit status and its last log lines."""
    properties = prepare_odradek(tmp_path)
    (tmp_path / "data" / "meta.properties").unlink()
    with pytest.raises(ServerFailed, match=rf"status {NEEDS_OPERATOR}:[^!]*meta.properties"):
        launch_odradek(properties)


def test_nodes_die_with_the_test(tmp_path: Path) -> None:
    """When a test session is killed, its nodes end, too."""
    command = [sys.executable, "-c", ORPHAN, prepare_odradek(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as session:
        assert session.stdout is not None
        node = int(session.stdout.readline())
        session.kill()
    assert has_ended(node, WAIT_SECONDS), "the node survived its test session"
