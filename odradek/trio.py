"""The clients for programs that use trio. SHELL. Each client gets a nursery, which is closed with the client.

async with odradek.trio.open_producer({"bootstrap.servers": "127.0.0.1:9092"}) as producer:
    record = await producer.send("flights", b"UA1545")
    print(await record.result())
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeVar

import trio

from odradek.client.shells.aio_admin import AsyncAdmin as Admin
from odradek.client.shells.aio_consumer import AsyncConsumer as Consumer
from odradek.client.shells.aio_producer import AsyncProducer as Producer
from odradek.client.shells.aio_producer import SentRecord
from odradek.env.real import RealEnv

__all__ = ["Admin", "Consumer", "Producer", "SentRecord", "open_admin", "open_consumer", "open_producer"]


C = TypeVar("C", Producer, Consumer)


def open_producer(
    config: Mapping[str, Any] | None = None, /, **keys: Any
) -> AbstractAsyncContextManager[Producer]:
    """Open a producer for an `async with` block.

    At the end of the block the producer sends the remaining records. If an exception ends the block, the
    producer drops these records. `config` has Kafka's keys; keyword arguments are the same keys with
    underscores. Raises `ValueError` for a bad configuration.
    """
    return _opened(Producer, config, keys)


def open_consumer(
    config: Mapping[str, Any] | None = None, /, **keys: Any
) -> AbstractAsyncContextManager[Consumer]:
    """Open a consumer for an `async with` block.

    At the end of the block the consumer commits (`enable.auto.commit`) and leaves its group. If an exception
    ends the block, the consumer does neither. `config` has Kafka's keys; keyword arguments are the same keys
    with underscores. Raises `ValueError` for a bad configuration.
    """
    return _opened(Consumer, config, keys)


@asynccontextmanager
async def _opened(
    kind: type[C], config: Mapping[str, Any] | None, keys: Mapping[str, Any]
) -> AsyncIterator[C]:
    async with trio.open_nursery() as nursery:
        client = kind(RealEnv(), nursery, config, **keys)
        try:
            yield client
        except BaseException:
            client.client.close()
            raise
        await client.close()
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def open_admin(config: Mapping[str, Any] | None = None, /, **keys: Any) -> AsyncIterator[Admin]:
    """Open an admin client for an `async with` block. The client has the methods of `odradek.Admin`, as async
    methods.

    `config` has Kafka's keys; keyword arguments are the same keys with underscores. Raises `ValueError` for a bad
    configuration.
    """
    async with trio.open_nursery() as nursery:
        admin = Admin(RealEnv(), nursery, config, **keys)
        try:
            yield admin
        finally:
            admin.close()
            nursery.cancel_scope.cancel()
