"""Either end of a Kafka connection, without IO: bytes go in, events come out; answers keep the requests' order,
and unanswered requests are limited.

Theory of operation
===================

The interface resembles that of the HTTP library h11. The owner of the socket passes received bytes to
`receive_data` (b"" at the end of the stream). It then calls `next_event` until that returns NEED_DATA. `send`
turns a message into bytes, which the owner sends. Nothing here waits or reads a clock.

Both ends keep these rules:

1. The length of a frame is checked before the connection stores the frame's bytes (`max_frame_bytes`).
2. A connection answers in the order of its requests. The server refuses to answer out of order. The client
   matches each response with the oldest unanswered request, and compares the correlation ids.
3. After a mistake of the peer, each call of `next_event` raises RemoteProtocolError, and the owner can only
   close the connection. A mistake of the owner raises LocalProtocolError and changes nothing.
4. Unanswered requests are limited. At the limit, the server's `next_event` returns PAUSED instead of the next
   request, until a response was sent. The client's `send` raises an error.

Two tables, `SERVER` and `CLIENT`, list the states and the steps between them. The tables differ in one entry:
a server may still answer a peer that has finished sending. A step that is not in the table raises
LocalProtocolError.

ApiVersions is the one API with rules of its own (KIP-511). A server that lacks the requested version answers
in version 0 with error 35. So `ServerConnection` skips the body of such a request. `ClientConnection` looks
at the error code before it decides how to read the answer.

Deliberately absent: bare SASL tokens in frames (SaslHandshake version 0), TLS, timeouts, and throttling. The
owner does these. The broker's hot path does not use this module. It calls the functions of
`odradek.wire.framing.frames` with its own buffers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from enum import Enum
from struct import Struct
from typing import ClassVar, Final, Literal, NamedTuple

import attrs

from odradek.wire.api import request_class, request_header_version, response_class, response_header_version
from odradek.wire.api_keys import ApiKey
from odradek.wire.codec import decode, decoder, encoder
from odradek.wire.errors import ErrorCode, LocalProtocolError, RemoteProtocolError
from odradek.wire.framing.frame_pool import FramePool
from odradek.wire.framing.frames import (
    LENGTH_SIZE,
    Chunk,
    UnknownApiKey,
    frame_length,
    frame_response,
    is_supported,
    parse_request_header,
    parse_response_header,
)
from odradek.wire.messages.headers import RequestHeader
from odradek.wire.structure import Message

__all__ = [
    "CLIENT",
    "NEED_DATA",
    "PAUSED",
    "SERVER",
    "ClientConnection",
    "ConnectionClosed",
    "RequestReceived",
    "ResponseReceived",
    "ServerConnection",
    "Signal",
    "State",
    "Step",
    "UnknownApiKey",
    "frame_length",
    "parse_request_header",
    "parse_response_header",
]

MAX_FRAME_BYTES = 104857600
"""The default of Kafka's `socket.request.max.bytes`."""
_CORRELATION_ID_MAX = 0x7FFFFFFF
_LARGE_BYTES = 1 << 17
"""The least size in bytes of a large response. A large response is received directly into a buffer of its
own, without a copy.
"""


class State(Enum):
    """The state of a connection; the tables `SERVER` and `CLIENT` list the steps between states."""

    OPEN = "open"
    ENDING = "ending"
    """The peer has finished sending, and the application has not yet received all requests or responses."""
    ENDED = "ended"
    """The application has received everything that the peer sent."""
    FAILED = "failed"
    """The peer broke the protocol."""
    CLOSED = "closed"


class Step(Enum):
    """An occurrence on a connection. The tables `SERVER` and `CLIENT` list the state that follows each step."""

    DATA = "data"
    END = "end of stream"
    RECEIVE = "receive"
    SEND = "send"
    DRAIN = "last event"
    FAIL = "protocol error"
    CLOSE = "close"


Table = Mapping[State, Mapping[Step, State]]

SERVER: Final[Table] = {
    State.OPEN: {
        Step.DATA: State.OPEN,
        Step.END: State.ENDING,
        Step.RECEIVE: State.OPEN,
        Step.SEND: State.OPEN,
        Step.FAIL: State.FAILED,
        Step.CLOSE: State.CLOSED,
    },
    State.ENDING: {
        Step.RECEIVE: State.ENDING,
        Step.SEND: State.ENDING,
        Step.DRAIN: State.ENDED,
        Step.FAIL: State.FAILED,
        Step.CLOSE: State.CLOSED,
    },
    State.ENDED: {Step.SEND: State.ENDED, Step.DRAIN: State.ENDED, Step.CLOSE: State.CLOSED},
    State.FAILED: {Step.FAIL: State.FAILED, Step.CLOSE: State.CLOSED},
    State.CLOSED: {Step.CLOSE: State.CLOSED},
}

