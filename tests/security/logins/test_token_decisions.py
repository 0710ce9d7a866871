"""Delegation tokens without a network: secrets, decisions of the controller, and logins (KIP-48)."""

from __future__ import annotations

import base64
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from odradek.env.agreed_clock import Moment
from odradek.metadata_quorum.controller.access.tokens import EXPIRED_PER_TURN_MAX, ExpireTokens, TokenRequest
from odradek.metadata_quorum.controller.controller import Controller
from odradek.metadata_quorum.controller.controller_settings import ControllerSettings
from odradek.metadata_quorum.image.metadata_image import MetadataImage
from odradek.metadata_quorum.state_machine import DecisionContext
from odradek.security.doors.token_doors import (
    OWNER_BYTES_MAX,
    RENEWERS_BYTES_MAX,
    RENEWERS_MAX,
    token_request_refused,
)
from odradek.security.sasl_server import Login, SaslSettings
from odradek.security.scram import (
    MECHANISMS,
    ScramClient,
    ScramError,
    ScramMechanism,
    ScramServer,
    ServerKeys,
)
from odradek.security.tokens import LOGINS_MAX, KeysMissing, TokenLogin, TokenLogins, TokenSecrets
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.create_delegation_token import CreatableRenewers, CreateDelegationTokenRequest
from odradek.wire.messages.expire_delegation_token import ExpireDelegationTokenRequest
from odradek.wire.messages.renew_delegation_token import RenewDelegationTokenRequest
from odradek.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from odradek.wire.messages.sasl_handshake import SaslHandshakeRequest

KEY = "a secret of all nodes"
DAY_MS = 86_400_000
NOW_MS = 1_700_000_000_000
SHA_256 = MECHANISMS["SCRAM-SHA-256"]
OTHER_NODES_SALTS = b"salts"


def secrets_of(key: str = KEY) -> TokenSecrets:
    secrets = TokenSecrets.of_key(key)
    assert secrets is not None
    return secrets


class Decider:
    """A controller with its image and without a log."""

    def __init__(self, secrets: TokenSecrets | None = None, **settings: Any) -> None:
        self.controller = Controller(ControllerSettings(token_secrets=secrets, **settings))
        self.image = MetadataImage()
        self.random = Random(7)

    def decide(self, request: Any) -> Any:
        offset = self.image.offset + 1
        context = DecisionContext(0, 3, offset, 1, self.random, lambda: self.random.randbytes(16))
        decision = self.controller.decide(self.image, request, context)
        if decision.records:
            self.image, _ = self.controller.replay(self.image, offset, 1, decision.records)
        return decision.response

    def ask(self, message: Any, requester: str = "User:alice", now_ms: int = NOW_MS) -> Any:
        return self.decide(TokenRequest(message, requester, Moment.agreed(now_ms)))

    @property
    def tokens(self) -> Any:
        return self.image.access.delegation_tokens


def test_a_secret_is_kafkas() -> None:
    """The HMAC of a token id and a key equals that of Apache Kafka 4.3, so Kafka's tokens are valid here."""
    expected = (
        "ed88c77a757fd18ec72fb46c04dfce7a5a69b1bcc06d641ac55b7a66eca671cc"
        "d62fe9fbc9664ea4bca7694543efcd9a53e9cfbfac561126dec716a27c49a2b3"
    )
    assert secrets_of().hmac("kpyPEyKBR1KFCR6UnobUmQ").hex() == expected


def test_no_key_turns_tokens_off() -> None:
    """Tokens need a key. Without one, requests about them get DELEGATION_TOKEN_AUTH_DISABLED."""
    assert TokenSecrets.of_key("") is None
    decider = Decider()
    for message in (
        CreateDelegationTokenRequest(),
        RenewDelegationTokenRequest(b"x", 1),
        ExpireDelegationTokenRequest(b"x", -1),
    ):
        assert decider.ask(message).error_code == ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
    assert not decider.tokens


def test_the_log_never_has_the_secret() -> None:
    """Records and snapshots contain the token's id and data, and never its HMAC."""
    decider = Decider(secrets_of())
    made = decider.ask(CreateDelegationTokenRequest())
    records = list(decider.image.access.records())
    assert made.token_id in repr(records)
    assert KEY not in repr(decider.controller.settings)
    for record in records:
        assert made.hmac not in [getattr(record, each) for each in record.__slots__]


