"""A scheduler on virtual time that steps tasks one by one in an order drawn from a seed. PORTED.

Theory of operation
-------------------
PORTED code awaits only the ports of `odradek.env.ports`. Here each such
await yields a `_Wait`, and `Steps` resumes the coroutine when the wait is over. `Steps.run_until` steps the
runnable tasks in random order. When no task is runnable, virtual time advances to the next timer. A *process* owns
tasks. It may be killed before any step of its tasks, which means at any await.

A timeout cancels a wait as in trio: the present wait, or the next one. A call to a worker cannot be cancelled.
`Dead` is raised in the tasks of a killed process; errors that they raise after that are ignored.
"""

from __future__ import annotations

import heapq
from collections.abc import Awaitable, Callable, Coroutine, Generator
from random import Random
from types import TracebackType
from typing import Any, TypeVar

from sim.history import SafetyViolation
from sim.machine.disk_files import PowerCut

__all__ = ["Dead", "Process", "StepClock", "StepEvent", "StepWorkers", "Steps"]

T = TypeVar("T")

STEPS_IN_A_MOMENT_MAX = 20_000
"""How many steps tasks may take without any advance of virtual time; more count as an endless loop."""
START_MS = 1_750_000_000_000


class Dead(BaseException):
    """Raised in the tasks of a process that was killed."""


class _Cut(BaseException):
    """Raised in a task when the deadline of one of its timeouts has passed."""

    def __init__(self, timeout: _Timeout) -> None:
        self.timeout = timeout


class _Wait:
    """A wait of a task. `begin` is called when the task starts to wait; `Steps.ready` ends the wait."""

    __slots__ = ()
    can_be_cut = True

    def __await__(self) -> Generator[_Wait, None, None]:
        yield self

    def begin(self, task: Task) -> None:
        raise NotImplementedError

    def leave(self, task: Task) -> None:
        """Called when the wait is cancelled. Does nothing here, since a late wake-up is ignored."""


class Task:
    """A coroutine of a process, with its present wait and the timeouts around it, outermost first."""

    __slots__ = ("coroutine", "cut", "process", "timeouts", "wait")

    def __init__(self, process: Process, coroutine: Coroutine[Any, Any, Any]) -> None:
        self.process = process
        self.coroutine = coroutine
        self.wait: _Wait | None = None
        self.timeouts: list[_Timeout] = []
        self.cut: _Cut | None = None
        """The exception to raise in the coroutine at its next step."""

    def due(self) -> _Cut | None:
        """Return an exception for the outermost timeout whose deadline has passed; None if there is none."""
        for timeout in self.timeouts:
            if timeout.is_due:
                return _Cut(timeout)
        return None


class Steps:
    """The scheduler: all tasks and timers. `before` and `after` are called around each step, with the task's process."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.now = 0.0
        self.before: Callable[[Process], None] = lambda process: None
        self.after: Callable[[Process], None] = lambda process: None
        self.count = 0
        self.running: Task | None = None
        self._in_moment = 0
        """How many steps were taken since virtual time last advanced."""
        self._ready: list[Task] = []
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._entered = 0

    def at(self, time: float, action: Callable[[], None]) -> None:
        """Call `action` at this virtual time in seconds; at once if the time has passed."""
        self._entered += 1
        heapq.heappush(self._timers, (max(time, self.now), self._entered, action))

    def ready(self, task: Task) -> None:
        """Mark the task runnable."""
        task.wait = None
        self._ready.append(task)

    def cut(self, task: Task) -> None:
        """Cancel the present wait of a task whose deadline has passed, if that wait can be cancelled."""
        if task.wait is not None and task.wait.can_be_cut:
            task.wait.leave(task)
            task.cut = task.due()
            self.ready(task)

    def run_until(self, end: float) -> None:
        """Run tasks and timers until virtual time `end`, in seconds."""
        while True:
            while self._ready:
                ready = self._ready
                at = int(self.random.random() * len(ready))
                ready[at], ready[-1] = ready[-1], ready[at]
                self._step(ready.pop())
            if not self._timers or self._timers[0][0] > end:
                self.now = end
                return
            time, _, action = heapq.heappop(self._timers)
            if time > self.now:
                self.now, self._in_moment = time, 0
            action()

    def _step(self, task: Task) -> None:
        process = task.process
        if process.lives:
            self.before(process)
        if process.lives:
            self.count += 1
            self._advance(task, process)
            self.after(process)

    def _advance(self, task: Task, process: Process) -> None:
        """Run a task until its next wait. The process handles an exception that the task raises."""
        self.running = task
        cut, task.cut = task.cut, None
        try:
            while True:
                self._in_moment += 1
                if self._in_moment > STEPS_IN_A_MOMENT_MAX:
                    raise SafetyViolation(
                        f"tasks run on and on at {self.now} s without any advance of virtual time"
                    )
                wait = task.coroutine.send(None) if cut is None else task.coroutine.throw(cut)
                cut = task.due() if wait.can_be_cut else None
                if cut is None:
                    task.wait = wait
                    wait.begin(task)
                    return
        except StopIteration:
            process.tasks.pop(task, None)
        except PowerCut:
            process.tasks.pop(task, None)
            process.on_power_cut()
        except SafetyViolation:
            raise
        except Exception as error:  # noqa: BLE001 - any error ends the process; the schedule may expect it
            process.tasks.pop(task, None)
            process.on_failure(error)
        finally:
            self.running = None


class Process:
    """A simulated process: the `TaskGroup` of its tasks."""

    def __init__(self, steps: Steps) -> None:
        self.steps = steps
        self.lives = True
        self.tasks: dict[Task, None] = {}
        self.on_failure: Callable[[Exception], None] = lambda error: None
        self.on_power_cut: Callable[[], None] = lambda: None

    def start_soon(
        self, function: Callable[..., Awaitable[Any]], *args: Any, name: str | None = None
    ) -> None:
        """Start a task, which is killed with the process."""
        if self.lives:
            coroutine = function(*args)
            assert isinstance(coroutine, Coroutine)
            task = Task(self, coroutine)
            self.tasks[task] = None
            self.steps.ready(task)

    def kill(self) -> None:
        """End all tasks at their present await. The caller must have made the ports of these tasks fail before."""
        self.lives = False
        tasks, self.tasks = self.tasks, {}
        for task in tasks:
            _end(task.coroutine)


def _end(coroutine: Coroutine[Any, Any, Any]) -> None:
    """Raise `Dead` in a coroutine and close it. Errors and awaits of the coroutine's clean-up code are ignored."""
    try:
        coroutine.throw(Dead())
    except (Dead, StopIteration, PowerCut):
        return
    except Exception:  # noqa: BLE001 - the ports of a killed process raise errors
        return
    coroutine.close()


