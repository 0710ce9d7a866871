"""The server's side of a SASL login on one connection: the order of its requests, mechanisms, refusals,
renewals (KIP-43, KIP-152, KIP-368). PURE.

Before the login succeeds, a client may send ApiVersions once, name a mechanism (SaslHandshake) and exchange
tokens. After version 0 of SaslHandshake, tokens come as bare frames. After version 1, they come in
SaslAuthenticate requests. A refused login gets an answer, and its connection ends. The texts of refusals are
Kafka's, and reveal nothing to strangers.

A login that expires can be renewed by another `handshake`, with the same mechanism and principal.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Protocol

import attrs

from odradek.security.salt_forms import NO_USERS, SaltForms
from odradek.security.scram import MECHANISMS, ScramError, ScramMechanism, ScramServer, ServerKeys
from odradek.security.tokens import TokenLogin
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from odradek.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from odradek.wire.schema.versions import SASL_HANDSHAKE_FRAMED_TOKENS

__all__ = [
    "OAUTHBEARER",
    "PLAIN",
    "BearerLogin",
    "BearerLoginFailed",
    "Login",
    "LoginRefused",
    "LoginState",
    "SaslSettings",
]

PLAIN = "PLAIN"
OAUTHBEARER = "OAUTHBEARER"
RENEWAL_SECONDS_MIN = 1.0
"""Seconds that must lie between two renewals of a login, as in Kafka."""
_ALREADY = "SaslAuthenticate request received after successful authentication"


class LoginRefused(Exception):
    """Raised if a login is refused. `answer` may be sent to the client; the exception's text is for the node's log."""

    def __init__(self, answer: str, reason: str) -> None:
        super().__init__(reason)
        self.answer = answer


class BearerLoginFailed(Exception):
    """Raised if a login by a token has failed. `answer` may be sent to the client; if it is empty, the client gets
    the general text.
    """

    def __init__(self, reason: str, answer: str = "") -> None:
        super().__init__(reason)
        self.answer = answer


class BearerLogin(Protocol):
    """The interface of a login by OAUTHBEARER; `odradek.security.oauth.login` implements it."""

    @property
    def principal_name(self) -> str:
        """The user's name in the token; empty until the token was accepted."""

    @property
    def claimed_name(self) -> str:
        """The user's name in the token, whether the token was accepted or not."""

    @property
    def seconds_left(self) -> float:
        """The seconds that the token was still valid when it was accepted; negative within the tolerated clock skew."""

    def answer(self, data: bytes) -> bytes:
        """Answer the client's message. Raises `BearerLoginFailed`."""


@attrs.frozen
class SaslSettings:
    """The settings of SASL logins at one listener."""

    mechanisms: tuple[str, ...]
    """The names of the enabled mechanisms, in the configured order, as in Kafka."""
    plain_users: Mapping[str, str] = attrs.field(repr=False, factory=dict)
    """Passwords of the users who may use PLAIN."""
    session_ms_max: Mapping[str, int] = attrs.field(factory=dict)
    """The milliseconds that a login lasts, by mechanism (`connections.max.reauth.ms`); 0 or absent means without
    limit.
    """
    salt_secret: bytes = attrs.field(repr=False, default=b"")
    new_bearer_login: Callable[[], BearerLogin] | None = None
    """A function that begins a login by OAUTHBEARER; None if this mechanism is not enabled."""


class LoginState(Enum):
    """The message that the server expects next from the client."""

    VERSIONS = "versions"
    HANDSHAKE = "handshake"
    BARE_TOKEN = "bare token"
    TOKEN = "token"
    DONE = "done"
    FAILED = "failed"


