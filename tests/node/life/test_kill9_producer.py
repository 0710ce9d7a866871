"""kill -9 under our own idempotent producer: every record is there afterwards, once and in order."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path

from odradek import Client, Producer
from odradek.client.admin import NewTopic
from odradek.client.shells.producer import RecordFuture
from sim.load.fetching import FetchConfig, Fetcher
from testkit.odradek_server import launch_odradek, prepare_odradek

PARTITIONS = 3
ROUNDS = 3
ACKNOWLEDGED_PER_ROUND = 3_000
WAIT_SECONDS = 60.0


def test_kill9_under_five_requests_in_flight(tmp_path: Path) -> None:
    """A producer with five requests in flight survives three kill -9 of the node: each record is written once and in
    order."""
    properties = prepare_odradek(tmp_path, settings={"log.segment.bytes": str(1 << 20)})
    server = launch_odradek(properties)
    with Client(server.bootstrap) as client:
        client.admin.create_topics([NewTopic("killed", PARTITIONS)])
    futures: list[RecordFuture] = []
    stopping = threading.Event()
    enough = [threading.Event() for _ in range(ROUNDS + 1)]
    with Producer(
        bootstrap_servers=server.bootstrap,
        batch_size=4096,
        linger_ms=1,
        buffer_memory=1 << 20,
        reconnect_backoff_max_ms=100,
        retry_backoff_max_ms=100,
    ) as producer:

        def load() -> None:
            for serial in itertools.count():
                if stopping.is_set():
                    return
                value = b"%d:" % serial + b"x" * 200
                futures.append(producer.send("killed", value, partition=serial % PARTITIONS))
                if serial % ACKNOWLEDGED_PER_ROUND == 0 and serial // ACKNOWLEDGED_PER_ROUND <= ROUNDS:
                    enough[serial // ACKNOWLEDGED_PER_ROUND].set()

        sending = threading.Thread(target=load)
        sending.start()
        try:
            for number in range(1, ROUNDS + 1):
                assert enough[number].wait(WAIT_SECONDS)
                futures[number * ACKNOWLEDGED_PER_ROUND].result(WAIT_SECONDS)
                server.kill()
                server = launch_odradek(properties)
        finally:
            stopping.set()
            sending.join()
        producer.flush(WAIT_SECONDS)
        metrics = producer.metrics()
    try:
        assert metrics["batches repeated"] > 0
        assert "batches failed" not in metrics
        stored = read(server.bootstrap, len(futures))
    finally:
        server.stop()
    assert stored == [list(range(index, len(futures), PARTITIONS)) for index in range(PARTITIONS)]
    for serial, future in enumerate(futures):
        metadata = future.result(0)
        assert metadata.partition == serial % PARTITIONS
        assert metadata.offset in (serial // PARTITIONS, -1)


def read(bootstrap: str, count: int) -> list[list[int]]:
    """Read the serial numbers of each partition, until at least `count` records have come."""
    found: list[list[int]] = [[] for _ in range(PARTITIONS)]
    with Client(bootstrap) as client:
        fetcher = Fetcher(client.core, FetchConfig())
        for index in range(PARTITIONS):
            fetcher.assign("killed", index, 0)
        while sum(map(len, found)) < count:
            for fetched in client.run(fetcher.poll(timeout=WAIT_SECONDS)):
                found[fetched.partition] += [
                    int((record.value or b"").partition(b":")[0]) for record in fetched.records()
                ]
    return found
