"""Exactly once on three real nodes: a copier by transactions, while every node in turn is killed with kill -9."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

import attrs
import pytest

from jepsen_tests.real_cluster import Cluster
from odradek import Client, Producer
from testkit.kafka_server import KafkaUnavailable, ensure_jars, java_arguments
from testkit.processes import command_prefix
from tests.cluster.copier import NEEDS_SUCCESSOR, transform
from tests.cluster.copiers.api import PARTITIONS, RECORDS, TRANSACTION_TIMEOUT_MS
from tests.cluster.copiers.clients import CLASSES
from tests.cluster.exactly_once import (
    PATIENCE_SECONDS,
    SOURCE,
    TARGET,
    committed,
    has_no_open_transaction,
    is_in_sync,
    leads_nothing,
    read,
    tails,
    three_nodes,
    until,
)

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(shutil.which("setpriv") is None, reason="no setpriv (util-linux)"),
]
ROOT = Path(__file__).resolve().parents[2]
TOTAL = 20_000
SILENCE_SECONDS = 25.0
"""Beyond this a copier is taken for hung. librdkafka 2.16 may wait without end for a coordinator's old handle.

Its issues 5511 and 5456 tell how: Metadata leaves a node out for a moment, and time-outs do not count. It happens with
Apache Kafka, too.
"""
ROUNDS = 6
"""Each node is killed twice: once it is away until others lead, once it comes back at once (with the copier killed too)."""
SHORT_TOTAL, SHORT_ROUNDS = 5_000, 3
"""In the short form, that of `make test`, each node is killed once, and the copier with the last one."""
SHORT_SILENCE_SECONDS = 10.0
"""In the short form: several times as long as until others lead. A copier that only was slow is killed once more then."""
LEAVES_SOON = {"broker_session_timeout_ms": "2000", "broker_heartbeat_interval_ms": "200"}
"""Settings by which others soon lead what a killed node has led."""


@attrs.define
class Watched:
    """The copier of one client, and its successors, which the nemesis starts in between."""

    client: str
    bootstrap: str
    log_path: Path
    total: int = TOTAL
    silence_seconds: float = SILENCE_SECONDS
    process: subprocess.Popen[bytes] | None = None
    starts: int = 0
    goal: int = 0
    """The records that are written so far."""

    @property
    def name(self) -> str:
        """The transactional id and the group."""
        return f"copier-{self.client}"

    def command(self) -> Sequence[str]:
        words = (self.client, self.bootstrap, SOURCE, TARGET, self.name, str(self.total))
        return (sys.executable, "-m", "tests.cluster.copier", *words)

    def start(self) -> None:
        with self.log_path.open("ab", buffering=0) as log:
            log.write(b"started\n")
            self.process = subprocess.Popen(
                [*command_prefix(), *self.command()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
            )
        self.starts += 1

    def is_done(self) -> bool:
        """True if all is copied; a copier that asked for a successor gets one, and so does one that hangs."""
        assert self.process is not None
        status = self.process.poll()
        if status is None and time.time() - self.log_path.stat().st_mtime > self.silence_seconds:
            self.kill()
            print(f"{self.name} {self.starts} was silent for {self.silence_seconds} s: killed")
            status = NEEDS_SUCCESSOR
        return self.go_on(status)

    def go_on(self, status: int | None) -> bool:
        """Start a successor if it needs one; true if all is copied."""
        if status == NEEDS_SUCCESSOR:
            self.start()
        else:
            assert status in (None, 0), self.tail()
        return status == 0

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def lines(self) -> list[str]:
        """The whole lines; the last one may just be on its way."""
        whole, _, _ = self.log_path.read_text(errors="replace").rpartition("\n")
        return [line for line in whole.splitlines() if line]

    def committed(self) -> int:
        """The number of records whose commit was answered."""
        events = map(str.split, self.lines())
        return sum(int(words[1]) for words in events if words[0] == "committed")

    def copy_of(self, value: bytes) -> bytes:
        return transform(value)

    def tail(self) -> str:
        return f"{self.name}:\n" + "\n".join(self.log_path.read_text(errors="replace").splitlines()[-30:])


class WatchedTool(Watched):
    """Kafka's TransactionalMessageCopier, which copies what there is when it joins its group, and ends."""

    def command(self) -> Sequence[str]:
        options = {
            "--input-topic": SOURCE,
            "--input-partition": "0",
            "--output-topic": TARGET,
            "--broker-list": self.bootstrap,
            "--consumer-group": self.name,
            "--transactional-id": self.name,
            "--transaction-size": str(RECORDS),
            "--transaction-timeout": str(TRANSACTION_TIMEOUT_MS),
        }
        words = itertools.chain.from_iterable(options.items())
        tool = "org.apache.kafka.tools.TransactionalMessageCopier"
        return (*java_arguments(), tool, *words, "--group-mode", "--use-group-metadata")

    def go_on(self, status: int | None) -> bool:
        """It ends with 1 where it was fenced, and may fail so while no node answers: its successor goes on."""
        if status is None:
            return False
        told = committed(self.bootstrap, self.name)
        if told < self.goal:
            self.start()
        return told == self.total

    def committed(self) -> int:
        counts = [0]
        for line in self.lines():
            if line == "started":
                counts.append(0)
            elif line.startswith("{"):
                counts[-1] = json.loads(line)["totalProcessed"]
        return sum(counts)

    def copy_of(self, value: bytes) -> bytes:
        return value


