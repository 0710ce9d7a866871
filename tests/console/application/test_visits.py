"""Cookies, and what ends with them: streams, at a logout, at the end of a session, and at the end of a token."""

from __future__ import annotations

import base64
import itertools
import json
import math
import threading
from collections.abc import Awaitable, Callable, Mapping

import attrs
import pytest
import trio
import trio.testing

from odradek.client.errors import AuthenticationFailed
from odradek.console.http.messages import Gone, Request, Response
from odradek.console.sessions.logins import SILENCE_SECONDS, Logins
from odradek.console.sessions.session import Session
from odradek.console.sessions.session_table import (
    FAILURES_MAX,
    FAILURES_OF_USER_MAX,
    IDLE_SECONDS_MAX,
    LIFE_SECONDS_MAX,
    SESSIONS_OF_OWNER_MAX,
)
from odradek.console.shapes.view_errors import ViewError
from odradek.console.stream_responses import EVENT_HEADERS
from odradek.env.ports import ConnectionLost
from odradek.env.real import RealEnv
from tests.console.http.served import Lines

NOW = 1_000_000.0
"""The wall clock's seconds when the monotonic clock says 0."""


@attrs.define
class HandClock:
    """A clock that a test moves."""

    seconds: float = 0.0

    def monotonic(self) -> float:
        return self.seconds

    def wall_ms(self) -> int:
        return int((NOW + self.seconds) * 1000)


@attrs.define
class HandEnv:
    """The ports of logins, with a clock that a test moves."""

    clock: HandClock

    def event(self) -> trio.Event:
        return trio.Event()


@attrs.define
class Brokers:
    """What brokers would say: everybody is let in but those with the password `wrong`."""

    probes: int = 0
    silent: bool = False
    go: threading.Event = attrs.field(factory=threading.Event)
    """Set unless a question or a login has to wait."""

    def mechanisms(self) -> list[str]:
        """Say how users log in."""
        self.probes += 1
        assert self.go.wait(20)
        return [] if self.silent else ["SCRAM-SHA-512", "OAUTHBEARER"]

    def session(self, properties: Mapping[str, object], user: str | None, mechanism: str) -> Session:
        """Make a session whose clients need no broker."""
        session = Session({"bootstrap.servers": "127.0.0.1:1"}, user, mechanism)

        def describe() -> None:
            assert self.go.wait(20)
            if properties.get("odradek.sasl.password") == "wrong":
                raise AuthenticationFailed("no")

        session.client.describe_cluster = describe  # type: ignore[method-assign,assignment]
        return session


@attrs.define
class Desk:
    """Logins at a clock that a test moves."""

    logins: Logins
    clock: HandClock
    brokers: Brokers

    async def log_in(self, cookie: str = "", peer: str = "10.0.0.1", **credentials: str) -> str:
        """Log in, and return the cookie."""
        headers = [("content-type", "application/json"), ("cookie", cookie)]
        body = json.dumps(credentials).encode()
        request = Request(
            "POST", "/api/login", "/api/login", ("api", "login"), (), headers, peer, False, body
        )
        return (await self.logins.log_in(request)).partition(";")[0]

    def asking(self, cookie: str) -> Request:
        """Make a request with this cookie."""
        return Request("GET", "/", "/", ("",), (), [("cookie", cookie)], "10.0.0.1")

    def is_in(self, cookie: str) -> bool:
        """Return whether the cookie opens a session."""
        return self.logins.visit_of(self.asking(cookie)) is not None

    async def open_stream(self, tasks: trio.Nursery, cookie: str, *, is_file: bool = False) -> list[object]:
        """Open a stream that sends nothing by itself. Return the list that gets what the browser gets."""
        got: list[object] = []

        async def stream(send: Callable[[bytes], Awaitable[None]], gone: Gone) -> None:
            over = trio.Event()
            gone.call(over.set)
            await over.wait()

        async def send(data: bytes) -> None:
            got.append(data)

        visit = self.logins.visit_of(self.asking(cookie))
        assert visit is not None
        response = visit.bind(Response(200, () if is_file else EVENT_HEADERS, stream=stream))
        assert response.stream is not None
        run = response.stream

        async def serve() -> None:
            try:
                await run(send, Gone())
            except ConnectionLost:
                got.append("broken off")

        tasks.start_soon(serve)
        await trio.testing.wait_all_tasks_blocked()
        return got


