"""The form of a view for the server: its address, the classes of its query and answer, and how it is called. PURE.

A view is a plain function of a session and a query. It runs in a worker thread. A part of an address in braces is a field
of the query, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import TypeVar, get_type_hints

import attrs

from odradek.console.sessions.session import Session
from odradek.console.shapes.queries import parse_query
from odradek.console.streams.thread_stream import ByteStream, EventStream

__all__ = ["Kind", "Route", "Words", "downloaded", "streamed", "viewed"]

Q = TypeVar("Q")
A = TypeVar("A")


class Kind(Enum):
    """How a view answers: once, by events, or by a file."""

    ONCE = "once"
    EVENTS = "events"
    FILE = "file"


Words = Sequence[tuple[str, str]]


@attrs.frozen
class Route:
    """An address of the API, with the view that answers it."""

    path: str
    parts: Sequence[str]
    query: type
    answer: object
    """The type of the answer, as the view's signature says it."""
    about: str
    """What the view does: the first paragraph of its docstring."""
    kind: Kind = Kind.ONCE
    parse: Callable[[Words], object] = attrs.field(kw_only=True)
    """Reads the words of a request into the query. Raises `ViewError`."""
    run: Callable[[Session, object], object] | None = None
    """Calls a view of the kind `ONCE`."""
    send: Callable[[Session, object, EventStream], None] | None = None
    """Calls a view of the kind `EVENTS`."""
    write: Callable[[Session, object, ByteStream], None] | None = None
    """Calls a view of the kind `FILE`."""

    def match(self, parts: Sequence[str]) -> Words | None:
        """Return the words that the parts of a path give; None if the path is another address."""
        if len(parts) != len(self.parts):
            return None
        words = []
        for wanted, part in zip(self.parts, parts, strict=True):
            if wanted.startswith("{"):
                words.append((wanted[1:-1], part))
            elif wanted != part:
                return None
        return words


def viewed(path: str, view: Callable[[Session, Q], A]) -> Route:
    """Make the route of a view that answers once, from its signature and its docstring."""
    hints = get_type_hints(view)
    answer = hints.pop("return")
    _, query = hints.values()

    def run(session: Session, asked: object) -> object:
        assert isinstance(asked, query)
        return view(session, asked)

    return _route(path, view, query, answer, run=run)


def streamed(path: str, view: Callable[[Session, Q, EventStream], None], events: Mapping[str, type]) -> Route:
    """Make the route of a view that sends events. `events` has the class of each event's value."""
    _, query, *_ = get_type_hints(view).values()

    def send(session: Session, asked: object, stream: EventStream) -> None:
        assert isinstance(asked, query)
        view(session, asked, stream)

    return _route(path, view, query, events, kind=Kind.EVENTS, send=send)


def downloaded(path: str, view: Callable[[Session, Q, ByteStream], None]) -> Route:
    """Make the route of a view that sends a file."""
    _, query, *_ = get_type_hints(view).values()

    def write(session: Session, asked: object, stream: ByteStream) -> None:
        assert isinstance(asked, query)
        view(session, asked, stream)

    return _route(path, view, query, bytes, kind=Kind.FILE, write=write)


def _route(
    path: str,
    view: Callable[[Session, Q], A]
    | Callable[[Session, Q, EventStream], None]
    | Callable[[Session, Q, ByteStream], None],
    query: type,
    answer: object,
    kind: Kind = Kind.ONCE,
    *,
    run: Callable[[Session, object], object] | None = None,
    send: Callable[[Session, object, EventStream], None] | None = None,
    write: Callable[[Session, object, ByteStream], None] | None = None,
) -> Route:
    return Route(
        path,
        tuple(path[1:].split("/")),
        query,
        answer,
        " ".join((view.__doc__ or "").split("\n\n")[0].split()),
        kind,
        parse=lambda words: parse_query(query, words),
        run=run,
        send=send,
        write=write,
    )
