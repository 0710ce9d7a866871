"""The port for TLS: settings that correspond to Kafka's keys, and a session that encrypts and decrypts bytes.

`odradek.env.real_tls` implements it with Python's `ssl`. A session does no IO: encrypted bytes go in and come out,
and the owner of the socket moves them. This module is a leaf that every package may import.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

import attrs

from odradek.env.ports import Buffer

__all__ = ["OpenTls", "Tls", "TlsFailed", "TlsRefused", "TlsSession", "TlsSettings"]


class TlsRefused(Exception):
    """Raised for settings that cannot be used: a missing file, a wrong password, an unknown cipher. The text has no
    secrets.
    """


class TlsFailed(Exception):
    """A handshake failed, or later bytes broke the rules of TLS. The connection cannot be used any more."""


@attrs.frozen(kw_only=True)
class TlsSettings:
    """The keys and rules of one side of TLS connections. A store has the type `PEM` or `PKCS12`, and is given as a
    file or as PEM text.
    """

    keystore_type: str = "PEM"
    keystore_location: str | None = None
    keystore_password: str | None = attrs.field(default=None, repr=False)
    key_password: str | None = attrs.field(default=None, repr=False)
    keystore_key: str | None = attrs.field(default=None, repr=False)
    keystore_chain: str | None = attrs.field(default=None, repr=False)
    keystore_key_location: str | None = None
    """A PEM file with the private key, if `keystore_location` has only the certificates."""
    truststore_type: str = "PEM"
    truststore_location: str | None = None
    truststore_password: str | None = attrs.field(default=None, repr=False)
    truststore_certificates: str | None = attrs.field(default=None, repr=False)
    client_auth: str = "none"
    """A server's demand for certificates of clients: `none`, `requested` or `required`."""
    protocols: tuple[str, ...] = ("TLSv1.2", "TLSv1.3")
    ciphers: tuple[str, ...] = ()
    """Java's cipher names; if empty, the library chooses."""
    allow_dn_changes: bool = False
    allow_san_changes: bool = False
    """True if a running node may change to a certificate with other names."""
    check_host: bool = True
    """True if a client checks that the server's certificate has the host name to which the client has connected."""

    @property
    def files(self) -> tuple[str, ...]:
        """The paths of all files in these settings. A node watches them for changes."""
        named = (self.keystore_location, self.keystore_key_location, self.truststore_location)
        return tuple(each for each in named if each)


class TlsSession(Protocol):
    """The TLS state of one connection. It does no IO."""

    @property
    def outgoing(self) -> int:
        """The number of encrypted bytes that wait for `take`."""

    @property
    def has_unread(self) -> bool:
        """True if `read_into` may return bytes without another `feed`."""

    def feed(self, data: Buffer) -> None:
        """Add encrypted bytes that were received. Empty `data` means that the peer sends no more bytes."""

    def take(self) -> bytes:
        """Return the encrypted bytes that must be sent now, and remove them."""

    def handshake(self) -> bool:
        """Continue the handshake; return True once it is done. A call may take a millisecond. Raises `TlsFailed`."""

    def read_into(self, buffer: memoryview) -> int | None:
        """Read decrypted bytes into `buffer`. Return their number: 0 at the end of the stream, None if more bytes
        must be fed first. Raises `TlsFailed`.
        """

    def read_records(self, count: int, buffer: memoryview, begin: int) -> tuple[int, int, TlsFailed | bool]:
        """Read the decrypted bytes of `count` complete TLS records into `buffer`, from index `begin` on.

        Returns three values: the index after the bytes, the number of reads that returned bytes, and True if
        the stream has ended.

        The method stops early if the buffer is full, or at a record without data. If TLS has failed, the
        third value is the `TlsFailed` instead. It is not raised, because the bytes before the failure are
        valid.
        """

    def write(self, data: Buffer) -> None:
        """Encrypt bytes, which `take` then returns. Raises `TlsFailed`."""

    @property
    def asks_for_certificate(self) -> bool:
        """True if the peer may send a certificate, whose check takes much time."""

    def finish(self) -> None:
        """Announce that nothing more will be sent (close_notify). `take` then returns the bytes to send. This never
        fails.
        """

    def peer_certificate(self) -> bytes | None:
        """Return the peer's certificate as DER; None if the peer has sent none."""


class Tls(Protocol):
    """The loaded keys and rules of one side of TLS connections."""

    def server_session(self) -> TlsSession: ...

    def client_session(self, host: str) -> TlsSession:
        """Make a client's session. The server's certificate must have the name `host`."""

    @property
    def expires_at(self) -> float | None:
        """The time at which the first of this side's own certificates expires, in Unix seconds; None if it has no
        certificate.
        """

    def check(self, settings: TlsSettings) -> None:
        """Check that `reload` could use these settings, and that Kafka's rules allow the change. It blocks, so only
        workers may call it.

        Raises `TlsRefused`.
        """

    def reload(self, settings: TlsSettings | None = None) -> bool:
        """Use other settings, or read the files again if they have changed. It blocks, so only workers may call it.

        Returns True if new sessions use new keys; open sessions do not change. Raises `TlsRefused`, and keeps the old
        keys. A broken state of the files is reported only once.
        """


OpenTls: TypeAlias = Callable[[TlsSettings], Tls]
"""A function that reads the files of TLS settings and returns a `Tls`. Raises `TlsRefused`."""
