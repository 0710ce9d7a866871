"""A download whose view fails right after its beginning, before anybody else had a turn."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio
import trio.testing

from odradek.console.http.messages import Gone
from odradek.console.sessions.session import Session
from odradek.console.shapes.queries import NoQuery
from odradek.console.shapes.view_errors import ViewError
from odradek.console.stream_responses import StreamResponses
from odradek.console.streams.thread_stream import ByteStream
from odradek.console.views.route import downloaded
from odradek.env.ports import ConnectionLost
from odradek.env.real import RealEnv
from tests.console.http.served import Lines


class AtOnce:
    """Workers that run a view on the event loop, without a pause before its error is noted."""

    async def run(self, work: Callable[[], object]) -> object:
        return work()


def view(session: Session, query: NoQuery, stream: ByteStream) -> None:
    """Begin a file, and fail."""
    stream.begin("x.bin")
    raise ViewError(504, "SLOW", "too slow")


def refuse(session: Session, query: NoQuery, stream: ByteStream) -> None:
    """Fail."""
    raise ViewError(504, "SLOW", "too slow")


def test_a_file_that_has_begun_breaks_off() -> None:
    """The response has the file's name and breaks off. A view that fails before has no file, but an error."""

    async def main() -> None:
        env, sent = RealEnv(), []
        session = Session({"bootstrap.servers": "127.0.0.1:1"})

        async def send(data: bytes) -> None:
            sent.append(data)

        async with trio.open_nursery() as tasks:
            streams = StreamResponses(
                clock=env.clock,
                workers=AtOnce(),  # type: ignore[arg-type]
                new_event=env.event,
                call_soon=lambda call: call(),
                tasks=tasks,
                log=Lines(),
            )
            response = await streams.response(downloaded("/api/x", view), session, NoQuery())
            assert ("Content-Type", "application/octet-stream") in response.headers
            assert response.stream is not None
            with pytest.raises(ConnectionLost, match="completed"):
                await response.stream(send, Gone())
            with pytest.raises(ViewError, match="too slow"):
                await streams.response(downloaded("/api/y", refuse), session, NoQuery())
        session.close()

    trio.run(main)
