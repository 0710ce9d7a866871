"""One client that uses a server as fast as possible, and measures its bytes per second once its quota applies.

    python -m bench.quotas.clients '{"kind": "raw", "action": "produce", ...}'

The kinds are librdkafka, kafka-python, and `raw`: plain sockets that ignore throttle times. It prints `ready` when
the first record was transferred, waits for a line, uses up the burst during the warm-up, then measures. It prints its
figures as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import cattrs
import confluent_kafka
import kafka

from bench.hot_path.small_requests import PRODUCE_VERSION
from odradek.wire.api_keys import ApiKey
from odradek.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from odradek.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from testkit.raw_requests import connect, framed, record_batch

CLIENTS = ("raw", "librdkafka", "kafka-python")
BATCH_RECORDS = 5
VALUE_BYTES = 1000
RECORD_BYTES = VALUE_BYTES + 8 + 61 / BATCH_RECORDS
"""The bytes of a record with its share of the batch header."""
BATCH_BYTES = int(RECORD_BYTES * BATCH_RECORDS)
REQUEST_BYTES = 90
"""The approximate bytes of a Produce request in addition to its batch."""
FETCH_BYTES = 20 * BATCH_BYTES
"""The most bytes of one Fetch. With fewer, kafka-python would not use up its burst within the warm-up."""
DEPTH = 4
FETCH_VERSION = 12
TIMEOUT_SECONDS = 60.0


@attrs.frozen
class Use:
    """The task of one client. `seconds` are the durations of the warm-up and of the measurement."""

    kind: str
    action: str
    bootstrap: str
    topic: str
    seconds: tuple[float, float]


@attrs.frozen
class Used:
    """The bytes per second of requests, or of answers to Fetch."""

    bytes_per_second: float


def produce_frame(topic: str) -> bytes:
    """Return a Produce frame with one batch."""
    data = PartitionProduceData(0, memoryview(record_batch(BATCH_BYTES, BATCH_RECORDS)))
    request = ProduceRequest(None, 1, 30_000, [TopicProduceData(topic, partition_data=[data])])
    return framed(ApiKey.PRODUCE, PRODUCE_VERSION, request)


def raw_bytes(use: Use) -> Iterator[float]:
    """Send pipelined requests on one connection, and ignore the throttle times in answers. Yield the bytes of each."""
    if use.action == "produce":
        frame = produce_frame(use.topic)
    else:
        partition = FetchPartition(partition=0, partition_max_bytes=FETCH_BYTES)
        fetch = FetchRequest(max_wait_ms=500, min_bytes=1, max_bytes=FETCH_BYTES)
        fetch.topics = [FetchTopic(use.topic, partitions=[partition])]
        frame = framed(ApiKey.FETCH, FETCH_VERSION, fetch)
    with connect(use.bootstrap) as connection, connection.makefile("rb") as stream:
        connection.settimeout(TIMEOUT_SECONDS)
        connection.sendall(frame * DEPTH)
        while True:
            size = int.from_bytes(stream.read(4), "big")
            answer = stream.read(size)
            if len(answer) < size or not size:
                raise ConnectionError(f"the server closed the connection of {use}")
            connection.sendall(frame)
            yield len(frame) if use.action == "produce" else size + 4


def produced(send: Callable[[Callable[..., None]], None], serve: Callable[[], None]) -> Iterator[float]:
    """Yield bytes as they are acknowledged. `send` sends a record with a callback; `serve` runs callbacks."""
    acknowledged: deque[float] = deque()
    under_way = 0

    def done(error: Any = None, *_: Any) -> None:
        if isinstance(error, confluent_kafka.KafkaError | Exception):
            raise error if isinstance(error, Exception) else confluent_kafka.KafkaException(error)
        acknowledged.append(RECORD_BYTES + REQUEST_BYTES / BATCH_RECORDS)

    while True:
        while under_way < 20 * BATCH_RECORDS:
            send(done)
            under_way += 1
        serve()
        while acknowledged:
            under_way -= 1
            yield acknowledged.popleft()


def _serve(producer: confluent_kafka.Producer) -> None:
    producer.poll(0.01)


def librdkafka_bytes(use: Use) -> Iterator[float]:
    """Produce or fetch with confluent-kafka, in batches of `BATCH_RECORDS`; yield the bytes."""
    common: dict[str, Any] = {"bootstrap.servers": use.bootstrap, "client.id": f"librdkafka-{use.action}"}
    value = bytes(VALUE_BYTES)
    if use.action == "produce":
        producer = confluent_kafka.Producer(
            {**common, "acks": 1, "linger.ms": 5, "batch.num.messages": BATCH_RECORDS}
        )
        yield from produced(
            lambda done: producer.produce(use.topic, value, partition=0, on_delivery=done),
            lambda: _serve(producer),
        )
    consumer = confluent_kafka.Consumer(
        {**common, "group.id": "quota", "fetch.message.max.bytes": FETCH_BYTES}
    )
    consumer.assign([confluent_kafka.TopicPartition(use.topic, 0, 0)])
    while True:
        for message in consumer.consume(500, timeout=0.05):
            if message.error() is not None:
                raise confluent_kafka.KafkaException(message.error())
            yield RECORD_BYTES


def kafka_python_bytes(use: Use) -> Iterator[float]:
    """Produce or fetch with kafka-python, in batches of about `BATCH_RECORDS`; yield the bytes."""
    common: dict[str, Any] = {
        "bootstrap_servers": use.bootstrap,
        "client_id": f"kafka-python-{use.action}",
    }
    value = bytes(VALUE_BYTES)
    if use.action == "produce":
        producer = kafka.KafkaProducer(**common, acks=1, linger_ms=5, batch_size=BATCH_BYTES + 200)
        yield from produced(
            lambda done: producer.send(use.topic, value, partition=0).add_callback(lambda _: done()) and None,
            lambda: time.sleep(0.005),
        )
    consumer = kafka.KafkaConsumer(**common, max_partition_fetch_bytes=FETCH_BYTES)
    partition = kafka.TopicPartition(use.topic, 0)
    consumer.assign([partition])
    consumer.seek_to_beginning(partition)
    while True:
        for records in consumer.poll(timeout_ms=50).values():
            yield len(records) * RECORD_BYTES


BYTES: dict[str, Callable[[Use], Iterator[float]]] = {
    "raw": raw_bytes,
    "librdkafka": librdkafka_bytes,
    "kafka-python": kafka_python_bytes,
}


def measure(use: Use) -> Used:
    """Use the server for the warm-up and the measurement. Return the rate during the measurement."""
    moves = BYTES[use.kind](use)
    next(moves)
    print("ready", flush=True)
    sys.stdin.readline()
    warm_up, measured = use.seconds
    deadline = time.monotonic() + warm_up
    while time.monotonic() < deadline:
        next(moves)
    began, moved = time.monotonic(), 0.0
    while (took := time.monotonic() - began) < measured:
        moved += next(moves)
    return Used(moved / took)


def main() -> None:
    """Run the task in the only argument: print `ready`, and then the figures."""
    use = cattrs.structure(json.loads(sys.argv[1]), Use)
    print(json.dumps(attrs.asdict(measure(use))), flush=True)


if __name__ == "__main__":
    main()