CLIENT: Final[Table] = {**SERVER, State.ENDED: {Step.DRAIN: State.ENDED, Step.CLOSE: State.CLOSED}}


class _Place:
    """A state of a connection, with an attribute for each step that leads to the next state. Attributes are
    faster than enums as keys.
    """

    __slots__ = ("close", "data", "drain", "end", "fail", "receive", "send", "state")

    def __init__(self, state: State) -> None:
        self.state = state
        self.data: _Place | None = None
        self.end: _Place | None = None
        self.receive: _Place | None = None
        self.send: _Place | None = None
        self.drain: _Place | None = None
        self.fail: _Place | None = None
        self.close: _Place | None = None


def _begin(table: Table) -> _Place:
    """Link one `_Place` for each state, as the table says. Returns the place of OPEN, the first state."""
    places = {state: _Place(state) for state in table}
    for state, steps in table.items():
        for step, target in steps.items():
            setattr(places[state], step.name.lower(), places[target])
    return places[State.OPEN]


class Signal(Enum):
    """A result of `next_event` that is no event."""

    NEED_DATA = "need data"
    PAUSED = "paused"


NEED_DATA: Final = Signal.NEED_DATA
"""The frame is incomplete: receive more."""
PAUSED: Final = Signal.PAUSED
"""Too many requests are unanswered: answer one to receive the next."""


@attrs.frozen
class RequestReceived:
    """A request of the peer. `body` is the encoded body; nothing else uses its buffer. `body_offset` is the
    position of the body in the frame, counted from the first byte after the frame's length.
    """

    header: RequestHeader
    body: memoryview
    body_offset: int

    @property
    def api_key(self) -> int:
        return self.header.request_api_key

    @property
    def api_version(self) -> int:
        return self.header.request_api_version

    @property
    def correlation_id(self) -> int:
        return self.header.correlation_id

    @property
    def is_supported(self) -> bool:
        """True if Kafka 4.3 supports this version of the API. If it is False, answer an ApiVersions request
        with UNSUPPORTED_VERSION. For any other API, close the connection.
        """
        return is_supported(self.api_key, self.api_version)

    def request(self) -> Message:
        """Decode the body. Bytes behind it are ignored, as in Kafka.

        An ApiVersions request of an unsupported version decodes to an empty request, whatever its body.

        Raises:
            RemoteProtocolError: an unsupported version, or a malformed body.
        """
        cls = request_class(self.api_key)
        if not self.is_supported:
            if self.api_key == ApiKey.API_VERSIONS:
                return cls()
            raise RemoteProtocolError(f"API {self.api_key} has no version {self.api_version}")
        return decode(cls, self.api_version, self.body, exact=False)


class ResponseReceived(NamedTuple):
    """The answer to the client's oldest unanswered request; `api_version` is the version in which it was read."""

    correlation_id: int
    api_key: int
    api_version: int
    response: Message


@attrs.frozen
class ConnectionClosed:
    """The peer has finished sending. `unanswered` are the correlation ids of requests that got no response,
    oldest first.
    """

    unanswered: tuple[int, ...]


@attrs.frozen
class ConnectionStatistics:
    """Counts since the connection began, and the sizes of its buffers now."""

    state: State
    frames_received: int
    frames_sent: int
    bytes_received: int
    bytes_buffered: int
    unanswered: int


class _Call(NamedTuple):
    """A request that waits for its response."""

    correlation_id: int
    api_key: int
    api_version: int


