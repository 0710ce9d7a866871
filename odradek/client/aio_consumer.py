"""The documented name of the async consumer, which lives in `shells/aio_consumer.py`."""

from odradek.client.shells.aio_consumer import AsyncConsumer

__all__ = ["AsyncConsumer"]
