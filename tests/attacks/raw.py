"""A raw connection over plain TCP or TLS, with or without a login. It sends exactly the bytes that the caller
gives it."""

from __future__ import annotations

import base64
import os
import socket
import ssl
import struct
from pathlib import Path
from typing import Any, Self

from odradek.security.scram import MECHANISMS, ScramClient
from odradek.wire.api import request_header_version, response_class, response_header_version
from odradek.wire.codec import decode, encode
from odradek.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from odradek.wire.messages.sasl_handshake import SaslHandshakeRequest

HOST = "127.0.0.1"
ATTACKERS_HOST = "127.0.0.3"
"""The address of all attackers. Honest clients use another one, so the node never confuses the two."""
TIMEOUT_SECONDS = 60.0


class LoginRefused(Exception):
    """The server refused a login. The text has its error code and its message."""


class Conn:
    """One blocking connection that speaks Kafka's protocol, logged in or not."""

    def __init__(
        self,
        port: int,
        *,
        tls: bool = False,
        certificate: Path | None = None,
        source: str = ATTACKERS_HOST,
        client_id: str = "attack",
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        self._correlation_id = 0
        self.client_id = client_id
        plain = socket.create_connection((HOST, port), timeout_seconds, (source, 0))
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self.socket = _wrapped(plain, certificate) if tls else plain
        except BaseException:
            plain.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def login(
        self, user: str, password: str, mechanism: str = "SCRAM-SHA-512", *, by_token: bool = False
    ) -> Self:
        """Log in by a whole SASL exchange. Raises `LoginRefused`, or `ConnectionError` if the server closes the
        connection."""
        answer = self.call(SaslHandshakeRequest(mechanism), 1)
        if answer.error_code:
            raise LoginRefused(
                f"the server refused the SASL mechanism: code {answer.error_code}, {answer.mechanisms}"
            )
        if mechanism == "PLAIN":
            self.authenticate(f"\0{user}\0{password}".encode())
            return self
        nonce = base64.b64encode(os.urandom(18)).decode()
        client = ScramClient(MECHANISMS[mechanism], user, password, nonce, by_token=by_token)
        first = self.authenticate(client.first())
        last = self.authenticate(client.final(first.auth_bytes))
        client.check(last.auth_bytes)
        return self

    def authenticate(self, data: bytes, version: int = 2) -> Any:
        """Send one step of a SASL exchange and return the answer. Raises `LoginRefused`."""
        answer = self.call(SaslAuthenticateRequest(data), version)
        if answer.error_code:
            raise LoginRefused(f"code {answer.error_code}: {answer.error_message}")
        return answer

    def frame(self, api_key: int, version: int, body: bytes) -> bytes:
        """Put the size and the request header before a body. Each header has the next correlation id."""
        self._correlation_id += 1
        name = self.client_id.encode()
        head = struct.pack(">hhih", api_key, version, self._correlation_id, len(name)) + name
        if request_header_version(api_key, version) >= 2:
            head += b"\0"
        return struct.pack(">i", len(head) + len(body)) + head + body

    def send(self, message: Any, version: int | None = None) -> int:
        """Send a request. Return its version."""
        version = newest(message) if version is None else version
        self.socket.sendall(self.frame(message.API_KEY, version, bytes(encode(message, version))))
        return version

    def receive_frame(self) -> bytes:
        """Read the next answer as bytes. Raises `ConnectionError` at the end of the stream."""
        return self._exactly(struct.unpack(">i", self._exactly(4))[0])

    def receive(self, api_key: int, version: int) -> Any:
        """Read and decode the next answer."""
        data = self.receive_frame()
        start = 5 if response_header_version(api_key, version) >= 1 else 4
        return decode(response_class(api_key), version, memoryview(data), start)

    def call(self, message: Any, version: int | None = None) -> Any:
        """Send a request and return the decoded answer."""
        return self.receive(message.API_KEY, self.send(message, version))

    def _exactly(self, count: int) -> bytes:
        found = bytearray()
        while len(found) < count:
            data = self.socket.recv(min(1 << 20, count - len(found)))
            if not data:
                raise ConnectionError("closed by the node")
            found += data
        return bytes(found)


def newest(message: Any) -> int:
    """Return the last version of a message."""
    return int(type(message).VALID_VERSIONS[1])


def _wrapped(plain: socket.socket, certificate: Path | None) -> ssl.SSLSocket:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if certificate is not None:
        context.load_cert_chain(certificate)
    return context.wrap_socket(plain)
