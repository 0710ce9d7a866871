"""The wall clock has jumped, so two times are possible. A credential that has expired by either of them is refused."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from joserfc import jwt
from joserfc.jwk import ECKey

from odradek.env.agreed_clock import INTERVAL_MS, AgreedClock, Moment
from odradek.metadata_quorum.controller.access.tokens import ExpireTokens, TokenRequest
from odradek.node.connections.entrance import NotAuthenticated
from odradek.node.entrances import ServerEncryption
from odradek.security.certificate_validity import refusal_by_time, validity_of
from odradek.security.distinguished_names import MalformedName
from odradek.security.oauth.key_source import decode_keys
from odradek.security.oauth.token_rules import TokenRefused, TokenRules
from odradek.security.tokens import TokenLogins
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.create_delegation_token import CreateDelegationTokenRequest
from odradek.wire.messages.renew_delegation_token import RenewDelegationTokenRequest
from testkit.by_hand import ManualClock
from tests.security.certificates import Authority, Encoding
from tests.security.logins.test_token_decisions import OTHER_NODES_SALTS, SHA_256, Decider, secrets_of

DAY_MS = 86_400_000
WEEK_MS = 7 * DAY_MS


class Jumps:
    """A wall clock that has jumped, and a monotonic clock that shows how long ago the jump was."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.agreed = AgreedClock(self.clock)

    def now(self, jump_ms: int = 0, later_ms: int = 0) -> Moment:
        """Let the wall clock jump, and then some time pass. Return the possible times."""
        self.clock.jumped_ms += jump_ms
        self.agreed.observe()
        self.clock.now_ms += later_ms
        return self.agreed.moment()


class Tokens:
    """A controller with one token, which lives for a day."""

    def __init__(self) -> None:
        self.jumps = Jumps()
        self.decider = Decider(secrets_of(), tokens_per_owner_max=1)
        self.made: Any = self.ask(CreateDelegationTokenRequest(), self.jumps.now())
        assert not self.made.error_code

    def ask(self, message: Any, now: Moment) -> Any:
        """Send a request as the token's owner."""
        return self.decider.decide(TokenRequest(message, "User:alice", now))

    def lets_in(self, now: Moment) -> bool:
        """True if the token allows a login at this time."""
        token = self.decider.tokens.get(self.made.token_id)
        logins = TokenLogins(secrets_of(), OTHER_NODES_SALTS)
        return logins.login(self.made.token_id, token, SHA_256, now.latest_ms) is not None

    def renewal(self, now: Moment) -> int:
        """Try to renew the token, and return the error code."""
        return int(self.ask(RenewDelegationTokenRequest(self.made.hmac, 1), now).error_code)


def test_a_token_lets_nobody_in_after_a_jump_forward_and_is_not_deleted() -> None:
    """After a jump forward a token is refused and not deleted.

    If the jump was wrong, the token is valid again later.
    """
    tokens = Tokens()
    now = tokens.jumps.now(WEEK_MS)
    assert not tokens.lets_in(now)
    assert tokens.renewal(now) == ErrorCode.DELEGATION_TOKEN_EXPIRED
    assert tokens.decider.decide(ExpireTokens(now.earliest_ms)) == 0
    another = tokens.ask(CreateDelegationTokenRequest(), now)
    assert another.error_code == ErrorCode.POLICY_VIOLATION, (
        "a token that may still be valid did not count towards its owner's limit"
    )
    assert tokens.lets_in(tokens.jumps.now(-WEEK_MS, INTERVAL_MS))


def test_a_token_goes_when_the_jump_is_believed() -> None:
    """After a jump forward is confirmed, the expired token is deleted."""
    tokens = Tokens()
    now = tokens.jumps.now(WEEK_MS, INTERVAL_MS)
    assert tokens.decider.decide(ExpireTokens(now.earliest_ms)) == 1


def test_a_token_that_had_expired_lets_nobody_in_after_a_jump_backward() -> None:
    """A token had expired before a jump backward. It is still refused."""
    tokens = Tokens()
    assert not tokens.lets_in(tokens.jumps.now(0, DAY_MS + 1))
    now = tokens.jumps.now(-WEEK_MS)
    assert not tokens.lets_in(now)
    assert tokens.renewal(now) == ErrorCode.DELEGATION_TOKEN_EXPIRED


