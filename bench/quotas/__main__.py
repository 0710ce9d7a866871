"""Measures how well quotas work, compared with Kafka's quotas: the rates of clients with a quota, and of other clients
while one client is abusive.

    python -m bench.quotas rates [--short] [--no-kafka]
    python -m bench.quotas neighbours [--short] [--no-kafka]

`rates`: librdkafka, kafka-python and plain sockets that ignore throttle times, each producing and fetching with a
quota of `QUOTA` bytes per second. After the warm-up, in which they use up the burst, their rates are measured. The
goal is the quota within `TOLERANCE`. A batch is a hundredth of the quota. All six clients run at once.

`neighbours`: nine clients each send `POLITE_RATE` small Produce requests per second, first alone, then beside a tenth
client. The tenth floods the node with large requests, ignores throttle times, and has a quota. The goal: the nine
keep `KEPT_SHARE` of their rate, and their 99th percentile grows at most by `P99_FACTOR_MAX`.

The exit status is 1 if our node misses one of these goals.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import attrs

from bench.hot_path.small_requests import KINDS, request_frame
from bench.quotas.clients import BATCH_RECORDS, CLIENTS, Use, produce_frame
from bench.throughput.passes import create_topic
from odradek import Client
from odradek.client.admin.admin_quotas import QuotaAlteration, QuotaEntity
from odradek.wire.api_keys import ApiKey
from odradek.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from testkit.kafka_server import KafkaUnavailable, start_kafka
from testkit.odradek_server import launch_odradek, prepare_odradek
from testkit.processes import ServerProcess, command_prefix
from testkit.raw_requests import connect, framed, record_batch

QUOTA = 500_000
TOLERANCE = 0.05
FULL_SECONDS, SHORT_SECONDS = (10.0, 30.0), (3.0, 4.0)
BURST_SECONDS = 10
"""By a server's defaults, a burst is the quota of this many seconds. The warm-up lasts longer."""
SHORT_WINDOWS = {"quota.window.num": "2"}
"""A setting with two windows, so that the burst is only one second's quota."""
ACTIONS = ("produce", "fetch")
POLITE_CLIENTS = 9
POLITE_RATE = 100
KEPT_SHARE = 0.9
P99_FACTOR_MAX = 2.0
ABUSER = "bench"
"""The client id of the requests that `framed` makes: the abusive client."""
ABUSER_CONNECTIONS = 4


def start(name: str, directory: Path, settings: Mapping[str, str]) -> ServerProcess:
    """Start a new server. Raises `KafkaUnavailable`."""
    if name == "odradek":
        return launch_odradek(prepare_odradek(directory, settings=settings))
    return start_kafka(directory, settings=settings)


def set_quotas(bootstrap: str, entity: QuotaEntity, values: Mapping[str, float | None]) -> None:
    """Set quotas, and wait until the broker knows them. Raises `KafkaError`, `ClientError`."""
    with Client(bootstrap) as client:
        for error in client.admin.alter_client_quotas([QuotaAlteration(entity, values)]).values():
            if error is not None:
                raise error
        wanted = {key: value for key, value in values.items() if value is not None}
        while client.admin.describe_client_quotas().get(entity, {}) != wanted:
            time.sleep(0.05)


def fill(bootstrap: str, topic: str, size: int) -> None:
    """Write at least `size` bytes to a topic, in batches of the size that clients later fetch."""
    frame = produce_frame(topic)
    count = size // len(frame) + 1
    with connect(bootstrap) as connection, connection.makefile("rb") as stream:
        for _ in range(count):
            connection.sendall(frame)
            stream.read(int.from_bytes(stream.read(4), "big"))


