"""All connections of one listener: accepted, authenticated, served, refused beyond limits; idle ones are
closed. PORTED.
"""

from __future__ import annotations

from collections.abc import Iterable

from odradek.env.ports import Conn, ConnectionCut, ConnectionLost, Listener
from odradek.node.connections.buffers import Holder
from odradek.node.connections.connection_limits import ConnectionLimits
from odradek.node.connections.connection_loop import Connection
from odradek.node.connections.connection_services import ConnectionServices
from odradek.node.connections.entrance import Entered, Entrance, NotAuthenticated
from odradek.node.connections.expiring_connection import ExpiringConnection
from odradek.wire.errors import ProtocolError

REAP_INTERVAL_SECONDS = 1.0
TRIM_AFTER_SECONDS = 5.0
LOOKS_MAX = 1_000
"""The approximate number of muted connections that one call of `_close_left` tests. Each test is a system call of a
microsecond.
"""
REFUSED_INTERVAL_SECONDS = 10.0
"""The seconds between two log lines about refused connections."""
_HANDSHAKES = ("TLS handshakes that wait", None)


class Server:
    """Owns the connections of one listener, and refuses those beyond `limits`."""

    def __init__(
        self,
        services: ConnectionServices,
        listener: Listener,
        listener_name: str,
        *,
        idle_ms_max: int,
        limits: ConnectionLimits,
        is_peers: bool = False,
        entrance: Entrance | None = None,
    ) -> None:
        """`is_peers` is true if only brokers use the listener; limits for clients then do not apply.
        `entrance` authenticates clients; it is None if the listener does not authenticate clients.
        """
        self._entrance = entrance
        self._entering: dict[Conn, None] = {}
        self._is_peers = is_peers
        self._refusals_logged = 0
        self._log_refusals_at = float("-inf")
        self._services = services
        self._listener = listener
        self.name = listener_name
        self._idle_seconds_max = idle_ms_max / 1000 if idle_ms_max >= 0 else float("inf")
        self._limits = limits
        self._connections: dict[Connection, None] = {}
        if not is_peers:
            limits.yielding.append(lambda: (each for each in self._connections if not each.closing))
        self._accepted = 0
        self._refused = 0
        self._reaped = 0
        self._looks = 0

    async def accept_loop(self) -> None:
        """Accept connections, each with a task of its own, until the listener closes."""
        clock, limits = self._services.clock, self._limits
        # All connections share one bound method. A bound method for each connection would cost 64 bytes per
        # idle connection.
        on_end = self._ended
        while True:
            while (at := self._accept_at(clock.monotonic())) > clock.monotonic():
                await clock.sleep_until(at)
            try:
                conn = await self._listener.accept()
            except ConnectionLost:
                return
            entrance, host = self._entrance, conn.peer_host
            refused_by: tuple[str, float | None] | None = None
            if entrance is not None and not entrance.has_room(host):
                refused_by = _HANDSHAKES
            elif not limits.enter(host, self.name, is_peers=self._is_peers, now=clock.monotonic()):
                refused_by = limits.refused_by
            if refused_by is not None:
                self._refused += 1
                self._log_refused(clock.monotonic(), host, *refused_by)
                conn.close()
                continue
            self._accepted += 1
            if entrance is not None:
                self._services.tasks.start_soon(self._let_in, entrance, conn, name="entering connection")
                continue
            connection = Connection(self._services, conn, self.name, on_end)
            self._connections[connection] = None
            self._services.tasks.start_soon(connection.run, name="connection")

    def _accept_at(self, now: float) -> float:
        return self._limits.accept_at(now, self.name, is_peers=self._is_peers)

    async def _let_in(self, entrance: Entrance, conn: Conn) -> None:
        """Authenticate a client, then serve it in a new task, whose stack is small."""
        services = self._services
        self._entering[conn] = None
        entered: Entered | None = None
        try:
            entered = await entrance.enter(conn)
        except (ProtocolError, NotAuthenticated, ConnectionCut) as error:
            services.complaints.protocol_error(
                services.clock.monotonic(), str(error), peer=conn.peer_host, client_id=None
            )
            return
        except ConnectionLost:
            return
        except Exception:
            # A bug must not let one client's frame end the node; the traceback is for the operator.
            services.log.exception("connection.bug", peer=conn.peer_host, client_id=None)
            return
        finally:
            del self._entering[conn]
            if entered is None:
                conn.close()
                self._limits.leave(conn.peer_host, self.name, is_peers=self._is_peers)
        login = entered.context.login
        kind = Connection if login is None or not login.expires else ExpiringConnection
        connection = kind(services, entered.conn, self.name, self._ended)
        connection.context = entered.context
        self._connections[connection] = None
        services.tasks.start_soon(connection.run, name="connection")

    def _ended(self, connection: Connection) -> None:
        del self._connections[connection]
        self._limits.leave(connection.conn.peer_host, self.name, is_peers=self._is_peers)

    def _log_refused(self, now: float, peer: str, limit: str, bound: float | None) -> None:
        """Write one line for many connections that were refused. The line names the limit that refused the
        last of them.
        """
        if now >= self._log_refusals_at:
            self._log_refusals_at = now + REFUSED_INTERVAL_SECONDS
            count, self._refusals_logged = self._refused - self._refusals_logged, self._refused
            self._services.log.warning(
                "connection.refused",
                listener=self.name,
                peer=peer,
                count=count,
                open=self._limits.statistics()["connections"],
                limit=limit,
                max=bound,
            )

    async def reap_loop(self) -> None:
        """Close connections that are idle for too long, and connections that hold memory for which others
        wait. Such memory holds incomplete frames, or answers that wait for an earlier answer.
        """
        clock, buffers = self._services.clock, self._services.buffers
        while True:
            now = clock.monotonic()
            await clock.sleep_until(now + REAP_INTERVAL_SECONDS)
            now = clock.monotonic()
            self._services.complaints.log_held_back(now)
            for connection in list(self._connections):
                idle = now - connection.last_active
                if idle > self._idle_seconds_max and not connection.slots and not connection.muted_until:
                    self._reaped += 1
                    connection.close()
                elif idle > TRIM_AFTER_SECONDS or buffers.contended:
                    connection.trim()
            for holder in buffers.to_evict(now):
                self._log_evicted(
                    holder,
                    f"the client has sent half a frame ({holder.have} bytes), which holds memory that "
                    "other connections need",
                )
                holder.close()
            self._evict_holders(now)
            self._close_left(now)

    def _close_left(self, now: float) -> None:
        """Close muted connections whose clients have closed their end. If more than `LOOKS_MAX` connections are muted,
        each call checks only a part of them.
        """
        self._looks += 1
        shares = 1 + len(self._services.muted) // LOOKS_MAX
        muted = [each for each in self._connections if each.muted_until]
        for connection in muted[self._looks % shares :: shares]:
            if connection.has_left(now, self._idle_seconds_max):
                connection.close()

    def _log_evicted(self, holder: Holder, reason: str) -> None:
        self._services.log.warning("connection.evicted", peer=holder.address, reason=reason)

    def _evict_holders(self, now: float) -> None:
        """Close the connections with the most bytes of waiting answers, until the total is within the limit."""
        for connection in self._services.held.to_evict(self._connections, now):
            self._log_evicted(
                connection,
                f"{connection.held_bytes} bytes of answers wait in memory behind an earlier answer "
                "that is late",
            )
            connection.close()

    @property
    def connections(self) -> Iterable[Connection]:
        """The open connections."""
        return self._connections

    def close(self) -> None:
        """Stop accepting connections, and end all open connections."""
        self._listener.close()
        for conn in list(self._entering):
            conn.close()
        for connection in list(self._connections):
            connection.close()

    def statistics(self) -> dict[str, int]:
        """Return figures of all connections. The present figures are open connections, unanswered requests,
        held bytes, parked fetches and bytes to send. The counts since the start are accepted, refused, and
        idle connections that were closed.
        """
        connections = self._connections
        return {
            "connections": len(connections),
            "waiting": sum(len(each.slots) for each in connections if each.slots),
            "held_bytes": sum(each.held_bytes for each in connections),
            "parked": sum(each.parked for each in connections),
            "send_queue_bytes": sum(each.send_queue.bytes_queued for each in connections),
            "accepted": self._accepted,
            "refused": self._refused,
            "reaped": self._reaped,
        }
