"""Operations: client protocols as plain generators without IO, which the core drives.

An operation yields a `Wait` and is resumed when the wait is satisfied; it returns its result or raises its error.
It starts requests through `ClientCore.call` and reads the time from `ClientCore.now`. Because a generator neither
awaits nor blocks, the blocking shell, the async shell and the tests all run the same protocol code.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

import attrs

__all__ = ["Call", "Operation", "Signal", "Task", "Wait", "Work"]

T = TypeVar("T")


@attrs.define(eq=False)
class Call:
    """One request to one broker, and its outcome.

    `node` is a broker id, or None for any broker. `deadline` is in seconds of the core's clock. `version_max`
    limits the negotiated version (for operations that do not set the fields of newer versions). `version_min`
    is the lowest version that has all needed fields; it may be a version that Kafka calls unstable. Calls of
    different `lane`s never wait for each other, because each lane has its own connection to the broker. Once
    `done`, exactly one of `response` and `error` is set. The exception is a call without an answer (Produce
    with acks=0). It is done when the request was sent, and then neither `response` nor `error` is set.
    """

    request: Any
    node: int | None
    deadline: float
    version_max: int | None = None
    expects_response: bool = True
    lane: int = 0
    version_min: int = 0
    response: Any = None
    error: Exception | None = None
    done: bool = False
    connection_id: int | None = None
    on_done: Callable[[], None] | None = None

    def succeed(self, response: Any) -> None:
        """Complete the call with the broker's response."""
        self._finish(response, None)

    def fail(self, error: Exception) -> None:
        """Complete the call with an error instead of a response."""
        self._finish(None, error)

    def _finish(self, response: Any, error: Exception | None) -> None:
        if self.done:
            raise AssertionError("a call was completed twice")
        self.response = response
        self.error = error
        self.done = True
        if self.on_done is not None:
            self.on_done()

    def result(self) -> Any:
        """Return the response of a completed call, or raise its error."""
        if self.error is not None:
            raise self.error
        return self.response


@attrs.define(eq=False)
class Work:
    """A computation that runs in a thread, so that it does not delay the core. Until the computation is done, no other
    code may use its data.
    """

    function: Callable[[], Any]
    value: Any = None
    error: Exception | None = None
    done: bool = False
    on_done: Callable[[], None] | None = None

    def finish(self, value: Any, error: Exception | None) -> None:
        """Complete the work with the function's value or exception."""
        self.value, self.error, self.done = value, error, True
        if self.on_done is not None:
            self.on_done()

    def result(self) -> Any:
        """Return the function's value, or raise its exception."""
        if self.error is not None:
            raise self.error
        return self.value


class Signal:
    """A means to wake operations that wait for an event other than the answer to a call.

    A signal has no memory. An operation first checks for the event; if it has not happened, it yields a `Wait` for
    the signal. The two steps are atomic, because other code runs only at a yield. Code that causes the event calls
    `notify`; the operations continue at the core's next step (`tick`).
    """

    __slots__ = ("_ready", "_waiting")

    def __init__(self, ready: Callable[[Task[Any], int], None]) -> None:
        self._ready = ready
        self._waiting: dict[Task[Any], int] = {}

    def add(self, task: Task[Any], wait_number: int) -> None:
        """Make the next `notify` end this wait of the task, unless the wait has ended before."""
        self._waiting[task] = wait_number

    def notify(self) -> None:
        """Let every operation that waits for this signal continue."""
        if self._waiting:
            waiting, self._waiting = self._waiting, {}
            for task, wait_number in waiting.items():
                self._ready(task, wait_number)


@attrs.frozen(eq=False)
class Wait:
    """A wait of an operation. The wait ends when all `calls` are done (with `first`: when one call is done).

    The wait ends earlier when the clock reaches `until`, or when one of the `signals` is notified.
    """

    calls: Sequence[Call | Work] = ()
    first: bool = False
    until: float | None = None
    signals: Sequence[Signal] = ()

    @property
    def satisfied(self) -> bool:
        """True if the completed calls end this wait. A wait without calls lasts until its time or a signal."""
        if not self.calls:
            return False
        combine = any if self.first else all
        return combine(call.done for call in self.calls)


Operation: TypeAlias = Generator[Wait, None, T]


class Task(Generic[T]):
    """A running operation. `done` is set when it has returned or raised; then `on_done` is called, once."""

    __slots__ = ("_error", "_result", "done", "on_done", "operation", "wait", "wait_number")

    def __init__(self, operation: Operation[T]) -> None:
        self.operation = operation
        self.done = False
        self.on_done: Callable[[], None] | None = None
        self.wait: Wait | None = None
        self.wait_number = 0
        self._result: T | None = None
        self._error: BaseException | None = None

    def step(self) -> Wait | None:
        """Run the operation up to its next wait, and return the wait; None when the operation has ended."""
        try:
            self.wait = next(self.operation)
        except StopIteration as stop:
            self._finish(stop.value, None)
            return None
        except Exception as error:  # noqa: BLE001 - stored, and raised by result()
            self._finish(None, error)
            return None
        self.wait_number += 1
        return self.wait

    def cancel(self, error: BaseException) -> None:
        """End the operation at its current wait. `result` then raises `error`."""
        if not self.done:
            self.operation.close()
            self._finish(None, error)

    def _finish(self, result: T | None, error: BaseException | None) -> None:
        self.wait = None
        self.done = True
        self._result = result
        self._error = error
        if self.on_done is not None:
            self.on_done()

    @property
    def has_failed(self) -> bool:
        """True if the operation has ended with an error."""
        return self._error is not None

    def result(self) -> T:
        """Return the operation's value, or raise its exception."""
        if not self.done:
            raise AssertionError("the operation has not ended, so it has no result yet")
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value] # T itself may be None
