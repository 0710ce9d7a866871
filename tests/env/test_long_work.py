"""Turns of long work, on a clock that moves only when a piece works or rests."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any

import pytest
import trio
import trio.testing

from odradek.serving.long_work import REST_FACTOR, REST_SECONDS_MAX, LongWork, Share

pytestmark = pytest.mark.trio


class Clock:
    """A clock that `work` advances. A rest returns at once and sets the clock to its end."""

    def __init__(self) -> None:
        self.now = 100.0
        self.rests: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def wall_ms(self) -> int:
        return 0

    async def sleep_until(self, deadline: float) -> None:
        if deadline > self.now:
            self.rests.append(deadline - self.now)
            self.now = deadline
        await trio.lowlevel.checkpoint()

    @contextmanager
    def timeout_at(self, deadline: float) -> Any:
        yield


class Inline:
    """A worker that runs each function at once, on the loop."""

    async def run(self, function: Any, *args: Any) -> Any:
        await trio.lowlevel.checkpoint()
        return function(*args)


class Meter:
    """A meter whose processor time only pieces advance."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def thread_cpu_seconds(self) -> float:
        return self.seconds


class Payer:
    """A connection whose client is charged for CPU."""

    def __init__(self, paid: list[tuple[float, float]]) -> None:
        self.paid = paid

    def payer(self) -> Any:
        return lambda seconds, now: self.paid.append((seconds, now))


class World:
    """Long work whose pieces record their names and take a given time."""

    def __init__(self) -> None:
        self.clock, self.meter = Clock(), Meter()
        self.work = LongWork(self.clock, trio.Event, Inline(), self.meter)
        self.done: list[str] = []

    def piece(self, name: str, seconds: float, waits: float = 0.0) -> str:
        """Use the processor for `seconds`, and wait for `waits` seconds more."""
        self.done.append(name)
        self.meter.seconds += seconds
        self.clock.now += seconds + waits
        return name

    async def pieces(self, name: str, *seconds: float, share: Share | None = None) -> None:
        share = share or self.work.begin()
        for each in seconds:
            await share.on_loop(self.piece, name, each)


async def test_a_loop_that_nobody_else_uses_goes_on_at_once() -> None:
    """If nothing else uses the loop, the next piece begins at once."""
    world = World()
    await world.pieces("a", 0.005, 0.005, 0.005)
    assert world.done == ["a", "a", "a"]
    assert world.clock.rests == []


async def test_others_who_had_a_turn_keep_their_part_of_the_loop() -> None:
    """If another connection had a turn, a request rests before its next piece, for a multiple of the last piece's
    time."""
    world = World()
    share = world.work.begin()
    await world.pieces("a", 0.004, share=share)
    world.work.turns += 1
    await world.pieces("a", 0.008, share=share)
    world.work.turns += 1
    await world.pieces("b", 0.001)
    assert world.clock.rests == pytest.approx([REST_FACTOR * 0.004, REST_FACTOR * 0.008])
    assert world.work.seconds == pytest.approx(0.013)


async def test_what_runs_beside_the_loop_counts_as_well() -> None:
    """Pieces that run in a worker lead to rests, too, since a worker takes the interpreter from the loop."""
    world = World()
    share = world.work.begin()
    assert await share.in_worker(world.piece, "a", 0.060) == "a"
    world.work.turns += 1
    await share.on_loop(world.piece, "a", 0.001)
    assert world.clock.rests == pytest.approx([REST_FACTOR * 0.060])


async def test_a_piece_that_was_held_up_makes_no_other_rest_for_its_wait() -> None:
    """If a piece waits for its thread, or for a paused machine, only its processor time counts for the rest."""
    world = World()
    share = world.work.begin()
    await share.in_worker(world.piece, "a", 0.002, 1.5)
    world.work.turns += 1
    await share.on_loop(world.piece, "a", 0.003, 30.0)
    world.work.turns += 1
    await share.on_loop(world.piece, "a", 0.001)
    assert world.clock.rests == pytest.approx([REST_FACTOR * 0.002, REST_FACTOR * 0.003])
    assert world.work.seconds == pytest.approx(31.506)


