"""A stranger logs in with forged tokens, and with tokens that the issuer made for another place or time (RFC 8725)."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import math
import time
from collections.abc import Iterator
from typing import Any

import attrs
from joserfc import jws
from joserfc.jwk import ECKey, Key, RSAKey

from odradek.env.agreed_clock import Moment
from odradek.security.oauth.key_source import decode_keys
from odradek.security.oauth.token_rules import TokenRefused, TokenRules
from tests.attacks.outcome import Outcome
from tests.attacks.place import Place

WHO = "stranger"
CPU_SECONDS_MAX = 0.05
"""A signature takes a tenth of a millisecond to check, and 64 KiB of JSON a few milliseconds."""
TRIES = 5
"""How often a check is timed; the cheapest time counts. A garbage collection slows down one of the checks, but hardly
all."""
RULES = TokenRules(expected_audience=frozenset({"kafka"}), expected_issuer="issuer")
NOT_IN_JSON = "INFINITE"


def _part(value: object) -> str:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


@attrs.frozen
class Issuer:
    """An issuer that signs with an RSA key and with an EC key. `other` is another issuer's key with the same name."""

    rsa: Key
    curve: Key
    other: Key
    claims: dict[str, Any]

    @classmethod
    def made(cls) -> Issuer:
        now = int(time.time())
        return cls(
            RSAKey.generate_key(2048, {"kid": "one", "use": "sig"}),
            ECKey.generate_key("P-256", {"kid": "two", "use": "sig"}),
            RSAKey.generate_key(2048, {"kid": "one"}),
            {"sub": "carol", "aud": "kafka", "iss": "issuer", "iat": now, "exp": now + 600},
        )

    def document(self) -> bytes:
        return json.dumps({"keys": [each.as_dict(private=False) for each in (self.rsa, self.curve)]}).encode()

    def token(self, key: Key | None = None, header: dict[str, Any] | None = None, **changes: Any) -> str:
        """Sign the claims with some changes. A claim that is changed to None is left out."""
        claims = {name: value for name, value in {**self.claims, **changes}.items() if value is not None}
        return self.signed(json.dumps(claims).encode(), key, header)

    def signed(self, payload: bytes, key: Key | None = None, header: dict[str, Any] | None = None) -> str:
        named = {"alg": "RS256", "kid": "one", **(header or {})}
        return jws.serialize_compact(named, payload, key or self.rsa, algorithms=["RS256"])

    def by_hand(self, header: object, signature: object = b"x") -> str:
        return f"{_part(header)}.{_part(self.claims)}.{_part(signature)}"

    def by_public_key(self, secret: bytes) -> str:
        head = f"{_part({'alg': 'HS256', 'kid': 'one'})}.{_part(self.claims)}"
        return f"{head}.{_part(hmac.digest(secret, head.encode(), hashlib.sha256))}"


def _unsigned(issuer: Issuer) -> Iterator[tuple[str, str]]:
    """Yield tokens without a signature, or with one by the wrong key."""
    for algorithm in ("none", "None", "NoNe", ""):
        yield f"algorithm {algorithm!r}", issuer.by_hand({"alg": algorithm, "kid": "one"}, b"")
    pem = issuer.rsa.as_pem(private=False)
    document = json.dumps(issuer.rsa.as_dict(private=False)).encode()
    for name, secret in (("PEM", pem), ("stripped PEM", pem.strip()), ("JWK", document), ("nothing", b"")):
        yield f"an HMAC by the public key as {name}", issuer.by_public_key(secret)
    yield "another key of the same name", issuer.token(issuer.other)
    yield "the name of a key of another kind", issuer.token(header={"kid": "two"})
    for kid in (1, ["one"], None, "../../etc/passwd"):
        yield f"a key called {kid!r}", issuer.by_hand({"alg": "RS256", "kid": kid})
    for name in ("jwk", "jku", "x5u", "x5c"):
        value: Any = {"jwk": issuer.other.as_dict(private=False), "x5c": ["MII"]}.get(
            name, "http://127.0.0.1:1/"
        )
        rest = issuer.token(issuer.other).split(".", 1)[1]
        yield (
            f"a key that it brings as {name}",
            f"{_part({'alg': 'RS256', 'kid': 'one', name: value})}.{rest}",
        )
    for header in ({"crit": ["exp"], "exp": 1}, {"b64": False, "crit": ["b64"]}, {"alg": ["RS256"]}):
        yield f"header {header}", issuer.by_hand({"alg": "RS256", "kid": "one", **header})
    for wrong in ([1], {"kid": "one"}, b"\0\0"):
        yield f"the header {wrong!r}", issuer.by_hand(wrong)
    for token in ("", "AA.BB", ".".join([_part({"alg": "RSA-OAEP", "enc": "A128GCM"}), *["AAAA"] * 4])):
        yield f"{token.count('.') + 1} parts", token
    nested = b'{"alg":"RS256","x":' + b"[" * 20_000 + b"]" * 20_000 + b"}"
    yield "a nested header", issuer.by_hand(nested)
    yield "a header of 60 KB", issuer.by_hand({"alg": "RS256", "kid": "one", "x": "y" * 60_000})


