"""The signals that request a command's end while it has work to finish: a commit, a count of lines.

An exception at an arbitrary line could lose records that a poll has fetched and not returned yet. So the first
signal is only noted, and it wakes a waiting command. It raises `Ended` in blocks that the command marks as safe
(`waiting`), or when the command calls `check`. A second signal ends the process at once, by the default handler.
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
    """Raised if a signal has requested the command's end; the entrance of the command line then ends the process by
    that signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by signal {number}")
        self.number = number


class Ending:
    """Notes the first of these signals within its block. Signals that the caller has set to be ignored stay
    ignored.
    """

    def __init__(self) -> None:
        self.wake: Callable[[], None] = lambda: None
        """Called when the signal comes, between any two steps of the main thread."""
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
            # A signal came during the last steps: raise `Ended`, since the command was requested to end.
            self.check()

    def check(self) -> None:
        """Raise `Ended` if a signal has arrived; at most once, because the command then runs its ending."""
        number, self._number = self._number, None
        if number is not None:
            raise Ended(number)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Open a block in which the signal raises `Ended` at once, because nothing can be lost there."""
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
    """End the process by the signal that requested its end, so that its parent sees that signal; return only for
    Ctrl-C.
    """
    if end.number != signal.SIGINT:
        signal.signal(end.number, signal.SIG_DFL)
        os.kill(os.getpid(), end.number)