def with_desk(body: Callable[[Desk, trio.Nursery], Awaitable[None]]) -> None:
    """Run a coroutine function with a desk."""

    async def main() -> None:
        env, clock, brokers, numbers = RealEnv(), HandClock(), Brokers(), itertools.count()
        brokers.go.set()
        logins = Logins(
            brokers.session,
            port=1,
            is_encrypted=False,
            find_mechanisms=brokers.mechanisms,
            new_secret=lambda: f"secret{next(numbers)}",
            env=HandEnv(clock),  # type: ignore[arg-type]
            workers=env.new_workers(8),
            log=Lines(),
        )
        try:
            with trio.fail_after(20):
                async with trio.open_nursery() as tasks:
                    try:
                        await body(Desk(logins, clock, brokers), tasks)
                    finally:
                        brokers.go.set()
        finally:
            logins.close()

    trio.run(main)


def token(**claims: object) -> str:
    """Make a token with these claims, unsigned."""
    body = base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=").decode()
    return f"e30.{body}.x"


def is_trouble(got: list[object]) -> bool:
    """Return whether a stream has ended, and its browser knows that it has to log in."""
    return len(got) == 1 and b'"LOGIN_NEEDED"' in (got[0] if isinstance(got[0], bytes) else b"")


def test_streams_end_with_the_cookie_that_opened_them() -> None:
    """After a logout, the streams of this cookie end. Those of another one of the same user go on."""

    async def body(desk: Desk, tasks: trio.Nursery) -> None:
        mine = await desk.log_in(user="bob", password="x")
        other = await desk.log_in(user="bob", password="x")
        events = await desk.open_stream(tasks, mine)
        file = await desk.open_stream(tasks, mine, is_file=True)
        others = await desk.open_stream(tasks, other)
        await desk.logins.log_out(desk.asking(mine))
        await trio.testing.wait_all_tasks_blocked()
        assert is_trouble(events)
        assert file == ["broken off"]
        assert others == []
        await desk.logins.log_out(desk.asking(other))
        assert desk.logins.statistics() == {"sessions": 0, "accounts": 0}

    with_desk(body)


@pytest.mark.parametrize("seconds", [IDLE_SECONDS_MAX, LIFE_SECONDS_MAX])
def test_streams_end_when_their_session_ends_by_time(seconds: float) -> None:
    """A session that is idle for too long, or too old, ends with its streams."""

    async def body(desk: Desk, tasks: trio.Nursery) -> None:
        cookie = await desk.log_in(user="bob", password="x")
        events = await desk.open_stream(tasks, cookie)
        while desk.clock.seconds + IDLE_SECONDS_MAX <= seconds - 1 and seconds > IDLE_SECONDS_MAX:
            desk.clock.seconds += IDLE_SECONDS_MAX / 2
            assert desk.is_in(cookie)
        await desk.logins.expire()
        assert events == []
        desk.clock.seconds = seconds + 1
        await desk.logins.expire()
        await trio.testing.wait_all_tasks_blocked()
        assert is_trouble(events)

    with_desk(body)


def test_a_session_ends_with_its_token() -> None:
    """At the time `exp` of a token, the session and its streams end."""

    async def body(desk: Desk, tasks: trio.Nursery) -> None:
        cookie = await desk.log_in(token=token(sub="olga", exp=NOW + 100))
        events = await desk.open_stream(tasks, cookie)
        desk.clock.seconds = 99.0
        await desk.logins.expire()
        assert desk.is_in(cookie)
        assert events == []
        desk.clock.seconds = 101.0
        assert not desk.is_in(cookie)
        await desk.logins.expire()
        await trio.testing.wait_all_tasks_blocked()
        assert is_trouble(events)

    with_desk(body)


@pytest.mark.parametrize("expiry", ["soon", True, None, math.nan, math.inf, 10**400, [1]])
def test_a_strange_end_of_a_token_breaks_nothing(expiry: object) -> None:
    """The brokers judge tokens. A session goes on if `exp` is no time in reach."""

    async def body(desk: Desk, tasks: trio.Nursery) -> None:
        assert desk.is_in(await desk.log_in(token=token(sub="olga", exp=expiry)))

    with_desk(body)


