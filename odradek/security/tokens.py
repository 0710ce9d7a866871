"""Delegation tokens (KIP-48): their secrets, logins with them, and who may see them. PURE.

A token has a public id, and an HMAC of this id as its secret. The key of the HMAC is `delegation.token.secret.key`,
which is the same on all nodes and never in the metadata log. So every node that has the key can compute the secret of
a token from its id. A client logs in by SCRAM with the id as user and the HMAC, in base64, as password.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Callable
from functools import partial
from typing import Protocol

import attrs

from odradek.security.scram import ITERATIONS_MIN, ScramMechanism, ServerKeys, server_keys

__all__ = [
    "KeysMissing",
    "Token",
    "TokenLogin",
    "TokenLogins",
    "TokenSecrets",
    "is_expired",
    "may_renew",
    "principal_of",
]

LOGINS_MAX = 1000
"""The number of tokens whose keys are remembered, because it takes milliseconds to compute the keys of one
token.
"""


class Token(Protocol):
    """The attributes of a token in the metadata log that this module uses. Times are in milliseconds since 1970."""

    @property
    def owner(self) -> str: ...

    @property
    def renewers(self) -> tuple[str, ...]: ...

    @property
    def max_timestamp(self) -> int: ...

    @property
    def expiration_timestamp(self) -> int: ...


def principal_of(kind: str | None, name: str | None) -> str:
    """Join the two parts of a principal in a request: `KIND:NAME`."""
    return f"{kind or ''}:{name or ''}"


def may_renew(token: Token, principal: str) -> bool:
    """True if the principal is the token's owner or a renewer. They may see, renew and expire the token."""
    return principal == token.owner or principal in token.renewers


def is_expired(token: Token, now_ms: int) -> bool:
    """True if the token has expired at `now_ms`."""
    return token.max_timestamp < now_ms or token.expiration_timestamp < now_ms


@attrs.frozen
class TokenSecrets:
    """Computes the secrets of all tokens, from the key that the nodes share."""

    _key: bytes = attrs.field(repr=False)

    @classmethod
    def of_key(cls, key: str | None) -> TokenSecrets | None:
        """Make the object from the configured key; return None without a key, which turns tokens off."""
        return cls(key.encode()) if key else None

    def hmac(self, token_id: str) -> bytes:
        """Compute the HMAC-SHA-512 of a token's id: 64 bytes. Costs a microsecond or two."""
        return hmac.digest(self._key, token_id.encode(), "sha512")


@attrs.frozen
class TokenLogin:
    """The facts about a delegation token that a login by this token needs."""

    keys: ServerKeys
    owner: str
    """The principal that the client gets."""
    left_ms: int
    """The milliseconds until the token expires, at least 1."""


class KeysMissing(Exception):
    """Raised if the keys of a token must be computed before a login, which takes milliseconds."""

    def __init__(self, make: Callable[[], ServerKeys], keep: Callable[[ServerKeys], None]) -> None:
        """`make` computes the keys, in any thread. Pass its result to `keep`, then call `login` again."""
        super().__init__("the keys of this delegation token must be computed first")
        self.make = make
        self.keep = keep


class TokenLogins:
    """Logins by tokens on one node. The keys of a token are computed at its first login, which takes milliseconds."""

    def __init__(self, secrets: TokenSecrets, salt_secret: bytes) -> None:
        """`salt_secret` is the secret for the salts of unknown users, so that salts do not reveal which tokens exist."""
        self._secrets = secrets
        self._salt_secret = salt_secret
        self._keys: dict[tuple[str, str], ServerKeys] = {}

    def login(
        self,
        token_id: str,
        token: Token | None,
        mechanism: ScramMechanism,
        now_ms: int,
        *,
        at_once: bool = True,
    ) -> TokenLogin | None:
        """Return the keys and the owner of a token for a login; None for an unknown or expired token. If its keys are
        not computed yet, compute them if `at_once`, otherwise raise `KeysMissing`.

        `now_ms` is the latest possible value of the present time. So an expired token is refused even if the clock was
        set back.
        """
        if token is None or is_expired(token, now_ms):
            return None
        left_ms = min(token.expiration_timestamp, token.max_timestamp) - now_ms
        named = (token_id, mechanism.name)
        keys = self._keys.get(named)
        make, keep = partial(self._make, token_id, mechanism), partial(self._keep, named)
        if keys is None:
            if not at_once:
                raise KeysMissing(make, keep)
            keys = make()
        keep(keys)
        return TokenLogin(keys, token.owner, max(1, left_ms))

    def _make(self, token_id: str, mechanism: ScramMechanism) -> ServerKeys:
        password = base64.b64encode(self._secrets.hmac(token_id)).decode()
        salt = hmac.digest(self._salt_secret, f"{mechanism.name} {token_id}".encode(), "sha256")[:16]
        salted = mechanism.salted_password(password, salt, ITERATIONS_MIN)
        return server_keys(mechanism, salted, salt, ITERATIONS_MIN)

    def _keep(self, named: tuple[str, str], keys: ServerKeys) -> None:
        """Remember the keys of a token. If there are too many, forget the keys that were not used for the longest time."""
        self._keys.pop(named, None)
        self._keys[named] = keys
        if len(self._keys) > LOGINS_MAX:
            del self._keys[next(iter(self._keys))]
