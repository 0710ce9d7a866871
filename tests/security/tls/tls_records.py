"""A TLS 1.3 peer that writes its own records: key updates, data, padding and nonsense.

The source is RFC 8446, sections 4.6.3, 5.2 and 7. Python's `ssl` makes the handshake and reads the other side's
records. Its key log contains the traffic secret, by which this module encrypts its own records.
"""

from __future__ import annotations

import hmac
import os
import socket
import ssl
import struct
import tempfile
from collections.abc import Callable
from contextlib import suppress

from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305

__all__ = ["ALERT", "DATA", "HANDSHAKE", "RawEnd", "RecordWriter", "shake_hands"]

ALERT, HANDSHAKE, DATA = 21, 22, 23
_KINDS: dict[str, tuple[str, int, Callable[[bytes], AESGCM | ChaCha20Poly1305]]] = {
    "TLS_AES_128_GCM_SHA256": ("sha256", 16, AESGCM),
    "TLS_AES_256_GCM_SHA384": ("sha384", 32, AESGCM),
    "TLS_CHACHA20_POLY1305_SHA256": ("sha256", 32, ChaCha20Poly1305),
}
"""Hash, key length in bytes, and cipher of each suite."""
_RECEIVE_BYTES = 1 << 16


class RecordWriter:
    """Encrypts the records of one direction by its traffic secret."""

    def __init__(self, suite: str, secret: bytes) -> None:
        self._hash, self._key_bytes, self._new_cipher = _KINDS[suite]
        self._secret = secret
        self._use_secret()

    def record(self, payload: bytes, kind: int = DATA, padding: int = 0) -> bytes:
        """Make one record. `kind` is its real type, which TLS 1.3 encrypts."""
        inner = payload + bytes([kind]) + bytes(padding)
        head = b"\x17\x03\x03" + struct.pack(">H", len(inner) + 16)
        nonce = (self._iv ^ self._sequence).to_bytes(12)
        self._sequence += 1
        return head + self._cipher.encrypt(nonce, inner, head)

    def key_update(self, *, asks_for_another: bool = False) -> bytes:
        """Make a key update. Later records are encrypted by the next secret."""
        made = self.record(bytes([24, 0, 0, 1, asks_for_another]), HANDSHAKE)
        self._secret = self._expand("traffic upd", len(self._secret))
        self._use_secret()
        return made

    def key_updates(self, count: int, *, ask_for_others: bool = False) -> bytes:
        """Make `count` key updates, one after the other."""
        return b"".join(self.key_update(asks_for_another=ask_for_others) for _ in range(count))

    def _use_secret(self) -> None:
        self._cipher = self._new_cipher(self._expand("key", self._key_bytes))
        self._iv = int.from_bytes(self._expand("iv", 12))
        self._sequence = 0

    def _expand(self, label: str, count: int) -> bytes:
        """Compute HKDF-Expand-Label for at most one block of the hash."""
        name = b"tls13 " + label.encode()
        info = struct.pack(">HB", count, len(name)) + name + b"\0\x01"
        return hmac.digest(self._secret, info, self._hash)[:count]


class RawEnd:
    """One end of a connection without a socket: the peer's bytes go in, bytes for the peer come out."""

    def __init__(self, context: ssl.SSLContext, name: str | None) -> None:
        """Make a client of the server with this name, or a server if it is None.

        `context` must not be shared, since its keys are logged.
        """
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        if name is None:
            # Session tickets come in TLS records, and the writer cannot count records of `ssl`.
            context.num_tickets = 0
        self._label = "SERVER_TRAFFIC_SECRET_0" if name is None else "CLIENT_TRAFFIC_SECRET_0"
        descriptor, self._keys_path = tempfile.mkstemp()
        os.close(descriptor)
        context.keylog_filename = self._keys_path
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, name is None, name)

    def shake_hands(self, data: bytes = b"") -> tuple[bytes, RecordWriter | None]:
        """Continue the handshake. Return the bytes to send, and the writer of records when the handshake is done."""
        if data:
            self._incoming.write(data)
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return self._outgoing.read(), None
        with open(self._keys_path) as log:
            secrets = dict(line.split(" ", 1) for line in log if not line.startswith("#"))
        os.unlink(self._keys_path)
        cipher = self._tls.cipher()
        assert cipher is not None
        secret = bytes.fromhex(secrets[self._label].split()[1])
        return self._outgoing.read(), RecordWriter(cipher[0], secret)

    def read(self, data: bytes) -> bytes:
        """Return the decrypted bytes in the peer's bytes. Raises `ssl.SSLError` for a fatal alert."""
        self._incoming.write(data)
        found = b""
        with suppress(ssl.SSLWantReadError):
            while part := self._tls.read(_RECEIVE_BYTES):
                found += part
        return found


def shake_hands(connection: socket.socket, context: ssl.SSLContext, name: str) -> tuple[RawEnd, RecordWriter]:
    """Make a client's handshake over a socket. Return its end, and its writer of records. Raises `OSError`."""
    client = RawEnd(context, name)
    flight, writer = client.shake_hands()
    connection.sendall(flight)
    while writer is None:
        data = connection.recv(_RECEIVE_BYTES)
        if not data:
            raise ConnectionError("the server closed the connection during the handshake")
        flight, writer = client.shake_hands(data)
        connection.sendall(flight)
    return client, writer
