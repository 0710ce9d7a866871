"""The rules by which tokens are accepted: JSON web tokens (RFC 7519) that the issuer has signed for this cluster.
PURE.

The rules are Kafka's (KIP-768). A key of the issuer must have signed the token. The token must have an
expiry, an issue time and a subject. If audience and issuer are configured, the token must have them. Clocks
may differ by a few seconds.

Only signatures by a private key count (RFC 8725, section 3.1). A token without a signature, or one whose "secret" is
the public key, is always refused.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

import attrs
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, GuestProtocol, Key, KeySet, OKPKey, RSAKey

from odradek.env.agreed_clock import Moment
from odradek.security.oauth.oauth_settings import TokenExpectations

__all__ = ["ALGORITHMS", "Bearer", "TokenRefused", "TokenRules", "UnknownKey"]

ALGORITHMS = (
    "RS256",
    "RS384",
    "RS512",
    "PS256",
    "PS384",
    "PS512",
    "ES256",
    "ES384",
    "ES512",
    "EdDSA",
    "Ed25519",
)
"""Signature algorithms that are verified with a public key."""
_KINDS: Mapping[str, type[Key]] = {"RS": RSAKey, "PS": RSAKey, "ES": ECKey, "Ed": OKPKey}
"""The kind of key that each algorithm needs, by its first two letters."""
TOKEN_PARTS = 3
"""The number of parts of a token: header, claims and signature."""
CLAIMED_BYTES_MAX = 8192
"""The maximum number of bytes of a refused token's claims that are read for the audit log."""
NAME_BYTES_MAX = 32_000
SECONDS_MAX = 1 << 53
"""The largest number of seconds that a number in JSON (a float) represents exactly."""


class TokenRefused(Exception):
    """Raised if a token is not accepted. The text never contains the token."""


class UnknownKey(TokenRefused):
    """Raised if the issuer's known keys lack the key that a token names; it may be a new key."""


@attrs.frozen
class Bearer:
    """The facts about the user that an accepted token contains."""

    principal_name: str
    expires_at: float
    """The expiry of the token in wall-clock seconds. The session ends at this time at the latest (KIP-368)."""
    scopes: frozenset[str] = frozenset()


@attrs.frozen
class TokenRules(TokenExpectations):
    """Checks tokens by the expectations of a listener."""

    def judge(self, token: str, keys: KeySet, now: Moment) -> Bearer:
        """Verify that a token is valid in the whole interval `now` (earliest to latest possible time), apart from the
        tolerated clock skew. Return the facts about its user. Raises `TokenRefused`.
        """
        try:
            claims: Any = jwt.decode(token, lambda guest: _key_of(guest, keys), algorithms=ALGORITHMS).claims
        except (JoseError, ValueError, TypeError, RecursionError) as error:
            raise TokenRefused(f"the token's signature is not valid: {type(error).__name__}") from error
        if not isinstance(claims, Mapping):
            raise TokenRefused("the token's claims must be a JSON object")
        expires_at = self._check_times(claims, now)
        self._check_origin(claims)
        name = claims.get(self.sub_claim_name)
        if not isinstance(name, str) or not name.strip():
            raise TokenRefused(f"the token's claim {self.sub_claim_name} does not name a user")
        if not _is_storable(name):
            raise TokenRefused(
                f"the user's name in the token's claim {self.sub_claim_name} is too long, or is not "
                "valid text"
            )
        return Bearer(name.strip(), expires_at, _scopes_of(claims.get(self.scope_claim_name)))

    def claimed_name(self, token: str) -> str:
        """Read the user's name in an unverified token, for the audit log; empty if there is none."""
        parts = token.split(".")
        if len(parts) != TOKEN_PARTS or len(parts[1]) > CLAIMED_BYTES_MAX:
            return ""
        try:
            padded = parts[1] + "=" * (-len(parts[1]) % 4)
            claims = json.loads(base64.urlsafe_b64decode(padded))
        except (ValueError, RecursionError):
            return ""
        name = claims.get(self.sub_claim_name) if isinstance(claims, dict) else None
        return name.strip() if isinstance(name, str) else ""

    def _check_times(self, claims: Mapping[str, Any], now: Moment) -> float:
        """Check the times of a token; return its expiry in wall-clock seconds. Raises `TokenRefused`."""
        expires_at = _seconds(claims, "exp")
        issued_at = _seconds(claims, "iat")
        skew = self.clock_skew_seconds
        if now.latest_ms / 1000 - skew >= expires_at:
            raise TokenRefused("the token has expired")
        if issued_at > expires_at:
            raise TokenRefused("the token expires before it was issued")
        if "nbf" in claims and now.earliest_ms / 1000 + skew < _seconds(claims, "nbf"):
            raise TokenRefused("the token is not valid yet")
        return expires_at

    def _check_origin(self, claims: Mapping[str, Any]) -> None:
        if self.expected_issuer and claims.get("iss") != self.expected_issuer:
            raise TokenRefused("the token is not from the expected issuer")
        if not self.expected_audience:
            return
        audience = claims.get("aud")
        listed = audience if isinstance(audience, list) else [audience]
        if not any(isinstance(each, str) and each in self.expected_audience for each in listed):
            raise TokenRefused("the token is not for the expected audience")


def _key_of(token: GuestProtocol, keys: KeySet) -> Key:
    """Return the key that a token names. If the token names no key, the issuer must have exactly one key for
    the token's kind of algorithm: return this key. Raises `TokenRefused`.
    """
    headers = token.headers()
    kind = _KINDS.get(str(headers.get("alg"))[:2])
    if kind is None:
        raise TokenRefused("the token's signature algorithm is not accepted")
    fitting = [each for each in keys.keys if isinstance(each, kind)]
    if "kid" in headers:
        fitting = [each for each in fitting if each.kid == headers["kid"]]
        if not fitting:
            raise UnknownKey("the issuer has no key of the id that the token names")
    if len(fitting) != 1:
        raise TokenRefused(
            f"the token names no key, and {len(fitting)} keys of the issuer could have signed it"
        )
    return fitting[0]


def _is_storable(name: str) -> bool:
    """True if the name can be stored in a record. Half of a surrogate pair, which JSON may contain, cannot."""
    try:
        return len(name.encode()) <= NAME_BYTES_MAX
    except UnicodeEncodeError:
        return False


def _seconds(claims: Mapping[str, Any], name: str) -> float:
    value = claims.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= SECONDS_MAX:
        raise TokenRefused(f"the token's claim {name} is missing or not a time")
    return float(value)


def _scopes_of(claim: object) -> frozenset[str]:
    """List the scopes in a claim: a text with spaces in between, or a list of texts."""
    listed = claim.split() if isinstance(claim, str) else claim if isinstance(claim, list) else []
    return frozenset(each.strip() for each in listed if isinstance(each, str) and each.strip())
