"""A token endpoint for tests.

It gives tokens to clients that know the secret (RFC 6749, section 4.4), and serves the keys.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

import attrs

from tests.security.logins.issuer import Issuer

__all__ = ["CLIENT", "SECRET", "Endpoint", "token_endpoint"]

CLIENT, SECRET = "client-1", "a-client-secret"


@attrs.define
class Endpoint:
    """The endpoint's address, and the requests that it has received."""

    url: str
    given: list[str] = attrs.field(factory=list)
    """The tokens that the endpoint has given."""
    scopes: list[str] = attrs.field(factory=list)
    claims: dict[str, Any] = attrs.field(factory=dict)
    """Changes of the claims in later tokens."""
    is_away: bool = False
    """If true, the endpoint answers with an error."""


@contextmanager
def token_endpoint(issuer: Issuer) -> Iterator[Endpoint]:
    """Serve the endpoint until the block ends."""
    expected = "Basic " + base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            fields = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            if endpoint.is_away or self.headers["Authorization"] != expected:
                self.send_error(503 if endpoint.is_away else 401)
                return
            assert fields["grant_type"] == ["client_credentials"]
            endpoint.scopes += fields.get("scope", [])
            endpoint.given.append(issuer.token(**endpoint.claims))
            body = json.dumps({"access_token": endpoint.given[-1], "expires_in": 600}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Log nothing, since tests read the requests from `Endpoint`."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    endpoint = Endpoint(f"http://127.0.0.1:{server.server_port}/token")
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield endpoint
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
