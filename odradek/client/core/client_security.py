"""Encryption and logins of the client's connections, made from Kafka's client keys. PURE."""

from __future__ import annotations

import attrs

from odradek.env.tls_ports import TlsSettings
from odradek.env.token_ports import DocumentAddress, TokenRequest, Tokens
from odradek.security.jaas import JaasLine, MalformedJaas, parse_jaas
from odradek.security.sasl_client import OAUTHBEARER, PLAIN, Credentials
from odradek.security.scram import MECHANISMS

__all__ = ["PROTOCOLS", "ClientSecurity", "LoginKeys", "client_security"]

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
STORE_TYPES = ("PEM", "PKCS12")


@attrs.frozen
class ClientSecurity:
    """The settings for encryption (`tls`) and login (`credentials`, `tokens`) of a client's connections. An
    unused field is None.
    """

    tls: TlsSettings | None = None
    credentials: Credentials | None = None
    tokens: Tokens | None = attrs.field(default=None, repr=False)
    """The application's own function that returns tokens, for OAUTHBEARER."""


@attrs.frozen(kw_only=True)
class LoginKeys:
    """The values of the `sasl.` configuration keys."""

    mechanism: str
    jaas: str | None = attrs.field(repr=False)
    username: str | None = None
    password: str | None = attrs.field(default=None, repr=False)
    token_endpoint: str | None = None
    client_id: str | None = None
    client_secret: str | None = attrs.field(default=None, repr=False)
    scope: str | None = None
    refresh_window_factor: float = 0.8
    retry_backoff_ms: int = 100
    retry_backoff_ms_max: int = 10_000
    tokens: Tokens | None = attrs.field(default=None, repr=False)


def client_security(protocol: str, login: LoginKeys, stores: TlsSettings) -> ClientSecurity | None:
    """Make the security settings from the keys; return None for plaintext. Raises `ValueError`; the error's
    text contains no secrets.
    """
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
                    f"ssl.{name}.type={kind!r} is not supported: expected PEM or PKCS12 (`keytool "
                    "-importkeystore` converts JKS to PKCS12)"
                )
        if stores.keystore_key_location is not None and (
            stores.keystore_location is None or stores.keystore_type != "PEM"
        ):
            raise ValueError(
                "odradek.ssl.keystore.key.location needs ssl.keystore.location, a PEM file with the "
                "certificates"
            )
        tls = stores
    credentials = None
    if protocol.startswith("SASL_"):
        credentials = _credentials(login)
    return ClientSecurity(tls, credentials, login.tokens)


def _credentials(login: LoginKeys) -> Credentials:
    mechanism = login.mechanism
    known = (PLAIN, *MECHANISMS, OAUTHBEARER)
    if mechanism not in known:
        raise ValueError(f"sasl.mechanism={mechanism!r} is not supported; expected one of {', '.join(known)}")
    if mechanism == OAUTHBEARER:
        return Credentials(mechanism, token_request=None if login.tokens else _token_request(login))
    if login.username is not None or login.password is not None:
        if login.username is None or login.password is None or login.jaas:
            raise ValueError(
                "odradek.sasl.username and odradek.sasl.password must be set together, in place of "
                "sasl.jaas.config"
            )
        return Credentials(mechanism, login.username, login.password)
    if not login.jaas:
        raise ValueError(
            "sasl.jaas.config is missing: it must name username and password (or set "
            "odradek.sasl.username and odradek.sasl.password)"
        )
    line = _parsed(login.jaas)
    if line.username is None or line.password is None:
        raise ValueError("sasl.jaas.config must name username and password")
    if line.is_of_token and mechanism not in MECHANISMS:
        raise ValueError(
            f"a delegation token logs in by one of {', '.join(MECHANISMS)}, but sasl.mechanism is {mechanism}"
        )
    return Credentials(mechanism, line.username, line.password, line.is_of_token)


def _parsed(jaas: str) -> JaasLine:
    try:
        return parse_jaas(jaas)
    except MalformedJaas as error:
        raise ValueError(f"sasl.jaas.config cannot be read: {error}") from None


def _token_request(login: LoginKeys) -> TokenRequest:
    """Make the request that fetches a token (KIP-768). Configurations for Kafka's clients before 4.1 give id,
    secret and scope as options of the login module.
    """
    options = {} if not login.jaas else _parsed(login.jaas).options
    url = login.token_endpoint
    if not url:
        raise ValueError(
            "sasl.oauthbearer.token.endpoint.url is missing: set it to the token issuer's address, or "
            "to file:///PATH of a token"
        )
    client_id = login.client_id or options.get("clientId", "")
    if not url.startswith("file:") and not client_id:
        raise ValueError(
            "sasl.oauthbearer.client.credentials.client.id is missing: the token issuer asks for a "
            "client id and secret"
        )
    return TokenRequest(
        DocumentAddress(
            url, options.get("ssl.truststore.location"), options.get("ssl.truststore.certificates")
        ),
        client_id,
        login.client_secret or options.get("clientSecret", ""),
        login.scope or options.get("scope", ""),
        login.refresh_window_factor,
        login.retry_backoff_ms,
        login.retry_backoff_ms_max,
    )
