"""The topics of coordinators as this broker's configuration describes them."""

from __future__ import annotations

from odradek.data_plane.broker_settings import BrokerSettings
from odradek.data_plane.groups.offsets_topic import OFFSETS_TOPIC, offsets_topic
from odradek.data_plane.transactions.transactions_topic import TRANSACTIONS_TOPIC, transactions_topic
from odradek.wire.messages.create_topics import CreatableTopic


def internal_topic(settings: BrokerSettings, name: str) -> CreatableTopic | None:
    """Make the request that creates the internal topic; None for any other name."""
    if name == OFFSETS_TOPIC:
        return offsets_topic(settings.groups)
    if name == TRANSACTIONS_TOPIC:
        return transactions_topic(settings.transactions)
    return None
