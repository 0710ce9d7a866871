"""Compares our log cleaner with Apache Kafka's: bytes of records cleaned per CPU second, and the effect on other
clients.

    python -m bench.disks.cleaner             # 100 B and 1 KiB records; none, lz4, zstd
    python -m bench.disks.cleaner --beside    # also the latency of another topic's producer during cleaning
    python -m bench.disks.cleaner --memory 10 # only the memory that our cleaner takes for 10 GiB of 1 KiB records

Both servers get the same records from the same client, in a topic that is not compacted. Then the topic's cleanup
policy is changed. The time is measured until the checkpoint shows that all finished segments are clean. CPU is that
of the server and its child processes, minus that of an idle server. Kafka cleans one topic first, so that the JVM has
compiled the code. Passes alternate.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random

import attrs
from confluent_kafka import Producer

from bench.instruments.tables import table
from bench.throughput.passes import create_topic
from odradek import Admin
from odradek.client.admin import AlterConfig, ConfigOperation, ConfigResource, ResourceType
from testkit.kafka_server import KafkaUnavailable, start_kafka
from testkit.odradek_server import start_odradek
from testkit.processes import ServerProcess

ADMIN_SECONDS = 30.0
CLEAN_SECONDS_MAX = 300.0
LOOK_SECONDS = 0.05
IDLE_SECONDS = 2.0
SEGMENT_BYTES = 4 << 20
SETTINGS = {
    "log.cleaner.backoff.ms": "200",
    "log.cleaner.min.cleanable.ratio": "0.01",
    "log.segment.delete.delay.ms": "0",
}
TICK = os.sysconf("SC_CLK_TCK")
PROBES_PER_SECOND = 200
PROBE_SECONDS = 4.0
THROTTLE_BYTES = 30_000_000


@attrs.frozen
class Load:
    """The records of a pass: `records` with values of `value_bytes`, over `keys` different keys."""

    value_bytes: int
    codec: str
    records: int
    keys: int

    @property
    def mebibytes(self) -> float:
        return self.records * self.value_bytes / (1 << 20)

    def __str__(self) -> str:
        return f"{self.value_bytes} B, {self.codec}"


@attrs.define
class Contender:
    """A server, and the directory of its logs. `cpu_seconds` and `seconds` have the times of each pass, by load."""

    name: str
    server: ServerProcess
    data: Path
    cpu_seconds: dict[str, list[float]] = attrs.Factory(dict)
    seconds: dict[str, list[float]] = attrs.Factory(dict)


def loads(scale: float) -> list[Load]:
    """Return the loads that are measured: about 80 and 160 MiB of values each."""
    return [
        Load(size, codec, int(records * scale), keys)
        for size, records, keys in ((100, 800_000, 50_000), (1024, 160_000, 20_000))
        for codec in ("none", "lz4", "zstd")
    ]


def cpu_seconds(pid: int) -> float:
    """Return the CPU time in seconds, user and system, of a process and all its children. Children that have ended
    count, too.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        children = [
            int(child)
            for task in Path(f"/proc/{pid}/task").iterdir()
            for child in (task / "children").read_text().split()
        ]
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return sum(map(int, fields[11:15])) / TICK + sum(map(cpu_seconds, children))


