"""The follower side of replication from one leader: fetch rounds, appends, truncation, a new start when the log
ends outside the leader's. A fetcher fetches all partitions that this broker follows there, over one connection.
PORTED.

Theory of operation
-------------------
A round is one Fetch request and its answer. The answer's batches go to the logs unchanged, one write per
partition. The offsets of the next request confirm these batches. Batches are not parsed. They are synced only
for topics with `flush.messages` (`synced_promises`). Batches of other topics need no sync, since a replica that
restarts uncleanly leaves every ISR before it may lead.

* **An answer counts only if the partition's state has not changed since the request**. The leader epoch and the
  log end offset must be the same. Partitions that have changed meanwhile (a truncation, another leader, a log
  set aside) are fetched again.
* **Logs are truncated by epoch only** (`truncation`), when the leader says that they diverge. An offset
  outside the leader's log is settled with ListOffsets, as in Kafka. If the follower's log reaches beyond the
  leader's end (after an unclean election), it is truncated to that end. If the follower's log ends before the
  leader's start, it begins anew at that start.
* A partition that cannot be served backs off alone, outside the session; all other partitions go on. After an
  error of the connection, all partitions back off and a new session begins.
* A partition that is throttled by `follower.replication.throttled.*` waits in the same way while the quota is
  used up. But it is fetched if the follower has all records that it knows to be committed.
* Each batch's checksum is checked before it is written. Sound batches before a rotten batch are kept. The
  rotten batch is fetched again and again. From this the leader concludes that it must check its own disk
  (`rotten_replicas`).

A partition has no task or timer of its own. Changed partitions are kept in `_changed`. So the cost of a round
depends on the partitions with new records, not on all followed partitions. New records also wake local
requests. Before these are woken, the next request is sent to the leader, because the leader may wait for the
confirmation in this request. The connection has a module of its own (`leader_connection`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from odradek.data_plane.log.log_types import Origin
from odradek.data_plane.log.partition_log import PartitionLog
from odradek.data_plane.replication.following.follower_fetch_session import (
    PARTITIONS_MAX,
    Position,
    ReplicaFetchSession,
)
from odradek.data_plane.replication.following.leader_connection import LeaderConnection, SharedByFetchers
from odradek.data_plane.replication.partition import Partition
from odradek.data_plane.replication.synced_promises import SYNC_AGAIN_SECONDS, sync_partitions
from odradek.data_plane.replication.truncation import truncation_offset
from odradek.env.ports import ConnectionLost, DiskError
from odradek.named_states import reached
from odradek.wire.batches.batch_header import parse_header
from odradek.wire.errors import ErrorCode, KafkaError, ProtocolError
from odradek.wire.messages.fetch import FetchRequest, FetchResponse, PartitionData, ReplicaState
from odradek.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from odradek.wire.topic_partition import TopicIdPartition

FETCH_VERSION = 17
LIST_OFFSETS_VERSION = 9
LATEST, EARLIEST = -1, -2
APPEND_BYTES_PER_TURN = 1 << 20
"""The number of appended bytes after which other tasks of the event loop get a turn."""
BACKOFF_SECONDS_MIN = 0.02
IDLE_SECONDS = 0.02
_SESSION_ERRORS = frozenset(
    (
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    )
)
_EXPECTED = frozenset(
    (
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    )
)
"""Errors that occur while the leader and the follower have metadata of different ages. They are too common to
be logged.
"""


class Followed:
    """A partition that this broker fetches from its leader."""

    __slots__ = ("failures", "is_in_sync", "lag", "leader_epoch", "partition", "replica", "retry_at")

    def __init__(self, replica: TopicIdPartition, partition: Partition) -> None:
        self.replica = replica
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        self.failures = 0
        self.is_in_sync = False
        """True if this replica has all records that the leader reported as committed. Only the throttle reads
        it.
        """
        self.retry_at = 0.0
        self.lag = 0
        """The number of committed records that this replica lacked at the leader's last answer."""

    def wanted(self) -> Position:
        """Return the fields of the partition's next fetch: (log end offset, leader epoch, epoch of the last
        record, log start offset).

        The log start offset is the stored offset from the disk, because the leader takes it as a confirmation
        of deletions.
        """
        log = self.partition.log
        return log.log_end_offset, self.leader_epoch, log.epochs.latest, log.stored_start_offset


