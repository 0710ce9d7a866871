"""Broker sessions: when each broker was last heard of. Soft state of the active controller, never replicated.

A new active controller gives every unfenced broker a full session from the moment it takes over.
"""

from __future__ import annotations

from metadata_quorum.image import MetadataImage


class BrokerSessions:
    """Times are monotonic milliseconds."""

    def __init__(self, session_timeout_ms: int) -> None:
        self._timeout_ms = session_timeout_ms
        self._contacts: dict[int, int] = {}

    def start(self, image: MetadataImage, now_ms: int) -> None:
        """Forget everything; unfenced brokers are as good as heard of now."""
        self._contacts = {broker.broker_id: now_ms for broker in image.brokers.values() if not broker.fenced}

    def touch(self, broker_id: int, now_ms: int) -> None:
        self._contacts[broker_id] = now_ms

    def remove(self, broker_id: int) -> None:
        self._contacts.pop(broker_id, None)

    def is_valid(self, broker_id: int, now_ms: int) -> bool:
        contact = self._contacts.get(broker_id)
        return contact is not None and now_ms - contact < self._timeout_ms

    def expired(self, image: MetadataImage, now_ms: int) -> list[int]:
        """Unfenced brokers that have not been heard of for a session timeout, by id."""
        return [
            broker_id
            for broker_id, broker in sorted(image.brokers.items())
            if not broker.fenced and not self.is_valid(broker_id, now_ms)
        ]

    def statistics(self) -> dict[str, int]:
        return {"brokers": len(self._contacts)}
