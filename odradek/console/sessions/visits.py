"""Visits: what a browser's cookie stands for. Responses that stream end with their visit. PORTED."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from odradek.console.http.messages import Gone, Response, Send
from odradek.console.sessions.session import Session
from odradek.console.shapes.documents import encode_document
from odradek.console.streams.thread_stream import encode_event
from odradek.env.ports import ConnectionLost

__all__ = ["TROUBLE", "Visit"]

TROUBLE = "trouble"
"""The name of the event with which a stream ends if it fails. Its value is that of any error of the API."""
_OVER = {"status": 401, "code": "LOGIN_NEEDED", "sentence": "log in again"}


class Visit:
    """A browser that was let in. Only the event loop uses it."""

    def __init__(self, session: Session) -> None:
        self.session = session
        """Its clients. Another session takes its place when its credentials are renewed."""
        self._is_over = False
        self._endings: dict[object, Callable[[], None]] = {}

    def close(self) -> None:
        """End all responses that stream, because the user has logged out, or the time is over."""
        self._is_over = True
        for end in list(self._endings.values()):
            end()

    def bind(self, response: Response) -> Response:
        """Return the response; if it streams, it ends with this visit.

        Events end with a trouble, `LOGIN_NEEDED`. A file breaks off, so that the browser does not take it for whole.
        """
        stream = response.stream
        if stream is None:
            return response

        async def run(send: Send, gone: Gone) -> None:
            ended = Gone()
            gone.call(ended.set)
            if self._is_over:
                ended.set()
            key = object()
            self._endings[key] = ended.set
            try:
                await stream(send, ended)
            finally:
                del self._endings[key]
            if not ended.is_set or gone.is_set:
                return
            if ("Content-Type", "text/event-stream") not in response.headers:
                raise ConnectionLost("the session has ended")
            await send(encode_event(TROUBLE, encode_document(_OVER)))

        return attrs.evolve(response, stream=run)
