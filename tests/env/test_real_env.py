"""The real machine's clock, workers, events and ids."""

from __future__ import annotations

import gc
import os
import re
import threading
import time
import weakref
from typing import Any

import pytest
import trio
import trio.testing

from odradek.env.real import RealEnv, RealMeter, is_valid_uuid
from odradek.node.real_node_env import RealNodeEnv

pytestmark = pytest.mark.trio


async def test_sleep_until_reaches_its_deadline() -> None:
    """`sleep_until` waits for its deadline. Even if the deadline has passed, the call is a checkpoint."""
    clock = RealEnv().clock
    deadline = clock.monotonic() + 0.005
    await clock.sleep_until(deadline)
    assert clock.monotonic() >= deadline
    with trio.testing.assert_checkpoints():
        await clock.sleep_until(deadline)


async def test_a_timeout_tells_whether_it_cut_the_body_short() -> None:
    """`Scope.expired` is true only when the deadline ended the body."""
    clock = RealEnv().clock
    with clock.timeout_at(clock.monotonic() + 60) as scope:
        await trio.lowlevel.checkpoint()
    assert not scope.expired
    with clock.timeout_at(clock.monotonic() + 0.001) as scope:
        await trio.sleep_forever()
    assert scope.expired
    with clock.timeout_at(clock.monotonic() - 1) as scope:
        await trio.sleep_forever()
    assert scope.expired


async def test_workers_run_beside_the_loop_under_a_limit() -> None:
    """Workers run functions in threads beside the loop, at most `workers_max` at once. Exceptions reach the caller."""
    env = RealEnv(workers_max=2)
    running, most = 0, 0
    lock = threading.Lock()
    both = threading.Barrier(2)

    def work(number: int) -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        both.wait(timeout=30)
        with lock:
            running -= 1
        return number * threading.get_ident()

    results: list[int] = []

    async def run(number: int) -> None:
        results.append(await env.workers.run(work, number))

    async with trio.open_nursery() as nursery:
        for number in range(1, 5):
            nursery.start_soon(run, number)
    assert (len(results), most) == (4, 2)
    assert threading.get_ident() not in results
    with pytest.raises(ZeroDivisionError):
        await env.workers.run(divmod, 1, 0)


async def test_an_error_of_a_worker_that_is_its_own_cause_comes_back() -> None:
    """`raise error from error` makes an endless chain of causes. The waiting task still gets the error."""

    def fail() -> None:
        try:
            raise ValueError("no")
        except ValueError as error:
            raise error from error

    with pytest.raises(ValueError, match="no"):
        await RealNodeEnv().workers.run(fail)


async def test_an_error_of_a_worker_leaves_nothing_behind() -> None:
    """Once a worker's error is handled, its arguments are freed without a garbage collection."""
    env = RealNodeEnv()
    freed = trio.Event()
    token = trio.lowlevel.current_trio_token()

    class Large:
        pass

    given = Large()
    weakref.finalize(given, token.run_sync_soon, freed.set)

    async def refused(large: Large) -> str:
        try:
            await env.long_work.begin().in_worker(fail, large)
        except ValueError as error:
            (note,) = error.__notes__
            place = r"long_work\.py:\d+ metered > test_real_env\.py:\d+ fail"
            assert re.fullmatch(rf"a worker thread raised this at: {place}", note)
            return str(error)
        return ""

    def fail(large: Large) -> None:
        raise ValueError("no")

    gc.disable()
    try:
        assert await refused(given) == "no"
        del given
        # The thread releases its arguments a moment after it has handed over the error.
        with trio.fail_after(30):
            await freed.wait()
    finally:
        gc.enable()


async def test_started_work_is_waited_for_when_cancelled() -> None:
    """A function that has started runs to its end, and a cancelled caller waits for it."""
    env = RealEnv()
    started, release, done = trio.Event(), threading.Event(), []
    token = trio.lowlevel.current_trio_token()

    def work() -> None:
        token.run_sync_soon(started.set)
        release.wait(timeout=30)
        done.append(True)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(env.workers.run, work)
        await started.wait()
        nursery.cancel_scope.cancel()
        release.set()
    assert done == [True]


async def test_an_event_stays_set() -> None:
    """An event stays set, and later waits for it return at once."""
    event = RealEnv().event()
    assert not event.is_set()
    event.set()
    await event.wait()
    assert event.is_set()


async def test_uuids_are_what_kafka_accepts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Like Kafka's `Uuid.randomUuid`, a new id avoids the reserved values, and its text never begins with a dash."""
    offered = [bytes(16), bytes(15) + b"\x01", b"\xf8" + bytes(15), b"\xfb" + bytes(15), b"\xfc" + bytes(15)]
    monkeypatch.setattr(os, "urandom", lambda count: offered.pop(0))
    assert RealEnv(seed=1).new_uuid() == b"\xfc" + bytes(15)
    assert is_valid_uuid(b"\xf7" + bytes(15))


async def test_a_seed_makes_random_repeatable() -> None:
    """With the same seed, a node draws the same random numbers. Real environments never inject faults."""
    assert RealEnv(seed=7).random.random() == RealEnv(seed=7).random.random()
    assert not any(RealEnv().buggify("fetch.short_read") for _ in range(100))
    assert RealEnv().meter.cpu_seconds() > 0
    assert RealEnv().clock.wall_ms() > 1_700_000_000_000


async def test_a_turn_pays_for_itself_alone() -> None:
    """KIP-124: the charge for a turn is its own CPU time. Earlier work of the loop is left out."""
    meter = RealEnv().meter
    sum(range(100_000))
    assert meter.turn_cpu_seconds(1e-6) == 1e-6
    began = meter.thread_cpu_seconds()
    assert meter.turn_cpu_seconds(3600.0) <= meter.thread_cpu_seconds() - began + 1e-3


async def test_short_turns_share_a_reading_of_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several short turns are charged by the wall clock. A later reading of the CPU clock does not charge them
    again."""
    readings = iter((1.0, 2.0, 2.5))
    monkeypatch.setattr(time, "thread_time", lambda: next(readings))
    meter = RealMeter()
    assert meter.turn_cpu_seconds(1e-4) == 1e-4
    assert [meter.turn_cpu_seconds(1e-4) for _ in range(2)] == [1e-4, 1e-4]
    assert meter.turn_cpu_seconds(3.0) == pytest.approx(1.0 - 2e-4)
    assert meter.turn_cpu_seconds(0.1) == 0.1


async def test_a_worker_waits_for_a_thread_that_the_system_cannot_give(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """If the system cannot start a thread (clone(2), EAGAIN), the function runs later, and only once. Its own errors
    are not retried."""
    start = trio._threads.start_thread_soon
    failures = [RuntimeError("can't start new thread"), MemoryError()]
    calls: list[int] = []

    def start_or_fail(*args: Any, **options: Any) -> None:
        if failures:
            raise failures.pop()
        start(*args, **options)

    monkeypatch.setattr(trio._threads, "start_thread_soon", start_or_fail)
    workers = RealEnv().workers
    await workers.run(calls.append, 1)
    assert calls == [1]
    assert not failures

    def fail() -> None:
        calls.append(2)
        raise RuntimeError("its own")

    with pytest.raises(RuntimeError, match="its own"):
        await workers.run(fail)
    assert calls == [1, 2]
