"""Handlers of ListOffsets and OffsetForLeaderEpoch, and the turns in which searches by timestamp use a disk."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from odradek.data_plane.handlers.desk import Desk
from odradek.data_plane.log.segments.walked_times import WalkBudget
from odradek.data_plane.replication.partition import Partition
from odradek.data_plane.replication.served_partitions import ServedPartitions
from odradek.env.ports import DiskError, Event, FileClosed, Workers
from odradek.named_states import reached
from odradek.serving.contract import Context, Result, Suspend
from odradek.serving.steps import Work, in_slices, run_through
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from odradek.wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)
from odradek.wire.schema.versions import (
    LIST_OFFSETS_EARLIEST_LOCAL,
    LIST_OFFSETS_LATEST_TIERED,
    LIST_OFFSETS_MAX_TIMESTAMP,
    LIST_OFFSETS_NOT_AVAILABLE,
    LIST_OFFSETS_PENDING_UPLOAD,
)

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6
TIME_QUERIES_WAITING_MAX = 64
"""The most requests that may wait for one disk. A further request is refused, and its client repeats it
later.
"""
WALK_BYTES_MAX = 512 << 20
"""The most bytes of records that one request reads, over all its partitions, to check timestamps in batch
headers. This takes about a second.
"""
CONSUMER = -1
"""The replica id in requests of clients that are not replicas."""
DEBUGGER = -2
"""The replica id in requests of debuggers. Any replica answers them about its own log, even if it is a
follower or there is no leader.
"""
READ_UNCOMMITTED, READ_COMMITTED = 0, 1


class Turns:
    """Queues of requests that search a log by timestamp.

    On each disk one search runs at a time; further requests wait in the order of arrival. A search may
    decompress a whole batch and read its records while it holds the interpreter's lock. If two searches of a
    disk ran at once, they would end no earlier, and would delay all other threads.
    """

    def __init__(self, new_event: Callable[[], Event]) -> None:
        self._new_event = new_event
        self._waiting: dict[Workers, deque[Event]] = {}
        """The requests that wait, by the worker threads of a disk. An entry exists while a search runs on
        that disk.
        """

    async def wait(self, workers: Workers) -> None:
        """Wait until the caller may search this disk. After its search, the caller must call `pass_on`
        exactly once. Raises `KafkaError` if too many requests wait already.
        """
        waiting = self._waiting.get(workers)
        if waiting is None:
            self._waiting[workers] = deque()
            return
        if len(waiting) >= TIME_QUERIES_WAITING_MAX:
            raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE)
        turn = self._new_event()
        waiting.append(turn)
        try:
            await turn.wait()
        except BaseException:
            if turn.is_set():
                self.pass_on(workers)
            else:
                waiting.remove(turn)
            raise

    def pass_on(self, workers: Workers) -> None:
        """End the caller's search, and let the next waiting request search."""
        waiting = self._waiting[workers]
        if waiting:
            waiting.popleft().set()
        else:
            del self._waiting[workers]


