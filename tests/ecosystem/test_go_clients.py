"""Two Go clients: franz-go copies exactly once while a node is killed, and sarama asks for lag as exporters do."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from jepsen_tests.real_cluster import Cluster
from testkit.processes import spawn
from tests.ecosystem.programs import counted, create_topics, produce, until

pytestmark = pytest.mark.ecosystem

SOURCES = Path(__file__).parent / "go"
BUILD_SECONDS = 500
RECORDS = 3_000
OLD_GO = "go.mod requires go >="


def built(target: Path) -> Path:
    """Build the program with the modules and hashes of `go.sum`. Skip the test without a recent Go."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("no go on the path")
    program = target / "clients"
    done = subprocess.run(
        [go, "build", "-mod=readonly", "-o", program, "."],
        cwd=SOURCES,
        env={**os.environ, "GOFLAGS": "", "GOTOOLCHAIN": "local"},
        capture_output=True,
        text=True,
        timeout=BUILD_SECONDS,
        check=False,
    )
    if OLD_GO in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    return program


def test_franz_go_copies_exactly_once_and_sarama_sees_the_lag(cluster: Cluster, tmp_path: Path) -> None:
    """KIP-447: a transaction's offsets and records are committed together. Afterwards the group has no lag."""
    program = built(tmp_path)
    values = [str(number) for number in range(RECORDS)]
    create_topics(cluster.bootstrap, {"numbers": 2, "copies": 2})
    assert produce(cluster.bootstrap, "numbers", values) == RECORDS
    log = tmp_path / "copier.log"
    command = [program, "copy", cluster.bootstrap, "numbers", "copies", str(RECORDS)]
    copier = spawn("franz-go", command, bootstrap="", log_path=log)
    try:
        until("the first copies", lambda: counted(cluster.bootstrap, "copies"), log.read_text)
        cluster.kill(2)
        until("the copier's end", lambda: not copier.is_running(), log.read_text)
    finally:
        copier.kill()
    assert copier.process.returncode == 0, log.read_text()
    assert counted(cluster.bootstrap, "copies") == Counter(values)
    cluster.start(2)

    def partitions() -> list[list[int]]:
        asked = [program, "lag", cluster.bootstrap, "copiers", "numbers"]
        done = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=False)
        return [[int(word) for word in line.split()] for line in done.stdout.splitlines()]

    found = until("all replicas in sync", lambda: is_whole(partitions()), lambda: str(partitions()))
    assert sum(end for _, _, end, _ in found) == RECORDS
    assert all(committed == end for _, committed, end, _ in found)


def is_whole(partitions: list[list[int]]) -> list[list[int]]:
    """Return both partitions if each has three replicas in sync, else none."""
    return partitions if [line[3] for line in partitions] == [3, 3] else []