def test_lives_end_at_the_limits_of_the_configuration() -> None:
    """A renewal extends a token by at most `delegation.token.expiry.time.ms`, and never beyond its maximum lifetime."""
    decider = Decider(secrets_of())
    made = decider.ask(CreateDelegationTokenRequest(max_lifetime_ms=2 * DAY_MS))
    assert (made.expiry_timestamp_ms, made.max_timestamp_ms) == (NOW_MS + DAY_MS, NOW_MS + 2 * DAY_MS)
    later = NOW_MS + DAY_MS - 1
    renewed = decider.ask(RenewDelegationTokenRequest(made.hmac, 50 * DAY_MS), now_ms=later)
    assert renewed.expiry_timestamp_ms == later + DAY_MS
    last = decider.ask(RenewDelegationTokenRequest(made.hmac, -1), now_ms=later + DAY_MS)
    assert last.expiry_timestamp_ms == made.max_timestamp_ms
    over = decider.ask(RenewDelegationTokenRequest(made.hmac, -1), now_ms=made.max_timestamp_ms + 1)
    assert over.error_code == ErrorCode.DELEGATION_TOKEN_EXPIRED


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_token_is_found_by_its_secret_alone(is_restarted: bool) -> None:
    """Every controller finds a token by its HMAC. The token's id, a part of its HMAC, or an ended token's HMAC finds
    no token."""
    decider = Decider(secrets_of())
    first, second = (decider.ask(CreateDelegationTokenRequest()) for _ in range(2))
    if is_restarted:
        decider.controller = Controller(decider.controller.settings)
    for wrong in (b"", first.token_id.encode(), first.hmac[:-1], bytes(64)):
        answer = decider.ask(RenewDelegationTokenRequest(wrong, -1))
        assert answer.error_code == ErrorCode.DELEGATION_TOKEN_NOT_FOUND
    assert not decider.ask(ExpireDelegationTokenRequest(first.hmac, -1)).error_code
    gone = decider.ask(RenewDelegationTokenRequest(first.hmac, -1))
    assert gone.error_code == ErrorCode.DELEGATION_TOKEN_NOT_FOUND
    assert not decider.ask(RenewDelegationTokenRequest(second.hmac, -1)).error_code
    assert list(decider.tokens) == [second.token_id]


def test_the_timer_removes_expired_tokens_in_turns() -> None:
    """The timer removes expired tokens, a limited number in each turn. Other tokens stay."""
    decider = Decider(secrets_of(), tokens_per_owner_max=2 * EXPIRED_PER_TURN_MAX)
    for _ in range(EXPIRED_PER_TURN_MAX + 1):
        decider.ask(CreateDelegationTokenRequest(max_lifetime_ms=5))
    alive = decider.ask(CreateDelegationTokenRequest(max_lifetime_ms=500))
    assert decider.decide(ExpireTokens(NOW_MS + 5)) == 0
    assert decider.decide(ExpireTokens(NOW_MS + 6)) == EXPIRED_PER_TURN_MAX
    assert decider.decide(ExpireTokens(NOW_MS + 6)) == 1
    assert list(decider.tokens) == [alive.token_id]


