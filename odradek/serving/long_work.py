"""Scheduling of work that takes milliseconds, so that small requests are served in between. PORTED.

Theory of operation
===================
One event loop serves all connections. A request about thousands of topics is handled in pieces. A piece runs on the
loop for some milliseconds (`Share.on_loop`), or in a worker thread for any time (`Share.in_worker`). A node runs one
piece at a time. Two rules decide when the next one begins:

* **Others first.** If a connection has had a turn since the last piece began, only connections run for `REST_FACTOR`
  times the processor time of that piece. So all long work of a node together takes a twelfth of the loop, however many
  connections cause it. If the loop is otherwise idle, the next piece begins at once. Only processor time counts: a
  worker that waits for its thread, or a machine that is paused, takes nothing from the loop. If such waits counted,
  each would be followed by a pause eleven times as long. Meanwhile requests would queue up until their clients have
  given up, and asked again. The pause is never longer than `REST_SECONDS_MAX`.
* **The smallest share next.** A `Share` belongs to one request and counts the time of its pieces. Of the waiting
  shares, the smallest is next (start-time fair queueing, Goyal, Vin and Cheng, SIGCOMM 1996). So a request of two
  pieces does not wait for all the pieces of another.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Any, Protocol, TypeVar

from odradek.named_states import reached

T = TypeVar("T")

REST_SECONDS_MAX = 5.0
"""The longest pause in seconds after one piece. Pieces of up to 0.4 s of processor time get their full pause."""
REST_FACTOR = 11
"""The ratio of a pause to the processor time of its piece: connections keep eleven twelfths of the loop while there
is long work.
"""


class _Clock(Protocol):
    """The part of `ports.Clock` that this module needs."""

    def monotonic(self) -> float: ...

    async def sleep_until(self, deadline: float) -> None: ...


class _Event(Protocol):
    """The part of `ports.Event` that this module needs."""

    def set(self) -> None: ...

    def is_set(self) -> bool: ...

    async def wait(self) -> None: ...


class _Worker(Protocol):
    """The part of `ports.Workers` that this module needs: one thread."""

    async def run(self, function: Callable[..., T], *args: Any) -> T: ...


class _Meter(Protocol):
    """The part of `ports.Meter` that this module needs."""

    def thread_cpu_seconds(self) -> float: ...


class _Asker(Protocol):
    """A connection. It knows the client to whose account its long work is charged."""

    def payer(self) -> Callable[[float, float], object] | None: ...


class _Waiter:
    """A request that waits for a turn. Requests are ordered by their shares, the smallest first, and then by
    age, the oldest first.
    """

    __slots__ = ("_key", "event", "is_next")

    def __init__(self, taken: float, number: int, event: _Event) -> None:
        self._key = (taken, number)
        self.event = event
        """Set to wake the request. It begins if `is_next` is true; otherwise it chooses the request that
        begins next.
        """
        self.is_next = False

    def __lt__(self, other: _Waiter) -> bool:
        return self._key < other._key


class LongWork:
    """Schedules the long work of a node, and counts it."""

    __slots__ = (
        "_floor",
        "_is_taken",
        "_new_event",
        "_number",
        "_of_node",
        "_rest_until",
        "_turns_before",
        "_waiting",
        "_worker",
        "asker",
        "clock",
        "described",
        "in_progress",
        "meter",
        "seconds",
        "turns",
    )

    def __init__(
        self,
        clock: _Clock,
        new_event: Callable[[], _Event],
        worker: _Worker,
        meter: _Meter,
        of_node: LongWork | None = None,
    ) -> None:
        """`worker` must be a thread for this object alone. `of_node` is the node's first schedule, and is
        only passed by `beside`.
        """
        self.meter = meter
        self._of_node = self if of_node is None else of_node
        self.clock = clock
        self._new_event = new_event
        self._worker = worker
        self._is_taken = False
        self._waiting: list[_Waiter] = []
        """The waiting requests as a heap, the smallest share first."""
        self._number = 0
        self._floor = 0.0
        """The seconds that the last share had used when its turn began. A new share begins at this number."""
        self._rest_until = 0.0
        self._turns_before = 0
        self.asker: _Asker | None = None
        """The connection whose request is handled now. Its client pays for a share that begins now."""
        self.turns = 0
        """The number of turns that connections have had."""
        self.seconds = 0.0
        """The seconds that all pieces took."""
        self.in_progress = 0
        """The number of requests that wait for a turn or have one."""
        self.described = 0
        """The number of partitions that handlers which work in slices have looked up and described."""

    @property
    def is_busy(self) -> bool:
        """True if a piece is under way, or a request waits for its turn."""
        return self._is_taken

    def beside(self, worker: _Worker) -> LongWork:
        """Make a second schedule for long work of the same node, with its own thread. The two schedules never wait
        for each other.
        """
        return LongWork(self.clock, self._new_event, worker, self.meter, self)

    def begin(self) -> Share:
        """Begin a new share of the long work, for one request."""
        return Share(self)

    def statistics(self) -> dict[str, float]:
        """Return figures: the seconds of all pieces, the requests that wait for a turn, and the partitions described
        in slices.
        """
        return {"seconds": self.seconds, "waiting": len(self._waiting), "described": self.described}

    async def _enter(self, share: Share) -> None:
        """Wait for a turn of long work.

        If no piece is under way, or if `_leave` wakes this request, the call first lets connections run. Then
        it chooses the request that gets the turn, which may be another one. It chooses only after the pause:
        by then, the request of the last piece may wait again, and may have the smallest share.
        """
        share.taken = max(share.taken, self._floor)
        self.in_progress += 1
        self._number += 1
        mine = _Waiter(share.taken, self._number, self._new_event())
        heappush(self._waiting, mine)
        chooses, self._is_taken = not self._is_taken, True
        try:
            while True:
                if chooses:
                    await self._rest()
                    chosen = heappop(self._waiting)
                    chosen.is_next = True
                    if chosen is mine:
                        break
                    chosen.event.set()
                chooses = False
                await mine.event.wait()
                if mine.is_next:
                    break
                chooses, mine.event = True, self._new_event()
        except BaseException:
            reached("serving.long_work_cancelled")
            self.in_progress -= 1
            if not mine.is_next:
                self._waiting.remove(mine)
                heapify(self._waiting)
            if mine.is_next or chooses or mine.event.is_set():
                self._leave()
            raise
        self._floor = share.taken

    async def _rest(self) -> None:
        """Let connections run, including those with requests that have just arrived, for the pause after the last
        piece.
        """
        clock = self.clock
        await clock.sleep_until(0.0)
        await clock.sleep_until(0.0)
        if self._of_node.turns != self._turns_before and clock.monotonic() < self._rest_until:
            await clock.sleep_until(self._rest_until)

    def _end(self, share: Share, began: float, turns: int, cpu_seconds: list[float]) -> None:
        # `cpu_seconds` is empty if the piece was cancelled before it ran.
        ended = self.clock.monotonic()
        took = ended - began
        self.in_progress -= 1
        share.taken += took
        self.seconds += took
        self._turns_before = turns
        self._rest_until = ended + min(REST_FACTOR * sum(cpu_seconds), REST_SECONDS_MAX)

    def _leave(self) -> None:
        """End a turn, and wake the next request."""
        if self._waiting:
            self._waiting[0].event.set()
        else:
            self._is_taken = False


class Share:
    """One request's part of the long work: its pieces alternate with those of other requests."""

    __slots__ = ("_work", "payer", "taken")

    def __init__(self, work: LongWork) -> None:
        self._work = work
        node = work._of_node
        asker, node.asker = node.asker, None
        self.payer = None if asker is None else asker.payer()
        """A function that charges processor time to the client's quota; None if no client pays."""
        self.taken = 0.0
        """The seconds that this request has used, plus the number at which its share began."""

    async def on_loop(self, function: Callable[..., T], *args: object) -> T:
        """Wait for a turn, then call the function on the event loop and return its result. Raises the function's
        errors.
        """
        work = self._work
        await work._enter(self)
        began, turns = work.clock.monotonic(), work._of_node.turns
        took: list[float] = []
        try:
            return metered(work.meter, took, function, *args)
        finally:
            work._end(self, began, turns, took)
            self._pay(took)
            work._leave()

    async def in_worker(self, function: Callable[..., T], *args: object) -> T:
        """Wait for a turn, then call the function in the worker thread and return its result. Raises the function's
        errors.
        """
        work = self._work
        await work._enter(self)
        began, turns = work.clock.monotonic(), work._of_node.turns
        took: list[float] = []
        try:
            return await work._worker.run(metered, work.meter, took, function, *args)
        finally:
            work._end(self, began, turns, took)
            self._pay(took)
            work._leave()

    def _pay(self, took: list[float]) -> None:
        """Charge the client for the processor time of a piece. This is less than the piece's duration, because
        threads wait for each other.
        """
        if self.payer is not None and took:
            self.payer(took[0], self._work.clock.monotonic())


def metered(meter: _Meter, took: list[float], function: Callable[..., T], *args: object) -> T:
    """Call a function and return its result; append the processor time of the calling thread to `took`. Raises the
    function's errors.
    """
    began = meter.thread_cpu_seconds()
    try:
        return function(*args)
    finally:
        took.append(meter.thread_cpu_seconds() - began)


__all__ = ["REST_FACTOR", "LongWork", "Share", "metered"]