@attrs.define
class _Connection:
    """The base of both ends: the receive buffer, the frames in it, and the connection's state."""

    begin: ClassVar[_Place]

    max_frame_bytes: int = MAX_FRAME_BYTES
    unanswered_max: int = 1024

    _place: _Place = attrs.field(init=False, repr=False)
    _buffer: bytearray = attrs.field(factory=bytearray, init=False, repr=False)
    _fault: str = attrs.field(default="", init=False)
    _unanswered: deque[_Call] = attrs.field(factory=deque, init=False)
    _frames_received: int = attrs.field(default=0, init=False)
    _frames_sent: int = attrs.field(default=0, init=False)
    _bytes_received: int = attrs.field(default=0, init=False)

    @_place.default
    def _first_place(self) -> _Place:
        return self.begin

    @property
    def state(self) -> State:
        return self._place.state

    def _step(self, place: _Place | None, step: Step) -> None:
        """Change to the state that the table has for this step. Hot paths take their steps without this call."""
        if place is None:
            raise self._refusal(step)
        self._place = place

    def _refusal(self, step: Step) -> LocalProtocolError:
        return LocalProtocolError(
            f"the step {step.value!r} is illegal on a connection that is {self.state.value}"
        )

    def receive_data(self, data: bytes | bytearray | memoryview) -> None:
        """Append bytes that the socket has received; b"" means the end of the stream.

        Raises:
            LocalProtocolError: the stream has ended or the connection is not open.
        """
        if data:
            place = self._place.data
            if place is None:
                raise self._refusal(Step.DATA)
            self._place = place
            self._bytes_received += len(data)
            self._keep(data)
        else:
            self._step(self._place.end, Step.END)

    def _keep(self, data: bytes | bytearray | memoryview) -> None:
        self._buffer += data

    def _next_frame(self) -> bytes | memoryview | ConnectionClosed | Literal[Signal.NEED_DATA]:
        if self._place.state is State.FAILED:
            raise RemoteProtocolError(self._fault)
        buffer = self._buffer
        if len(buffer) >= LENGTH_SIZE:
            end = LENGTH_SIZE + frame_length(buffer, 0, self.max_frame_bytes)
            if end <= len(buffer):
                with memoryview(buffer) as view:
                    frame = bytes(view[LENGTH_SIZE:end])
                place = self._place.receive
                if place is None:
                    raise self._refusal(Step.RECEIVE)
                self._place = place
                del buffer[:end]
                self._frames_received += 1
                return frame
        if self._place.data is not None:
            return NEED_DATA
        if buffer:
            raise RemoteProtocolError(
                f"the peer ended the stream inside a frame, of which {len(buffer)} bytes have come"
            )
        self._step(self._place.drain, Step.DRAIN)
        return ConnectionClosed(tuple(call.correlation_id for call in self._unanswered))

    def _fail(self, error: RemoteProtocolError) -> None:
        self._fault = str(error)
        self._buffer.clear()
        self._step(self._place.fail, Step.FAIL)

    def close(self) -> None:
        """Close this end: from now on nothing may be sent or received."""
        self._step(self._place.close, Step.CLOSE)
        self._buffer.clear()

    @property
    def unanswered(self) -> tuple[int, ...]:
        """The correlation ids that wait for a response, oldest first."""
        return tuple(call.correlation_id for call in self._unanswered)

    def statistics(self) -> ConnectionStatistics:
        return ConnectionStatistics(
            self.state,
            self._frames_received,
            self._frames_sent,
            self._bytes_received,
            len(self._buffer),
            len(self._unanswered),
        )


@attrs.define
class ServerConnection(_Connection):
    """A broker's end: requests come in, responses go out in the same order."""

    begin: ClassVar[_Place] = _begin(SERVER)

    def next_event(self) -> RequestReceived | ConnectionClosed | Signal:
        """Return the next event; call it until NEED_DATA, PAUSED or ConnectionClosed.

        Raises:
            UnknownApiKey, RemoteProtocolError: the peer is at fault; close the connection.
            LocalProtocolError: the connection is closed.
        """
        if self.state is State.CLOSED:
            raise LocalProtocolError("the events of a closed connection cannot be read")
        if len(self._unanswered) >= self.unanswered_max:
            return PAUSED
        try:
            frame = self._next_frame()
            if not isinstance(frame, bytes | memoryview):
                return frame
            api_key, api_version, correlation_id, client_id, body = parse_request_header(frame, 0, len(frame))
        except RemoteProtocolError as error:
            self._fail(error)
            raise
        self._unanswered.append(_Call(correlation_id, api_key, api_version))
        header = RequestHeader(api_key, api_version, correlation_id, client_id)
        return RequestReceived(header, memoryview(frame)[body:], body)

    def send(self, response: Message, correlation_id: int | None = None) -> list[Chunk]:
        """Answer the oldest unanswered request, in its version. The caller sends the returned chunks in order.

        An ApiVersions request of an unsupported version is answered in version 0.

        Raises:
            LocalProtocolError: no unanswered request, another API's response, a `correlation_id` other than that of
            the oldest request, or values that do not fit their fields.
        """
        call = self._oldest(correlation_id)
        if type(response) is not response_class(call.api_key):
            raise LocalProtocolError(
                f"{type(response).__name__} cannot answer a request with API key {call.api_key}"
            )
        version = call.api_version
        if call.api_key == ApiKey.API_VERSIONS and not is_supported(call.api_key, version):
            version = 0
        encode = encoder(type(response), version)
        chunks = frame_response(call.correlation_id, call.api_key, version, encode, response)
        self._unanswered.popleft()
        self._frames_sent += 1
        return chunks

    def send_nothing(self, correlation_id: int | None = None) -> None:
        """Drop the oldest unanswered request without a response (a Produce with acks=0).

        Raises:
            LocalProtocolError: no unanswered request, or a `correlation_id` other than that of the oldest
                request.
        """
        self._oldest(correlation_id)
        self._unanswered.popleft()

    def _oldest(self, correlation_id: int | None) -> _Call:
        self._step(self._place.send, Step.SEND)
        if not self._unanswered:
            raise LocalProtocolError("a response was given, but no request waits for a response")
        call = self._unanswered[0]
        if correlation_id is not None and correlation_id != call.correlation_id:
            raise LocalProtocolError(
                f"response {correlation_id} was given before response {call.correlation_id}, whose "
                "request came first"
            )
        return call


