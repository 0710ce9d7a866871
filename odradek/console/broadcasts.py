"""Views that are computed again and again while pages listen (`/api/events`). One poll serves all listeners of it. PORTED.

A poll begins with its first listener and ends after its last. The pause between two polls is at least `PAUSE_SECONDS`.
It is longer if polls are expensive, so that all polls together take at most `SHARE_MAX` of a core. A listener that reads
slowly misses answers. It gets the newest one when it reads again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import attrs

from odradek.console.http.messages import Gone, Response, Send
from odradek.console.sessions.session import Session
from odradek.console.sessions.visits import TROUBLE
from odradek.console.shapes.documents import encode_document
from odradek.console.shapes.view_errors import ViewError
from odradek.console.stream_responses import EVENT_HEADERS, SILENCE
from odradek.console.streams.thread_stream import SILENT_SECONDS_MAX, encode_event
from odradek.console.views.route import Route
from odradek.env.ports import Clock, Event, Meter, TaskGroup

__all__ = ["LISTENERS_MAX", "Broadcasts"]

LISTENERS_MAX = 32
LISTENERS_OF_USER_MAX = 8
PAUSE_SECONDS = 2.0
PAUSE_SECONDS_MAX = 30.0
SHARE_MAX = 0.01


@attrs.define(eq=False)
class _Listener:
    """A page that listens: what it has not got yet."""

    woken: Event
    data: bytes = b""
    is_over: bool = False


@attrs.define(eq=False)
class _Poll:
    """A view that is computed again and again. `data` is the newest event."""

    listeners: list[_Listener] = attrs.field(factory=list)
    data: bytes = b""


class Broadcasts:
    """The polls that run, with their listeners."""

    def __init__(
        self,
        compute: Callable[[Session, Route, object], Awaitable[bytes]],
        *,
        clock: Clock,
        meter: Meter,
        tasks: TaskGroup,
        new_event: Callable[[], Event],
    ) -> None:
        """`compute` returns the encoded answer of a view, or raises `ViewError`."""
        self._compute = compute
        self._clock = clock
        self._meter = meter
        self._tasks = tasks
        self._new_event = new_event
        self._polls: dict[tuple[Session, str, object], _Poll] = {}

    def statistics(self) -> dict[str, int]:
        """Return the numbers of polls and of their listeners."""
        return {"polls": len(self._polls), "listeners": self._count()}

    def _count(self) -> int:
        return sum(len(each.listeners) for each in self._polls.values())

    def response(self, name: str, route: Route, session: Session, query: object) -> Response:
        """Make the response to a listener. Its events have this name. Raises `ViewError`."""
        mine = sum(
            len(poll.listeners) for (owner, *_), poll in self._polls.items() if owner.sharer == session.sharer
        )
        if session.is_limited and mine >= LISTENERS_OF_USER_MAX:
            raise ViewError(
                503,
                "TOO_MANY_STREAMS",
                f"{LISTENERS_OF_USER_MAX} of your pages listen already: close another page",
            )
        if self._count() >= LISTENERS_MAX:
            raise ViewError(
                503, "TOO_MANY_STREAMS", f"{LISTENERS_MAX} pages listen already: close another page"
            )
        key = (session, route.path, query)
        listener = _Listener(self._new_event())

        async def run(send: Send, gone: Gone) -> None:
            gone.call(lambda: listener.woken.set())
            await send(SILENCE)
            poll = self._polls.get(key)
            if poll is None:
                poll = self._polls[key] = _Poll([listener])
                self._tasks.start_soon(self._run, name, key, route, poll, name="console poll")
            else:
                listener.data = poll.data
                poll.listeners.append(listener)
            try:
                await self._listen(listener, send, gone)
            finally:
                if listener in poll.listeners:
                    poll.listeners.remove(listener)

        return Response(200, EVENT_HEADERS, stream=run)

    async def _listen(self, listener: _Listener, send: Send, gone: Gone) -> None:
        while not gone.is_set:
            if listener.data:
                data, listener.data = listener.data, b""
                await send(data)
            elif listener.is_over:
                return
            else:
                listener.woken = woken = self._new_event()
                with self._clock.timeout_at(self._clock.monotonic() + SILENT_SECONDS_MAX) as waited:
                    await woken.wait()
                if waited.expired:
                    await send(SILENCE)

    async def _run(self, name: str, key: tuple[Session, str, object], route: Route, poll: _Poll) -> None:
        session, _, query = key
        try:
            while poll.listeners:
                began, spent = self._clock.monotonic(), self._meter.cpu_seconds()
                poll.data = await self._event(name, session, route, query)
                spent = self._meter.cpu_seconds() - spent
                for each in poll.listeners:
                    each.data = poll.data
                    each.is_over = session.is_closed
                    each.woken.set()
                if session.is_closed:
                    return
                pause = min(PAUSE_SECONDS_MAX, max(PAUSE_SECONDS, spent * len(self._polls) / SHARE_MAX))
                await self._clock.sleep_until(began + pause)
        finally:
            if self._polls.get(key) is poll:
                del self._polls[key]

    async def _event(self, name: str, session: Session, route: Route, query: object) -> bytes:
        try:
            if session.is_closed:
                raise ViewError(401, "LOGIN_NEEDED", "log in again")
            return encode_event(name, await self._compute(session, route, query))
        except ViewError as error:
            document = {"status": error.status, "code": error.code, "sentence": error.sentence}
            return encode_event(TROUBLE, encode_document(document))
