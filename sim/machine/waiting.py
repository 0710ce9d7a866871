"""Waiting inside the virtual world: the one place where the simulated ports meet trio's scheduler. SHELL."""

from __future__ import annotations

from collections.abc import Generator
from types import coroutine
from typing import Any, Protocol

import trio
from outcome import Value
from trio._core._run import GLOBAL_RUN_CONTEXT
from trio._core._traps import WaitTaskRescheduled
from trio.lowlevel import Abort, RaiseCancelT, Task

_WOKEN = Value(None)
"""The outcome of a wait that was woken; a single object, since it is never unwrapped."""


class NodeCrashed(BaseException):
    """The node that waits here has crashed; its own code must not handle this."""


class Waiter(Protocol):
    """A node, as far as its waits are concerned."""

    alive: bool
    wakes: int
    """The number of times that tasks were woken; checks skip a node that has had none."""
    waits: dict[Task, Signal]
    """Waiting tasks and their signals, in the order of their coming."""


@coroutine
def _suspend(message: WaitTaskRescheduled) -> Generator[WaitTaskRescheduled, Any, Any]:
    """Suspend like `trio.lowlevel.wait_task_rescheduled`, without the unwrapping: returns the outcome of the wait."""
    return (yield message)


class Signal:
    """A condition that tasks of one node wait for. They are woken in the order of their waits."""

    __slots__ = ("_owner", "_tasks")

    def __init__(self, owner: Waiter) -> None:
        self._owner = owner
        self._tasks: list[Task] = []

    async def wait(self, *, shielded: bool = False) -> None:
        """Wait for the next `wake`. Raises `NodeCrashed` on a node that is dead, or dies meanwhile.

        `shielded`: wait though the caller be cancelled, as for a thread that cannot be stopped.
        """
        owner = self._owner
        if not owner.alive:
            await trio.lowlevel.checkpoint()
            raise NodeCrashed
        task = GLOBAL_RUN_CONTEXT.task
        self._tasks.append(task)
        owner.waits[task] = self

        def abort(_: RaiseCancelT) -> Abort:
            if shielded:  # a cancel scope with a shield does the same, and costs more than the wait
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
    """`odradek.env.ports.Event` of a node."""

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
"""Raise where the caller is cancelled; otherwise go on at once."""
