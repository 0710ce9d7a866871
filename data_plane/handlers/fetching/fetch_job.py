"""The work of one fetch: reads partitions within limits, with rights, throttled followers, diverging logs and
aborted transactions; builds the response.

A response holds pinned ranges of segment files instead of bytes; the connection sends them with sendfile. A
parked fetch keeps its job, and reads again each time that it is woken.

A follower (replica id 0 or more) reads up to the log end offset. Its fetch offset confirms to the leader that
the follower has all earlier records. `Partition.note_fetch` records this offset once, when the request arrives.
Since version 11 consumers may read from followers (KIP-392), up to the high watermark that the follower knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from odradek.data_plane.fetch_sessions import FetchedPartition, FetchPlan, FollowerCursor, move_to_end
from odradek.data_plane.handlers.desk import Desk
from odradek.data_plane.handlers.fetching.empty_batches import read_records
from odradek.data_plane.handlers.leader_hints import leader_endpoints
from odradek.data_plane.log.log_types import LogRead
from odradek.data_plane.log.partition_log import FileRange, PartitionLog
from odradek.data_plane.replication.partition import Partition
from odradek.data_plane.replication.partition_cluster import UNKNOWN_BROKER_EPOCH
from odradek.data_plane.replication.read_replica import preferred_read_replica
from odradek.data_plane.replication.replication import Replication
from odradek.data_plane.replication.served_partitions import ServedPartitions
from odradek.data_plane.replication.throttle import ReplicationThrottle
from odradek.data_plane.replication.waiting_fetches import Until
from odradek.env.ports import DiskError
from odradek.named_states import reached
from odradek.security.acls.rules import CLUSTER_NAME, Operation, ResourceType
from odradek.serving.contract import ClientRights, Context, PinsFiles
from odradek.serving.shared_parts import shared
from odradek.serving.steps import Work
from odradek.wire.api_keys import ApiKey
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
    SnapshotId,
)
from odradek.wire.schema.lazy_attrs import structure
from odradek.wire.schema.versions import (
    FETCH_FROM_FOLLOWERS,
    FETCH_LEADER_HINTS,
    FETCH_REPLICA_STATE,
    FETCH_TOPIC_IDS,
)
from odradek.wire.structure import ZERO_UUID
from odradek.wire.topic_partition import TopicIdPartition

READ_COMMITTED = 1
_READ, _TOPIC = int(Operation.READ), int(ResourceType.TOPIC)
CHUNK = 64
"""The number of partitions that are read or answered in a row. After each such chunk, the job checks whether
its slice of work is over.
"""
READ_UNITS = 3
"""The cost of reading one partition, in units of work. One unit is the cost of looking up a partition."""

_NOT_DIVERGING = shared(EpochEndOffset())
_NO_LEADER = shared(LeaderIdAndEpoch())
_NO_SNAPSHOT = shared(SnapshotId())
_NO_ENDPOINTS: list[NodeEndpoint] = shared([])
_NONE_ABORTED: list[Any] = shared([])


@structure
class FileFetchResponse(FetchResponse, PinsFiles):
    """A fetch response whose records may be ranges of segment files."""

    def release_files(self) -> None:
        for topic in self.responses:
            for partition in topic.partitions:
                records: Any = partition.records
                if isinstance(records, FileRange):
                    records.release()


class FetchRound:
    """One attempt to serve a fetch: the answers of all partitions, with the ranges of records that they hold."""

    __slots__ = ("answers", "bytes_cut_off", "bytes_read", "full", "must_answer", "ranges")

    def __init__(self) -> None:
        self.answers: list[tuple[FetchedPartition, PartitionData]] = []
        self.ranges: list[FileRange] = []
        self.bytes_read = 0
        self.bytes_cut_off = 0
        """The bytes within the limits that were left out, because a batch is returned whole or not at all.
        They count towards `min_bytes`.
        """
        self.full: list[FetchedPartition] = []
        """Partitions in which a limit cut off further records. The fetch need not wait for more records in
        them.
        """
        self.must_answer = False

    def release(self) -> None:
        for file_range in self.ranges:
            file_range.release()


class FetchJob:
    """One fetch request, which is kept while it is parked.

    None of its data is a view of the receive buffer.
    """

    __slots__ = (
        "api_version",
        "by_id",
        "committed",
        "desk",
        "first_fetches",
        "is_follower",
        "listener",
        "max_bytes",
        "min_bytes",
        "needs_leader",
        "now_ms",
        "partitions",
        "plan",
        "rack",
        "replica_epoch",
        "replica_id",
        "replication",
        "rights",
    )

    def __init__(
        self,
        desk: Desk,
        partitions: ServedPartitions,
        replication: Replication,
        plan: FetchPlan,
        request: FetchRequest,
        context: Context,
    ) -> None:
        api_version = context.api_version
        self.listener = context.listener
        self.rights = context.rights
        self.desk = desk
        self.partitions = partitions
        self.replication = replication
        self.first_fetches = replication.first_fetches
        self.plan = plan
        self.api_version = api_version
        self.by_id = api_version >= FETCH_TOPIC_IDS
        self.committed = request.isolation_level == READ_COMMITTED
        self.max_bytes = min(request.max_bytes, desk.settings.fetch_max_bytes)
        allowed = None if context.quota is None else context.quota.fetch_bytes_max
        if allowed is not None:
            self.max_bytes = min(self.max_bytes, allowed)
        if desk.env.provokes and desk.env.buggify("fetch.short_read"):
            self.max_bytes = min(self.max_bytes, 1)
        self.min_bytes = min(request.min_bytes, self.max_bytes)
        if api_version >= FETCH_REPLICA_STATE:
            self.replica_id = request.replica_state.replica_id
            self.replica_epoch = request.replica_state.replica_epoch
        else:
            self.replica_id = request.replica_id
            self.replica_epoch = -1
        self.is_follower = self.replica_id >= 0
        if self.is_follower:
            replication.fetched_by(self.replica_id)
        self.now_ms = int(desk.clock.monotonic() * 1000)
        if plan.session is not None and plan.session.privileged:
            plan.session.fetched_at_ms = self.now_ms
        selects = replication.settings.selects_by_rack and api_version >= FETCH_FROM_FOLLOWERS
        self.rack = request.rack_id if selects and not self.is_follower else ""
        self.needs_leader = self.is_follower or api_version < FETCH_FROM_FOLLOWERS

    # -- reading --------------------------------------------------------------------------------------------------

    def hosted(self, fetched: FetchedPartition) -> Partition | None:
        """Return the partition of this broker that the request names; None if the broker has no replica of
        it.
        """
        name, index = fetched.key
        hosted = self.partitions.by_id.get(name) if self.by_id else self.partitions.by_name.get(name)  # type: ignore[arg-type]  # `by_id` decides the type of `name`
        return None if hosted is None else hosted.partitions.get(index)

    def read(self, *, is_first: bool = False) -> FetchRound:
        """Read every partition of the plan, in order, within the limits. The first read (`is_first`) also
        records the follower's fetch offsets.

        In a follower's session, only the partitions marked dirty are read.
        """
        attempt = FetchRound()
        session = self.plan.session
        some = self.plan.partitions if session is None or not session.privileged else session.to_read()
        self._read(attempt, some, self.max_bytes, is_first)
        return attempt

    def reading(self) -> Work[FetchRound]:
        """Read all partitions of a consumer's fetch for the first time, in slices.

        While later slices are read, partitions of earlier slices may change. A fetch that is parked
        afterwards would miss these changes. So if there are too few bytes, and any partition has changed, all
        partitions are read again without a pause.
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
            if self.rights is not None and not self._may_read(self.rights, fetched):
                answer = self._error(fetched, None, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            elif partition is None:
                answer = self._error(fetched, None, self._missing_error(fetched))
            else:
                answer = self._read_partition(attempt, fetched, partition, room, is_first)
                if answer.records is not None:
                    room = max(0, room - len(answer.records))
            if answer.error_code or answer.diverging_epoch is not _NOT_DIVERGING:
                attempt.must_answer = True
            attempt.answers.append((fetched, answer))
        if attempt.must_answer and self.rights is not None:
            self.rights.log_denials(ApiKey.FETCH)

    def _may_read(self, rights: ClientRights, fetched: FetchedPartition) -> bool:
        """True if the client may read this topic now.

        A follower needs CLUSTER_ACTION instead of a right on the topic.
        """
        if self.is_follower:
            return rights.allows(Operation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME)
        name: Any = fetched.key[0]
        if self.by_id:
            topic = self.desk.image.topics_by_id.get(name)
            if topic is None:
                return True
            name = topic.name
        return rights.allows(_READ, _TOPIC, name)

    def _read_partition(
        self,
        attempt: FetchRound,
        fetched: FetchedPartition,
        partition: Partition,
        room: int,
        is_first: bool,
    ) -> PartitionData:
        """Build one partition's answer: an error, the offset where logs diverge, a nearer replica, or records."""
        epoch = fetched.current_leader_epoch
        code = partition.leader_error(epoch) if self.needs_leader else partition.reader_error(epoch)
        if code:
            return self._error(fetched, partition, code)
        log = partition.log
        records: Any = b""
        throttle = None
        try:
            if fetched.last_fetched_epoch >= 0:
                diverging = _divergence(partition, fetched)
                if diverging is not None:
                    return _without_records(fetched, log, diverging=diverging)
            if self.rack and partition.is_leader:
                nearer = self._nearer_replica(partition, fetched)
                if nearer >= 0:
                    attempt.must_answer = True
                    return _without_records(fetched, log, preferred_read_replica=nearer)
            bound = self.upper_bound(log)
            if self.is_follower:
                throttle = self._note_follower(fetched, partition, is_first)
                if throttle is not None and not throttle.has_room(int(self.desk.clock.monotonic() * 1000)):
                    bound = -1
            stable_offset = log.last_stable_offset
            limit = min(fetched.max_bytes, room)
            read = PartitionLog.read if self.is_follower else read_records
            got = read(log, fetched.fetch_offset, limit, upper_bound=bound, min_one=not attempt.bytes_read)
            aborted = _aborted(log, fetched.fetch_offset, got) if self.committed else None
        except (KafkaError, DiskError) as error:
            return self._not_read(fetched, partition, error)
        if got.next_offset < bound:
            attempt.full.append(fetched)
            attempt.bytes_cut_off += max(0, limit - got.count)
        if got.file is not None:
            records = FileRange(got.file, got.position, got.count)
            attempt.ranges.append(records)
            attempt.bytes_read += got.count
            if self.is_follower:
                self._note_sent(partition, got.count, throttle)
        return PartitionData(
            fetched.key[1],
            0,
            log.high_watermark,
            stable_offset,
            log.log_start_offset,
            _NOT_DIVERGING,
            _NO_LEADER,
            _NO_SNAPSHOT,
            aborted,
            -1,
            records,
        )

    def _nearer_replica(self, partition: Partition, fetched: FetchedPartition) -> int:
        """Return the id of the replica in the consumer's rack from which the consumer should read; -1 if it
        should read from this replica.
        """
        desk = self.desk
        return preferred_read_replica(
            partition, desk.image, desk.settings.node_id, self.listener, self.rack, fetched.fetch_offset
        )

    def _not_read(
        self, fetched: FetchedPartition, partition: Partition, error: KafkaError | DiskError
    ) -> PartitionData:
        """Build the answer for a partition whose log cannot be read, or has no records at this offset."""
        log = partition.log
        if isinstance(error, DiskError):
            self.desk.disk_errors.note(
                "fetch.disk_error", topic=log.topic, partition=log.partition, error=str(error)
            )
            return self._error(fetched, partition, ErrorCode.KAFKA_STORAGE_ERROR)
        if error.code == ErrorCode.CORRUPT_MESSAGE:
            partition.suspect(fetched.fetch_offset)
        return self._error(fetched, partition, error.code)

    def _note_sent(self, partition: Partition, count: int, throttle: ReplicationThrottle | None) -> None:
        """Add the bytes that are sent to a follower to the throttle's count and to the metric of
        reassignments.
        """
        if partition.is_adding(self.replica_id):
            self.replication.reassignment_bytes_out += count
        if throttle is not None:
            throttle.note(count)

    def _throttle_of(self, partition: Partition) -> ReplicationThrottle | None:
        """Return the throttle that applies to this follower and partition; None if there is none."""
        throttle = self.replication.leader_throttle
        if (
            throttle.is_set
            and self.replica_id not in partition.isr_state.maximal_isr
            and throttle.applies_to(partition.log.topic_id, partition.log.partition)
        ):
            return throttle
        return None

    def _note_follower(
        self, fetched: FetchedPartition, partition: Partition, is_first: bool
    ) -> ReplicationThrottle | None:
        """Record the follower's fetch offset if this is the first read and the offset is inside the log.

        Returns the follower's throttle, if there is one.

        Raises `KafkaError`. The record is made in memory, so it succeeds even while the log cannot be read.
        """
        if is_first:
            self._count_promise(fetched, partition)
        return self._throttle_of(partition)

    def _count_promise(self, fetched: FetchedPartition, partition: Partition) -> None:
        replica = partition.followers.sender(self.replica_id, fetched.current_leader_epoch >= 0)
        log = partition.log
        if replica.broker_epoch == UNKNOWN_BROKER_EPOCH:
            self.first_fetches.fetched(self.replica_id, TopicIdPartition(log.topic_id, log.partition))
        if log.log_start_offset <= fetched.fetch_offset <= log.log_end_offset:
            promised = partition.note_fetch(
                replica, self.replica_epoch, fetched.fetch_offset, fetched.log_start_offset, self.now_ms
            )
            if promised and isinstance(fetched, FollowerCursor):
                replica.follow_with(fetched)
            if promised:
                partition.fetched(replica)

    def _error(
        self, fetched: FetchedPartition, partition: Partition | None, code: ErrorCode
    ) -> PartitionData:
        answer = PartitionData(
            fetched.key[1], code, -1, -1, -1, _NOT_DIVERGING, _NO_LEADER, _NO_SNAPSHOT, None, -1, b""
        )
        if partition is None:
            answer.aborted_transactions = _NONE_ABORTED
        hinted = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)
        if self.api_version < FETCH_LEADER_HINTS or partition is None or partition.image is None:
            return answer
        if code in hinted:
            answer.current_leader = LeaderIdAndEpoch(partition.image.leader, partition.image.leader_epoch)
        return answer

    def _missing_error(self, fetched: FetchedPartition) -> ErrorCode:
        name, index = fetched.key
        if not self.by_id:
            return self.partitions.missing_error(str(name), index)
        image = self.desk.image.topics_by_id.get(name)  # type: ignore[arg-type]  # with `by_id`, the key holds an id
        return (
            ErrorCode.UNKNOWN_TOPIC_ID if image is None else self.partitions.missing_error(image.name, index)
        )

    def has_enough(self, attempt: FetchRound) -> bool:
        """True if this round may be answered: it has `min_bytes`, an error, or another result that must not
        wait.
        """
        return attempt.must_answer or attempt.bytes_read + attempt.bytes_cut_off >= self.min_bytes

    @property
    def bounded_by(self) -> Until:
        """The kind of offset that bounds this fetch: the log end for followers, the high watermark or the
        last stable offset for clients.
        """
        if self.is_follower:
            return Until.LOG_END
        return Until.STABLE if self.committed else Until.HIGH_WATERMARK

    def upper_bound(self, log: PartitionLog) -> int:
        """Return the offset in this log up to which the fetch may read."""
        if self.is_follower:
            return log.log_end_offset
        return log.last_stable_offset if self.committed else log.high_watermark

    # -- answering ------------------------------------------------------------------------------------------------

    def respond(self, attempt: FetchRound) -> FetchResponse:
        """Build the response. In an incremental session, partitions without changes are left out."""
        plan = self.plan
        session = plan.session
        topics: dict[Any, FetchableTopicResponse] = {}
        served = []
        for fetched, answer in attempt.answers:
            if session is not None:
                news = self._note_answered(fetched, answer)
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
        response = FileFetchResponse(0, 0, plan.session_id, list(topics.values()), _NO_ENDPOINTS)
        if attempt.must_answer and self.api_version >= FETCH_LEADER_HINTS:
            leaders = (
                answer.current_leader.leader_id for topic in response.responses for answer in topic.partitions
            )
            response.node_endpoints = leader_endpoints(self.desk.image, self.listener, leaders, NodeEndpoint)
        return response

    def responding(self, attempt: FetchRound) -> Work[FetchResponse]:
        """Build the response of many partitions in slices."""
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
        return FileFetchResponse(
            0, 0, self.plan.session_id, list(topics.values()), [endpoints[key] for key in sorted(endpoints)]
        )

    def _may_settle(self, fetched: FollowerCursor, answer: PartitionData) -> None:
        """Mark a follower's partition clean, if the follower has all records and knows the present offsets. A
        clean partition is not read until it is marked dirty again.
        """
        if answer.error_code or answer.diverging_epoch is not _NOT_DIVERGING:
            return
        partition = self.hosted(fetched)
        if partition is None:
            return
        log = partition.log
        replica = partition.followers.find(self.replica_id)
        if (
            fetched.fetch_offset == log.log_end_offset
            and fetched.sent_high_watermark == log.high_watermark
            and fetched.sent_log_start_offset == log.log_start_offset
            # A follower outside the ISR may join it with its next fetch, so its partition must be read again.
            and self.replica_id in partition.isr_state.isr
            # The replica marks the partition dirty through its link to this cursor. Without the link, the
            # partition would stay clean for ever.
            and replica is not None
            and replica.cursor is fetched
        ):
            fetched.settle()

    def _note_answered(self, fetched: FetchedPartition, answer: PartitionData) -> bool:
        """Store in the session which offsets this answer reports. Returns True if the answer must be sent,
        because it has records, an error or changed offsets (KIP-227).
        """
        news = bool(
            answer.records
            or answer.error_code
            or answer.diverging_epoch is not _NOT_DIVERGING
            or answer.preferred_read_replica >= 0
            or answer.high_watermark != fetched.sent_high_watermark
            or answer.log_start_offset != fetched.sent_log_start_offset
        )
        # A fetcher that gets an error or a divergence ignores the other fields. So do not record that it
        # knows the high watermark.
        is_taken = not answer.error_code and answer.diverging_epoch is _NOT_DIVERGING
        fetched.sent_high_watermark = answer.high_watermark if is_taken else -1
        fetched.sent_log_start_offset = answer.log_start_offset
        return news


