"""Fetches a document from an address that a setting names. SHELL."""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from odradek.env.ports import DocumentMissing
from odradek.env.token_ports import DocumentAddress

__all__ = ["fetch_document"]

BYTES_MAX = 1 << 20
FETCH_SECONDS_MAX = 10.0
"""Seconds within which the whole answer must arrive. The limit also holds for a server that sends a byte now
and then.
"""


def fetch_document(address: DocumentAddress) -> bytes:
    """Fetch the document at `file:///PATH`, or at an `https` or `http` address. It blocks, so call it in a worker.

    Redirections are not followed, because a setting names one address, and a redirection could lead to any server.
    Proxies are not used. Raises `DocumentMissing` if there is no document, or if it has more than `BYTES_MAX` bytes.
    """
    try:
        parts = urlsplit(address.url)
        if parts.scheme == "file":
            with Path(unquote(parts.path)).open("rb") as file:
                data = file.read(BYTES_MAX + 1)
        elif parts.scheme in ("http", "https") and parts.hostname:
            data = _ask(parts, address)
        else:
            raise DocumentMissing(
                f"addresses of the kind {parts.scheme!r} are not supported, only file, https and http"
            )
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise DocumentMissing(f"the document cannot be fetched: {type(error).__name__}: {error}") from error
    if len(data) > BYTES_MAX:
        raise DocumentMissing(f"the document has more than {BYTES_MAX} bytes")
    return data


def _ask(parts: SplitResult, address: DocumentAddress) -> bytes:
    """Send one request on a new connection, and return the body of the answer. Raises as `fetch_document` does, and
    `OSError`.
    """
    assert parts.hostname is not None
    port = parts.port or (443 if parts.scheme == "https" else 80)
    sock = socket.create_connection((parts.hostname, port), FETCH_SECONDS_MAX)
    connection = http.client.HTTPConnection(parts.hostname, port)
    connection.sock = sock
    try:
        with _ended_when_late(sock):
            if parts.scheme == "https":
                connection.sock = _trusted(address).wrap_socket(sock, server_hostname=parts.hostname)
            path = parts.path or "/"
            target = f"{path}?{parts.query}" if parts.query else path
            method = "GET" if address.body is None else "POST"
            connection.request(method, target, address.body, dict(address.headers))
            answer = connection.getresponse()
            if answer.status != http.client.OK:
                raise DocumentMissing(f"the server answers with the status {answer.status}")
            return answer.read(BYTES_MAX + 1)
    finally:
        connection.close()
        sock.close()


@contextmanager
def _ended_when_late(sock: socket.socket) -> Iterator[None]:
    """Run a `with` block, and shut the connection down if the block takes longer than `FETCH_SECONDS_MAX`.
    The shutdown uses a copy of the descriptor, because TLS takes over the original.

    Raises `DocumentMissing` after that time, even if the body was complete.
    """
    is_late = threading.Event()
    copy = sock.dup()

    def end() -> None:
        is_late.set()
        with suppress(OSError):  # the server may have closed the connection before
            copy.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(FETCH_SECONDS_MAX, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        copy.close()
        if is_late.is_set():
            raise DocumentMissing(f"the server did not send its whole answer within {FETCH_SECONDS_MAX:g} s")


def _trusted(address: DocumentAddress) -> ssl.SSLContext:
    if address.truststore_location is None and address.truststore_certificates is None:
        context = ssl.create_default_context()
    else:
        context = ssl.create_default_context(
            cafile=address.truststore_location, cadata=address.truststore_certificates
        )
    # Python sets this flag since 3.13. It refuses certificates without key identifiers, but Kafka accepts them.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context
