"""The client's side of a SASL login: computes the messages of a mechanism, without IO. PURE."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from odradek.env.token_ports import TokenRequest
from odradek.security.oauth.client_message import ClientMessage, encode_client_message
from odradek.security.scram import MECHANISMS, ScramClient, ScramError

__all__ = ["OAUTHBEARER", "PLAIN", "Credentials", "LoginFailed", "SaslClient"]

PLAIN = "PLAIN"
OAUTHBEARER = "OAUTHBEARER"
_REFUSED = b"\x01"
"""The client's answer after its token was refused; the server then ends the login (RFC 7628, section 3.2.3)."""


class LoginFailed(Exception):
    """Raised if the server refuses the credentials, or does not prove that it knows them. The text has no password."""


@attrs.frozen
class Credentials:
    """The credentials of a login: mechanism, user and password, or a token."""

    mechanism: str
    username: str = ""
    password: str = attrs.field(repr=False, default="")
    by_token: bool = False
    """True if the user is the id of a delegation token, and the password its HMAC in base64 (KIP-48)."""
    token_request: TokenRequest | None = None
    """For OAUTHBEARER: how to fetch a token; None if the application provides tokens."""

    @property
    def needs_token(self) -> bool:
        """True if each login needs a token that has to be fetched first."""
        return self.mechanism == OAUTHBEARER


class SaslClient:
    """The client's side of one login. Call `first`, then call `answer` with each message of the server until it
    returns None.
    """

    def __init__(self, credentials: Credentials, nonce: Callable[[], str], token: str = "") -> None:
        """`nonce` returns a random text. `token` is for OAUTHBEARER."""
        self._credentials = credentials
        self._token = token
        self._refusal = ""
        mechanism = MECHANISMS.get(credentials.mechanism)
        self._scram = (
            None
            if mechanism is None
            else ScramClient(
                mechanism,
                credentials.username,
                credentials.password,
                nonce(),
                by_token=credentials.by_token,
            )
        )
        self._has_proved = False

    def first(self) -> bytes:
        if self._scram is not None:
            return self._scram.first()
        if self._credentials.needs_token:
            return encode_client_message(ClientMessage(self._token))
        return f"\0{self._credentials.username}\0{self._credentials.password}".encode()

    def answer(self, token: bytes) -> bytes | None:
        """Return the answer to the server's message; None when the login is complete. May take milliseconds. Raises
        `LoginFailed`.
        """
        if self._refusal:
            raise LoginFailed(self._refusal)
        if self._scram is None:
            if not token or not self._credentials.needs_token:
                return None
            self._refusal = f"the server refuses the token: {bytes(token[:200]).decode('ascii', 'replace')}"
            return _REFUSED
        try:
            if not self._has_proved:
                self._has_proved = True
                return self._scram.final(token)
            self._scram.check(token)
        except ScramError as error:
            raise LoginFailed(f"the login by {self._credentials.mechanism} failed: {error}") from error
        return None
