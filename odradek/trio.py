"""The clients for programs on trio. SHELL: opens a nursery for each, and closes it.

async with odradek.trio.open_producer({"bootstrap.servers": "127.0.0.1:9092"}) as producer:
    record = await producer.send("flights", b"UA1545")
    print(await record.result())
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import trio

from odradek.client.aio_admin import AsyncAdmin as Admin
from odradek.client.aio_consumer import AsyncConsumer as Consumer
from odradek.client.aio_producer import AsyncProducer as Producer
from odradek.client.aio_producer import SentRecord
from odradek.env.real import RealEnv

__all__ = ["Admin", "Consumer", "Producer", "SentRecord", "open_admin", "open_consumer", "open_producer"]


@asynccontextmanager
async def open_producer(config: Mapping[str, Any] | None = None, /, **keys: Any) -> AsyncIterator[Producer]:
    """A producer for the block. At its end what is there is sent; after an error it is given up.

    `config` has Kafka's keys, keyword arguments the same with underscores. Raises `ValueError` for a bad one.
    """
    async with trio.open_nursery() as nursery:
        producer = Producer(RealEnv(), nursery, config, **keys)
        try:
            yield producer
        except BaseException:
            producer.client.close()
            raise
        await producer.close()
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def open_consumer(config: Mapping[str, Any] | None = None, /, **keys: Any) -> AsyncIterator[Consumer]:
    """A consumer for the block, which leaves its group at the end of it; after an error it is given up.

    `config` has Kafka's keys, keyword arguments the same with underscores. Raises `ValueError` for a bad one.
    """
    async with trio.open_nursery() as nursery:
        consumer = Consumer(RealEnv(), nursery, config, **keys)
        try:
            yield consumer
        except BaseException:
            consumer.client.close()
            raise
        await consumer.close()
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def open_admin(config: Mapping[str, Any] | None = None, /, **keys: Any) -> AsyncIterator[Admin]:
    """An administrator for the block; its calls are those of `odradek.Admin`, to be awaited.

    `config` has Kafka's keys, keyword arguments the same with underscores. Raises `ValueError` for a bad one.
    """
    async with trio.open_nursery() as nursery:
        admin = Admin(RealEnv(), nursery, config, **keys)
        try:
            yield admin
        finally:
            admin.close()
            nursery.cancel_scope.cancel()
