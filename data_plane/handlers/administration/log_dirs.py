"""DescribeLogDirs and AlterReplicaLogDirs (KIP-113): replicas' sizes and directories, the health of disks, the
state of cleaning, moves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from odradek.data_plane.disks.replica_moves import Move
from odradek.data_plane.disks.scrubber import Scrubber
from odradek.data_plane.handlers.desk import Desk
from odradek.data_plane.hosted_partitions import ReplicaDisks
from odradek.data_plane.log.cleaning.log_views import view_of
from odradek.data_plane.log.cleaning.plan import plan_log
from odradek.data_plane.log.directory.log_dir import LogDir
from odradek.data_plane.log.log_config import LONG_MAX
from odradek.data_plane.log.partition_log import PartitionLog
from odradek.data_plane.replication.served_partitions import ServedPartitions
from odradek.serving.contract import Context, Result
from odradek.serving.steps import Work, in_slices
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)
from odradek.wire.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
    DiskHealth,
    LogCleaning,
)

Wanted = dict[str, set[int]]


class DescribeLogDirsHandler:
    """Handler of DescribeLogDirs (API 35).

    The answer is built from memory, so that a hung disk cannot delay it. Odradek's own clients may also
    request the state of log cleaning, in fields that other clients do not know.
    """

    def __init__(self, desk: Desk, disks: ReplicaDisks, scrubber: Scrubber) -> None:
        self._desk = desk
        self._disks = disks
        self._scrubber = scrubber

    def handle(self, context: Context, request: DescribeLogDirsRequest) -> Result:
        wanted = None if request.topics is None else _wanted(request.topics)
        return in_slices(self._desk.long_work, self._describe_all(wanted, request.include_cleaning))

    def _describe_all(self, wanted: Wanted | None, include_cleaning: bool) -> Work[DescribeLogDirsResponse]:
        now_ms = self._desk.clock.wall_ms() if include_cleaning else None
        placement = self._disks.placement
        results = []
        for log_dir in placement.log_dirs:
            moving_in = self._disks.moves.in_directory(log_dir)
            answer = yield from _describe(log_dir, moving_in, wanted, placement.cordoned, now_ms)
            if include_cleaning and (log_dir.offline_reason is None or log_dir.is_released):
                answer.health = _health(log_dir, self._scrubber.statistics()[log_dir.path])
            results.append(answer)
        results += [_offline(path) for path in placement.unavailable]
        return DescribeLogDirsResponse(0, ErrorCode.NONE, results)


def _offline(path: str) -> DescribeLogDirsResult:
    return DescribeLogDirsResult(ErrorCode.KAFKA_STORAGE_ERROR, path, [], -1, -1)


def _wanted(topics: list[DescribableLogDirTopic]) -> Wanted:
    wanted: Wanted = {}
    for topic in topics:
        wanted.setdefault(topic.topic, set()).update(topic.partitions)
    return wanted


def _describe(
    log_dir: LogDir,
    moving_in: Iterable[Move],
    wanted: Wanted | None,
    cordoned: Collection[bytes],
    now_ms: int | None,
) -> Work[DescribeLogDirsResult]:
    if log_dir.offline_reason is not None:
        return _offline(log_dir.path)
    topics: dict[str, list[DescribeLogDirsPartition]] = {}
    for (topic, index), log in sorted(log_dir.logs.items()):
        yield 1
        if wanted is None or index in wanted.get(topic, ()):
            lag = max(0, log.high_watermark - log.log_end_offset)
            answer = DescribeLogDirsPartition(index, log.size_bytes, lag, False)
            if now_ms is not None and log.config.is_compacted:
                answer.cleaning = _cleaning(log, now_ms)
                yield len(log.segments)
            topics.setdefault(topic, []).append(answer)
    for move in moving_in:
        topic, index = move.partition.log.topic, move.partition.log.partition
        yield 1
        if wanted is None or index in wanted.get(topic, ()):
            answer = DescribeLogDirsPartition(index, move.size_bytes, move.lag, True)
            topics.setdefault(topic, []).append(answer)
    space = log_dir.space
    return DescribeLogDirsResult(
        ErrorCode.NONE,
        log_dir.path,
        [DescribeLogDirsTopic(name, partitions) for name, partitions in topics.items()],
        space.total_bytes,
        space.free_bytes,
        log_dir.directory_id in cordoned,
    )


def _health(log_dir: LogDir, scrub: Mapping[str, float]) -> DiskHealth:
    """Describe the state of a disk, from what the broker knows in memory."""
    room, latency = log_dir.room, log_dir.latency
    hours = log_dir.hours_left
    return DiskHealth(
        reserve_bytes=room.reserve_bytes,
        is_short=room.is_short,
        fill_bytes_per_second=round(room.fill_bytes_per_second),
        seconds_left=-1 if hours is None else round(min(hours * 3600, LONG_MAX)),
        sync_us=round(latency.recent_seconds * 1e6),
        usual_sync_us=round(latency.usual_seconds * 1e6),
        is_slow=latency.is_slow,
        is_stalled=log_dir.is_stalled,
        errors=log_dir.errors,
        scrub_percent=int(scrub["progress"] * 100),
        scrub_ended_ms=int(scrub["ended_ms"]),
        scrub_rotten=int(scrub["rotten"]),
        is_released=log_dir.is_let_go,
    )


def _cleaning(log: PartitionLog, now_ms: int) -> LogCleaning:
    """Describe the state of a compacted log: what the cleaner would do now, and what its last pass did."""
    plan, state = plan_log(view_of(log), now_ms), log.cleaning
    answer = LogCleaning(
        first_dirty_offset=plan.first_dirty_offset,
        clean_bytes=plan.clean_bytes,
        dirty_bytes=plan.dirty_bytes,
        is_under_way=state.token is not None,
        uncleanable_reason=state.uncleanable_reason,
    )
    if state.last_pass is not None:
        answer.last_pass_ended_ms = state.last_pass.ended_ms
        answer.last_pass_ms = round(1000 * state.last_pass.seconds)
        answer.last_pass_bytes_before = state.last_pass.bytes_before
        answer.last_pass_bytes_after = state.last_pass.bytes_after
    return answer


class AlterReplicaLogDirsHandler:
    """Handler of AlterReplicaLogDirs (API 34).

    If this broker has no replica of an existing partition, it remembers the named directory for a later
    replica. The answer then is REPLICA_NOT_AVAILABLE, as in Kafka.
    """

    def __init__(self, desk: Desk, disks: ReplicaDisks, partitions: ServedPartitions) -> None:
        self._desk = desk
        self._disks = disks
        self._partitions = partitions

    def handle(self, context: Context, request: AlterReplicaLogDirsRequest) -> Result:
        # If a partition is named under several directories, the last one is used.
        paths: dict[str, dict[int, str]] = {}
        for entry in request.dirs:
            for topic in entry.topics:
                for index in topic.partitions:
                    paths.setdefault(topic.name, {})[index] = entry.path
        return in_slices(self._desk.long_work, self._move_all(paths))

    def _move_all(self, paths: dict[str, dict[int, str]]) -> Work[AlterReplicaLogDirsResponse]:
        results = []
        for name, targets in paths.items():
            checked = []
            for index, path in targets.items():
                checked.append(AlterReplicaLogDirPartitionResult(index, self._move(name, index, path)))
                yield 1
            results.append(AlterReplicaLogDirTopicResult(name, checked))
        self._disks.moves.sync_given_up()
        return AlterReplicaLogDirsResponse(0, results)

    def _move(self, topic: str, index: int, path: str) -> ErrorCode:
        placement, moves, partitions = self._disks.placement, self._disks.moves, self._partitions
        try:
            moves.check_name(topic, index)
            target = next((log_dir for log_dir in placement.log_dirs if log_dir.path == path), None)
            if target is None:
                away = path in placement.unavailable
                return ErrorCode.KAFKA_STORAGE_ERROR if away else ErrorCode.LOG_DIR_NOT_FOUND
            if target.offline_reason is not None:
                return ErrorCode.KAFKA_STORAGE_ERROR
            if target.directory_id in placement.cordoned:
                # This is Kafka's rule for a cordoned directory (KIP-1066). It applies even to a replica that is
                # already in that directory.
                return ErrorCode.INVALID_REPLICA_ASSIGNMENT
            hosted = partitions.by_name.get(topic)
            partition = None if hosted is None else hosted.partitions.get(index)
            if partition is not None:
                moves.ask(partition, target)
                return ErrorCode.NONE
        except KafkaError as error:
            return error.code
        missing = partitions.missing_error(topic, index)
        if missing is ErrorCode.KAFKA_STORAGE_ERROR:
            return missing
        placement.prefer(topic, index, target.directory_id)
        return ErrorCode.REPLICA_NOT_AVAILABLE if missing is ErrorCode.NOT_LEADER_OR_FOLLOWER else missing
