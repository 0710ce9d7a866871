"""Fetch: plan the partitions by the fetch session, read ranges of files, and answer at once or when there are
enough bytes.

Only small ranges are copied into the answer (`cold_pages`), for example for a follower at a low rate. Other
ranges are sent from their files. A fetch that finds less than `min_bytes` is parked (`delayed_fetch`). The
missing bytes are divided equally among its partitions (`fetch_waits.py`). When appends have given one
partition its share, the fetch reads again at the end of the turn. If the fetch has only one partition, this
second read always finds enough bytes. As in Kafka, a fetch is answered at once if a range ends with its
segment and so cannot grow. Bytes beyond the limit of a partition do not count towards `min_bytes`.
"""

from __future__ import annotations

from odradek.data_plane.fetch_sessions import FetchPlan, FetchSessions
from odradek.data_plane.handlers.desk import Desk
from odradek.data_plane.handlers.fetching.cold_pages import WarmingFetch, answer_when_warm, cold_ranges
from odradek.data_plane.handlers.fetching.delayed_fetch import DelayedFetch
from odradek.data_plane.handlers.fetching.fetch_job import FetchJob, FetchRound
from odradek.data_plane.handlers.fetching.fetch_waits import what_to_wait_for
from odradek.data_plane.replication.replication import Replication
from odradek.data_plane.replication.served_partitions import ServedPartitions
from odradek.serving.contract import Context, Delayed, Result
from odradek.serving.steps import Work, in_slices
from odradek.wire.messages.fetch import FetchRequest, FetchResponse
from odradek.wire.schema.versions import FETCH_TOPIC_IDS

PARTITIONS_AT_ONCE = 2_000
"""The most partitions that a fetch may name or read at once. A larger fetch is served in slices, unless it
belongs to a follower's session.
"""


class FetchHandler:
    """Handler of Fetch (API 1).

    It answers at once, parks the request, or lets a worker read cold pages first.
    """

    def __init__(
        self, desk: Desk, partitions: ServedPartitions, sessions: FetchSessions, replication: Replication
    ) -> None:
        self._desk = desk
        self._partitions = partitions
        self._sessions = sessions
        self._replication = replication

    def handle(self, context: Context, request: FetchRequest) -> Result:
        desk = self._desk
        named = 0
        for topic in request.topics:
            named += len(topic.partitions)
        if named > PARTITIONS_AT_ONCE:
            return in_slices(desk.long_work, self._answer_many(context.for_later(), request))
        by_id = context.api_version >= FETCH_TOPIC_IDS
        plan = self._sessions.plan(request, by_id, int(desk.clock.monotonic() * 1000))
        if plan.error:
            return FetchResponse(0, plan.error, 0, [], [])
        if context.throttle_ms:
            # The client is throttled. As in Kafka (KIP-219) it gets an answer without records, and keeps its
            # session.
            return FetchResponse(0, 0, plan.session_id, [], [])
        job = FetchJob(desk, self._partitions, self._replication, plan, request, context)
        if len(plan.partitions) > PARTITIONS_AT_ONCE and not _is_followers(plan):
            return in_slices(desk.long_work, self._read_many(job, request.max_wait_ms))
        attempt = job.read(is_first=True)
        if request.max_wait_ms > 0 or attempt.ranges:
            delayed = self._wait(job, attempt, request.max_wait_ms)
            if delayed is not None:
                return delayed
        return job.respond(attempt)

    def _wait(self, job: FetchJob, attempt: FetchRound, wait_ms: int) -> Delayed | None:
        """Make the delayed answer of a fetch that needs more bytes or has cold pages; None if it can be
        answered now.
        """
        plan = job.plan
        if wait_ms > 0 and not job.has_enough(attempt) and (plan.partitions or plan.session is not None):
            waits_for = what_to_wait_for(job, attempt)
            if waits_for is not None:
                attempt.release()
                if job.is_follower:
                    wait_ms = job.first_fetches.wait_ms(job.replica_id, wait_ms, self._desk.clock.monotonic())
                return DelayedFetch(job, wait_ms, waits_for)
        if attempt.ranges:
            cold = cold_ranges(attempt)
            if cold:
                warming = WarmingFetch()
                self._desk.tasks.start_soon(answer_when_warm, warming, job, attempt, cold)
                return warming
        return None

    def _answer_many(self, context: Context, request: FetchRequest) -> Work[Result]:
        """Handle a request with many partitions, in slices.

        The session is changed in one step, after all named partitions are collected.
        """
        desk = self._desk
        by_id = context.api_version >= FETCH_TOPIC_IDS
        named = yield from self._sessions.name(request, by_id)
        plan = self._sessions.plan(request, by_id, int(desk.clock.monotonic() * 1000), named)
        if plan.error:
            return FetchResponse(0, plan.error, 0, [], [])
        if context.throttle_ms:
            return FetchResponse(0, 0, plan.session_id, [], [])
        job = FetchJob(desk, self._partitions, self._replication, plan, request, context)
        if _is_followers(plan):
            attempt = job.read(is_first=True)
            return self._wait(job, attempt, request.max_wait_ms) or job.respond(attempt)
        return (yield from self._read_many(job, request.max_wait_ms))

    def _read_many(self, job: FetchJob, wait_ms: int) -> Work[Result]:
        attempt = yield from job.reading()
        delayed = self._wait(job, attempt, wait_ms)
        if delayed is not None:
            return delayed
        return (yield from job.responding(attempt))


def _is_followers(plan: FetchPlan) -> bool:
    return plan.session is not None and plan.session.privileged