_request_forms: dict[tuple[type[Message], int], tuple[int, bool, Callable[..., None]]] = {}
_response_forms: dict[tuple[int, int], tuple[int, Callable[..., tuple[Message, int]]]] = {}


def _request_form(cls: type[Message], version: int) -> tuple[int, bool, Callable[..., None]]:
    """Return three values for encoding a request: the API key, True if the header ends with tagged fields,
    and the body's encoder.
    """
    form = _request_forms.get((cls, version))
    if form is None:
        api_key = cls.API_KEY
        if api_key is None or cls is not request_class(api_key):
            raise LocalProtocolError(f"{cls.__name__} is not a request")
        form = (api_key, request_header_version(api_key, version) == 2, encoder(cls, version))
        _request_forms[cls, version] = form
    return form


def _response_form(api_key: int, version: int) -> tuple[int, Callable[..., tuple[Message, int]]]:
    """Return two values for decoding a response: the version of its header, and the decoder of its body."""
    form = _response_forms.get((api_key, version))
    if form is None:
        form = (response_header_version(api_key, version), decoder(response_class(api_key), version))
        _response_forms[api_key, version] = form
    return form


_FRAME_START = Struct(">ihhi")
_FRAME_LENGTH = Struct(">i")
_STRING_LENGTH = Struct(">h")
_ERROR_CODE = Struct(">h")


