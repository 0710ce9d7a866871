"""One connection to one broker, without IO: versions, login, requests in flight, throttle times, answers
matched to requests, overdue calls. PURE.

The first request on a connection is ApiVersions. Other requests are sent only when the broker's versions are
known. Calls wait in `waiting` until there is room in the pipeline (`in_flight_max`) and no throttle time is
running. After an answer with a throttle time, the client sends nothing for that long (KIP-219).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from enum import Enum
from typing import TYPE_CHECKING

from odradek.client.core.operation import Call
from odradek.client.errors import UnsupportedByBroker, error_code
from odradek.named_states import reached
from odradek.security.sasl_client import LoginFailed, SaslClient
from odradek.wire.api import ApiKey, api_versions
from odradek.wire.errors import ErrorCode, LocalProtocolError, RemoteProtocolError
from odradek.wire.framing.connection import ClientConnection, ResponseReceived
from odradek.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse

if TYPE_CHECKING:
    from odradek.client.core.client_config import ClientConfig

__all__ = ["BrokerConnection", "ConnectionState"]

_SOFTWARE_NAME = "odradek"
_SOFTWARE_VERSION = "0.3.0"


class ConnectionState(Enum):
    """The state of a connection. `_TRANSITIONS` lists the allowed changes."""

    CONNECTING = "connecting"
    NEGOTIATING = "negotiating"
    AUTHENTICATING = "authenticating"
    READY = "ready"
    CLOSED = "closed"


_TRANSITIONS: dict[tuple[ConnectionState, str], ConnectionState] = {
    (ConnectionState.CONNECTING, "established"): ConnectionState.NEGOTIATING,
    (ConnectionState.CONNECTING, "close"): ConnectionState.CLOSED,
    (ConnectionState.NEGOTIATING, "negotiated"): ConnectionState.READY,
    (ConnectionState.NEGOTIATING, "authenticate"): ConnectionState.AUTHENTICATING,
    (ConnectionState.AUTHENTICATING, "authenticated"): ConnectionState.READY,
    (ConnectionState.AUTHENTICATING, "close"): ConnectionState.CLOSED,
    (ConnectionState.READY, "authenticate"): ConnectionState.AUTHENTICATING,
    (ConnectionState.NEGOTIATING, "close"): ConnectionState.CLOSED,
    (ConnectionState.READY, "close"): ConnectionState.CLOSED,
}


_OPENING = (ConnectionState.CONNECTING, ConnectionState.NEGOTIATING, ConnectionState.AUTHENTICATING)
RENEWED_SHARE = 0.85
"""A login is renewed after this share of its lifetime. Kafka's clients draw a share at random, which is never smaller
than this.
"""


class BrokerConnection:
    """The state of one connection to one broker. The core owns it, completes the calls that fail, and sends its
    output.
    """

    def __init__(
        self,
        connection_id: int,
        address: tuple[str, int],
        config: ClientConfig,
        *,
        now: float,
        connect_seconds: float,
        lane: int = 0,
        nonce: Callable[[], str] = str,
    ) -> None:
        """Make the state of a connection that is being opened. `nonce` is a function that returns random text
        for a login.
        """
        self._nonce = nonce
        self._credentials = None if config.security is None else config.security.credentials
        self._sasl: SaslClient | None = None
        self.wants_token = False
        """True while the login waits for a token, which the core fetches separately (`token_came`)."""
        self._renew_at = math.inf
        """The time from which the login must be renewed before any other request is sent (KIP-368)."""
        self.connection_id = connection_id
        self.address = address
        self.lane = lane
        self.state = ConnectionState.CONNECTING
        self.waiting: deque[Call] = deque()
        self.in_flight: deque[Call] = deque()
        self.throttled_until = 0.0
        self.features_epoch = -1
        self.features: dict[str, int] = {}
        """The finalized levels of the cluster's features, as the broker reported them with `features_epoch`
        (KIP-584).
        """
        self.connect_seconds = connect_seconds
        self._connect_deadline = now + connect_seconds
        self._last_used = now
        self._idle_max = config.connection_idle_max
        self._in_flight_max = config.in_flight_max
        self._waiting_max = config.calls_waiting_max
        self._wire = ClientConnection(config.frame_bytes_max, client_id=config.client_id)
        self._versions: dict[int, tuple[int, int]] = {}
        self._negotiation: bytearray | None = None
        self._has_tls = config.security is not None and config.security.tls is not None
        self._has_answered = False
        """True once a call was answered. If the connection ends after that, wrong security settings are not the
        cause.
        """

    @property
    def address_text(self) -> str:
        """The address as `host:port`, for messages."""
        return f"{self.address[0]}:{self.address[1]}"

    @property
    def load(self) -> int:
        """The number of calls that were queued or sent, and have no answer yet."""
        return len(self.in_flight) + len(self.waiting)

    @property
    def bytes_expected(self) -> int:
        """The number of bytes that are still missing from a large response, of which the first bytes have
        arrived.
        """
        return self._wire.bytes_expected

    def closed_text(self) -> str:
        """Return a text for messages about the end of the stream. The text mentions security settings,
        because a listener with TLS or logins closes the connection of a plaintext client without an
        explanation.
        """
        text = f"{self.address_text} closed the connection"
        if self.state is ConnectionState.NEGOTIATING and not self._has_tls:
            return (
                f"{text} without an answer; if the listener speaks TLS, set security.protocol in the client"
            )
        if self.state is ConnectionState.READY and not self._has_answered and self._credentials is None:
            return (
                f"{text} at the first request; if the listener requires a login, set security.protocol "
                "in the client"
            )
        return text

    def enqueue(self, call: Call) -> None:
        """Queue a call. It fails with `LocalProtocolError` if too many calls wait already."""
        if len(self.waiting) >= self._waiting_max:
            call.fail(
                LocalProtocolError(
                    f"{len(self.waiting)} calls to {self.address_text} are waiting, which is the limit: wait for "
                    "their answers before further calls"
                )
            )
        else:
            self.waiting.append(call)

    def established(self) -> None:
        """Start the version negotiation, because the stream is open now."""
        self._step("established")
        self._ask_versions(api_versions(ApiKey.API_VERSIONS)[1])

    def _ask_versions(self, version: int) -> None:
        request = ApiVersionsRequest(_SOFTWARE_NAME, _SOFTWARE_VERSION)
        self._negotiation = self._wire.send(request, version)

    def data_to_send(self, now: float) -> bytearray:
        """Return the bytes to send now. Calls that cannot be encoded for this broker fail."""
        if (
            now >= self._renew_at
            and self.state is ConnectionState.READY
            and self.waiting
            and not self.in_flight
        ):
            self._begin_login(now)
        data, self._negotiation = self._negotiation or bytearray(), None
        while (
            self.waiting
            and self.state is ConnectionState.READY
            and len(self.in_flight) < self._in_flight_max
            and self.throttled_until <= now < self._renew_at
        ):
            call = self.waiting.popleft()
            try:
                version = self._version(call)
                data += self._wire.send(call.request, version, expect_response=call.expects_response)
            except (LocalProtocolError, UnsupportedByBroker) as error:
                call.fail(error)
                continue
            call.connection_id = self.connection_id
            if call.expects_response:
                self.in_flight.append(call)
            else:
                call.succeed(None)
        if data:
            self._last_used = now
        return data

    def _version(self, call: Call) -> int:
        """Choose the highest request version that the client, the broker and the call support."""
        key = call.request.API_KEY
        low, high = api_versions(key)
        if call.version_min > high:
            low, high = api_versions(key, unstable=True)
        broker_low, broker_high = self._versions.get(key, (0, -1))
        low = max(low, broker_low, call.version_min)
        high = min(high, broker_high)
        if call.version_max is not None:
            high = min(high, call.version_max)
        if low > high:
            raise UnsupportedByBroker(
                f"{self.address_text} supports no version of {ApiKey(key).name} that this client supports"
            )
        return high

    def receive(self, data: bytes | memoryview, now: float) -> None:
        """Process received bytes, and complete the calls whose responses they contain. Raises `RemoteProtocolError`."""
        self._wire.receive_data(data)
        self._finish_calls(now)

    def place_for_data(self) -> memoryview | None:
        """Return a buffer for the rest of a large response; None if no large response is under way. The
        caller receives into the buffer, then calls `received_in_place`.
        """
        return self._wire.place_for_data()

    def received_in_place(self, count: int, now: float) -> None:
        """Process the first `count` bytes of `place_for_data`, as `receive` does."""
        self._wire.received_in_place(count)
        self._finish_calls(now)

    def _finish_calls(self, now: float) -> None:
        self._last_used = now
        for event in self._events():
            if self.state is ConnectionState.NEGOTIATING:
                self._negotiate(event, now)
            elif self.state is ConnectionState.AUTHENTICATING:
                self._authenticate(event.response, now)
            else:
                call = self.in_flight.popleft()
                self._has_answered = True
                throttle_ms = getattr(event.response, "throttle_time_ms", 0)
                if throttle_ms > 0:
                    self.throttled_until = now + throttle_ms / 1000
                call.succeed(event.response)

    def _events(self) -> Iterator[ResponseReceived]:
        while isinstance(event := self._wire.next_event(), ResponseReceived):
            yield event

    def _negotiate(self, event: ResponseReceived, now: float) -> None:
        response = event.response
        if not isinstance(response, ApiVersionsResponse):
            raise RemoteProtocolError(
                f"the broker sent {type(response).__name__} instead of an answer to ApiVersions"
            )
        code = error_code(response.error_code)
        ranges = {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}
        if code is ErrorCode.UNSUPPORTED_VERSION and event.api_version == 0 and not self._versions:
            reached("client.versions_asked_again")
            # This error response has the versions of ApiVersions that the broker supports (KIP-511). Ask once more,
            # with one of these versions.
            self._versions = ranges or {int(ApiKey.API_VERSIONS): (0, 0)}
            ours = api_versions(ApiKey.API_VERSIONS)[1]
            self._ask_versions(min(ours, self._versions.get(ApiKey.API_VERSIONS, (0, 0))[1]))
            return
        if code is not ErrorCode.NONE:
            raise RemoteProtocolError(f"the broker refuses to negotiate API versions: {code.name}")
        self._versions = ranges
        self.features_epoch = response.finalized_features_epoch
        self.features = {each.name: each.max_version_level for each in response.finalized_features}
        if self._credentials is None:
            self._step("negotiated")
        else:
            self._begin_login(now)

    def _begin_login(self, now: float) -> None:
        """Send SaslHandshake with the name of the mechanism, at the first login and at each renewal."""
        # Imported only here, so that clients without a login start faster.
        from odradek.wire.messages.sasl_handshake import SaslHandshakeRequest

        assert self._credentials is not None
        self._step("authenticate")
        self._sasl = None
        self._connect_deadline = max(self._connect_deadline, now + self.connect_seconds)
        self._negotiation = self._wire.send(SaslHandshakeRequest(self._credentials.mechanism), 1)

    def _authenticate(self, response: object, now: float) -> None:
        """Process the broker's response during a login, and send the next SASL message. Raises `LoginFailed`,
        `RemoteProtocolError`.
        """
        from odradek.wire.messages.sasl_authenticate import SaslAuthenticateResponse
        from odradek.wire.messages.sasl_handshake import SaslHandshakeResponse

        credentials = self._credentials
        assert credentials is not None
        token: bytes | None
        if isinstance(response, SaslHandshakeResponse):
            if response.error_code == ErrorCode.ILLEGAL_SASL_STATE:
                raise LoginFailed(
                    "this listener accepts no logins: set security.protocol to PLAINTEXT or SSL"
                )
            if response.error_code:
                raise LoginFailed(
                    f"the mechanism {credentials.mechanism} is refused "
                    f"({error_code(response.error_code).name}); the listener accepts "
                    f"{', '.join(response.mechanisms) or 'none'}"
                )
            if credentials.needs_token:
                self.wants_token = True
                return
            self._sasl = SaslClient(credentials, self._nonce)
            token = self._sasl.first()
        elif isinstance(response, SaslAuthenticateResponse) and self._sasl is not None:
            if response.error_code:
                raise LoginFailed(response.error_message or error_code(response.error_code).name)
            token = self._sasl.answer(response.auth_bytes)
            if token is None:
                lifetime = response.session_lifetime_ms / 1000
                self._renew_at = now + RENEWED_SHARE * lifetime if lifetime > 0 else math.inf
                self._step("authenticated")
                return
        else:
            raise RemoteProtocolError(f"the broker sent {type(response).__name__} during the login")
        self._send_token(token)

    def token_came(self, token: str) -> None:
        """Continue a login that waited for this OAUTHBEARER token."""
        assert self._credentials is not None
        self._sasl = SaslClient(self._credentials, self._nonce, token)
        self._send_token(self._sasl.first())

    def _send_token(self, token: bytes) -> None:
        from odradek.wire.messages.sasl_authenticate import SaslAuthenticateRequest

        version = min(2, self._versions.get(ApiKey.SASL_AUTHENTICATE, (0, 0))[1])
        self._negotiation = self._wire.send(SaslAuthenticateRequest(token), version)

    def next_deadline(self) -> float | None:
        """Compute the earliest deadline of this connection: of a call, of connecting, of the throttle time or
        of the idle time.
        """
        due = math.inf  # this runs after each receive, so it builds no list of all deadlines
        for call in self.in_flight:
            if call.deadline < due:
                due = call.deadline
        for call in self.waiting:
            if call.deadline < due:
                due = call.deadline
        if self.state in _OPENING:
            due = min(due, self._connect_deadline)
        elif self.waiting and len(self.in_flight) < self._in_flight_max:
            due = min(due, self.throttled_until)
        if due == math.inf:
            return self._idle_deadline()
        return due

    def _idle_deadline(self) -> float | None:
        if self._idle_max is None or self.state is not ConnectionState.READY or self.load:
            return None
        return self._last_used + self._idle_max

    def is_idle(self, now: float) -> bool:
        """True if the connection has been without calls for the longest allowed time."""
        deadline = self._idle_deadline()
        return deadline is not None and deadline <= now

    def connect_overdue(self, now: float) -> bool:
        """True if opening the connection, including negotiation and login, has taken too long."""
        return now >= self._connect_deadline and self.state in _OPENING

    def take_overdue(self, now: float) -> list[Call]:
        """Remove and return the calls whose deadline has passed. A call that was sent has a `connection_id`."""
        overdue = [call for call in (*self.in_flight, *self.waiting) if call.deadline <= now]
        if overdue:
            self.in_flight = deque(call for call in self.in_flight if call.deadline > now)
            self.waiting = deque(call for call in self.waiting if call.deadline > now)
        return overdue

    def close(self) -> None:
        """Change the state to closed."""
        self._step("close")

    def _step(self, event: str) -> None:
        self.state = _TRANSITIONS[self.state, event]
