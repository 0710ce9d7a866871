"""Handling of signals that ask a command to end, while it still has to commit offsets or count lines.

An exception at an arbitrary line could lose records that a poll has fetched and not returned yet. So the
first signal is only recorded, and it wakes a waiting command. It raises `Ended` in blocks that the command
marks as safe (`waiting`), or when the command calls `check`. A second signal ends the process at once, by the
default handler.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

__all__ = ["Ended", "Ending", "die_of"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Ended(KeyboardInterrupt):
    """Raised if a signal has requested the command's end; `odradek.cli.__main__` then ends the process by
    that signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by signal {number}")
        self.number = number


class Ending:
    """A context manager that notes the first signal that asks the command to end. Signals that the caller has
    set to be ignored stay ignored.
    """

    def __init__(self) -> None:
        self.wake: Callable[[], None] = lambda: None
        """Called when the signal arrives, at any point of the main thread's work."""
        self._number: int | None = None
        self._may_raise = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Ending:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                    self._before[number] = signal.signal(number, self._arrived)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if kind is None:
            # A signal came during the last steps: raise `Ended`, because the command must still end by that
            # signal.
            self.check()

    def check(self) -> None:
        """Raise `Ended` if a signal has arrived since the last call."""
        number, self._number = self._number, None
        if number is not None:
            raise Ended(number)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Open a block in which the signal raises `Ended` at once. The command only waits in such a block, so
        no work is lost.
        """
        self.check()
        self._may_raise = True
        try:
            yield
        finally:
            self._may_raise = False

    def _arrived(self, number: int, frame: FrameType | None) -> None:
        self._number = number
        for each in self._before:
            signal.signal(each, signal.SIG_DFL)
        self.wake()
        if self._may_raise:
            self._may_raise = False
            self.check()


def die_of(end: Ended) -> None:
    """End the process by the signal that stopped the command, so that its parent process sees that signal.
    Return only for SIGINT.
    """
    if end.number != signal.SIGINT:
        signal.signal(end.number, signal.SIG_DFL)
        os.kill(os.getpid(), end.number)
