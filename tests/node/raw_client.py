"""Bytes on a socket, for tests that break the rules: frames built by hand, answers read by hand."""

from __future__ import annotations

import socket
import struct
from typing import Any

from odradek.wire.api import ApiKey, request_header_version, response_class, response_header_version
from odradek.wire.codec import decode, encode
from odradek.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

CLIENT_ID = b"raw"


def frame(message: Any, version: int, correlation_id: int = 7, *, client_id: bytes = CLIENT_ID) -> bytearray:
    """Make a whole request frame, size included."""
    body = struct.pack(">hhih", message.API_KEY, version, correlation_id, len(client_id)) + client_id
    if request_header_version(message.API_KEY, version) >= 2:
        body += b"\0"
    body += encode(message, version)
    return bytearray(struct.pack(">i", len(body)) + body)


class RawClient:
    """One blocking connection."""

    def __init__(self, bootstrap: str, timeout_seconds: float = 20.0) -> None:
        host, _, port = bootstrap.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout_seconds)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes | bytearray) -> None:
        self.socket.sendall(data)

    def read_exactly(self, count: int) -> bytes:
        """Read this number of bytes. Raises `ConnectionError` at the end of the stream."""
        parts = bytearray()
        while len(parts) < count:
            part = self.socket.recv(count - len(parts))
            if not part:
                raise ConnectionError("closed by the node")
            parts += part
        return bytes(parts)

    def read_frame(self) -> bytes:
        return self.read_exactly(struct.unpack(">i", self.read_exactly(4))[0])

    def receive(self, api_key: int, version: int) -> Any:
        """Receive the next response, decoded."""
        answer = self.read_frame()
        offset = 5 if response_header_version(api_key, version) >= 1 else 4
        return decode(response_class(api_key), version, answer, offset)

    def request(self, message: Any, version: int) -> Any:
        self.send(frame(message, version))
        return self.receive(message.API_KEY, version)

    def is_closed_by_node(self) -> bool:
        """True if the node ends the connection, rather than answer or wait."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True

    def produce(self, topic: str, batch: bytes | bytearray, *, acks: int = -1, version: int = 9) -> Any:
        """Send one batch to partition 0; the partition's answer."""
        request = ProduceRequest(
            None, acks, 5000, [TopicProduceData(topic, bytes(16), [PartitionProduceData(0, batch)])]
        )
        response: ProduceResponse = self.request(request, version)
        return response.responses[0].partition_responses[0]


__all__ = ["ApiKey", "RawClient", "frame"]
