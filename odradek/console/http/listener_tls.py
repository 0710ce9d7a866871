"""TLS of the console's listener. The certificate is read again after its files have changed. PORTED.

A listener that asks browsers for certificates makes principals of them as a broker does: by the distinguished name, and the
rules in `ssl.principal.mapping.rules`.
"""

from __future__ import annotations

import hashlib

from odradek.console.http.messages import ClientCertificate
from odradek.env.ports import Conn, ConnectionLost, Env, Log
from odradek.env.tls_ports import Tls, TlsFailed, TlsRefused
from odradek.security.certificate_validity import validity_of
from odradek.security.distinguished_names import MalformedName, distinguished_name, subject_of
from odradek.security.handshakes import Handshakes
from odradek.security.principals import PrincipalRules

__all__ = ["ListenerTls"]

RELOAD_SECONDS = 60.0


class ListenerTls:
    """Encrypts the connections of a listener."""

    def __init__(self, tls: Tls, env: Env, log: Log, rules: PrincipalRules | None = None) -> None:
        """`rules` make the principals of certificates; without them, names stay as they are."""
        self._tls = tls
        self._rules = rules or PrincipalRules()
        self._clock = env.clock
        self._workers = env.workers
        self._log = log
        self._handshakes = Handshakes(env)
        self._looked_at = env.clock.monotonic()

    async def handshake(self, conn: Conn) -> tuple[Conn, ClientCertificate | None]:
        """Do the handshake. Return the encrypted connection, and the client's certificate. Raises `ConnectionLost`."""
        if not self._handshakes.has_room(conn.peer_host):
            raise ConnectionLost("too many TLS handshakes wait")
        await self._look_at_files()
        try:
            secured = await self._handshakes.accept(conn, self._tls.server_session)
            shown = secured.peer_certificate()
            return secured, None if shown is None else self._read(shown)
        except (TlsFailed, MalformedName) as error:
            raise ConnectionLost(f"the TLS handshake failed: {error}") from error

    def _read(self, certificate: bytes) -> ClientCertificate:
        """Read a certificate (DER) that TLS has verified. Raises `MalformedName`."""
        name = distinguished_name(subject_of(certificate))
        return ClientCertificate(
            name=name,
            principal=self._rules.principal(name),
            fingerprint=hashlib.sha256(certificate).digest(),
            ends_ms=validity_of(certificate)[1],
        )

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
