"""Measures produce and consume with librdkafka: alternating passes against every server, as medians and ratios.

One pass fills a new topic, consumes it, and deletes it. The memory pages are freed, so that every pass except the
first uses recycled pages. New pages of a virtual machine cost ten times as much, which would hide differences between
servers. Passes of the servers alternate (A B C A B C), so a slow minute of the machine hits all of them. The median
of each is reported.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import cattrs
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.instruments.recycled_pages import RecycledPages
from bench.instruments.supervised import run_client
from bench.throughput.client import Pass, PassResult
from bench.throughput.mock_cluster import PARTITIONS as MOCK_PARTITIONS
from testkit.processes import ServerProcess

ADMIN_SECONDS = 30.0
CONSUME_ROUNDS = 3
_SIXTEEN_KIB_BATCHES = {"batch.size": 16384, "linger.ms": 5}


@attrs.frozen
class Workload:
    """A kind of records and batches, with goals (0: none)."""

    name: str
    title: str
    value_bytes: int
    records: int
    compression: str = "none"
    settings: dict[str, Any] = attrs.field(factory=dict)
    produce_cpu_max: float = 0.0
    """The goal for our CPU per GB when producing: the largest allowed ratio to Kafka's."""
    produce_rate_min: float = 0.0
    """The goal for our messages per second when producing: the smallest allowed ratio to Kafka's."""
    consume_cpu_max: float = 0.0
    consume_rate_min: float = 0.0


WORKLOADS = (
    Workload(
        "1k-16k",
        "1 KiB records, 16 KiB batches",
        1024,
        400_000,
        "none",
        _SIXTEEN_KIB_BATCHES,
        0.4,
        2.0,
        0.8,
        1.0,
    ),
    Workload("1k-default", "1 KiB records, default batches", 1024, 600_000, "none", {}, 0.6, 1.2, 0.8, 1.0),
    Workload(
        "100b-lz4-16k", "100 B records, lz4, 16 KiB batches", 100, 1_500_000, "lz4", _SIXTEEN_KIB_BATCHES, 1.0
    ),
    Workload("100b-lz4", "100 B records, lz4, default batches", 100, 1_500_000, "lz4", {}, 1.0),
    Workload(
        "100b-zstd-16k",
        "100 B records, zstd, 16 KiB batches",
        100,
        1_500_000,
        "zstd",
        _SIXTEEN_KIB_BATCHES,
        1.0,
    ),
    Workload("100b-zstd", "100 B records, zstd, default batches", 100, 1_500_000, "zstd", {}, 1.0),
)


@attrs.frozen
class Contender:
    """A server to measure, with its data directory, the number of its warm-up passes, and the CPUs of its clients. The
    directory is None for a server that stores in memory.
    """

    key: str
    server: ServerProcess
    data: Path | None
    warm_passes: int
    client_cpus: Sequence[int] | None
    address: str | None = None
    """The address of the listener for the measured clients; None means the server's `bootstrap`."""
    client_settings: dict[str, Any] = attrs.field(factory=dict)
    """Additional settings of every client, for example for TLS."""


@attrs.frozen
class Measure:
    """The result of one action in one pass: bytes, duration, and CPU time of broker and client."""

    records: int
    value_bytes: int
    seconds: float
    broker_cpu_seconds: float
    client_cpu_seconds: float

    @property
    def messages_per_second(self) -> float:
        return self.records / self.seconds

    @property
    def megabytes(self) -> float:
        """The megabytes (10**6 bytes) of uncompressed values."""
        return self.records * self.value_bytes / 1e6

    @property
    def cpu_seconds_per_gb(self) -> float:
        return 1e3 * self.broker_cpu_seconds / self.megabytes


@attrs.frozen
class Summary:
    """Medians over the passes, for one server, workload and action."""

    server: str
    workload: str
    action: str
    passes: int
    messages_per_second: float
    mb_per_second: float
    cpu_seconds_per_gb: float
    mb_per_cpu_second: float
    client_cpu_seconds_per_gb: float
    spread: float
    """(max - min) / median of the CPU figure over the passes."""


