"""A server of the console's pages over recorded answers, under the content policy that the console has.

A test says what the API answers, and changes it while the browser looks: `server.world["/api/groups"] = []`. An answer
may be a status with a sentence (`Refused`), or may never come (`Hanging`).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from tests.console.browser.recorded_answers import Answer, World

__all__ = ["PAGES", "FixtureServer", "Hanging", "Refused", "serve"]

PAGES = Path(__file__).parents[3] / "odradek/console/pages"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; font-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}


class Refused(NamedTuple):
    """An answer that is an error."""

    status: int
    sentence: str
    code: str = "REFUSED"


class Hanging:
    """An answer that does not come before `release`."""

    def __init__(self) -> None:
        self.release = threading.Event()


class FixtureServer:
    """What the server answers, and what it was asked."""

    def __init__(self, world: World) -> None:
        self.world: dict[str, Answer | Refused | Hanging] = dict(world)
        self.records: Sequence[Answer] = []
        """The records that a reader of messages gets."""
        self.arriving: Sequence[Answer] = []
        """The records that a follower gets one by one."""
        self.tail_next: str | None = None
        self.tail_scanned = 1 << 30
        """The most records that the progress of a tail counts."""
        """Where reading goes on after a tail that ends at once; None: the tail does not end."""
        self.asked: list[str] = []
        """The addresses of the API in the order of the requests."""
        self.streams_ended = threading.Semaphore(0)
        """Released each time that a browser has ended a stream."""
        self.url = ""
        self.closing = threading.Event()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    fixture: FixtureServer

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        self.fixture.asked.append(f"{self.path} {body.decode()}")
        self._answer(self.fixture.world.get(urlsplit(self.path).path, Refused(401, "the password is wrong")))

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        if not parts.path.startswith("/api/"):
            self._file(parts.path)
            return
        self.fixture.asked.append(self.path)
        if parts.path == "/api/events":
            self._events()
        elif parts.path == "/api/messages" and "/api/messages" not in self.fixture.world:
            self._messages(parse_qs(parts.query))
        else:
            self._answer(self.fixture.world.get(unquote(parts.path), Refused(404, "there is no such thing")))

    def _file(self, path: str) -> None:
        file = PAGES / path[1:]
        if not path[1:] or not file.is_file():
            file = PAGES / "index.html"
        self._send(200, _TYPES.get(file.suffix, "text/plain"), file.read_bytes())

    def _answer(self, answer: Answer | Refused | Hanging) -> None:
        if isinstance(answer, Hanging):
            answer.release.wait(60)
            answer = None
        if isinstance(answer, Refused):
            told = {"status": answer.status, "code": answer.code, "sentence": answer.sentence}
            self._send(answer.status, "application/json", json.dumps(told).encode())
        else:
            self._send(200, "application/json", json.dumps(answer).encode())

    def _send(self, status: int, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def _begin_stream(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True

    def _event(self, name: str, data: Answer) -> None:
        self.wfile.write(f"event: {name}\ndata: {json.dumps(data)}\n\n".encode())
        self.wfile.flush()

    def _events(self) -> None:
        answer = self.fixture.world.get("/api/overview")
        if isinstance(answer, Refused | Hanging):
            self._answer(answer)
            return
        self._begin_stream()
        try:
            while not self.fixture.closing.is_set():
                answer = self.fixture.world.get("/api/overview")
                if isinstance(answer, Refused | Hanging):
                    return
                self._event("overview", answer)
                self.fixture.closing.wait(0.4)
        except OSError:
            self.fixture.streams_ended.release()

    def _messages(self, words: dict[str, list[str]]) -> None:
        self._begin_stream()
        follows = words.get("tail") == ["1"]
        records = self.fixture.arriving if follows else self.fixture.records
        try:
            for found, each in enumerate(records, 1):
                self._event("record", each)
                if found % 50 == 0 or follows:
                    told: Answer = {
                        "scanned": min(found, self.fixture.tail_scanned),
                        "scanned_bytes": found * 171,
                        "total": len(records),
                        "found": found,
                    }
                    self._event("progress", told)
            if not follows:
                self._event("end", {"reason": "end", "next": None})
                return
            if self.fixture.tail_next is not None:
                self._event("end", {"reason": "budget", "next": self.fixture.tail_next})
                return
            while not self.fixture.closing.wait(0.1):
                scanned = min(len(records), self.fixture.tail_scanned)
                self._event(
                    "progress",
                    {"scanned": scanned, "scanned_bytes": 0, "total": None, "found": len(records)},
                )
        except OSError:
            self.fixture.streams_ended.release()


@contextmanager
def serve(world: World) -> Iterator[FixtureServer]:
    """Serve the pages over these answers, on a free port of loopback."""
    fixture = FixtureServer(world)
    handler = type("Handler", (_Handler,), {"fixture": fixture})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    fixture.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield fixture
    finally:
        fixture.closing.set()
        for each in fixture.world.values():
            if isinstance(each, Hanging):
                each.release.set()
        server.shutdown()
        thread.join()
        server.server_close()