def test_a_new_login_ends_the_session_of_the_old_cookie() -> None:
    """A browser has one session: a second login closes the first one, with its streams."""

    async def body(desk: Desk, tasks: trio.Nursery) -> None:
        old = await desk.log_in(user="bob", password="x")
        events = await desk.open_stream(tasks, old)
        new = await desk.log_in(old, user="alice", password="y")
        await trio.testing.wait_all_tasks_blocked()
        assert (desk.is_in(old), desk.is_in(new)) == (False, True)
        assert is_trouble(events)
        assert desk.logins.statistics() == {"sessions": 1, "accounts": 1}

    with_desk(body)


def test_a_user_who_logs_in_too_often_ends_only_his_own_sessions() -> None:
    """The seventeenth session of a user ends the oldest of his own, also if each has another token."""

    async def body(desk: Desk, tasks: trio.Nursery) -> None:
        other = await desk.log_in(user="alice", password="y")
        mine = [
            await desk.log_in(token=token(sub="olga", jti=number))
            for number in range(SESSIONS_OF_OWNER_MAX + 2)
        ]
        assert desk.is_in(other)
        assert [desk.is_in(each) for each in mine] == [False] * 2 + [True] * SESSIONS_OF_OWNER_MAX

    with_desk(body)


async def fails(desk: Desk, status: int, **words: str) -> None:
    """Log in; the login has to fail with this status."""
    with pytest.raises(ViewError) as caught:
        await desk.log_in(**words)
    assert caught.value.status == status, caught.value


def test_a_network_that_guesses_has_to_wait_and_no_other() -> None:
    """All addresses with the same 64 bits count as one. Others log in meanwhile."""

    async def body(desk: Desk, tasks: trio.Nursery) -> None:
        for network in range(20):
            for host in range(FAILURES_MAX):
                peer = f"2001:db8:0:{network}::{host + 1}"
                await fails(desk, 401, user=f"user{network}.{host}", password="wrong", peer=peer)
        await fails(desk, 429, user="alice", password="x", peer="2001:db8:0:7:ffff::1")
        assert desk.is_in(await desk.log_in(user="alice", password="x", peer="2001:db8:0:77::1"))

    with_desk(body)


def test_a_user_at_whom_many_guess_has_to_wait() -> None:
    """Guesses at one user from many networks have a limit, too."""

    async def body(desk: Desk, tasks: trio.Nursery) -> None:
        for network in range(FAILURES_OF_USER_MAX):
            await fails(desk, 401, user="alice", password="wrong", peer=f"10.1.0.{network}")
        await fails(desk, 429, user="alice", password="x")
        assert desk.is_in(await desk.log_in(user="bob", password="x"))

    with_desk(body)


def test_logins_at_once_are_limited_by_network() -> None:
    """The third login at once of a network is refused, before any broker is asked. Another network logs in."""

    async def body(desk: Desk, tasks: trio.Nursery) -> None:
        desk.brokers.go.clear()
        async with trio.open_nursery() as crowd:
            for number in range(2):
                crowd.start_soon(lambda name: desk.log_in(user=name, password="x"), f"user{number}")
            await trio.testing.wait_all_tasks_blocked()
            await fails(desk, 429, user="bob", password="x")
            crowd.start_soon(lambda: desk.log_in(user="carol", password="x", peer="10.0.0.2"))
            await trio.testing.wait_all_tasks_blocked()
            desk.brokers.go.set()
        assert desk.logins.statistics()["sessions"] == 3

    with_desk(body)


def test_strangers_ask_the_brokers_one_question_at_a_time() -> None:
    """Twenty strangers share one question, and its answer is kept, also if no broker answers."""

    async def body(desk: Desk, tasks: trio.Nursery) -> None:
        desk.brokers.go.clear()
        desk.brokers.silent = True
        async with trio.open_nursery() as crowd:
            for _ in range(20):
                crowd.start_soon(desk.logins.mechanisms)
            await trio.testing.wait_all_tasks_blocked()
            desk.brokers.go.set()
        assert (await desk.logins.mechanisms(), desk.brokers.probes) == ([], 1)
        desk.brokers.silent = False
        desk.clock.seconds += SILENCE_SECONDS + 1
        assert await desk.logins.mechanisms() == ["SCRAM-SHA-512", "OAUTHBEARER"]
        assert desk.brokers.probes == 2

    with_desk(body)
