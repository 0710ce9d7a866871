"""The tokens with which a client logs in: read from a file, or requested from an issuer with client credentials
(KIP-768). SHELL.
"""

from __future__ import annotations

import base64
import json
import threading
import time
from urllib.parse import urlencode, urlsplit

import attrs

from odradek.env.documents import fetch_document
from odradek.env.ports import DocumentMissing
from odradek.env.token_ports import DocumentAddress, TokenRequest, Tokens, TokenUnavailable

__all__ = ["open_tokens"]

ATTEMPTS_MAX = 3
"""The maximum number of requests to an issuer while a login waits for a token."""


def open_tokens(request: TokenRequest) -> Tokens:
    """Make a function that returns a token. The function keeps a token for the share `refresh_window_factor`
    of the token's lifetime. It never fetches two tokens at the same time.
    """
    return _Keeper(request).token


class _Keeper:
    """Keeps the newest token for all connections of a client."""

    def __init__(self, request: TokenRequest) -> None:
        self._request = request
        self._lock = threading.Lock()
        self._token = ""
        self._good_until = self._expires_at = float("-inf")

    def token(self) -> str:
        """Return the kept token, or fetch another one. Raises `TokenUnavailable`."""
        with self._lock:
            if time.time() >= self._good_until:
                try:
                    token = self._fetch()
                except TokenUnavailable:
                    # If the issuer has not answered, the old token is used as long as it is valid.
                    if time.time() >= self._expires_at:
                        raise
                    return self._token
                began_at, self._expires_at = _life(token)
                self._token = token
                self._good_until = began_at + self._request.refresh_window_factor * (
                    self._expires_at - began_at
                )
            return self._token

    def _fetch(self) -> str:
        request = self._request
        is_file = urlsplit(request.token_endpoint.url).scheme == "file"
        address = request.token_endpoint if is_file else _asking(request)
        failures = 0
        while True:
            try:
                data = fetch_document(address)
            except DocumentMissing as error:
                failures += 1
                if is_file or failures == ATTEMPTS_MAX:
                    raise TokenUnavailable(
                        f"no access token could be fetched from {request.token_endpoint.url}: {error}"
                    ) from error
                pause_ms = min(request.retry_backoff_ms << failures - 1, request.retry_backoff_ms_max)
                time.sleep(pause_ms / 1000)
            else:
                return _text(data) if is_file else _access_token(data, request)


def _asking(request: TokenRequest) -> DocumentAddress:
    """Make the request for a token with client credentials (RFC 6749, section 4.4)."""
    fields = {"grant_type": "client_credentials"}
    if request.scope:
        fields["scope"] = request.scope
    # RFC 6749, section 2.3.1, demands that id and secret are form-encoded before they are joined. Kafka's
    # clients omit this encoding, and issuers accept that.
    pair = f"{request.client_id}:{request.client_secret}"
    return attrs.evolve(
        request.token_endpoint,
        body=urlencode(fields).encode(),
        headers={
            "Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}",
            "Content-Type": "application/x-www-form-urlencoded",
            "Accept": "application/json",
        },
    )


def _access_token(data: bytes, request: TokenRequest) -> str:
    try:
        answer = json.loads(data)
    except (ValueError, RecursionError):
        answer = None
    token = answer.get("access_token") if isinstance(answer, dict) else None
    if not isinstance(token, str) or not token:
        raise TokenUnavailable(f"the answer of {request.token_endpoint.url} has no access_token")
    return _text(token.encode())


def _text(data: bytes) -> str:
    """Decode a token, which must be printable ASCII, and remove the spaces around it."""
    try:
        text = data.decode("ascii").strip()
    except UnicodeDecodeError:
        text = ""
    if not text or not text.isprintable() or " " in text:
        raise TokenUnavailable("the content is not a token: expected printable ASCII without spaces")
    return text


def _life(token: str) -> tuple[float, float]:
    """Return the times at which a token was issued and expires, in Unix seconds. If these times cannot be
    read, the token counts as expired, so another token is fetched for each login.
    """
    now = time.time()
    try:
        payload = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        return min(float(claims.get("iat", now)), now), float(claims["exp"])
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return now, now