def _signed_but_wrong(issuer: Issuer) -> Iterator[tuple[str, str]]:
    """Yield tokens that the issuer has signed, but with claims that are not valid here and now."""
    now = issuer.claims["iat"]
    audiences: tuple[Any, ...] = (None, "x", ["x", 1, None], {"kafka": 1}, "kafkax")
    wrong: dict[str, tuple[Any, ...]] = {
        "aud": audiences,
        "iss": (None, "issuer/", ["issuer"]),
        "exp": (None, now - 31, str(now + 60), True, -1, 1e300),
        "nbf": (now + 60, "x"),
        "iat": (None, now + 601),
        "sub": (None, " ", ["carol"], 5),
    }
    for claim, values in wrong.items():
        for value in values:
            yield f"claim {claim} is {value!r}", issuer.token(**{claim: value})
    claims = json.dumps({**issuer.claims, "exp": NOT_IN_JSON}).replace(f'"{NOT_IN_JSON}"', "1e400")
    yield "an expiry that is infinite", issuer.signed(claims.encode())
    yield "claims that are a list", issuer.signed(b"[1]")
    yield "a number of 5,000 digits", issuer.signed(b'{"exp":' + b"9" * 5_000 + b"}")
    yield "nested lists", issuer.signed(b"[" * 20_000 + b"]" * 20_000)
    yield "nested objects", issuer.signed(b'{"a":' * 8_000 + b"1" + b"}" * 8_000)


def attack(place: Place, scale: float) -> Iterator[Outcome]:
    """Check each token by the node's own rules. The scale makes no difference, since there is one token of each kind.

    No listener of `place` takes tokens. `tests/security/logins/test_sasl_attacks.py` sends some of them to a listener
    that does.
    """
    issuer = Issuer.made()
    keys = decode_keys(issuer.document())
    yield _judged("a good token is taken", issuer.token(), keys, wanted=True)
    for what, token in (*_unsigned(issuer), *_signed_but_wrong(issuer)):
        yield _judged(f"refused: {what}", token, keys, wanted=False)


def _judged(rule: str, token: str, keys: Any, *, wanted: bool) -> Outcome:
    """Check the token until one check was cheap enough, at most `TRIES` times."""
    spent = math.inf
    for _ in range(TRIES):
        began = time.thread_time()
        try:
            RULES.claimed_name(token)
            taken, note = (
                True,
                RULES.judge(token, keys, Moment.agreed(int(time.time() * 1000))).principal_name,
            )
        except TokenRefused as error:
            taken, note = False, str(error)
        except Exception as error:  # noqa: BLE001 - the attack looks for any error that a rule raises
            return Outcome(rule, False, f"raises {type(error).__name__}")
        spent = min(spent, time.thread_time() - began)
        if taken is not wanted or spent < CPU_SECONDS_MAX:
            break
    held = taken is wanted and spent < CPU_SECONDS_MAX
    return Outcome(rule, held, f"{note[:80]}, {1000 * spent:.1f} ms")
