"""One pass of librdkafka in a separate process: it produces or consumes a number of records, and prints its figures.

    python -m bench.throughput.client '{"action": "produce", ...}'

Prints `ready` once connected, waits for a line on standard input, runs, and prints its figures as JSON. The parent
process reads the server's CPU clock before and after, so connecting is not measured.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Mapping
from typing import Any

import attrs
import cattrs
import confluent_kafka

CONNECT_SECONDS = 30.0
STALL_SECONDS = 30.0
VALUE_POOL = 256
BATCH_CALL = 500
QUEUE_RECORDS = 100_000


class PassFailed(Exception):
    """Raised if the server has lost, refused or not returned records."""


@attrs.frozen
class Pass:
    """The task: `records` values of `value_bytes` each, over all partitions of a topic in turn. A consumer reads them
    `rounds` times.
    """

    action: str
    bootstrap: str
    topic: str
    partitions: int
    records: int
    value_bytes: int
    compressible: bool
    rounds: int = 1
    client_settings: dict[str, Any] = attrs.field(factory=dict)


@attrs.frozen
class PassResult:
    """The seconds from the start to the last acknowledgement or record, and the client's CPU seconds in this time."""

    seconds: float
    client_cpu_seconds: float
    records: int


def values(value_bytes: int, compressible: bool) -> list[bytes]:
    """Return a list of values, the same in every run: random bytes, or lines of a made-up service log."""
    source = random.Random(value_bytes)
    if not compressible:
        return [source.randbytes(value_bytes) for _ in range(VALUE_POOL)]
    lines = []
    for index in range(VALUE_POOL):
        line = (
            f'{{"at":17000{source.randrange(10**8):08d},"user":{source.randrange(10**6)},'
            f'"path":"/shop/item/{source.randrange(5000)}","status":{source.choice((200, 200, 200, 304, 404))},'
            f'"us":{source.randrange(20000)},"host":"web-{index % 12}"}}'
        )
        lines.append(line.encode().ljust(value_bytes, b" ")[:value_bytes])
    return lines


def produce(task: Pass) -> PassResult:
    """Produce all records with acks=all. When this returns, every record is acknowledged."""
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": task.bootstrap,
            "acks": -1,
            "queue.buffering.max.messages": 2 * QUEUE_RECORDS,
            "delivery.report.only.error": True,
            **task.client_settings,
        }
    )
    for partition in range(task.partitions):
        producer.produce(task.topic, b"first contact", partition=partition)
    if producer.flush(CONNECT_SECONDS):
        raise PassFailed(f"no acknowledgement within {CONNECT_SECONDS:.0f} s")
    pool = [{"value": value} for value in values(task.value_bytes, task.compressible)]
    pool *= BATCH_CALL // VALUE_POOL + 1
    _wait_for_go()
    started, cpu = time.perf_counter(), time.process_time()
    sent = turn = 0
    while sent < task.records:
        batch = pool[: min(BATCH_CALL, task.records - sent)]
        sent += producer.produce_batch(task.topic, batch, partition=turn % task.partitions)
        turn += 1
        while len(producer) > QUEUE_RECORDS:
            producer.poll(0.002)
    if producer.flush(STALL_SECONDS):
        raise PassFailed(f"no progress within {STALL_SECONDS:.0f} s")
    result = PassResult(time.perf_counter() - started, time.process_time() - cpu, sent)
    stored = _stored_records(task)
    if stored != sent + task.partitions:
        raise PassFailed(f"{sent + task.partitions} records sent, {stored} stored")
    return result


def consume(task: Pass) -> PassResult:
    """Read `records` records from the start of the partitions, `rounds` times."""
    consumer = _consumer(task)
    consumer.list_topics(task.topic, timeout=CONNECT_SECONDS)
    _wait_for_go()
    started, cpu = time.perf_counter(), time.process_time()
    for _ in range(task.rounds):
        _read_all(consumer, task)
    result = PassResult(time.perf_counter() - started, time.process_time() - cpu, task.rounds * task.records)
    consumer.close()
    return result


def _read_all(consumer: confluent_kafka.Consumer, task: Pass) -> None:
    consumer.assign(
        [confluent_kafka.TopicPartition(task.topic, partition, 0) for partition in range(task.partitions)]
    )
    received = 0
    while received < task.records:
        messages = consumer.consume(min(10_000, task.records - received), timeout=STALL_SECONDS)
        if not messages:
            raise PassFailed(f"no record within {STALL_SECONDS:.0f} s, {received} of {task.records} came")
        if (error := messages[-1].error()) is not None:
            raise PassFailed(str(error))
        received += len(messages)


def _consumer(task: Pass) -> confluent_kafka.Consumer:
    return confluent_kafka.Consumer(
        {
            "bootstrap.servers": task.bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            # The client's own queue limit (and its pause of a second) must not limit the rate.
            "queued.min.messages": 10_000_000,
            "queued.max.messages.kbytes": 1_000_000,
            **{name: value for name, value in task.client_settings.items() if name not in _PRODUCERS_OWN},
        }
    )


def _stored_records(task: Pass) -> int:
    consumer = _consumer(task)
    try:
        return sum(
            consumer.get_watermark_offsets(
                confluent_kafka.TopicPartition(task.topic, partition), timeout=CONNECT_SECONDS
            )[1]
            for partition in range(task.partitions)
        )
    finally:
        consumer.close()


def _wait_for_go() -> None:
    print("ready", flush=True)
    if not sys.stdin.readline():
        raise SystemExit("the parent is gone")


_PRODUCERS_OWN = ("batch.size", "linger.ms", "compression.type")
"""Settings of producers that a consumer does not accept."""
ACTIONS: Mapping[str, Any] = {"produce": produce, "consume": consume}


def main() -> None:
    """Run the pass in the only argument, and print its figures as JSON."""
    task = cattrs.structure(json.loads(sys.argv[1]), Pass)
    result: PassResult = ACTIONS[task.action](task)
    print(json.dumps(attrs.asdict(result)), flush=True)


if __name__ == "__main__":
    main()
