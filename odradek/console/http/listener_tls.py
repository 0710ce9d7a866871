"""TLS of the console's listener. The certificate is read again after its files have changed. PORTED."""

from __future__ import annotations

from odradek.env.ports import Conn, ConnectionLost, Env, Log
from odradek.env.tls_ports import Tls, TlsFailed, TlsRefused
from odradek.security.handshakes import Handshakes

__all__ = ["ListenerTls"]

RELOAD_SECONDS = 60.0


class ListenerTls:
    """Encrypts the connections of a listener."""

    def __init__(self, tls: Tls, env: Env, log: Log) -> None:
        self._tls = tls
        self._clock = env.clock
        self._workers = env.workers
        self._log = log
        self._handshakes = Handshakes(env)
        self._looked_at = env.clock.monotonic()

    async def handshake(self, conn: Conn) -> Conn:
        """Do the handshake. Raises `ConnectionLost`."""
        if not self._handshakes.has_room(conn.peer_host):
            raise ConnectionLost("too many TLS handshakes wait")
        await self._look_at_files()
        try:
            return await self._handshakes.accept(conn, self._tls.server_session)
        except TlsFailed as error:
            raise ConnectionLost(f"the TLS handshake failed: {error}") from error

    async def _look_at_files(self) -> None:
        now = self._clock.monotonic()
        if now - self._looked_at < RELOAD_SECONDS:
            return
        self._looked_at = now
        try:
            if await self._workers.run(self._tls.reload):
                self._log.info("console.certificate_reloaded")
        except TlsRefused as error:
            self._log.warning("console.certificate_kept", reason=str(error))
