"""The internal topics of coordinators, with the settings from this broker's configuration."""

from __future__ import annotations

from odradek.data_plane.broker_settings import BrokerSettings
from odradek.data_plane.groups.offsets_topic import OFFSETS_TOPIC, offsets_topic
from odradek.data_plane.transactions.transactions_topic import TRANSACTIONS_TOPIC, transactions_topic
from odradek.wire.messages.create_topics import CreatableTopic


def internal_topic(settings: BrokerSettings, name: str) -> CreatableTopic | None:
    """Build the request that creates the internal topic `name`; None if there is no such internal topic."""
    if name == OFFSETS_TOPIC:
        return offsets_topic(settings.groups)
    if name == TRANSACTIONS_TOPIC:
        return transactions_topic(settings.transactions)
    return None
