"""Log lines about malformed frames: one per second and peer; further lines are only counted. PURE.

A peer that sends garbage as fast as it can connect would otherwise fill the operator's disk. The next line
about the peer contains the number of lines that were suppressed. If there is no next line, the server writes
that number a second later.
"""

from __future__ import annotations

from odradek.env.ports import Log

INTERVAL_SECONDS = 1.0
PEERS_MAX = 1024
_TLS_HANDSHAKE = 0x1603
"""The first two bytes of a handshake record of TLS 1.x, as a number."""
OTHERS = "others"
"""The name for all further peers if more than `PEERS_MAX` send malformed frames within one interval."""


def size_refusal(size: int, bytes_min: int, bytes_max: int, when: str = "") -> str:
    """Return the error text about a frame of a wrong size. If the bytes are the start of a TLS handshake, the
    text says that the client's `security.protocol` must be changed.
    """
    if size >> 16 == _TLS_HANDSHAKE:
        return (
            "the client speaks TLS to a plaintext listener: set security.protocol=PLAINTEXT or "
            "SASL_PLAINTEXT in the client"
        )
    return (
        f"the client sent a frame that claims {size} bytes{when}, and {bytes_min} to {bytes_max} are allowed"
    )


class _Peer:
    """The time of the last log line about a peer, and the number of lines suppressed since then."""

    __slots__ = ("error", "held_back", "said_at")

    def __init__(self, said_at: float) -> None:
        self.said_at = said_at
        self.held_back = 0
        self.error = ""


class Complaints:
    """Writes these log lines for all connections of several listeners."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._peers: dict[str, _Peer] = {}
        self.protocol_errors = 0

    def protocol_error(self, now: float, error: str, *, peer: str, client_id: str | None) -> None:
        """Log or count that a connection of `peer` is closed because of a protocol error. `now` is in seconds."""
        self.protocol_errors += 1
        known = self._peers.get(peer)
        if known is None:
            if len(self._peers) >= PEERS_MAX:
                peer, client_id = OTHERS, None
                known = self._peers.get(OTHERS)
            if known is None:
                self._peers[peer] = _Peer(now)
                self._log.warning("connection.protocol_error", error=error, peer=peer, client_id=client_id)
                return
        known.held_back += 1
        known.error = error
        if now - known.said_at >= INTERVAL_SECONDS:
            self._log_peer(peer, known, now)

    def log_held_back(self, now: float) -> None:
        """Log the suppressed lines that are due, and forget peers without an error for an interval. Called about
        every second.
        """
        for name, peer in list(self._peers.items()):
            if now - peer.said_at >= INTERVAL_SECONDS:
                if peer.held_back:
                    self._log_peer(name, peer, now)
                else:
                    del self._peers[name]

    def _log_peer(self, name: str, peer: _Peer, now: float) -> None:
        """Log the latest error of a peer, and the number of suppressed lines."""
        self._log.warning("connection.protocol_error", error=peer.error, peer=name, count=peer.held_back)
        peer.said_at = now
        peer.held_back = 0
