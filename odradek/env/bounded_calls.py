"""Makes the event loop's calls to one disk in a separate thread, so that the loop waits only a limited time
for each call. SHELL.

Theory of operation
-------------------
A call to a device that hangs cannot be interrupted: its thread waits in the kernel until the device answers.
So in a node with several disks, there is one thread per disk, which makes the loop's calls to this disk. The
loop waits for each call, but only for a limited time.

    idle -> called -> answered in time -----------------------------> idle
                 '-> abandoned (`CallHangs`) -> undone, or finished ---'

* The caller of an abandoned call gets `CallHangs`, and chooses how the call ends. When the device finally answers,
  the thread undoes the call, or finishes it. Until then every further call is refused at once, so no call overtakes
  another.
* Only calls of the thread that made the `BoundedCalls` object are limited. Workers may wait, so they call the
  device directly.
* Data to be written is copied, because the caller may reuse its buffer before an abandoned write ends.
* A call needs the interpreter lock three times: to begin, to end, and to continue the loop. If a worker runs
  Python code, each time the call waits for the switch interval. So the interval is made short, but only while
  the loop waits.

`bench/disks/README.md` has the measured cost of a call.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

__all__ = ["BoundedCalls", "CallHangs", "Outcome", "Undo", "outcome_of"]

T = TypeVar("T")
HAND_OVER_SECONDS = 0.00002
"""The interpreter's switch interval in seconds while the loop waits for a call."""
Undo = Callable[[Any], None]
"""A function that undoes or finishes an abandoned call. Its argument is the call's result."""
Outcome: TypeAlias = tuple[T | None, Exception | None]
"""The outcome of a call, as (result, exception). The exception is None if the call has returned. The result is None
if it has raised.
"""


class CallHangs(Exception):
    """Raised if the device has not answered in time. With `has_begun` false, this call was not even started, because
    an earlier call still hangs.
    """

    def __init__(self, *, has_begun: bool = False) -> None:
        super().__init__()
        self.has_begun = has_begun


def outcome_of(work: Callable[[], T]) -> Outcome[T]:
    """Call a function, and return its result or its exception."""
    try:
        return work(), None
    except Exception as error:  # noqa: BLE001 - raised in the caller, or by `settle`
        return None, error


class BoundedCalls:
    """Makes the loop's calls to one disk in a separate thread, which starts with the first call."""

    __slots__ = (
        "_caller",
        "_done",
        "_failure",
        "_is_closed",
        "_job",
        "_lock",
        "_result",
        "_settled",
        "_started",
        "_undo",
        "_wait_seconds",
        "_work",
        "bounds_looks",
        "hangs",
    )

    def __init__(self, wait_seconds: float, *, bounds_looks: bool = True) -> None:
        """Make the object. The calls of the current thread are limited. With `bounds_looks`, calls that only
        read are limited, too.
        """
        self.bounds_looks = bounds_looks
        self._wait_seconds = wait_seconds
        self._caller = threading.get_ident()
        self._work = threading.Lock()
        self._done = threading.Lock()
        self._work.acquire()
        self._done.acquire()
        self._lock = threading.Lock()
        """Held while one of the two threads decides whether the call was answered in time."""
        self._job: tuple[Callable[..., Any], tuple[Any, ...]] | None = None
        self._result: Any = None
        self._undo: Undo | None = None
        self._settled = threading.Event()
        self._settled.set()
        self._failure: Exception | None = None
        self._started = False
        self._is_closed = False
        self.hangs = False
        """True while an abandoned call is neither undone nor finished."""

    def is_for_me(self) -> bool:
        """True if the current thread's calls are limited."""
        return threading.get_ident() == self._caller

    def looks_for_me(self) -> bool:
        """True if the current thread's calls are limited, including calls that only read."""
        return self.bounds_looks and threading.get_ident() == self._caller

    def run(self, function: Callable[..., T], abandon: Callable[[], Undo], *args: object) -> T:
        """Call `function` in the other thread, and wait for its result. `function` must not raise.

        If the call takes too long, call `abandon`, and raise `CallHangs`. `abandon` returns a function that
        undoes or finishes the call. The other thread runs this function when the device has answered.
        """
        if self.hangs or self._is_closed:
            raise CallHangs
        if not self._started:
            threading.Thread(target=self._serve, name="calls a disk", daemon=True).start()
            self._started = True
        self._job = function, args
        interval = sys.getswitchinterval()
        sys.setswitchinterval(HAND_OVER_SECONDS)
        try:
            self._work.release()
            is_done = self._done.acquire(timeout=self._wait_seconds)
        finally:
            sys.setswitchinterval(interval)
        if not is_done:
            with self._lock:
                if not self._done.acquire(blocking=False):
                    self._undo = abandon()
                    self._settled.clear()
                    self.hangs = True
                    raise CallHangs(has_begun=True)
        result: T = self._result
        self._result = None
        return result

    def settle(self) -> None:
        """Wait until an abandoned call is undone or finished; only a worker may call this. Raises the error with
        which the call ended.
        """
        self._settled.wait()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def close(self) -> None:
        """End the thread after its current call. All further calls raise `CallHangs`."""
        with self._lock:
            self._is_closed = True
            if self._started and self._job is None and self._work.locked():
                self._work.release()

    def _serve(self) -> None:
        while not self._is_closed:
            self._work.acquire()
            job = self._job
            if job is None:
                return
            function, args = job
            self._job = None
            result = function(*args)
            del job, args
            with self._lock:
                undo, self._undo = self._undo, None
                if undo is None:
                    self._result = result
                    self._done.release()
                    continue
            try:
                undo(result)
            except Exception as error:  # noqa: BLE001 - raised by `settle`
                self._failure = error
            self.hangs = False
            self._settled.set()