def rates(server: ServerProcess, seconds: tuple[float, float]) -> dict[tuple[str, str], float]:
    """Return the bytes per second of each client, by kind and action."""
    enough = int(QUOTA * (sum(seconds) + 2 * BURST_SECONDS))
    uses = [
        Use(kind, action, server.bootstrap, f"{kind}-{action}", seconds)
        for kind in CLIENTS
        for action in ACTIONS
    ]
    for use in uses:
        create_topic(server.bootstrap, use.topic, 1)
        if use.action == "fetch":
            fill(server.bootstrap, use.topic, enough)
    of_each: QuotaEntity = (("client-id", None),)
    set_quotas(server.bootstrap, of_each, {"producer_byte_rate": QUOTA, "consumer_byte_rate": QUOTA})
    found: dict[tuple[str, str], float] = {}
    with ExitStack() as clients:
        started = [
            clients.enter_context(
                subprocess.Popen(
                    [
                        *command_prefix(),
                        sys.executable,
                        "-m",
                        "bench.quotas.clients",
                        json.dumps(attrs.asdict(use)),
                    ],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for use in uses
        ]
        for process in started:
            assert process.stdout is not None
            assert process.stdin is not None
            if process.stdout.readline().strip() != "ready":
                raise RuntimeError(
                    f"a client of {server.name} ended before it was ready; its output has the reason"
                )
        for process in started:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        for use, process in zip(uses, started, strict=True):
            assert process.stdout is not None
            found[use.kind, use.action] = json.loads(process.stdout.readline())["bytes_per_second"]
    return found


@attrs.frozen
class Kept:
    """The requests per second of all normal clients together, and the 99th percentile of their times in milliseconds."""

    rate: float
    p99_ms: float


def polite(bootstrap: str, topic: str, seconds: float, times: list[float]) -> None:
    """Send small requests at a steady rate, and add the seconds that each request took to `times`."""
    frame, _, _ = request_frame(KINDS[1], topic)
    frame = frame.replace(b"bench", b"quiet", 1)
    with connect(bootstrap) as connection, connection.makefile("rb") as stream:
        began = time.monotonic()
        for number in range(int(seconds * POLITE_RATE)):
            due = began + number / POLITE_RATE
            time.sleep(max(0.0, due - time.monotonic()))
            if time.monotonic() > began + seconds:
                return
            connection.sendall(frame)
            stream.read(int.from_bytes(stream.read(4), "big"))
            # Measure from the time at which the request was due: otherwise a delayed client would hide the delay by
            # sending less.
            times.append(time.monotonic() - due)


def abuse(bootstrap: str, topic: str, stop: threading.Event) -> None:
    """Keep large requests in flight until `stop` is set, and ignore the throttle times in answers."""
    data = PartitionProduceData(0, memoryview(record_batch(500_000, BATCH_RECORDS)))
    request = ProduceRequest(None, 1, 30_000, [TopicProduceData(topic, partition_data=[data])])
    frame = framed(ApiKey.PRODUCE, 9, request)
    connections = [connect(bootstrap) for _ in range(ABUSER_CONNECTIONS)]
    for connection in connections:
        connection.setblocking(False)
    left = [memoryview(frame)] * len(connections)
    while not stop.wait(0.001):
        for number, connection in enumerate(connections):
            try:
                left[number] = left[number][connection.send(left[number]) :] or memoryview(frame)
                connection.recv(65536)
            except BlockingIOError:
                continue
    for connection in connections:
        connection.close()


def neighbours(server: ServerProcess, seconds: float) -> tuple[Kept, Kept]:
    """Measure the nine normal clients, first alone, then beside the abusive client."""
    create_topic(server.bootstrap, "polite", POLITE_CLIENTS)
    create_topic(server.bootstrap, "abused", 1)
    of_abuser: QuotaEntity = (("client-id", ABUSER),)
    set_quotas(server.bootstrap, of_abuser, {"producer_byte_rate": QUOTA, "request_percentage": 5.0})
    kept: list[Kept] = []
    for with_abuser in (False, True):
        times: list[list[float]] = [[] for _ in range(POLITE_CLIENTS)]
        stop = threading.Event()
        threads = [
            threading.Thread(target=polite, args=(server.bootstrap, "polite", seconds, each))
            for each in times
        ]
        abuser = threading.Thread(target=abuse, args=(server.bootstrap, "abused", stop))
        if with_abuser:
            abuser.start()
            time.sleep(BURST_SECONDS / 5)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        stop.set()
        if with_abuser:
            abuser.join()
        taken = sorted(each for one in times for each in one)
        kept.append(Kept(len(taken) / seconds, 1000 * taken[int(0.99 * len(taken))]))
    return kept[0], kept[1]


def show_rates(name: str, server: ServerProcess, short: bool) -> bool:
    """Measure and print the rates. Return true if they meet the goal."""
    found = rates(server, SHORT_SECONDS if short else FULL_SECONDS)
    for (kind, action), rate in found.items():
        print(f"{name}: {kind} {action}: {rate:,.0f} B/s, {100 * (rate / QUOTA - 1):+.1f} %", flush=True)
    return all(abs(rate / QUOTA - 1) <= TOLERANCE for rate in found.values())


def show_neighbours(name: str, server: ServerProcess, short: bool) -> bool:
    """Measure and print the service of the normal clients. Return true if it meets the goal."""
    alone, beside = neighbours(server, 4.0 if short else 30.0)
    share, factor = beside.rate / alone.rate, beside.p99_ms / alone.p99_ms
    print(
        f"{name}: the normal clients keep {100 * share:.0f} % of {alone.rate:,.0f} requests/s; "
        f"p99 {alone.p99_ms:.2f} ms alone, {beside.p99_ms:.2f} ms beside the abusive client: {factor:.2f} times"
    )
    return share >= KEPT_SHARE and factor <= P99_FACTOR_MAX


def main() -> int:
    """Measure and print; return 1 if our node misses a goal, otherwise 0."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.quotas", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("what", choices=("rates", "neighbours"))
    parser.add_argument(
        "--short", action="store_true", help="measure for seconds, with a burst of one second's quota"
    )
    parser.add_argument("--no-kafka", action="store_true", help="do not measure Apache Kafka")
    args = parser.parse_args()
    show = show_rates if args.what == "rates" else show_neighbours
    holds = True
    for name in ("odradek",) if args.no_kafka else ("odradek", "kafka"):
        with tempfile.TemporaryDirectory(prefix="bench-quotas-") as directory:
            try:
                server = start(name, Path(directory), SHORT_WINDOWS if args.short else {})
            except KafkaUnavailable as missing:
                print(f"Apache Kafka is not measured: {missing}")
                continue
            try:
                is_as_wanted = show(name, server, args.short)
            finally:
                server.kill()
        holds &= is_as_wanted or name != "odradek"
    return 0 if holds else 1


if __name__ == "__main__":
    raise SystemExit(main())
