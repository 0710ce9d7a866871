"""Fetch: plan by session, read file ranges, answer at once or when enough has come.

A response holds ranges of segment files, pinned, not bytes: the connection sends them with sendfile. Only small ones
are read when the answer is made, which is what a follower under a low rate gets. A fetch that finds less than
`min_bytes` parks. What is missing is shared out among its partitions (`replication/waiting_fetches.py`). The fetch is
looked at again when one of them has come as far as an equal share would take it. It is served at the end of the turn
in which that append happened. With one partition that is one look. As in Kafka a range that can grow no more, since a
later segment has begun, is an answer at once, and what lies beyond a partition's limit counts as the limit. Ranges
that are not in the page cache are read by a worker first, so that a lagging consumer waits for the device alone.

A follower (a replica id that is not negative) reads up to the log's end and parks on that. The offset at which it
fetches is its promise to the leader (`Partition.note_fetch`), counted once, when the request comes. Consumers may
read from followers since version 11 (KIP-392), up to what the follower has heard of the high watermark.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from data_plane.broker import Broker
from data_plane.fetch_sessions import FetchedPartition, FetchPlan, FollowerCursor, move_to_end
from data_plane.handlers.fetching.fetch_waits import Wait, what_to_wait_for
from data_plane.handlers.leader_hints import leader_endpoints
from data_plane.log.partition_log import FileRange, PartitionLog
from data_plane.replication.partition import Partition
from data_plane.replication.read_replica import preferred_read_replica
from data_plane.replication.throttle import ReplicationThrottle
from data_plane.replication.waiting_fetches import Ticket
from odradek.env.ports import DiskError, Workers
from odradek.serving.contract import Context, Delayed, Result
from odradek.serving.slices import Work, in_slices
from odradek.serving.timers import Timer
from wire.errors import ErrorCode, KafkaError
from wire.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
    SnapshotId,
)
from wire.structure import ZERO_UUID

TOPIC_IDS_SINCE = 13
FOLLOWERS_SERVE_SINCE = 11
REPLICA_STATE_SINCE = 15
LEADER_HINTS_SINCE = 16
READ_COMMITTED = 1
WARM_CHUNK_BYTES = 1024 * 1024
PARTITIONS_AT_ONCE = 2_000
"""A fetch that names or reads more goes in slices; a follower's session is always read at once, so that it knows what stirred
since."""
CHUNK = 64
"""So many partitions are read and told between two looks at whether a slice is over."""
READ_UNITS = 3
"""What reading a partition counts like, in partitions looked up."""
INLINE_BYTES_MAX = 32 * 1024
"""So much of an answer is read at once if it is in memory: one call, where a range is probed, and sent in three parts."""

_NOT_DIVERGING = EpochEndOffset()
_NO_LEADER = LeaderIdAndEpoch()
_NO_SNAPSHOT = SnapshotId()
_NO_ENDPOINTS: list[NodeEndpoint] = []
_NONE_ABORTED: list[Any] = []


class FetchRound:
    """One attempt to serve a fetch: the answers per partition and what they hold."""

    __slots__ = ("answers", "bytes_cut_off", "bytes_read", "full", "must_answer", "ranges")

    def __init__(self) -> None:
        self.answers: list[tuple[FetchedPartition, PartitionData]] = []
        self.ranges: list[FileRange] = []
        self.bytes_read = 0
        self.bytes_cut_off = 0
        """What there is beyond whole batches, up to the limits: it counts for `min_bytes`."""
        self.full: list[FetchedPartition] = []
        """Those of which a limit cut something off: they give no more."""
        self.must_answer = False

    def release(self) -> None:
        for file_range in self.ranges:
            file_range.release()


class FetchJob:
    """What a fetch asks for, kept while it is parked (no part of it is a view of the receive buffer)."""

    __slots__ = (
        "api_version",
        "broker",
        "by_id",
        "committed",
        "is_follower",
        "listener",
        "max_bytes",
        "min_bytes",
        "needs_leader",
        "now_ms",
        "plan",
        "rack",
        "replica_epoch",
        "replica_id",
    )

    def __init__(self, broker: Broker, plan: FetchPlan, request: FetchRequest, context: Context) -> None:
        api_version = context.api_version
        self.listener = context.listener
        self.broker = broker
        self.plan = plan
        self.api_version = api_version
        self.by_id = api_version >= TOPIC_IDS_SINCE
        self.committed = request.isolation_level == READ_COMMITTED
        self.max_bytes = min(request.max_bytes, broker.settings.fetch_max_bytes)
        if broker.env.provokes and broker.env.buggify("fetch.short_read"):
            self.max_bytes = min(self.max_bytes, 1)
        self.min_bytes = min(request.min_bytes, self.max_bytes)
        if api_version >= REPLICA_STATE_SINCE:
            self.replica_id = request.replica_state.replica_id
            self.replica_epoch = request.replica_state.replica_epoch
        else:
            self.replica_id = request.replica_id
            self.replica_epoch = -1
        self.is_follower = self.replica_id >= 0
        self.now_ms = int(broker.clock.monotonic() * 1000)
        if plan.session is not None and plan.session.privileged:
            plan.session.fetched_at_ms = self.now_ms
        selects = broker.replication.settings.selects_by_rack and api_version >= FOLLOWERS_SERVE_SINCE
        self.rack = request.rack_id if selects and not self.is_follower else ""
        self.needs_leader = self.is_follower or api_version < FOLLOWERS_SERVE_SINCE

    # -- reading --------------------------------------------------------------------------------------------------

    def hosted(self, fetched: FetchedPartition) -> Partition | None:
        """The partition that a key names, if it is served here."""
        name, index = fetched.key
        hosted = self.broker.topics_by_id.get(name) if self.by_id else self.broker.topics.get(name)  # type: ignore[arg-type]  # by_id says which
        return None if hosted is None else hosted.partitions.get(index)

    def read(self, *, is_first: bool = False) -> FetchRound:
        """Read every partition of the plan, in order, within the limits. The first time counts for a follower.

        Of a follower's session what was stirred is looked at.
        """
        attempt = FetchRound()
        session = self.plan.session
        some = self.plan.partitions if session is None or not session.privileged else session.to_read()
        self._read(attempt, some, self.max_bytes, is_first)
        return attempt

    def reading(self) -> Work[FetchRound]:
        """As the first `read`, in pieces; for consumers.

        What happens meanwhile to a partition that was read already might be missed by who then waits for it: so too little is
        looked for again, at once, if anything has happened.
        """
        attempt = FetchRound()
        seen: list[tuple[Partition, int, int]] = []
        try:
            for start in range(0, len(self.plan.partitions), CHUNK):
                some = self.plan.partitions[start : start + CHUNK]
                self._read(attempt, some, max(0, self.max_bytes - attempt.bytes_read), True)
                hosted = [partition for partition in map(self.hosted, some) if partition is not None]
                seen += [
                    (partition, self.upper_bound(partition.log), partition.leader_epoch)
                    for partition in hosted
                ]
                yield len(some) + (READ_UNITS - 1) * len(hosted)
        except BaseException:
            attempt.release()
            raise
        if self.has_enough(attempt) or all(
            self.upper_bound(partition.log) == bound and partition.leader_epoch == epoch
            for partition, bound, epoch in seen
        ):
            return attempt
        attempt.release()
        return self.read()

    def _read(
        self, attempt: FetchRound, partitions: Sequence[FetchedPartition], room: int, is_first: bool
    ) -> None:
        for fetched in partitions:
            partition = self.hosted(fetched)
            if partition is None:
                answer = self._error(fetched, None, self._missing_error(fetched))
            else:
                answer = self._read_partition(attempt, fetched, partition, room, is_first)
                if answer.records is not None:
                    room = max(0, room - len(answer.records))
            if answer.error_code or answer.diverging_epoch is not _NOT_DIVERGING:
                attempt.must_answer = True
            attempt.answers.append((fetched, answer))

    def _read_partition(
        self,
        attempt: FetchRound,
        fetched: FetchedPartition,
        partition: Partition,
        room: int,
        is_first: bool,
    ) -> PartitionData:
        if self.needs_leader:
            code = partition.leader_error(fetched.current_leader_epoch)
        else:
            code = partition.reader_error(fetched.current_leader_epoch)
        if code:
            return self._error(fetched, partition, code)
        log = partition.log
        high_watermark = log.high_watermark
        stable = log.last_stable_offset
        if fetched.last_fetched_epoch >= 0:
            try:
                diverging = _divergence(partition, fetched)
            except KafkaError as error:
                return self._error(fetched, partition, error.code)
            if diverging is not None:
                return PartitionData(
                    fetched.key[1],
                    0,
                    high_watermark,
                    stable,
                    log.log_start_offset,
                    diverging,
                    _NO_LEADER,
                    _NO_SNAPSHOT,
                    None,
                    -1,
                    b"",
                )
        if self.rack and partition.is_leader:
            replica = preferred_read_replica(
                partition,
                self.broker.image,
                self.broker.settings.node_id,
                self.listener,
                self.rack,
                fetched.fetch_offset,
            )
            if replica >= 0:
                attempt.must_answer = True
                return PartitionData(
                    fetched.key[1],
                    0,
                    high_watermark,
                    stable,
                    log.log_start_offset,
                    _NOT_DIVERGING,
                    _NO_LEADER,
                    _NO_SNAPSHOT,
                    None,
                    replica,
                    b"",
                )
        records: Any = b""
        upper_bound = self.upper_bound(log)
        throttle = None
        try:
            if self.is_follower:
                if is_first:
                    self._note_follower(fetched, partition)
                    high_watermark = stable = log.high_watermark
                throttle = self._throttle_of(partition)
                if throttle is not None and not throttle.has_room(int(self.broker.clock.monotonic() * 1000)):
                    upper_bound = -1
            got = log.read(
                fetched.fetch_offset,
                min(fetched.max_bytes, room),
                upper_bound=upper_bound,
                min_one=attempt.bytes_read == 0,
            )
        except KafkaError as error:
            if error.code == ErrorCode.CORRUPT_MESSAGE:
                partition.suspect(fetched.fetch_offset)
            return self._error(fetched, partition, error.code)
        except DiskError as error:
            self.broker.disk_errors.tell(
                "fetch.disk_error", topic=log.topic, partition=log.partition, error=str(error)
            )
            return self._error(fetched, partition, ErrorCode.KAFKA_STORAGE_ERROR)
        if got.next_offset < upper_bound:
            attempt.full.append(fetched)
            attempt.bytes_cut_off += max(0, min(fetched.max_bytes, room) - got.count)
        if got.file is not None:
            records = FileRange(got.file, got.position, got.count)
            attempt.ranges.append(records)
            attempt.bytes_read += got.count
            if self.is_follower and partition.is_adding(self.replica_id):
                self.broker.replication.reassignment_bytes_out += got.count
            if throttle is not None:
                throttle.note(got.count)
        return PartitionData(
            fetched.key[1],
            0,
            high_watermark,
            stable,
            log.log_start_offset,
            _NOT_DIVERGING,
            _NO_LEADER,
            _NO_SNAPSHOT,
            _NONE_ABORTED if self.committed else None,
            -1,
            records,
        )

    def _throttle_of(self, partition: Partition) -> ReplicationThrottle | None:
        """What slows this follower here, if anything does."""
        throttle = self.broker.replication.leader_throttle
        if (
            throttle.is_set
            and self.replica_id not in partition.isr_state.maximal_isr
            and throttle.applies_to(partition.log.topic_id, partition.log.partition)
        ):
            return throttle
        return None

    def _note_follower(self, fetched: FetchedPartition, partition: Partition) -> None:
        """Count the follower's promise, unless its offset is outside the log. Raises `KafkaError`.

        It needs no disk: what the follower has, it has, also while this log cannot be read.
        """
        replica = partition.follower(self.replica_id, fetched.current_leader_epoch >= 0)
        log = partition.log
        if log.log_start_offset <= fetched.fetch_offset <= log.log_end_offset:
            promised = partition.note_fetch(
                replica, self.replica_epoch, fetched.fetch_offset, fetched.log_start_offset, self.now_ms
            )
            if promised and isinstance(fetched, FollowerCursor):
                replica.follow_with(fetched)

    def _error(
        self, fetched: FetchedPartition, partition: Partition | None, code: ErrorCode
    ) -> PartitionData:
        answer = PartitionData(
            fetched.key[1], code, -1, -1, -1, _NOT_DIVERGING, _NO_LEADER, _NO_SNAPSHOT, None, -1, b""
        )
        if partition is None:
            answer.aborted_transactions = _NONE_ABORTED
        hinted = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)
        if self.api_version < LEADER_HINTS_SINCE or partition is None or partition.image is None:
            return answer
        if code in hinted:
            answer.current_leader = LeaderIdAndEpoch(partition.image.leader, partition.image.leader_epoch)
        return answer

    def _missing_error(self, fetched: FetchedPartition) -> ErrorCode:
        name, index = fetched.key
        if not self.by_id:
            return self.broker.missing_partition_error(str(name), index)
        image = self.broker.image.topics_by_id.get(name)  # type: ignore[arg-type]  # by_id: the key holds an id
        return (
            ErrorCode.UNKNOWN_TOPIC_ID
            if image is None
            else self.broker.missing_partition_error(image.name, index)
        )

    def has_enough(self, attempt: FetchRound) -> bool:
        """Whether this round is an answer."""
        return attempt.must_answer or attempt.bytes_read + attempt.bytes_cut_off >= self.min_bytes

    def upper_bound(self, log: PartitionLog) -> int:
        """The offset up to which it reads."""
        if self.is_follower:
            return log.log_end_offset
        return log.last_stable_offset if self.committed else log.high_watermark

    # -- answering ------------------------------------------------------------------------------------------------

    def respond(self, attempt: FetchRound) -> FetchResponse:
        """The response; incremental sessions omit partitions about which there is nothing new."""
        plan = self.plan
        session = plan.session
        topics: dict[Any, FetchableTopicResponse] = {}
        served = []
        for fetched, answer in attempt.answers:
            if session is not None:
                news = self._note_told(fetched, answer)
                if plan.incremental and not news:
                    continue
                if answer.records:
                    served.append(fetched)
                elif isinstance(fetched, FollowerCursor):
                    self._may_settle(fetched, answer)
            name = fetched.key[0]
            topic = topics.get(name)
            if topic is None:
                topic = topics[name] = FetchableTopicResponse(
                    name if isinstance(name, str) else "", name if isinstance(name, bytes) else ZERO_UUID, []
                )
            topic.partitions.append(answer)
        if session is not None and len(plan.partitions) > 1 and served:
            move_to_end(session, served)
        response = FetchResponse(0, 0, plan.session_id, list(topics.values()), _NO_ENDPOINTS)
        if attempt.must_answer and self.api_version >= LEADER_HINTS_SINCE:
            leaders = (
                answer.current_leader.leader_id for topic in response.responses for answer in topic.partitions
            )
            response.node_endpoints = leader_endpoints(
                self.broker.image, self.listener, leaders, NodeEndpoint
            )
        return response

    def responding(self, attempt: FetchRound) -> Work[FetchResponse]:
        """As `respond`, in pieces: each is a response about some partitions."""
        topics: dict[tuple[str, bytes], FetchableTopicResponse] = {}
        endpoints: dict[int, NodeEndpoint] = {}
        try:
            for start in range(0, len(attempt.answers), CHUNK):
                some = FetchRound()
                some.answers = attempt.answers[start : start + CHUNK]
                some.must_answer = attempt.must_answer
                response = self.respond(some)
                for each in response.responses:
                    topic = topics.setdefault((each.topic, each.topic_id), each)
                    if topic is not each:
                        topic.partitions += each.partitions
                endpoints.update((each.node_id, each) for each in response.node_endpoints)
                yield CHUNK
        except BaseException:
            attempt.release()
            raise
        return FetchResponse(
            0, 0, self.plan.session_id, list(topics.values()), [endpoints[key] for key in sorted(endpoints)]
        )

    def _may_settle(self, fetched: FollowerCursor, answer: PartitionData) -> None:
        """Look at it no more until it is stirred: the follower has all and has heard all."""
        if answer.error_code or answer.diverging_epoch is not _NOT_DIVERGING:
            return
        partition = self.hosted(fetched)
        if partition is None:
            return
        log = partition.log
        replica = (partition.followers or {}).get(self.replica_id)
        if (
            fetched.fetch_offset == log.log_end_offset
            and fetched.sent_high_watermark == log.high_watermark
            and fetched.sent_log_start_offset == log.log_start_offset
            # Else its next fetch may be the one with which it joins.
            and self.replica_id in partition.isr_state.isr
            # Else nobody would stir it.
            and replica is not None
            and replica.cursor is fetched
        ):
            fetched.settle()

    def _note_told(self, fetched: FetchedPartition, answer: PartitionData) -> bool:
        """Whether this partition's answer holds news for the session (KIP-227); remembers the answer."""
        news = bool(
            answer.records
            or answer.error_code
            or answer.diverging_epoch is not _NOT_DIVERGING
            or answer.preferred_read_replica >= 0
            or answer.high_watermark != fetched.sent_high_watermark
            or answer.log_start_offset != fetched.sent_log_start_offset
        )
        # Whoever hears of an error or of a divergence takes nothing else from the answer.
        is_taken = not answer.error_code and answer.diverging_epoch is _NOT_DIVERGING
        fetched.sent_high_watermark = answer.high_watermark if is_taken else -1
        fetched.sent_log_start_offset = answer.log_start_offset
        return news


