"""TLS of this machine (SHELL): Python's `ssl` over memory, certificates from PEM or PKCS12.

Private keys of the configuration, or of a PKCS12 file, come to OpenSSL through a file in memory (memfd). No disk has
them. Java's names of ciphers are mapped; a list that cannot be honoured is refused.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
)
from cryptography.hazmat.primitives.serialization.pkcs12 import PKCS12KeyAndCertificates, load_pkcs12

from odradek.env.ports import Buffer
from odradek.env.tls_ports import TlsFailed, TlsRefused, TlsSettings

__all__ = ["RealTls", "RealTlsSession", "open_tls"]

_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_OF_TLS_1_3 = frozenset({"TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256"})
_CLIENT_AUTH = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
_READ_BYTES = 16_384
_ATTRIBUTES = {
    x509.NameOID.COMMON_NAME: "CN",
    x509.NameOID.ORGANIZATIONAL_UNIT_NAME: "OU",
    x509.NameOID.ORGANIZATION_NAME: "O",
    x509.NameOID.LOCALITY_NAME: "L",
    x509.NameOID.STATE_OR_PROVINCE_NAME: "ST",
    x509.NameOID.COUNTRY_NAME: "C",
    x509.NameOID.STREET_ADDRESS: "STREET",
    x509.NameOID.DOMAIN_COMPONENT: "DC",
    x509.NameOID.USER_ID: "UID",
}
"""Java's keywords (RFC 2253); other attributes it prints by number, with their value in hexadecimal."""


def open_tls(settings: TlsSettings) -> RealTls:
    """Raises `TlsRefused`."""
    return RealTls(settings)


class RealTls:
    """`odradek.env.tls_ports.Tls`. Contexts are made once for each state of the files."""

    def __init__(self, settings: TlsSettings) -> None:
        self._settings = settings
        self._seen = self._state_of_files()
        self._server: ssl.SSLContext | None = None
        self._client: ssl.SSLContext | None = None
        if settings.keystore_location or settings.keystore_key:
            self._server = _server_context(settings)
        self._client = _client_context(settings)

    def server_session(self) -> RealTlsSession:
        assert self._server is not None, "a server has a certificate"
        return RealTlsSession(self._server, server_side=True, host=None)

    def client_session(self, host: str) -> RealTlsSession:
        assert self._client is not None
        return RealTlsSession(self._client, server_side=False, host=host)

    def reload(self) -> bool:
        state = self._state_of_files()
        if state == self._seen:
            return False
        self._seen = state
        fresh = RealTls(self._settings)
        self._server, self._client = fresh._server, fresh._client
        return True

    def _state_of_files(self) -> tuple[tuple[int, int, int] | None, ...]:
        """What changes when a file is written, or replaced by another."""
        found: list[tuple[int, int, int] | None] = []
        for path in self._settings.files:
            try:
                status = os.stat(path)
                found.append((status.st_mtime_ns, status.st_size, status.st_ino))
            except OSError:
                found.append(None)
        return tuple(found)


class RealTlsSession:
    """`odradek.env.tls_ports.TlsSession` by `ssl.SSLObject`."""

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
            raise TlsFailed(_reason(error)) from error
        return True

    def read_into(self, buffer: memoryview) -> int | None:
        try:
            return cast("int", self._tls.read(len(buffer), buffer))
        except ssl.SSLWantReadError:
            self._is_hungry = True
            return None
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            return 0
        except (ssl.SSLError, OSError, ValueError) as error:
            raise TlsFailed(_reason(error)) from error

    def write(self, data: Buffer) -> None:
        try:
            taken = self._tls.write(data)
        except (ssl.SSLError, OSError, ValueError) as error:
            raise TlsFailed(_reason(error)) from error
        assert taken == len(data), "memory takes everything"

    def peer_name(self) -> str | None:
        der = self._tls.getpeercert(binary_form=True)
        return None if der is None else distinguished_name(x509.load_der_x509_certificate(der).subject)


def distinguished_name(name: x509.Name) -> str:
    """A name as Java's `X500Principal.getName()` prints it: RFC 2253, the most specific part first."""
    return ",".join("+".join(_attribute(each) for each in part) for part in reversed(name.rdns))


def _attribute(attribute: x509.NameAttribute[str | bytes]) -> str:
    keyword = _ATTRIBUTES.get(attribute.oid)
    value = attribute.value
    if keyword is None or isinstance(value, bytes):
        # As Java: the value's DER, which for these is a UTF8String or IA5String.
        raw = value if isinstance(value, bytes) else value.encode()
        tag = (
            b"\x16"
            if attribute.oid == x509.NameOID.EMAIL_ADDRESS
            else b"\x13"
            if value_is_printable(value)
            else b"\x0c"
        )
        return f"{attribute.oid.dotted_string}=#{(tag + bytes([len(raw)]) + raw).hex()}"
    text = "".join("\\" + char if char in ',+"\\<>;=' else char for char in value)
    if text[:1] in (" ", "#"):
        text = "\\" + text
    if text.endswith(" ") and len(value) > 1:
        text = text[:-1] + "\\ "
    return f"{keyword}={text}"


def value_is_printable(value: str | bytes) -> bool:
    """True if ASN.1's PrintableString can hold it."""
    return isinstance(value, str) and all(
        char.isascii() and (char.isalnum() or char in " '()+,-./:=?") for char in value
    )


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate refused: {error.verify_message}"
    return str(getattr(error, "reason", None) or error)


