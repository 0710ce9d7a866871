"""The share of one user who has logged in: streams and views of one do not use up those of the others."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import attrs
import pytest
import trio
import trio.testing

from odradek.console.application import VIEWS_OF_USER_MAX
from odradek.console.broadcasts import LISTENERS_OF_USER_MAX
from odradek.console.http.messages import Gone, Response
from odradek.console.process import make_application
from odradek.console.sessions.doors import OpenDoor
from odradek.console.sessions.grants import CERTIFICATE
from odradek.console.sessions.session import Session
from odradek.console.sessions.turns import WAITING_MAX, Turns
from odradek.console.settings import ConsoleSettings
from odradek.console.shapes.fields import about
from odradek.console.shapes.queries import NoQuery
from odradek.console.shapes.view_errors import ViewError
from odradek.console.stream_responses import STREAMS_OF_USER_MAX
from odradek.console.streams.thread_stream import EventStream
from odradek.console.views.route import streamed, viewed
from odradek.env.real import RealEnv
from tests.console.http.served import Lines

SECONDS = 20


@attrs.frozen
class Number:
    """An answer for tests."""

    number: int = attrs.field(metadata=about("a number"))


@pytest.fixture
def users() -> Iterator[tuple[Session, Session]]:
    """Return the sessions of two users who have logged in. Nobody connects."""
    made = [Session({"bootstrap.servers": "127.0.0.1:1"}, name, "PLAIN") for name in ("greedy", "other")]
    yield made[0], made[1]
    for each in made:
        each.close()


async def discard(data: bytes) -> None:
    """Take bytes."""
    await trio.lowlevel.checkpoint()


def test_views_of_one_user_leave_threads_to_others(users: tuple[Session, Session]) -> None:
    """Ten slow views of one user run two at a time, so that another one is answered at once."""
    greedy, other = users
    go, lock, begun = threading.Event(), threading.Lock(), threading.Semaphore(0)
    running, most = [0], [0]

    def slow(session: Session, query: NoQuery) -> Number:
        """Wait."""
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        begun.release()
        assert go.wait(SECONDS)
        with lock:
            running[0] -= 1
        return Number(1)

    def quick(session: Session, query: NoQuery) -> Number:
        """Answer."""
        return Number(2)

    async def main() -> None:
        async with trio.open_nursery() as tasks:
            settings = ConsoleSettings(bootstrap="127.0.0.1:1")
            application = make_application(settings, RealEnv(), OpenDoor(greedy), tasks, Lines())
            try:
                async with trio.open_nursery() as crowd:
                    for number in range(10):
                        crowd.start_soon(
                            application.viewed, greedy, viewed(f"/api/slow{number}", slow), NoQuery()
                        )
                    await trio.testing.wait_all_tasks_blocked()
                    with trio.fail_after(SECONDS / 2):
                        for _ in range(VIEWS_OF_USER_MAX):
                            await trio.to_thread.run_sync(begun.acquire)
                        found = await application.viewed(other, viewed("/api/quick", quick), NoQuery())
                    assert found == b'{"number":2}'
                    go.set()
            finally:
                go.set()
        assert most == [VIEWS_OF_USER_MAX]

    trio.run(main)


def test_streams_and_listeners_of_one_user_are_limited(users: tuple[Session, Session]) -> None:
    """A user gets four streams and eight pages that listen. Another user still gets his."""
    greedy, other = users
    over = threading.Event()

    def waiting(session: Session, query: NoQuery, stream: EventStream) -> None:
        """Wait for the end."""
        assert over.wait(SECONDS)

    def quick(session: Session, query: NoQuery) -> Number:
        """Answer."""
        return Number(2)

    async def main() -> None:
        env = RealEnv()
        async with trio.open_nursery() as tasks:
            settings = ConsoleSettings(bootstrap="127.0.0.1:1")
            application = make_application(settings, env, OpenDoor(greedy), tasks, Lines())
            streams, polls = application._streams, application._broadcasts
            route, view = streamed("/api/waiting", waiting, {}), viewed("/api/quick", quick)
            try:
                for _ in range(STREAMS_OF_USER_MAX):
                    await streams.response(route, greedy, NoQuery())
                with pytest.raises(ViewError, match="you have 4 streams"):
                    await streams.response(route, greedy, NoQuery())
                await streams.response(route, other, NoQuery())
                for _ in range(LISTENERS_OF_USER_MAX):
                    await begin(tasks, polls.response("quick", view, greedy, NoQuery()))
                with pytest.raises(ViewError, match="8 of your pages"):
                    polls.response("quick", view, greedy, NoQuery())
                await begin(tasks, polls.response("quick", view, other, NoQuery()))
            finally:
                over.set()
                tasks.cancel_scope.cancel()

    trio.run(main)


def test_all_sessions_of_a_user_have_one_share() -> None:
    """Each login by certificate, and each new token, has a session of its own. They share the user's share."""
    keys = {"bootstrap.servers": "127.0.0.1:1"}
    by_password, by_certificate, again = (
        Session(keys, "greedy", mechanism) for mechanism in ("PLAIN", CERTIFICATE, CERTIFICATE)
    )
    token, new_token, nameless, other = (
        Session(keys, name, "OAUTHBEARER") for name in ("greedy", "greedy", None, None)
    )
    over, lock, running, most = threading.Event(), threading.Lock(), [0], [0]

    def waiting(session: Session, query: NoQuery, stream: EventStream) -> None:
        """Wait for the end."""
        assert over.wait(SECONDS)

    def quick(session: Session, query: NoQuery) -> Number:
        """Answer, and count the views that run at once."""
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        over.wait(0.05)
        with lock:
            running[0] -= 1
        return Number(2)

    async def main() -> None:
        async with trio.open_nursery() as tasks:
            settings = ConsoleSettings(bootstrap="127.0.0.1:1")
            application = make_application(settings, RealEnv(), OpenDoor(other), tasks, Lines())
            streams, polls = application._streams, application._broadcasts
            route, view = streamed("/api/waiting", waiting, {}), viewed("/api/quick", quick)
            try:
                async with trio.open_nursery() as crowd:
                    for each in (by_password, by_certificate, again):
                        for number in range(2):
                            page = viewed(f"/api/quick{number}", quick)
                            crowd.start_soon(application.viewed, each, page, NoQuery())
                assert most[0] <= VIEWS_OF_USER_MAX
                for first, second in ((by_password, by_certificate), (token, new_token)):
                    for _ in range(STREAMS_OF_USER_MAX):
                        await streams.response(route, first, NoQuery())
                    with pytest.raises(ViewError, match="you have 4 streams"):
                        await streams.response(route, second, NoQuery())
                for each in (nameless, other):
                    await streams.response(route, each, NoQuery())
                for number in range(LISTENERS_OF_USER_MAX):
                    session = (by_certificate, again)[number % 2]
                    await begin(tasks, polls.response("quick", view, session, NoQuery()))
                for each in (by_password, by_certificate, again):
                    with pytest.raises(ViewError, match="8 of your pages"):
                        polls.response("quick", view, each, NoQuery())
                polls.response("quick", view, token, NoQuery())
            finally:
                over.set()
                tasks.cancel_scope.cancel()

    trio.run(main)
    for each in (by_password, by_certificate, again, token, new_token, nameless, other):
        each.close()


