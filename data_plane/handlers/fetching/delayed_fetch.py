"""A fetch that waits until there are enough bytes for it, or until its maximum wait is over."""

from __future__ import annotations

from odradek.data_plane.handlers.fetching.cold_pages import answer_when_warm, cold_ranges
from odradek.data_plane.handlers.fetching.fetch_job import FetchJob, FetchRound
from odradek.data_plane.handlers.fetching.fetch_waits import Wait, what_to_wait_for
from odradek.data_plane.replication.partition import Partition
from odradek.data_plane.replication.waiting_fetches import Ticket
from odradek.serving.contract import Delayed
from odradek.serving.timers import Timer


class DelayedFetch(Delayed):
    """The delayed answer of a parked fetch."""

    __slots__ = ("job", "queued", "session", "tickets", "timer", "waits")

    parks = True

    def __init__(self, job: FetchJob, wait_ms: int, waits_for: list[Wait]) -> None:
        super().__init__()
        self.job = job
        self.queued = False
        self.waits = True
        self.tickets: list[tuple[Partition, Ticket]] = []
        desk = job.desk
        self.timer: Timer = desk.timers.at(desk.clock.monotonic() + wait_ms / 1000, self._time_out)
        session = job.plan.session
        self.session = session if session is not None and session.privileged else None
        if self.session is not None:
            self.session.wake = self._wake
            self.session.answer = self._time_out
            job.first_fetches.parks(job.replica_id, self._time_out)
        else:
            self._watch(waits_for)

    def _watch(self, waits_for: list[Wait]) -> None:
        wake = self._wake
        self.tickets = [
            (partition, partition.waiting.watch_for_fetch(until, mark, wake))
            for partition, until, mark in waits_for
        ]

    def _unwatch(self) -> None:
        for partition, ticket in self.tickets:
            partition.waiting.unwatch_for_fetch(ticket)
        self.tickets = []

    def _wake(self) -> None:
        if not self.queued:
            self.queued = True
            self.job.desk.woken.append(self._try_again)

    def _try_again(self) -> None:
        self.queued = False
        if self.response is not None or not self.waits:
            return
        job = self.job
        attempt = job.read()
        waits_for: list[Wait] | None = None
        if not job.has_enough(attempt):
            waits_for = [] if self.session is not None else what_to_wait_for(job, attempt)
        if waits_for is None:
            self._finish(attempt)
            return
        attempt.release()
        if self.session is None:
            self._unwatch()
            self._watch(waits_for)

    def _time_out(self) -> None:
        if self.response is None and self.waits:
            self._finish(self.job.read())

    def _finish(self, attempt: FetchRound) -> None:
        self._stop_waiting()
        cold = cold_ranges(attempt)
        if cold:
            self.job.desk.tasks.start_soon(answer_when_warm, self, self.job, attempt, cold)
        else:
            self.complete(self.job.respond(attempt))

    def _stop_waiting(self) -> None:
        self.timer.cancel()
        self.waits = False
        if self.session is not None:
            self.job.first_fetches.leaves(self.job.replica_id, self._time_out)
            if self.session.wake == self._wake:
                self.session.wake = self.session.answer = None
        self._unwatch()

    def abandon(self) -> None:
        self._stop_waiting()
