"""TLS of this machine: Python's `ssl` with buffers in memory, allowed versions and ciphers, and keys read again
after a change. SHELL.

Java's names of ciphers are translated; a list that cannot be applied exactly is refused. `odradek.env.tls_stores`
reads keys and certificates.
"""

from __future__ import annotations

import os
import ssl
from contextlib import suppress
from typing import cast

import attrs

from odradek.env.ports import Buffer
from odradek.env.tls_ports import TlsFailed, TlsRefused, TlsSettings
from odradek.env.tls_stores import KeyStore, load_key, load_trust, read_key, tls_reason

__all__ = ["RealTls", "RealTlsSession", "open_tls"]

_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_OF_TLS_1_3 = frozenset({"TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256"})
_CLIENT_AUTH = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


def open_tls(settings: TlsSettings) -> RealTls:
    """Load the keys and certificates of these settings. Raises `TlsRefused`."""
    return RealTls(settings)


class RealTls:
    """Implements `odradek.env.tls_ports.Tls`. The SSL contexts are replaced only when the files have changed."""

    def __init__(self, settings: TlsSettings) -> None:
        self._seen = _state_of(settings)
        self._settings = settings
        self._ends = _Ends.made(settings)

    def server_session(self) -> RealTlsSession:
        assert self._ends.server is not None, "a server must have a certificate"
        return RealTlsSession(self._ends.server, server_side=True, host=None)

    def client_session(self, host: str) -> RealTlsSession:
        return RealTlsSession(self._ends.client, server_side=False, host=host)

    @property
    def expires_at(self) -> float | None:
        return None if self._ends.key is None else self._ends.key.expires_at

    def check(self, settings: TlsSettings) -> None:
        ends = _Ends.made(settings)
        if ends.key is not None and self._ends.key is not None:
            ends.key.check_successor(self._ends.key, settings)

    def reload(self, settings: TlsSettings | None = None) -> bool:
        wanted = self._settings if settings is None else settings
        state = _state_of(wanted)
        if (wanted, state) == (self._settings, self._seen):
            return False
        # Remember the state even if loading fails, so that a broken state is reported only once.
        self._settings, self._seen = wanted, state
        self._ends = _Ends.made(wanted)
        return True


@attrs.frozen
class _Ends:
    """The contexts for client and server sessions, and their private key."""

    server: ssl.SSLContext | None
    client: ssl.SSLContext
    key: KeyStore | None

    @classmethod
    def made(cls, settings: TlsSettings) -> _Ends:
        """Make the contexts for client and server sessions. Raises `TlsRefused`."""
        if not (settings.keystore_location or settings.keystore_key):
            return cls(None, _client_context(settings, None), None)
        key = read_key(settings)
        return cls(_server_context(settings, key), _client_context(settings, key), key)


def _state_of(settings: TlsSettings) -> tuple[tuple[int, int, int] | None, ...]:
    """Return (modification time, size, inode) of each file of these settings, None for a missing file. These
    values change when a file is written or replaced.
    """
    found: list[tuple[int, int, int] | None] = []
    for path in settings.files:
        try:
            status = os.stat(path)
            found.append((status.st_mtime_ns, status.st_size, status.st_ino))
        except OSError:
            found.append(None)
    return tuple(found)


class RealTlsSession:
    """Implements `odradek.env.tls_ports.TlsSession` with `ssl.SSLObject`."""

    __slots__ = ("_incoming", "_is_hungry", "_outgoing", "_tls")

    def __init__(self, context: ssl.SSLContext, *, server_side: bool, host: str | None) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side, host)
        self._is_hungry = True

    @property
    def outgoing(self) -> int:
        return self._outgoing.pending

    @property
    def has_unread(self) -> bool:
        return not self._is_hungry

    def feed(self, data: Buffer) -> None:
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()
        self._is_hungry = False

    def take(self) -> bytes:
        return self._outgoing.read()

    def handshake(self) -> bool:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except (ssl.SSLError, OSError, ValueError) as error:
            raise TlsFailed(tls_reason(error)) from error
        return True

    def read_into(self, buffer: memoryview) -> int | None:
        try:
            return cast("int", self._tls.read(len(buffer), buffer))
        except ssl.SSLWantReadError:
            self._is_hungry = True
            return None
        except ssl.SSLZeroReturnError:
            return 0
        except (ssl.SSLError, OSError, ValueError) as error:
            raise _failure(error) from error

    def read_records(self, count: int, buffer: memoryview, begin: int) -> tuple[int, int, TlsFailed | bool]:
        # Read in a tight loop. If a client sends dozens of small records, one more Python call per record
        # would take a tenth of the whole time.
        read, filled, room, reads = self._tls.read, begin, len(buffer), 0
        try:
            while reads < count:
                size = cast("int", read(room, buffer[filled:]))
                if not size:
                    return filled, reads, True
                filled += size
                reads += 1
                if filled == room:
                    break
        except ssl.SSLWantReadError:
            self._is_hungry = True
        except ssl.SSLZeroReturnError:
            return filled, reads, True
        except (ssl.SSLError, OSError, ValueError) as error:
            return filled, reads, _failure(error)
        return filled, reads, False

    def write(self, data: Buffer) -> None:
        try:
            taken = self._tls.write(data)
        except (ssl.SSLError, OSError, ValueError) as error:
            raise TlsFailed(tls_reason(error)) from error
        assert taken == len(data), "a TLS buffer in memory must take all bytes"

    @property
    def asks_for_certificate(self) -> bool:
        return self._tls.context.verify_mode != ssl.CERT_NONE

    def finish(self) -> None:
        with suppress(ssl.SSLError, OSError, ValueError):
            self._tls.unwrap()

    def peer_certificate(self) -> bytes | None:
        return self._tls.getpeercert(binary_form=True)