class DelayedFetch(Delayed):
    """A parked fetch."""

    __slots__ = ("job", "queued", "session", "tickets", "timer", "waits")

    parks = True

    def __init__(self, job: FetchJob, wait_ms: int, waits_for: list[Wait]) -> None:
        super().__init__()
        self.job = job
        self.queued = False
        self.waits = True
        self.tickets: list[tuple[Partition, Ticket]] = []
        broker = job.broker
        self.timer: Timer = broker.timers.at(broker.clock.monotonic() + wait_ms / 1000, self._time_out)
        session = job.plan.session
        self.session = session if session is not None and session.privileged else None
        if self.session is not None:
            self.session.wake = self._wake
        else:
            self._watch(waits_for)

    def _watch(self, waits_for: list[Wait]) -> None:
        wake = self._wake
        self.tickets = [
            (partition, partition.watch_for_fetch(until, mark, wake)) for partition, until, mark in waits_for
        ]

    def _unwatch(self) -> None:
        for partition, ticket in self.tickets:
            partition.unwatch_for_fetch(ticket)
        self.tickets = []

    def _wake(self) -> None:
        if not self.queued:
            self.queued = True
            self.job.broker.woken.append(self._try_again)

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
            self.job.broker.tasks.start_soon(answer_when_warm, self, self.job, attempt, cold)
        else:
            self.complete(self.job.respond(attempt))

    def _stop_waiting(self) -> None:
        self.timer.cancel()
        self.waits = False
        if self.session is not None and self.session.wake == self._wake:
            self.session.wake = None
        self._unwatch()

    def abandon(self) -> None:
        self._stop_waiting()


