"""Kafka's client keys for encryption and logins, as the client's connections take them. PURE."""

from __future__ import annotations

import attrs

from odradek.env.tls_ports import TlsSettings
from odradek.security.jaas import MalformedJaas, parse_jaas
from odradek.security.sasl_client import PLAIN, Credentials
from odradek.security.scram import MECHANISMS

__all__ = ["PROTOCOLS", "ClientSecurity", "client_security"]

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
STORE_TYPES = ("PEM", "PKCS12")


@attrs.frozen
class ClientSecurity:
    """The security of a client's connections; None where there is none of the kind."""

    tls: TlsSettings | None = None
    credentials: Credentials | None = None


def client_security(
    protocol: str, mechanism: str, jaas: str | None, stores: TlsSettings
) -> ClientSecurity | None:
    """The security that the keys ask for; None for plaintext. Raises `ValueError`, which shows no secrets."""
    if protocol == "PLAINTEXT":
        return None
    tls = None
    if protocol.endswith("SSL"):
        for name, location, kind in (
            ("keystore", stores.keystore_location, stores.keystore_type),
            ("truststore", stores.truststore_location, stores.truststore_type),
        ):
            if location is not None and kind not in STORE_TYPES:
                raise ValueError(
                    f"ssl.{name}.type={kind!r}: expected PEM or PKCS12; `keytool -importkeystore` makes a PKCS12 file of JKS"
                )
        tls = stores
    credentials = None
    if protocol.startswith("SASL_"):
        credentials = _credentials(mechanism, jaas)
    return ClientSecurity(tls, credentials)


def _credentials(mechanism: str, jaas: str | None) -> Credentials:
    known = (PLAIN, *MECHANISMS)
    if mechanism not in known:
        raise ValueError(f"sasl.mechanism={mechanism!r} is not built; expected one of {', '.join(known)}")
    if not jaas:
        raise ValueError("sasl.jaas.config is missing: it has username and password")
    try:
        line = parse_jaas(jaas)
    except MalformedJaas as error:
        raise ValueError(f"sasl.jaas.config: {error}") from None
    if line.username is None or line.password is None:
        raise ValueError("sasl.jaas.config must have username and password")
    if line.is_of_token and mechanism not in MECHANISMS:
        raise ValueError(f"a delegation token logs in by one of {', '.join(MECHANISMS)}, not by {mechanism}")
    return Credentials(mechanism, line.username, line.password, line.is_of_token)
