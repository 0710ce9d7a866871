"""Exactly-once on three real nodes: a copier works with transactions while each node in turn is killed with kill -9."""

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
"""Seconds without output after which a copier counts as hung.

If Metadata leaves out a node for a moment, librdkafka 2.16 may wait forever for an old handle of a coordinator.
Timeouts do not end this wait (its issues 5511 and 5456). The same happens with Apache Kafka.
"""
ROUNDS = 6
"""The number of kills, two for each node.

After the first kill the node restarts when others lead. After the second it restarts at once, with a new copier.
"""
SHORT_TOTAL, SHORT_ROUNDS = 5_000, 3
"""In `make test` each node is killed once, and the copier is killed together with the last node."""
SHORT_SILENCE_SECONDS = 10.0
"""Limit for `make test`, several times as long as a change of leaders. A copier that was only slow is killed once more.
"""
LEAVES_SOON = {"broker_session_timeout_ms": "2000", "broker_heartbeat_interval_ms": "200"}
"""Settings that let other nodes quickly take over from a killed node."""


@attrs.define
class Watched:
    """The copier process of one client, replaced by successors after kills and fatal errors."""

    client: str
    bootstrap: str
    log_path: Path
    total: int = TOTAL
    silence_seconds: float = SILENCE_SECONDS
    process: subprocess.Popen[bytes] | None = None
    starts: int = 0
    goal: int = 0
    """The number of records written so far."""

    @property
    def name(self) -> str:
        """The copier's transactional id, which is also its group."""
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
        """True if all records are copied. Otherwise replaces a copier that hangs or asked for a successor."""
        assert self.process is not None
        status = self.process.poll()
        if status is None and time.time() - self.log_path.stat().st_mtime > self.silence_seconds:
            self.kill()
            print(f"{self.name} {self.starts} printed nothing for {self.silence_seconds} s and is killed")
            status = NEEDS_SUCCESSOR
        return self.go_on(status)

    def go_on(self, status: int | None) -> bool:
        """Start a successor if the exit status asks for one; true if all records are copied."""
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
        """Return the complete lines of output. The last line may still be incomplete and is left out."""
        whole, _, _ = self.log_path.read_text(errors="replace").rpartition("\n")
        return [line for line in whole.splitlines() if line]

    def committed(self) -> int:
        """Return the number of records whose commit was acknowledged."""
        events = map(str.split, self.lines())
        return sum(int(words[1]) for words in events if words[0] == "committed")

    def copy_of(self, value: bytes) -> bytes:
        return transform(value)

    def tail(self) -> str:
        return f"{self.name}:\n" + "\n".join(self.log_path.read_text(errors="replace").splitlines()[-30:])


class WatchedTool(Watched):
    """Kafka's TransactionalMessageCopier, which copies the records that exist when it joins its group, and then ends."""

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
        """Start the tool again until all records so far are copied.

        It ends with 1 if fenced, and may fail if no node answers.
        """
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
    """Write the numbers. Number n goes to partition n % PARTITIONS."""
    with Producer(bootstrap_servers=bootstrap) as producer:
        sent = [producer.send(SOURCE, b"%d" % number, partition=number % PARTITIONS) for number in numbers]
        for each in sent:
            each.result(PATIENCE_SECONDS)


SHORT = ("confluent", "odradek")
"""The clients of the short form. Java's tool is left out, since it alone takes as long as these two."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the test for each client. The long form has all clients."""
    if "client" in metafunc.fixturenames:
        names = CLASSES if metafunc.config.getoption("--matrix") else SHORT
        clients = [pytest.param(name, marks=pytest.mark.java if name == "java" else ()) for name in names]
        metafunc.parametrize("client", clients)


def is_there(client: str) -> bool:
    """True if the client is available on this machine."""
    try:
        return client != "java" or ensure_jars().exists()
    except KafkaUnavailable:
        return False


def test_each_number_is_copied_exactly_once(client: str, whole_matrix: bool, tmp_path: Path) -> None:
    """Whichever nodes and copiers are killed, read_committed consumers see each number once and in order (KIP-98,
    KIP-447)."""
    if not is_there(client):
        pytest.skip("Apache Kafka's jars are unavailable")
    with three_nodes(tmp_path, **LEAVES_SOON) as cluster:
        watched = WatchedTool if client == "java" else Watched
        total, rounds = (TOTAL, ROUNDS) if whole_matrix else (SHORT_TOTAL, SHORT_ROUNDS)
        silence_seconds = SILENCE_SECONDS if whole_matrix else SHORT_SILENCE_SECONDS
        copier = watched(client, cluster.bootstrap, tmp_path / "copier.log", total, silence_seconds)
        copy_while_nodes_die(cluster, copier, rounds)


def copy_while_nodes_die(cluster: Cluster, copier: Watched, rounds: int) -> None:
    """Kill each node in turn while the copier works, then compare the copies with the numbers."""
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
