"""trio's run loop, reduced to the parts that a simulation needs. Kernel events, idle waits and instruments are left
out. SHELL.

`trio.run` drives the generator that `_run.unrolled_run` creates. This generator takes the same steps in the same
order. It polls the kernel only every `ROUNDS_PER_LOOK` rounds, since only signals can arrive. A batch of one task
is neither sorted nor shuffled. `tests/sim/machine/test_task_loop.py` checks that a run has the same digest as with
trio's own loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Any

import trio
from outcome import Error, Value
from trio._core import _run
from trio._core._run import GLOBAL_RUN_CONTEXT
from trio._core._traps import CancelShieldedCheckpoint, WaitTaskRescheduled
from trio.lowlevel import enable_ki_protection

ROUNDS_PER_LOOK = 64
"""The number of rounds of the loop per check whether a signal has arrived."""

__all__ = ["task_loop"]


@enable_ki_protection
def task_loop(
    runner: Any,
    async_fn: Callable[..., Awaitable[Any]],
    args: tuple[Any, ...],
    host_uses_signal_set_wakeup_fd: bool = False,
) -> Generator[float, Any, None]:
    """Run all tasks to their end, as `trio._core._run.unrolled_run` does."""
    try:
        runner.entry_queue.wakeup.wakeup_on_signals()
        runner.clock.start_clock()
        runner.init_task = runner.spawn_impl(runner.init, (async_fn, args), None, "<init>", system_task=True)
        rounds = 0
        while runner.tasks:
            if not runner.runq:
                runner.clock.deadline_to_sleep_time(runner.deadlines.next_deadline())
            rounds += 1
            if rounds % ROUNDS_PER_LOOK == 0:
                events = yield 0.0
                runner.io_manager.process_events(events)
            now = runner.clock.current_time()
            if runner.deadlines._heap:
                runner.deadlines.expire(now)
            _run_batch(runner)
    except trio.TrioInternalError:
        raise
    except BaseException as error:
        raise trio.TrioInternalError("the event loop of the simulation has failed") from error
    finally:
        runner.close()
        GLOBAL_RUN_CONTEXT.__dict__.clear()
        if runner.ki_pending:
            runner.main_task_outcome = Error(KeyboardInterrupt())


def _run_batch(runner: Any) -> None:
    """Run the tasks that are runnable now, in an order that the seed decides. Tasks that they wake run in the next
    batch.
    """
    batch = list(runner.runq)
    runner.runq.clear()
    if len(batch) > 1:
        batch.sort(key=_counter)
        _shuffle(batch)
    while batch:
        task = batch.pop()
        GLOBAL_RUN_CONTEXT.task = task
        resume, outcome = task._next_send_fn, task._next_send
        task._next_send_fn = task._next_send = None
        final: Any = None
        try:
            message = task.context.run(resume, outcome)
        except StopIteration as stop:
            final = Value(stop.value)
        except BaseException as error:  # noqa: BLE001 - passed to the nursery in which the task was started
            traceback = error.__traceback__
            final = Error(error.with_traceback(traceback and traceback.tb_next))
            del traceback
        if final is not None:
            runner.task_exited(task, final)
            final = None
        else:
            task._schedule_points += 1
            if message is CancelShieldedCheckpoint:
                runner.reschedule(task)
            elif type(message) is WaitTaskRescheduled:
                task._cancel_points += 1
                task._abort_func = message.abort_func
                if runner.ki_pending and task is runner.main_task:
                    task._attempt_delivery_of_pending_ki()
                task._attempt_delivery_of_any_pending_cancel()
            else:
                raise TypeError(f"a task of another library yields {message!r}")
            del message
        del GLOBAL_RUN_CONTEXT.task, task, resume, outcome


def _counter(task: Any) -> int:
    number: int = task._counter
    return number


def _shuffle(batch: list[Any]) -> None:
    vars(_run)["_r"].shuffle(batch)