class Login:
    """The state of one connection's login."""

    def __init__(
        self,
        settings: SaslSettings,
        keys_of: Callable[[str, int], ServerKeys | None],
        nonce: Callable[[], str],
        now: Callable[[], float],
        token_of: Callable[[str, ScramMechanism, bool], TokenLogin | None] = lambda *_: None,
        forms: Callable[[], SaltForms] = lambda: NO_USERS,
    ) -> None:
        """`keys_of` returns a user's SCRAM keys for a mechanism's number. `nonce` returns a random text,
        `now` the time in seconds. `token_of` returns the delegation token of an id (KIP-48); if its last
        argument is false, the function may raise `KeysMissing`. `forms` returns the forms of the users'
        salts.
        """
        self._forms = forms
        self._settings = settings
        self._keys_of = keys_of
        self._nonce = nonce
        self._now = now
        self._token_of = token_of
        self._token: TokenLogin | None = None
        self._lifetime_ms = 0
        self._scram: ScramServer | None = None
        self._bearer_login: BearerLogin | None = None
        self._lifetime_ms = 0
        self._renewed_at = float("-inf")
        self.state = LoginState.VERSIONS
        self.mechanism = ""
        self.principal = ""
        """The client's principal `User:NAME` once it has authenticated; empty before."""
        self.by_token = False
        """True if the client logged in by a delegation token, whose owner is the principal."""
        self.expires_at = float("inf")
        """The time in seconds (by `now`) until which the login must be renewed."""
        self.refusal_delay_seconds = 0.0
        """The seconds by which the answer to a refused login is delayed."""
        self.failure = ""
        """The reason for the failed login, for the node's log; empty if it has not failed."""
        self.claimed = ""
        """The name that the client has claimed, even if the login failed."""
        self.on_end: Callable[[Login], None] | None = None
        """Called with this login whenever a renewal has succeeded or failed."""

    @property
    def expires(self) -> bool:
        """True if the login expires at some time."""
        return self.expires_at != float("inf")

    @property
    def is_refused(self) -> bool:
        """True if the login, or its last renewal, has failed."""
        return self.state is LoginState.FAILED

    @property
    def refusal(self) -> str:
        """The reason to close the connection before its next request is served; empty if it stays open."""
        if self.is_refused:
            return self.failure
        if self.is_renewing:
            return "the client sent another request before the renewal of its login was complete"
        return (
            "the client's login has expired, and the client did not renew it"
            if self._now() > self.expires_at
            else ""
        )

    @property
    def is_renewing(self) -> bool:
        """True between the handshake and the last token of a renewal."""
        return bool(self.principal) and self.state is LoginState.TOKEN

    @property
    def may_renew(self) -> bool:
        """True if a SaslHandshake at this time begins a renewal."""
        return (
            self.state is LoginState.DONE
            and self.expires
            and self._now() >= self._renewed_at + RENEWAL_SECONDS_MIN
        )

    def handshake(self, request: SaslHandshakeRequest, version: int) -> SaslHandshakeResponse:
        """Answer a client's choice of a mechanism. Afterwards `state` has the message that must come next."""
        if self.state is LoginState.DONE:
            if not self.may_renew or version < SASL_HANDSHAKE_FRAMED_TOKENS:
                # With version 0, the tokens of a renewal would come as bare frames, which could be mistaken
                # for requests.
                return SaslHandshakeResponse(ErrorCode.ILLEGAL_SASL_STATE)
            self._renewed_at = self._now()
        elif self.state not in (LoginState.VERSIONS, LoginState.HANDSHAKE):
            self._fail("the client sent a SaslHandshake in the middle of its login")
            return SaslHandshakeResponse(ErrorCode.ILLEGAL_SASL_STATE)
        names = list(self._settings.mechanisms)
        if request.mechanism not in names:
            self._fail(f"the client asks for the mechanism {request.mechanism[:64]!r}, which is not enabled")
            return SaslHandshakeResponse(ErrorCode.UNSUPPORTED_SASL_MECHANISM, names)
        if self.principal and request.mechanism != self.mechanism:
            self._fail(
                f"the client logged in by {self.mechanism} and wants to renew the login by "
                f"{request.mechanism}"
            )
            return SaslHandshakeResponse(ErrorCode.UNSUPPORTED_SASL_MECHANISM, names)
        self.mechanism = request.mechanism
        self._scram = self._token = self._bearer_login = None
        if self.mechanism == OAUTHBEARER:
            assert self._settings.new_bearer_login is not None, (
                "an enabled mechanism must have its part of the server"
            )
            self._bearer_login = self._settings.new_bearer_login()
        mechanism = MECHANISMS.get(self.mechanism)
        if mechanism is not None:
            self._scram = self._scram_server(mechanism)
        self.state = LoginState.BARE_TOKEN if version < SASL_HANDSHAKE_FRAMED_TOKENS else LoginState.TOKEN
        return SaslHandshakeResponse(ErrorCode.NONE, names)

    def _scram_server(self, mechanism: ScramMechanism) -> ScramServer:
        def token_keys_of(token_id: str) -> ServerKeys | None:
            # An unknown client must cost the event loop little, so the loop computes no keys for its first message. At
            # a renewal, when the client is known, the loop computes the token's keys at once.
            at_once = bool(self.principal) or self._token is not None
            token = self._token = self._token_of(token_id, mechanism, at_once)
            return None if token is None else token.keys

        return ScramServer(
            mechanism,
            lambda user: self._keys_of(user, mechanism.number),
            self._settings.salt_secret,
            self._nonce(),
            token_keys_of,
            self._forms(),
        )

    def ask_out_of_turn(self) -> None:
        """End the login because the client has sent another request before the end of the login."""
        self._fail("the client sent another request in the middle of its login")

    def authenticate(self, request: SaslAuthenticateRequest) -> SaslAuthenticateResponse:
        """Answer a SaslAuthenticate request. Afterwards `state` shows whether the login goes on."""
        if self.state is not LoginState.TOKEN:
            if self.state is not LoginState.DONE:
                self._fail("the client sent a token before its SaslHandshake")
            return SaslAuthenticateResponse(ErrorCode.ILLEGAL_SASL_STATE, _ALREADY)
        try:
            answer = self.take_token(request.auth_bytes)
        except LoginRefused as refused:
            return SaslAuthenticateResponse(ErrorCode.SASL_AUTHENTICATION_FAILED, refused.answer)
        return SaslAuthenticateResponse(ErrorCode.NONE, "", answer, self._lifetime_ms if self._is_done else 0)

    @property
    def _is_done(self) -> bool:
        return self.state is LoginState.DONE

    def take_token(self, token: bytes) -> bytes:
        """Check a SASL token of the client, and return the server's answer to it. Raises `LoginRefused`.
        Raises `KeysMissing` if a token's keys must be computed first; the login's state is then unchanged.
        """
        try:
            if self._scram is not None:
                user, answer, done = self._step_scram(self._scram, bytes(token))
            elif self._bearer_login is not None:
                user, answer, done = self._step_bearer_login(self._bearer_login, bytes(token))
            else:
                user, answer, done = self._plain(bytes(token)), b"", True
        except LoginRefused as refused:
            self._fail(str(refused))
            raise
        if done:
            shown = self._token
            self._succeed(f"User:{user}" if shown is None else shown.owner, shown)
        return answer

    def _step_scram(self, scram: ScramServer, token: bytes) -> tuple[str, bytes, bool]:
        try:
            answer = scram.answer(token)
            self.claimed = scram.user
        except ScramError as error:
            self.claimed = scram.user
            raise LoginRefused(self._generic(), f"the login by {self.mechanism} failed: {error}") from error
        if scram.authorization_id and scram.authorization_id != scram.user:
            raise LoginRefused(
                "Authentication failed: Client requested an authorization id that is different from username",
                f"the login by {self.mechanism} requests an authorization id that is not its user",
            )
        return scram.user, answer, scram.is_done

    def _step_bearer_login(self, login: BearerLogin, token: bytes) -> tuple[str, bytes, bool]:
        try:
            answer = login.answer(token)
            self.claimed = login.claimed_name
        except BearerLoginFailed as error:
            self.claimed = login.claimed_name
            raise LoginRefused(
                error.answer or self._generic(), f"the login by {self.mechanism} failed: {error}"
            ) from error
        return login.principal_name, answer, bool(login.principal_name)

    def _plain(self, token: bytes) -> str:
        """Check a PLAIN token (RFC 4616), and return its user. Raises `LoginRefused`."""
        # As in Java, bytes that are no UTF-8 become a character that no password has.
        parts = token.count(b"\0") + 1
        if parts != 3:
            raise LoginRefused(
                f"Invalid SASL/PLAIN response: expected 3 tokens, got {parts}",
                f"the login by PLAIN has {parts} parts where there should be 3",
            )
        authorization_id, user, password = token.decode(errors="replace").split("\0")
        self.claimed = user
        if not user:
            raise LoginRefused(
                "Authentication failed: username not specified", "the login by PLAIN names no user"
            )
        if not password:
            raise LoginRefused(
                "Authentication failed: password not specified", "the login by PLAIN has no password"
            )
        expected = self._settings.plain_users.get(user)
        # Compare digests, because the time to compare texts would reveal their lengths.
        is_right = hmac.compare_digest(_digest(expected or ""), _digest(password))
        if not is_right or expected is None:
            raise LoginRefused(
                "Authentication failed: Invalid username or password",
                "the login by PLAIN has a wrong user or password",
            )
        if authorization_id and authorization_id != user:
            raise LoginRefused(
                "Authentication failed: Client requested an authorization id that is different from username",
                "the login by PLAIN requests an authorization id that is not its user",
            )
        return user

    def _generic(self) -> str:
        kind = "re-authentication" if self.principal else "authentication"
        return f"Authentication failed during {kind} due to invalid credentials with SASL mechanism {self.mechanism}"

    def _succeed(self, principal: str, token: TokenLogin | None) -> None:
        if self.principal and principal != self.principal:
            self._fail("the client renews its login as another principal")
            raise LoginRefused(
                f"Cannot change principals during re-authentication from {_dotted(self.principal)}: {_dotted(principal)}",
                self.failure,
            )
        self.principal = principal
        self.state = LoginState.DONE
        lifetimes_ms: list[float] = []
        if (session_ms_max := self._settings.session_ms_max.get(self.mechanism, 0)) > 0:
            lifetimes_ms.append(session_ms_max)
        if self._bearer_login is not None:
            lifetimes_ms.append(max(0.0, self._bearer_login.seconds_left * 1000))
        self.by_token = token is not None
        if token is not None:
            lifetimes_ms.append(token.left_ms)
        self._lifetime_ms = int(min(lifetimes_ms, default=0))
        self.expires_at = self._now() + self._lifetime_ms / 1000 if lifetimes_ms else float("inf")
        self._scram = self._token = self._bearer_login = None
        if self.on_end is not None:
            self.on_end(self)

    def _fail(self, reason: str) -> None:
        self.state = LoginState.FAILED
        self.failure = reason
        if self.on_end is not None:
            self.on_end(self)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _dotted(principal: str) -> str:
    """Format a principal with a dot (`User.alice`), as in Kafka's message about a changed principal."""
    return principal.replace(":", ".", 1)