async def begin(tasks: trio.Nursery, response: Response) -> None:
    """Let a page listen."""
    run = response.stream
    assert run is not None
    tasks.start_soon(run, discard, Gone())
    await trio.testing.wait_all_tasks_blocked()


def test_turns_survive_those_who_leave() -> None:
    """A view that gives up while it waits takes no turn away. Too many who wait are refused."""

    async def main() -> None:
        turns, had = Turns(1, trio.Event), []
        with trio.fail_after(SECONDS):
            async with trio.open_nursery() as crowd:
                go = trio.Event()

                async def take(name: int) -> None:
                    async with turns.of("a"):
                        had.append(name)
                        await go.wait()

                scopes = [trio.CancelScope() for _ in range(WAITING_MAX + 1)]

                async def scoped(number: int) -> None:
                    with scopes[number]:
                        await take(number)

                for number in range(len(scopes)):
                    crowd.start_soon(scoped, number)
                    await trio.testing.wait_all_tasks_blocked()
                assert had == [0]
                with pytest.raises(ViewError, match="your views wait"):
                    await take(-1)
                async with turns.of("b"):
                    pass
                for each in scopes[1:-1]:
                    each.cancel()
                await trio.testing.wait_all_tasks_blocked()
                scopes[0].cancel()
                await trio.testing.wait_all_tasks_blocked()
                assert had == [0, WAITING_MAX]
                go.set()
            async with turns.of("a"):
                pass

    trio.run(main)
