"""Runs a core in a background thread, for clients that work while the application does something else. SHELL.

Theory of operation
-------------------
The thread waits for sockets without holding the lock, and lets the core take steps while it holds the lock.
Other threads hand over operations (`start`, `run`) or functions (`post`). These wait in a queue until the
thread takes them. So only this thread steps the core, and a KeyboardInterrupt in the application cannot
interrupt a step.

Rules
-----
* A thread must hold `lock` while it reads or changes data of the core or of an operation. If the client's thread should
  react to the change, the other thread calls `wake` afterwards. While a thread holds `lock`, it must not wait for
  anything else.
* An exception in the thread is a bug. It ends the client, and every running or later operation raises it.
* Applications' callbacks run in the client's thread without the lock (`defer`), so they may take locks of
  their own. The handlers of the log are called in the same way.
* If a program computes all the time, other threads mostly wait for the interpreter. `give_turn` waits until
  the client's thread has made one round of its loop. Such a wait costs two switches of threads. Without it,
  the client's thread would wait five milliseconds (CPython's switch interval) after each of its system calls.
* `close` ends all operations with `ClientClosed`. The thread is a daemon: the process may end while a client
  is open. `odradek.client.shells.leaving` says what happens then.
* A forked child has a copy of the client, but not its thread. In the child the client counts as failed, and
  does not touch the parent's connections. A child must make its own clients.
"""

from __future__ import annotations

import os
import random
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from odradek.client.core.client_config import ClientConfig
from odradek.client.core.client_core import ClientCore
from odradek.client.core.notes import ERROR
from odradek.client.core.operation import Operation, Task
from odradek.client.errors import ClientClosed, RequestTimedOut
from odradek.client.shells.client_log import CRITICAL, write_error, write_notes
from odradek.client.shells.sockets import Sockets

__all__ = ["FORKED", "IoThread"]

T = TypeVar("T")
FORKED = "this process was forked from the process that made the client: make a client in this process"
_DRAIN_SECONDS_MAX = 1.0


