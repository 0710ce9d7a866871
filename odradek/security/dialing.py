"""Connections to listeners that ask who one is: TLS and a login before the caller gets them. PORTED.

`SecuredEnv` is a world whose network dials so. What connects to other nodes stays as it is, and knows no security.
"""

from __future__ import annotations

import base64
from typing import Any

from odradek.env.ports import Conn, ConnectionLost, Env, Listener
from odradek.env.tls_ports import Tls, TlsFailed
from odradek.security.handshakes import Handshakes
from odradek.security.sasl_client import Credentials, LoginFailed, SaslClient
from wire.errors import ErrorCode, ProtocolError
from wire.framing.connection import ClientConnection, ResponseReceived
from wire.messages.sasl_authenticate import SaslAuthenticateRequest
from wire.messages.sasl_handshake import SaslHandshakeRequest
from wire.structure import Message

__all__ = ["SecuredEnv", "SecuredNetwork"]

ANSWER_BYTES_MAX = 512 * 1024
TOKENS_VERSION = 2
HANDSHAKE_VERSION = 1


class SecuredNetwork:
    """A network whose connections have shown who they are, and know whom they reach."""

    def __init__(
        self, env: Env, tls: Tls | None, credentials: Credentials | None, handshakes: Handshakes
    ) -> None:
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
        """A listener as it is without security."""
        return self._env.network.listen(
            host, port, send_buffer_bytes=send_buffer_bytes, receive_buffer_bytes=receive_buffer_bytes
        )

    async def connect(self, host: str, port: int) -> Conn:
        """Raises `ConnectionLost`, whose text says what was refused."""
        conn = await self._env.network.connect(host, port)
        try:
            secured = conn
            if self._tls is not None:
                session = self._tls.client_session(host)
                secured = await self._handshakes.connect(conn, session)
            if self._credentials is not None:
                await self._log_in(secured, self._credentials)
            return secured
        except (TlsFailed, LoginFailed, ProtocolError) as error:
            conn.close()
            raise ConnectionLost(f"{host}:{port}: {error}") from error
        except BaseException:
            conn.close()
            raise

    async def _log_in(self, conn: Conn, credentials: Credentials) -> None:
        wire = ClientConnection(ANSWER_BYTES_MAX, client_id="")
        chosen = await _ask(conn, wire, SaslHandshakeRequest(credentials.mechanism), HANDSHAKE_VERSION)
        if chosen.error_code:
            raise LoginFailed(
                f"{credentials.mechanism} is refused ({ErrorCode(chosen.error_code).name}); it takes "
                f"{', '.join(chosen.mechanisms)}"
            )
        client = SaslClient(credentials, self._nonce)
        token: bytes | None = client.first()
        while token is not None:
            answer = await _ask(conn, wire, SaslAuthenticateRequest(token), TOKENS_VERSION)
            if answer.error_code:
                raise LoginFailed(answer.error_message or ErrorCode(answer.error_code).name)
            token = await self._env.workers.run(client.answer, answer.auth_bytes)

    def _nonce(self) -> str:
        return base64.b64encode(self._env.new_uuid() + self._env.new_uuid()).decode().rstrip("=")


async def _ask(conn: Conn, wire: ClientConnection, request: Message, version: int) -> Any:
    """The answer to a request. Raises `ConnectionLost`, `ProtocolError`."""
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
            raise ConnectionLost("closed during the login")
        if count:
            wire.receive_data(buffer[:count])


class SecuredEnv:
    """A node's world, with another network."""

    def __init__(self, env: Env, network: SecuredNetwork) -> None:
        self.network = network
        self.clock = env.clock
        self.workers = env.workers
        self.meter = env.meter
        self.long_work = env.long_work
        self.random = env.random
        self.provokes = env.provokes
        self.new_workers = env.new_workers
        self.new_companion = env.new_companion
        self.open_dir = env.open_dir
        self.event = env.event
        self.new_uuid = env.new_uuid
        self.buggify = env.buggify
