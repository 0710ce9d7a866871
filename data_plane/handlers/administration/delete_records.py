"""DeleteRecords: raise the log start offset of partitions that this broker leads (KIP-107)."""

from __future__ import annotations

from odradek.data_plane.handlers.desk import Desk
from odradek.data_plane.replication.partition import Partition
from odradek.data_plane.replication.served_partitions import ServedPartitions
from odradek.metadata_quorum.topic_names import INTERNAL_TOPICS
from odradek.named_states import reached
from odradek.serving.contract import Context, Delayed, Result
from odradek.serving.steps import Work, in_slices
from odradek.serving.timers import Timer
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

HIGH_WATERMARK = -1
NO_OFFSET = -1


OWN_DISK_SECONDS_MIN = 2.0
"""The shortest wait for this broker's own checkpoint, in seconds, even if the request allows less. (Kafka
does not wait for its own checkpoint.)
"""


class DelayedDelete(Delayed):
    """The delayed answer of a DeleteRecords request.

    The log start offsets are raised in memory at once. The answer waits until the checkpoints of all live
    replicas have the new offsets.
    """

    __slots__ = ("delete_response", "desk", "is_late", "own_disk_until", "partitions", "pending", "timer")

    def __init__(
        self,
        desk: Desk,
        partitions: ServedPartitions,
        response: DeleteRecordsResponse,
        pending: list[tuple[Partition, int, DeleteRecordsPartitionResult]],
        timeout_ms: int,
    ) -> None:
        super().__init__()
        self.desk = desk
        self.partitions = partitions
        self.delete_response = response
        self.pending = pending
        self.is_late = False
        """True once the request's timeout is over. From then on only this broker's own checkpoint is awaited.
        """
        now = desk.clock.monotonic()
        self.own_disk_until = now + OWN_DISK_SECONDS_MIN
        self.timer: Timer = desk.timers.at(now + timeout_ms / 1000, self._time_out)
        for partition, _, _ in pending:
            partition.waiting.watch(self.check)

    def check(self) -> None:
        still_pending = []
        for waiting in self.pending:
            partition, offset, answer = waiting
            if not partition.is_leader:
                answer.low_watermark = NO_OFFSET
                answer.error_code = self.partitions.lost_error(partition)
            elif partition.low_watermark >= offset:
                answer.low_watermark = partition.low_watermark
            elif self.is_late and partition.log.stored_start_offset >= offset:
                _refuse(answer)
            else:
                still_pending.append(waiting)
                continue
            partition.waiting.unwatch(self.check)
        self.pending = still_pending
        if not still_pending and self.response is None:
            self.timer.cancel()
            self.complete(self.delete_response)

    def _time_out(self) -> None:
        if not self.is_late and self.desk.clock.monotonic() < self.own_disk_until:
            reached("delete_records.waited_for_own_disk")
            self.is_late = True
            self.timer = self.desk.timers.at(self.own_disk_until, self._time_out)
            self.check()
            return
        for _, _, answer in self.pending:
            _refuse(answer)
        self._forget()
        if self.response is None:
            self.complete(self.delete_response)

    def _forget(self) -> None:
        for partition, _, _ in self.pending:
            partition.waiting.unwatch(self.check)
        self.pending = []

    def abandon(self) -> None:
        self.timer.cancel()
        self._forget()


def _refuse(answer: DeleteRecordsPartitionResult) -> None:
    answer.low_watermark = NO_OFFSET
    answer.error_code = ErrorCode.REQUEST_TIMED_OUT


class DeleteRecordsHandler:
    """Handler of DeleteRecords (API 21). Records below the new log start offset are never served again, even
    after restarts. The next run of retention removes segments that are wholly below the new offset.

    The low watermark is the lowest log start offset in the checkpoints of all live replicas. The next answer
    to each follower's fetch contains the new offset. The follower then raises its own log start offset, and
    reports it in a later fetch. The answer waits for the followers for `timeout_ms` at most.
    """

    def __init__(self, desk: Desk, partitions: ServedPartitions) -> None:
        self._desk = desk
        self._partitions = partitions

    def handle(self, context: Context, request: DeleteRecordsRequest) -> Result:
        # As in Kafka, the last of several entries about one partition is used.
        asked: dict[str, dict[int, int]] = {}
        for topic in request.topics:
            for partition in topic.partitions:
                asked.setdefault(topic.name, {})[partition.partition_index] = partition.offset
        return in_slices(self._desk.long_work, self._delete_all(asked, request.timeout_ms))

    def _delete_all(
        self, asked: dict[str, dict[int, int]], timeout_ms: int
    ) -> Work[DeleteRecordsResponse | DelayedDelete]:
        pending: list[tuple[Partition, int, DeleteRecordsPartitionResult]] = []
        results = []
        for name, offsets in asked.items():
            answers = []
            for index, offset in offsets.items():
                answers.append(self._delete(name, index, offset, pending))
                yield 1
            results.append(DeleteRecordsTopicResult(name, answers))
        response = DeleteRecordsResponse(0, results)
        if not pending:
            return response
        delayed = DelayedDelete(self._desk, self._partitions, response, pending, timeout_ms)
        # Check now, because followers may have caught up before `delayed` began to watch them.
        delayed.check()
        return delayed

    def _delete(
        self,
        topic: str,
        index: int,
        offset: int,
        pending: list[tuple[Partition, int, DeleteRecordsPartitionResult]],
    ) -> DeleteRecordsPartitionResult:
        try:
            partition, start = self._raise_log_start(topic, index, offset)
        except KafkaError as error:
            return DeleteRecordsPartitionResult(index, NO_OFFSET, error.code)
        low_watermark = partition.low_watermark
        answer = DeleteRecordsPartitionResult(index, low_watermark, ErrorCode.NONE)
        if low_watermark < start:
            pending.append((partition, start, answer))
        return answer

    def _raise_log_start(self, topic: str, index: int, offset: int) -> tuple[Partition, int]:
        """Raise the log start offset of one partition.

        Returns the partition and the new offset. The low watermark must reach this offset. Raises `KafkaError`;
        the order of checks is Kafka's.
        """
        if self._desk.image.partition(topic, index) is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if topic in INTERNAL_TOPICS:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION)
        partition = self._partitions.find(topic, index)
        if not partition.is_leader:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        log = partition.log
        if not log.config.deletes_by_retention:
            raise KafkaError(ErrorCode.POLICY_VIOLATION)
        if offset == HIGH_WATERMARK:
            offset = log.high_watermark
        if not 0 <= offset <= log.high_watermark:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        partition.delete_records(offset)
        return partition, offset
