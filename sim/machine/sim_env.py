"""The environment of one simulated node: `odradek.serving.node_env.NodeEnv` on the agenda, the network and a disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

from odradek.env.agreed_clock import AgreedClock
from odradek.env.ports import CompanionLost, Dir, Event, carried_error, load_factory
from odradek.serving.long_work import LongWork
from odradek.serving.node_env import NodeEnv
from sim.machine.clock import NodeClock
from sim.machine.disk import SimDisk
from sim.machine.events import Agenda
from sim.machine.network import Fabric, SimNetwork
from sim.machine.trace import Trace
from sim.machine.waiting import (
    NodeCrashed,
    PausedWork,
    Signal,
    SimEvent,
    checkpoint,
    checkpoint_if_cancelled,
)
from sim.machine.weather import Weather

if TYPE_CHECKING:
    from trio.lowlevel import Task

T = TypeVar("T")

RARITY: Mapping[str, float] = {
    "client.drop_connection": 0.01,
    "connection.close_after_answer": 0.01,
    "isr.look_ahead": 0.2,
    "log.early_roll": 0.2,
    "metadata.early_snapshot": 0.1,
    "peers.drop_connection": 0.02,
    "quorum.resign": 0.02,
    "replication.drop_connection": 0.02,
}
"""For each buggify point in this table, the factor by which its probability is multiplied. Points that throw work in
progress away fire less often. `NodeEnv.buggify` returns True if a point fires.
"""
CPU_SECONDS_PER_OPERATION = 1e-6
UUID_BYTES = 16
PAUSE_SHARE = 0.5
"""For an interrupted function of a worker: the probability that the event loop runs on at a pause of the function."""


class SimEnv:
    """The environment of one process of a node. Once `alive` is False every port fails, so that the clean-up of the
    process's tasks has no effect.
    """

    def __init__(
        self,
        host: str,
        agenda: Agenda,
        fabric: Fabric,
        disk: SimDisk,
        trace: Trace,
        random: Random,
        live_points: Callable[[str], bool],
        *,
        clock_rate: float,
    ) -> None:
        self.host = host
        self.alive = True
        self.lost_power = False
        """True if the process ended because its machine lost power, so that its peers were not notified."""
        self.paused = False
        """True while the events of the process are held back, because it is stopped or busy (`sim.machine.toil`)."""
        self.stopped = False
        """True while the process is paused until `resume`."""
        self.has_descriptors = True
        self.wakes = 0
        self.waits: dict[Task, Signal] = {}
        self.random = random
        self.disk = disk
        self.agenda = agenda
        self.weather: Weather = fabric.weather
        self.operation_count = 0
        self.work_factor = 1.0
        """The factor by which the times of calls to workers are multiplied, in addition to the weather."""
        self.hangs_until = 0.0
        """The virtual time before which no work of workers finishes."""
        self.slow_until = 0.0
        """The virtual time by which all calls to workers have ended that began while the machine was slow."""
        self._trace = trace
        self._live_points = live_points
        self._ports_random = Random(f"{random.random()}")
        self.pauses = Random(f"pauses/{self._ports_random.getstate()[1][0]}")
        self.clock = NodeClock(agenda, self, rate=clock_rate)
        self.network = SimNetwork(fabric, self)
        self.workers = SimWorkers(self, self._ports_random)
        self.meter = SimMeter(self)
        self.long_work = LongWork(self.clock, self.event, self.new_workers(1), self.meter)
        self.agreed_clock = AgreedClock(self.clock)

    def record(self, what: str, *details: float | str) -> None:
        """Add an event of this node to the trace."""
        self.operation_count += 1
        self._trace.add((self.agenda.now, self.host, what, *details))

    def new_workers(self, threads_max: int | None = None) -> SimWorkers:
        return SimWorkers(self, self._ports_random)

    def new_companion(self, factory: str, *args: Any) -> SimCompanion:
        return SimCompanion(self, factory, args)

    def open_dir(self, path: str, *, create: bool = False) -> Dir:
        # A process that was killed before its first step must not open a directory, since the open directory would
        # belong to the next process.
        if not self.alive:
            raise NodeCrashed
        return self.disk.open_dir(path, create)

    def is_blank_disk(self, path: str) -> bool:
        return self.disk.is_blank(path)

    def event(self) -> Event:
        return SimEvent(self)

    def new_uuid(self) -> bytes:
        while (value := self._ports_random.randbytes(UUID_BYTES))[0] >> 2 == 62 or not any(value[:15]):
            continue
        self.record("uuid", value.hex())
        return value

    @property
    def provokes(self) -> bool:
        return self.weather.buggify_active_probability > 0

    def buggify(self, point: str) -> bool:
        if not self._live_points(point):
            return False
        probability = self.weather.buggify_fire_probability
        fires = self._ports_random.random() < probability * RARITY.get(point, 1.0)
        if fires:
            self.record("buggify", point)
        return fires


class SimWorkers:
    """`odradek.env.ports.Workers`: each call takes virtual time, during which the event loop runs on.

    The function runs at the start, at the end or at some moment in between, as the seed draws it for each call. So
    both the loop and the function may find a newer state than at the start. As with threads, a started function is
    completed even if its caller is cancelled, unless the node crashes. It is atomic, unless the weather interrupts
    it: then the loop runs on at some of its pauses (`odradek.env.pausing`).
    """

    def __init__(self, env: SimEnv, random: Random) -> None:
        self._env = env
        self._random = random
        self.hangs_until = 0.0
        """The virtual time until which one of several devices hangs. `SimEnv.hangs_until` is for the whole node."""

    async def run(self, function: Callable[..., T], *args: object) -> T:
        env, random = self._env, self._random
        await checkpoint_if_cancelled()
        if not env.alive:
            raise NodeCrashed
        began = env.agenda.now
        seconds = env.weather.work(random, env.work_factor)
        share = random.choice((0.0, 1.0, random.random()))
        acts_at = max(began + share * seconds, env.hangs_until, self.hangs_until)
        ends_at = max(began + seconds, acts_at)
        if env.work_factor != 1.0:
            env.slow_until = max(env.slow_until, ends_at)
        env.record("work", getattr(function, "__qualname__", "function"), acts_at - began, ends_at - began)
        if acts_at > began:
            await self._until(acts_at)
        elif ends_at == began:
            await checkpoint()
        result: T
        failure: Exception | None = None
        try:
            if env.weather.pause_probability and env.pauses.random() < env.weather.pause_probability:
                result = await self._in_pieces(function, args)
            else:
                result = self._off_loop(function, *args)
        except Exception as error:  # noqa: BLE001 - raised to the caller when the function's time is over
            failure = error
        if ends_at > acts_at:
            await self._until(ends_at)
        if failure is not None:
            raise failure
        return result

    def _off_loop(self, act: Callable[..., T], *args: object) -> T:
        disk = self._env.disk
        disk.is_off_loop = True
        try:
            return act(*args)
        finally:
            disk.is_off_loop = False

    async def _in_pieces(self, function: Callable[..., T], args: tuple[object, ...]) -> T:
        """Run a function from pause to pause; the event loop runs on in between."""
        env, random = self._env, self._env.pauses
        work = PausedWork(function, args, lambda: random.random() < PAUSE_SHARE)
        try:
            while not self._off_loop(work.go_on):
                seconds = random.uniform(0.0, env.weather.pause_seconds)
                await self._until(max(env.agenda.now + seconds, env.hangs_until, self.hangs_until))
        finally:
            self._off_loop(work.kill)
        return work.result()

    async def _until(self, moment: float) -> None:
        done = Signal(self._env)
        self._env.agenda.at(moment, done.wake, self._env)
        await done.wait(shielded=True)


class SimCompanion:
    """`odradek.env.ports.Companion` within the same process. The call itself takes no virtual time; the worker that
    makes it does.
    """

    def __init__(self, env: SimEnv, factory: str, args: tuple[Any, ...]) -> None:
        self._env = env
        self._factory = factory
        self._args = args
        self._made: Any = None
        self._is_closed = False

    def call(self, method: str, *args: Any) -> Any:
        if not self._env.alive:
            raise NodeCrashed
        if self._is_closed:
            raise CompanionLost(f"the companion {self._factory} is closed")
        try:
            if self._made is None:
                self._made = load_factory(self._factory)(*self._args)
            return getattr(self._made, method)(*args)
        except Exception as error:
            carried = carried_error(error)
            if carried is error:
                raise
            raise carried from error

    def close(self) -> None:
        self._is_closed, self._made = True, None


class SimMeter:
    """`odradek.env.ports.Meter` that counts one microsecond per operation, so that quotas are repeatable."""

    def __init__(self, env: SimEnv) -> None:
        self._env = env
        self._turn_ended = 0.0

    def cpu_seconds(self) -> float:
        return self._env.operation_count * CPU_SECONDS_PER_OPERATION

    def thread_cpu_seconds(self) -> float:
        return self.cpu_seconds()

    def turn_cpu_seconds(self, seconds: float) -> float:
        ended = self.cpu_seconds()
        took, self._turn_ended = ended - self._turn_ended, ended
        return took


if TYPE_CHECKING:

    def _conforms(env: SimEnv) -> NodeEnv:
        return env