class ListOffsetsHandler:
    """Handler of ListOffsets (API 2).

    Queries by timestamp read segments, so they run in worker threads. All other queries are answered at once.
    """

    def __init__(self, desk: Desk, partitions: ServedPartitions) -> None:
        self._desk = desk
        self._partitions = partitions
        self._turns = Turns(desk.env.event)

    def handle(self, context: Context, request: ListOffsetsRequest) -> Result:
        version = context.api_version
        if any(
            asked.timestamp >= 0 or asked.timestamp == MAX_TIMESTAMP
            for t in request.topics
            for asked in t.partitions
        ):
            workers = self._workers(request)

            async def off_loop() -> ListOffsetsResponse:
                try:
                    await self._turns.wait(workers)
                except KafkaError:
                    return self._refuse(request, _not_available(version).code)
                try:
                    return await workers.run(run_through, self._answer(request, version))
                finally:
                    self._turns.pass_on(workers)

            return Suspend(off_loop)
        return in_slices(self._desk.long_work, self._answer(request, version))

    def _refuse(self, request: ListOffsetsRequest, code: ErrorCode) -> ListOffsetsResponse:
        return ListOffsetsResponse(
            0,
            [
                ListOffsetsTopicResponse(topic.name, [_failed(asked, code) for asked in topic.partitions])
                for topic in request.topics
            ],
        )

    def _workers(self, request: ListOffsetsRequest) -> Workers:
        """Return the worker threads of one disk: the disk of the first known partition in the request."""
        partitions = self._partitions
        for topic in request.topics:
            hosted = partitions.by_name.get(topic.name)
            for asked in topic.partitions:
                partition = None if hosted is None else hosted.partitions.get(asked.partition_index)
                if partition is not None:
                    return partitions.workers_for(partition.log)
        return partitions.workers_of(None)

    def _answer(self, request: ListOffsetsRequest, version: int) -> Work[ListOffsetsResponse]:
        known = request.isolation_level in (READ_UNCOMMITTED, READ_COMMITTED)
        committed = request.isolation_level == READ_COMMITTED
        budget = WalkBudget(WALK_BYTES_MAX)
        asked_of: dict[str, dict[int, list[ListOffsetsPartition]]] = {}
        for topic in request.topics:
            for asked in topic.partitions:
                asked_of.setdefault(topic.name, {}).setdefault(asked.partition_index, []).append(asked)
        topics = []
        for name, partitions in asked_of.items():
            answers = []
            for asked, *again in partitions.values():
                yield 1
                if again:
                    answers.append(_failed(asked, ErrorCode.INVALID_REQUEST))
                elif not known:
                    answers.append(_failed(asked, ErrorCode.UNKNOWN_SERVER_ERROR))
                else:
                    answers.append(
                        self._answer_partition(name, asked, committed, version, request.replica_id, budget)
                    )
            topics.append(ListOffsetsTopicResponse(name, answers))
        return ListOffsetsResponse(0, topics)

    def _answer_partition(
        self,
        topic: str,
        asked: ListOffsetsPartition,
        committed: bool,
        version: int,
        replica_id: int,
        budget: WalkBudget,
    ) -> ListOffsetsPartitionResponse:
        try:
            partition = self._partitions.find(topic, asked.partition_index)
        except KafkaError as error:
            return _failed(asked, error.code)
        error_of = partition.epoch_error if replica_id == DEBUGGER else partition.leader_error
        code = error_of(asked.current_leader_epoch)
        if code:
            return _failed(asked, code)
        to_end = replica_id != CONSUMER
        try:
            timestamp, offset, epoch = find_offset(
                partition, asked.timestamp, committed, version, to_end, budget
            )
        except KafkaError as error:
            return _failed(asked, error.code)
        except FileClosed:
            reached("offsets.log_went_while_searched")
            # Return the error for a log that was deleted, moved or taken offline during the search.
            return _failed(asked, self._partitions.lost_error(partition))
        except DiskError as error:
            self._desk.disk_errors.note("list_offsets.disk_error", topic=topic, error=str(error))
            return _failed(asked, ErrorCode.KAFKA_STORAGE_ERROR)
        return ListOffsetsPartitionResponse(asked.partition_index, 0, timestamp, offset, epoch)


