"""Clients that nobody closed: dropped by the program, or open when the process ends. SHELL.

Rules
-----
* A producer that is dropped sends what it has, as long as `delivery.timeout.ms` lets it; then its thread ends.
* When the process ends, all producers together have `EXIT_SECONDS` to send what they have. One warning counts the rest. An
  open transaction is not committed.
* A consumer that is dropped, or whose process ends, commits nothing, since its records may be undone. It
  leaves its group, so that others get its partitions at once; a static member stays.
* A process of `multiprocessing` that was forked ends without `atexit`. What multiprocessing runs at its end counts there.
* The clients' own threads do the work: at the end of a process Python starts no thread any more.
* A forked child has none of its parent's clients, and leaves them alone.

A face (`Producer`, `Consumer`, `Admin`) is dropped when nothing refers to it. A reference from its own thread
counts, too, so code in that thread refers only to the parts of the face.
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
"""A priority among the acts with which multiprocessing ends a process: higher ones come first."""
EXIT_SECONDS = 5.0
"""The time that all clients of a process have together when it ends."""


class Leaver(Protocol):
    """The last actions of a client that was never closed. The client's thread calls `begin` and `is_over` under its
    lock.
    """

    def begin(self) -> None:
        """Begin to send the records that are there, or to leave the group."""

    @property
    def is_over(self) -> bool:
        """True once nothing is left to wait for."""

    @property
    def records_left(self) -> int:
        """The number of records that were not sent."""


@attrs.frozen
class NothingToLeave:
    """The `Leaver` of an admin client, whose thread may end at once."""

    is_over: bool = True
    records_left: int = 0

    def begin(self) -> None:
        """Do nothing."""


@attrs.define(eq=False)
class Leaving:
    """The ways in which a client that was never closed ends."""

    io: IoThread
    leaver: Leaver
    _has_begun: bool = False

    def begin(self) -> None:
        """Begin, from any thread. The client's thread ends when it is over."""
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
    """Register an open client. `leaver` refers to the parts of the face, and not to the face."""
    _watch_the_end_of_a_child()
    leaving = Leaving(io, leaver)
    open_clients[leaving] = None
    io.on_end = partial(open_clients.pop, leaving, None)
    # At the end of the process `_at_exit` runs instead.
    weakref.finalize(face, leaving.begin).atexit = False


def weak_call(method: Callable[[], None]) -> Callable[[], None]:
    """Return a function that calls a method while the method's object is alive, and does not keep the object alive."""
    weak = weakref.WeakMethod(method)

    def call() -> None:
        found = weak()
        if found is not None:
            found()

    return call


def _watch_the_end_of_a_child() -> None:
    """Have `_at_exit` called also where `multiprocessing` ends this process. Register it once in each process."""
    if "multiprocessing.process" not in sys.modules or os.getpid() in _children_ends:
        return
    from multiprocessing.process import parent_process
    from multiprocessing.util import Finalize

    if parent_process() is not None:
        Finalize(None, _at_exit, exitpriority=_BEFORE_QUEUES)
        _children_ends.clear()
        _children_ends.add(os.getpid())


_children_ends: set[int] = set()
"""The ids of processes in which `multiprocessing` calls `_at_exit` at the end."""


def _at_exit() -> None:
    """End all open clients, within a time for all together."""
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
