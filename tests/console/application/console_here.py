"""A whole console in a thread of the test's process, and a browser that speaks JSON with it."""

from __future__ import annotations

import json
import ssl
import zlib
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPSConnection
from urllib.parse import quote

import attrs

from odradek.console.application import Application
from odradek.console.http.messages import Request, Response
from odradek.console.process import encryption_of, make_application, open_door
from odradek.console.sessions.doors import OpenDoor
from odradek.console.sessions.logins import Logins
from odradek.console.settings import ConsoleSettings
from odradek.env.ports import TaskGroup
from odradek.env.real import RealEnv
from tests.console.http.served import Lines, Served, serving

SECONDS = 30.0
EXPIRE_SECONDS = 0.2


@attrs.define
class Browser:
    """One who looks. It keeps its cookie, and says where its requests come from."""

    port: int
    cookie: str | None = None
    set_cookie: str = ""
    tls: ssl.SSLContext | None = None
    """The certificates of a browser that speaks TLS."""

    @property
    def origin(self) -> str:
        """The origin of the console's pages."""
        return f"{'http' if self.tls is None else 'https'}://127.0.0.1:{self.port}"

    def connect(self) -> HTTPConnection:
        """Make a connection, which connects at its first request."""
        if self.tls is None:
            return HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
        return HTTPSConnection("127.0.0.1", self.port, timeout=SECONDS, context=self.tls)

    def send(
        self,
        method: str,
        target: str,
        document: object = None,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> tuple[int, object, Mapping[str, str]]:
        """Send a request. Return status, document (text if it is no JSON) and headers."""
        connection = self.connect()
        try:
            given = dict(headers or {})
            if self.cookie is not None:
                given["Cookie"] = self.cookie
            if method == "POST":
                given.setdefault("Origin", self.origin)
                given.setdefault("Content-Type", "application/json")
            sent = body if body is not None else None if document is None else json.dumps(document).encode()
            connection.request(method, target, sent, given)
            answer = connection.getresponse()
            data = answer.read()
            text = (zlib.decompress(data, 31) if answer.getheader("content-encoding") else data).decode()
            found = {name.lower(): value for name, value in answer.getheaders()}
            if "set-cookie" in found:
                self.set_cookie = found["set-cookie"]
                self.cookie = self.set_cookie.partition(";")[0]
            is_json = found.get("content-type") == "application/json"
            return answer.status, json.loads(text) if is_json else text, found
        finally:
            connection.close()

    def get(self, target: str) -> tuple[int, object]:
        """Return status and document of an address."""
        return self.send("GET", target)[:2]

    def ok(self, target: str) -> object:
        """Return the document of an address, which must be there."""
        status, document = self.get(target)
        assert status == 200, document
        return document

    def log_in(self, **credentials: object) -> tuple[int, object]:
        """Log in; return status and document."""
        return self.send("POST", "/api/login", credentials)[:2]

    def events(self, target: str) -> Iterator[tuple[str, object]]:
        """Yield the events of a stream, until it ends or the caller stops."""
        connection = self.connect()
        try:
            connection.request("GET", target, headers={} if self.cookie is None else {"Cookie": self.cookie})
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            assert answer.getheader("content-type") == "text/event-stream"
            name = ""
            for line in iter(answer.readline, b""):
                word, _, value = line.decode().rstrip("\n").partition(": ")
                if word == "event":
                    name = value
                elif word == "data":
                    yield name, json.loads(value)
        finally:
            connection.close()


@attrs.define
class Console:
    """A console that runs here."""

    served: Served
    application: Application
    door: OpenDoor | Logins

    @property
    def port(self) -> int:
        return self.served.port

    def browser(self, tls: ssl.SSLContext | None = None) -> Browser:
        """Return a new browser without a cookie, with these certificates."""
        return Browser(self.port, tls=tls)


@contextmanager
def console_for(settings: ConsoleSettings) -> Iterator[Console]:
    """Run a console with these settings."""
    made: list[tuple[Application, OpenDoor | Logins]] = []

    def make(env: RealEnv, tasks: TaskGroup, log: Lines) -> Callable[[Request], Awaitable[Response]]:
        door = open_door(settings, env, 9644, log)
        application = make_application(settings, env, door, tasks, log)
        made.append((application, door))
        if isinstance(door, Logins) and settings.tls is not None:
            tasks.start_soon(expiring, env, door)
        return application.answer

    with serving(make, makes=True, encrypting=lambda env, log: encryption_of(settings, env, log)) as served:
        application, door = made[0]
        try:
            yield Console(served, application, door)
        finally:
            door.close()


async def expiring(env: RealEnv, door: Logins) -> None:
    """Look at the sessions again and again, as the console does."""
    while True:
        await env.clock.sleep_until(env.clock.monotonic() + EXPIRE_SECONDS)
        await door.expire()


def in_path(*parts: str) -> str:
    """Write an address of the API from its parts."""
    return "/".join(["/api", *(quote(each, safe="") for each in parts)])


def names_of(rows: Sequence[Mapping[str, object]]) -> list[object]:
    """Return the names of rows."""
    return [each["name"] for each in rows]
