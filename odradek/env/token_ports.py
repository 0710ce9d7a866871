"""The port to issuers of tokens: documents at an address, and the tokens by which this end logs in.

`odradek.env.documents` and `odradek.env.tokens` implement it. This module is a leaf that every package may import.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import attrs

__all__ = ["DocumentAddress", "FetchDocument", "OpenTokens", "TokenRequest", "TokenUnavailable", "Tokens"]


class TokenUnavailable(Exception):
    """No token is available. The text gives the reason in one line, without secrets."""


@attrs.frozen
class DocumentAddress:
    """The address of a document, and the settings of the request for it."""

    url: str
    """`file:///PATH`, `https://...` or `http://...`."""
    truststore_location: str | None = None
    """A PEM file of the authorities that may sign an `https` server's certificate; None for the system's."""
    truststore_certificates: str | None = None
    """The certificates of these authorities as PEM text."""
    body: bytes | None = attrs.field(default=None, repr=False)
    """If set, it is sent by POST."""
    headers: Mapping[str, str] = attrs.field(factory=dict, repr=False)


@attrs.frozen
class TokenRequest:
    """A client's way to its tokens; the names of Kafka's keys behind `sasl.oauthbearer.`."""

    token_endpoint: DocumentAddress
    """With a `file` address the document is the token itself (KIP-768)."""
    client_id: str = ""
    client_secret: str = attrs.field(default="", repr=False)
    scope: str = ""
    refresh_window_factor: float = 0.8
    """A token is fetched anew after this share of its life (`sasl.login.refresh.window.factor`)."""
    retry_backoff_ms: int = 100
    retry_backoff_ms_max: int = 10_000


FetchDocument: TypeAlias = Callable[[DocumentAddress], bytes]
"""Fetches the document at an address. Blocks, so only workers call it. Raises `odradek.env.ports.DocumentMissing`."""
Tokens: TypeAlias = Callable[[], str]
"""Returns a token that is valid now. May block, so only workers call it. Raises `TokenUnavailable`."""
OpenTokens: TypeAlias = Callable[[TokenRequest], Tokens]
