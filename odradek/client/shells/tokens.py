"""Makes the function that fetches a client's tokens. The modules for tokens are imported only for a client
that logs in with tokens.
"""

from __future__ import annotations

from functools import partial

from odradek.client.core.client_security import ClientSecurity
from odradek.env.token_ports import Tokens, TokenUnavailable

__all__ = ["opened_tokens"]


def opened_tokens(security: ClientSecurity | None) -> Tokens | None:
    """Return the function that returns a token for each login; None if the client needs no tokens."""
    if security is None or security.credentials is None or not security.credentials.needs_token:
        return None
    if security.tokens is not None:
        return partial(_called, security.tokens)
    from odradek.env.tokens import open_tokens

    assert security.credentials.token_request is not None, "a login by token must have a source of tokens"
    return open_tokens(security.credentials.token_request)


def _called(callback: Tokens) -> str:
    """Call the application's token callback. Any exception of the callback is raised as `TokenUnavailable`."""
    try:
        token = callback()
    except Exception as error:
        raise TokenUnavailable(f"the application's token callback raised {type(error).__name__}") from error
    if not isinstance(token, str) or not token.isascii() or not token.isprintable() or not token:
        raise TokenUnavailable(
            "the application's token callback returned no token: expected a text of printable ASCII"
        )
    return token