@attrs.define
class Throughput:
    """All measurements of throughput: servers, options, and results."""

    pages: RecycledPages
    contenders: Sequence[Contender]
    passes: int
    partitions: int
    say: Callable[[str], None]
    scale: float = 1.0
    summaries: list[Summary] = attrs.field(factory=list)
    _serial: int = 0

    def run(self, workload: Workload) -> list[Summary]:
        """Warm up every server, measure them in turn, and return the summaries of this workload."""
        workload = attrs.evolve(workload, records=max(20_000, int(workload.records * self.scale)))
        for contender in self.contenders:
            for number in range(contender.warm_passes):
                self.say(
                    f"{workload.name}: warming {contender.server.name} {number + 1}/{contender.warm_passes}"
                )
                self._pass(contender, workload)
        measured: dict[tuple[str, str], list[Measure]] = {}
        for number in range(self.passes):
            for contender in self.contenders:
                self.say(f"{workload.name}: pass {number + 1}/{self.passes} {contender.server.name}")
                for action, measure in self._pass(contender, workload).items():
                    measured.setdefault((contender.key, action), []).append(measure)
        found = [summarize(key, workload.name, action, each) for (key, action), each in measured.items()]
        self.summaries += found
        return found

    def _pass(self, contender: Contender, workload: Workload) -> dict[str, Measure]:
        self._serial += 1
        topic = f"bench-{workload.name}-{os.getpid()}-{self._serial}"
        if contender.data is None:
            return {"produce": self._measure(contender, workload, topic, "produce")}
        with temporary_topic(contender.server.bootstrap, topic, self.partitions):
            result = {
                action: self._measure(contender, workload, topic, action) for action in ("produce", "consume")
            }
        wait_until_deleted(contender.data, topic)
        return result

    def _measure(self, contender: Contender, workload: Workload, topic: str, action: str) -> Measure:
        settings = dict(contender.client_settings)
        if action == "produce":
            settings |= {"compression.type": workload.compression, **workload.settings}
        partitions = min(self.partitions, MOCK_PARTITIONS) if contender.data is None else self.partitions
        task = Pass(
            action=action,
            bootstrap=contender.address or contender.server.bootstrap,
            topic=topic,
            partitions=partitions,
            records=workload.records,
            value_bytes=workload.value_bytes,
            compressible=workload.compression != "none",
            rounds=1 if action == "produce" else CONSUME_ROUNDS,
            client_settings=settings,
        )
        self.pages.refill()
        figures, cpu_seconds = run_client(
            "bench.throughput.client",
            task,
            contender.server,
            contender.client_cpus,
            during=self.pages.feeding,
        )
        result = cattrs.structure(figures, PassResult)
        return Measure(
            records=result.records,
            value_bytes=workload.value_bytes,
            seconds=result.seconds,
            broker_cpu_seconds=cpu_seconds,
            client_cpu_seconds=result.client_cpu_seconds,
        )


def summarize(server: str, workload: str, action: str, measures: Sequence[Measure]) -> Summary:
    """Return the medians of several passes."""
    cpu = [measure.cpu_seconds_per_gb for measure in measures]
    rate = statistics.median(measure.messages_per_second for measure in measures)
    return Summary(
        server=server,
        workload=workload,
        action=action,
        passes=len(measures),
        messages_per_second=rate,
        mb_per_second=rate * measures[0].value_bytes / 1e6,
        cpu_seconds_per_gb=statistics.median(cpu),
        mb_per_cpu_second=1e3 / statistics.median(cpu),
        client_cpu_seconds_per_gb=statistics.median(
            1e3 * measure.client_cpu_seconds / measure.megabytes for measure in measures
        ),
        spread=(max(cpu) - min(cpu)) / statistics.median(cpu),
    )


def create_topic(
    bootstrap: str, topic: str, partitions: int, config: dict[str, str] | None = None
) -> AdminClient:
    """Create a topic, and return the admin client that was used."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 3})
    admin.create_topics([NewTopic(topic, partitions, 1, config=config or {})])[topic].result(ADMIN_SECONDS)
    return admin


@contextmanager
def temporary_topic(
    bootstrap: str, topic: str, partitions: int, config: dict[str, str] | None = None
) -> Iterator[None]:
    """Create a topic for the length of the block."""
    admin = create_topic(bootstrap, topic, partitions, config)
    try:
        yield
    finally:
        admin.delete_topics([topic])[topic].result(ADMIN_SECONDS)


def wait_until_deleted(data: Path, topic: str, timeout_seconds: float = 60.0) -> None:
    """Wait until all directories of the topic are removed, so that the next pass is not disturbed."""
    deadline = time.monotonic() + timeout_seconds
    while any(data.glob(f"{topic}-*")):
        if time.monotonic() > deadline:
            raise TimeoutError(f"the files of {topic} were not removed within {timeout_seconds:.0f} s")
        time.sleep(0.02)


def warm_page_cache(directory: Path, size_bytes: int) -> None:
    """Write and remove a file of `size_bytes`, so that the kernel has recycled pages for the next seconds.

    A virtual machine that reports free pages to its host loses them after a few seconds. A new page costs 15 times as
    much as a recycled one (measured). So call this just before the measurement.
    """
    path = directory / "page-cache-warmth"
    chunk = bytes(1 << 20)
    with path.open("wb") as file:
        for _ in range(size_bytes >> 20):
            file.write(chunk)
    path.unlink()
