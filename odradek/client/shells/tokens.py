"""Tokens of the shells: where they come from is decided when a client is made, and imported only then."""

from __future__ import annotations

from odradek.client.core.client_security import ClientSecurity
from odradek.env.token_ports import Tokens

__all__ = ["opened_tokens"]


def opened_tokens(security: ClientSecurity | None) -> Tokens | None:
    """The way to a token for each login; None where logins need none."""
    if security is None or security.credentials is None or not security.credentials.needs_token:
        return None
    if security.tokens is not None:
        return security.tokens
    from odradek.env.tokens import open_tokens

    assert security.credentials.token_request is not None, "the keys say where tokens are"
    return open_tokens(security.credentials.token_request)
