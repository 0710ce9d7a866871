"""A document at an address, for settings that name one. SHELL."""

from __future__ import annotations

import urllib.request
from pathlib import Path
from urllib.parse import unquote, urlsplit

from odradek.env.ports import DocumentMissing

__all__ = ["fetch_document"]

BYTES_MAX = 1 << 20
FETCH_SECONDS_MAX = 10.0


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """The settings name one address. A redirection could make a node ask any server."""

    def redirect_request(self, *_: object) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirects, urllib.request.ProxyHandler({}))


def fetch_document(url: str) -> bytes:
    """The document at `file:///PATH`, or at a server's `https` or `http` address. It blocks, so it belongs into a worker.

    Raises `DocumentMissing`, also for a redirection and for more than `BYTES_MAX` bytes.
    """
    parts = urlsplit(url)
    try:
        if parts.scheme == "file":
            with Path(unquote(parts.path)).open("rb") as file:
                data = file.read(BYTES_MAX + 1)
        elif parts.scheme in ("http", "https"):
            with _OPENER.open(url, timeout=FETCH_SECONDS_MAX) as answer:
                data = answer.read(BYTES_MAX + 1)
        else:
            raise DocumentMissing(f"an address of the kind {parts.scheme!r}; file, https and http are known")
    except (OSError, ValueError) as error:
        raise DocumentMissing(f"{type(error).__name__}: {error}") from error
    if len(data) > BYTES_MAX:
        raise DocumentMissing(f"a document beyond {BYTES_MAX} bytes")
    return bytes(data)