class IoThread:
    """Runs a core in a background thread.

    `bootstrap` has (host, port) pairs; `name` is the thread's name. It opens no connection yet.
    """

    def __init__(self, bootstrap: Sequence[tuple[str, int]], config: ClientConfig, name: str) -> None:
        self.lock = threading.RLock()
        self.core = ClientCore(bootstrap, config, random.Random(os.urandom(16)), now=time.monotonic())
        self._on_error = config.on_error
        self._sockets = Sockets(self.core)
        self._posted: deque[Callable[[], None]] = deque()
        self._deferred: deque[Callable[[], None]] = deque()
        self._turns: deque[threading.Event] = deque()
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._wake_receiver.setblocking(False)
        self._wake_sender.setblocking(False)
        self._sockets.watch(self._wake_receiver)
        self._asleep = False
        self._closing = threading.Event()
        self._drain_seconds_max = _DRAIN_SECONDS_MAX
        self._failure: BaseException | None = None
        self._is_over: Callable[[], bool] | None = None
        self.on_fork: Callable[[], None] | None = None
        """Called in a forked child. The function must not wait for anything, and may use only locks that it
        has made itself.
        """
        self.on_end: Callable[[], object] | None = None
        """Called in the client's thread, after it has ended all operations."""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        _FORKABLE.add(self)
        self._thread.start()

    @property
    def failure(self) -> BaseException | None:
        """The error that has ended the thread; None while the thread runs, and after `close`."""
        return self._failure

    @property
    def closed(self) -> bool:
        """True if `close` was called, or an error has ended the thread."""
        return self._closing.is_set()

    def is_own_thread(self) -> bool:
        """True if the caller runs in the client's thread (in a callback). Such a caller must not wait for
        that thread.
        """
        return threading.current_thread() is self._thread

    def run(self, operation: Operation[T], timeout_seconds: float | None = None) -> T:
        """Run an operation to its end, and return its result. Any thread may call this except the client's own
        (callbacks).

        Raises the operation's errors, `RequestTimedOut` after `timeout_seconds`, and `ClientClosed`. A timeout or a
        KeyboardInterrupt ends the operation at its current wait.
        """
        if self.is_own_thread():
            raise RuntimeError("a callback must not wait for its own client")
        finished = threading.Event()
        task = self.start(operation, finished.set)
        try:
            if not finished.wait(timeout_seconds):
                raise RequestTimedOut(f"the call did not end within {timeout_seconds:g} s")
        finally:
            if not task.done:
                self.post(lambda: self.core.abandon(task))
        return task.result()

    def start(self, operation: Operation[T], on_done: Callable[[], None] | None = None) -> Task[T]:
        """Start an operation, from any thread. `on_done` is called in the client's thread, under the lock."""
        task = Task(operation)
        task.on_done = on_done
        self.post(lambda: self._begin(task))
        return task

    def post(self, function: Callable[[], None]) -> None:
        """Queue `function`, which the client's thread calls under the lock. Raises `ClientClosed`."""
        if self._closing.is_set():
            raise self._closed_error()
        self._posted.append(function)
        self.wake()
        if self._closing.is_set():
            # Between the check and the append, the client's thread may have ended, and may have emptied the
            # queue for the last time.
            self._end()

    def wake(self) -> None:
        """Make the thread step the core again. This costs little while the thread is awake."""
        if self._asleep:
            self._asleep = False
            try:
                self._wake_sender.send(b"\0")
            except BlockingIOError:
                return  # The pipe is full of earlier wake-ups, so the thread wakes up anyway.
            except OSError:
                if not self._closing.is_set():
                    raise

    def defer(self, function: Callable[[], None]) -> None:
        """Call `function` later in the client's thread, without the lock. Its exceptions are logged."""
        self._deferred.append(function)
        if not self.is_own_thread():
            self.wake()

    def give_turn(self, seconds_max: float) -> None:
        """Wait, at most `seconds_max`, until the client's thread has checked its sockets and has let the core
        take a step. Do nothing if the caller is in that thread.
        """
        if self.is_own_thread():
            return
        taken = threading.Event()
        self._turns.append(taken)
        self.wake()
        taken.wait(seconds_max)

    def close(self, drain_seconds_max: float = _DRAIN_SECONDS_MAX) -> None:
        """End all operations, close all connections, and end the thread. Any thread may call this; a second call has no effect.

        Bytes that the kernel has not accepted yet may still be sent for `drain_seconds_max`.
        """
        self._drain_seconds_max = drain_seconds_max
        self._closing.set()
        self.wake()
        if not self.is_own_thread():
            self._thread.join()

    def end_when(self, is_over: Callable[[], bool]) -> None:
        """Make the thread end once `is_over()` is true, without a `close`. Called in the client's thread."""
        self._is_over = is_over

    def wait_for_end(self, seconds_max: float) -> None:
        """Wait until the thread has ended, at most `seconds_max`."""
        self._thread.join(seconds_max)

    def after_fork(self) -> None:
        """Make the client fail in a forked child, and leave its connections alone. The client gets a new
        lock, because a thread that exists only in the parent may hold the old one.
        """
        self.lock = threading.RLock()
        self._failure = RuntimeError(
            "this process was forked from the process that made the client: make a client in this process"
        )
        self._closing = threading.Event()
        self._closing.set()
        self._asleep = False
        self._posted.clear()
        self._turns.clear()
        if self.on_fork is not None:
            self.on_fork()

    def _closed_error(self) -> BaseException:
        if self._failure is not None:
            error = ClientClosed(f"the client failed earlier: {self._failure!r}")
            error.__cause__ = self._failure
            return error
        return ClientClosed("the client is closed")

    # The thread

    def _run(self) -> None:
        given: list[threading.Event] = []
        try:
            while not self._closing.is_set():
                with self.lock:
                    # From here on, another thread that changes something sends a byte, which wakes this
                    # thread. So this thread misses no change.
                    self._asleep = True
                    self._take_posted()
                    self.core.tick(time.monotonic())
                    self._sockets.perform_effects()
                    if self._is_over is not None and self._is_over():
                        self._closing.set()
                    deadline = self.core.next_deadline()
                    notes = self.core.notes.take()
                write_notes(notes, self._on_error)
                self._call_deferred()
                if self._closing.is_set():
                    break
                if given:
                    for taken in given:
                        taken.set()
                wait = None if deadline is None else max(0.0, deadline - time.monotonic())
                ready = self._sockets.select(wait if self._asleep else 0)
                self._asleep = False
                given = self._given_turns()
                with self.lock:
                    self._drain_wakeups()
                    self._sockets.handle(ready)
        except BaseException as error:
            self._failure = error
            write_error(
                CRITICAL,
                "the client has failed, and every later call raises this error",
                error,
                self._on_error,
            )
            raise
        finally:
            self._closing.set()
            self._end()
            if self.on_end is not None:
                self.on_end()
            self._sockets.close()
            self._wake_receiver.close()
            self._wake_sender.close()

    def _take_posted(self) -> None:
        posted = self._posted
        while posted:
            posted.popleft()()

    def _call_deferred(self) -> None:
        deferred = self._deferred
        while deferred:
            function = deferred.popleft()
            try:
                function()
            except Exception as error:  # noqa: BLE001 - an error of the application is logged
                write_error(ERROR, "a callback failed", error, self._on_error)

    def _given_turns(self) -> list[threading.Event]:
        given = list(self._turns)
        for _ in given:
            self._turns.popleft()
        return given

    def _drain_wakeups(self) -> None:
        try:
            self._wake_receiver.recv(4096)
        except BlockingIOError:
            return

    def _begin(self, task: Task[Any]) -> None:
        if self._closing.is_set():
            task.cancel(self._closed_error())
        else:
            self.core.adopt(task, time.monotonic())

    def _end(self) -> None:
        """Close the core. Functions that are posted later get `ClientClosed`."""
        with self.lock:
            self._take_posted()
            if not self.core.closed:
                self._sockets.drain(self._drain_seconds_max)
                self.core.close(self._closed_error())
                self._sockets.perform_effects()
            notes = self.core.notes.take()
        write_notes(notes, self._on_error)
        self._call_deferred()
        for taken in self._given_turns():
            taken.set()


_FORKABLE: weakref.WeakSet[IoThread] = weakref.WeakSet()


def _after_fork() -> None:
    for thread in list(_FORKABLE):
        thread.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
