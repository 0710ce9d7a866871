"""Measures what a scrape of the metrics page costs a node: the processor's time, and the longest wait of a client.

    python -m bench.hot_path.metrics_page [--topics 50] [--partitions 200] [--pages 20]

A node of its own has `topics` x `partitions` partitions. While pages are fetched, another connection sends ApiVersions
continuously. Its slowest answer shows for how long the event loop was busy with a page.
"""

from __future__ import annotations

import argparse
import socket
import statistics
import tempfile
import threading
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import attrs

from odradek import Client
from odradek.client.admin import NewTopic
from odradek.wire.messages.api_versions import ApiVersionsRequest
from testkit.odradek_server import launch_odradek, prepare_odradek
from testkit.processes import ServerProcess, free_ports
from testkit.raw_requests import connect, frame

FORMS: dict[str, tuple[str, dict[str, str]]] = {
    "text": ("", {}),
    "OpenMetrics": ("", {"Accept": "application/openmetrics-text; version=1.0.0"}),
    "Kafka's names": ("?names=kafka", {}),
    "text, gzip": ("", {"Accept-Encoding": "gzip"}),
}
"""The kinds of pages: what stands behind `/metrics`, and the headers of the request."""
SETTLE_SECONDS = 10.0
"""The time after the creation of the partitions in which workers sync the new directories."""
_API_VERSIONS_VERSION = 3


@attrs.frozen
class Cost:
    """The cost of one kind of page. Times are in milliseconds."""

    size_bytes: int
    cpu_ms: float
    """The median of the whole process: the loop, and a worker that compresses."""
    wait_ms: float
    """The median over all pages of the slowest answer to another client while the page was made."""


class _Beside:
    """A client that asks continuously, and remembers its slowest answer."""

    def __init__(self, port: int) -> None:
        self.slowest = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(port,))
        self._thread.start()

    def _run(self, port: int) -> None:
        asked = frame(ApiVersionsRequest("bench", "1"), _API_VERSIONS_VERSION)
        with connect(f"127.0.0.1:{port}") as connection:
            while not self._ended.is_set():
                began = time.perf_counter()
                connection.sendall(asked)
                size = int.from_bytes(connection.recv(4, socket.MSG_WAITALL), "big")
                connection.recv(size, socket.MSG_WAITALL)
                self.slowest = max(self.slowest, time.perf_counter() - began)
                time.sleep(0.001)

    def close(self) -> None:
        self._ended.set()
        self._thread.join()


def measure(server: ServerProcess, port: int, metrics_port: int, form: str, pages: int) -> Cost:
    """Fetch some pages of a kind, with a pause after each."""
    behind, headers = FORMS[form]
    asked = urllib.request.Request(f"http://127.0.0.1:{metrics_port}/metrics{behind}", headers=headers)
    cpu, waits, size = [], [], 0
    beside = _Beside(port)
    try:
        for _ in range(pages):
            time.sleep(0.4)
            # What the client beside costs in the same time is no part of the page.
            idle = server.cpu_seconds()
            began = time.perf_counter()
            time.sleep(0.3)
            beside.slowest = 0.0
            before = server.cpu_seconds()
            rate = (before - idle) / (time.perf_counter() - began)
            began = time.perf_counter()
            with urllib.request.urlopen(asked, timeout=30) as answer:
                size = len(answer.read())
            time.sleep(0.05)
            cpu.append(server.cpu_seconds() - before - rate * (time.perf_counter() - began))
            waits.append(beside.slowest)
    finally:
        beside.close()
    return Cost(size, 1000 * statistics.median(cpu), 1000 * statistics.median(waits))


def run(topics: int, partitions: int, pages: int) -> dict[str, Cost]:
    """Start a node with these partitions, and measure each kind of page."""
    with tempfile.TemporaryDirectory(prefix="odradek-bench-") as directory:
        port, metrics_port = free_ports(2)
        settings = {"odradek.metrics.listener": f"127.0.0.1:{metrics_port}"}
        server = launch_odradek(prepare_odradek(Path(directory), port=port, settings=settings))
        try:
            with Client(f"127.0.0.1:{port}") as client:
                for number in range(topics):
                    client.admin.create_topics([NewTopic(f"topic-{number}", partitions, 1)])
            time.sleep(SETTLE_SECONDS)
            return {form: measure(server, port, metrics_port, form, pages) for form in FORMS}
        finally:
            server.stop()


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table of the costs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--topics", type=int, default=50)
    parser.add_argument("--partitions", type=int, default=200)
    parser.add_argument("--pages", type=int, default=20)
    args = parser.parse_args(arguments)
    costs = run(args.topics, args.partitions, args.pages)
    print(f"{args.topics * args.partitions:,} partitions, {args.pages} pages of each kind")
    for form, cost in costs.items():
        print(
            f"{form:24} {cost.size_bytes:10,} B {cost.cpu_ms:6.1f} ms CPU, others waited {cost.wait_ms:6.1f} ms"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
