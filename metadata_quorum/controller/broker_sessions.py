"""Broker sessions: the time of each broker's last heartbeat, and the metadata offset that it has reached. Soft
state of the active controller, never replicated.

A new active controller gives every unfenced broker a full session from the moment it takes over. It gets a broker's
metadata offset from the broker's first heartbeat.

A broker that shuts down may end only when every active broker's metadata has the leaders that replace it. So the
end of the log is noted when its leaderships have been moved, and compared with the offsets that the other brokers
report.

A session that a new controller has given does not show that the broker is alive: only a heartbeat shows it.
`heard_since` makes that difference. A broker that left, and whose place in some ISR waits for heartbeats of the
other members, is listed here as waiting (`odradek.metadata_quorum.controller.brokers.leaving_isrs`).
"""

from __future__ import annotations

import attrs

from odradek.metadata_quorum.image.metadata_image import MetadataImage

SLEEPS_PER_TIMEOUT = 3
"""A timer that is late by more than this part of a session timeout means that the controller stood still."""


NEVER = -(1 << 62)
"""A time earlier than any other."""


@attrs.define
class _Wait:
    """A broker that left while other members of its ISRs sent no heartbeats."""

    since_ms: int
    silent: tuple[int, ...] | None = None
    """The unfenced brokers that were silent at the last check; None if there was no check."""


@attrs.define
class _Contact:
    heard_ms: int
    """The time at which the session began anew: by a heartbeat, a registration, or a controller that took over."""
    beat_ms: int = NEVER
    """The time of the last heartbeat."""
    was_prolonged: bool = False
    metadata_offset: int = -1
    shutdown_offset: int | None = None


class BrokerSessions:
    """The sessions of all brokers. Times are monotonic milliseconds."""

    def __init__(self, session_timeout_ms: int) -> None:
        self._timeout_ms = session_timeout_ms
        self._contacts: dict[int, _Contact] = {}
        self._waiting: dict[int, _Wait] = {}
        self._started_ms = NEVER

    def start(self, image: MetadataImage, now_ms: int) -> None:
        """Forget all sessions, and begin a session for each unfenced broker now."""
        self._contacts = {
            broker.broker_id: _Contact(now_ms) for broker in image.brokers.values() if not broker.fenced
        }
        self._waiting = {}
        self._started_ms = now_ms

    def begin(self, broker_id: int, now_ms: int) -> None:
        """Begin the session of a new registration: earlier contacts no longer count."""
        self._contacts[broker_id] = _Contact(now_ms)

    def touch(self, broker_id: int, now_ms: int, metadata_offset: int) -> None:
        """Note a broker's heartbeat: its session begins again, and it has read the metadata to `metadata_offset`."""
        contact = self._contacts.setdefault(broker_id, _Contact(now_ms))
        contact.heard_ms = contact.beat_ms = now_ms
        contact.was_prolonged = False
        contact.metadata_offset = metadata_offset

    def remove(self, broker_id: int) -> None:
        self._contacts.pop(broker_id, None)

    def is_valid(self, broker_id: int, now_ms: int) -> bool:
        contact = self._contacts.get(broker_id)
        return contact is not None and now_ms - contact.heard_ms < self._timeout_ms

    def may_live(self, broker_id: int, now_ms: int) -> bool:
        """True if a broker has a session that has not ended. For the first session, a new controller assumes that
        of every broker.
        """
        return self.is_valid(broker_id, now_ms) or now_ms - self._started_ms < self._timeout_ms

    def recently(self, now_ms: int) -> int:
        """Return the time, half a session ago, since when each living broker has sent a heartbeat."""
        return now_ms - self._timeout_ms // 2

    def heard_since(self, broker_id: int, since_ms: int) -> bool:
        """True if a heartbeat of this registration has come after `since_ms`."""
        contact = self._contacts.get(broker_id)
        return contact is not None and contact.beat_ms > since_ms

    def wait(self, broker_id: int, since_ms: int) -> None:
        """Note a broker that stays in ISRs until their other members have been heard after `since_ms`, or are gone."""
        known = self._waiting.get(broker_id)
        if known is None or known.since_ms != since_ms:
            self._waiting[broker_id] = _Wait(since_ms)

    def waits_since(self, broker_id: int) -> int:
        """Return the time at which a broker began to wait; `NEVER` if it does not wait."""
        known = self._waiting.get(broker_id)
        return NEVER if known is None else known.since_ms

    def waiting(self, image: MetadataImage) -> dict[int, int]:
        """Map each waiting broker to the time at which it began to wait, if others have sent heartbeats or were
        fenced since the last call.

        Once all other brokers have sent heartbeats, a broker is listed for the last time.
        """
        due: dict[int, int] = {}
        for broker_id, wait in sorted(self._waiting.items()):
            broker = image.brokers.get(broker_id)
            if broker is None or broker.is_active:
                del self._waiting[broker_id]
                continue
            silent = tuple(
                other_id
                for other_id, other in sorted(image.brokers.items())
                if other.is_active and not self.heard_since(other_id, wait.since_ms)
            )
            if silent != wait.silent:
                wait.silent = silent
                due[broker_id] = wait.since_ms
            if not silent:
                del self._waiting[broker_id]
        return due

    def prolong(self, slept_ms: int, now_ms: int) -> None:
        """Prolong all sessions by the time for which the controller's own process was stopped, because it could not
        receive heartbeats then.

        A broker gets this once between two heartbeats: a controller that pauses again and again must not keep a dead
        broker alive.
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
        """Note that `end_offset` of the log includes the moves of all leaderships from a broker that shuts down.
        Only the first call counts.
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