@pytest.mark.parametrize("jump_ms", [WEEK_MS, -WEEK_MS], ids=["forward", "backward"])
def test_a_bearer_token_has_to_count_by_both_times(jump_ms: int) -> None:
    """After a jump, a bearer token must be valid by both times: before `exp` and not before `nbf` (RFC 7519)."""
    key = ECKey.generate_key("P-256", {"kid": "one", "use": "sig"})
    keys = decode_keys(json.dumps({"keys": [key.as_dict(private=False)]}).encode())
    jumps = Jumps()
    second = jumps.now().wall_ms // 1000

    def is_taken(not_before: int, expires: int, now: Moment) -> bool:
        claims = {"sub": "carol", "iat": not_before, "nbf": not_before, "exp": expires}
        token = jwt.encode({"alg": "ES256", "kid": "one"}, claims, key)
        try:
            return TokenRules().judge(token, keys, now).principal_name == "carol"
        except TokenRefused:
            return False

    hour, long_ago, far = 3600, second - 2 * WEEK_MS // 1000, second + 2 * WEEK_MS // 1000
    assert is_taken(second - hour, second + hour, jumps.now())
    now = jumps.now(jump_ms)
    assert not is_taken(long_ago, second + hour if jump_ms > 0 else second - hour, now)
    assert not is_taken(second + hour if jump_ms > 0 else second - hour, far, now)
    assert is_taken(long_ago, far, now)


def moment_of(seconds: float) -> int:
    """Return whole seconds as milliseconds, as certificates have them."""
    return int(seconds) * 1000


@pytest.mark.parametrize("days", [(-1, 365), (-20_000, 36_000)], ids=["UTCTime", "GeneralizedTime"])
def test_the_validity_of_a_certificate_is_read(days: tuple[int, int]) -> None:
    """The validity of a certificate is read (RFC 5280, section 4.1.2.5).

    Years from 1950 to 2049 have two digits, others four.
    """
    issued = Authority().issue("alice", days=days).certificate
    expected = (
        moment_of(issued.not_valid_before_utc.timestamp()),
        moment_of(issued.not_valid_after_utc.timestamp()),
    )
    assert validity_of(issued.public_bytes(Encoding.DER)) == expected


def test_bytes_that_are_no_certificate_are_refused() -> None:
    """A certificate with a cut or changed time is refused."""
    data = Authority().issue("alice").certificate.public_bytes(Encoding.DER)
    at = data.index(b"Z", data.index(b"\x17\x0d")) - 12
    for broken in (
        data[: at + 6],
        data[:at] + b"xx" + data[at + 2 :],
        data[: at - 2] + b"\x0c" + data[at - 1 :],
    ):
        with pytest.raises(MalformedName):
            validity_of(broken)


def test_a_certificate_has_to_count_by_both_times() -> None:
    """A certificate must be valid by both times. OpenSSL checks only the wall clock."""
    data = Authority().issue("alice", days=(-1, 1)).certificate.public_bytes(Encoding.DER)
    begins, ends = validity_of(data)
    middle = (begins + ends) // 2
    assert refusal_by_time(data, Moment.agreed(middle)) == ""
    assert refusal_by_time(data, Moment.agreed(begins)) == refusal_by_time(data, Moment.agreed(ends)) == ""
    assert "expired" in refusal_by_time(data, Moment(middle, middle, ends + 1000))
    assert "not valid yet" in refusal_by_time(data, Moment(begins - 1, middle, middle))


def test_an_entrance_refuses_a_certificate_that_has_expired_by_either_clock() -> None:
    """After a jump backward, a certificate that has expired passes the handshake, but the client is refused."""
    jumps = Jumps()
    issued = Authority().issue("alice", days=(-1, 1))
    jumps.clock.jumped_ms = moment_of(issued.certificate.not_valid_after_utc.timestamp()) + 60_000
    jumps.clock.jumped_ms -= ManualClock().wall_ms()
    jumps.agreed = AgreedClock(jumps.clock)
    secured = SimpleNamespace(
        peer_certificate=lambda: issued.certificate.public_bytes(Encoding.DER), overhead_left=0
    )

    async def accept(conn: Any, make_session: Any) -> Any:
        return secured

    handshakes: Any = SimpleNamespace(accept=accept)
    rules = SimpleNamespace(principal=lambda name: f"User:{name}")
    tls: Any = SimpleNamespace(server_session=None)
    security: Any = SimpleNamespace(principal_rules=rules)
    encryption = ServerEncryption(tls, security, handshakes, jumps.agreed)
    conn: Any = None
    jumps.now(-3_600_000)
    with pytest.raises(NotAuthenticated, match="the certificate has expired"):
        trio.run(encryption.handshake, conn)
    jumps.now(0, INTERVAL_MS)
    assert trio.run(encryption.handshake, conn)[1:] == ("User:CN=alice", "CN=alice")
