"""Measures the latency of acknowledgements at a steady rate, with librdkafka in a separate process.

    python -m bench.cluster.commit_latency '{"bootstrap": ..., "topic": ...}'

Communicates with its parent process as in `bench.instruments.supervised`. A latency is the time from the call of
`produce` until the delivery report. The report comes during librdkafka's `poll`, which is called continuously here.
"""

from __future__ import annotations

import json
import sys
import time

import attrs
import cattrs
import confluent_kafka

from bench.throughput.client import CONNECT_SECONDS, STALL_SECONDS, PassFailed, values


@attrs.frozen
class Pace:
    """The task: send `rate` records per second to all partitions in turn, for `seconds` after a warm-up of
    `warm_seconds`.
    """

    bootstrap: str
    topic: str
    partitions: int
    rate: float
    seconds: float
    warm_seconds: float
    value_bytes: int


@attrs.frozen
class PaceResult:
    """The latencies from the call to the acknowledgement, in milliseconds."""

    records: int
    p50_ms: float
    p99_ms: float
    max_ms: float


def keep_pace(task: Pace) -> PaceResult:
    """Produce at a steady rate, and return the latencies. Raises `PassFailed` if a record fails or is not
    acknowledged.
    """
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": task.bootstrap, "acks": -1, "linger.ms": 0, "socket.nagle.disable": True}
    )
    latencies: list[float] = []
    refused: list[str] = []

    def send(partition: int, counts: bool) -> None:
        handed_over = time.perf_counter()

        def delivered(error: confluent_kafka.KafkaError | None, _: confluent_kafka.Message) -> None:
            if error is not None:
                refused.append(str(error))
            elif counts:
                latencies.append(time.perf_counter() - handed_over)

        producer.produce(task.topic, pool[partition], partition=partition, on_delivery=delivered)

    pool = values(task.value_bytes, False)[: task.partitions]
    for partition in range(task.partitions):
        send(partition, False)
    if producer.flush(CONNECT_SECONDS):
        raise PassFailed(f"no acknowledgement within {CONNECT_SECONDS:.0f} s")
    print("ready", flush=True)
    if not sys.stdin.readline():
        raise SystemExit("the parent is gone")
    started = time.perf_counter()
    total = int((task.warm_seconds + task.seconds) * task.rate)
    for number in range(total):
        due = started + number / task.rate
        while True:
            left = due - time.perf_counter()
            producer.poll(max(0.0, left))
            if left <= 0:
                break
        send(number % task.partitions, number >= task.warm_seconds * task.rate)
    if producer.flush(STALL_SECONDS) or refused:
        raise PassFailed(f"records without an acknowledgement; {refused[:1]}")
    latencies.sort()
    return PaceResult(
        len(latencies),
        1e3 * latencies[len(latencies) // 2],
        1e3 * latencies[int(len(latencies) * 0.99)],
        1e3 * latencies[-1],
    )


if __name__ == "__main__":
    print(
        json.dumps(attrs.asdict(keep_pace(cattrs.structure(json.loads(sys.argv[1]), Pace)))),
        flush=True,
    )
