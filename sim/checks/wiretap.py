"""A tap on all simulated connections: it decodes requests and answers at the moment when they are sent. PURE.

Checks register for the APIs that they check. A listener is called with each request when its last byte is sent, and
with each answer when the answer's last byte is sent. Bytes that do not form a valid message are ignored here; the
receiving node handles them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import attrs

from odradek.wire.api import request_class, request_header_version, response_class, response_header_version
from odradek.wire.codec import decoder
from odradek.wire.errors import ProtocolError
from odradek.wire.messages.headers import RequestHeader
from sim.machine.network import SimConn

__all__ = ["Exchange", "Listener", "Wiretap"]

LENGTH_BYTES = 4
_HEADER_BYTES = 12
"""The size of the fields with which each request begins: length, API, version and correlation id."""
STREAMS = 256
_FRAME_BYTES_MAX = 1 << 28
"""The largest valid frame in bytes. A longer frame means that the bytes do not follow Kafka's protocol."""


@attrs.define(eq=False)
class Exchange:
    """A request. Until the answer, a listener may keep its own notes about the request in `memo`."""

    conn: SimConn
    """The client's end of the connection."""
    api: int
    version: int
    request: Any
    memo: Any = None


class Listener(Protocol):
    """A check that is called with requests and answers of an API. Both methods raise `SafetyViolation`."""

    def asked(self, exchange: Exchange) -> bool:
        """Called when a request has been sent. Returns False if its answer need not be checked."""

    def answered(self, exchange: Exchange, answer: Any) -> None:
        """Called when the answer has been sent."""


@attrs.define(eq=False)
class _Stream:
    """The bytes that one end has sent: an incomplete frame, and the requests whose answers are awaited."""

    rest: bytearray = attrs.Factory(bytearray)
    is_deaf: bool = False
    asked: dict[int, list[tuple[Listener, Exchange]]] = attrs.Factory(dict)


class Wiretap:
    """Decodes all messages. `sent` must be set as the fabric's `on_sent`. Errors of listeners are passed to `refute`."""

    def __init__(self, refute: Callable[[Exception], None]) -> None:
        self._refute = refute
        self._listeners: dict[int, list[Listener]] = {}
        self._streams: dict[SimConn, _Stream] = {}
        self._streams_max = STREAMS
        """If there are more streams than this, the streams of closed connections are dropped."""
        self.requests_heard = 0
        self.answers_heard = 0

    def listen(self, api: int, listener: Listener) -> None:
        """Register a listener for the messages of this API."""
        self._listeners.setdefault(api, []).append(listener)

    def sent(self, conn: SimConn, data: bytes) -> None:
        """Decode the bytes that an end of a connection has sent, and call the listeners."""
        stream = self._streams.get(conn)
        if stream is None:
            stream = self._begin(conn)
        if stream.is_deaf:
            return
        if stream.rest:
            stream.rest += data
            size = LENGTH_BYTES + int.from_bytes(stream.rest[:LENGTH_BYTES], "big")
            if LENGTH_BYTES <= len(stream.rest) < size <= _FRAME_BYTES_MAX:
                return
            data = bytes(stream.rest)
            stream.rest = bytearray()
        position, end = 0, len(data)
        while end - position >= LENGTH_BYTES:
            size = LENGTH_BYTES + int.from_bytes(data[position : position + LENGTH_BYTES], "big")
            if size > _FRAME_BYTES_MAX:
                stream.is_deaf = True
                return
            if end - position < size:
                break
            if conn.name.endswith(">"):
                if int.from_bytes(data[position + 4 : position + 6], "big") in self._listeners:
                    self._hear_request(conn, stream, data[position : position + size])
            else:
                self._hear_answer(conn, data, position, size)
            position += size
        if position < end:
            stream.rest += data[position:]

    def _begin(self, conn: SimConn) -> _Stream:
        if len(self._streams) >= self._streams_max:
            self._streams = {end: stream for end, stream in self._streams.items() if not end.is_closed}
            self._streams_max = max(STREAMS, 2 * len(self._streams))
        stream = self._streams[conn] = _Stream()
        return stream

    def _hear_request(self, conn: SimConn, stream: _Stream, frame: bytes) -> None:
        if len(frame) < _HEADER_BYTES:
            return
        api = int.from_bytes(frame[4:6], "big")
        version = int.from_bytes(frame[6:8], "big")
        try:
            header, position = decoder(RequestHeader, request_header_version(api, version))(
                frame, LENGTH_BYTES
            )
            request, _ = decoder(request_class(api), version)(frame, position)
        except ProtocolError:
            return
        self.requests_heard += 1
        for listener in self._listeners[api]:
            exchange = Exchange(conn, api, version, request)
            try:
                if listener.asked(exchange):
                    stream.asked.setdefault(header.correlation_id, []).append((listener, exchange))
            except AssertionError as error:
                self._refute(error)

    def _hear_answer(self, conn: SimConn, data: bytes, position: int, size: int) -> None:
        stream = self._streams.get(conn.peer)
        if stream is None or not stream.asked:
            return
        correlation_id = int.from_bytes(data[position + 4 : position + 8], "big", signed=True)
        waiting = stream.asked.pop(correlation_id, None)
        if waiting is None:
            return
        exchange = waiting[0][1]
        flexible = response_header_version(exchange.api, exchange.version)
        frame = memoryview(data)[position : position + size]
        try:
            # In a flexible version the answer's header ends with the number of its tagged fields: one byte, since
            # there are none.
            answer, _ = decoder(response_class(exchange.api), exchange.version)(frame, 8 + flexible)
        except ProtocolError:
            return
        self.answers_heard += 1
        try:
            for listener, heard in waiting:
                listener.answered(heard, answer)
        except AssertionError as error:
            self._refute(error)

    def statistics(self) -> dict[str, int]:
        return {
            "requests_heard": self.requests_heard,
            "answers_heard": self.answers_heard,
            "streams": len(self._streams),
        }