def _server_context(settings: TlsSettings) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _limit(context, settings)
    _load_key(context, settings)
    context.verify_mode = _CLIENT_AUTH[settings.client_auth]
    if settings.client_auth != "none":
        _load_trust(context, settings)
    return context


def _client_context(settings: TlsSettings) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = settings.check_host
    _limit(context, settings)
    _load_trust(context, settings)
    if settings.keystore_location or settings.keystore_key:
        _load_key(context, settings)
    return context


def _limit(context: ssl.SSLContext, settings: TlsSettings) -> None:
    """The protocols and ciphers. Raises `TlsRefused` for a choice that OpenSSL does not leave us."""
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
                f"ssl.cipher.suites must have all of {', '.join(sorted(_OF_TLS_1_3))}, or none of them: Python's ssl "
                "cannot choose among those of TLSv1.3"
            )
        if not older:
            versions = [each for each in versions if each == ssl.TLSVersion.TLSv1_3]
        if not versions:
            raise TlsRefused("ssl.cipher.suites has none for ssl.enabled.protocols")
    if older:
        try:
            context.set_ciphers(":".join(map(_openssl_name, older)))
        except ssl.SSLError as error:
            raise TlsRefused(f"ssl.cipher.suites: none of {', '.join(older)} is known here") from error
    context.minimum_version, context.maximum_version = versions[0], versions[-1]


def _version(name: str) -> ssl.TLSVersion:
    if name not in _VERSIONS:
        raise TlsRefused(f"ssl.enabled.protocols: {name} is none of {', '.join(_VERSIONS)}")
    return _VERSIONS[name]


def _openssl_name(java: str) -> str:
    """`TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256` is `ECDHE-RSA-AES128-GCM-SHA256` to OpenSSL."""
    exchange, _, cipher = java.removeprefix("TLS_").partition("_WITH_")
    if not cipher:
        raise TlsRefused(f"ssl.cipher.suites: {java} is no name of Java's")
    for size in ("128", "256"):
        cipher = cipher.replace(f"AES_{size}", f"AES{size}").replace(f"AES{size}_CBC", f"AES{size}")
    cipher = cipher.removesuffix("_SHA256") if "CHACHA20" in cipher else cipher
    exchange = "" if exchange == "RSA" else exchange + "-"
    return (exchange + cipher).replace("_", "-")


def _load_key(context: ssl.SSLContext, settings: TlsSettings) -> None:
    """Raises `TlsRefused`."""
    password = settings.key_password or settings.keystore_password
    try:
        if settings.keystore_key is not None:
            text = f"{settings.keystore_key}\n{settings.keystore_chain or ''}"
            with _in_memory(_unfolded(text)) as path:
                context.load_cert_chain(path, password=settings.key_password or "")
        elif settings.keystore_type == "PEM":
            assert settings.keystore_location is not None
            context.load_cert_chain(settings.keystore_location, password=password or "")
        else:
            assert settings.keystore_location is not None
            store = _pkcs12(settings.keystore_location, settings.keystore_password)
            if store.key is None or store.cert is None:
                raise TlsRefused(f"{settings.keystore_location} has no key with its certificate")
            once = os.urandom(16).hex().encode()
            pem = store.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(once))
            chain = [store.cert, *store.additional_certs]
            pem += b"".join(each.certificate.public_bytes(Encoding.PEM) for each in chain)
            with _in_memory(pem) as path:
                context.load_cert_chain(path, password=once)
    except (OSError, ValueError) as error:
        where = settings.keystore_location or "ssl.keystore.key"
        raise TlsRefused(
            f"{where}: cannot use it as a key with its certificate ({_reason(error)})"
        ) from error


def _load_trust(context: ssl.SSLContext, settings: TlsSettings) -> None:
    """The authorities to believe; without a truststore those of the system, as in Java. Raises `TlsRefused`."""
    where = settings.truststore_location or "ssl.truststore.certificates"
    try:
        if settings.truststore_certificates is not None:
            context.load_verify_locations(cadata=_unfolded(settings.truststore_certificates).decode())
        elif settings.truststore_location is None:
            context.load_default_certs()
        elif settings.truststore_type == "PEM":
            context.load_verify_locations(settings.truststore_location)
        else:
            store = _pkcs12(settings.truststore_location, settings.truststore_password)
            found = [each.certificate for each in store.additional_certs]
            context.load_verify_locations(
                cadata=b"".join(each.public_bytes(Encoding.PEM) for each in found).decode()
            )
    except (OSError, ValueError) as error:
        raise TlsRefused(f"{where}: cannot use it as trusted certificates ({_reason(error)})") from error


def _pkcs12(path: str, password: str | None) -> PKCS12KeyAndCertificates:
    with open(path, "rb") as file:
        return load_pkcs12(file.read(), None if password is None else password.encode())


def _unfolded(text: str) -> bytes:
    """PEM as it stands in a properties file, perhaps on one line with blanks: with its lines again."""
    if "\n" in text.strip():
        return text.encode()
    words = text.replace("-----BEGIN ", "\n-----BEGIN_").replace("-----END ", "\n-----END_").split()
    joined = "\n".join(words).replace("_", " ")
    for kind in ("PRIVATE", "RSA", "EC", "ENCRYPTED"):
        joined = joined.replace(f"{kind}\n", f"{kind} ")
    return joined.encode()


@contextmanager
def _in_memory(data: bytes) -> Iterator[str]:
    """A path under which OpenSSL reads these bytes, which are on no disk."""
    descriptor = os.memfd_create("odradek-tls", os.MFD_CLOEXEC)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
