"""Broker sessions: when each broker was last heard of, and how far it is. Soft state of the active controller, never
replicated.

A new active controller gives every unfenced broker a full session from the moment it takes over. It knows a broker's
metadata offset as soon as the broker's first heartbeat names it.

A broker that shuts down may end only when every active broker knows of the leaders that replace it. So the end of the
log is noted when its leaderships have been moved, and compared with the offsets that the others report.
"""

from __future__ import annotations

import attrs

from odradek.metadata_quorum.image.metadata_image import MetadataImage

SLEEPS_PER_TIMEOUT = 3
"""A timer that is late by more than this part of a session timeout means that the controller stood still."""


@attrs.define
class _Contact:
    heard_ms: int
    was_prolonged: bool = False
    metadata_offset: int = -1
    shutdown_offset: int | None = None


class BrokerSessions:
    """Times are monotonic milliseconds."""

    def __init__(self, session_timeout_ms: int) -> None:
        self._timeout_ms = session_timeout_ms
        self._contacts: dict[int, _Contact] = {}

    def start(self, image: MetadataImage, now_ms: int) -> None:
        """Forget everything; unfenced brokers are as good as heard of now."""
        self._contacts = {
            broker.broker_id: _Contact(now_ms) for broker in image.brokers.values() if not broker.fenced
        }

    def begin(self, broker_id: int, now_ms: int) -> None:
        """Begin the session of a new registration: earlier contacts no longer count."""
        self._contacts[broker_id] = _Contact(now_ms)

    def touch(self, broker_id: int, now_ms: int, metadata_offset: int) -> None:
        """Note a broker's heartbeat: its session begins again, and it has read the metadata to `metadata_offset`."""
        contact = self._contacts.setdefault(broker_id, _Contact(now_ms))
        contact.heard_ms = now_ms
        contact.was_prolonged = False
        contact.metadata_offset = metadata_offset

    def remove(self, broker_id: int) -> None:
        self._contacts.pop(broker_id, None)

    def is_valid(self, broker_id: int, now_ms: int) -> bool:
        contact = self._contacts.get(broker_id)
        return contact is not None and now_ms - contact.heard_ms < self._timeout_ms

    def prolong(self, slept_ms: int, now_ms: int) -> None:
        """Add to all sessions what the controller itself slept (a paused process), because it could not hear the
        brokers then.

        A broker gets this once between two heartbeats: a controller that stumbles again and again must not keep a
        dead broker alive.
        """
        if slept_ms * SLEEPS_PER_TIMEOUT > self._timeout_ms:
            for contact in self._contacts.values():
                if not contact.was_prolonged:
                    contact.was_prolonged = True
                    contact.heard_ms = min(now_ms, contact.heard_ms + slept_ms)

    def expired(self, image: MetadataImage, now_ms: int) -> list[int]:
        """List unfenced brokers without a heartbeat for a session timeout, by id."""
        return [
            broker_id
            for broker_id, broker in sorted(image.brokers.items())
            if not broker.fenced and not self.is_valid(broker_id, now_ms)
        ]

    def leaderships_moved(self, broker_id: int, end_offset: int) -> None:
        """Note that the leaderships of a broker that shuts down are elsewhere as of `end_offset`; the first note
        counts.
        """
        contact = self._contacts.get(broker_id)
        if contact is not None and contact.shutdown_offset is None:
            contact.shutdown_offset = end_offset

    def others_know(self, image: MetadataImage, broker_id: int) -> bool:
        """True if all active brokers have read the metadata that moved this broker's leaderships."""
        contact = self._contacts.get(broker_id)
        if contact is None or contact.shutdown_offset is None:
            return False
        for other_id, other in sorted(image.brokers.items()):
            if other.is_active and other_id != broker_id:
                known = self._contacts.get(other_id)
                if known is None or known.metadata_offset < contact.shutdown_offset:
                    return False
        return True

    def statistics(self) -> dict[str, int]:
        return {"brokers": len(self._contacts)}
