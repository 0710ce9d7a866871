"""A broker with one replica of the simulated partition, without the product's IO layers. PURE.

`Partition`, the log on its simulated disk and both ends of fetch sessions are the product's. This module takes the
place of the product's `LeaderFetcher` and Fetch handler, and calls these parts as they would.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from random import Random
from typing import Protocol, TypeVar

import attrs

from odradek.data_plane.fetch_sessions import FetchedPartition, FetchSessions
from odradek.data_plane.log.loading import LoadOptions, open_partition_log
from odradek.data_plane.log.log_config import LogConfig
from odradek.data_plane.log.log_types import Origin
from odradek.data_plane.log.partition_log import PartitionLog
from odradek.data_plane.replication.following.follower_fetch_session import Position, ReplicaFetchSession
from odradek.data_plane.replication.partition import Partition
from odradek.data_plane.replication.truncation import truncation_offset
from odradek.env.ports import Dir, DiskError
from odradek.metadata_quorum.image.metadata_image import PartitionImage
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.fetch import FetchRequest, ReplicaState
from odradek.wire.topic_partition import TopicIdPartition
from sim.history import SafetyViolation
from sim.machine.disk import SimDisk

T = TypeVar("T")

TOPIC_ID = bytes(range(1, 17))
ROOT = "data"
LAG_MS_MAX = 1000
START_MS = 1_700_000_000_000
BATCH_BYTES_MAX = 1 << 20

__all__ = ["BATCH_BYTES_MAX", "START_MS", "Answer", "Broker", "Fetching", "Image", "Surroundings"]

Image = tuple[PartitionImage, Mapping[int, tuple[int, bool]]]
"""The partition's metadata, and the state of each broker by id: (broker epoch, True if the broker is unfenced)."""


class Surroundings(Protocol):
    """The parts of the schedule that a broker uses."""

    random: Random
    now_ms: int
    config: LogConfig
    """The topic's configuration."""
    remembers: bool
    """True if brokers keep a checkpoint of recovery points, so that a start loads older producer snapshots."""
    images: list[Image]
    """The metadata images that the controller has published, oldest first."""
    nodes: dict[int, Broker]

    def propose(self, node: Broker) -> None:
        """Send the leader's pending ISR change to the controller."""


@attrs.define(eq=False)
class Fetching:
    """A Fetch request of a follower: on its way to the leader, at the leader, or answered."""

    follower: int
    life: int
    leader: int
    connection: int
    request: FetchRequest
    told: Position | None
    answer: tuple[ErrorCode, Answer | None, int] | None = None
    """(session error, answer for the partition or None if unchanged, session id); None before the leader has answered.
    """


@attrs.frozen
class Answer:
    """A leader's answer for one partition to a follower's Fetch."""

    error: ErrorCode = ErrorCode.NONE
    diverging: tuple[int, int] | None = None
    high_watermark: int = -1
    log_start_offset: int = 0
    records: bytes = b""