class WarmingFetch(Delayed):
    """A fetch whose ranges a worker reads into the page cache first."""

    __slots__ = ()

    parks = True


def cold_ranges(attempt: FetchRound) -> list[FileRange]:
    """The ranges whose pages would have to come from the device, or cannot: the worker's read will tell.

    Small warm ones are replaced by their bytes here.
    """
    cold = []
    room = INLINE_BYTES_MAX
    for _, answer in attempt.answers:
        found: Any = answer.records
        if found.__class__ is not FileRange:
            continue
        if found.count > room:
            if not _is_warm(found):
                cold.append(found)
            continue
        data = _read_warm(found)
        if data is None:
            cold.append(found)
        else:
            room -= found.count
            answer.records = data
            attempt.ranges.remove(found)
            found.release()
    return cold


def _read_warm(found: FileRange) -> bytes | bytearray | None:
    try:
        return found.file.read_warm(found.count, found.position)
    except DiskError:
        return None


def _is_warm(found: FileRange) -> bool:
    try:
        return found.file.is_warm(found.position, found.count)
    except DiskError:
        return False


def _warm(ranges: list[FileRange]) -> None:
    """Read the ranges and throw the bytes away: the pages stay (in a worker)."""
    scratch = bytearray(WARM_CHUNK_BYTES)
    for found in ranges:
        position, end = found.position, found.position + found.count
        while position < end:
            count = found.file.pread_into(
                memoryview(scratch)[: min(WARM_CHUNK_BYTES, end - position)], position
            )
            if count == 0:
                break
            position += count


