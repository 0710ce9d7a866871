"""The port to TLS: settings in the form of Kafka's keys, and a session that encrypts and decrypts bytes.

`odradek.env.real_tls` implements it by Python's `ssl`. A session does no IO: encrypted bytes go in and come out, and
the owner of the socket moves them. This module is a leaf that every package may import.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

import attrs

from odradek.env.ports import Buffer

__all__ = ["OpenTls", "Tls", "TlsFailed", "TlsRefused", "TlsSession", "TlsSettings"]


class TlsRefused(Exception):
    """Settings that cannot be used: a missing file, a wrong password, an unknown cipher. The text has no secrets."""


class TlsFailed(Exception):
    """A handshake, or later bytes, broke the rules of TLS. The connection cannot be used any more."""


@attrs.frozen(kw_only=True)
class TlsSettings:
    """One end's keys and rules. A store has the type `PEM` or `PKCS12`, and is a file or PEM text."""

    keystore_type: str = "PEM"
    keystore_location: str | None = None
    keystore_password: str | None = attrs.field(default=None, repr=False)
    key_password: str | None = attrs.field(default=None, repr=False)
    keystore_key: str | None = attrs.field(default=None, repr=False)
    keystore_chain: str | None = attrs.field(default=None, repr=False)
    keystore_key_location: str | None = None
    """A PEM file with the private key, if `keystore_location` has only its certificates."""
    truststore_type: str = "PEM"
    truststore_location: str | None = None
    truststore_password: str | None = attrs.field(default=None, repr=False)
    truststore_certificates: str | None = attrs.field(default=None, repr=False)
    client_auth: str = "none"
    """The certificate that a server asks of clients: `none`, `requested` or `required`."""
    protocols: tuple[str, ...] = ("TLSv1.2", "TLSv1.3")
    ciphers: tuple[str, ...] = ()
    """Java's names; empty: the library's choice."""
    allow_dn_changes: bool = False
    allow_san_changes: bool = False
    """True if a change in a running node may give the certificate other names."""
    check_host: bool = True
    """True if a client checks that the server's certificate has the name that it connected to."""

    @property
    def files(self) -> tuple[str, ...]:
        """The files that these settings name. A node watches them for changes."""
        named = (self.keystore_location, self.keystore_key_location, self.truststore_location)
        return tuple(each for each in named if each)


class TlsSession(Protocol):
    """One connection's encryption, without IO."""

    @property
    def outgoing(self) -> int:
        """Encrypted bytes that wait to be taken (`take`)."""

    @property
    def has_unread(self) -> bool:
        """True if `read_into` may give bytes without another `feed`."""

    def feed(self, data: Buffer) -> None:
        """Take encrypted bytes in; empty: the peer sends no more."""

    def take(self) -> bytes:
        """Take the encrypted bytes that are to be sent now."""

    def handshake(self) -> bool:
        """Go on with the handshake; true once it is done. May cost a millisecond. Raises `TlsFailed`."""

    def read_into(self, buffer: memoryview) -> int | None:
        """Read plain bytes; returns 0 at the end of the stream, None where more must be fed. Raises `TlsFailed`."""

    def read_records(self, count: int, buffer: memoryview, begin: int) -> tuple[int, int, TlsFailed | bool]:
        """Put the plain bytes of `count` whole records into the buffer from `begin` on.

        Returns the place where they end, the number of reads that gave bytes, and whether the stream has ended.

        It stops at a full buffer, and at records without plain bytes. A failure is returned in the place of the last
        value, because it comes after the bytes.
        """

    def write(self, data: Buffer) -> None:
        """Encrypt plain bytes, for `take`. Raises `TlsFailed`."""

    @property
    def asks_for_certificate(self) -> bool:
        """True if the peer may show a certificate, whose check costs much."""

    def finish(self) -> None:
        """Announce that nothing more will be sent (close_notify); `take` returns its bytes. Never fails."""

    def peer_certificate(self) -> bytes | None:
        """Return the peer's certificate as DER; None if the peer has sent none."""


class Tls(Protocol):
    """The keys and rules of one end of TLS connections, ready for use."""

    def server_session(self) -> TlsSession: ...

    def client_session(self, host: str) -> TlsSession:
        """Begin a client's session; the server's certificate must have the name `host`."""

    @property
    def expires_at(self) -> float | None:
        """The time at which the first of its own certificates expires, in Unix seconds; None if it shows no certificate."""

    def check(self, settings: TlsSettings) -> None:
        """Check that `reload` could use these settings, and that Kafka's rules allow the change. Blocks, so only
        workers call it. Raises `TlsRefused`.

        Raises `TlsRefused`.
        """

    def reload(self, settings: TlsSettings | None = None) -> bool:
        """Take other settings, or read the files again if they have changed. Blocks: for workers.

        Returns whether new sessions use new keys; open sessions stay as they are. Raises `TlsRefused`, and keeps the
        old keys; a broken state of the files is reported once.
        """


OpenTls: TypeAlias = Callable[[TlsSettings], Tls]
"""Makes `Tls` of settings. Raises `TlsRefused`. Reads files."""
