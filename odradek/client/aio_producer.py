"""The documented name of the async producer, which lives in `shells/aio_producer.py`."""

from odradek.client.shells.aio_producer import AsyncProducer, SentRecord

__all__ = ["AsyncProducer", "SentRecord"]