def _failure(error: Exception) -> TlsFailed:
    """Make a `TlsFailed` from the exception of a failed read."""
    if isinstance(error, ssl.SSLEOFError):
        return TlsFailed("the peer cut the TLS stream off: the stream ended without close_notify")
    return TlsFailed(tls_reason(error))


def _server_context(settings: TlsSettings, key: KeyStore) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _limit(context, settings)
    load_key(context, key)
    context.verify_mode = _CLIENT_AUTH[settings.client_auth]
    if settings.client_auth != "none":
        _load_anchors(context, settings)
        # Session tickets are off, because a resumed session would accept a certificate that has expired since
        # the first session. Python cannot switch off the ids of sessions in TLS 1.2, by which clients resume them, too.
        # So the owner of the connection checks the validity after each handshake.
        context.options |= ssl.OP_NO_TICKET
        context.num_tickets = 0
    return context


def _client_context(settings: TlsSettings, key: KeyStore | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = settings.check_host
    _limit(context, settings)
    _load_anchors(context, settings)
    if key is not None:
        load_key(context, key)
    return context


def _load_anchors(context: ssl.SSLContext, settings: TlsSettings) -> None:
    load_trust(context, settings)
    # As in Java, each certificate of the truststore is trusted by itself, not only self-signed authorities.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN


def _limit(context: ssl.SSLContext, settings: TlsSettings) -> None:
    """Set the allowed protocol versions and ciphers of a context. Raises `TlsRefused` for values that OpenSSL does
    not support.
    """
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    versions = sorted({_version(each) for each in settings.protocols})
    if not versions:
        raise TlsRefused("ssl.enabled.protocols is empty")
    named = [each for each in settings.ciphers if each in _OF_TLS_1_3]
    older = [each for each in settings.ciphers if each not in _OF_TLS_1_3]
    if settings.ciphers:
        if not named:
            versions = [each for each in versions if each != ssl.TLSVersion.TLSv1_3]
        elif ssl.TLSVersion.TLSv1_3 in versions and set(named) != _OF_TLS_1_3:
            raise TlsRefused(
                f"ssl.cipher.suites must name all of {', '.join(sorted(_OF_TLS_1_3))}, or none of "
                "them: Python's ssl cannot switch off only some of them"
            )
        if not older:
            versions = [each for each in versions if each == ssl.TLSVersion.TLSv1_3]
        if not versions:
            raise TlsRefused("ssl.cipher.suites names no suite for the versions in ssl.enabled.protocols")
    if older:
        _choose_ciphers(context, older)
    context.minimum_version, context.maximum_version = versions[0], versions[-1]


def _choose_ciphers(context: ssl.SSLContext, names: list[str]) -> None:
    """Set these ciphers for TLSv1.2, in this order. Raises `TlsRefused` if OpenSSL would ignore one of them."""
    wanted = {_openssl_name(each): each for each in names}
    known = set()
    with suppress(ssl.SSLError):
        context.set_ciphers(":".join(wanted))
        known = {each["name"] for each in context.get_ciphers()}
    missing = [java for name, java in wanted.items() if name not in known]
    if missing:
        raise TlsRefused(
            f"ssl.cipher.suites names {', '.join(missing)}, which this machine's OpenSSL lacks: remove "
            "the name"
        )


def _version(name: str) -> ssl.TLSVersion:
    if name not in _VERSIONS:
        raise TlsRefused(f"ssl.enabled.protocols names {name}, which is not one of {', '.join(_VERSIONS)}")
    return _VERSIONS[name]


def _openssl_name(java: str) -> str:
    """Translate Java's name of a cipher to OpenSSL's: `TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256` becomes
    `ECDHE-RSA-AES128-GCM-SHA256`.
    """
    exchange, _, cipher = java.removeprefix("TLS_").partition("_WITH_")
    if not cipher:
        raise TlsRefused(f"ssl.cipher.suites names {java}, which is not a Java name of a cipher suite")
    if exchange.startswith("DH"):
        raise TlsRefused(
            f"ssl.cipher.suites names {java}, which cannot be used here: name the corresponding suite "
            "with ECDHE"
        )
    for size in ("128", "256"):
        cipher = cipher.replace(f"AES_{size}", f"AES{size}").replace(f"AES{size}_CBC", f"AES{size}")
    cipher = cipher.removesuffix("_SHA256") if "CHACHA20" in cipher else cipher
    exchange = "" if exchange == "RSA" else exchange + "-"
    return (exchange + cipher).replace("_", "-")
