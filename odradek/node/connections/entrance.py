"""The authentication of new connections at a listener, from the accept until a connection is served. PORTED.

A TLS handshake comes first, then a login by SASL, as the listener's protocol demands. Both must be done within
`ENTER_SECONDS_MAX`. Frames are read one by one and are small (`sasl.server.max.receive.size`). So a client that
has not authenticated yet costs little memory, and reaches only three APIs.

Each entrance admits `HALF_OPEN_MAX` such clients at a time. If there are more, the entrance closes the oldest
connection of the address that has the most such clients.
"""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Protocol

import attrs

from odradek.env.ports import Clock, Conn, ConnectionCut, ConnectionLost
from odradek.node.connections.audited_logins import AuditedLogins
from odradek.node.connections.complaints import size_refusal
from odradek.security.audit.auditor import Auditor
from odradek.security.handshakes import network_of
from odradek.security.sasl_server import Login, LoginRefused, LoginState
from odradek.security.scram import ServerKeys
from odradek.security.tokens import KeysMissing
from odradek.serving.api_table import ApiTable
from odradek.serving.contract import Context
from odradek.wire.api import ApiKey
from odradek.wire.api_keys import APIS
from odradek.wire.codec import ELEMENTS_AT_ONCE
from odradek.wire.errors import ErrorCode, ProtocolError, RemoteProtocolError
from odradek.wire.framing.frames import skip_tags
from odradek.wire.messages.api_versions import ApiVersionsResponse

__all__ = ["ENTER_SECONDS_MAX", "HALF_OPEN_MAX", "Entered", "Entrance", "NotAuthenticated", "SaslLogins"]

ENTER_SECONDS_MAX = 10.0
"""The maximum number of seconds for TLS handshake and login together. Normal clients need a few round trips."""
LARGE_FRAME_BYTES = 16 * 1024
LARGE_BYTES_MAX = 16 * 1024 * 1024
"""The maximum number of bytes of all frames above `LARGE_FRAME_BYTES` together. Smaller frames are always
accepted; they suffice for tokens of a few kilobytes.
"""
HALF_OPEN_MAX = 1000
"""The maximum number of clients of a listener that have not authenticated yet."""
_SIZE = struct.Struct(">i")
_HEADER = struct.Struct(">hhih")
_PREFIX = struct.Struct(">ii")
_ASKED: Mapping[LoginState, tuple[int, ...]] = {
    LoginState.VERSIONS: (ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE),
    LoginState.HANDSHAKE: (ApiKey.SASL_HANDSHAKE,),
    LoginState.TOKEN: (ApiKey.SASL_AUTHENTICATE, ApiKey.SASL_HANDSHAKE, ApiKey.API_VERSIONS),
}
"""The APIs whose requests are answered in each state of a login. In the state TOKEN, the answer to SaslHandshake and
ApiVersions is an error.
"""


class NotAuthenticated(Exception):
    """Raised if a client's handshake or login is refused. The text is for logs and has no secrets. `tls_subject` is
    the name in the client's certificate.
    """

    def __init__(self, reason: str, *, tls_subject: str | None = None) -> None:
        super().__init__(reason)
        self.tls_subject = tls_subject


@attrs.frozen
class Entered:
    """A client that has authenticated: its connection, and the context of its requests."""

    conn: Conn
    context: Context


class Encryption(Protocol):
    """The TLS part of an entrance: the handshake, and the name in the client's certificate."""

    def has_room(self, host: str) -> bool:
        """True if a handshake with this address can begin."""

    async def handshake(self, conn: Conn) -> tuple[Conn, str | None, str | None]:
        """Do the TLS handshake. Return the encrypted connection, and the principal and the name in the client's
        certificate (None without one).

        Raises `ConnectionLost`, `NotAuthenticated`.
        """

    def let_in(self, conn: Conn) -> None:
        """Lift the limits for unauthenticated clients from this connection, because its client has logged in."""


