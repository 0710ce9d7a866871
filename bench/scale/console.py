"""Measures the console beside a cluster with many partitions: each page's data, and what three watchers cost.

    python -m bench.scale.console [--partitions 10000] [--seconds 30] [--json FILE]

Three of our nodes run with so many partitions of three replicas. The console is asked for the data of each page twice: in
its first minute, and later. The reference in the same run is one Metadata answer with all partitions, received and
decoded.

Then three watchers follow the first page at the same time (server-sent events). The CPU of the console and of all nodes is
compared with that of the same nodes while nobody watches.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

import attrs

from bench.instruments.tables import table
from bench.report import OURS, machine
from bench.scale.five_nodes import Bench
from jepsen_tests.network import Loopback
from jepsen_tests.real_cluster import Cluster
from jepsen_tests.systems import Odradek
from odradek.env.child_python import child_program
from testkit.processes import free_ports

NODES, WATCHERS = 3, 3
FORGET_SECONDS = 2.0
"""Equal requests within a second share an answer, so each request comes later than that."""
SETTLE_SECONDS, ANSWER_SECONDS = 10.0, 60.0
PAGES = (
    "overview", "brokers", "quorum", "topics", "topics/many-00000", "topics/many-00000/configs",
    "topics/many-00000/groups", "groups", "moves", "transactions", "clients", "access", "history",
)  # fmt: skip


@attrs.define
class RunningConsole:
    """A console as a process of its own."""

    port: int
    process: subprocess.Popen[bytes]

    def seconds(self, path: str) -> float:
        """Return the seconds until the data of a page have come. Raises `RuntimeError` for an error."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_SECONDS)
        began = time.monotonic()
        connection.request("GET", f"/api/{path}")
        answer = connection.getresponse()
        body = answer.read()
        took = time.monotonic() - began
        connection.close()
        if answer.status != 200:
            raise RuntimeError(f"/api/{path} answered {answer.status}: {body[:200].decode(errors='replace')}")
        return took

    def watch(self, until: float) -> None:
        """Follow the first page until then."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_SECONDS)
        connection.request("GET", "/api/events?view=overview")
        answer = connection.getresponse()
        while time.monotonic() < until and answer.readline():
            pass
        connection.close()

    def cpu_seconds(self) -> float:
        """Return the processor time that the process has used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def running_console(bootstrap: str) -> Iterator[RunningConsole]:
    """Run a console during the block."""
    (port,) = free_ports(1)
    words = ["console", "--listen", f"127.0.0.1:{port}", "--bootstrap-server", bootstrap]
    process = subprocess.Popen([*child_program("odradek"), *words], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield RunningConsole(port, process)
    finally:
        process.terminate()
        process.wait(ANSWER_SECONDS)


def cpu_share(
    cluster: Cluster, console: RunningConsole, seconds: float, watchers: int
) -> tuple[float, float]:
    """Return the CPU in percent of a core while so many watch: of the console, and of all nodes together."""
    until = time.monotonic() + seconds
    threads = [threading.Thread(target=console.watch, args=(until,)) for _ in range(watchers)]
    of_console, of_nodes = console.cpu_seconds(), sum(each.cpu_seconds() for each in cluster.nodes.values())
    for thread in threads:
        thread.start()
    time.sleep(seconds)
    of_console = console.cpu_seconds() - of_console
    of_nodes = sum(each.cpu_seconds() for each in cluster.nodes.values()) - of_nodes
    for thread in threads:
        thread.join()
    return 100 * of_console / seconds, 100 * of_nodes / seconds


def measure(directory: Path, partitions: int, seconds: float) -> list[list[str]]:
    """Make all measurements, and return the rows of the table."""
    cluster = Cluster(Odradek(), Loopback(), directory, size=NODES)
    cluster.prepare()
    rows = []
    try:
        cluster.start_all()
        bench = Bench(cluster)
        bench.grow(partitions)
        time.sleep(SETTLE_SECONDS)
        reference = bench.metadata()["Metadata answer, ms"] / 1e3
        rows.append(["Metadata answer (reference)", f"{reference:.3f} s", "1.0"])
        with running_console(
            ",".join(f"{each.host}:{each.port}" for each in cluster.nodes.values())
        ) as console:
            for when in ("first", "later"):
                for page in PAGES:
                    time.sleep(FORGET_SECONDS)
                    took = console.seconds(page)
                    rows.append([f"/api/{page}, {when}", f"{took:.3f} s", f"{took / reference:.1f}"])
            time.sleep(SETTLE_SECONDS)
            for watchers in (0, WATCHERS, 0, WATCHERS):
                of_console, of_nodes = cpu_share(cluster, console, seconds, watchers)
                rows.append([f"{watchers} watchers: console, {NODES} nodes", f"{of_console:.2f} %, {of_nodes:.2f} %", ""])  # fmt: skip
    finally:
        cluster.close()
    return rows


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.scale.console")
    parser.add_argument("--partitions", type=int, default=10_000, help="partitions of three replicas (default: 10000)")  # fmt: skip
    parser.add_argument("--seconds", type=float, default=30.0, help="how long each CPU figure is taken (default: 30)")  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-console-") as name:
        rows = measure(Path(name) / OURS, options.partitions, options.seconds)
    print(table(["figure", f"{options.partitions:,} partitions", "times the reference"], rows))
    if options.json is not None:
        options.json.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
