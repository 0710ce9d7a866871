"""Makes the responses of views that go on: server-sent events and downloads. PORTED.

Each such view has a thread of its own for as long as its reader listens. At most `STREAMS_MAX` run at once,
and `STREAMS_OF_USER_MAX` of a user who has logged in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from urllib.parse import quote

from odradek.console.http.messages import Gone, Response, Send
from odradek.console.sessions.session import Session
from odradek.console.sessions.visits import TROUBLE
from odradek.console.shapes.documents import encode_document
from odradek.console.shapes.view_errors import ViewError, view_error_of
from odradek.console.streams.thread_stream import (
    ByteStream,
    EventStream,
    StreamOver,
    ThreadStream,
    encode_event,
)
from odradek.console.views.route import Route
from odradek.env.ports import Clock, ConnectionLost, Event, Log, TaskGroup, Workers

__all__ = ["EVENT_HEADERS", "STREAMS_MAX", "StreamResponses"]

STREAMS_MAX = 16
STREAMS_OF_USER_MAX = 4
EVENT_HEADERS = (("Content-Type", "text/event-stream"), ("Cache-Control", "no-store"))
SILENCE = b": \n\n"
"""A comment of server-sent events, which browsers ignore."""


class StreamResponses:
    """The streams that run."""

    def __init__(
        self,
        *,
        clock: Clock,
        workers: Workers,
        new_event: Callable[[], Event],
        call_soon: Callable[[Callable[[], None]], None],
        tasks: TaskGroup,
        log: Log,
    ) -> None:
        self._clock = clock
        self._workers = workers
        self._new_event = new_event
        self._call_soon = call_soon
        self._tasks = tasks
        self._log = log
        self._running: Counter[Hashable] = Counter()

    def statistics(self) -> dict[str, int]:
        """Return the number of streams that run."""
        return {"streams": self._running.total()}

    async def response(self, route: Route, session: Session, query: object) -> Response:
        """Make the response of a view that goes on. Raises `ViewError`."""
        if session.is_limited and self._running[session.sharer] >= STREAMS_OF_USER_MAX:
            raise ViewError(
                503, "TOO_MANY_STREAMS", f"you have {STREAMS_OF_USER_MAX} streams already: close another page"
            )
        if self._running.total() >= STREAMS_MAX:
            raise ViewError(503, "TOO_MANY_STREAMS", f"{STREAMS_MAX} streams run already: close another page")
        stream = ThreadStream(self._new_event, self._call_soon)
        if route.send is not None:
            send_events = route.send
            return self._events(session, stream, lambda: send_events(session, query, EventStream(stream)))
        write = route.write
        assert write is not None
        file = _File(self._new_event(), self._call_soon)
        self._start(session, stream, lambda: write(session, query, ByteStream(stream, file.begin)), file.fail)
        try:
            await file.decided.wait()
        except BaseException:
            stream.end()
            raise
        if not file.is_begun:
            # The reason is there already, since nothing but an error ends the wait before the file begins.
            assert file.error is not None
            raise file.error

        async def run(send: Send, gone: Gone) -> None:
            await stream.pump(send, gone, self._clock, b"")
            if file.error is not None:
                # Without the end of the body, the browser knows that the file is not whole.
                raise ConnectionLost("the file could not be completed")

        headers = (
            ("Content-Type", file.content_type),
            ("Content-Disposition", f"attachment; filename*=UTF-8''{quote(file.name, safe='')}"),
            ("Cache-Control", "no-store"),
        )
        return Response(200, headers, stream=run, close=stream.end)

    def _events(self, session: Session, stream: ThreadStream, work: Callable[[], None]) -> Response:
        async def run(send: Send, gone: Gone) -> None:
            # Without a first byte, browsers may wait with the event that the stream is open.
            await send(SILENCE)
            await stream.pump(send, gone, self._clock, SILENCE)

        def fail(error: ViewError) -> None:
            document = {"status": error.status, "code": error.code, "sentence": error.sentence}
            stream.add(encode_event(TROUBLE, encode_document(document)))

        self._start(session, stream, work, fail)
        return Response(200, EVENT_HEADERS, stream=run, close=stream.end)

    def _start(
        self,
        session: Session,
        stream: ThreadStream,
        work: Callable[[], None],
        fail: Callable[[ViewError], None],
    ) -> None:
        self._running[session.sharer] += 1
        self._tasks.start_soon(self._work, session.sharer, stream, work, fail, name="console stream")

    async def _work(
        self,
        sharer: Hashable,
        stream: ThreadStream,
        work: Callable[[], None],
        fail: Callable[[ViewError], None],
    ) -> None:
        """Run a view to its end. Its error goes to `fail`, on the event loop."""
        try:
            await self._workers.run(work)
        except StreamOver:
            return
        except Exception as error:  # noqa: BLE001 - a bug of one view ends only its stream
            found = view_error_of(error)
            if found is None:
                self._log.exception("console.bug")
                found = ViewError(500, "BUG", "the console has a bug here; its log has more")
            fail(found)
        finally:
            self._running[sharer] -= 1
            if not self._running[sharer]:
                del self._running[sharer]
            stream.finish()


class _File:
    """What a view has decided about its file: it has begun, or there is none."""

    def __init__(self, decided: Event, call_soon: Callable[[Callable[[], None]], None]) -> None:
        self.decided = decided
        self._call_soon = call_soon
        self.name = ""
        self.content_type = ""
        self.is_begun = False
        """False if the view has failed before its file began."""
        self.error: ViewError | None = None

    def begin(self, name: str, content_type: str) -> None:
        """Note, in the view's thread, that the file begins."""
        self.name, self.content_type = name, content_type
        self.is_begun = True
        self._call_soon(lambda: self.decided.set())

    def fail(self, error: ViewError) -> None:
        """Note, on the event loop, that there is no file, or that it is not whole."""
        self.error = error
        self.decided.set()
