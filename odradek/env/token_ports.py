"""The ports for documents that are fetched from an address, and for the tokens with which a client logs in.

`odradek.env.documents` and `odradek.env.tokens` implement these ports. This module is a leaf that every package may
import.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import attrs

__all__ = ["DocumentAddress", "FetchDocument", "OpenTokens", "TokenRequest", "TokenUnavailable", "Tokens"]


class TokenUnavailable(Exception):
    """Raised if there is no token. The text gives the reason in one line, without secrets."""


@attrs.frozen
class DocumentAddress:
    """The address of a document, and the settings of the request for it."""

    url: str
    """`file:///PATH`, `https://...` or `http://...`."""
    truststore_location: str | None = None
    """A PEM file with the authorities that may sign an `https` server's certificate; None for the system's
    authorities.
    """
    truststore_certificates: str | None = None
    """The certificates of the trusted authorities as PEM text."""
    body: bytes | None = attrs.field(default=None, repr=False)
    """The body of a POST request; None for a GET request."""
    headers: Mapping[str, str] = attrs.field(factory=dict, repr=False)


@attrs.frozen
class TokenRequest:
    """The settings with which a client fetches its tokens. The fields have the names of Kafka's keys after
    `sasl.oauthbearer.`.
    """

    token_endpoint: DocumentAddress
    """The address of the token issuer. With a `file` address, the document is the token itself (KIP-768)."""
    client_id: str = ""
    client_secret: str = attrs.field(default="", repr=False)
    scope: str = ""
    refresh_window_factor: float = 0.8
    """The share of a token's lifetime after which another token is fetched (`sasl.login.refresh.window.factor`)."""
    retry_backoff_ms: int = 100
    retry_backoff_ms_max: int = 10_000


FetchDocument: TypeAlias = Callable[[DocumentAddress], bytes]
"""A function that fetches the document at an address. It blocks, so only workers may call it. Raises
`odradek.env.ports.DocumentMissing`.
"""
Tokens: TypeAlias = Callable[[], str]
"""A function that returns a valid token. It may block, so only workers may call it. Raises `TokenUnavailable`."""
OpenTokens: TypeAlias = Callable[[TokenRequest], Tokens]
