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

    `node` is a broker id, or None for any broker. `deadline` is in seconds of the core's clock. `version_max` caps
    the version that is negotiated (for operations that lack an argument of newer versions). Below `version_min` an
    important field would be left out; `version_min` may be a version that Kafka calls unstable. Calls of different
    `lane`s never wait for each other: each lane has its own connection to the broker. Once `done`, exactly one of
    `response` and `error` is set. A request without an answer (Produce with acks=0) is the exception: it is done
    when the connection has it, and leaves both unset.
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
        """Finish with the broker's answer."""
        self._finish(response, None)

    def fail(self, error: Exception) -> None:
        """Finish without an answer."""
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
        """Return the response; raises the error of a call that failed."""
        if self.error is not None:
            raise self.error
        return self.response


@attrs.define(eq=False)
class Work:
    """A computation that would delay the core, so it runs in a thread. Other code must not use its data meanwhile."""

    function: Callable[[], Any]
    value: Any = None
    error: Exception | None = None
    done: bool = False
    on_done: Callable[[], None] | None = None

    def finish(self, value: Any, error: Exception | None) -> None:
        """Finish with the function's result, or its exception."""
        self.value, self.error, self.done = value, error, True
        if self.on_done is not None:
            self.on_done()

    def result(self) -> Any:
        """Return the function's value. Raises its exception."""
        if self.error is not None:
            raise self.error
        return self.value


class Signal:
    """Wakes the operations that wait for it, for news that does not come as the answer to a call.

    It has no memory. An operation first checks for news; if there is none, it yields a `Wait` for the signal. The
    two steps are atomic, because other code runs only at a yield. Code that has news calls `notify`; the operations
    continue at the core's next step (`tick`).
    """

    __slots__ = ("_ready", "_waiting")

    def __init__(self, ready: Callable[[Task[Any], int], None]) -> None:
        self._ready = ready
        self._waiting: dict[Task[Any], int] = {}

    def add(self, task: Task[Any], wait_number: int) -> None:
        """Let the next `notify` end this wait, unless something else has ended it before."""
        self._waiting[task] = wait_number

    def notify(self) -> None:
        """Let every waiting operation continue, because there is news."""
        if self._waiting:
            waiting, self._waiting = self._waiting, {}
            for task, wait_number in waiting.items():
                self._ready(task, wait_number)


@attrs.frozen(eq=False)
class Wait:
    """A wait that ends when all `calls` are done (or the first of them, with `first`).

    It ends earlier when the clock reaches `until`, or when one of `signals` is notified.
    """

    calls: Sequence[Call | Work] = ()
    first: bool = False
    until: float | None = None
    signals: Sequence[Signal] = ()

    @property
    def satisfied(self) -> bool:
        """True if the calls alone end this wait. A wait without calls is a sleep."""
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
        """Run the operation to its next wait; return None when it has ended."""
        try:
            self.wait = next(self.operation)
        except StopIteration as stop:
            self._finish(stop.value, None)
            return None
        except Exception as error:  # noqa: BLE001 - kept for the caller, who gets it from result()
            self._finish(None, error)
            return None
        self.wait_number += 1
        return self.wait

    def cancel(self, error: BaseException) -> None:
        """End the operation at its present wait; `result` raises `error`."""
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

    def result(self) -> T:
        """Return the operation's value. Raises its exception."""
        if not self.done:
            raise AssertionError("the operation has not ended, so it has no result yet")
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value] # T itself may be None
