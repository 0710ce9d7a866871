"""The simulated world: clocks, pauses, crashes, workers, and runs that make no progress."""

from __future__ import annotations

import threading
from random import Random

import pytest
import trio

from odradek.env.pausing import pause
from odradek.env.ports import ConnectionLost, DiskError, Env
from sim.machine.waiting import HELD_UP
from sim.machine.weather import Weather
from sim.machine.world import Liveness, World
from tests.sim.machine import echo, echo_world

CALM = Weather()


def test_virtual_time_costs_no_real_time() -> None:
    """A virtual year passes between two events in no real time, and a sleep ends exactly at its deadline."""
    world = World(1, CALM)

    async def main() -> float:
        clock = world.node_env("a").clock
        await clock.sleep_until(31_536_000.0)
        return clock.monotonic()

    assert world.run(main, virtual_seconds_max=1e9) == 31_536_000.0


def test_each_node_has_a_clock_of_its_own() -> None:
    """Each node has its own clock rate and wall clock offset, and `sleep_until` uses the node's own clock."""
    world = World(1, CALM)

    async def main() -> None:
        world.machine("fast").clock_rate = 1.5
        world.machine("off").wall_offset_ms = -60_000
        fast, off, exact = (world.node_env(name).clock for name in ("fast", "off", "exact"))
        started = fast.monotonic()
        await fast.sleep_until(started + 3.0)
        assert world.now == pytest.approx(2.0)
        assert fast.monotonic() >= started + 3.0
        assert exact.wall_ms() - off.wall_ms() == 60_000
        assert fast.wall_ms() - exact.wall_ms() == 1000
        world.node_env("fast").clock.rate = 0.1
        before = fast.monotonic()
        await world.sleep(10)
        assert fast.monotonic() == pytest.approx(before + 1.0)

    world.run(main)


def test_a_timeout_cuts_its_body_short() -> None:
    """A timeout cancels its body at a virtual time and sets `Scope.expired`."""
    world = World(1, CALM)

    async def main() -> None:
        env = world.node_env("a")
        with env.clock.timeout_at(env.clock.monotonic() + 5) as scope:
            await env.event().wait()
        assert (scope.expired, world.now) == (True, 5.0)
        with env.clock.timeout_at(env.clock.monotonic() + 5) as scope:
            await env.clock.sleep_until(env.clock.monotonic() + 4)
        assert (scope.expired, world.now) == (False, 9.0)
        with env.clock.timeout_at(0.0) as scope:
            await env.event().wait()
        assert scope.expired

    world.run(main)


def test_a_paused_node_finds_its_events_when_it_resumes() -> None:
    """A paused node later finds its timers late and all received bytes, as after SIGSTOP."""
    world = World(1, CALM)

    async def main() -> None:
        woke: list[float] = []
        env = world.node_env("b")
        listener = env.network.listen("", 1)

        async def sleep() -> None:
            await env.clock.sleep_until(1.0)
            woke.append(env.clock.monotonic())

        async with trio.open_nursery() as tasks:
            tasks.start_soon(sleep)
            await world.sleep(0.5)
            world.pause("b")
            conn = await world.node_env("a").network.connect("b", 1)
            await echo.send_all(conn, b"hello...")
            await world.sleep(10)
            assert woke == []
            world.resume("b")
            assert await echo.receive_block(await listener.accept()) == b"hello..."
        assert woke[0] > 10

    world.run(main)


def test_workers_take_virtual_time_and_finish_though_cancelled() -> None:
    """A worker's function takes virtual time and finishes even if its caller is cancelled, unless the node crashes."""
    world = World(1, Weather(worker_seconds=(2.0, 2.0)))
    done: list[str] = []
    acted: list[float] = []

    async def main() -> None:
        env = world.node_env("a")
        assert await env.workers.run(divmod, 7, 2) == (3, 1)
        assert world.now == 2.0
        with env.clock.timeout_at(env.clock.monotonic() + 1):
            await env.workers.run(done.append, "cancelled")
        assert (done, world.now) == (["cancelled"], 4.0)
        with pytest.raises(ZeroDivisionError):
            await env.workers.run(divmod, 1, 0)

        async def work(env: Env) -> None:
            await env.workers.run(lambda: acted.append(world.now))

        starts = []
        for _ in range(20):
            starts.append(world.now)
            running = world.start("b", work)
            await world.sleep(1)
            world.crash("b")
            await running.ended.wait()
            await world.sleep(5)
        crashes = [start + 1 for start in starts]
        assert 0 < len(acted) < len(starts)
        assert all(
            any(start <= moment <= crash for start, crash in zip(starts, crashes, strict=True))
            for moment in acted
        )

    world.run(main)


