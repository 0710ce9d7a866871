"""The settings of a client, as numbers."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from odradek.client.core.client_security import ClientSecurity
from odradek.client.core.retry import RetryPolicy

__all__ = ["ClientConfig"]


_RETRY = RetryPolicy()
_RECONNECT = RetryPolicy(backoff=0.05)


@attrs.frozen
class ClientConfig:
    """The settings of a client. Times in seconds, sizes in bytes."""

    client_id: str = "odradek"
    connect_timeout: float = 10.0
    connect_timeout_max: float = 30.0
    """The longest time for an attempt to connect; the time doubles with each failed attempt."""
    connection_idle_max: float | None = None
    """The time after which a connection without calls is closed. None keeps it open."""
    rebootstrap: bool = True
    """True if the bootstrap addresses are used again when the known brokers cannot be reached (KIP-899)."""
    rebootstrap_trigger: float = 300.0
    """The seconds without metadata after which the known brokers are replaced by the bootstrap addresses
    (KIP-1102).
    """
    request_timeout: float = 30.0
    api_timeout: float = 60.0
    """The seconds that an admin's call may take with all its requests, unless the call has its own timeout."""
    retry: RetryPolicy = _RETRY
    reconnect: RetryPolicy = _RECONNECT
    frame_bytes_max: int = 100 << 20
    in_flight_max: int = 5
    calls_waiting_max: int = 1000
    security: ClientSecurity | None = None
    """Encryption and login of all connections; None stands for plaintext."""
    fail_fast: bool = True
    """True if calls fail at once when every bootstrap address fails and the client has never reached a broker."""
    on_error: Callable[[int, str], object] | None = attrs.field(default=None, repr=False, eq=False)
    """Called with level and text of each log line from WARNING on, without a lock."""
