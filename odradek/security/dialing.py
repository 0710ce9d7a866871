"""Connections to listeners that authenticate clients: they are returned after TLS handshake and login. PORTED.

`SecuredEnv` is an `Env` with such a network. So code that connects to other nodes needs no knowledge of security.

A login may have a limited lifetime (KIP-368). Such a connection has a time after which it should be replaced. The
code that uses it then connects again, between two requests.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from odradek.env.ports import Buffer, Conn, ConnectionLost, Env, File, Listener, PeerEnd
from odradek.env.tls_ports import Tls, TlsFailed
from odradek.env.token_ports import Tokens, TokenUnavailable
from odradek.security.handshakes import Handshakes
from odradek.security.sasl_client import Credentials, LoginFailed, SaslClient
from odradek.serving.node_env import NodeEnv
from odradek.wire.api_keys import ApiKey
from odradek.wire.errors import ErrorCode, ProtocolError
from odradek.wire.framing.connection import ClientConnection, ResponseReceived
from odradek.wire.messages.api_versions import ApiVersionsRequest
from odradek.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from odradek.wire.messages.sasl_handshake import SaslHandshakeRequest
from odradek.wire.structure import Message

__all__ = ["SecuredEnv", "SecuredNetwork"]

ANSWER_BYTES_MAX = 512 * 1024
VERSIONS_VERSION = 0
"""The version of ApiVersions that every broker answers."""
TOKENS_VERSION = 2
_TOKENS = ApiKey.SASL_AUTHENTICATE
HANDSHAKE_VERSION = 1
RENEWED_SHARE = 0.85
"""The share of a login's lifetime after which it is renewed. Kafka's clients renew their logins at this time at the
earliest.
"""


class RenewableConn:
    """A connection whose login expires, so that the connection must be replaced before that time."""

    __slots__ = ("_conn", "peer_host", "peer_port", "renew_at")

    def __init__(self, conn: Conn, renew_at: float) -> None:
        self._conn = conn
        self.renew_at = renew_at
        self.peer_host = conn.peer_host
        self.peer_port = conn.peer_port

    async def readable(self) -> None:
        await self._conn.readable()

    async def writable(self) -> None:
        await self._conn.writable()

    def wait_for(self, count: int) -> None:
        self._conn.wait_for(count)

    def recv_into(self, buffer: memoryview) -> int | None:
        return self._conn.recv_into(buffer)

    def peer_end(self) -> PeerEnd:
        return self._conn.peer_end()

    def send(self, chunks: Sequence[Buffer], more: bool = False) -> int:
        return self._conn.send(chunks, more)

    def sendfile(self, file: File, offset: int, count: int) -> int:
        return self._conn.sendfile(file, offset, count)

    def close(self) -> None:
        self._conn.close()


class SecuredNetwork:
    """A network whose connections have verified the server and have logged in."""

    def __init__(
        self,
        env: Env,
        tls: Tls | None,
        credentials: Credentials | None,
        handshakes: Handshakes,
        tokens: Tokens | None = None,
    ) -> None:
        """`tokens` returns the tokens for logins by OAUTHBEARER."""
        self._tokens = tokens
        # Use a separate thread for tokens, so that a slow issuer delays only logins.
        self._token_workers = None if tokens is None else env.new_workers(1)
        self._env = env
        self._tls = tls
        self._credentials = credentials
        self._handshakes = handshakes

    def listen(
        self,
        host: str,
        port: int,
        *,
        send_buffer_bytes: int | None = None,
        receive_buffer_bytes: int | None = None,
    ) -> Listener:
        """Listen on the underlying network, without any security."""
        return self._env.network.listen(
            host, port, send_buffer_bytes=send_buffer_bytes, receive_buffer_bytes=receive_buffer_bytes
        )

    async def addresses_of(self, host: str, port: int) -> tuple[str, ...]:
        """Return all addresses of a host name. Raises `ConnectionLost`."""
        return await self._env.network.addresses_of(host, port)

    async def connect(self, host: str, port: int, *, address: str | None = None) -> Conn:
        """Connect and log in. The server's certificate must name `host`, even if `address` is given.

        Raises `ConnectionLost`, whose text says what was refused.
        """
        conn = await self._env.network.connect(host, port, address=address)
        try:
            secured: Conn = conn
            if self._tls is not None:
                session = self._tls.client_session(host)
                secured = await self._handshakes.connect(conn, session)
            if self._credentials is not None:
                renew_at = await self._log_in(secured, self._credentials)
                if renew_at is not None:
                    return RenewableConn(secured, renew_at)
            return secured
        except (TlsFailed, TokenUnavailable, LoginFailed, ProtocolError) as error:
            conn.close()
            raise ConnectionLost(f"{host}:{port}: {error}") from error
        except BaseException:
            conn.close()
            raise

    async def _log_in(self, conn: Conn, credentials: Credentials) -> float | None:
        """Log in. Return the monotonic time in seconds from which the login should be renewed (None: never)."""
        wire = ClientConnection(ANSWER_BYTES_MAX, client_id="")
        # Ask for the versions first, because the other node may be of an older release, or another program.
        served = await _ask(conn, wire, ApiVersionsRequest(), VERSIONS_VERSION)
        tokens_version = min(
            TOKENS_VERSION,
            max((each.max_version for each in served.api_keys if each.api_key == _TOKENS), default=0),
        )
        chosen = await _ask(conn, wire, SaslHandshakeRequest(credentials.mechanism), HANDSHAKE_VERSION)
        if chosen.error_code:
            raise LoginFailed(
                f"the other node refuses logins by {credentials.mechanism} "
                f"({ErrorCode(chosen.error_code).name}); it accepts {', '.join(chosen.mechanisms)}"
            )
        own_token = ""
        if credentials.needs_token:
            assert self._tokens is not None, "a login by OAUTHBEARER must have a source of tokens"
            assert self._token_workers is not None
            own_token = await self._token_workers.run(self._tokens)
        client = SaslClient(credentials, self._nonce, own_token)
        token: bytes | None = client.first()
        # Count the lifetime from before the last token is sent, so that it ends earlier here than at the server.
        lifetime_ms, asked_at = 0, 0.0
        while token is not None:
            asked_at = self._env.clock.monotonic()
            answer = await _ask(conn, wire, SaslAuthenticateRequest(token), tokens_version)
            if answer.error_code:
                raise LoginFailed(answer.error_message or ErrorCode(answer.error_code).name)
            lifetime_ms = answer.session_lifetime_ms
            token = await self._env.workers.run(client.answer, answer.auth_bytes)
        return asked_at + RENEWED_SHARE * lifetime_ms / 1000 if lifetime_ms > 0 else None

    def _nonce(self) -> str:
        return base64.b64encode(self._env.new_uuid() + self._env.new_uuid()).decode().rstrip("=")


async def _ask(conn: Conn, wire: ClientConnection, request: Message, version: int) -> Any:
    """Send a request and await its answer. Raises `ConnectionLost`, `ProtocolError`."""
    rest = memoryview(wire.send(request, version))
    while rest:
        rest = rest[conn.send((rest,)) :]
        if rest:
            await conn.writable()
    buffer = memoryview(bytearray(16_384))
    while True:
        event = wire.next_event()
        if isinstance(event, ResponseReceived):
            return event.response
        await conn.readable()
        count = conn.recv_into(buffer)
        if count == 0:
            raise ConnectionLost("the other node closed the connection during the login")
        if count:
            wire.receive_data(buffer[:count])


class SecuredEnv:
    """An `Env` that differs from another `Env` only in its network."""

    def __init__(self, env: NodeEnv, network: SecuredNetwork) -> None:
        self.network = network
        self.clock = env.clock
        self.workers = env.workers
        self.meter = env.meter
        self.long_work = env.long_work
        self.agreed_clock = env.agreed_clock
        self.random = env.random
        self.provokes = env.provokes
        self.new_workers = env.new_workers
        self.new_companion = env.new_companion
        self.open_dir = env.open_dir
        self.is_blank_disk = env.is_blank_disk
        self.event = env.event
        self.new_uuid = env.new_uuid
        self.buggify = env.buggify