@attrs.frozen
class SaslLogins:
    """The functions and settings by which an entrance handles SASL logins at one listener."""

    begin: Callable[[], Login]
    refusal_delay_seconds: float
    """The seconds by which the answer to a refused login is delayed."""
    compute: Callable[[str, Callable[[], ServerKeys]], Awaitable[ServerKeys]]
    """A function that computes the keys of a delegation token in a worker. Addresses take turns, so a busy address
    delays no other address.
    """


class Entrance:
    """Authenticates the clients of one listener."""

    def __init__(
        self,
        listener: str,
        *,
        clock: Clock,
        table: ApiTable,
        frame_bytes_max: int,
        tls: Encryption | None = None,
        sasl: SaslLogins | None = None,
        auditor: Auditor | None = None,
    ) -> None:
        """`auditor` records each login and each refusal. `tls` and `sasl` are None if the listener does without them."""
        self._logins = AuditedLogins(listener, auditor)
        self._listener = listener
        self._clock = clock
        self._table = table
        self._frame_bytes_max = frame_bytes_max
        self._tls = tls
        self._sasl = sasl
        self._large_bytes = 0
        self._half_open: dict[str, dict[Conn, None]] = {}
        self.failed = 0
        """The number of clients that were refused since the start."""

    @property
    def half_open(self) -> int:
        """The number of clients that have not authenticated yet."""
        return sum(map(len, self._half_open.values()))

    def has_room(self, host: str) -> bool:
        """True if a client from this address can begin a handshake now. If the result is false, the client is
        refused at once, without the costs of a handshake.
        """
        return self._tls is None or self._tls.has_room(host)

    async def enter(self, conn: Conn) -> Entered:
        """Authenticate the client of a connection. Raises `ConnectionLost`, `ProtocolError`, `NotAuthenticated`."""
        self._make_room()
        host = conn.peer_host
        network = network_of(host)
        self._half_open.setdefault(network, {})[conn] = None
        context = Context(self._listener, host)
        context.opened_seconds = self._clock.monotonic()
        entered: Entered | None = None
        try:
            with self._clock.timeout_at(self._clock.monotonic() + ENTER_SECONDS_MAX):
                entered = await self._enter(conn, context)
            if entered is None:
                raise NotAuthenticated(f"the client did not log in within {ENTER_SECONDS_MAX:g} s")
            return entered
        except (NotAuthenticated, ProtocolError, ConnectionCut) as error:
            self._logins.failed(context, str(error), getattr(error, "tls_subject", None))
            raise
        finally:
            self.failed += entered is None
            of_network = self._half_open[network]
            del of_network[conn]
            if not of_network:
                del self._half_open[network]

    def _make_room(self) -> None:
        """Close a connection if too many clients have not logged in yet: the oldest connection of the address
        that has the most such clients.
        """
        if self.half_open >= HALF_OPEN_MAX:
            most = max(self._half_open.values(), key=len)
            next(iter(most)).close()

    async def _enter(self, conn: Conn, context: Context) -> Entered:
        subject: str | None = None
        if self._tls is not None:
            conn, principal, subject = await self._tls.handshake(conn)
            if principal is not None and self._sasl is None:
                context.principal = principal
        if self._sasl is not None:
            login = self._sasl.begin()
            login.refusal_delay_seconds = self._sasl.refusal_delay_seconds
            context.login = login
            await self._log_in(conn, context, login)
            context.principal = login.principal
        if self._tls is not None:
            self._tls.let_in(conn)
        self._logins.succeeded(context, subject)
        return Entered(conn, context)

    async def _log_in(self, conn: Conn, context: Context, login: Login) -> None:
        while login.state is not LoginState.DONE:
            # No variable holds the frame, so no data of the client stay in memory while a refusal is delayed.
            answer = await self._take_frame(conn, context, login)
            if login.state is LoginState.FAILED:
                await self._clock.sleep_until(self._clock.monotonic() + login.refusal_delay_seconds)
            if answer:
                await _send_all(conn, answer)
            if login.state is LoginState.FAILED:
                raise NotAuthenticated(login.failure)

    async def _take_frame(self, conn: Conn, context: Context, login: Login) -> bytes:
        """Read one frame of a login, and return the answer. Raises `ConnectionLost`, `RemoteProtocolError`."""
        (size,) = _SIZE.unpack(await _read(conn, _SIZE.size))
        if not 0 <= size <= self._frame_bytes_max:
            raise RemoteProtocolError(size_refusal(size, 0, self._frame_bytes_max, " before authentication"))
        claimed = size if size > LARGE_FRAME_BYTES else 0
        if claimed and self._large_bytes + claimed > LARGE_BYTES_MAX:
            raise RemoteProtocolError(
                f"the client sent a frame of {size} bytes before its login, and large frames of other "
                f"clients without a login take {self._large_bytes} bytes already"
            )
        self._large_bytes += claimed
        try:
            frame = await _read(conn, size)
        finally:
            self._large_bytes -= claimed
        handle = partial(
            self._take_bare_token if login.state is LoginState.BARE_TOKEN else self._answer,
            context,
            login,
            frame,
        )
        try:
            return handle()
        except KeysMissing as missing:
            assert self._sasl is not None, "the login must have begun before keys are computed"
            missing.keep(await self._sasl.compute(conn.peer_host, missing.make))
            return handle()

    def _take_bare_token(self, context: Context, login: Login, frame: bytearray) -> bytes:
        """Handle a token that follows version 0 of SaslHandshake. Such a token has no request header. Return
        the answer; a refusal is empty.
        """
        try:
            token = login.take_token(bytes(frame))
        except LoginRefused:
            return b""
        return _SIZE.pack(len(token)) + token

    def _answer(self, context: Context, login: Login, frame: bytearray) -> bytes:
        """Handle one request of a login, and return the answer. Raises `RemoteProtocolError` for a request that is
        not allowed now.
        """
        size = len(frame)
        if size < _HEADER.size:
            raise RemoteProtocolError(f"the client sent a frame of only {size} bytes before its login")
        view = memoryview(frame)
        api_key, version, correlation_id, client_id_bytes = _HEADER.unpack_from(frame)
        if api_key not in _ASKED[login.state]:
            name = ApiKey(api_key).name if api_key in APIS else f"API {api_key}"
            expected = " or ".join(ApiKey(each).name for each in _ASKED[login.state])
            raise RemoteProtocolError(f"the client sent {name} before its login: {expected} must come first")
        entry = self._table.get(api_key, version)
        offset = _HEADER.size + max(0, client_id_bytes)
        if offset > size:
            raise RemoteProtocolError("the client id is longer than the frame that holds it")
        if entry.flexible:
            offset = skip_tags(view, offset, size)
        context.api_version = version
        request, _ = (entry.decode if size <= ELEMENTS_AT_ONCE else entry.decode_large)(view, offset)
        response: Any
        if login.state is LoginState.TOKEN and api_key == ApiKey.API_VERSIONS:
            login.ask_out_of_turn()
            response = ApiVersionsResponse(ErrorCode.ILLEGAL_SASL_STATE)
        else:
            response = entry.handle(context, request)
        context.number += 1
        if api_key == ApiKey.API_VERSIONS and not response.error_code:
            login.state = LoginState.HANDSHAKE
        # Count the bytes only now, because a request whose keys must first be computed calls this method
        # twice.
        entry.request_bytes += size + 4
        answer = bytearray(entry.prefix)
        entry.encode(answer, response, None, entry.errors)
        _PREFIX.pack_into(answer, 0, len(answer) - 4, correlation_id)
        entry.response_bytes += len(answer)
        return bytes(answer)


async def _read(conn: Conn, count: int) -> bytearray:
    """Read `count` bytes. Memory is only allocated for bytes that arrive."""
    data = bytearray()
    while len(data) < count:
        part = memoryview(bytearray(min(count - len(data), 16_384)))
        await conn.readable()
        got = conn.recv_into(part)
        if got == 0:
            raise ConnectionLost("the client closed the connection before its login was complete")
        data += part[: got or 0]
    return data


async def _send_all(conn: Conn, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        taken = conn.send((rest,))
        rest = rest[taken:]
        if rest:
            await conn.writable()
