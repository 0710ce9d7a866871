"""Values that are computed beside views, in a thread of their own, so that a view need not wait for them. SHELL."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["Beside"]

T = TypeVar("T")


class Beside(Generic[T]):
    """A value, and the thread that computes it anew when somebody asks for it and it is old."""

    def __init__(self, *, fresh_seconds: float, failed_seconds: float) -> None:
        """After `fresh_seconds`, the value is computed again; after a failure, in `failed_seconds`."""
        self._fresh_seconds = fresh_seconds
        self._failed_seconds = failed_seconds
        self._lock = threading.Lock()
        self._done = threading.Event()
        """Set while no thread computes."""
        self._done.set()
        self._next_at = float("-inf")
        self._value: T | None = None
        self._error: Exception | None = None

    def get(self, make: Callable[[], T], wait_seconds: float) -> T | None:
        """Return the newest value; None if the first one is not there after `wait_seconds`. Raises the last error of
        `make`.
        """
        with self._lock:
            if self._done.is_set() and time.monotonic() >= self._next_at:
                self._done.clear()
                threading.Thread(target=self._compute, args=(make,), name="beside", daemon=True).start()
        if self._value is None:
            self._done.wait(wait_seconds)
        error = self._error
        if error is not None:
            raise error
        return self._value

    def _compute(self, make: Callable[[], T]) -> None:
        value, error = None, None
        try:
            value = make()
        except Exception as failure:  # noqa: BLE001 - raised in the threads that ask
            error = failure
        self._value, self._error = value, error
        pause = self._fresh_seconds if error is None else self._failed_seconds
        self._next_at = time.monotonic() + pause
        self._done.set()