def fill(bootstrap: str, topic: str, load: Load) -> None:
    """Write the records of a load. Half of each value is compressible."""
    random = Random(load.value_bytes)
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "compression.type": load.codec,
            "linger.ms": 20,
            "enable.idempotence": True,
            "queue.buffering.max.messages": 200_000,
            "log_level": 3,
        }
    )
    for number in range(load.records):
        key = b"key-%07d" % random.randrange(load.keys)
        value = random.randbytes(load.value_bytes // 2).ljust(load.value_bytes, b"-")
        while True:
            try:
                producer.produce(topic, value, key, 0)
                break
            except BufferError:
                producer.poll(0.05)
        if number % 1000 == 0:
            producer.poll(0)
    left = producer.flush(120.0)
    if left:
        raise RuntimeError(f"{left} of {load.records} records to {topic} were not acknowledged within 120 s")


def active_base(data: Path, topic: str) -> int:
    """Return the base offset of the topic's active segment."""
    return max(int(path.stem) for path in (data / f"{topic}-0").glob("*.log"))


def clean_end(data: Path, topic: str) -> int:
    """Return the offset up to which the topic is clean, from the checkpoint file."""
    try:
        lines = (data / "cleaner-offset-checkpoint").read_text().split("\n")
    except FileNotFoundError:
        return 0
    return next((int(line.split()[2]) for line in lines if line.startswith(f"{topic} 0 ")), 0)


def alter(bootstrap: str, resource: ConfigResource, change: AlterConfig) -> None:
    """Change one configuration value of a resource."""
    with Admin(bootstrap_servers=bootstrap) as admin:
        for _, error in admin.incremental_alter_configs({resource: [change]}, timeout=ADMIN_SECONDS):
            if error is not None:
                raise error


def set_policy(bootstrap: str, topic: str, policy: str) -> None:
    """Set the topic's `cleanup.policy`."""
    alter(bootstrap, ConfigResource(ResourceType.TOPIC, topic), AlterConfig("cleanup.policy", policy))


def wait_until_clean(contender: Contender, topic: str, end_offset: int) -> None:
    """Wait until the topic is clean up to an offset."""
    deadline = time.monotonic() + CLEAN_SECONDS_MAX
    while clean_end(contender.data, topic) < end_offset:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{contender.name} has not cleaned {topic} within {CLEAN_SECONDS_MAX:g} s")
        time.sleep(LOOK_SECONDS)


def one_pass(contender: Contender, topic: str, load: Load) -> tuple[float, float]:
    """Clean a new topic once, and return the CPU seconds and the seconds that this took."""
    bootstrap, pid = contender.server.bootstrap, contender.server.pid
    config = {"cleanup.policy": "delete", "retention.ms": "-1", "segment.bytes": str(SEGMENT_BYTES)}
    admin = create_topic(bootstrap, topic, 1, config)
    fill(bootstrap, topic, load)
    time.sleep(IDLE_SECONDS)
    began = cpu_seconds(pid)
    time.sleep(IDLE_SECONDS)
    idle = (cpu_seconds(pid) - began) / IDLE_SECONDS
    end_offset = active_base(contender.data, topic)
    if not end_offset:
        raise RuntimeError(f"the load {load} does not fill a segment, so the cleaner has nothing to clean")
    began, started = cpu_seconds(pid), time.monotonic()
    set_policy(bootstrap, topic, "compact")
    wait_until_clean(contender, topic, end_offset)
    seconds = time.monotonic() - started
    used = cpu_seconds(pid) - began - idle * seconds
    admin.delete_topics([topic])[topic].result(ADMIN_SECONDS)
    return used, seconds


def compare(contenders: Sequence[Contender], chosen: Sequence[Load], passes: int) -> None:
    """Measure each load on each server, in alternating passes."""
    for contender in contenders:
        one_pass(contender, "warm", chosen[0])
    for load in chosen:
        for number in range(passes):
            for contender in contenders:
                used, seconds = one_pass(contender, f"{load.codec}-{load.value_bytes}-{number}", load)
                contender.cpu_seconds.setdefault(str(load), []).append(used)
                contender.seconds.setdefault(str(load), []).append(seconds)


def rates(contender: Contender, load: Load) -> float:
    """Return the MiB of values cleaned per CPU second: the median of all passes."""
    return load.mebibytes / statistics.median(contender.cpu_seconds[str(load)])


# -- the effect on other clients


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that is at least as large as this share of all values."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def probe(bootstrap: str, topic: str, ended: threading.Event) -> list[float]:
    """Write small records at a steady pace until `ended` is set. Return the seconds that each took."""
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0, "log_level": 3})
    latencies: list[float] = []

    def told(sent_at: float) -> Callable[[object, object], None]:
        return lambda error, message: latencies.append(time.perf_counter() - sent_at)

    due = time.perf_counter()
    while not ended.is_set():
        producer.produce(topic, bytes(100), on_delivery=told(time.perf_counter()))
        due += 1 / PROBES_PER_SECOND
        while (left := due - time.perf_counter()) > 0:
            producer.poll(left)
    producer.flush(30.0)
    return latencies


BESIDE_LOAD = Load(1024, "none", 400_000, 20_000)
BESIDE_SEGMENT_BYTES = 64 << 20


def beside(contender: Contender, load: Load, pairs: int) -> Iterator[tuple[str, float]]:
    """Yield, for each pair of measurements, ratios of the p99 latency of another topic's producer. A ratio is
    the latency while the cleaner runs, divided by the latency without the cleaner.
    """
    bootstrap = contender.server.bootstrap
    admin = create_topic(bootstrap, "probed", 1)
    for throttle in ("unthrottled", "throttled"):
        _throttle(bootstrap, THROTTLE_BYTES if throttle == "throttled" else None)
        for number in range(pairs):
            topic = f"{throttle}-{number}"
            segment_bytes = str(BESIDE_SEGMENT_BYTES)
            config = {"cleanup.policy": "delete", "retention.ms": "-1", "segment.bytes": segment_bytes}
            create_topic(bootstrap, topic, 1, config)
            fill(bootstrap, topic, load)
            time.sleep(IDLE_SECONDS)
            quiet = _probed(bootstrap, lambda: time.sleep(PROBE_SECONDS))

            def clean(topic: str = topic) -> None:
                end_offset = active_base(contender.data, topic)
                set_policy(bootstrap, topic, "compact")
                wait_until_clean(contender, topic, end_offset)

            busy = _probed(bootstrap, clean)
            admin.delete_topics([topic])[topic].result(ADMIN_SECONDS)
            yield throttle, percentile(busy, 0.99) / percentile(quiet, 0.99)


def _probed(bootstrap: str, work: Callable[[], None]) -> list[float]:
    ended = threading.Event()
    latencies: list[float] = []
    thread = threading.Thread(target=lambda: latencies.extend(probe(bootstrap, "probed", ended)))
    thread.start()
    work()
    ended.set()
    thread.join()
    return latencies


