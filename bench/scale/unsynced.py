"""Measures how long a node needs after kill -9 with much unsynced data, with and without the limit of unsynced bytes.

    python -m bench.scale.unsynced [--gib 10] [--batch-kib 16] [--limits -1,1073741824] [--kafka] [--json FILE]

librdkafka writes the data in small batches into 32 partitions, so that no segment is full. Then the node is killed and
started again. The page cache is warm. The figures are the seconds until all logs are served, and how long the writing took.
Without the limit (-1), each log is still synced once a minute, so the data are unsynced only if the writing is quicker.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.instruments.supervised import run_client
from bench.instruments.tables import table
from bench.report import machine
from bench.throughput.client import Pass
from bench.throughput.passes import create_topic
from odradek.wire.api_keys import ApiKey
from odradek.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from testkit.kafka_server import start_kafka
from testkit.odradek_server import launch_odradek, prepare_odradek
from testkit.processes import ServerProcess
from testkit.raw_requests import exchange, framed

TOPIC, PARTITIONS = "unsynced", 32
RECORD_BYTES = 1024
LIMIT = "odradek.flush.max.unsynced.bytes"
LOOK_SECONDS = 0.02
SERVED_SECONDS_MAX = 300.0
LIST_OFFSETS_VERSION, LATEST = 7, -1


def our_node(limit: str) -> Callable[[Path], ServerProcess]:
    """Return a function that starts a node with this limit, and formats its directory the first time."""

    def start(directory: Path) -> ServerProcess:
        properties = directory / "server.properties"
        if not properties.exists():
            prepare_odradek(directory, settings={LIMIT: limit})
        return launch_odradek(properties)

    return start


def stored(bootstrap: str) -> int:
    """Wait until the server serves all partitions. Return the number of records."""
    asked = ListOffsetsTopic(TOPIC, [ListOffsetsPartition(index, -1, LATEST) for index in range(PARTITIONS)])
    frame = framed(ApiKey.LIST_OFFSETS, LIST_OFFSETS_VERSION, ListOffsetsRequest(-1, 0, [asked]))
    until = time.monotonic() + SERVED_SECONDS_MAX
    while True:
        found = exchange(bootstrap, frame, ApiKey.LIST_OFFSETS, LIST_OFFSETS_VERSION).topics[0].partitions
        if not any(each.error_code for each in found):
            return sum(each.offset for each in found)
        if time.monotonic() > until:
            raise TimeoutError(f"not all partitions are served after {SERVED_SECONDS_MAX:.0f} s")
        time.sleep(LOOK_SECONDS)


def measure(
    start: Callable[[Path], ServerProcess], directory: Path, data_bytes: int, batch_bytes: int
) -> tuple[float, float]:
    """Write, kill, and start again. Return the seconds of the writing, and of the way back."""
    server = start(directory)
    try:
        create_topic(server.bootstrap, TOPIC, PARTITIONS)
        records = data_bytes // RECORD_BYTES
        settings = {"batch.size": batch_bytes, "linger.ms": 5}
        task = Pass("produce", server.bootstrap, TOPIC, PARTITIONS, records, RECORD_BYTES, compressible=False, client_settings=settings)  # fmt: skip
        began = time.monotonic()
        run_client("bench.throughput.client", task, server, None)
        written = time.monotonic() - began
        before = stored(server.bootstrap)
        server.kill()
        began = time.monotonic()
        server = start(directory)
        after = stored(server.bootstrap)
        if after != before:
            raise RuntimeError(f"{after} records are there after the restart, and were {before} before it")
        return written, time.monotonic() - began
    finally:
        server.kill()


def main() -> None:
    """Measure each limit, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.scale.unsynced")
    parser.add_argument("--gib", type=float, default=10.0, help="GiB to write (default: 10)")
    parser.add_argument("--batch-kib", type=int, default=16, help="KiB of a batch (default: 16)")
    parser.add_argument("--limits", type=lambda text: text.split(","), default=["-1", str(1 << 30)], help=f"values of {LIMIT}")  # fmt: skip
    parser.add_argument("--kafka", action="store_true", help="measure Apache Kafka, too")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to this file")
    options = parser.parse_args()
    starts = {f"Odradek, limit {limit}": our_node(limit) for limit in options.limits}
    if options.kafka:
        starts["Apache Kafka 4.3"] = start_kafka
    found = {}
    for name, start in starts.items():
        with tempfile.TemporaryDirectory(prefix="bench-unsynced-") as place:
            found[name] = measure(start, Path(place), int(options.gib * (1 << 30)), options.batch_kib << 10)
            print(name, found[name], flush=True)
    rows = [[name, f"{written:.1f} s", f"{back:.2f} s"] for name, (written, back) in found.items()]
    print(table(["node", f"writing {options.gib:g} GiB", "serving again after kill -9"], rows))
    if options.json is not None:
        options.json.write_text(json.dumps({"machine": machine(), "seconds": found}, indent=1))


if __name__ == "__main__":
    main()