class LeaderFetcher:
    """Fetches from one leader all partitions that this broker follows there.

    The task `run` ends when `followed` is empty.
    """

    def __init__(
        self, leader_id: int, address: Callable[[], tuple[str, int] | None], shared: SharedByFetchers
    ) -> None:
        """Take the leader's id. `address` returns its host and port; None while they are unknown."""
        self.leader_id = leader_id
        self._connection = LeaderConnection(leader_id, address, shared)
        self._node_id = shared.node_id
        self._env = shared.env
        self._clock = shared.env.clock
        self._settings = shared.settings
        self._broker_epoch = shared.broker_epoch
        self._after_round = shared.after_round
        self._throttle = shared.throttle
        self._silence = shared.silence
        self._departures = shared.departures
        self._sync = shared.sync
        self._log = shared.log
        self.followed: dict[TopicIdPartition, Followed] = {}
        self._changed: dict[TopicIdPartition, None] = {}
        self._unstored: dict[TopicIdPartition, None] = {}
        """The partitions whose log start offset was not yet in the checkpoint on disk when it was last
        checked.
        """
        self._gone: dict[TopicIdPartition, None] = {}
        self._waiting: dict[TopicIdPartition, Followed] = {}
        """The partitions that back off after an error."""
        self._out_of_range: list[Followed] = []
        self._session = ReplicaFetchSession()
        self._wake = shared.env.event()
        self._failures = 0
        self.is_running = False
        self.rounds = 0
        self.bytes_fetched = 0
        self.reassignment_bytes = 0
        """The part of `bytes_fetched` that belongs to replicas which a reassignment adds to this broker."""

    # -- the partitions to fetch ----------------------------------------------------------------------------------

    def follow(self, replica: TopicIdPartition, partition: Partition) -> None:
        """Begin to fetch this partition, in its present leader epoch."""
        known = self.followed.get(replica)
        if (
            known is not None
            and known.partition is partition
            and known.leader_epoch == partition.leader_epoch
        ):
            return
        self.followed[replica] = Followed(replica, partition)
        self._waiting.pop(replica, None)
        self._changed[replica] = None
        self._failures = 0
        self._wake.set()

    def drop(self, replica: TopicIdPartition) -> None:
        """Stop fetching this partition."""
        if self.followed.pop(replica, None) is not None:
            self._waiting.pop(replica, None)
            self._changed.pop(replica, None)
            self._gone[replica] = None
            self._wake.set()
            if not self.followed:
                self._close()

    def retry_now(self) -> None:
        """End all backoffs, because the leader's address or state may have changed."""
        self._failures = 0
        if self._connection.is_astray:
            self._close()
        for replica, followed in self._waiting.items():
            followed.retry_at = 0.0
            self._changed[replica] = None
        self._wake.set()

    # -- the loop -------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Fetch in rounds until no partition is left to fetch."""
        self.is_running = True
        while self.followed:
            try:
                await self._round()
                self._failures = 0
            except (ConnectionLost, ProtocolError, KafkaError) as error:
                if isinstance(error, ConnectionLost) and self._connection.is_open:
                    self._departures.connection_lost(self.leader_id)
                self._close()
                self._after_round()
                if self.followed:
                    self._failures += 1
                    if self._failures in (1, 10, 100):
                        self._log.info(
                            "replication.leader_unreachable", leader=self.leader_id, error=str(error)
                        )
                    await self._pause(self._clock.monotonic() + self._backoff_seconds(self._failures))
        self._close()
        self._silence.rests(self.leader_id)
        self._gone.clear()
        self._session = ReplicaFetchSession()
        self._connection.stop_watching()
        self.is_running = False
        self._after_round()

    def has_ended(self) -> bool:
        """Look whether the leader has closed the connection on which it is asked."""
        return self._connection.has_ended()

    async def _round(self) -> None:
        """Send one Fetch request and apply its answer. After `ConnectionLost`, `ProtocolError` or
        `KafkaError` the caller closes the connection.
        """
        now = self._clock.monotonic()
        if self._waiting:
            self._readmit(now)
        self._hold_offline()
        if self._throttle.is_set:
            self._hold_throttled(now)
        if len(self._waiting) == len(self.followed) or self._broker_epoch() < 0:
            self._silence.rests(self.leader_id)
            earliest = min((each.retry_at for each in self._waiting.values()), default=now)
            await self._pause(max(earliest, now + IDLE_SECONDS))
            return
        self._silence.asked(self.leader_id, now)
        self._connection.close_if_old(now)
        if not self._connection.is_open:
            await self._connection.open()
            self._session.begin()
        asked = self._asked()
        if unsynced := [followed for followed in asked if followed.partition.log.needs_flush]:
            reached("replication.synced_before_promise")
            await self._sync_before_promise(unsynced)
            return
        request = self._request(asked)
        await self._connection.send(request, FETCH_VERSION, request.max_wait_ms, now)
        self._after_round()
        response = await self._connection.answer()
        self._silence.heard(self.leader_id, self._clock.monotonic())
        self._departures.answered(self.leader_id)
        self.rounds += 1
        if isinstance(response, FetchResponse):
            await self._take(response)
        if self._out_of_range:
            await self._settle_ranges()
        if self._env.buggify("replication.drop_connection"):
            self._close()

    def _asked(self) -> list[Followed]:
        """List the partitions that the next request must name."""
        self._look_at_starts()
        names = self.followed if self._session.epoch == 0 else self._changed
        return [
            self.followed[replica]
            for replica in names
            if replica in self.followed and replica not in self._waiting
        ]

    def _look_at_starts(self) -> None:
        """Mark the partitions whose log start offset is stored in the checkpoint file now, so that the next
        request reports this offset.
        """
        for replica in list(self._unstored):
            followed = self.followed.get(replica)
            if followed is None or followed.partition.log.is_start_stored:
                del self._unstored[replica]
                if followed is not None:
                    self._changed[replica] = None

    async def _sync_before_promise(self, unsynced: list[Followed]) -> None:
        """Sync the records that the next request would confirm to the leader. Each partition is left out of
        requests until its sync is done.
        """
        self._after_round()
        held = {followed.partition: followed for followed in unsynced}

        def late(partition: Partition) -> None:
            held[partition].retry_at = 0.0
            self._wake.set()

        failed, running = await sync_partitions(self._env, self._sync, list(held), late)
        for partition in (*failed, *running):
            followed = held[partition]
            if self.followed.get(followed.replica) is followed:
                self._back_off(followed)
        for partition in running:
            held[partition].retry_at = self._clock.monotonic() + SYNC_AGAIN_SECONDS

    def _close(self) -> None:
        """Close the connection, and end the fetch session, which belongs to it."""
        self._connection.close()
        self._session.begin()

    async def _pause(self, until: float) -> None:
        """Sleep until `until` (monotonic seconds), or until a partition or the leader changes."""
        self._after_round()
        self._wake = self._env.event()
        with self._clock.timeout_at(until):
            await self._wake.wait()

    def _backoff_seconds(self, failures: int) -> float:
        return min(BACKOFF_SECONDS_MIN * 2.0 ** min(failures, 16), self._settings.backoff_ms_max / 1000)

    def _readmit(self, now: float) -> None:
        for replica, followed in list(self._waiting.items()):
            if followed.retry_at <= now:
                del self._waiting[replica]
                self._changed[replica] = None

    def _hold_offline(self) -> None:
        """Let partitions on a hung disk back off, because a fetch would claim that they keep up with the
        leader.
        """
        for replica in self.followed if self._session.epoch == 0 else list(self._changed):
            followed = self.followed.get(replica)
            if followed is not None and followed.partition.log.offline and replica not in self._waiting:
                self._back_off(followed)

    def _hold_throttled(self, now: float) -> None:
        """Leave throttled partitions out of the requests while the quota is used up (Kafka's
        `shouldFollowerThrottle`).
        """
        throttle = self._throttle
        room_at_ms = throttle.room_at_ms(int(now * 1000))
        if room_at_ms <= now * 1000:
            return
        for replica in self.followed if self._session.epoch == 0 else list(self._changed):
            followed = self.followed.get(replica)
            if (
                followed is not None
                and not followed.is_in_sync
                and replica not in self._waiting
                and throttle.applies_to(*replica)
            ):
                followed.retry_at = room_at_ms / 1000
                self._waiting[replica] = followed
                self._gone[replica] = None

    def _back_off(self, followed: Followed) -> None:
        followed.failures += 1
        followed.retry_at = self._clock.monotonic() + self._backoff_seconds(followed.failures)
        self._waiting[followed.replica] = followed
        self._gone[followed.replica] = None

    # -- a round --------------------------------------------------------------------------------------------------

    def _request(self, asked: list[Followed]) -> FetchRequest:
        session = self._session
        settings = self._settings
        followed = self.followed
        wanted = [(each.replica, each.wanted()) for each in asked]
        unwanted = [replica for replica in self._gone if replica not in followed or replica in self._waiting]
        topics, forgotten, left, left_unwanted, is_part = session.next_request(
            wanted, unwanted, settings.fetch_bytes_max
        )
        self._changed = dict.fromkeys(left)
        self._gone = dict.fromkeys(left_unwanted)
        return FetchRequest(
            replica_state=ReplicaState(self._node_id, self._broker_epoch()),
            max_wait_ms=0
            if is_part or self._departures.is_lost(self.leader_id)
            else settings.fetch_wait_ms_max,
            min_bytes=settings.fetch_bytes_min,
            max_bytes=1 if self._env.buggify("replication.tiny_fetch") else settings.response_bytes_max,
            session_id=session.session_id,
            session_epoch=session.epoch,
            topics=topics,
            forgotten_topics_data=forgotten,
        )

    async def _take(self, response: FetchResponse) -> None:
        session = self._session
        if response.error_code:
            if response.error_code not in _SESSION_ERRORS:
                raise KafkaError(
                    ErrorCode(response.error_code), "the leader refuses this follower's whole fetch request"
                )
            reached("replication.session_begun_anew")
            session.begin()
            return
        requested = session.requested
        session.answered(response.session_id)
        written = 0
        for topic in response.responses:
            for answer in topic.partitions:
                # A key is made for every partition of every answer. So use a plain tuple, which equals a
                # `TopicIdPartition` and is made in a quarter of the time.
                replica: Any = (topic.topic_id, answer.partition_index)
                followed = self.followed.get(replica)
                if followed is None:
                    continue
                written += self._take_partition(followed, answer, requested.get(replica))
                if written >= APPEND_BYTES_PER_TURN:
                    written = 0
                    await self._clock.sleep_until(0.0)

    def _take_partition(self, followed: Followed, answer: PartitionData, requested: Position | None) -> int:
        """Append the records that an answer has for one partition. Returns the number of appended bytes."""
        partition = followed.partition
        # The log start offset, the last field, may have been stored since the request. The answer still fits
        # the log, so that field is not compared.
        if (
            requested is None
            or requested[:3] != followed.wanted()[:3]
            or partition.leader_epoch != followed.leader_epoch
            or partition.is_leader
        ):
            reached("replication.outdated_answer_dropped")
            # The partition's state has changed since the request, so the next round fetches it again.
            self._changed[followed.replica] = None
            return 0
        if answer.error_code:
            self._take_error(followed, ErrorCode(answer.error_code))
            return 0
        log = partition.log
        written = 0
        followed.lag = max(0, answer.high_watermark - log.log_end_offset)
        try:
            if log.offline:
                reached("replication.append_put_off_for_hung_disk")
                # The disk hangs. Any call to the disk would block the event loop, and so the whole node.
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the follower's disk does not answer")
            if answer.diverging_epoch.end_offset >= 0:
                self._truncate(
                    followed,
                    truncation_offset(
                        log.epochs,
                        log.log_end_offset,
                        answer.diverging_epoch.epoch,
                        answer.diverging_epoch.end_offset,
                    ),
                )
            else:
                records: Any = answer.records
                if records:
                    written = len(records)
                    if parts_below_the_start(log, records, answer.log_start_offset):
                        self._begin_anew(log, answer.log_start_offset)
                    log.append(records, Origin.REPLICA, followed.leader_epoch, self._clock.wall_ms())
                partition.follow(answer.high_watermark, answer.log_start_offset)
                if not log.is_start_stored:
                    self._unstored[followed.replica] = None
            followed.failures = 0
            followed.lag = max(0, answer.high_watermark - log.log_end_offset)
            if self._throttle.is_set and self._throttle.applies_to(*followed.replica):
                followed.is_in_sync = log.log_end_offset >= answer.high_watermark
                self._throttle.note(written)
        except (KafkaError, DiskError) as error:
            self._take_failure(followed, answer, error)
            if self.followed.get(followed.replica) is followed:
                self._back_off(followed)
        self._changed[followed.replica] = None
        self.bytes_fetched += written
        if partition.is_adding(self._node_id):
            self.reassignment_bytes += written
        return written

    def _take_failure(self, followed: Followed, answer: PartitionData, error: KafkaError | DiskError) -> None:
        """Handle an error in the answer for one partition, or an error in applying the answer to its log."""
        partition, log = followed.partition, followed.partition.log
        if followed.failures in (0, 10, 100, 1000):
            self._log.error(
                "replication.not_appended",
                topic=log.topic,
                partition=log.partition,
                leader=self.leader_id,
                offset=log.log_end_offset,
                failures=followed.failures + 1,
                error=str(error),
            )
        if (
            answer.diverging_epoch.end_offset >= 0
            and isinstance(error, KafkaError)
            and error.code == ErrorCode.CORRUPT_MESSAGE
        ):
            reached("rot.suspected_at_divergence")
            partition.suspect(answer.diverging_epoch.end_offset)

    def _truncate(self, followed: Followed, offset: int) -> None:
        """Truncate the log at `offset`, up to which it agrees with the leader's log. Raises the errors of
        `PartitionLog.truncate_to`.
        """
        log = followed.partition.log
        reached("replication.log_cut")
        end_offset, high_watermark = log.log_end_offset, log.high_watermark
        log.truncate_to(offset)
        level = self._log.warning if offset < high_watermark else self._log.info
        level(
            "replication.truncated",
            topic=log.topic,
            partition=log.partition,
            leader=self.leader_id,
            leader_epoch=followed.leader_epoch,
            log_end_offset=log.log_end_offset,
            before=end_offset,
            high_watermark=high_watermark,
        )

    def _take_error(self, followed: Followed, code: ErrorCode) -> None:
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            reached("replication.end_out_of_range")
            self._out_of_range.append(followed)
            self._changed[followed.replica] = None
            return
        if code not in _EXPECTED:
            log = followed.partition.log
            self._log.warning(
                "replication.refused",
                topic=log.topic,
                partition=log.partition,
                leader=self.leader_id,
                error=code.name,
            )
        self._back_off(followed)

    # -- offsets outside the leader's log -------------------------------------------------------------------------

    async def _settle_ranges(self) -> None:
        """Truncate or restart the logs whose end lies outside the leader's log (Kafka's
        `fetchOffsetAndTruncate`).
        """
        lost, self._out_of_range = self._out_of_range, []
        ends = await self._offsets(lost, LATEST)
        starts = await self._offsets(lost, EARLIEST)
        for followed in lost:
            partition, log = followed.partition, followed.partition.log
            end, start = ends.get(followed.replica), starts.get(followed.replica)
            if (
                self.followed.get(followed.replica) is not followed
                or partition.leader_epoch != followed.leader_epoch
                or partition.is_leader
            ):
                continue
            if end is None or start is None:
                reached("replication.ranges_unknown")
                self._back_off(followed)
                continue
            try:
                if log.offline:
                    raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the follower's disk does not answer")
                if end < log.log_end_offset:
                    self._truncate(followed, end)
                elif start > log.log_end_offset:
                    reached("replication.log_begun_anew")
                    self._begin_anew(log, start)
                else:
                    reached("replication.range_came_back")
                    # The leader's log has changed meanwhile, or the logs differ in a way that truncation does not
                    # repair.
                    self._back_off(followed)
            except (KafkaError, DiskError) as error:
                self._log.error(
                    "replication.not_truncated", topic=log.topic, partition=log.partition, error=str(error)
                )
            if self.followed.get(followed.replica) is followed:
                self._changed[followed.replica] = None

    def _begin_anew(self, log: PartitionLog, start: int) -> None:
        """Remove all records of a log and let it begin at `start`, because the leader's log begins beyond the
        end of this log. Raises `DiskError`.
        """
        self._log.warning(
            "replication.begun_anew",
            topic=log.topic,
            partition=log.partition,
            log_end_offset=log.log_end_offset,
            leader_log_start_offset=start,
        )
        log.truncate_fully_and_start_at(start)

    async def _offsets(self, lost: list[Followed], timestamp: int) -> dict[TopicIdPartition, int]:
        """Request the leader's first or last offsets of these partitions by ListOffsets. Partitions with an
        error are missing in the result.
        """
        found: dict[TopicIdPartition, int] = {}
        for begin in range(0, len(lost), PARTITIONS_MAX):
            found.update(await self._offsets_of_part(lost[begin : begin + PARTITIONS_MAX], timestamp))
        return found

    async def _offsets_of_part(self, lost: list[Followed], timestamp: int) -> dict[TopicIdPartition, int]:
        topics: dict[str, ListOffsetsTopic] = {}
        ids: dict[str, bytes] = {}
        for followed in lost:
            topic_id, index = followed.replica
            name = followed.partition.log.topic
            ids[name] = topic_id
            topic = topics.setdefault(name, ListOffsetsTopic(name, []))
            topic.partitions.append(ListOffsetsPartition(index, followed.leader_epoch, timestamp))
        request = ListOffsetsRequest(self._node_id, 0, list(topics.values()))
        await self._connection.send(request, LIST_OFFSETS_VERSION, 0, self._clock.monotonic())
        response = await self._connection.answer()
        assert isinstance(response, ListOffsetsResponse)
        return {
            TopicIdPartition(ids[topic.name], answer.partition_index): answer.offset
            for topic in response.topics
            for answer in topic.partitions
            if not answer.error_code and topic.name in ids
        }

    @property
    def lag_max(self) -> int:
        """The largest lag, in records, of the replicas that follow this leader."""
        return max((followed.lag for followed in self.followed.values()), default=0)

    def statistics(self) -> dict[str, Any]:
        """Return the leader's id, the numbers of partitions followed and backing off, and the rounds and
        bytes since the start.
        """
        return {
            "leader": self.leader_id,
            "partitions": len(self.followed),
            "backing_off": len(self._waiting),
            "is_connected": self._connection.is_open,
            "rounds": self.rounds,
            "bytes_fetched": self.bytes_fetched,
        }


def parts_below_the_start(log: PartitionLog, records: memoryview, leader_log_start_offset: int) -> bool:
    """True if the leader's first batch begins before this log's end, because records were deleted up to the
    middle of that batch.

    Then the logs diverge below the leader's start, where the leader no longer knows any epoch.
    """
    end_offset = log.log_end_offset
    if end_offset != leader_log_start_offset or end_offset == log.log_start_offset:
        return False
    header = parse_header(records)
    if not header.base_offset < end_offset <= header.last_offset:
        return False
    reached("replication.first_batch_cut_in_the_middle")
    return True
