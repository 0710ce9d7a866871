"""Requests made by hand over plain sockets, for tests that need exact frames or break the protocol."""

from __future__ import annotations

import random
import socket
import struct
import time
from typing import Any

from odradek.wire.api import request_header_version, response_class, response_header_version
from odradek.wire.batches.records import RecordBatchBuilder
from odradek.wire.codec import decode, encode
from odradek.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from odradek.wire.structure import Message

TIMEOUT_SECONDS = 30.0
_LENGTH = struct.Struct(">i")
_RECEIVED_BYTES = 1 << 16
CLIENT_ID = b"raw"


def connect(bootstrap: str, timeout_seconds: float = TIMEOUT_SECONDS) -> socket.socket:
    """Open a connection without Nagle's delay."""
    host, _, port = bootstrap.rpartition(":")
    connection = socket.create_connection((host, int(port)), timeout=timeout_seconds)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def frame(
    message: Message, version: int, correlation_id: int = 7, *, client_id: bytes = CLIENT_ID
) -> bytearray:
    """Encode a whole request frame, including its length."""
    key = _key_of(type(message))
    body = struct.pack(">hhih", key, version, correlation_id, len(client_id)) + client_id
    if request_header_version(key, version) >= 2:
        body += b"\0"
    body += encode(message, version)
    return bytearray(_LENGTH.pack(len(body)) + body)


def framed(api_key: int, version: int, body: Message) -> bytes:
    """Encode a request frame with the client id `bench` and the correlation id 1. Its API key comes from the message."""
    return bytes(frame(body, version, 1, client_id=b"bench"))


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
    """Decode an answer, given without its length."""
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
    """Raise `RuntimeError` if the response has an error code, so that a benchmark never measures errors."""
    text = repr(response)
    codes = {part.partition(",")[0].rstrip(")]") for part in text.split("error_code=")[1:]}
    if codes - {"0"}:
        raise RuntimeError(f"the server returned an error: {text[:500]}")


class RawClient:
    """A blocking connection that sends one request at a time."""

    def __init__(self, bootstrap: str, timeout_seconds: float = 20.0) -> None:
        self.socket = connect(bootstrap, timeout_seconds)

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes | bytearray) -> None:
        self.socket.sendall(data)

    def read_exactly(self, count: int) -> bytes:
        """Read exactly `count` bytes. Raises `ConnectionError` at the end of the stream."""
        parts = bytearray()
        while len(parts) < count:
            part = self.socket.recv(count - len(parts))
            if not part:
                raise ConnectionError("the node closed the connection")
            parts += part
        return bytes(parts)

    def read_frame(self) -> bytes:
        return self.read_exactly(_LENGTH.unpack(self.read_exactly(4))[0])

    def receive(self, api_key: int, version: int) -> Any:
        """Read the next response, and decode it."""
        return decoded(self.read_frame(), api_key, version)

    def request(self, message: Message, version: int) -> Any:
        """Send a request, and return its decoded answer."""
        self.send(frame(message, version))
        return self.receive(_key_of(type(message)), version)

    def is_closed_by_node(self) -> bool:
        """True if the node closes the connection; false if it sends bytes instead."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True

    def produce(self, topic: str, batch: bytes | bytearray, *, acks: int = -1, version: int = 9) -> Any:
        """Send one batch to partition 0, and return the partition's answer."""
        request = ProduceRequest(
            None, acks, 5000, [TopicProduceData(topic, bytes(16), [PartitionProduceData(0, batch)])]
        )
        return self.request(request, version).responses[0].partition_responses[0]


class RawConnection:
    """A connection with several requests in flight."""

    def __init__(self, bootstrap: str) -> None:
        self.socket = connect(bootstrap)
        self._received = bytearray()

    def send(self, request: Message, version: int) -> None:
        """Send a request. Read its answer by `receive` or `receive_now`."""
        self.socket.sendall(framed(_key_of(type(request)), version, request))

    def receive(self, request: type[Message], version: int) -> Any:
        """Wait for the next answer, and decode it."""
        while (found := self._next_frame()) is None:
            self.pull()
        return decoded(found, _key_of(request), version)

    def receive_now(self, request: type[Message], version: int) -> Any | None:
        """Return the next answer if it has arrived completely; otherwise None."""
        found = self._next_frame()
        return None if found is None else decoded(found, _key_of(request), version)

    def pull(self) -> None:
        """Read the bytes that are available, or wait for some. Raises `ConnectionError` at the end of the stream."""
        part = self.socket.recv(_RECEIVED_BYTES)
        if not part:
            raise ConnectionError("the node closed the connection")
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