def test_a_worker_acts_at_any_moment_and_the_loop_hears_of_it_later() -> None:
    """A worker's function takes effect at the start, at the end, or in between, while the loop goes on."""
    world = World(1, Weather(worker_seconds=(2.0, 2.0)))
    moments: list[float] = []

    async def main() -> None:
        env = world.node_env("a")
        for _ in range(60):
            began = world.now
            acted = await env.workers.run(lambda: world.now)
            assert world.now == began + 2.0
            moments.append(acted - began)

    world.run(main)
    assert moments.count(0.0) > 5, "the function must sometimes act at the start"
    assert moments.count(2.0) > 5, "the function must sometimes act at the end"
    assert sum(0.0 < moment < 2.0 for moment in moments) > 5


def test_a_slow_machine_does_not_stretch_the_delay_of_a_device() -> None:
    """On a slow machine a worker's function takes longer, but a spike of the weather lasts at most what it says."""
    weather = Weather(worker_seconds=(0.1, 0.1), worker_spike_probability=1.0, worker_spike_seconds=2.0)
    world = World(1, weather)
    taken: list[float] = []

    async def main() -> None:
        env = world.node_env("a")
        world.slow_down("a", 50.0)
        for _ in range(20):
            began = world.now
            await env.workers.run(lambda: None)
            taken.append(world.now - began)

    world.run(main)
    assert min(taken) >= 5.0
    assert max(taken) <= 7.0


def _paused_worlds_events(seed: int) -> list[str]:
    """List the steps of two worker functions and of a task on the loop, in their order."""
    world = World(seed, Weather(worker_seconds=(0.1, 0.1), pause_probability=1.0, pause_seconds=0.5))
    events: list[str] = []

    def work(name: str) -> str:
        for step in range(3):
            events.append(f"{name} {step}")
            pause()
        return name

    def fail() -> None:
        pause()
        raise ValueError("as always")

    async def main() -> None:
        env = world.node_env("a")
        is_over = [False]

        async def loop() -> None:
            while not is_over[0]:
                events.append("loop")
                await world.sleep(0.05)

        async def run(name: str) -> None:
            assert await env.workers.run(work, name) == name
            events.append(f"{name} ends")

        looping = world.spawn(loop)
        for ended in [world.spawn(run, name) for name in ("one", "two")]:
            await ended.wait()
        with pytest.raises(ValueError, match="as always"):
            await env.workers.run(fail)
        is_over[0] = True
        await looping.wait()

    world.run(main)
    return events


def test_the_loop_goes_on_amid_a_workers_function() -> None:
    """At some pauses of a worker's function the loop runs on. The seed decides the order; results and errors are
    returned as usual."""
    runs = [_paused_worlds_events(seed) for seed in range(8)]
    amid = [
        "loop" in events[events.index("one 0") : events.index("one 2")]
        or "two 1" in events[events.index("one 0") : events.index("one 2")]
        for events in runs
    ]
    assert any(amid)
    assert not all(amid)
    assert [_paused_worlds_events(seed) for seed in range(8)] == runs
    assert all(events.index("one 2") < events.index("one ends") for events in runs)


def test_a_crash_ends_a_function_that_is_held_up() -> None:
    """A crash ends a worker's function at its pause, and its clean-up cannot write. Outside of workers, `pause` does
    nothing."""
    world = World(2, Weather(worker_seconds=(0.1, 0.1), pause_probability=1.0, pause_seconds=0.5))
    seen: list[str] = []

    async def node(env: Env) -> None:
        pause()
        file = env.open_dir("/data", create=True).open("f", create=True)

        def work() -> None:
            seen.append("begun")
            try:
                for _ in range(1000):
                    pause()
                seen.append("over")
            finally:
                with pytest.raises(DiskError):
                    file.append(b"x")
                seen.append("unwound")

        await env.workers.run(work)

    async def main() -> None:
        running = world.start("a", node)
        await world.sleep(5.0)
        world.crash("a")
        await running.ended.wait()

    world.run(main)
    assert seen == ["begun", "unwound"]
    assert HELD_UP not in [thread.name for thread in threading.enumerate()]


