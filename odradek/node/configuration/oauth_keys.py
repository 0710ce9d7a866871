"""Kafka's keys for logins by OAuth tokens (`sasl.oauthbearer.`, KIP-768), for one listener. PURE.

A listener must have a source of keys, an audience and an issuer, or the node does not start. Otherwise it would
accept tokens that were made for other services. A key of our own can waive audience and issuer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from odradek.env.token_ports import DocumentAddress, TokenRequest
from odradek.metadata_quorum.config.config_defs import ConfigError, ConfigValue, InvalidConfiguration
from odradek.security.oauth.oauth_settings import KeySourceSettings, OauthSettings, TokenExpectations

__all__ = ["LOGIN_HANDLERS", "VALIDATOR_HANDLERS", "WAIVED", "oauth_settings", "token_request"]

WAIVED = "odradek.sasl.oauthbearer.waived"
"""Our own key: the claims, `audience` or `issuer`, that may have any value in a token."""
_SERVER = re.compile(r"https?://(?:\[[0-9a-fA-F:.]+\]|[^\s/?#@:\[\]]+)(?::[0-9]{1,5})?(?:[/?][^\s#]*)?\Z")
_FILE = re.compile(r"file:///[^\s?#]+\Z")
VALIDATOR_HANDLERS = (
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler",
    "org.apache.kafka.common.security.oauthbearer.secured.OAuthBearerValidatorCallbackHandler",
)
LOGIN_HANDLERS = (
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler",
    "org.apache.kafka.common.security.oauthbearer.secured.OAuthBearerLoginCallbackHandler",
)
"""Java classes of Kafka's own handlers: their names before version 4, and their names from version 4 on. All
are accepted as names of the built-in handlers.
"""

Read = Callable[[str], ConfigValue]
Place = Callable[[str], str]


def oauth_settings(
    read: Read, place: Place, options: Mapping[str, str], waived: frozenset[str]
) -> OauthSettings:
    """Read the rules by which a listener checks tokens. Raises `ConfigError`.

    `read` returns the value of a key, and `place` returns the full name of the key in the file. `options` are
    the options of the login module.
    """
    audience = read("sasl.oauthbearer.expected.audience")
    expectations = TokenExpectations(
        frozenset(str(each) for each in audience) if isinstance(audience, list) else frozenset(),
        _text(read, "sasl.oauthbearer.expected.issuer"),
        _number(read, "sasl.oauthbearer.clock.skew.seconds"),
        _text(read, "sasl.oauthbearer.sub.claim.name"),
        _text(read, "sasl.oauthbearer.scope.claim.name"),
    )
    url = _url(
        read,
        place,
        "sasl.oauthbearer.jwks.endpoint.url",
        "the address must name the document with the issuer's keys (JWKS), by which the node checks tokens",
    )
    for what, key, value in (
        ("audience", "sasl.oauthbearer.expected.audience", expectations.expected_audience),
        ("issuer", "sasl.oauthbearer.expected.issuer", expectations.expected_issuer),
    ):
        if not value and what not in waived:
            raise InvalidConfiguration(
                key,
                None,
                f"{place(key)} is missing, so the node would accept tokens that were issued for other "
                f"servers: set the key, or {WAIVED}={what}",
            )
    return OauthSettings(
        KeySourceSettings(
            _address(url, options),
            _number(read, "sasl.oauthbearer.jwks.endpoint.refresh.ms"),
            _number(read, "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms"),
            _number(read, "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms"),
        ),
        expectations,
    )


def token_request(read: Read, place: Place, options: Mapping[str, str]) -> TokenRequest:
    """Read how this node gets the tokens with which it logs in to other nodes. Raises `ConfigError`.

    The login module's options may have id, secret and scope, too, as they did before Kafka 4.1.
    """
    url = _url(
        read,
        place,
        "sasl.oauthbearer.token.endpoint.url",
        "the address must name the endpoint whose tokens nodes use to log in to each other",
    )
    client_id = _text(read, "sasl.oauthbearer.client.credentials.client.id") or options.get("clientId", "")
    if _FILE.match(url) is None and not client_id:
        key = "sasl.oauthbearer.client.credentials.client.id"
        raise InvalidConfiguration(
            key, None, f"{place(key)} is missing: the token endpoint asks for a client id and secret"
        )
    factor = read("sasl.login.refresh.window.factor")
    return TokenRequest(
        _address(url, options),
        client_id,
        _text(read, "sasl.oauthbearer.client.credentials.client.secret") or options.get("clientSecret", ""),
        _text(read, "sasl.oauthbearer.scope") or options.get("scope", ""),
        float(factor) if isinstance(factor, int | float) else 0.8,
        _number(read, "sasl.login.retry.backoff.ms"),
        _number(read, "sasl.login.retry.backoff.max.ms"),
    )


def _url(read: Read, place: Place, key: str, purpose: str) -> str:
    url = _text(read, key)
    if not url:
        raise InvalidConfiguration(key, None, f"{place(key)} is missing: {purpose}")
    if _SERVER.match(url) is None and _FILE.match(url) is None:
        raise ConfigError(
            place(key),
            url,
            "the value must be an address: https://HOST/PATH, http://HOST/PATH or file:///PATH",
        )
    return url


def _address(url: str, options: Mapping[str, str]) -> DocumentAddress:
    """Return a document's address, and the authorities that may sign the certificate of its server. As in
    Kafka, the login module's options name these authorities.
    """
    location = options.get("ssl.truststore.location")
    if location is not None and options.get("ssl.truststore.type", "PEM").upper() != "PEM":
        raise ConfigError(
            "ssl.truststore.type",
            options["ssl.truststore.type"],
            "the truststore for connections to token servers must be of type PEM",
        )
    return DocumentAddress(url, location, options.get("ssl.truststore.certificates"))


def _text(read: Read, key: str) -> str:
    value = read(key)
    return "" if value is None else str(value)


def _number(read: Read, key: str) -> int:
    value = read(key)
    assert isinstance(value, int), f"{key} is a number"
    return value
