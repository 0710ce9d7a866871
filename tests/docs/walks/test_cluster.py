"""docs/cluster.md, from its first command to its last: three nodes, a killed node, a fourth node, a removed node."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

import pytest

from testkit.processes import base_port
from tests.cli.running import environment, start
from tests.docs.markdown import blocks

pytestmark = pytest.mark.xdist_group("cluster")

TIMEOUT_SECONDS = 120.0
QUICK = "broker.session.timeout.ms=2000\nbroker.heartbeat.interval.ms=200\n"
"""Shorter timeouts: a reader of the page waits for nine seconds, and the test for two."""


class Reader:
    """A reader of the page with two terminals and ports of their own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.port = base_port(4)
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.environment = environment(self.addresses("9092,9093,9094,9095")) | {"PATH": path}
        self.running: list[subprocess.Popen[bytes]] = []
        self.pids: dict[str, int] = {}

    def addresses(self, ports: str) -> str:
        return ",".join(f"127.0.0.1:{self.port + int(each) - 9092}" for each in ports.split(","))

    def here(self, code: str) -> str:
        """Replace the page's ports by the ports of this reader."""
        return re.sub(r"127\.0\.0\.1:(\d+)", lambda match: self.addresses(match[1]), code)

    def launch(self, code: str) -> None:
        """Start a command that goes on running, and wait until it is ready."""
        words = shlex.split(code)[1:]
        if words[0] == "dev":
            words += ["--port", str(self.port), "--data", str(self.home / "data")]
        process = start(
            [str(self.home / word) if "data/" in word else word for word in words], stdout=subprocess.PIPE
        )
        self.running.append(process)
        assert process.stdout is not None
        while (line := _line(process.stdout)) != "ready":
            assert line, "the nodes ended"
            found = re.match(r"node=(\d) pid=(\d+) address", line)
            if found is not None:
                self.pids[found[1]] = int(found[2])

    def run(self, code: str, place: str) -> str:
        done = subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", self.here(code)],
            capture_output=True,
            text=True,
            env=self.environment,
            cwd=self.home,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, ""), place
        return done.stdout

    def status(self) -> str:
        """Return what `cluster status` prints, for a cluster with problems or without."""
        return self.run("odradek cluster status || [ $? = 3 ]", "status")

    def wait_until_in_sync(self) -> None:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not re.search(r"under-replicated +0\n", self.status()):
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def end(self) -> None:
        for process in self.running:
            process.send_signal(signal.SIGINT)
        for process in self.running:
            process.communicate(timeout=TIMEOUT_SECONDS)
        self.running.clear()


def _line(stream: IO[bytes]) -> str:
    return stream.readline().decode().rstrip("\n")


def test_every_command_does_what_the_page_says(tmp_path: Path) -> None:
    """A reader starts three nodes, kills any node, adds a fourth, and drains and removes the first. No record
    is lost."""
    (tmp_path / "data").mkdir()
    for number in range(1, 5):
        (tmp_path / "data" / f"node-{number}.properties").write_text(QUICK)
    reader = Reader(tmp_path)
    victims = ["2", "1"]
    try:
        for block in blocks("docs/cluster.md", "sh"):
            place = f"docs/cluster.md:{block.line}"
            if block.code.startswith("kill"):
                signal_number = signal.SIGKILL if "-9" in block.code else signal.SIGTERM
                os.kill(reader.pids[victims.pop(0)], signal_number)
                continue
            if block.code.startswith("odradek dev --nodes 4"):
                reader.wait_until_in_sync()
                reader.end()
            if block.code.startswith(("odradek dev", "odradek server")):
                reader.launch(block.code)
                continue
            output = reader.run(block.code, place)
            if "odradek consume" in block.code:
                assert output.split()[-1] == "2000", place
    finally:
        reader.end()
