"""Ends clients that were never closed: clients that the program has dropped, and clients that are open when
the process ends. SHELL.

Rules
-----
* A dropped producer sends its records within `delivery.timeout.ms`; then its thread ends.
* When the process ends, all producers together have `EXIT_SECONDS` to send their records. One warning counts the
  records that were not sent. An open transaction is not committed.
* A consumer that is dropped, or whose process ends, commits nothing, since its last records may be
  unprocessed. It leaves its group, so that other members get its partitions at once. A static member stays in
  its group.
* A forked process of `multiprocessing` ends without `atexit`. In such a process the finalizers of
  `multiprocessing` are used instead.
* The clients' own threads do the work, because Python starts no new threads at the end of a process.
* A forked child has none of its parent's clients, and leaves them alone.

A client object (`Producer`, `Consumer`, `Admin`; here called face) is dropped when nothing refers to it. A reference
from the client's own thread also keeps the object alive. So code in that thread refers only to parts of the client
object.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import Protocol

import attrs

from odradek.client.core.notes import WARNING, Note
from odradek.client.errors import ClientClosed
from odradek.client.shells.client_log import write_notes
from odradek.client.shells.io_thread import IoThread

__all__ = ["EXIT_SECONDS", "Leaver", "NothingToLeave", "leave_when_dropped", "weak_call"]

_BEFORE_QUEUES = 1000
"""The priority of `_at_exit` among the finalizers of `multiprocessing`. Higher priorities run earlier, so the clients
end before the queues of `multiprocessing` do.
"""
EXIT_SECONDS = 5.0
"""The seconds that all clients of a process together have for their last actions when the process ends."""


class Leaver(Protocol):
    """The last actions of a client that was never closed. The client's thread calls `begin` and `is_over` under its
    lock.
    """

    def begin(self) -> None:
        """Start the last actions: send the waiting records, or leave the group."""

    @property
    def is_over(self) -> bool:
        """True once the last actions have ended, so that the thread may end."""

    @property
    def records_left(self) -> int:
        """The number of records that were not sent."""


@attrs.frozen
class NothingToLeave:
    """The `Leaver` of an admin client, whose thread may end at once."""

    is_over: bool = True
    records_left: int = 0

    def begin(self) -> None:
        """Do nothing: last actions are needed only by producers and consumers."""


@attrs.define(eq=False)
class Leaving:
    """Ends a client that was never closed, when it is dropped or the process ends."""

    io: IoThread
    leaver: Leaver
    _has_begun: bool = False

    def begin(self) -> None:
        """Start the client's last actions; any thread may call this. The client's thread ends when they are over."""
        if self.io.closed or self._has_begun:
            return
        self._has_begun = True
        try:
            self.io.post(self._begin)
        except ClientClosed:
            open_clients.pop(self, None)

    def _begin(self) -> None:
        self.leaver.begin()
        self.io.end_when(lambda: self.leaver.is_over)


open_clients: dict[Leaving, None] = {}
"""The open clients, in the order in which they were opened."""


def leave_when_dropped(face: object, io: IoThread, leaver: Leaver) -> None:
    """Register an open client, to end it when `face` (the client object) is dropped. `leaver` must not refer to
    `face`, only to its parts.
    """
    _watch_the_end_of_a_child()
    leaving = Leaving(io, leaver)
    open_clients[leaving] = None
    io.on_end = partial(open_clients.pop, leaving, None)
    # At the end of the process `_at_exit` runs instead.
    weakref.finalize(face, leaving.begin).atexit = False


def weak_call(method: Callable[[], None]) -> Callable[[], None]:
    """Return a function that calls a method while the method's object is alive. The function does not keep the object
    alive.
    """
    weak = weakref.WeakMethod(method)

    def call() -> None:
        found = weak()
        if found is not None:
            found()

    return call


def _watch_the_end_of_a_child() -> None:
    """Register `_at_exit` as a finalizer of `multiprocessing`, if `multiprocessing` has started this process.
    Each process does this once.
    """
    if "multiprocessing.process" not in sys.modules or os.getpid() in _children_ends:
        return
    from multiprocessing.process import parent_process
    from multiprocessing.util import Finalize

    if parent_process() is not None:
        Finalize(None, _at_exit, exitpriority=_BEFORE_QUEUES)
        _children_ends.clear()
        _children_ends.add(os.getpid())


_children_ends: set[int] = set()
"""The ids of the processes in which `_at_exit` is a finalizer of `multiprocessing`."""


def _at_exit() -> None:
    """End all open clients, within `EXIT_SECONDS` for all together. Warn about records that were not sent."""
    deadline = time.monotonic() + EXIT_SECONDS
    waiting = [each for each in open_clients if not each.io.closed]
    for each in waiting:
        each.begin()
    for each in waiting:
        each.io.wait_for_end(max(0.0, deadline - time.monotonic()))
    left = sum(each.leaver.records_left for each in waiting)
    if left:
        text = (
            f"{left} records were not delivered: the process ended, and they could not be sent within "
            f"{EXIT_SECONDS:g} s"
        )
        write_notes([Note(WARNING, text)])


def _after_fork() -> None:
    open_clients.clear()


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
