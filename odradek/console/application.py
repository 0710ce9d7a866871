"""Answers the requests of browsers: rules, pages, the API. PORTED.

A view runs in a worker thread. Equal views of the same user within `SHARED_SECONDS` are computed once: later requests
wait for the first, or get its bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from random import Random

import attrs

from odradek.console.broadcasts import Broadcasts
from odradek.console.http.compression import ZIP_BYTES_MIN, accepts_gzip, zipped
from odradek.console.http.messages import Request, Response
from odradek.console.http.page_files import PageFile
from odradek.console.http.request_rules import POSTED, HostRules, judge_request
from odradek.console.openapi import description
from odradek.console.routes import route_of
from odradek.console.sessions.doors import Door
from odradek.console.sessions.session import Session
from odradek.console.sessions.turns import Turns
from odradek.console.shapes.documents import encode_document
from odradek.console.shapes.view_errors import ViewError, view_error_of
from odradek.console.stream_responses import StreamResponses
from odradek.console.views.cluster import stranger
from odradek.console.views.route import Route
from odradek.env.ports import Env, Event, Log, TaskGroup, Workers

__all__ = ["Application"]

SHARED_SECONDS = 1.0
SHARED_MAX = 256
VIEWS_OF_USER_MAX = 2
"""The views of one user that are computed at once; others wait."""
SHARED_WAIT_SECONDS_MAX = 60.0
"""The time for which a request waits for an answer that another request has asked for."""
_JSON = (("Content-Type", "application/json"), ("Cache-Control", "no-store"))
_IN_GZIP = ("Content-Encoding", "gzip")
_PLAIN = ("/api/message",)
"""Views whose answers have texts of records, and are never compressed (`http/compression.py`)."""
_DONE = b"{}"
_PAGE_NAMES = frozenset(
    {
        "access",
        "brokers",
        "clients",
        "groups",
        "history",
        "login",
        "messages",
        "moves",
        "topics",
        "transactions",
    }
)
"""The first parts of the addresses of pages."""


@attrs.define(eq=False)
class _Shared:
    """An answer of a view that several requests share."""

    event: Event
    made_at: float = float("-inf")
    body: bytes = b""
    zipped: bytes | None = None
    """The body in gzip, once somebody has asked for it."""
    error: ViewError | None = None


class Application:
    """The console as a function from a request to a response."""

    def __init__(
        self,
        *,
        hosts: HostRules,
        pages: Mapping[str, PageFile],
        door: Door,
        streams: StreamResponses,
        env: Env,
        workers: Workers,
        tasks: TaskGroup,
        log: Log,
    ) -> None:
        self._hosts = hosts
        self._pages = pages
        self._door = door
        self._streams = streams
        self._clock = env.clock
        self._workers = workers
        self._new_event = env.event
        self._log = log
        self._new_uuid = env.new_uuid
        self._broadcasts = Broadcasts(
            self.viewed, clock=env.clock, meter=env.meter, tasks=tasks, new_event=env.event
        )
        self._turns = Turns(VIEWS_OF_USER_MAX, env.event)
        self._shared: dict[tuple[Session, str, object], _Shared] = {}

    def statistics(self) -> dict[str, int]:
        """Return counters by name: shared answers, streams, polls and their listeners."""
        return {
            "shared_answers": len(self._shared),
            **self._streams.statistics(),
            **self._broadcasts.statistics(),
        }

    async def answer(self, request: Request) -> Response:
        """Make the response to a request. It never raises, except if the task is cancelled."""
        refusal = judge_request(request, self._hosts)
        try:
            if refusal is not None:
                raise ViewError(refusal.status, refusal.code, refusal.sentence)
            if request.parts[0] == "api":
                return await self._api(request)
            return self._page(request)
        except ViewError as error:
            return _error_response(request, error)

    def _page(self, request: Request) -> Response:
        file = self._pages.get(request.path)
        if file is None and (request.parts[0] in _PAGE_NAMES or request.path == "/"):
            file = self._pages.get("/index.html")
        if file is None:
            raise ViewError(404, "NOT_FOUND", "there is no such page")
        small = file.zipped if accepts_gzip(request.header("accept-encoding")) else None
        tag = file.tag if small is None else file.zipped_tag
        headers: tuple[tuple[str, str], ...] = (
            ("Content-Type", file.content_type),
            ("Cache-Control", "no-cache"),
            ("ETag", tag),
            ("Vary", "Accept-Encoding"),
        )
        if request.header("if-none-match") == tag:
            return Response(304, headers)
        if small is not None:
            return Response(200, (*headers, _IN_GZIP), small)
        return Response(200, headers, file.data)

    async def _api(self, request: Request) -> Response:
        match request.path:
            case "/api/login":
                return Response(200, (*_JSON, ("Set-Cookie", await self._door.log_in(request))), _DONE)
            case "/api/logout":
                return Response(200, (*_JSON, ("Set-Cookie", await self._door.log_out(request))), _DONE)
            case "/api/openapi.json":
                return self._description(request)
        visit = self._door.visit_of(request)
        if visit is None and request.path == "/api/session" and not request.words:
            mechanisms = await self._door.mechanisms()
            document = encode_document(stranger(mechanisms, self._door.certificate_user(request)))
            return Response(200, _JSON, document)
        if visit is None:
            raise ViewError(401, "LOGIN_NEEDED", "log in first")
        session = visit.session
        if request.path == "/api/events":
            return visit.bind(self._events(session, request.words))
        route, query = _asked(request.parts, request.words)
        if route.run is None:
            return visit.bind(await self._streams.response(route, session, query))
        shared = await self._answered(session, route, query)
        if len(shared.body) < ZIP_BYTES_MIN or route.path in _PLAIN:
            return Response(200, _JSON, shared.body)
        headers = (*_JSON, ("Vary", "Accept-Encoding"))
        if not accepts_gzip(request.header("accept-encoding")):
            return Response(200, headers, shared.body)
        if shared.zipped is None:
            # Nobody can guess the number of added bytes.
            seed = int.from_bytes(self._new_uuid(), "big")
            shared.zipped = await self._workers.run(zipped, shared.body, Random(seed))
        return Response(200, (*headers, _IN_GZIP), shared.zipped)

    def _description(self, request: Request) -> Response:
        headers = (*_JSON, ("Vary", "Accept-Encoding"))
        if accepts_gzip(request.header("accept-encoding")):
            return Response(200, (*headers, _IN_GZIP), _zipped_description())
        return Response(200, headers, description())

    def _events(self, session: Session, words: Sequence[tuple[str, str]]) -> Response:
        """Answer a page that listens. The word `view` names the view; all other words are for this view."""
        names = [value for name, value in words if name == "view"] or ["overview"]
        if len(names) > 1:
            raise ViewError(400, "INVALID_QUERY", "the word 'view' of the address: it is given twice")
        rest = [each for each in words if each[0] != "view"]
        route, query = _asked(("api", *names[0].split("/")), rest)
        if route.run is None:
            raise ViewError(
                400, "INVALID_QUERY", "the word 'view' of the address: this view cannot be listened to"
            )
        return self._broadcasts.response(names[0].partition("/")[0], route, session, query)

    async def viewed(self, session: Session, route: Route, query: object) -> bytes:
        """Return the encoded answer of a view that answers once. Raises `ViewError`."""
        return (await self._answered(session, route, query)).body

    async def _answered(self, session: Session, route: Route, query: object) -> _Shared:
        """Return the answer of a view, which other requests may have asked for, too. Raises `ViewError`."""
        key = (session, route.path, query)
        shared = self._shared.get(key)
        if shared is None or (
            shared.event.is_set() and self._clock.monotonic() - shared.made_at > SHARED_SECONDS
        ):
            self._make_room()
            shared = self._shared[key] = _Shared(self._new_event())
            try:
                await self._compute(shared, session, route, query)
            finally:
                # Nobody gets an error that is older than his request.
                if shared.error is not None and self._shared.get(key) is shared:
                    del self._shared[key]
        else:
            with self._clock.timeout_at(self._clock.monotonic() + SHARED_WAIT_SECONDS_MAX) as waited:
                await shared.event.wait()
            if waited.expired and not shared.event.is_set():
                raise ViewError(504, "TOO_BUSY", "this view takes too long: try again in a moment")
        if shared.error is not None:
            raise shared.error
        return shared

    async def _compute(self, shared: _Shared, session: Session, route: Route, query: object) -> None:
        run = route.run
        assert run is not None
        try:
            if session.is_limited:
                async with self._turns.of(session):
                    shared.body = await self._workers.run(lambda: encode_document(run(session, query)))
            else:
                shared.body = await self._workers.run(lambda: encode_document(run(session, query)))
        except Exception as error:  # noqa: BLE001 - a bug of one view ends only its request
            shared.error = view_error_of(error)
            if shared.error is None:
                self._log.exception("console.bug", path=route.path)
                shared.error = ViewError(500, "BUG", "the console has a bug here; its log has more")
        finally:
            if not shared.body and shared.error is None:
                shared.error = ViewError(503, "CANCELLED", "the console is closing")
            shared.made_at = self._clock.monotonic()
            shared.event.set()

    def _make_room(self) -> None:
        """Forget answers that are too old, or too many. Raises `ViewError` if too many are still computed."""
        now = self._clock.monotonic()
        done = [key for key, each in self._shared.items() if each.event.is_set()]
        done.sort(key=lambda key: self._shared[key].made_at)
        for key in done:
            if now - self._shared[key].made_at > SHARED_SECONDS or len(self._shared) >= SHARED_MAX:
                del self._shared[key]
        if len(self._shared) >= SHARED_MAX:
            raise ViewError(503, "TOO_BUSY", "too many views are computed at once: try again in a moment")


@cache
def _zipped_description() -> bytes:
    return zipped(description())


def _asked(parts: Sequence[str], words: Sequence[tuple[str, str]]) -> tuple[Route, object]:
    """Find the route of a path, and read its query. Raises `ViewError`."""
    found = route_of(parts)
    if found is None:
        raise ViewError(404, "NOT_FOUND", "the API has no such address; /api/openapi.json lists them")
    route, given = found
    return route, route.parse((*given, *words))


def _error_response(request: Request, error: ViewError) -> Response:
    document = {"status": error.status, "code": error.code, "sentence": error.sentence}
    headers: tuple[tuple[str, str], ...] = _JSON
    if error.status == 405:
        headers = (*headers, ("Allow", "POST" if request.path in POSTED else "GET"))
    return Response(error.status, headers, encode_document(document))
