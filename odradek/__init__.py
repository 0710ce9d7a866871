"""Odradek is a distributed commit log that speaks Kafka's protocol. This module has the names that programs import.

Each part is imported when its name is first used (PEP 562), so `import odradek` is cheap and the command line starts
at once.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from odradek.client.consumer.consumer_types import ConsumerRecord as ConsumerRecord
    from odradek.client.consumer.consumer_types import OffsetAndMetadata as OffsetAndMetadata
    from odradek.client.consumer.consumer_types import RebalanceListener as RebalanceListener
    from odradek.client.consumer.consumer_types import SubscriptionPattern as SubscriptionPattern
    from odradek.client.consumer.consumer_types import UndecodableRecord as UndecodableRecord
    from odradek.client.errors import ClientError as ClientError
    from odradek.client.producer.record_metadata import Delivered as Delivered
    from odradek.client.producer.record_metadata import RecordMetadata as RecordMetadata
    from odradek.client.shells.admin_client import Admin as Admin
    from odradek.client.shells.blocking import Client as Client
    from odradek.client.shells.consumer import Consumer as Consumer
    from odradek.client.shells.producer import Producer as Producer
    from odradek.wire.errors import ErrorCode as ErrorCode
    from odradek.wire.errors import KafkaError as KafkaError
    from odradek.wire.topic_partition import TopicPartition as TopicPartition

_HOMES = {
    "Admin": "odradek.client.shells.admin_client",
    "Client": "odradek.client.shells.blocking",
    "ClientError": "odradek.client.errors",
    "Consumer": "odradek.client.shells.consumer",
    "Delivered": "odradek.client.producer.record_metadata",
    "ConsumerRecord": "odradek.client.consumer.consumer_types",
    "OffsetAndMetadata": "odradek.client.consumer.consumer_types",
    "Producer": "odradek.client.shells.producer",
    "RebalanceListener": "odradek.client.consumer.consumer_types",
    "RecordMetadata": "odradek.client.producer.record_metadata",
    "SubscriptionPattern": "odradek.client.consumer.consumer_types",
    "TopicPartition": "odradek.wire.topic_partition",
    "UndecodableRecord": "odradek.client.consumer.consumer_types",
    "ErrorCode": "odradek.wire.errors",
    "KafkaError": "odradek.wire.errors",
}

__all__ = [
    "Admin",
    "Client",
    "ClientError",
    "Consumer",
    "ConsumerRecord",
    "Delivered",
    "ErrorCode",
    "KafkaError",
    "OffsetAndMetadata",
    "Producer",
    "RebalanceListener",
    "RecordMetadata",
    "SubscriptionPattern",
    "TopicPartition",
    "UndecodableRecord",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("odradek")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES, "__version__"])