def test_a_crash_leaves_no_last_words() -> None:
    """In a crash the ports fail first, so the clean-up of a cancelled task can neither send nor write."""
    world = World(1, CALM)
    seen: list[str] = []

    async def stubborn(env: Env) -> None:
        directory = env.open_dir("/data", create=True)
        file = directory.open("f", create=True)
        directory.sync()
        file.append(b"unsynced")
        conn = await env.network.connect("witness", 1)
        try:
            await env.event().wait()
        finally:
            seen.append("cancelled")
            for attempt in (lambda: conn.send([b"last words"]), lambda: file.append(b"x"), file.sync):
                with pytest.raises((ConnectionLost, DiskError)):
                    attempt()
            with trio.CancelScope(shield=True):
                try:
                    await env.clock.sleep_until(1e9)
                finally:
                    seen.append("woken")

    async def main() -> None:
        listener = world.node_env("witness").network.listen("", 1)
        running = world.start("a", stubborn)
        conn = await listener.accept()
        await world.sleep(1)
        world.crash("a", "synced")
        await running.ended.wait()
        await world.sleep(1)
        assert conn.recv_into(memoryview(bytearray(99))) is None
        assert world.node_env("a").open_dir("/data").read_bytes("f") == b""

    world.run(main)
    assert seen == ["cancelled", "woken"]


def test_a_node_that_fails_by_itself_ends_the_run() -> None:
    """If a node raises an exception without a fault, `World.run` raises it."""
    world = World(1, CALM)

    async def buggy(env: Env) -> None:
        await env.clock.sleep_until(1.0)
        raise LookupError("a bug")

    async def main() -> None:
        world.start("a", buggy)
        await world.sleep(10)

    with pytest.raises(LookupError, match="a bug"):
        world.run(main)


def test_a_process_that_ends_can_be_started_again() -> None:
    """A process that ends frees its ports and locks. Its files are kept for the next start."""
    world = World(1, CALM)

    async def once(env: Env) -> None:
        directory = env.open_dir("/data", create=True)
        directory.lock()
        env.network.listen("", 9092)
        directory.open("f", create=True).append(b"x")

    async def main() -> None:
        for _ in range(3):
            await world.start("a", once).ended.wait()
        assert world.node_env("a").open_dir("/data").read_bytes("f") == b"xxx"

    world.run(main)


@pytest.mark.parametrize("number", range(1, 8))
def test_the_power_fails_in_the_middle_of_a_disk_operation(number: int) -> None:
    """With `SimDisk.crash_at`, the node dies within a disk operation, and the next start finds each answered block."""
    world = World(number, CALM)

    async def main() -> None:
        world.machine("server").disk.crash_at(number)
        running = world.start("server", echo_world.serve)
        client = world.node_env("client")
        answered = []
        for attempt in range(3):
            block = f"block..{attempt}".encode()
            with client.clock.timeout_at(world.now + 5.0):
                try:
                    answered.append(await echo.call(client, "server", block))
                except ConnectionLost:
                    await world.sleep(0.1)
        await running.ended.wait()
        await world.start("server", once_more).ended.wait()
        content = world.node_env("server").open_dir("/data").read_bytes("echo.log")
        assert all(block in content for block in answered)

    async def once_more(env: Env) -> None:
        env.open_dir("/data", create=True).open("echo.log", create=True)

    world.run(main)


def test_waiting_for_nothing_is_noticed() -> None:
    """If no task can ever run again, the run raises `Liveness`."""
    world = World(1, CALM)

    async def main() -> None:
        await world.node_env("a").event().wait()

    with pytest.raises(Liveness, match="seed 1"):
        world.run(main)


