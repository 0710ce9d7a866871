"""Answers that requests share: refusals and errors leave nothing behind, and each wait ends."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable

import attrs
import pytest
import trio
import trio.testing

from odradek.console import application as application_module
from odradek.console.application import Application
from odradek.console.process import make_application
from odradek.console.sessions.doors import OpenDoor
from odradek.console.sessions.session import Session
from odradek.console.settings import ConsoleSettings
from odradek.console.shapes.fields import about
from odradek.console.shapes.queries import NoQuery
from odradek.console.shapes.view_errors import ViewError
from odradek.console.views.route import viewed
from odradek.env.real import RealEnv
from tests.console.http.served import Lines

LIMIT = 4
SECONDS = 20


@attrs.frozen
class Number:
    """An answer for tests."""

    number: int = attrs.field(metadata=about("a number"))


@attrs.define
class Blocked:
    """A view that waits until it may go on."""

    go: threading.Event = attrs.field(factory=threading.Event)
    calls: int = 0
    fails: bool = False

    def view(self, session: Session, query: NoQuery) -> Number:
        """Wait."""
        self.calls += 1
        assert self.go.wait(SECONDS)
        if self.fails:
            raise ZeroDivisionError
        return Number(7)


def run(body: Callable[[Application, Session, Blocked], Awaitable[None]]) -> None:
    """Run a coroutine function with an application, a session, and a view that waits."""

    async def main() -> None:
        settings, log = ConsoleSettings(bootstrap="127.0.0.1:1"), Lines()
        session, blocked = Session({"bootstrap.servers": "127.0.0.1:1"}), Blocked()
        try:
            with trio.fail_after(SECONDS):
                async with trio.open_nursery() as tasks:
                    application = make_application(settings, RealEnv(), OpenDoor(session), tasks, log)
                    try:
                        await body(application, session, blocked)
                    finally:
                        blocked.go.set()
        finally:
            session.close()

    trio.run(main)


def test_a_view_that_is_refused_is_computed_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """With too many running views, others are refused at once. When the crowd has gone, the same views are answered."""
    monkeypatch.setattr(application_module, "SHARED_MAX", LIMIT)

    async def body(application: Application, session: Session, blocked: Blocked) -> None:
        routes = [viewed(f"/api/blocked{number}", blocked.view) for number in range(2 * LIMIT)]
        async with trio.open_nursery() as crowd:
            for route in routes[:LIMIT]:
                crowd.start_soon(application.viewed, session, route, NoQuery())
            await trio.testing.wait_all_tasks_blocked()
            for route in routes[LIMIT:] * 2:
                with pytest.raises(ViewError, match="too many views"):
                    await application.viewed(session, route, NoQuery())
            assert application.statistics()["shared_answers"] == LIMIT
            blocked.go.set()
        for route in routes:
            assert await application.viewed(session, route, NoQuery()) == b'{"number":7}'
        assert application.statistics()["shared_answers"] == LIMIT

    run(body)


def test_an_error_is_shared_only_by_those_who_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A view that fails wakes all who wait for it, and the next request computes it again."""

    async def body(application: Application, session: Session, blocked: Blocked) -> None:
        route, codes = viewed("/api/blocked", blocked.view), []

        async def ask() -> None:
            try:
                await application.viewed(session, route, NoQuery())
            except ViewError as error:
                codes.append(error.code)

        blocked.fails = True
        async with trio.open_nursery() as crowd:
            for _ in range(5):
                crowd.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            blocked.go.set()
        assert (codes, blocked.calls) == (["BUG"] * 5, 1)
        blocked.fails = False
        assert await application.viewed(session, route, NoQuery()) == b'{"number":7}'
        assert blocked.calls == 2

    run(body)


def test_who_waits_for_another_request_waits_for_a_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that waits for the answer of another one gives up after a while."""
    monkeypatch.setattr(application_module, "SHARED_WAIT_SECONDS_MAX", 0.1)

    async def body(application: Application, session: Session, blocked: Blocked) -> None:
        route = viewed("/api/blocked", blocked.view)
        async with trio.open_nursery() as crowd:
            crowd.start_soon(application.viewed, session, route, NoQuery())
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(ViewError, match="takes too long"):
                await application.viewed(session, route, NoQuery())
            blocked.go.set()

    run(body)