def _throttle(bootstrap: str, bytes_per_second: int | None) -> None:
    """Set `log.cleaner.io.max.bytes.per.second` of the only broker; None removes the value."""
    operation = ConfigOperation.DELETE if bytes_per_second is None else ConfigOperation.SET
    value = None if bytes_per_second is None else str(bytes_per_second)
    change = AlterConfig("log.cleaner.io.max.bytes.per.second", value, operation)
    alter(bootstrap, ConfigResource(ResourceType.BROKER, "1"), change)


# -- memory


def process_tree(pid: int) -> list[int]:
    """Return the ids of a process and of all processes below it."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += process_tree(int(child))
    return found


def private_kib(pid: int) -> int:
    """Return the anonymous memory, in KiB, of a process and of all processes below it."""
    total = 0
    for each in process_tree(pid):
        for line in Path(f"/proc/{each}/smaps_rollup").read_text().splitlines():
            if line.startswith("Anonymous:"):
                total += int(line.split()[1])
    return total


def memory(contender: Contender, gibibytes: float) -> tuple[float, float, float]:
    """Clean once. Return the peak of memory above that of the idle node in MiB, the seconds, and the CPU seconds."""
    bootstrap, pid = contender.server.bootstrap, contender.server.pid
    records = int(gibibytes * (1 << 20))
    # Few keys are repeated, so that the cleaner's map of keys is as full as possible.
    load = Load(1024, "none", records, 8 * records)
    config = {"cleanup.policy": "delete", "retention.ms": "-1"}
    admin = create_topic(bootstrap, "large", 1, config)
    fill(bootstrap, "large", load)
    time.sleep(IDLE_SECONDS)
    idle_kib = peak_kib = private_kib(pid)
    end_offset = active_base(contender.data, "large")
    began, started = cpu_seconds(pid), time.monotonic()
    set_policy(bootstrap, "large", "compact")
    deadline = started + CLEAN_SECONDS_MAX
    while clean_end(contender.data, "large") < end_offset:
        if time.monotonic() > deadline:
            raise RuntimeError(f"the topic is not clean within {CLEAN_SECONDS_MAX:g} s")
        peak_kib = max(peak_kib, private_kib(pid))
        time.sleep(LOOK_SECONDS)
    took = time.monotonic() - started
    admin.delete_topics(["large"])["large"].result(ADMIN_SECONDS)
    return (peak_kib - idle_kib) / 1024, took, cpu_seconds(pid) - began


def main() -> int:
    """Measure, print a table and the ratios; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.disks.cleaner", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--passes", type=int, default=3, help="passes per server and load (default: 3)")
    parser.add_argument("--scale", type=float, default=1.0, help="scale the number of records (default: 1)")
    parser.add_argument("--beside", action="store_true", help="measure another topic's producer, too")
    parser.add_argument("--pairs", type=int, default=5, help="measurements for --beside (default: 5)")
    parser.add_argument("--memory", type=float, metavar="GIB", help="only the memory to clean this much")
    parser.add_argument("--json", type=Path, help="write the figures to this file, too")
    options = parser.parse_args()
    chosen = loads(options.scale)
    with ExitStack() as stack:
        contenders = []
        starters = (("Odradek", start_odradek), ("Apache Kafka 4.3", start_kafka))
        for name, start in starters[:1] if options.memory else starters:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cleaner-")))
            try:
                server = start(directory, settings=SETTINGS)
            except KafkaUnavailable as reason:
                print(f"Apache Kafka is not measured: {reason}", file=sys.stderr)
                continue
            stack.callback(server.kill)
            contenders.append(Contender(name, server, directory / "data"))
        if options.memory:
            grown, took, used = memory(contenders[0], options.memory)
            print(
                f"cleaning {options.memory:g} GiB: {grown:.0f} MiB of memory, {took:.0f} s, {used:.0f} s of CPU time"
            )
            return 0
        compare(contenders, chosen, options.passes)
        rows = []
        for load in chosen:
            found = [rates(contender, load) for contender in contenders]
            ratio = f"{found[0] / found[1]:.2f}" if len(found) > 1 else "-"
            spans = [f"{statistics.median(contender.seconds[str(load)]):.1f}" for contender in contenders]
            rows.append([str(load), *(f"{rate:.0f}" for rate in found), ratio, " / ".join(spans)])
        names = [contender.name for contender in contenders]
        print(table(["MiB of values per CPU second", *names, "ratio", "seconds"], rows))
        document: dict[str, object] = {"rows": rows}
        if options.beside:
            ratios: dict[str, list[float]] = {}
            for throttle, ratio_of_pair in beside(contenders[0], BESIDE_LOAD, options.pairs):
                ratios.setdefault(throttle, []).append(ratio_of_pair)
            for throttle, found in ratios.items():
                told = ", ".join(f"{ratio:.2f}" for ratio in found)
                print(
                    f"p99 latency of another topic's producer, {throttle}: {statistics.median(found):.2f} times that "
                    f"without the cleaner ({told})"
                )
            document["beside"] = ratios
        if options.json:
            options.json.write_text(json.dumps(document, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