def _aborted(log: PartitionLog, offset: int, got: LogRead) -> list[AbortedTransaction]:
    """List the aborted transactions with records in the range that was read from `offset` on.

    Raises `DiskError`.

    Kafka searches up to the next entry of the segment's offset index, so Kafka may list a few more
    transactions.
    """
    if got.file is None:
        return _NONE_ABORTED
    try:
        found = log.aborted_transactions(offset, got.next_offset)
    except DiskError:
        got.release()
        raise
    if not found:
        return _NONE_ABORTED
    return [AbortedTransaction(each.producer_id, each.first_offset) for each in found]


def _without_records(
    fetched: FetchedPartition,
    log: PartitionLog,
    *,
    diverging: EpochEndOffset = _NOT_DIVERGING,
    preferred_read_replica: int = -1,
) -> PartitionData:
    """Build an answer without records, which makes the fetcher truncate its log, or read from another
    replica.
    """
    return PartitionData(
        fetched.key[1],
        0,
        log.high_watermark,
        log.last_stable_offset,
        log.log_start_offset,
        diverging,
        _NO_LEADER,
        _NO_SNAPSHOT,
        None,
        preferred_read_replica,
        b"",
    )


def _divergence(partition: Partition, fetched: FetchedPartition) -> EpochEndOffset | None:
    """Compare the last epoch of the fetcher's log with this log (KIP-595). Returns the epoch and offset where
    they diverge; None if the fetcher's log is a prefix of this log.

    Raises `KafkaError` OFFSET_OUT_OF_RANGE if the epoch is later than all epochs of this log, or the fetch
    offset is below its start.
    """
    epoch, end_offset = partition.log.end_offset_for_epoch(fetched.last_fetched_epoch)
    if epoch < 0 or fetched.fetch_offset < partition.log.log_start_offset:
        raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
    if epoch < fetched.last_fetched_epoch or end_offset < fetched.fetch_offset:
        reached("fetch.divergence_answered")
        return EpochEndOffset(epoch, end_offset)
    return None
