"""Waits of simulated nodes: the only place where the simulated ports use trio's scheduler. SHELL."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextvars import copy_context
from types import coroutine
from typing import Any, Generic, Protocol, TypeVar

import trio
from outcome import Outcome, Value, capture
from trio._core._run import GLOBAL_RUN_CONTEXT
from trio._core._traps import WaitTaskRescheduled
from trio.lowlevel import Abort, RaiseCancelT, Task

from odradek.env.pausing import at_pauses

T = TypeVar("T")
HELD_UP = "held-up work"
"""The name of the threads of `PausedWork`."""
_WOKEN = Value(None)
"""The outcome of a wait that was woken. One object serves all waits, since it is never unwrapped."""


class NodeCrashed(BaseException):
    """Raised in a wait of a node that has crashed; the node's own code must not catch it."""


class Waiter(Protocol):
    """The part of a node that its waits use."""

    alive: bool
    wakes: int
    """How many times tasks of the node were woken. Checks skip a node if this number has not changed."""
    waits: dict[Task, Signal]
    """For each waiting task, the signal that it waits for. The tasks are in the order in which they began to wait."""


@coroutine
def _suspend(message: WaitTaskRescheduled) -> Generator[WaitTaskRescheduled, Any, Any]:
    """Suspend the task as `trio.lowlevel.wait_task_rescheduled` does, but return the wait's outcome object without
    unwrapping it.
    """
    return (yield message)


class Signal:
    """A condition for which tasks of one node wait. The tasks are woken in the order in which they began to wait."""

    __slots__ = ("_owner", "_tasks")

    def __init__(self, owner: Waiter) -> None:
        self._owner = owner
        self._tasks: list[Task] = []

    async def wait(self, *, shielded: bool = False) -> None:
        """Wait for the next `wake`. Raises `NodeCrashed` if the node has crashed, or crashes during the wait.

        With `shielded` the wait continues even if the caller is cancelled, as for a thread that cannot be stopped.
        """
        owner = self._owner
        if not owner.alive:
            await trio.lowlevel.checkpoint()
            raise NodeCrashed
        task = GLOBAL_RUN_CONTEXT.task
        self._tasks.append(task)
        owner.waits[task] = self

        def abort(_: RaiseCancelT) -> Abort:
            # A shielded cancel scope would have this effect, too, but it costs more than the wait.
            if shielded:
                return Abort.FAILED
            self._tasks.remove(task)
            del owner.waits[task]
            return Abort.SUCCEEDED

        outcome = await _suspend(WaitTaskRescheduled(abort))
        if outcome is not _WOKEN:
            outcome.unwrap()
        if not owner.alive:
            raise NodeCrashed

    def wake(self) -> None:
        """Wake all waiting tasks."""
        tasks = self._tasks
        if tasks:
            self._tasks = []
            self._owner.wakes += 1
            waits = self._owner.waits
            for task in tasks:
                del waits[task]
                task._runner.reschedule(task, _WOKEN)


class SimEvent:
    """`odradek.env.ports.Event` for tasks of one node."""

    __slots__ = ("_set", "_signal")

    def __init__(self, owner: Waiter) -> None:
        self._signal = Signal(owner)
        self._set = False

    def set(self) -> None:
        self._set = True
        self._signal.wake()

    def is_set(self) -> bool:
        return self._set

    async def wait(self) -> None:
        if self._set:
            await checkpoint()
        else:
            await self._signal.wait()


checkpoint = trio.lowlevel.checkpoint
"""Let other tasks run."""
checkpoint_if_cancelled = trio.lowlevel.checkpoint_if_cancelled
"""Raise trio's cancellation if the caller is cancelled; otherwise return at once."""


class PausedWork(Generic[T]):
    """A worker's function that the event loop runs from pause to pause.

    The function has its own thread, which runs only between a call of `go_on` and its return. So either the loop or
    the thread waits for the other, and the same seed gives the same order. To trio the thread looks like the task
    that waits for it.
    """

    _running: PausedWork[Any] | None = None

    def __init__(
        self, function: Callable[..., T], args: tuple[object, ...], pauses: Callable[[], bool]
    ) -> None:
        """Prepare to run `function(*args)`. `pauses` decides at each pause whether the loop runs on there."""
        self._function = function
        self._args = args
        self._pauses = pauses
        self._baton = threading.Semaphore(0)
        self._returned = threading.Semaphore(0)
        self._context = copy_context()
        self._thread: threading.Thread | None = None
        self._is_over = False
        self._is_killed = False
        self._outcome: Outcome[T] | None = None
        at_pauses(PausedWork._pause)

    def go_on(self) -> bool:
        """Run the function to its next pause. Return True if it has ended."""
        PausedWork._running = self
        try:
            if self._thread is None:
                trio_run = dict(vars(GLOBAL_RUN_CONTEXT))
                self._thread = threading.Thread(
                    target=self._main, args=(trio_run,), name=HELD_UP, daemon=True
                )
                self._thread.start()
            else:
                self._baton.release()
            self._returned.acquire()
        finally:
            PausedWork._running = None
        if self._is_over:
            self._thread.join()
        return self._is_over

    def result(self) -> T:
        """Return the function's result, or raise its error."""
        assert self._outcome is not None
        return self._outcome.unwrap()

    def kill(self) -> None:
        """Raise `NodeCrashed` in an interrupted function. The function's process has crashed, so the function's
        clean-up has no effect.
        """
        if self._thread is not None and not self._is_over:
            self._is_killed = True
            self.go_on()

    def _main(self, trio_run: dict[str, Any]) -> None:
        vars(GLOBAL_RUN_CONTEXT).update(trio_run)
        self._outcome = self._context.run(capture, self._function, *self._args)
        self._is_over = True
        self._returned.release()

    @staticmethod
    def _pause() -> None:
        work = PausedWork._running
        if work is None:
            return
        if not work._is_killed and work._pauses():
            work._returned.release()
            work._baton.acquire()
        if work._is_killed:
            raise NodeCrashed
