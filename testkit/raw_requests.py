"""Requests by hand over plain sockets: a frame, its answer, and a connection that has several under way."""

from __future__ import annotations

import random
import socket
import struct
import time
from typing import Any

from odradek.wire.api import request_header_version, response_class, response_header_version
from odradek.wire.batches.records import RecordBatchBuilder
from odradek.wire.codec import decode, encode
from odradek.wire.messages.headers import RequestHeader
from odradek.wire.structure import Message

TIMEOUT_SECONDS = 30.0
_LENGTH = struct.Struct(">i")
_RECEIVED_BYTES = 1 << 16


def connect(bootstrap: str) -> socket.socket:
    """Open a connection without Nagle's delay."""
    host, _, port = bootstrap.rpartition(":")
    connection = socket.create_connection((host, int(port)), timeout=TIMEOUT_SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def framed(api_key: int, version: int, body: Message) -> bytes:
    """Encode a request as it stands on the wire, length first."""
    header = RequestHeader(api_key, version, 1, "bench")
    payload = encode(header, request_header_version(api_key, version)) + encode(body, version)
    return _LENGTH.pack(len(payload)) + payload


def record_batch(batch_bytes: int, record_count: int) -> bytes:
    """Build a batch of about `batch_bytes` in `record_count` equal records of random bytes."""
    value_bytes = max(1, (batch_bytes - 61) // record_count - 10)
    source = random.Random(batch_bytes)
    builder = RecordBatchBuilder()
    now_ms = int(time.time() * 1000)
    for _ in range(record_count):
        builder.append(now_ms, None, source.randbytes(value_bytes))
    return bytes(builder.build())


def decoded(frame: bytes, api_key: int, version: int) -> Any:
    """Decode an answer that came without its length."""
    offset = 4 + (1 if response_header_version(api_key, version) else 0)
    return decode(response_class(api_key), version, frame, offset)


def exchange(bootstrap: str, frame: bytes, api_key: int, version: int) -> Any:
    """Send one frame on a connection of its own, and return the decoded answer."""
    with connect(bootstrap) as connection:
        connection.sendall(frame)
        stream = connection.makefile("rb")
        body = stream.read(_LENGTH.unpack(stream.read(4))[0])
    return decoded(body, api_key, version)


def check_answer(response: Message) -> None:
    """Refuse to measure errors. Raises `RuntimeError`."""
    text = repr(response)
    codes = {part.partition(",")[0].rstrip(")]") for part in text.split("error_code=")[1:]}
    if codes - {"0"}:
        raise RuntimeError(f"the request is answered with an error: {text[:500]}")


class RawConnection:
    """One connection: requests out, whole answers in."""

    def __init__(self, bootstrap: str) -> None:
        self.socket = connect(bootstrap)
        self._received = bytearray()

    def send(self, request: Message, version: int) -> None:
        """Send a request; its answer is for `receive` or `receive_now`."""
        self.socket.sendall(framed(_key_of(type(request)), version, request))

    def receive(self, request: type[Message], version: int) -> Any:
        """Wait for the next answer, and decode it."""
        while (found := self._next_frame()) is None:
            self.pull()
        return decoded(found, _key_of(request), version)

    def receive_now(self, request: type[Message], version: int) -> Any | None:
        """Decode the next answer if it is there; None if a part of it is still to come."""
        found = self._next_frame()
        return None if found is None else decoded(found, _key_of(request), version)

    def pull(self) -> None:
        """Read the bytes that the socket has, or wait for some."""
        part = self.socket.recv(_RECEIVED_BYTES)
        if not part:
            raise ConnectionError("closed by the node")
        self._received += part

    def _next_frame(self) -> bytes | None:
        if len(self._received) < 4:
            return None
        size = _LENGTH.unpack_from(self._received)[0] + 4
        if len(self._received) < size:
            return None
        frame = bytes(self._received[4:size])
        del self._received[:size]
        return frame


def _key_of(request: type[Message]) -> int:
    assert request.API_KEY is not None
    return request.API_KEY