# -- ports ------------------------------------------------------------------------------------------------------------


class _Turn(_Wait):
    """A wait that ends at a later step without an advance of virtual time, so that other tasks may run first."""

    __slots__ = ("_steps",)

    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    def begin(self, task: Task) -> None:
        self._steps.ready(task)


class _Until(_Wait):
    """A wait until a given virtual time."""

    __slots__ = ("_steps", "_time", "can_be_cut")

    def __init__(self, steps: Steps, time: float, *, can_be_cut: bool = True) -> None:
        self._steps = steps
        self._time = time
        self.can_be_cut = can_be_cut

    def begin(self, task: Task) -> None:
        def wake() -> None:
            if task.wait is self:
                self._steps.ready(task)

        self._steps.at(self._time, wake)


class StepEvent(_Wait):
    """`odradek.env.ports.Event` on the scheduler `Steps`."""

    __slots__ = ("_is_set", "_steps", "_tasks")

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._is_set = False
        self._tasks: dict[Task, None] = {}

    def set(self) -> None:
        self._is_set = True
        tasks, self._tasks = self._tasks, {}
        for task in tasks:
            self._steps.ready(task)

    def is_set(self) -> bool:
        return self._is_set

    async def wait(self) -> None:
        await (_Turn(self._steps) if self._is_set else self)

    def begin(self, task: Task) -> None:
        self._tasks[task] = None

    def leave(self, task: Task) -> None:
        self._tasks.pop(task, None)


class _Timeout:
    """`odradek.env.ports.Scope`: a timeout of the running task."""

    def __init__(self, steps: Steps, deadline: float) -> None:
        self._steps = steps
        self._deadline = deadline
        self._task: Task | None = None
        self.is_due = False
        self.expired = False

    def __enter__(self) -> _Timeout:
        task = self._task = self._steps.running
        assert task is not None, "a timeout is a task's"
        task.timeouts.append(self)
        if self._deadline <= self._steps.now:
            self.is_due = True
        elif self._deadline < float("inf"):
            self._steps.at(self._deadline, self._pass)
        return self

    def _pass(self) -> None:
        task = self._task
        if task is not None and task.process.lives:
            self.is_due = True
            self._steps.cut(task)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        task, self._task = self._task, None
        assert task is not None
        task.timeouts.remove(self)
        self.expired = isinstance(error, _Cut) and error.timeout is self
        return self.expired


class StepClock:
    """`odradek.env.ports.Clock` with the schedule's time, equal for all nodes."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    def monotonic(self) -> float:
        return self._steps.now

    def wall_ms(self) -> int:
        return START_MS + int(self._steps.now * 1000)

    async def sleep_until(self, deadline: float) -> None:
        steps = self._steps
        await (_Turn(steps) if steps.now >= deadline else _Until(steps, deadline))

    def timeout_at(self, deadline: float) -> _Timeout:
        return _Timeout(self._steps, deadline)


class StepWorkers:
    """`odradek.env.ports.Workers`. A call lasts as many seconds as `seconds()` draws. The function runs at the start,
    in the middle or at the end of that time.
    """

    def __init__(self, steps: Steps, random: Random, seconds: Callable[[], float]) -> None:
        self._steps = steps
        self._random = random
        self._seconds = seconds

    async def run(self, function: Callable[..., T], *args: Any) -> T:
        steps, began, seconds = self._steps, self._steps.now, self._seconds()
        await _Until(steps, began + seconds * self._random.choice((0.0, 1.0, 0.5)), can_be_cut=False)
        result: T
        failure: Exception | None = None
        try:
            result = function(*args)
        except Exception as error:  # noqa: BLE001 - raised to the caller when the call ends
            failure = error
        await _Until(steps, began + seconds, can_be_cut=False)
        if failure is not None:
            raise failure
        return result
