"""Probes of one address by plain sockets: what listens there, before any login.

A client that fails says that a connection was closed. A probe finds out why: it looks the name up, connects and tries
TLS. Then it sends ApiVersions and SaslHandshake, which Kafka's brokers answer without a login.
"""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

__all__ = ["Probe", "addresses_of", "probe"]

_API_VERSIONS, _SASL_HANDSHAKE = 18, 17
_ANSWER_BYTES_MAX = 1 << 20
_CERTIFICATE_REQUIRED = ("CERTIFICATE_REQUIRED", "HANDSHAKE_FAILURE", "BAD_CERTIFICATE")


class Probe(NamedTuple):
    """What a probe has found at an address. `trouble` says in a few words at which step it ended, or is empty."""

    host: str
    port: int
    addresses: Sequence[str] = ()
    """The addresses of the host's name; empty if the name does not resolve."""
    is_open: bool = False
    protocol: str | None = None
    """PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL; None if it is no listener of Kafka, or asks for a certificate first."""
    has_tls: bool = False
    wants_certificate: bool = False
    mechanisms: Sequence[str] = ()
    apis: Mapping[int, tuple[int, int]] = {}
    """The versions that the node serves of each API, the lowest and the highest."""
    trouble: str = ""

    @property
    def name(self) -> str:
        """The address as people write it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def addresses_of(host: str, port: int) -> list[str]:
    """Look a name up; an empty list if it does not resolve here."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return list(dict.fromkeys(str(each[4][0]) for each in found))


def probe(host: str, port: int, seconds: float, *, tls_first: bool) -> Probe:
    """Find out what listens at an address. Each step has this many seconds. `tls_first` says which transport is likely,
    since a wrong one leaves an error in the node's log.
    """
    found = Probe(host, port, addresses_of(host, port))
    if not found.addresses:
        return found._replace(trouble="its name does not resolve here")
    try:
        socket.create_connection((host, port), seconds).close()
    except OSError as error:
        return found._replace(trouble=str(error.strerror or error).lower())
    found = found._replace(is_open=True)
    trouble = ""
    for has_tls in (tls_first, not tls_first):
        looked = found._replace(has_tls=has_tls)
        try:
            with _connected(host, port, seconds, has_tls=has_tls) as connection:
                return _asked(looked, connection)
        except ssl.SSLError as error:
            if "CERTIFICATE_REQUIRED" in str(error) or error.reason in _CERTIFICATE_REQUIRED:
                return looked._replace(wants_certificate=True)
            trouble = trouble or str(error)
        except OSError as error:
            # A listener of the other transport closes the connection, or waits for the rest of a request.
            trouble = trouble or str(error)
    return found._replace(trouble=trouble)


def _connected(host: str, port: int, seconds: float, *, has_tls: bool) -> socket.socket:
    connection = socket.create_connection((host, port), seconds)
    connection.settimeout(seconds)
    if not has_tls:
        return connection
    # The probe only looks. The client of the command verifies the certificate.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        return context.wrap_socket(connection, server_hostname=host)
    except BaseException:
        connection.close()
        raise


def _asked(found: Probe, connection: socket.socket) -> Probe:
    """Ask for the versions of APIs and for mechanisms. Raises `OSError` if the answers are not Kafka's."""
    try:
        body = _request(connection, _API_VERSIONS, 0, b"")
        (count,) = struct.unpack_from(">i", body, 2)
        apis = {
            key: (low, high)
            for key, low, high in (struct.unpack_from(">hhh", body, 6 + 6 * n) for n in range(count))
        }
        # No mechanism has an empty name. The refusal lists those that the listener accepts.
        body = _request(connection, _SASL_HANDSHAKE, 1, struct.pack(">h", 0))
        (count,) = struct.unpack_from(">i", body, 2)
        mechanisms, place = [], 6
        for _ in range(count):
            (size,) = struct.unpack_from(">h", body, place)
            mechanisms.append(body[place + 2 : place + 2 + size].decode())
            place += 2 + size
    except (struct.error, UnicodeDecodeError) as error:
        raise OSError(f"its answer is not Kafka's: {error}") from error
    has_login = bool(mechanisms)
    transport = "SSL" if found.has_tls else "PLAINTEXT"
    return found._replace(
        protocol=f"SASL_{transport}" if has_login else transport, mechanisms=mechanisms, apis=apis
    )


def _request(connection: socket.socket, api: int, version: int, body: bytes) -> bytes:
    """Send one request and return the body of its answer."""
    client = b"odradek-doctor"
    frame = struct.pack(">hhih", api, version, 1, len(client)) + client + body
    connection.sendall(struct.pack(">i", len(frame)) + frame)
    (size,) = struct.unpack(">i", _received(connection, 4))
    if not 4 <= size <= _ANSWER_BYTES_MAX:
        raise OSError("its answer is not Kafka's")
    return _received(connection, size)[4:]


def _received(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise ConnectionResetError("it closed the connection")
        data += piece
    return data
