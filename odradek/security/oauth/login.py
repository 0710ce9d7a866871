"""The server's side of one login by OAUTHBEARER (KIP-255). PURE.

The first answer to a refused token is `invalid_token`. The client then sends one byte 0x01, and only the answer to
this byte ends the login (RFC 7628, section 3.2.3). The client cannot distinguish reasons for refused tokens.
"""

from __future__ import annotations

from collections.abc import Callable

from joserfc.jwk import KeySet

from odradek.env.agreed_clock import Moment
from odradek.security.oauth.client_message import MalformedClientMessage, decode_client_message
from odradek.security.oauth.token_rules import Bearer, TokenRefused, TokenRules, UnknownKey
from odradek.security.sasl_server import BearerLoginFailed

__all__ = ["INVALID_TOKEN", "BearerLogin"]

INVALID_TOKEN = b'{"status":"invalid_token"}'
_KVSEP = b"\x01"


class BearerLogin:
    """One login by a token. `on_unknown_key` is called once, if the issuer's known keys lack the token's key."""

    def __init__(
        self,
        rules: TokenRules,
        keys: Callable[[], KeySet | None],
        now: Callable[[], Moment],
        on_unknown_key: Callable[[], None],
    ) -> None:
        """`keys` returns the known keys of the issuer (None before the first fetch). `now` returns the current time."""
        self._rules = rules
        self._keys = keys
        self._now = now
        self._on_unknown_key = on_unknown_key
        self._refusal = ""
        self.claimed_name = ""
        """The name in the token, whether the token is accepted or not."""
        self.bearer: Bearer | None = None
        """The facts in the token; None until it was accepted."""
        self.seconds_left = 0.0

    @property
    def principal_name(self) -> str:
        """The user's name in the token; empty until the token was accepted."""
        return "" if self.bearer is None else self.bearer.principal_name

    def answer(self, data: bytes) -> bytes:
        """Answer the client's message. Raises `BearerLoginFailed` if the login has failed."""
        if self._refusal:
            raise BearerLoginFailed(self._refusal, INVALID_TOKEN.decode())
        assert self.bearer is None, "the login is over, so it must not get another message"
        try:
            message = decode_client_message(data)
            self.claimed_name = self._rules.claimed_name(message.token)
            bearer = self._judge(message.token)
        except MalformedClientMessage as error:
            raise BearerLoginFailed(str(error)) from error
        except TokenRefused as refused:
            self._refusal = str(refused)
            return INVALID_TOKEN
        if message.authorization_id and message.authorization_id != bearer.principal_name:
            raise BearerLoginFailed(
                "the client requests an authorization id that is not its token's subject",
                f"Authentication failed: Client requested an authorization id ({message.authorization_id}) that is "
                f"different from the token's principal name ({bearer.principal_name})",
            )
        self.bearer = bearer
        self.seconds_left = bearer.expires_at - self._now().latest_ms / 1000
        return b""

    def _judge(self, token: str) -> Bearer:
        keys = self._keys()
        if keys is None:
            self._on_unknown_key()
            raise TokenRefused("this node has not fetched the issuer's keys yet")
        try:
            return self._rules.judge(token, keys, self._now())
        except UnknownKey:
            self._on_unknown_key()
            raise
