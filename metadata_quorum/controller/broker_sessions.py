"""Broker sessions: last heartbeats and metadata offsets, whose session is over, who waits to leave an ISR, and
when a controlled shutdown may end. Sessions are soft state of the active controller, and are not replicated.

When a controller becomes active, it begins a new session for every unfenced broker. It learns a broker's
metadata offset from the broker's first heartbeat.

A broker that shuts down may stop only when all active brokers know the leaders that replace it. So the
controller moves the leaderships, and stores the log end offset after the move. The broker may stop when all
other active brokers have reported this offset.

A session does not prove that the broker is alive, since a new controller gives a session to every unfenced
broker. `heard_since` counts only heartbeats.

A broker that stops may stay in some ISRs until their other members have sent heartbeats. Until then this
module lists the broker as waiting (`odradek.metadata_quorum.controller.brokers.leaving_isrs`).
"""

from __future__ import annotations

import attrs

from odradek.metadata_quorum.image.metadata_image import MetadataImage

SLEEPS_PER_TIMEOUT = 3
"""A divisor of the session timeout. If a timer is late by more than this share of the timeout (1/3), this
process is assumed to have been paused.
"""


NEVER = -(1 << 62)
"""A time in milliseconds that is earlier than all other times."""


@attrs.define
class _Wait:
    """A broker that has left, but stays in some ISR until the other members have sent heartbeats."""

    since_ms: int
    silent: tuple[int, ...] | None = None
    """The active brokers that had sent no heartbeat since `since_ms` at the last check; None before the first
    check.
    """


@attrs.define
class _Contact:
    heard_ms: int
    """The time at which the session last began. A session begins with a heartbeat, with a registration, or
    when a controller becomes active.
    """
    beat_ms: int = NEVER
    """The time of the last heartbeat."""
    quiet_ms: int | None = None
    """If a controller that has just become active knows it: the time of the broker's last sign of life, before the
    session began. None from the first heartbeat on.
    """
    was_prolonged: bool = False
    metadata_offset: int = -1
    shutdown_offset: int | None = None


class BrokerSessions:
    """The sessions of all brokers. All times are monotonic milliseconds."""

    def __init__(self, session_timeout_ms: int) -> None:
        self._timeout_ms = session_timeout_ms
        self._contacts: dict[int, _Contact] = {}
        self._waiting: dict[int, _Wait] = {}
        self._started_ms = NEVER

    def start(self, image: MetadataImage, now_ms: int, quiet: tuple[int, int] | None = None) -> None:
        """Drop all sessions, and begin a session for each unfenced broker.

        Called when the controller becomes active. `quiet` names the node that was the active controller before, and
        the time at which this controller last heard it. If that node is a broker, too, it has been quiet since.
        """
        self._contacts = {
            broker.broker_id: _Contact(now_ms) for broker in image.brokers.values() if not broker.fenced
        }
        if quiet is not None and (former := self._contacts.get(quiet[0])) is not None:
            former.quiet_ms = min(now_ms, quiet[1])
        self._waiting = {}
        self._started_ms = now_ms

    def begin(self, broker_id: int, now_ms: int) -> None:
        """Begin the session of a new registration. Heartbeats under earlier registrations no longer count."""
        self._contacts[broker_id] = _Contact(now_ms)

    def touch(self, broker_id: int, now_ms: int, metadata_offset: int) -> None:
        """Record a broker's heartbeat: begin its session again, and store the offset up to which it has read
        the metadata log.
        """
        contact = self._contacts.setdefault(broker_id, _Contact(now_ms))
        contact.heard_ms = contact.beat_ms = now_ms
        contact.quiet_ms = None
        contact.was_prolonged = False
        contact.metadata_offset = metadata_offset

    def remove(self, broker_id: int) -> None:
        self._contacts.pop(broker_id, None)

    def is_valid(self, broker_id: int, now_ms: int) -> bool:
        contact = self._contacts.get(broker_id)
        return contact is not None and now_ms - contact.heard_ms < self._timeout_ms

    def may_live(self, broker_id: int, now_ms: int) -> bool:
        """True if the broker may be alive: it has a valid session, or the controller has been active for less
        than one session timeout.
        """
        return self.is_valid(broker_id, now_ms) or now_ms - self._started_ms < self._timeout_ms

    def recently(self, now_ms: int) -> int:
        """Return the time half a session timeout ago.

        A broker that is alive has sent a heartbeat since then.
        """
        return now_ms - self._timeout_ms // 2

    def heard_since(self, broker_id: int, since_ms: int) -> bool:
        """True if this registration of the broker has sent a heartbeat after `since_ms`."""
        contact = self._contacts.get(broker_id)
        return contact is not None and contact.beat_ms > since_ms

    def wait(self, broker_id: int, since_ms: int) -> None:
        """Mark a broker as waiting. It stays in ISRs until each other member has sent a heartbeat after
        `since_ms`, or is inactive.
        """
        known = self._waiting.get(broker_id)
        if known is None or known.since_ms != since_ms:
            self._waiting[broker_id] = _Wait(since_ms)

    def waits_since(self, broker_id: int) -> int:
        """Return the time at which a broker began to wait; `NEVER` if it does not wait."""
        known = self._waiting.get(broker_id)
        return NEVER if known is None else known.since_ms

    def waiting(self, image: MetadataImage) -> dict[int, int]:
        """List the waiting brokers whose ISRs must be checked now, each with the time at which it began to
        wait.

        For each waiting broker, the silent brokers are the active brokers that have sent no heartbeat since
        that time. A waiting broker is listed only if its silent brokers have changed since the last call.
        When no broker is silent any more, the waiting broker is listed for the last time.
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
        """Prolong all sessions by the time for which this process was paused, because it could not receive
        heartbeats then.

        A session is prolonged only once between two heartbeats. Otherwise repeated pauses could keep the
        session of a dead broker alive.
        """
        if slept_ms * SLEEPS_PER_TIMEOUT > self._timeout_ms:
            for contact in self._contacts.values():
                if not contact.was_prolonged:
                    contact.was_prolonged = True
                    contact.heard_ms = min(now_ms, contact.heard_ms + slept_ms)

    def expired(self, image: MetadataImage, now_ms: int) -> list[int]:
        """List the unfenced brokers without a valid session, sorted by id."""
        return [
            broker_id
            for broker_id, broker in sorted(image.brokers.items())
            if not broker.fenced and not self.is_valid(broker_id, now_ms)
        ]

    def silent(self, image: MetadataImage, since_ms: int) -> list[int]:
        """List the unfenced brokers of which this controller has heard nothing since `since_ms`, sorted by id."""
        return [
            broker_id
            for broker_id, broker in sorted(image.brokers.items())
            if not broker.fenced
            and (contact := self._contacts.get(broker_id)) is not None
            and (contact.heard_ms if contact.quiet_ms is None else contact.quiet_ms) <= since_ms
        ]

    def leaderships_moved(self, broker_id: int, end_offset: int) -> None:
        """Store the log end offset after all leaderships were moved from a broker that shuts down.

        Only the first call for a session counts.
        """
        contact = self._contacts.get(broker_id)
        if contact is not None and contact.shutdown_offset is None:
            contact.shutdown_offset = end_offset

    def others_know(self, image: MetadataImage, broker_id: int) -> bool:
        """True if all other active brokers have read the metadata that moved this broker's leaderships."""
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