class _LogDir:
    """`odradek.data_plane.log.log_types.LogOwner` of a broker's log. It keeps the recovery point in memory, in place
    of a checkpoint file.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.small_files: AbstractContextManager[object] = nullcontext()

    def change(
        self, work: Callable[[], T], end: Callable[[T], None], failed: Callable[[Exception], None]
    ) -> None:
        """Do the work at once, since simulated disks of these schedules never hang."""
        end(work())

    def recovery_point_lowered(self, topic: str, partition: int, offset: int) -> None:
        """Called before synced bytes from this offset on are rewritten. Lowers the recovery point in the checkpoint."""
        broker = self._broker
        broker.recovery_point_kept = min(broker.recovery_point_kept, offset)

    def cleaner_offset_moved(self, topic: str, partition: int, *, durably: bool) -> None:
        """Do nothing: these schedules have no log cleaner."""

    def remove_later(self, topic: str, partition: int, directory: Dir, names: list[str]) -> None:
        """Remove the files at once."""
        for name in names:
            directory.remove(name)

    def disk_failed(self, error: DiskError) -> None:
        raise error

    flush_failed = disk_refused = disk_failed

    def resources_short(self) -> None:
        """Do nothing: these schedules have no shortage of resources."""

    def log_start_raised(self) -> None:
        """Do nothing: no record is deleted in these schedules."""

    def log_rolled(self, topic: str, partition: int) -> None:
        """Do nothing: a finished segment is flushed with the whole log."""

    def sync_entry(self) -> None:
        """Do nothing: the log is in a root directory, whose own entry is durable."""


class Broker:
    """A broker with one replica: its disk and, while its process runs, its log and partition."""

    def __init__(self, node_id: int, around: Surroundings) -> None:
        self.node_id = node_id
        self._around = around
        self.disk = SimDisk(Random(f"{around.random.random()}"), wall_ms=lambda: START_MS)
        self.disk.open_dir(ROOT, create=True).sync()
        self.life = 0
        self.lives = False
        self.broker_epoch = -1
        self.images_seen = 0
        self.synced = 0
        """The recovery point at the last power loss. The next start must find all records below this offset."""
        self.high_watermark_kept = 0
        """The high watermark in the checkpoint; it may be older than the real one."""
        self.recovery_point_kept = 0
        """The recovery point in the checkpoint; it may be older than the real one."""
        self.stopped_cleanly = False
        self.fetching: Fetching | None = None
        self.connection = 0

    def start(self) -> None:
        """Start a process on the present contents of the disk. Raises `SafetyViolation` if synced records are missing."""
        self.life += 1
        self.lives = True
        options = LoadOptions(
            is_clean=self.stopped_cleanly,
            recovery_point=self.recovery_point_kept,
            high_watermark=self.high_watermark_kept,
            now_ms=START_MS,
        )
        self.stopped_cleanly = False
        directory = self.disk.open_dir(ROOT, create=True)
        self.log: PartitionLog = open_partition_log(
            directory, "t", 0, self._around.config, _LogDir(self), options
        )
        if self.log.log_end_offset < self.synced:
            raise SafetyViolation(
                f"{self.node_id} had synced the records below {self.synced}, but its log ends at {self.log.log_end_offset}"
            )
        self.synced = 0
        self.partition = Partition(self.log, self)
        self.sessions = FetchSessions(100, 120_000, Random(f"{self.node_id}/{self.life}"))
        self.session = ReplicaFetchSession()
        self.followed_epoch = -1
        self.fetching = None
        self.images_seen = 0

    def die(self, *, power: bool) -> None:
        """End the process. With `power` the machine loses power and perhaps unsynced bytes."""
        self.lives = False
        if self._around.random.random() < 0.7:
            self.high_watermark_kept = self._around.random.randint(
                min(self.high_watermark_kept, self.log.high_watermark), self.log.high_watermark
            )
        if power:
            self.synced = self.log.recovery_point
        self.keep_recovery_point()
        self.partition.resign()
        self.disk.crash("random" if power else "all")

    def keep_recovery_point(self) -> None:
        """Write the recovery point to the checkpoint, with probability 0.5 if the plan has checkpoints."""
        if self._around.remembers and self._around.random.random() < 0.5:
            self.recovery_point_kept = self.log.recovery_point

    def stop(self) -> None:
        """Shut down cleanly: close the log, so that the next start skips its recovery."""
        self.lives = False
        self.partition.resign()
        self.log.close()
        self.high_watermark_kept, self.recovery_point_kept = (
            self.log.high_watermark,
            self.log.recovery_point,
        )
        self.stopped_cleanly = True
        self.disk.crash("all")

    # -- PartitionCluster: answers from the newest metadata that this broker has received ----------

    @property
    def lag_ms_max(self) -> int:
        return LAG_MS_MAX

    def now_ms(self) -> int:
        return self._around.now_ms

    @property
    def _brokers(self) -> Mapping[int, tuple[int, bool]]:
        return self._around.images[self.images_seen - 1][1] if self.images_seen else {}

    def is_eligible(self, broker_id: int, broker_epoch: int, directory: bytes) -> bool:
        return self._brokers.get(broker_id) == (broker_epoch, True)

    def is_troubled(self, directory: bytes) -> bool:
        return False

    def registered_epoch(self, broker_id: int) -> int:
        return self._brokers.get(broker_id, (-1, False))[0]

    def is_alive(self, broker_id: int) -> bool:
        return self._brokers.get(broker_id, (-1, False))[1]

    def alter_isr(self, partition: Partition) -> None:
        self._around.propose(self)

    def suspect(self, partition: Partition, offset: int) -> None:
        """Ignore the suspicion: all replicas of these schedules are sound."""

    def sync(self, partition: Partition, ended: Callable[[], None]) -> None:
        """Flush the log at once."""
        partition.log.flush()
        ended()

    # --- the follower's side

    def next_fetch(self) -> Fetching | None:
        """Make the next Fetch to the leader. Returns None while a Fetch is unanswered, or if there is no other leader."""
        image = self.partition.image
        if self.fetching is not None or image is None or self.partition.is_leader or image.leader < 0:
            return None
        if self.followed_epoch != self.partition.leader_epoch:
            self.break_off()
            self.followed_epoch = self.partition.leader_epoch
        log, replica = self.log, TopicIdPartition(TOPIC_ID, 0)
        told = (log.log_end_offset, self.followed_epoch, log.epochs.latest, log.log_start_offset)
        session_epoch = self.session.epoch
        topics, forgotten, *_ = self.session.next_request([(replica, told)], [], BATCH_BYTES_MAX)
        request = FetchRequest(
            replica_state=ReplicaState(self.node_id, self.broker_epoch),
            session_id=self.session.session_id,
            session_epoch=session_epoch,
            topics=topics,
            forgotten_topics_data=forgotten,
        )
        self.fetching = Fetching(
            self.node_id,
            self.life,
            image.leader,
            self.connection,
            request,
            self.session.requested.get(replica),
        )
        return self.fetching

    def break_off(self) -> None:
        """Drop the connection to the leader, and start a new fetch session."""
        self.connection += 1
        self.session.begin()
        self.fetching = None

    def take(self, fetching: Fetching, answer: Answer | None, session_id: int, code: ErrorCode) -> None:
        """Apply the answer to a Fetch, as `LeaderFetcher` does."""
        self.fetching = None
        if code:
            self.session.begin()
            return
        self.session.answered(session_id)
        log, partition = self.log, self.partition
        wanted = (log.log_end_offset, self.followed_epoch, log.epochs.latest, log.log_start_offset)
        if answer is None or fetching.told != wanted or partition.leader_epoch != self.followed_epoch:
            return
        if partition.is_leader:
            return
        if answer.error is ErrorCode.OFFSET_OUT_OF_RANGE:
            self._fetch_offset_and_truncate(fetching.leader)
        elif answer.error:
            self.break_off()
        elif answer.diverging is not None:
            log.truncate_to(truncation_offset(log.epochs, log.log_end_offset, *answer.diverging))
        else:
            if answer.records:
                log.append(memoryview(answer.records), Origin.REPLICA, self.followed_epoch, START_MS)
            partition.follow(answer.high_watermark, answer.log_start_offset)

    def _fetch_offset_and_truncate(self, leader: int) -> None:
        """Truncate the log as Kafka's `fetchOffsetAndTruncate` does. The requests to the leader take no virtual time
        here.
        """
        there = self._around.nodes[leader]
        if there.lives and there.partition.leader_error(self.followed_epoch) is ErrorCode.NONE:
            if there.log.log_end_offset < self.log.log_end_offset:
                self.log.truncate_to(there.log.log_end_offset)
            elif there.log.log_start_offset > self.log.log_end_offset:
                self.log.truncate_fully_and_start_at(there.log.log_start_offset)

    # --- the leader's side

    def serve(self, fetching: Fetching) -> tuple[ErrorCode, Answer | None, int]:
        """Answer a Fetch as the leader. Returns (session error, answer for the partition or None if unchanged, session
        id).
        """
        request = fetching.request
        plan = self.sessions.plan(request, by_id=True, now_ms=START_MS + self.now_ms())
        if plan.error:
            return plan.error, None, 0
        for fetched in plan.partitions:
            return ErrorCode.NONE, self._read(fetched, request.replica_state), plan.session_id
        return ErrorCode.NONE, None, plan.session_id

    def _read(self, fetched: FetchedPartition, replica: ReplicaState) -> Answer:
        """Answer a follower's fetch of the partition, with the checks of the product's Fetch handler in the same
        order.
        """
        partition, log = self.partition, self.log
        code = partition.leader_error(fetched.current_leader_epoch)
        if code:
            return Answer(code)
        if fetched.last_fetched_epoch >= 0:
            epoch, end_offset = log.end_offset_for_epoch(fetched.last_fetched_epoch)
            if epoch < 0:
                return Answer(ErrorCode.OFFSET_OUT_OF_RANGE)
            if epoch < fetched.last_fetched_epoch or end_offset < fetched.fetch_offset:
                return Answer(diverging=(epoch, end_offset))
        try:
            follower = partition.followers.sender(replica.replica_id, fetched.current_leader_epoch >= 0)
            if log.log_start_offset <= fetched.fetch_offset <= log.log_end_offset:
                partition.note_fetch(
                    follower,
                    replica.replica_epoch,
                    fetched.fetch_offset,
                    fetched.log_start_offset,
                    self.now_ms(),
                )
            bytes_max = self._around.random.choice((1, 300, BATCH_BYTES_MAX))
            data = log.read_bytes(
                fetched.fetch_offset, bytes_max, upper_bound=log.log_end_offset, min_one=True
            )
        except KafkaError as error:
            return Answer(error.code)
        return Answer(high_watermark=log.high_watermark, log_start_offset=log.log_start_offset, records=data)