def test_spinning_without_time_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """If tasks wake each other forever without virtual time passing, the run raises `Liveness`."""
    monkeypatch.setattr("sim.machine.clock.ROUNDS_WITHOUT_TIME_MAX", 1000)
    world = World(1, CALM)

    async def main() -> None:
        clock = world.node_env("a").clock
        while True:
            await clock.sleep_until(0.0)

    with pytest.raises(Liveness, match="without time"):
        world.run(main)


def test_a_run_ends_when_its_time_is_up() -> None:
    """If a run exceeds its virtual time, it raises `Liveness`."""
    world = World(1, CALM)

    async def main() -> None:
        while True:
            await world.sleep(1)

    with pytest.raises(Liveness, match="not done after 100"):
        world.run(main, virtual_seconds_max=100.0)


def test_provoked_trouble_is_drawn_per_run_and_point() -> None:
    """A buggify point is active or not for a whole run, and an active point fires now and then."""

    def fires(seed: int, point: str) -> int:
        world = World(seed, Weather(buggify_active_probability=0.5, buggify_fire_probability=0.25))
        env = world.node_env("a")
        return sum(env.buggify(point) for _ in range(400))

    counts = [fires(seed, point) for seed in range(10) for point in ("x", "y")]
    assert 0 in counts
    assert all(count == 0 or 50 < count < 150 for count in counts)
    assert any(counts)


def test_ids_are_drawn_from_the_seed() -> None:
    """Ids are drawn from the seed, differ between nodes, and follow Kafka's rules."""
    drawn = [World(seed, CALM).node_env(name).new_uuid() for seed in (1, 2) for name in ("a", "b")]
    assert len(set(drawn)) == 4
    assert World(1, CALM).node_env("a").new_uuid() == drawn[0]
    assert all(value[0] >> 2 != 62 for value in drawn)


def test_the_weather_is_drawn_from_the_seed() -> None:
    """The weather is drawn from the seed: most seeds differ, and the same seed gives the same weather."""
    drawn = [Weather.draw(Random(seed)) for seed in range(50)]
    assert len(set(drawn)) > 40
    assert drawn[7] == Weather.draw(Random(7))


def test_the_world_catches_a_service_that_answers_before_it_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the echo server answers without a sync, some seeds lose an answered block."""
    for seed in range(3):
        echo_world.run(seed)

    class Lazy:
        def __init__(self, env: Env) -> None:
            self._env = env
            self.workers = self

        def __getattr__(self, name: str) -> object:
            return getattr(self._env, name)

        async def run(self, function: object) -> None:
            """Skip the sync that the service asks for."""

    monkeypatch.setattr(echo, "serve", lambda env, tasks, serve=echo.serve: serve(Lazy(env), tasks))
    caught = 0
    for seed in range(10):
        try:
            echo_world.run(seed)
        except AssertionError:
            caught += 1
    assert caught >= 2


def test_a_slow_link_takes_its_time_and_keeps_the_order() -> None:
    """A slow link delays both directions and keeps the order. Other links keep their speed."""
    world = World(1, CALM)

    async def main() -> None:
        listener = world.node_env("b").network.listen("", 1)
        world.slow("a", "b", 5.0)
        conn = await world.node_env("a").network.connect("b", 1)
        server = await listener.accept()
        began = world.now
        for block in (b"first...", b"second.."):
            await echo.send_all(conn, block)
        assert await echo.receive_block(server) == b"first..."
        assert await echo.receive_block(server) == b"second.."
        assert world.now - began > 0.5
        began = world.now
        await world.node_env("c").network.connect("b", 1)
        assert world.now - began < 0.01
        world.slow("a", "b", 0.0)
        await world.node_env("a").network.connect("b", 1)
        assert world.now - began < 0.01

    world.run(main)


def test_a_process_that_is_killed_before_its_first_step_touches_no_disk() -> None:
    """A process that is killed before its first step must not lock its directory (seed 200)."""
    world = World(1)

    async def serve(env: Env) -> None:
        env.open_dir("/data", create=True).lock()
        await env.event().wait()

    async def main() -> None:
        world.start("a", serve)
        world.crash("a")
        await world.sleep(1.0)
        running = world.start("a", serve)
        await world.sleep(1.0)
        assert not running.ended.is_set()

    world.run(main)
