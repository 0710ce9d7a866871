"""One simulated run: machines, processes that start, pause and crash, faults of links, disks and clocks; every
port depends on a seed. SHELL.

`World.run` starts trio with a virtual clock and a seeded scheduler. (Trio
shuffles each batch of runnable tasks by a private generator.) `tests/test_determinism.py` checks that two processes
with different hash seeds give the same digest.

A *machine* is a name, a disk, and settings of its monotonic and wall clock; it outlives its processes. A *node* is
one process on it: `start(name, main)` creates a new `SimEnv` and runs `main(env)` until it returns, fails or
crashes.

`crash(name, keep)` ends a process without any clean-up. First its ports fail, then its tasks are cancelled, then
the disk loses data. Actions of the cancelled tasks have no effect, and their exceptions are ignored. With
`keep="all"` only the process dies: the machine's kernel resets its connections and keeps the page cache. `"synced"`
and `"random"` are a power loss, which the peers do not notice. `start` starts the machine again.

A run ends when its main function returns. It fails with `Liveness` when its virtual time is over, or when the
agenda is empty for good. It also fails when tasks run on and on without an advance of time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, TypeVar

import attrs
import trio
from trio._core import _run as _trio_run

from odradek.env.agreed_clock import AgreedClock
from odradek.env.ports import Event, TaskGroup
from odradek.named_states import counting
from odradek.serving.node_env import NodeEnv
from sim.machine.clock import VirtualClock
from sim.machine.disk import Keep, SimDisk
from sim.machine.disk_files import PowerCut
from sim.machine.events import Agenda
from sim.machine.links import Repeats
from sim.machine.network import Fabric, Host
from sim.machine.sim_env import SimEnv
from sim.machine.task_loop import task_loop
from sim.machine.toil import Toil
from sim.machine.trace import Trace
from sim.machine.waiting import NodeCrashed
from sim.machine.weather import Weather

T = TypeVar("T")

VIRTUAL_SECONDS_MAX_DEFAULT = 3600.0


class Liveness(Exception):
    """Raised if a run makes no progress any more."""


@attrs.define(eq=False)
class Machine:
    """The part of a computer that outlives a process. The machine's settings for clocks and work apply to its later
    processes, too.
    """

    host: Host
    disk: SimDisk
    clock_rate: float = 1.0
    wall_offset_ms: int = 0
    wall_drift: float = 0.0
    work_factor: float = 1.0
    starts: int = 0
    env: SimEnv | None = None
    running: Running | None = None


@attrs.define(eq=False)
class Running:
    """A started process. `ended` is set once its tasks have ended, for any reason."""

    env: SimEnv
    scope: trio.CancelScope = attrs.Factory(trio.CancelScope)
    ended: trio.Event = attrs.Factory(trio.Event)
    on_end: Callable[[], None] | None = None


class World:
    """One simulated run: machines, network and disks on virtual time. If `weather` is None, the seed draws it."""

    def __init__(
        self, seed: int, weather: Weather | None = None, *, disk_capacity_bytes: int | None = None
    ) -> None:
        self.seed = seed
        self.random = self._stream("world")
        self.weather = Weather.draw(self._stream("weather")) if weather is None else weather
        self.agenda = Agenda()
        self.trace = Trace()
        self.fabric = Fabric(self.agenda, self.weather, self._stream("network"), self._stream("torn"))
        if self.weather.repeat_probability:
            self.fabric.repeats = Repeats(self._stream("repeats"), self.weather.repeat_probability)
        self.machines: dict[str, Machine] = {}
        self.states: dict[str, int] = {}
        """How often each named state of the product (`sim/census`) was reached."""
        self._live_points: dict[str, bool] = {}
        self._disk_capacity_bytes = disk_capacity_bytes
        self._nursery: trio.Nursery | None = None
        self._scope: trio.CancelScope | None = None
        self._failure: str | None = None
        self._refutation: Exception | None = None

    def _stream(self, name: str) -> Random:
        """Create a separate random generator. So the draws of one part leave the draws of other parts unchanged."""
        return Random(f"{self.seed}/{name}")

    @property
    def now(self) -> float:
        """Virtual seconds since the start of the run."""
        return self.agenda.now

    def digest(self) -> str:
        """Return the digest of all events at the ports."""
        return self.trace.digest()

    # --- machines and nodes

    def machine(self, name: str) -> Machine:
        """Return the machine with this name. The first call creates it."""
        found = self.machines.get(name)
        if found is None:
            disk = SimDisk(self._stream(f"disk {name}"), self._disk_capacity_bytes)
            disk.cold_probability = self.weather.cold_probability
            found = self.machines[name] = Machine(self.fabric.add_host(name), disk)
            agenda, add = self.agenda, self.trace.add
            disk.on_operation = lambda *details: add((agenda.now, name, "disk", *details))
            disk.on_power_cut = lambda: self.crash(name, "random", disk_forgets=False)
            disk.wall_ms = lambda: found.env.clock.wall_ms() if found.env is not None else 0
        return found

    def node_env(self, name: str) -> SimEnv:
        """Return the environment of the living process on this machine; without one, create a new environment."""
        machine = self.machine(name)
        if machine.env is None or not machine.env.alive:
            machine.starts += 1
            machine.host.up = True
            if machine.disk.power_is_off:
                machine.disk.crash("random")
            self.trace.record(self.now, name, "boot", machine.starts)
            machine.env = SimEnv(
                name,
                self.agenda,
                self.fabric,
                machine.disk,
                self.trace,
                self._stream(f"node {name} {machine.starts}"),
                self._is_live_point,
                clock_rate=machine.clock_rate,
            )
            machine.env.clock.wall_drift = machine.wall_drift
            machine.env.clock.wall_offset_ms = machine.wall_offset_ms
            machine.env.agreed_clock = AgreedClock(machine.env.clock)
            machine.env.work_factor = machine.work_factor
        return machine.env

    def _is_live_point(self, point: str) -> bool:
        probability = self.weather.buggify_active_probability
        if probability <= 0:
            return False
        live = self._live_points.get(point)
        if live is None:
            live = self._live_points[point] = self._stream(f"buggify {point}").random() < probability
        return live

    def start(self, name: str, main: Callable[[NodeEnv], Awaitable[Any]]) -> Running:
        """Start a process on the machine. It ends when `main` returns or fails; the page cache is kept."""
        machine = self.machine(name)
        if machine.running is not None and not machine.running.ended.is_set() and machine.running.env.alive:
            raise ValueError(f"{name} is running")
        assert self._nursery is not None, "nodes start inside of World.run"
        running = machine.running = Running(self.node_env(name))
        self._nursery.start_soon(self._run_node, running, main, name=f"node {name}")
        return running

    def start_program(self, name: str, main: Callable[[NodeEnv, TaskGroup], Awaitable[Any]]) -> Running:
        """Start a process as `start` does. The tasks of this process end with its main function."""

        async def run(env: NodeEnv) -> None:
            async with trio.open_nursery() as tasks:
                await main(env, tasks)
                tasks.cancel_scope.cancel()

        return self.start(name, run)

    async def _run_node(self, running: Running, main: Callable[[NodeEnv], Awaitable[Any]]) -> None:
        env = running.env
        try:
            with running.scope:
                try:
                    await main(env)
                except BaseException as error:
                    if env.alive:
                        raise
                    _raise_what_counts(error)
        finally:
            if env.alive:
                self._end(env, "all", "exit")
            running.ended.set()
            if running.on_end is not None:
                running.on_end()

    def crash(self, name: str, keep: Keep = "all", *, disk_forgets: bool = True) -> None:
        """Kill the process on this machine, or cut the machine's power.

        Without `disk_forgets` the disk loses its unsynced data only at the next start, as after a power cut in the
        middle of an operation.
        """
        machine = self.machine(name)
        env = machine.env
        if env is None or not env.alive:
            raise ValueError(f"{name} is not running")
        self._end(env, keep, f"crash {keep}", disk_forgets=disk_forgets)
        if machine.running is not None:
            machine.running.scope.cancel()
        for signal in list(env.waits.values()):
            signal.wake()

    def _end(self, env: SimEnv, keep: Keep, what: str, *, disk_forgets: bool = True) -> None:
        self.trace.record(self.now, env.host, what)
        machine = self.machines[env.host]
        env.alive = False
        env.lost_power = keep != "all"
        self.resume(env.host)
        self.give_descriptors(env.host)
        # A hang of a disk ends with the process. For workers the hang is in `SimEnv.hangs_until`, which the next
        # process does not share. For the event loop it must be ended here.
        machine.disk.silent_roots.clear()
        machine.host.up = keep == "all"
        self.fabric.end_node(env, silent=keep != "all")
        if disk_forgets:
            machine.disk.crash(keep)

    def pause(self, name: str) -> None:
        """Pause the process: its events are held back until `resume`."""
        env = self.node_env(name)
        env.paused = env.stopped = True

    def resume(self, name: str) -> None:
        """Resume the process: the events that were held back happen now."""
        env = self.machine(name).env
        if env is not None and env.paused:
            env.paused = env.stopped = False
            self.agenda.release(env)

    def take_descriptors(self, name: str) -> None:
        """Let each call of a process that opens a file or connects fail until `give_descriptors`, as if no file
        descriptor were free.
        """
        self.node_env(name).has_descriptors = False
        self.machine(name).disk.has_descriptors = False

    def give_descriptors(self, name: str) -> None:
        """Undo `take_descriptors`. A new process on the machine has file descriptors anyway."""
        machine = self.machine(name)
        machine.disk.has_descriptors = True
        if machine.env is not None:
            machine.env.has_descriptors = True

    def partition(self, here: str, there: str) -> None:
        """Cut the links between two machines, in both directions."""
        self.fabric.cut(here, there)
        self.fabric.cut(there, here)

    def heal(self, here: str, there: str) -> None:
        """Undo `partition`."""
        self.fabric.heal(here, there)
        self.fabric.heal(there, here)

    def cut(self, source: str, target: str) -> None:
        """Cut one direction: segments from `source` to `target` are held."""
        self.fabric.cut(source, target)

    def slow(self, here: str, there: str, seconds: float) -> None:
        """Let each segment between two machines take up to `seconds` longer; 0 removes the fault."""
        self.fabric.slow(here, there, seconds)
        self.fabric.slow(there, here, seconds)

    def slow_down(self, name: str, factor: float) -> None:
        """Let all calls to workers on a machine take `factor` times as long from now on."""
        machine = self.machine(name)
        machine.work_factor = factor
        if machine.env is not None:
            machine.env.work_factor = factor

    def hang(self, name: str, seconds: float) -> None:
        """Let no call to workers on a machine finish before `seconds` from now."""
        env = self.node_env(name)
        env.hangs_until = max(env.hangs_until, self.now + seconds)

    def silence(self, name: str, root: str, seconds: float) -> None:
        """Let a log directory's disk answer no call of the event loop for `seconds`, or until the process ends.

        Bounded calls (`Dir.bound_calls`) fail with `DiskHung`; any other call raises `AssertionError`.
        """
        disk = self.machine(name).disk
        until = max(disk.silent_roots.get(root, 0.0), self.now + seconds)
        disk.silent_roots[root] = until

        def answer() -> None:
            if disk.silent_roots.get(root) == until:
                del disk.silent_roots[root]

        self.agenda.at(until, answer)

    def set_clocks(self, name: str, *, rate: float, drift: float) -> None:
        """Let a machine's monotonic clock run at `rate`, and its wall clock drift away at the rate `drift`."""
        machine = self.machine(name)
        machine.clock_rate, machine.wall_drift = rate, drift
        if machine.env is not None:
            machine.env.clock.rate, machine.env.clock.wall_drift = rate, drift

    @property
    def tasks(self) -> TaskGroup:
        """Tasks outside any node, which live as long as the run."""
        assert self._nursery is not None, "tasks start inside of World.run"
        return self._nursery

    def spawn(self, function: Callable[..., Awaitable[Any]], *args: Any) -> Event:
        """Start a task outside any node. The returned event is set when it returns."""
        done = trio.Event()

        async def run() -> None:
            await function(*args)
            done.set()

        self.tasks.start_soon(run)
        return done

    def event(self) -> Event:
        """Create an event outside any node."""
        return trio.Event()

    async def sleep(self, seconds: float) -> None:
        """Wait for virtual seconds; for the main function of a run."""
        woken = trio.Event()
        self.agenda.at(self.now + seconds, woken.set)
        await woken.wait()

    async def wait(self, event: Event, seconds: float) -> None:
        """Wait for an event, but at most `seconds`."""
        with trio.CancelScope() as scope:
            timer = self.agenda.at(self.now + seconds, scope.cancel)
            await event.wait()
            timer.cancel()

    @property
    def wakes(self) -> tuple[int, ...]:
        """The numbers of starts and wakes of all machines. As long as these numbers stay the same, no process has
        done anything.
        """
        return tuple(
            count
            for machine in self.machines.values()
            if machine.env is not None
            for count in (machine.starts, machine.env.wakes)
        )

    def _envs(self) -> list[SimEnv]:
        return [machine.env for machine in self.machines.values() if machine.env is not None]

    # --- the run

    def run(
        self,
        async_main: Callable[..., Awaitable[T]],
        *args: object,
        virtual_seconds_max: float = VIRTUAL_SECONDS_MAX_DEFAULT,
    ) -> T:
        """Run `async_main(*args)` in this simulation, once. Nodes that still run at its end are killed.

        Raises `Liveness`, and the errors of the main function and of living nodes.
        """
        if self.weather.wake_seconds:
            Toil(self.agenda, self._envs, Random(f"{self.seed}/toil")).begin()
        self.agenda.at(virtual_seconds_max, lambda: self._fail(f"not done after {virtual_seconds_max} s"))
        clock = VirtualClock(self.agenda, self._fail)
        scheduler = vars(_trio_run)
        deterministic = scheduler["_ALLOW_DETERMINISTIC_SCHEDULING"]
        scheduler["_ALLOW_DETERMINISTIC_SCHEDULING"] = True
        scheduler["_r"].seed(self.seed)
        loop = scheduler["unrolled_run"]
        scheduler["unrolled_run"] = task_loop
        try:
            with counting(self.states):
                results = trio.run(self._main, clock, async_main, args, clock=clock)
        except BaseExceptionGroup as group:
            raise _only(group) from None
        finally:
            scheduler["_ALLOW_DETERMINISTIC_SCHEDULING"] = deterministic
            scheduler["unrolled_run"] = loop
        if self._refutation is not None:
            raise self._refutation
        if self._failure is not None:
            raise Liveness(f"seed {self.seed}, at {self.now} s: {self._failure}")
        result: T = results[0]
        return result

    async def _main(
        self, clock: VirtualClock, async_main: Callable[..., Awaitable[Any]], args: tuple[object, ...]
    ) -> list[Any]:
        results: list[Any] = []
        try:
            with trio.CancelScope() as self._scope:
                async with trio.open_nursery() as self._nursery:
                    try:
                        results.append(await async_main(*args))
                    finally:
                        # Do this even after a failure, since a paused node would otherwise wait for its disk
                        # without end.
                        for name, machine in self.machines.items():
                            if machine.running is not None and machine.running.env.alive:
                                self.crash(name)
                    self._nursery.cancel_scope.cancel()
        finally:
            clock.stopped = True
            self._nursery = None
        return results

    def _fail(self, reason: str) -> None:
        """End the run from outside any task; `run` then raises `Liveness` with this reason."""
        if self._failure is not None or self._scope is None:
            raise RuntimeError(f"the run has not ended after the failure {self._failure!r}; now: {reason}")
        self._failure = reason
        self._scope.cancel()

    def refute(self, error: Exception) -> None:
        """End the run because a check has found a violation; `run` raises the first such error."""
        if self._refutation is None and self._scope is not None:
            self._refutation = error
            self._scope.cancel()


def _raise_what_counts(error: BaseException) -> None:
    """Raise the error if it is a cancellation, or concerns the whole interpreter. Drop any other error of a crashed
    node.
    """
    counts: BaseException | None = error
    if isinstance(error, BaseExceptionGroup):
        counts = error.split(_dying_words)[1]
    elif _dying_words(error):
        counts = None
    if counts is not None:
        raise counts


def _only(error: BaseException) -> BaseException:
    """Unwrap nested exception groups of one exception, so that a test can name it."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def _dying_words(error: BaseException) -> bool:
    return isinstance(error, (NodeCrashed, PowerCut, Exception)) and not isinstance(error, BaseExceptionGroup)
