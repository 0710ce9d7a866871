"""An issuer of tokens for tests: its keys, its JWKS document, and tokens."""

from __future__ import annotations

import json
import time
from typing import Any

import attrs
from joserfc import jwt
from joserfc.jwk import ECKey, Key, RSAKey

NOW = 1_800_000_000.0


def claims_at(now: float = NOW, **changes: Any) -> dict[str, Any]:
    """Return the claims of a valid token, with changes. A change to None removes a claim."""
    found = {
        "sub": "alice",
        "iat": int(now),
        "exp": int(now) + 600,
        "iss": "https://issuer",
        "aud": "kafka",
        **changes,
    }
    return {name: value for name, value in found.items() if value is not None}


@attrs.define
class Issuer:
    """Signs tokens by one key. `rotate` replaces the key."""

    key: Key = attrs.field(factory=lambda: RSAKey.generate_key(2048, {"kid": "one"}))

    def rotate(self, kid: str = "two") -> None:
        self.key = ECKey.generate_key("P-256", {"kid": kid})

    @property
    def algorithm(self) -> str:
        return "RS256" if isinstance(self.key, RSAKey) else "ES256"

    def document(self) -> bytes:
        """Return the JWKS document."""
        return json.dumps({"keys": [self.key.as_dict(private=False)]}).encode()

    def token(self, header: dict[str, Any] | None = None, now: float | None = None, **changes: Any) -> str:
        named = {"alg": self.algorithm, "kid": self.key.kid} if header is None else header
        claims = claims_at(time.time() if now is None else now, **changes)
        return jwt.encode(named, claims, self.key, algorithms=[self.algorithm])