def write(bootstrap: str, numbers: range) -> None:
    """Number n goes to partition n % PARTITIONS."""
    with Producer(bootstrap_servers=bootstrap) as producer:
        sent = [producer.send(SOURCE, b"%d" % number, partition=number % PARTITIONS) for number in numbers]
        for each in sent:
            each.result(PATIENCE_SECONDS)


SHORT = ("confluent", "odradek")
"""The clients of the short form. Java's tool starts anew for each part of the numbers, and takes as long as both."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Ask all clients in the long form."""
    if "client" in metafunc.fixturenames:
        names = CLASSES if metafunc.config.getoption("--matrix") else SHORT
        clients = [pytest.param(name, marks=pytest.mark.java if name == "java" else ()) for name in names]
        metafunc.parametrize("client", clients)


def is_there(client: str) -> bool:
    """True if the client can be started here."""
    try:
        return client != "java" or ensure_jars().exists()
    except KafkaUnavailable:
        return False


def test_each_number_is_copied_exactly_once(client: str, whole_matrix: bool, tmp_path: Path) -> None:
    """KIP-98, KIP-447: whichever nodes and copiers die, committed readers see each number once, and in order."""
    if not is_there(client):
        pytest.skip("Apache Kafka's jars are unavailable")
    with three_nodes(tmp_path, **LEAVES_SOON) as cluster:
        watched = WatchedTool if client == "java" else Watched
        total, rounds = (TOTAL, ROUNDS) if whole_matrix else (SHORT_TOTAL, SHORT_ROUNDS)
        silence_seconds = SILENCE_SECONDS if whole_matrix else SHORT_SILENCE_SECONDS
        copier = watched(client, cluster.bootstrap, tmp_path / "copier.log", total, silence_seconds)
        copy_while_nodes_die(cluster, copier, rounds)


def copy_while_nodes_die(cluster: Cluster, copier: Watched, rounds: int) -> None:
    """Kill each node while the copier works; then compare the copies with the numbers."""
    bootstrap = cluster.bootstrap
    begun = time.monotonic()

    def note() -> str:
        return f"{copier.tail()}\n{tails(cluster)}"

    def at_least(count: int) -> bool:
        return copier.is_done() or copier.committed() >= count

    def say(what: str) -> None:
        print(f"{time.monotonic() - begun:.1f} s: {what} at {copier.committed()} committed")

    admin = Client(bootstrap, timeout_ms=5_000)
    steps = [copier.total * step // rounds for step in range(rounds + 1)]
    for number, (low, high) in enumerate(pairwise(steps)):
        write(bootstrap, range(low, high))
        copier.goal = high
        if number == 0:
            copier.start()
        until("progress", partial(at_least, copier.committed() + 500), note)
        victim = number % 3 + 1
        cluster.kill(victim)
        if number < min(3, rounds - 1):
            until(f"the end of {victim}'s reign", partial(leads_nothing, admin, victim), note)
        else:
            copier.kill()
            copier.start()
        say(f"killed {victim}")
        cluster.start(victim)
        cluster.wait_until_whole()
        until("all in sync", lambda: copier.is_done() is not None and is_in_sync(admin), note)
        say("in sync")
    until("all copied", copier.is_done, note)
    say(f"done by {copier.starts} copiers")
    admin.close()
    until("no open transaction", partial(has_no_open_transaction, bootstrap), note)
    for partition, values in read(bootstrap, "read_committed").items():
        expected = [copier.copy_of(b"%d" % n) for n in range(partition, copier.total, PARTITIONS)]
        assert values == expected, partition
