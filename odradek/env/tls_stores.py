"""Reads key stores and trust stores: PEM files, PEM texts in the configuration, PKCS12 files. SHELL.

A private key is passed to OpenSSL through a file in memory (memfd), so it is never written to a disk. A file
is read only once. So the key and the certificates come from the same version of the file, even if the file is
being replaced.
"""

from __future__ import annotations

import os
import re
import ssl
import stat
from collections.abc import Iterator
from contextlib import contextmanager

import attrs
from cryptography import x509
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat
from cryptography.hazmat.primitives.serialization.pkcs12 import PKCS12KeyAndCertificates, load_pkcs12

from odradek.env.tls_ports import TlsRefused, TlsSettings

__all__ = ["KeyStore", "load_key", "load_trust", "read_key", "tls_reason"]

STORE_BYTES_MAX = 4 << 20
"""The largest size of a store in bytes."""
_PEM = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----", re.DOTALL)
_LINE_CHARS = 64


@attrs.frozen
class KeyStore:
    """A private key and its certificate chain, the certificate of the key first."""

    where: str
    """The path of the file, or the configuration key that contains the store."""
    pem: bytes = attrs.field(repr=False)
    password: str = attrs.field(repr=False)
    chain: tuple[x509.Certificate, ...]

    @property
    def expires_at(self) -> float:
        """The time at which the first of the certificates expires, in Unix seconds."""
        return min(each.not_valid_after_utc.timestamp() for each in self.chain)

    def check_successor(self, before: KeyStore, settings: TlsSettings) -> None:
        """Check the new certificate of a running broker by Kafka's rule: it must have the same names as the
        old certificate `before`. Configuration keys may allow other names.

        Raises `TlsRefused`.
        """
        own, former = self.chain[0], before.chain[0]
        if own.subject != former.subject and not settings.allow_dn_changes:
            raise TlsRefused(
                f"{self.where}: the new certificate changes the distinguished name from "
                f"{former.subject.rfc4514_string()!r} to {own.subject.rfc4514_string()!r}; "
                "ssl.allow.dn.changes=true allows that"
            )
        if not _names(former) <= _names(own) and not settings.allow_san_changes:
            missing = ", ".join(sorted(str(each.value) for each in _names(former) - _names(own)))
            raise TlsRefused(
                f"{self.where}: the new certificate lacks the former certificate's names {missing}; "
                "ssl.allow.san.changes=true allows that"
            )


def _names(certificate: x509.Certificate) -> frozenset[x509.GeneralName]:
    """Return the subject alternative names of a certificate."""
    try:
        return frozenset(certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except x509.ExtensionNotFound:
        return frozenset()


def read_key(settings: TlsSettings) -> KeyStore:
    """Read the private key and the certificates to which these settings refer. The settings must have a key
    store. Raises `TlsRefused`.
    """
    where = settings.keystore_location or "ssl.keystore.key"
    try:
        if settings.keystore_key is not None:
            pem = _unfolded(f"{settings.keystore_key}\n{settings.keystore_chain or ''}")
            password = settings.key_password or ""
        elif settings.keystore_type == "PEM":
            pem = _read(where)
            if settings.keystore_key_location is not None:
                where = f"{settings.keystore_key_location} with {where}"
                pem = _read(settings.keystore_key_location) + b"\n" + pem
            password = settings.key_password or settings.keystore_password or ""
        else:
            password = os.urandom(16).hex()
            pem = _pem_of(_pkcs12(where, settings.keystore_password), where, password)
        chain = x509.load_pem_x509_certificates(pem)
    except (OSError, ValueError) as error:
        raise TlsRefused(
            f"{where} does not contain a key that matches its certificate ({tls_reason(error)})"
        ) from error
    return KeyStore(where, pem, password, tuple(chain))


def load_key(context: ssl.SSLContext, key: KeyStore) -> None:
    """Load this key into a context. Raises `TlsRefused`."""
    try:
        with _in_memory(key.pem) as path:
            context.load_cert_chain(path, password=key.password)
    except (OSError, ValueError) as error:
        raise TlsRefused(
            f"{key.where} does not contain a key that matches its certificate ({tls_reason(error)})"
        ) from error


def load_trust(context: ssl.SSLContext, settings: TlsSettings) -> None:
    """Load the truststore into a context. Without a truststore, load the system's trusted authorities, as in
    Java. Raises `TlsRefused`.
    """
    where = settings.truststore_location or "ssl.truststore.certificates"
    try:
        if settings.truststore_certificates is not None:
            pem = _unfolded(settings.truststore_certificates)
        elif settings.truststore_location is None:
            context.load_default_certs()
            return
        elif settings.truststore_type == "PEM":
            pem = _read(where)
        else:
            found = _pkcs12(where, settings.truststore_password).additional_certs
            pem = b"".join(each.certificate.public_bytes(Encoding.PEM) for each in found)
        trusted = x509.load_pem_x509_certificates(pem) if pem else []
        if not trusted:
            raise TlsRefused(f"{where} contains no certificates")
        context.load_verify_locations(cadata=b"".join(each.public_bytes(Encoding.DER) for each in trusted))
    except (OSError, ValueError) as error:
        raise TlsRefused(f"{where} does not contain usable certificates ({tls_reason(error)})") from error


def tls_reason(error: Exception) -> str:
    """Return OpenSSL's reason for a failure, without the file and line of its C code."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate refused: {error.verify_message}"
    return str(getattr(error, "reason", None) or error)


def _read(path: str) -> bytes:
    # A client that may change a running broker's configuration may name any path, even a pipe. Opening that
    # path must not block a worker for ever.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("the path does not name a regular file")
        data = file.read(STORE_BYTES_MAX + 1)
    if len(data) > STORE_BYTES_MAX:
        raise ValueError(f"the file has more than {STORE_BYTES_MAX} bytes")
    return data


def _pkcs12(path: str, password: str | None) -> PKCS12KeyAndCertificates:
    return load_pkcs12(_read(path), None if password is None else password.encode())


def _pem_of(store: PKCS12KeyAndCertificates, where: str, password: str) -> bytes:
    """Encode the key, encrypted with a password, and its certificates as PEM."""
    if store.key is None or store.cert is None:
        raise TlsRefused(f"{where} does not contain both a key and its certificate")
    encryption = BestAvailableEncryption(password.encode())
    chain = [store.cert, *store.additional_certs]
    return store.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption) + b"".join(
        each.certificate.public_bytes(Encoding.PEM) for each in chain
    )


def _unfolded(text: str) -> bytes:
    """Restore the line breaks of a PEM text, which may be on one line with spaces in a properties file."""
    found = []
    for match in _PEM.finditer(text):
        if ":" in match[2]:
            # This PEM text has the headers of an old encrypted key. If it is on one line, the headers' line
            # breaks cannot be restored.
            found.append(match[0])
            continue
        body = "".join(match[2].split())
        lines = [body[at : at + _LINE_CHARS] for at in range(0, len(body), _LINE_CHARS)]
        found.append("\n".join((f"-----BEGIN {match[1]}-----", *lines, f"-----END {match[1]}-----")))
    return "\n".join((*found, "")).encode()


@contextmanager
def _in_memory(data: bytes) -> Iterator[str]:
    """Yield a path from which OpenSSL can read these bytes; they are in memory, not on a disk."""
    descriptor = os.memfd_create("odradek-tls", os.MFD_CLOEXEC)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