def find_offset(
    partition: Partition,
    timestamp: int,
    committed: bool,
    version: int,
    to_end: bool,
    budget: WalkBudget | None = None,
) -> tuple[int, int, int]:
    """Answer a query about one partition. Returns (timestamp, offset, leader epoch) of the first matching
    record, or (-1, -1, -1) if there is none. Queries for the start or end of the log return no timestamp
    (-1).

    `to_end` is true for a query from a replica or a debugger, which may see the log up to its end. `budget`
    bounds the bytes of records that are read only to check timestamps in batch headers.

    Raises:
        KafkaError: UNSUPPORTED_VERSION for a special timestamp that this version or node does not know.
            OFFSET_NOT_AVAILABLE (LEADER_NOT_AVAILABLE to older clients) while the high watermark of a new
            leader is behind the start of its epoch. So clients never see the log's end go backwards
            (KIP-207).
    """
    log = partition.log
    bound = log.high_watermark
    if committed and not to_end:
        bound = log.producers.stable_offset_in_worker(bound, log.log_start_offset)
    lags = not to_end and log.high_watermark < partition.epoch_start_offset
    if to_end:
        bound = log.log_end_offset
    if timestamp == LATEST:
        if lags:
            reached("offsets.latest_not_known_yet")
            raise _not_available(version)
        return -1, bound, partition.leader_epoch
    if timestamp == EARLIEST or (timestamp == EARLIEST_LOCAL and version >= LIST_OFFSETS_EARLIEST_LOCAL):
        epoch = log.epochs.epoch_for_offset(log.log_start_offset)
        return -1, log.log_start_offset, -1 if epoch is None else epoch
    if timestamp == LATEST_TIERED and version >= LIST_OFFSETS_LATEST_TIERED:
        return -1, -1, -1
    if timestamp == EARLIEST_PENDING_UPLOAD and version >= LIST_OFFSETS_PENDING_UPLOAD:
        return -1, -1, -1
    if timestamp == MAX_TIMESTAMP and version >= LIST_OFFSETS_MAX_TIMESTAMP:
        # The previous leader may have acknowledged a newer record, above this leader's high watermark. So
        # search up to the log's end while the high watermark lags.
        found = log.times(budget).offset_of_max_timestamp(log.log_end_offset if lags else bound)
        if lags and found is not None and found[1] >= bound:
            raise _not_available(version)
    elif timestamp >= 0:
        found = log.times(budget).offset_for_timestamp(timestamp, bound)
    else:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
    if found is None and lags:
        raise _not_available(version)
    return (-1, -1, -1) if found is None else found


def _not_available(version: int) -> KafkaError:
    return KafkaError(
        ErrorCode.OFFSET_NOT_AVAILABLE
        if version >= LIST_OFFSETS_NOT_AVAILABLE
        else ErrorCode.LEADER_NOT_AVAILABLE
    )


def _failed(asked: ListOffsetsPartition, code: ErrorCode) -> ListOffsetsPartitionResponse:
    return ListOffsetsPartitionResponse(asked.partition_index, code, -1, -1, -1)


class OffsetForLeaderEpochHandler:
    """Handler of OffsetForLeaderEpoch (API 23, KIP-320): the end offset of an epoch.

    Clients use it to detect that the log was truncated below their position.
    """

    def __init__(self, desk: Desk, partitions: ServedPartitions) -> None:
        self._desk = desk
        self._partitions = partitions

    def handle(self, context: Context, request: OffsetForLeaderEpochRequest) -> Result:
        return in_slices(self._desk.long_work, self._answer_all(request))

    def _answer_all(self, request: OffsetForLeaderEpochRequest) -> Work[OffsetForLeaderEpochResponse]:
        topics = []
        for topic in request.topics:
            answers = []
            for asked in topic.partitions:
                answers.append(self._answer(topic.topic, asked))
                yield 1
            topics.append(OffsetForLeaderTopicResult(topic.topic, answers))
        return OffsetForLeaderEpochResponse(0, topics)

    def _answer(self, topic: str, asked: OffsetForLeaderPartition) -> EpochEndOffset:
        try:
            partition = self._partitions.find(topic, asked.partition)
        except KafkaError as error:
            return EpochEndOffset(error.code, asked.partition, -1, -1)
        code = partition.leader_error(asked.current_leader_epoch)
        if code:
            return EpochEndOffset(code, asked.partition, -1, -1)
        epoch, end_offset = partition.log.end_offset_for_epoch(asked.leader_epoch)
        return EpochEndOffset(0, asked.partition, epoch, end_offset)
