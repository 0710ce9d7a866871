"""The costs of a server without load: start, idle connections, empty partitions, recovery."""

from __future__ import annotations

import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import attrs

from bench.instruments.supervised import run_client
from bench.throughput.client import Pass
from bench.throughput.passes import create_topic, temporary_topic, warm_page_cache
from odradek.wire.api_keys import ApiKey
from odradek.wire.messages.api_versions import ApiVersionsRequest
from odradek.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from testkit.kafka_server import start_kafka
from testkit.odradek_server import launch_odradek, prepare_odradek
from testkit.processes import ServerProcess
from testkit.raw_requests import connect, exchange, framed

STARTS = 3
RECOVERY_RECORD_BYTES = 1024
SETTLE_SECONDS = 0.5
_LIST_OFFSETS_VERSION = 7
_LATEST = -1
_API_VERSIONS_VERSION = 3


@attrs.frozen
class Figure:
    """A measured number with its unit and its upper limit (0: none)."""

    server: str
    name: str
    value: float
    unit: str
    at_most: float = 0.0

    @property
    def holds(self) -> bool:
        return not self.at_most or self.value <= self.at_most


Start = Callable[[Path], ServerProcess]
"""A function that starts a server in a directory, and formats the directory the first time."""


def start_our_node(directory: Path) -> ServerProcess:
    """Start our node; formatting is not part of its `ready_seconds`."""
    properties = directory / "server.properties"
    if not properties.exists():
        prepare_odradek(directory)
    return launch_odradek(properties)


def start_reference(directory: Path) -> ServerProcess:
    """Start Apache Kafka; formatting is not part of its `ready_seconds`."""
    return start_kafka(directory)


STARTERS: dict[str, Start] = {"odradek": start_our_node, "kafka": start_reference}


def startup(key: str) -> list[Figure]:
    """Measure the seconds until a server with a formatted directory serves, and its resident memory then: medians of
    several starts.
    """
    seconds: list[float] = []
    mebibytes: list[float] = []
    for _ in range(STARTS):
        with tempfile.TemporaryDirectory(prefix=f"bench-{key}-") as name:
            server = STARTERS[key](Path(name))
            try:
                seconds.append(server.ready_seconds)
                mebibytes.append(server.rss_kib() / 1024)
            finally:
                server.kill()
    ours = key == "odradek"
    return [
        Figure(key, "ready after start", statistics.median(seconds), "s", 1.0 if ours else 0.0),
        Figure(key, "RSS after start", statistics.median(mebibytes), "MiB", 80.0 if ours else 0.0),
    ]


def idle_connections(key: str, count: int) -> list[Figure]:
    """Measure the resident memory per idle connection, which has sent only ApiVersions."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if count + 200 > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(count + 1000, hard), hard))
    frame = framed(ApiKey.API_VERSIONS, _API_VERSIONS_VERSION, ApiVersionsRequest("bench", "1.0"))
    with tempfile.TemporaryDirectory(prefix=f"bench-{key}-") as name, ExitStack() as open_connections:
        server = STARTERS[key](Path(name))
        open_connections.callback(server.kill)
        exchange(server.bootstrap, frame, ApiKey.API_VERSIONS, _API_VERSIONS_VERSION)
        before = settled_rss_kib(server)
        for _ in range(count):
            connection = open_connections.enter_context(connect(server.bootstrap))
            connection.sendall(frame)
            if len(connection.recv(65536)) < 10:
                raise RuntimeError(f"{server.name} did not answer ApiVersions on one of {count} connections")
        after = settled_rss_kib(server)
    limit = 4.0 if key == "odradek" else 0.0
    return [Figure(key, f"RSS per idle connection ({count})", (after - before) / count, "KiB", limit)]


def empty_partitions(key: str, count: int) -> list[Figure]:
    """Measure the resident memory per partition of a topic that was never used."""
    with tempfile.TemporaryDirectory(prefix=f"bench-{key}-") as name:
        server = STARTERS[key](Path(name))
        try:
            with temporary_topic(server.bootstrap, "first", 1):
                before = settled_rss_kib(server)
                started = time.monotonic()
                with temporary_topic(server.bootstrap, "many", count):
                    seconds = time.monotonic() - started
                    _wait_for_directories(Path(name) / "data", "many", count)
                    after = settled_rss_kib(server)
        finally:
            server.kill()
    limit = 4.0 if key == "odradek" else 0.0
    return [
        Figure(key, f"RSS per empty partition ({count})", (after - before) / count, "KiB", limit),
        Figure(key, f"creating {count} partitions", seconds, "s"),
    ]


def recovery(key: str, log_bytes: int) -> list[Figure]:
    """Kill a server (-9) that has `log_bytes` in batches of 16 KiB. Measure the seconds until it serves all records
    after a restart.
    """
    records = log_bytes // RECOVERY_RECORD_BYTES
    with tempfile.TemporaryDirectory(prefix=f"bench-{key}-") as name:
        directory = Path(name)
        warm_page_cache(directory, log_bytes)
        server = STARTERS[key](directory)
        try:
            create_topic(server.bootstrap, "killed", 1)
            task = Pass(
                "produce",
                server.bootstrap,
                "killed",
                1,
                records,
                RECOVERY_RECORD_BYTES,
                compressible=False,
                client_settings={"batch.size": 16384, "linger.ms": 5},
            )
            run_client("bench.throughput.client", task, server, None)
            server.kill()
            started = time.monotonic()
            server = STARTERS[key](directory)
            stored = _wait_for_end_offset(server.bootstrap, "killed")
            seconds = time.monotonic() - started
        finally:
            server.kill()
            shutil.rmtree(directory / "data", ignore_errors=True)
    if stored != records + 1:
        raise RuntimeError(
            f"{server.name} has only {stored} of {records + 1} records after kill -9 and a restart"
        )
    gibibytes = log_bytes / (1 << 30)
    limit = 2.0 * max(1.0, gibibytes) if key == "odradek" else 0.0
    return [Figure(key, f"serving again after kill -9 with {gibibytes:g} GiB", seconds, "s", limit)]


def settled_rss_kib(server: ServerProcess) -> int:
    time.sleep(SETTLE_SECONDS)
    return server.rss_kib()


def _wait_for_directories(data: Path, topic: str, count: int, timeout_seconds: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_seconds
    while sum(1 for _ in data.glob(f"{topic}-*")) < count:
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"topic {topic} has fewer than {count} directories after {timeout_seconds:.0f} s"
            )
        time.sleep(0.05)


def _wait_for_end_offset(bootstrap: str, topic: str, timeout_seconds: float = 120.0) -> int:
    """Ask for a partition's end offset until a leader answers, and return it."""
    asked = ListOffsetsTopic(topic, [ListOffsetsPartition(0, -1, _LATEST)])
    frame = framed(ApiKey.LIST_OFFSETS, _LIST_OFFSETS_VERSION, ListOffsetsRequest(-1, 0, [asked]))
    deadline = time.monotonic() + timeout_seconds
    while True:
        response = exchange(bootstrap, frame, ApiKey.LIST_OFFSETS, _LIST_OFFSETS_VERSION)
        partition = response.topics[0].partitions[0]
        if partition.error_code == 0:
            return int(partition.offset)
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"ListOffsets for {topic} still returns error {partition.error_code} "
                f"{timeout_seconds:.0f} s after the restart"
            )
        time.sleep(0.02)
