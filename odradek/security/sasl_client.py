"""The client's end of SASL: tokens of a mechanism, without IO. PURE."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from odradek.security.scram import MECHANISMS, ScramClient, ScramError

__all__ = ["Credentials", "LoginFailed", "SaslClient"]

PLAIN = "PLAIN"


class LoginFailed(Exception):
    """The server refuses these credentials, or failed to prove that it knows them. No password inside."""


@attrs.frozen
class Credentials:
    """Who logs in, and how."""

    mechanism: str
    username: str
    password: str = attrs.field(repr=False)
    by_token: bool = False
    """True if the user is the id of a delegation token, and the password its HMAC in base64 (KIP-48)."""


class SaslClient:
    """One exchange: `first`, then `answer` to each of the server's tokens until it gives None."""

    def __init__(self, credentials: Credentials, nonce: Callable[[], str]) -> None:
        """`nonce` gives random text."""
        self._credentials = credentials
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
        return f"\0{self._credentials.username}\0{self._credentials.password}".encode()

    def answer(self, token: bytes) -> bytes | None:
        """The next token; None when the login is complete. May cost milliseconds. Raises `LoginFailed`."""
        if self._scram is None:
            return None
        try:
            if not self._has_proved:
                self._has_proved = True
                return self._scram.final(token)
            self._scram.check(token)
        except ScramError as error:
            raise LoginFailed(f"{self._credentials.mechanism}: {error}") from error
        return None