def _by_disk(
    job: FetchJob, attempt: FetchRound, cold: list[FileRange]
) -> list[tuple[Workers, list[FileRange]]]:
    """The cold ranges, with the threads that may wait for their disks."""
    groups: list[tuple[Workers, list[FileRange]]] = []
    for fetched, answer in attempt.answers:
        records: Any = answer.records
        if not isinstance(records, FileRange) or records not in cold:
            continue
        partition = job.hosted(fetched)
        workers = job.broker.env.workers if partition is None else job.broker.workers_for(partition.log)
        for known, ranges in groups:
            if known is workers:
                ranges.append(records)
                break
        else:
            groups.append((workers, [records]))
    return groups


async def answer_when_warm(
    delayed: Delayed, job: FetchJob, attempt: FetchRound, cold: list[FileRange]
) -> None:
    """Warm the pages off the loop, then answer; a device error is that partition's error."""
    try:
        for workers, ranges in _by_disk(job, attempt, cold):
            await workers.run(_warm, ranges)
    except DiskError as error:
        job.broker.disk_errors.tell("fetch.disk_error", error=str(error))
        _refuse_unreadable(job, attempt, cold, error)
    if delayed.answer is None:
        attempt.release()
    else:
        delayed.complete(job.respond(attempt))


def _refuse_unreadable(job: FetchJob, attempt: FetchRound, cold: list[FileRange], error: DiskError) -> None:
    """The device does not give what was promised: its directory goes offline, and no cold range is sent."""
    for fetched, answer in attempt.answers:
        records: Any = answer.records
        if not isinstance(records, FileRange) or records not in cold:
            continue
        attempt.ranges.remove(records)
        answer.records = b""
        answer.error_code = ErrorCode.KAFKA_STORAGE_ERROR
        partition = job.hosted(fetched)
        failed = records.file.path == error.path
        records.release()
        if failed and partition is not None:
            partition.log.disk_failed(error)


