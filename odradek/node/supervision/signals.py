"""SIGTERM and SIGINT of a node's process, also while it starts; and its end although calls to a disk hang. A
thread waits for them, and ends the process if a start does not end. SHELL.

While a node starts, its loop may wait in a call to a disk that hangs. Then Python runs no signal handlers. So the
signals are blocked in every thread, and one thread waits for them. It passes a signal on to the loop. If the node was
starting and still runs after `START_STOP_SECONDS_MAX`, the thread ends the process; calls that hang in the kernel are
abandoned. Nothing is written then, so the next start recovers as after a crash.

A node that has served closes all other directories, and passes those whose disks hang to `leave_behind`. Then
the process ends. The kernel may keep it as a zombie until the disk answers; locks of the other directories
are released before that.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence

STOP_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT})
START_STOP_SECONDS_MAX = 4.0
LEAVE_SECONDS = 0.5
LEFT_BEHIND_STATUS = 1


class StopSignals:
    """Waits for the stop signals. It must be made in the main thread before any other thread; call `attach` when the
    loop runs."""

    def __init__(self, node_id: int) -> None:
        self._node_id = node_id
        self._lock = threading.Lock()
        self._notify: Callable[[str], None] | None = None
        self._is_starting: Callable[[], bool] = lambda: True
        self._came = ""
        self.ended = threading.Event()
        """Set by the owner once the node has stopped completely."""
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        threading.Thread(target=self._wait, name="signals", daemon=True).start()

    def attach(self, notify: Callable[[str], None], is_starting: Callable[[], bool]) -> None:
        """Register `notify`, which the waiting thread calls with a signal's name; call it at once if a signal has
        arrived already.
        """
        with self._lock:
            self._notify, self._is_starting = notify, is_starting
            if self._came:
                notify(self._came)

    def _wait(self) -> None:
        while True:
            name = signal.Signals(signal.sigwait(STOP_SIGNALS)).name
            with self._lock:
                is_first, self._came = not self._came, name
                if self._notify is not None:
                    self._notify(name)
                was_starting = self._is_starting()
            if is_first and was_starting and not self.ended.wait(START_STOP_SECONDS_MAX):
                self._exit(
                    f"a call did not end within {START_STOP_SECONDS_MAX:g} s, probably because a disk "
                    "hangs. The node ends without it, and its next start recovers the logs as after a "
                    "crash"
                )

    def leave_behind(self, directories: Sequence[str]) -> None:
        """Called when the node has ended, but calls to these directories still hang. Ends the process unless
        the calls return soon.
        """

        def end() -> None:
            if not self.ended.wait(LEAVE_SECONDS):
                self._exit(
                    f"calls to {', '.join(directories)} do not return, so the node ends without them. "
                    "The next start recovers the logs that are not closed"
                )

        threading.Thread(target=end, name="leaves a disk behind", daemon=True).start()

    def _exit(self, reason: str) -> None:
        print(f"odradek: node {self._node_id} stops: {reason}", file=sys.stderr, flush=True)
        os._exit(LEFT_BEHIND_STATUS)