@attrs.define
class ClientConnection(_Connection):
    """A client's end: requests go out, pipelined; responses come in the same order."""

    begin: ClassVar[_Place] = _begin(CLIENT)

    client_id: str = attrs.field(default="odradek", kw_only=True)
    next_correlation_id: int = attrs.field(default=0, kw_only=True)
    _client_id_bytes: bytes = attrs.field(default=b"", init=False, repr=False)
    _pool: FramePool = attrs.field(factory=FramePool, init=False, repr=False)
    _large: memoryview | None = attrs.field(default=None, init=False, repr=False)
    _large_size: int = attrs.field(default=0, init=False)
    _large_filled: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        name = self.client_id.encode()
        if len(name) > 0x7FFF:
            raise LocalProtocolError(f"the client id has {len(name)} bytes, which is too long")
        self._client_id_bytes = _STRING_LENGTH.pack(len(name)) + name

    def send(self, request: Message, version: int, *, expect_response: bool = True) -> bytearray:
        """Encode the frame of a request. Its correlation id is the value that `next_correlation_id` had
        before the call.

        A Produce with acks=0 gets no response: pass `expect_response=False`.

        Raises:
            LocalProtocolError: the connection is not open, too many requests are unanswered, the version does
                not exist, or values do not fit their fields.
        """
        place = self._place.send
        if place is None:
            raise self._refusal(Step.SEND)
        self._place = place
        if expect_response and len(self._unanswered) >= self.unanswered_max:
            raise LocalProtocolError(
                f"no further request can be sent: {self.unanswered_max} requests have no answer yet"
            )
        api_key, is_flexible, encode = _request_form(type(request), version)
        w = bytearray(_FRAME_START.size)
        w += self._client_id_bytes
        if is_flexible:
            w.append(0)
        encode(w, request, None)
        correlation_id = self.next_correlation_id
        _FRAME_START.pack_into(w, 0, len(w) - LENGTH_SIZE, api_key, version, correlation_id)
        self._frames_sent += 1
        self.next_correlation_id = (correlation_id + 1) & _CORRELATION_ID_MAX
        if expect_response:
            self._unanswered.append(_Call(correlation_id, api_key, version))
        return w

    def next_event(self) -> ResponseReceived | ConnectionClosed | Literal[Signal.NEED_DATA]:
        """Return the next event; call it until NEED_DATA or ConnectionClosed.

        Raises:
            RemoteProtocolError: the peer is at fault; close the connection.
            LocalProtocolError: the connection is closed.
        """
        if self.state is State.CLOSED:
            raise LocalProtocolError("the events of a closed connection cannot be read")
        try:
            frame = self._next_frame()
            if isinstance(frame, (Signal, ConnectionClosed)):
                return frame
            return self._response(frame)
        except RemoteProtocolError as error:
            self._fail(error)
            raise

    def _keep(self, data: bytes | bytearray | memoryview) -> None:
        """Store received bytes as the base class does, but move the bytes of a large frame into a buffer of
        the frame's size.
        """
        if self._large is not None:
            with memoryview(data) as view:
                start = self._large_filled
                end = min(self._large_size, start + len(view))
                self._large[start:end] = view[: end - start]
                self._large_filled = end
                self._buffer += view[end - start :]
            return
        if not self._buffer and len(data) >= LENGTH_SIZE:
            size = _FRAME_LENGTH.unpack_from(data)[0]
            if _LARGE_BYTES <= size <= self.max_frame_bytes:
                self._begin_large(size)
                with memoryview(data) as view:
                    self._keep(view[LENGTH_SIZE:])
                return
        self._buffer += data

    def place_for_data(self) -> memoryview | None:
        """Return memory for the missing bytes of a large response, or None if no large response is
        incomplete. The caller receives into it and calls `received_in_place`.
        """
        if self._large is None or self._large_filled >= self._large_size:
            return None
        return self._large[self._large_filled : self._large_size]

    def received_in_place(self, count: int) -> None:
        """Accept the first `count` bytes (at least one) of `place_for_data` as the next bytes of the stream."""
        if self._large is None or not 0 < count <= self._large_size - self._large_filled:
            raise LocalProtocolError(f"{count} received bytes were reported, but there was no room for them")
        self._bytes_received += count
        self._large_filled += count

    def _next_frame(self) -> bytes | memoryview | ConnectionClosed | Literal[Signal.NEED_DATA]:
        large = self._large
        if large is None or self._place.receive is None:
            frame = super()._next_frame()
            if frame is NEED_DATA:
                self._expect_large()
            return frame
        if self._large_filled < self._large_size:
            if self._place.data is None:
                raise RemoteProtocolError(
                    f"the peer ended the stream inside a frame, of which {self._large_filled} bytes have come"
                )
            return NEED_DATA
        self._step(self._place.receive, Step.RECEIVE)
        self._large = None
        self._frames_received += 1
        return large[: self._large_size].toreadonly()

    @property
    def bytes_expected(self) -> int:
        """The number of bytes that a large, incomplete response still lacks; 0 if there is none."""
        return self._large_size - self._large_filled if self._large is not None else 0

    def _expect_large(self) -> None:
        """Move the first bytes of a large frame to a buffer of the frame's size."""
        buffer = self._buffer
        if len(buffer) < LENGTH_SIZE:
            return
        size = frame_length(buffer, 0, self.max_frame_bytes)
        if size >= _LARGE_BYTES:
            self._begin_large(size)
            rest = bytes(buffer[LENGTH_SIZE:])
            buffer.clear()
            self._keep(rest)

    def _begin_large(self, size: int) -> None:
        self._large = memoryview(self._pool.take(size))
        self._large_size = size
        self._large_filled = 0

    def _response(self, frame: bytes | memoryview) -> ResponseReceived:
        if not self._unanswered:
            raise RemoteProtocolError("the broker sent a response although no request waits for a response")
        expected, api_key, version = self._unanswered[0]
        header_version, read = _response_form(api_key, version)
        correlation_id, body = parse_response_header(frame, 0, len(frame), header_version)
        if correlation_id != expected:
            raise RemoteProtocolError(
                f"the broker sent response {correlation_id}, but the next response must be {expected}"
            )
        if (
            api_key == ApiKey.API_VERSIONS
            and len(frame) >= body + 2
            and _ERROR_CODE.unpack_from(frame, body)[0] == ErrorCode.UNSUPPORTED_VERSION
        ):
            version = 0
            _, read = _response_form(api_key, version)
        response, _ = read(memoryview(frame), body)
        self._unanswered.popleft()
        return ResponseReceived(correlation_id, api_key, version, response)
