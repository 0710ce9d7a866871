"""One function for each Python client that produces: it sends values of one size for some seconds, until all are
acknowledged.

The settings are the same for all: acks=all, idempotence, batches of 16 KiB that linger for 5 ms, no compression. Each
function returns (records, seconds). `bench.clients` runs it in a separate process and measures its CPU. With an
`authority`, three of the clients connect by TLS (`bench.tls`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

__all__ = ["BY_TLS", "PRODUCERS"]

BY_TLS = ("odradek", "kafka-python", "aiokafka")

_BATCH_BYTES = 16_384
_LINGER_MS = 5
_LOOK = 200
"""The number of records after which a producer reads the clock again."""


def _odradek(
    bootstrap: str, topic: str, value: bytes, seconds: float, authority: str = ""
) -> tuple[int, float]:
    from odradek import Producer

    by_tls = {
        "security_protocol": "SSL",
        "ssl_truststore_type": "PEM",
        "ssl_truststore_location": authority,
    }
    with Producer(
        bootstrap_servers=bootstrap,
        batch_size=_BATCH_BYTES,
        linger_ms=_LINGER_MS,
        **(by_tls if authority else {}),
    ) as producer:
        producer.send(topic, value).result(30)
        count = 0
        start = time.perf_counter()
        while time.perf_counter() - start < seconds:
            for _ in range(_LOOK):
                last = producer.send(topic, value)
            count += _LOOK
        producer.flush(60)
        elapsed = time.perf_counter() - start
        if last.result(0).offset != count:
            raise AssertionError("records were lost")
    return count, elapsed


def _kafka_python(
    bootstrap: str, topic: str, value: bytes, seconds: float, authority: str = ""
) -> tuple[int, float]:
    import kafka

    by_tls = {"security_protocol": "SSL", "ssl_cafile": authority}
    producer = kafka.KafkaProducer(
        bootstrap_servers=bootstrap,
        acks="all",
        enable_idempotence=True,
        batch_size=_BATCH_BYTES,
        linger_ms=_LINGER_MS,
        **(by_tls if authority else {}),
    )
    producer.send(topic, value).get(30)
    count = 0
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        for _ in range(_LOOK):
            last = producer.send(topic, value)
        count += _LOOK
    producer.flush(60)
    elapsed = time.perf_counter() - start
    if last.get(0).offset != count:
        raise AssertionError("records were lost")
    producer.close()
    return count, elapsed


def _aiokafka(
    bootstrap: str, topic: str, value: bytes, seconds: float, authority: str = ""
) -> tuple[int, float]:
    import ssl

    import aiokafka

    async def run() -> tuple[int, float]:
        by_tls: dict[str, Any] = {"security_protocol": "SSL"}
        if authority:
            by_tls["ssl_context"] = ssl.create_default_context(cafile=authority)
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            acks="all",
            enable_idempotence=True,
            max_batch_size=_BATCH_BYTES,
            linger_ms=_LINGER_MS,
            **(by_tls if authority else {}),
        )
        await producer.start()
        await producer.send_and_wait(topic, value)
        count = 0
        start = time.perf_counter()
        while time.perf_counter() - start < seconds:
            for _ in range(_LOOK):
                last = await producer.send(topic, value)
            count += _LOOK
        await producer.flush()
        elapsed = time.perf_counter() - start
        if (await last).offset != count:
            raise AssertionError("records were lost")
        await producer.stop()
        return count, elapsed

    return asyncio.run(run())


def _confluent_kafka(bootstrap: str, topic: str, value: bytes, seconds: float) -> tuple[int, float]:
    import confluent_kafka

    offsets: list[int | None] = []
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": -1,
            "enable.idempotence": True,
            "batch.size": _BATCH_BYTES,
            "linger.ms": _LINGER_MS,
            "queue.buffering.max.messages": 500_000,
            "log_level": 0,
        }
    )
    producer.produce(topic, value)
    producer.flush(30)
    count = 0
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        for _ in range(_LOOK):
            while True:
                try:
                    producer.produce(topic, value)
                    break
                except BufferError:
                    producer.poll(0.01)
        count += _LOOK
        producer.poll(0)
    producer.flush(60)
    elapsed = time.perf_counter() - start
    producer.produce(topic, value, on_delivery=lambda _, message: offsets.append(message.offset()))
    producer.flush(30)
    if offsets != [count + 1]:
        raise AssertionError("records were lost")
    return count, elapsed


PRODUCERS: dict[str, Callable[..., tuple[int, float]]] = {
    "odradek": _odradek,
    "kafka-python": _kafka_python,
    "aiokafka": _aiokafka,
    "confluent-kafka": _confluent_kafka,
}