class FetchHandler:
    """API 1."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def handle(self, context: Context, request: FetchRequest) -> Result:
        broker = self._broker
        named = 0
        for topic in request.topics:
            named += len(topic.partitions)
        if named > PARTITIONS_AT_ONCE:
            return in_slices(broker.long_work, self._answer_many(context.for_later(), request))
        by_id = context.api_version >= TOPIC_IDS_SINCE
        plan = broker.sessions.plan(request, by_id, broker.clock.wall_ms())
        if plan.error:
            return FetchResponse(0, plan.error, 0, [], _NO_ENDPOINTS)
        job = FetchJob(broker, plan, request, context)
        if len(plan.partitions) > PARTITIONS_AT_ONCE and not _is_followers(plan):
            return in_slices(broker.long_work, self._read_many(job, request.max_wait_ms))
        attempt = job.read(is_first=True)
        if request.max_wait_ms > 0 or attempt.ranges:
            delayed = self._wait(job, attempt, request.max_wait_ms)
            if delayed is not None:
                return delayed
        return job.respond(attempt)

    def _wait(self, job: FetchJob, attempt: FetchRound, wait_ms: int) -> Delayed | None:
        """What waits until there is more, or until cold pages are there; None for what can be answered now."""
        plan = job.plan
        if wait_ms > 0 and not job.has_enough(attempt) and (plan.partitions or plan.session is not None):
            waits_for = what_to_wait_for(job, attempt)
            if waits_for is not None:
                attempt.release()
                return DelayedFetch(job, wait_ms, waits_for)
        if attempt.ranges:
            cold = cold_ranges(attempt)
            if cold:
                warming = WarmingFetch()
                self._broker.tasks.start_soon(answer_when_warm, warming, job, attempt, cold)
                return warming
        return None

    def _answer_many(self, context: Context, request: FetchRequest) -> Work[Result]:
        """As `handle`. The session changes in one piece, when all that the request names is put together."""
        broker = self._broker
        by_id = context.api_version >= TOPIC_IDS_SINCE
        named = yield from broker.sessions.name(request, by_id)
        plan = broker.sessions.plan(request, by_id, broker.clock.wall_ms(), named)
        if plan.error:
            return FetchResponse(0, plan.error, 0, [], _NO_ENDPOINTS)
        job = FetchJob(broker, plan, request, context)
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


def _divergence(partition: Partition, fetched: FetchedPartition) -> EpochEndOffset | None:
    """KIP-595: where the fetcher's log stops being a prefix of this one, if it does.

    Raises `KafkaError` OFFSET_OUT_OF_RANGE for an epoch that is later than all of this log's, or records that are gone.
    """
    epoch, end_offset = partition.log.end_offset_for_epoch(fetched.last_fetched_epoch)
    if epoch < 0 or fetched.fetch_offset < partition.log.log_start_offset:
        raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
    if epoch < fetched.last_fetched_epoch or end_offset < fetched.fetch_offset:
        return EpochEndOffset(epoch, end_offset)
    return None
