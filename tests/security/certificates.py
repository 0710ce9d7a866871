"""Certificate authorities and certificates for tests, with any name and validity."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)

DAY = datetime.timedelta(days=1)
PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


def named(common_name: str) -> x509.Name:
    """Make a name of one attribute."""
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common_name)])


@attrs.frozen
class Issued:
    """A key with its certificate, and the certificates of its authorities."""

    key: PrivateKey
    certificate: x509.Certificate
    above: tuple[x509.Certificate, ...] = ()

    def key_pem(self, password: str | None = None) -> str:
        encryption = NoEncryption() if password is None else BestAvailableEncryption(password.encode())
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption).decode()

    @property
    def chain_pem(self) -> str:
        return "".join(each.public_bytes(Encoding.PEM).decode() for each in (self.certificate, *self.above))

    def write(self, path: Path) -> str:
        """Write key and certificates to one file atomically. Return the path."""
        fresh = path.with_suffix(".fresh")
        fresh.write_text(self.key_pem() + self.chain_pem)
        fresh.replace(path)
        return str(path)


@attrs.define
class Authority:
    """An authority that signs certificates. By default its own certificate is self-signed."""

    own: Issued = attrs.field(factory=lambda: _signed(named("authority"), None, is_authority=True))

    @property
    def pem(self) -> str:
        return self.own.chain_pem

    def write(self, path: Path) -> str:
        """Write the certificate to a file. Return the path."""
        path.write_text(self.pem)
        return str(path)

    def issue(
        self,
        subject: x509.Name | str,
        hosts: Sequence[str] = (),
        *,
        days: tuple[float, float] = (-1, 365),
        with_rsa: bool = False,
    ) -> Issued:
        """Issue a certificate that is valid between these days from now."""
        name = named(subject) if isinstance(subject, str) else subject
        return _signed(name, self.own, hosts, days, with_rsa=with_rsa)


def self_signed(subject: str, hosts: Sequence[str] = ()) -> Issued:
    """Make a self-signed certificate."""
    return _signed(named(subject), None, hosts)


def _signed(
    name: x509.Name,
    issuer: Issued | None,
    hosts: Sequence[str] = (),
    days: tuple[float, float] = (-1, 365),
    *,
    is_authority: bool = False,
    with_rsa: bool = False,
) -> Issued:
    key: PrivateKey = (
        rsa.generate_private_key(65537, 2048) if with_rsa else ec.generate_private_key(ec.SECP256R1())
    )
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name if issuer is None else issuer.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + days[0] * DAY)
        .not_valid_after(now + days[1] * DAY)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
    )
    if hosts:
        builder = builder.add_extension(
            x509.SubjectAlternativeName([_general_name(each) for each in hosts]), critical=False
        )
    signer = key if issuer is None else issuer.key
    for extension, is_critical in _strict_extensions(key.public_key(), signer.public_key(), is_authority):
        builder = builder.add_extension(extension, is_critical)
    return Issued(key, builder.sign(signer, hashes.SHA256()), () if issuer is None else (issuer.certificate,))


def _strict_extensions(
    own: ec.EllipticCurvePublicKey | rsa.RSAPublicKey,
    signers: ec.EllipticCurvePublicKey | rsa.RSAPublicKey,
    is_authority: bool,
) -> Iterator[tuple[x509.ExtensionType, bool]]:
    """Yield the extensions that RFC 5280 demands and that default contexts check since Python 3.13. With each, yield
    whether it is critical."""
    yield x509.SubjectKeyIdentifier.from_public_key(own), False
    yield x509.AuthorityKeyIdentifier.from_issuer_public_key(signers), False
    if is_authority:
        others = dict.fromkeys(
            (
                "content_commitment",
                "key_encipherment",
                "data_encipherment",
                "key_agreement",
                "encipher_only",
                "decipher_only",
            ),
            False,
        )
        yield x509.KeyUsage(digital_signature=True, key_cert_sign=True, crl_sign=True, **others), True


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
