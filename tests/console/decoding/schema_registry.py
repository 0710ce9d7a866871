"""A schema registry for tests: it speaks the part of Confluent's protocol that readers use, and fails on demand."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from urllib.parse import unquote

DRIP_SECONDS = 0.2


class SchemaRegistry:
    """A registry on a free port of loopback. Schemas are added by hand."""

    def __init__(self) -> None:
        self._schemas: dict[int, dict[str, object]] = {}
        self._versions: dict[tuple[str, int], int] = {}
        self.requests = 0
        self.fault = ""
        self.over = threading.Event()
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                registry.requests += 1
                registry.answer(self)

            def log_message(self, format: str, *args: object) -> None:
                """Stay silent."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> SchemaRegistry:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.over.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        """The address of the registry."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def add(
        self, schema_id: int, kind: str, text: str, references: Sequence[tuple[str, str, int]] = ()
    ) -> None:
        """Add a schema; a reference is (name, subject, version)."""
        named = [
            {"name": name, "subject": subject, "version": version} for name, subject, version in references
        ]
        self._schemas[schema_id] = {"schemaType": kind, "schema": text, "references": named}

    def add_version(self, subject: str, version: int, schema_id: int) -> None:
        """Make a schema a version of a subject."""
        self._versions[subject, version] = schema_id

    @contextmanager
    def failing(self, fault: str) -> Iterator[None]:
        """Let the registry fail in this way for the block."""
        self.fault = fault
        try:
            yield
        finally:
            self.fault = ""

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        """Answer a request, or fail."""
        match self.fault:
            case "hangs":
                self.over.wait(10)
            case "drips":
                for _ in range(100):
                    if self.over.wait(DRIP_SECONDS):
                        return
                    try:
                        handler.wfile.write(b"H")
                    except OSError:
                        return
            case "closes":
                handler.close_connection = True
            case "garbage":
                handler.wfile.write(b"\xff\x00 this is no HTTP\r\n\r\n")
            case "endless":
                self._send(handler, 200, b"x" * (3 << 20))
            case "status":
                self._send(handler, 500, b"{}")
            case "refuses":
                self._send(handler, 422, b"{}")
            case "list":
                self._send(handler, 200, b"[]")
            case "deep":
                self._send(handler, 200, b"[" * 500_000)
            case "redirect":
                handler.send_response(302)
                handler.send_header("Location", "http://127.0.0.1:1/")
                handler.send_header("Content-Length", "0")
                handler.end_headers()
            case _:
                self._answer(handler)

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        parts = [unquote(part) for part in handler.path.strip("/").split("/")]
        schema_id: int | None = None
        if parts[:2] == ["schemas", "ids"]:
            schema_id = int(parts[2])
        elif parts[0] == "subjects" and parts[2] == "versions":
            schema_id = self._versions.get((parts[1], int(parts[3])))
        found = None if schema_id is None else self._schemas.get(schema_id)
        if found is None:
            self._send(
                handler, 404, json.dumps({"error_code": 40403, "message": "Schema not found"}).encode()
            )
        else:
            self._send(handler, 200, json.dumps(found).encode())

    @staticmethod
    def _send(handler: BaseHTTPRequestHandler, status: int, body: bytes) -> None:
        handler.send_response(status)
        handler.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        try:
            handler.wfile.write(body)
        except OSError:
            # The reader has had enough.
            handler.close_connection = True