async def test_a_long_piece_holds_up_no_other_for_minutes() -> None:
    """However much processor time a piece took, the rest before the next piece lasts a few seconds at most."""
    world = World()
    share = world.work.begin()
    await share.in_worker(world.piece, "a", 30.0)
    world.work.turns += 1
    await share.on_loop(world.piece, "a", 0.001)
    assert world.clock.rests == pytest.approx([REST_SECONDS_MAX])


async def test_who_has_taken_least_is_next() -> None:
    """The next turn is for the request that has used the least time. So a request with short pieces ends long before a
    request with long pieces."""
    world = World()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.pieces, "long", 0.1, 0.1, 0.1)
        nursery.start_soon(world.pieces, "other", 0.1, 0.1)
        nursery.start_soon(world.pieces, "short", *[0.005] * 10)
    shorts = [index for index, name in enumerate(world.done) if name == "short"]
    longs = [index for index, name in enumerate(world.done) if name in ("long", "other")]
    assert len(world.done) == 15
    assert shorts[-1] < longs[-2]


async def test_who_comes_late_does_not_overtake_all_that_was_before() -> None:
    """A new request counts as having used as much time as the request that ran last. So it soon has its first turn,
    and then all requests take turns."""
    world = World()
    await world.pieces("early", *[0.1] * 20)
    share = world.work.begin()
    async with trio.open_nursery() as nursery:
        early = world.work.begin()
        nursery.start_soon(lambda: world.pieces("early", 0.1, 0.1, share=early))
        nursery.start_soon(lambda: world.pieces("late", 0.1, 0.1, share=share))
    assert sorted(world.done[-4:-2]) == ["early", "late"]


async def test_only_one_piece_is_under_way() -> None:
    """While a worker runs one request's piece, no other piece begins."""
    world = World()
    under_way = most = 0

    class Slow(Inline):
        async def run(self, function: Any, *args: Any) -> Any:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            for _ in range(5):
                await trio.lowlevel.checkpoint()
            under_way -= 1
            return function(*args)

    world.work = LongWork(world.clock, trio.Event, Slow(), world.meter)
    async with trio.open_nursery() as nursery:
        for name in "abc":
            nursery.start_soon(world.work.begin().in_worker, world.piece, name, 0.01)
    assert (sorted(world.done), most) == (["a", "b", "c"], 1)


@pytest.mark.parametrize("is_next", [False, True])
async def test_who_gives_up_waiting_holds_up_nobody(is_next: bool) -> None:
    """If a wait is cancelled, before or just after its turn has come, the turn goes to the next request."""
    world = World()
    release = trio.Event()

    class Held(Inline):
        async def run(self, function: Any, *args: Any) -> Any:
            await release.wait()
            return function(*args)

    world.work = LongWork(world.clock, trio.Event, Held(), world.meter)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.work.begin().in_worker, world.piece, "first", 0.01)
        await trio.testing.wait_all_tasks_blocked()
        scope = trio.CancelScope()

        async def gives_up() -> None:
            with scope:
                await world.pieces("never", 0.01)

        nursery.start_soon(gives_up)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(world.pieces, "last", 0.01)
        await trio.testing.wait_all_tasks_blocked()
        if is_next:
            release.set()
            while world.done != ["first"]:
                await trio.lowlevel.checkpoint()
        scope.cancel()
        release.set()
    assert world.done[0] == "first"
    assert world.done[-1] == "last"
    assert not world.work.is_busy


async def test_a_piece_that_raises_gives_its_turn_back() -> None:
    """If a piece raises, the caller gets the error, and the next piece runs."""
    world = World()

    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await world.work.begin().on_loop(fail)
    await world.pieces("a", 0.001)
    assert world.done == ["a"]


async def test_a_client_pays_the_processor_time_of_its_pieces_alone() -> None:
    """KIP-124: a client is charged the CPU time of its pieces, but not the time in which a thread waits."""
    world = World()
    paid: list[tuple[float, float]] = []
    await world.work.begin().on_loop(world.piece, "free", 5.0)
    world.work.asker = Payer(paid)
    share = world.work.begin()
    world.work.asker = None
    await share.on_loop(world.piece, "loop", 1.0, 4.0)
    await share.in_worker(world.piece, "worker", 2.0, 5.0)
    assert [seconds for seconds, _ in paid] == [1.0, 2.0]
    assert world.work.seconds == 17.0
