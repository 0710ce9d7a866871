"""Target `frames`: bytes of a stranger at a listener, from the first byte to decoded requests."""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct

from odradek.wire.api import request_class
from odradek.wire.api_keys import APIS, ApiKey
from odradek.wire.codec import (
    ELEMENTS_AT_ONCE,
    ELEMENTS_MAX,
    bounded_decoder,
    encode,
    encoder,
    measuring_decoder,
)
from odradek.wire.errors import MalformedMessage, RemoteProtocolError, TooManyElements
from odradek.wire.framing.connection import (
    NEED_DATA,
    ConnectionClosed,
    RequestReceived,
    ServerConnection,
    Signal,
)
from odradek.wire.messages.headers import RequestHeader
from odradek.wire.structure import Message
from tests.fuzz.target import Input, Target
from tests.wire.message_values import SHAPES, generated

FRAME_BYTES_MAX = 1 << 20
_LENGTH = Struct(">i")
ONE_FRAME = 0
"""An input whose first byte has this value is one frame, to which its length is added here. Any other first byte is the
size of the pieces in which a stream arrives."""


def run(data: bytes) -> None:
    """Feed the server's side of a connection, and decode every request in all the ways that a node does."""
    given = Input(data)
    piece = given.byte()
    stream = given.rest()
    if piece == ONE_FRAME:
        stream = _LENGTH.pack(len(stream)) + stream
        piece = len(stream)
    connection = ServerConnection(max_frame_bytes=FRAME_BYTES_MAX)
    try:
        for start in range(0, len(stream), piece):
            connection.receive_data(stream[start : start + piece])
            _take_requests(connection)
        connection.receive_data(b"")
        assert isinstance(_take_requests(connection), ConnectionClosed)
    except RemoteProtocolError:
        # After an error, the connection raises the same error at every call.
        for _ in range(2):
            try:
                connection.next_event()
            except RemoteProtocolError:
                continue
            assert connection.statistics().bytes_buffered, "a connection that has failed has an event"


def _take_requests(connection: ServerConnection) -> ConnectionClosed | Signal:
    """Take all events that have arrived, without answering any request."""
    while True:
        event = connection.next_event()
        if not isinstance(event, RequestReceived):
            assert event is NEED_DATA or isinstance(event, ConnectionClosed)
            return event
        connection.send_nothing(event.correlation_id)
        if event.is_supported:
            decode_as_a_node(event)


def decode_as_a_node(event: RequestReceived) -> None:
    """Decode a request on the loop, in a worker, and without a limit. All three must agree."""
    cls, version = request_class(event.api_key), event.api_version
    try:
        message, elements = measuring_decoder(cls, version)(event.body, 0)
    except TooManyElements:
        return
    except MalformedMessage:
        _check_refused(event)
        return
    assert 0 <= elements <= ELEMENTS_MAX
    first = encode(message, version)
    assert encode(event.request(), version) == first, "two decoders read two things"
    try:
        small, _ = bounded_decoder(cls, version, ELEMENTS_AT_ONCE)(event.body, 0)
    except TooManyElements:
        assert elements > ELEMENTS_AT_ONCE
    else:
        assert elements <= ELEMENTS_AT_ONCE
        assert encode(small, version) == first
    again, _ = measuring_decoder(cls, version)(first, 0)
    assert encode(again, version) == first, "what was written is not what was read"


def _check_refused(event: RequestReceived) -> None:
    """Check that the decoder without a limit refuses the request, too."""
    try:
        event.request()
    except MalformedMessage:
        return
    raise AssertionError("the decoder with a limit refuses a request that the decoder without one accepts")


def frame(message: Message, version: int, client_id: str | None = "fuzz") -> bytes:
    """Encode a request's header and body, without the length of the frame."""
    key = message.API_KEY
    assert key is not None
    body = bytearray(
        encode(RequestHeader(key, version, 7, client_id), 2 if version >= APIS[key].flexible_since else 1)
    )
    encoder(type(message), version)(body, message, None)
    return bytes(body)


def seeds() -> Iterator[bytes]:
    """Return requests in the first and last version of each API: an empty one, and one with all fields filled."""
    stream = b""
    for key in ApiKey:
        cls = request_class(key)
        for version in sorted({*cls.VALID_VERSIONS}):
            default, _, single, _ = generated(cls, version, SHAPES)
            for message in (default, single):
                whole = frame(message, version)
                yield bytes([ONE_FRAME]) + whole
            stream += _LENGTH.pack(len(whole)) + whole
    yield bytes([7]) + stream[:2000]
    yield bytes([255]) + stream[-2000:]


TARGET = Target("frames", run, seeds)
