"""The settings of a client as typed values: seconds, bytes, policies."""

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
    """The settings of a client. Times are in seconds, sizes in bytes."""

    client_id: str = "odradek"
    connect_timeout: float = 10.0
    connect_timeout_max: float = 30.0
    """The upper limit of the timeout for one attempt to connect. The timeout doubles after each failed
    attempt, up to this limit.
    """
    connection_idle_max: float | None = None
    """Seconds without calls after which a connection is closed. None keeps it open."""
    rebootstrap: bool = True
    """True if the bootstrap addresses are used again when the known brokers cannot be reached (KIP-899)."""
    rebootstrap_trigger: float = 300.0
    """The seconds without metadata after which the known brokers are replaced by the bootstrap addresses
    (KIP-1102).
    """
    request_timeout: float = 30.0
    api_timeout: float = 60.0
    """The timeout of an admin operation, including all its requests, in seconds. It applies unless the call
    sets another timeout.
    """
    retry: RetryPolicy = _RETRY
    reconnect: RetryPolicy = _RECONNECT
    frame_bytes_max: int = 100 << 20
    in_flight_max: int = 5
    calls_waiting_max: int = 1000
    security: ClientSecurity | None = None
    """Encryption and login of all connections; None means plaintext."""
    fail_fast: bool = True
    """True if calls fail at once when all bootstrap addresses have failed. This applies only until the client
    has reached a broker for the first time.
    """
    on_error: Callable[[int, str], object] | None = attrs.field(default=None, repr=False, eq=False)
    """Called with the level and the text of each log line from WARNING on. No lock is held during the call."""