def test_too_many_renewers_are_refused_before_the_controller_is_asked() -> None:
    """A broker refuses a token with too many or too long renewers, since each node would keep them."""
    everybody: Callable[..., bool] = lambda *_: True  # noqa: E731  # stands for a method of `Rights`

    def code(renewers: list[CreatableRenewers], owner: str | None = None) -> int:
        request = CreateDelegationTokenRequest("User" if owner else None, owner, renewers)
        refused = token_request_refused(request, "User:a", may_ask=True, allows=everybody)
        return 0 if refused is None else int(refused.error_code)

    bob, most = CreatableRenewers("User", "bob"), RENEWERS_BYTES_MAX - len("User:")
    assert code([bob] * RENEWERS_MAX) == 0
    assert code([bob] * (RENEWERS_MAX + 1)) == ErrorCode.POLICY_VIOLATION
    assert code([CreatableRenewers("User", "\N{SNOWMAN}" * (most // 3))]) == 0
    assert code([CreatableRenewers("User", "\N{SNOWMAN}" * (most // 3 + 1))]) == ErrorCode.POLICY_VIOLATION
    longest = "o" * (OWNER_BYTES_MAX - len("User:"))
    assert code([], longest) == 0
    assert code([], longest + "o") == ErrorCode.POLICY_VIOLATION


@pytest.mark.parametrize("is_restarted", [False, True])
def test_an_owner_has_so_many_tokens_and_no_more(is_restarted: bool) -> None:
    """An owner may have a limited number of tokens, and other owners are not affected. An ended or expired token makes
    room."""
    decider = Decider(secrets_of(), tokens_per_owner_max=3)
    create, for_bob = CreateDelegationTokenRequest(), CreateDelegationTokenRequest("User", "bob")
    brief = CreateDelegationTokenRequest(max_lifetime_ms=5)
    made = [decider.ask(each) for each in (brief, create, brief)]
    if is_restarted:
        decider.controller = Controller(decider.controller.settings)
    assert decider.ask(create, now_ms=NOW_MS + 5).error_code == ErrorCode.POLICY_VIOLATION
    assert [decider.ask(for_bob).error_code for _ in range(4)] == [0, 0, 0, ErrorCode.POLICY_VIOLATION]
    assert len(decider.tokens) == 6
    later = NOW_MS + 6
    assert [decider.ask(create, now_ms=later).error_code for _ in range(3)] == [
        0,
        0,
        ErrorCode.POLICY_VIOLATION,
    ]
    assert {each.token_id for each in made} & decider.tokens.keys() == {made[1].token_id}
    assert not decider.ask(ExpireDelegationTokenRequest(made[1].hmac, -1), now_ms=later).error_code
    assert decider.ask(create, now_ms=later).error_code == 0


def test_a_renewal_that_changes_nothing_writes_nothing() -> None:
    """A renewal that leaves the token's end as it is writes no record, since a record has the whole token."""
    decider = Decider(secrets_of())
    made = decider.ask(CreateDelegationTokenRequest())
    offset = decider.image.offset
    for _ in range(3):
        again = decider.ask(RenewDelegationTokenRequest(made.hmac, -1))
        assert again.expiry_timestamp_ms == made.expiry_timestamp_ms
    assert decider.image.offset == offset
    decider.ask(RenewDelegationTokenRequest(made.hmac, -1), now_ms=NOW_MS + 1)
    assert decider.image.offset == offset + 1


# -- logins -------------------------------------------------------------------------------------------------------


def token_login(decider: Decider, made: Any, now_ms: int = NOW_MS) -> TokenLogin | None:
    logins = TokenLogins(secrets_of(), OTHER_NODES_SALTS)
    return logins.login(made.token_id, decider.tokens.get(made.token_id), SHA_256, now_ms)


def password_of(made: Any) -> str:
    return base64.b64encode(made.hmac).decode()


def log_in(login: Login, client: ScramClient) -> Any:
    """Run a login, and return the answer to the last message. The client checks it."""
    login.handshake(SaslHandshakeRequest("SCRAM-SHA-256"), 1)
    first = login.authenticate(SaslAuthenticateRequest(client.first()))
    assert not first.error_code, first
    final = login.authenticate(SaslAuthenticateRequest(client.final(first.auth_bytes)))
    if not final.error_code:
        client.check(final.auth_bytes)
    return final


@pytest.mark.parametrize(("session_ms", "expected_ms"), [(0, DAY_MS), (5_000, 5_000), (5 * DAY_MS, DAY_MS)])
def test_a_login_is_the_owners_and_ends_with_the_token(session_ms: int, expected_ms: int) -> None:
    """A login by a token counts as a login of the owner.

    It ends at `connections.max.reauth.ms` or with the token, whichever is earlier (KIP-368).
    """
    decider = Decider(secrets_of())
    made = decider.ask(CreateDelegationTokenRequest("User", "bob"))
    settings = SaslSettings(("SCRAM-SHA-256",), session_ms_max={"SCRAM-SHA-256": session_ms})
    login = Login(settings, lambda *_: None, lambda: "n", lambda: 0.0, lambda *_: token_login(decider, made))
    answer = log_in(login, ScramClient(SHA_256, made.token_id, password_of(made), "c", by_token=True))
    assert (login.principal, login.by_token) == ("User:bob", True)
    assert (answer.session_lifetime_ms, login.expires_at) == (expected_ms, expected_ms / 1000)


def test_who_does_not_log_in_by_token_is_not_let_in_by_one() -> None:
    """A token's id without the flag for tokens, or with a wrong secret, is refused. All refusals are equal."""
    decider = Decider(secrets_of())
    made = decider.ask(CreateDelegationTokenRequest())
    attempts = (
        ScramClient(SHA_256, made.token_id, password_of(made), "c"),
        ScramClient(SHA_256, "alice", password_of(made), "c", by_token=True),
        ScramClient(SHA_256, made.token_id, made.token_id, "c", by_token=True),
    )
    texts = set()

    def token_of(token_id: str, mechanism: ScramMechanism, at_once: bool) -> TokenLogin | None:
        return token_login(decider, made) if token_id == made.token_id else None

    for client in attempts:
        login = Login(SaslSettings(("SCRAM-SHA-256",)), lambda *_: None, lambda: "n", lambda: 0.0, token_of)
        answer = log_in(login, client)
        texts.add((answer.error_code, answer.error_message))
    assert len(texts) == 1
    assert token_login(decider, made, NOW_MS + DAY_MS) is not None
    assert token_login(decider, made, NOW_MS + DAY_MS + 1) is None


def test_a_credential_that_goes_during_a_login_lets_nobody_in() -> None:
    """A user is removed, or gets another password, between the first and the last message of a login.

    The login is refused.
    """
    salt = bytes(16)

    def keys_of(password: str) -> ServerKeys:
        from odradek.security.scram import server_keys

        return server_keys(SHA_256, SHA_256.salted_password(password, salt, 4096), salt, 4096)

    for after in (None, keys_of("another")):
        known: list[ServerKeys | None] = [keys_of("right")]
        server = ScramServer(SHA_256, lambda _, known=known: known[-1], b"salt", "s")
        client = ScramClient(SHA_256, "u", "right", "c")
        final = client.final(server.answer(client.first()))
        known.append(after)
        with pytest.raises(ScramError):
            server.answer(final)


def test_keys_are_made_once_and_as_many_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A token's keys, which cost milliseconds, are computed once.

    A limited number is kept, and the oldest are forgotten.
    """
    made: list[str] = []
    monkeypatch.setattr(
        ScramMechanism, "salted_password", lambda *args: made.append(args[1]) or b"salted password"
    )
    decider = Decider(secrets_of())
    token = decider.ask(CreateDelegationTokenRequest())
    logins = TokenLogins(secrets_of(), b"")
    kept = decider.tokens[token.token_id]
    for number in range(LOGINS_MAX):
        logins.login(str(number), kept, SHA_256, NOW_MS)
    logins.login("0", kept, SHA_256, NOW_MS)
    assert len(made) == LOGINS_MAX
    logins.login("new", kept, SHA_256, NOW_MS)
    logins.login("0", kept, SHA_256, NOW_MS)
    assert len(made) == LOGINS_MAX + 1
    logins.login("1", kept, SHA_256, NOW_MS)
    assert len(made) == LOGINS_MAX + 2


def test_the_keys_of_a_strangers_token_are_made_elsewhere() -> None:
    """A login by token needs keys that are not known.

    It raises KeysMissing, and is answered when the keys are computed.
    """
    decider = Decider(secrets_of())
    made = decider.ask(CreateDelegationTokenRequest("User", "bob"))
    logins = TokenLogins(secrets_of(), b"")

    def token_of(token_id: str, mechanism: ScramMechanism, at_once: bool) -> TokenLogin | None:
        return logins.login(token_id, decider.tokens.get(token_id), mechanism, NOW_MS, at_once=at_once)

    login = Login(SaslSettings(("SCRAM-SHA-256",)), lambda *_: None, lambda: "n", lambda: 0.0, token_of)
    login.handshake(SaslHandshakeRequest("SCRAM-SHA-256"), 1)
    client = ScramClient(SHA_256, made.token_id, password_of(made), "c", by_token=True)
    with pytest.raises(KeysMissing) as missing:
        login.authenticate(SaslAuthenticateRequest(client.first()))
    missing.value.keep(missing.value.make())
    first = login.authenticate(SaslAuthenticateRequest(client.first()))
    for number in range(LOGINS_MAX):
        # Other tokens' keys replace this token's keys while its login is running.
        missing.value.keep.func((str(number), ""), missing.value.make())  # type: ignore[attr-defined]
    final = login.authenticate(SaslAuthenticateRequest(client.final(first.auth_bytes)))
    client.check(final.auth_bytes)
    assert login.principal == "User:bob"
