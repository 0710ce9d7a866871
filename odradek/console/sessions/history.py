"""The changes of the cluster, from the metadata log. They are read on at each look, and kept. SHELL."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from odradek.client.admin import QuorumDescription
from odradek.client.core.client_keys import AdminSettings
from odradek.client.shells.blocking import Client
from odradek.console.sessions.beside import Beside
from odradek.console.shapes.view_errors import ViewError
from odradek.operations.cluster_events import Event
from odradek.operations.event_reader import EventReader

__all__ = ["History", "Told"]

EVENTS_MAX = 50_000
"""The most events that are kept: the newest."""
ASK_SECONDS_MAX = 10.0
RECENT_SECONDS = 10.0
"""The age from which the recent events are read again."""
FAILED_SECONDS = 30.0
"""The pause after a failure to read them."""


class Told(NamedTuple):
    """The known events, the oldest first."""

    events: Sequence[Event]
    controllers: Mapping[int, int]
    """The controller that led in each epoch."""
    begins_at: int
    """Events before this offset of the metadata log are not known."""


class History:
    """The events in the active controller's copy of the metadata log."""

    def __init__(self, open_client: Callable[[], Client], properties: Mapping[str, object]) -> None:
        """`properties` are those of a client that may read from the controllers' listener."""
        self._open_client = open_client
        self._properties = dict(properties)
        self._lock = threading.Lock()
        self._events: deque[Event] = deque(maxlen=EVENTS_MAX)
        self._client: Client | None = None
        self._reader: EventReader | None = None
        self._is_closed = False
        self.recent: Beside[Told] = Beside(fresh_seconds=RECENT_SECONDS, failed_seconds=FAILED_SECONDS)
        """The events, for views that need not wait for the controllers."""

    def read(self) -> Told:
        """Read new events, and return all known ones. Raises `KafkaError`, `ClientError` and `ViewError`."""
        with self._lock:
            if self._is_closed:
                raise ViewError(401, "LOGIN_NEEDED", "log in again")
            if self._reader is None or self._client is None:
                self._client = self._open_client()
                self._reader = EventReader(self._client, self._connected, timeout_seconds=ASK_SECONDS_MAX)
            quorum = self._client.admin.describe_quorum(timeout=ASK_SECONDS_MAX)
            self._events.extend(self._reader.read_to(quorum.high_watermark))
            first = self._events[0].offset if len(self._events) == EVENTS_MAX else 0
            begins_at = max(first, self._reader.begins_at)
            return Told(tuple(self._events), dict(self._reader.controllers), begins_at)

    def close(self) -> None:
        """Close the connections. A reading that is under way ends first."""
        with self._lock:
            self._is_closed = True
            if self._client is not None:
                self._client.close()
            self._client = self._reader = None

    @contextmanager
    def _connected(self, quorum: QuorumDescription) -> Iterator[Client]:
        """Open a client of the active controller."""
        leader = quorum.leader
        if leader is None or not leader.endpoints:
            raise ViewError(503, "NO_LEADER", "the quorum has no leader, or does not say where it listens")
        _, host, port = leader.endpoints[0]
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        settings = AdminSettings.from_properties({**self._properties, "bootstrap.servers": address})
        timeout_ms = int(ASK_SECONDS_MAX * 1000)
        with Client(address, timeout_ms=timeout_ms, config=settings.client_config(fail_fast=True)) as client:
            yield client
