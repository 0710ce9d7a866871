"""The way of a stream's bytes from the thread of a view to the connection of its reader. SHELL.

The thread writes into a buffer of at most `BUFFER_BYTES_MAX`, and waits while it is full. So a slow reader slows the view
down. When the reader has gone, the next write raises `StreamOver`. A view that may be silent for long looks at `is_over`,
or lets `call_when_over` end what it waits for.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from odradek.console.http.messages import Gone, Send
from odradek.console.shapes.documents import encode_document
from odradek.console.shapes.view_errors import ViewError
from odradek.env.ports import Clock, Event

__all__ = ["BUFFER_BYTES_MAX", "ByteStream", "EventStream", "StreamOver", "ThreadStream"]

BUFFER_BYTES_MAX = 256 * 1024
SILENT_SECONDS_MAX = 15.0
"""After this time without an event, a comment is sent. So proxies keep the connection, and a dead peer is noticed."""


class StreamOver(Exception):
    """The reader of a stream has gone. A view lets this pass."""


class ThreadStream:
    """The buffer between a view's thread and its connection. Threads use `write`, the event loop all other methods."""

    def __init__(
        self, new_event: Callable[[], Event], call_soon: Callable[[Callable[[], None]], None]
    ) -> None:
        """`call_soon` lets the event loop call a function; any thread may use it."""
        self._new_event = new_event
        self._call_soon = call_soon
        self._changed = threading.Condition()
        self._chunks: deque[bytes] = deque()
        self._size = 0
        self._is_over = False
        self._is_written = False
        """True once the view has returned."""
        self._actions: list[Callable[[], None]] = []
        self._wake = new_event()

    @property
    def is_over(self) -> bool:
        """True once the reader has gone."""
        return self._is_over

    def call_when_over(self, action: Callable[[], None]) -> None:
        """Call `action` when the reader goes; at once, if it has gone. It runs on the event loop and must not block."""
        with self._changed:
            if not self._is_over:
                self._actions.append(action)
                return
        action()

    def write(self, data: bytes) -> None:
        """Write bytes; wait while the buffer is full. Raises `StreamOver`."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_over or self._size < BUFFER_BYTES_MAX)
            if self._is_over:
                raise StreamOver
            is_first = not self._chunks
            self._chunks.append(data)
            self._size += len(data)
        if is_first:
            self._call_soon(lambda: self._wake.set())

    def add(self, data: bytes) -> None:
        """Add bytes on the event loop, beyond the limit of the buffer if need be."""
        with self._changed:
            self._chunks.append(data)
            self._size += len(data)
        self._wake.set()

    def finish(self) -> None:
        """Note, on the event loop, that the view has returned."""
        self._is_written = True
        self._wake.set()

    def end(self) -> None:
        """Note, on the event loop, that the reader has gone."""
        with self._changed:
            if self._is_over:
                return
            self._is_over = True
            self._chunks.clear()
            actions, self._actions = self._actions, []
            self._changed.notify_all()
        for action in actions:
            action()
        self._wake.set()

    async def pump(self, send: Send, gone: Gone, clock: Clock, silence: bytes) -> None:
        """Send what the view writes, until it has returned or the reader has gone. Raises `ConnectionLost`."""
        gone.call(self.end)
        while not self._is_over:
            data = self._take()
            if data:
                await send(data)
            elif self._is_written:
                return
            else:
                with clock.timeout_at(clock.monotonic() + SILENT_SECONDS_MAX) as waited:
                    await self._wake.wait()
                if waited.expired and not self._wake.is_set():
                    await send(silence)

    def _take(self) -> bytes:
        with self._changed:
            if self._wake.is_set() and not self._is_over:
                self._wake = self._new_event()
            data = b"".join(self._chunks)
            self._chunks.clear()
            self._size = 0
            self._changed.notify_all()
        return data


class EventStream:
    """The stream of a view that sends events (server-sent events of HTML)."""

    def __init__(self, stream: ThreadStream) -> None:
        self._stream = stream

    @property
    def is_over(self) -> bool:
        """True once the reader has gone."""
        return self._stream.is_over

    def call_when_over(self, action: Callable[[], None]) -> None:
        """Call `action` when the reader goes; at once, if it has gone. It runs on the event loop and must not block."""
        self._stream.call_when_over(action)

    def send(self, name: str, value: object) -> None:
        """Send an event, with a value of the same kinds as answers of views. Raises `StreamOver`."""
        self._stream.write(encode_event(name, encode_document(value)))


def encode_event(name: str, document: bytes) -> bytes:
    """Encode an event. JSON has no line breaks of its own, so it is one line of data."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), document)


class ByteStream:
    """The stream of a view that sends a file."""

    def __init__(self, stream: ThreadStream, begin: Callable[[str, str], None]) -> None:
        self._stream = stream
        self._begin = begin
        self._is_begun = False

    @property
    def is_over(self) -> bool:
        """True once the reader has gone."""
        return self._stream.is_over

    def call_when_over(self, action: Callable[[], None]) -> None:
        """Call `action` when the reader goes; at once, if it has gone. It runs on the event loop and must not block."""
        self._stream.call_when_over(action)

    def begin(self, file_name: str, content_type: str = "application/octet-stream") -> None:
        """Begin the file. Until then, the view may still raise `ViewError`. The browser saves it by this name."""
        self._is_begun = True
        self._begin(file_name, content_type)

    def write(self, data: bytes) -> None:
        """Send bytes of the file. Raises `StreamOver`."""
        if not self._is_begun:
            raise ViewError(500, "BUG", "a view has sent bytes of a file that it has not begun")
        self._stream.write(data)
