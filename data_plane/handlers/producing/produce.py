"""Produce: validate, append, and answer when the acks that were asked for are there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from enum import Enum
from typing import Any

from data_plane.broker import Broker
from data_plane.handlers.leader_hints import leader_endpoints
from data_plane.handlers.producing.produce_rest import PARTITIONS_PER_TURN, ProduceRest
from data_plane.handlers.producing.producer_refusals import PRODUCER_ERRORS, ProducerRefusals
from data_plane.handlers.producing.recompression_on_append import Batch, are_quick, find_batches
from data_plane.log.batch_work import BatchWork, OffLoop
from data_plane.log.record_rules import RecordsRefused
from data_plane.replication.partition import Partition
from metadata_quorum.topic_names import INTERNAL_TOPICS
from odradek.env.ports import DiskError
from odradek.serving.contract import CLOSE, Context, Delayed, Suspend
from odradek.serving.timers import Timer
from wire.errors import ErrorCode, KafkaError
from wire.messages.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from wire.record_batch import parse_produced

ACKS_ALL = -1
TOPIC_IDS_SINCE = 13
LEADER_HINTS_SINCE = 10
ZSTD_SINCE = 7
ADMIN_CLIENT_ID = "__admin_client"
"""The one client that Kafka lets write to its internal topics."""


class _Outcome(Enum):
    GO_ON = "go on"


GO_ON = _Outcome.GO_ON

_WITHOUT_LOG_START = frozenset(
    (
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    )
)
_NO_ERRORS: list[Any] = []
_NO_LEADER = LeaderIdAndEpoch()
_NO_ENDPOINTS: list[NodeEndpoint] = []


class _Unacknowledged:
    """One partition's batch that waits for its in-sync replicas (an `AckWaiter`)."""

    __slots__ = ("answer", "last_offset", "partition", "produce")

    def __init__(
        self,
        produce: DelayedProduce,
        partition: Partition,
        last_offset: int,
        answer: PartitionProduceResponse,
    ) -> None:
        self.produce = produce
        self.partition = partition
        self.last_offset = last_offset
        self.answer = answer

    def acknowledged(self, code: ErrorCode) -> None:
        if code:
            _set_error(self.answer, code, None)
        self.produce.settle(self)

    def leadership_lost(self) -> None:
        self.produce.fail_for_leadership(self.partition, self.answer)
        self.produce.settle(self)


class DelayedProduce(Delayed):
    """Appended, but not yet acknowledged by enough replicas or not yet flushed."""

    __slots__ = (
        "broker",
        "is_queued",
        "listener",
        "pending",
        "produce_response",
        "timeout_ms",
        "timer",
        "unsynced",
    )

    keeps_request = False

    def __init__(
        self, broker: Broker, response: ProduceResponse, timeout_ms: int, listener: str | None = None
    ) -> None:
        """`listener` is the one to give leaders' addresses of; None where the version has no such field."""
        super().__init__()
        self.broker = broker
        self.listener = listener
        self.produce_response = response
        self.pending: list[_Unacknowledged] = []
        self.unsynced: list[tuple[Partition, PartitionProduceResponse]] = []
        self.is_queued = False
        """All that it waits for is known, so that the last answer completes it."""
        self.timeout_ms = timeout_ms
        self.timer: Timer | None = None
        """Set while it waits with all that it waits for known: Kafka's timeout begins behind the last append."""

    def wait_for_replicas(
        self, partition: Partition, last_offset: int, answer: PartitionProduceResponse
    ) -> None:
        waiter = _Unacknowledged(self, partition, last_offset, answer)
        self.pending.append(waiter)
        partition.wait_for_acks(waiter)

    def wait_for_sync(self, partition: Partition, answer: PartitionProduceResponse) -> None:
        entry = (partition, answer)
        self.unsynced.append(entry)

        def done(failure: KafkaError | None) -> None:
            self.unsynced = [other for other in self.unsynced if other is not entry]
            if failure is not None:
                _set_error(answer, failure.code, failure.message)
            elif not partition.is_leader:
                self.fail_for_leadership(partition, answer)
            if self.is_queued:
                self.check()

        self.broker.sync_partition(partition, done)

    def settle(self, waiter: _Unacknowledged) -> None:
        """One batch needs to wait no more."""
        self.pending.remove(waiter)
        if not self.pending and self.is_queued:
            self.check()

    def check(self) -> None:
        """Answer if nothing is left to wait for."""
        self.is_queued = True
        if self.pending or self.unsynced:
            if self.timer is None:
                deadline = self.broker.clock.monotonic() + self.timeout_ms / 1000
                self.timer = self.broker.timers.at(deadline, self._time_out)
        elif self.response is None:
            if self.timer is not None:
                self.timer.cancel()
            self.complete(self.produce_response)

    def fail_for_leadership(self, partition: Partition, answer: PartitionProduceResponse) -> None:
        """Deleted, on a disk that failed, or led elsewhere."""
        code = self.broker.lost_partition_error(partition)
        _set_error(answer, code, None)
        if code == ErrorCode.NOT_LEADER_OR_FOLLOWER and self.listener is not None:
            _name_leader(answer, partition)
            _add_leader_endpoints(self.broker, self.listener, self.produce_response)

    def _time_out(self) -> None:
        for waiter in self.pending:
            _set_error(waiter.answer, ErrorCode.REQUEST_TIMED_OUT, None)
        self._forget()
        for _, answer in self.unsynced:
            _set_error(answer, ErrorCode.REQUEST_TIMED_OUT, None)
        if self.response is None:
            self.complete(self.produce_response)

    def _forget(self) -> None:
        pending, self.pending = self.pending, []
        for waiter in pending:
            waiter.partition.forget_acks(waiter)

    def abandon(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        self._forget()


def _not_waited_for(failure: KafkaError | None) -> None:
    """Nobody has asked whether the flush went well; the log's directory knows."""


def _set_error(answer: PartitionProduceResponse, code: ErrorCode, message: str | None) -> None:
    """The first reason stays: a failed flush also ends the leadership, and a deadline knows less than either."""
    if answer.error_code:
        return
    answer.error_code = code
    answer.error_message = message
    answer.base_offset = -1
    answer.log_append_time_ms = -1
    answer.log_start_offset = -1


class ProduceHandler:
    """API 0. An error of one partition leaves the others alone."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._refusals = ProducerRefusals(broker.clock, broker.log)

    def handle(
        self,
        context: Context,
        request: ProduceRequest,
        may_recompress: bool = True,
        rest: ProduceRest | None = None,
    ) -> Any:
        """Append, or go on with the `rest`. `GO_ON` asks for another turn for it."""
        broker = self._broker
        if broker.recompressed_topics and may_recompress:
            batches = find_batches(broker, context, request)
            if batches:
                return self._recompress(context, request, batches)
        connection = context.note_append()
        acks = request.acks
        by_id = context.api_version >= TOPIC_IDS_SINCE
        now_ms = broker.clock.wall_ms()
        waiting: list[tuple[Partition, int, bool, PartitionProduceResponse]] | None = None
        responses: list[TopicProduceResponse] = []
        failed = False
        begun: list[PartitionProduceResponse] | None = None
        topics = request.topic_data
        work: BatchWork = broker.loop_work
        left = PARTITIONS_PER_TURN
        if rest is not None:
            responses, begun, failed = rest.responses, rest.answers, rest.failed
            topics = topics[len(responses) :]
        for topic in topics:
            hosted = broker.topics_by_id.get(topic.topic_id) if by_id else broker.topics.get(topic.name)
            is_coordinators = (
                hosted is not None
                and hosted.name in INTERNAL_TOPICS
                and not self._may_write_internal(context)
            )
            answers: list[PartitionProduceResponse] = []
            partitions = topic.partition_data
            if begun is not None:
                answers, begun = begun, None
                partitions = partitions[len(answers) :]
            for data in partitions:
                left -= 1
                if left < 0:
                    return self._go_on_later(context, request, rest, (responses, answers, waiting, failed))
                partition = None if hosted is None else hosted.partitions.get(data.index)
                if partition is None or not partition.is_leader or not -1 <= acks <= 1 or is_coordinators:
                    answers.append(self._refuse(topic, by_id, partition, data.index, acks))
                    failed = True
                    continue
                if acks == ACKS_ALL and not partition.has_min_isr:
                    answers.append(_error_answer(data.index, ErrorCode.NOT_ENOUGH_REPLICAS, None))
                    failed = True
                    continue
                log = partition.log
                try:
                    if data.records is None or context.api_version < ZSTD_SINCE:
                        parse_produced(data.records or b"", context.api_version)
                    if rest is not None:
                        work = rest.work_at(len(responses), len(answers))
                    result = partition.append_as_leader(data.records, now_ms, work)  # type: ignore[arg-type]  # a view, as decoded
                except OffLoop:
                    return self._go_on_later(context, request, rest, (responses, answers, waiting, failed))
                except KafkaError as error:
                    answers.append(_refused_batch(data, partition, error))
                    if error.code in PRODUCER_ERRORS and data.records is not None:
                        self._refusals.tell(context, log, data.records, error)
                    failed = True
                    # A batch may keep its error, whose frames hold all of the request: a circle until the next collection.
                    error.__traceback__ = None
                    continue
                except DiskError as error:
                    broker.disk_errors.tell(
                        "produce.disk_error", topic=log.topic, partition=log.partition, error=str(error)
                    )
                    answers.append(
                        _error_answer(
                            data.index,
                            ErrorCode.KAFKA_STORAGE_ERROR,
                            "Disk error when trying to write to the log",
                        )
                    )
                    failed = True
                    continue
                if broker.on_produced is not None:
                    broker.on_produced(connection, context.number, log, result)
                answer = PartitionProduceResponse(
                    data.index,
                    0,
                    result.base_offset,
                    result.log_append_time_ms,
                    log.log_start_offset,
                    _NO_ERRORS,
                    None,
                    _NO_LEADER,
                )
                answers.append(answer)
                must_sync = log.needs_flush
                if must_sync or (acks == ACKS_ALL and log.high_watermark <= result.last_offset):
                    if waiting is None:
                        waiting = []
                    waiting.append((partition, result.last_offset, must_sync, answer))
            responses.append(TopicProduceResponse(topic.name, topic.topic_id, answers))
        if acks == 0:
            self._sync_unanswered(waiting or ())
            return CLOSE if failed else None
        listener = context.listener if context.api_version >= LEADER_HINTS_SINCE else None
        delayed = None if rest is None else rest.delayed
        response = (
            ProduceResponse(responses, 0, _NO_ENDPOINTS) if delayed is None else delayed.produce_response
        )
        if listener is not None and (failed or delayed is not None):
            _add_leader_endpoints(broker, listener, response)
        if delayed is None:
            if waiting is None:
                return response
            delayed = DelayedProduce(broker, response, request.timeout_ms, listener)
        self._wait(delayed, waiting or (), acks)
        delayed.check()
        return delayed

    def _may_write_internal(self, context: Context) -> bool:
        """Kafka goes by the client's id alone. Where brokers have a listener of their own, this holds on that one."""
        return context.client_id == ADMIN_CLIENT_ID and self._broker.settings.listener_of_brokers in (
            None,
            context.listener,
        )

    def _recompress(self, context: Context, request: ProduceRequest, batches: list[Batch]) -> Any:
        """Give batches their topics' codec, then append: a large one in a worker, while the connection waits."""
        if are_quick(batches):
            for batch in batches:
                batch.recompress()
            return self.handle(context, request, may_recompress=False)
        by_id = context.api_version >= TOPIC_IDS_SINCE
        rest = ProduceRest(self._broker, request, by_id, (0, 0))

        async def first(go_on: Callable[[], Any]) -> Any:
            await rest.recompress(batches)
            return go_on()

        return self._suspend(context, request, rest, first)

    def _go_on_later(
        self,
        context: Context,
        request: ProduceRequest,
        rest: ProduceRest | None,
        state: tuple[
            list[TopicProduceResponse],
            list[PartitionProduceResponse],
            list[tuple[Partition, int, bool, PartitionProduceResponse]] | None,
            bool,
        ],
    ) -> Any:
        """Nothing more of this request in this turn; `state` are the variables of `handle`.

        What was appended waits from now on: a leadership that is lost and won again in between must not pass unseen.
        """
        responses, answers, waiting, failed = state
        is_first = rest is None
        if rest is None:
            by_id = context.api_version >= TOPIC_IDS_SINCE
            rest = ProduceRest(self._broker, request, by_id, (len(responses), len(answers)))
        rest.keep(responses, answers, failed)
        if waiting is not None and request.acks != 0:
            if rest.delayed is None:
                listener = context.listener if context.api_version >= LEADER_HINTS_SINCE else None
                response = ProduceResponse(responses, 0, _NO_ENDPOINTS)
                rest.delayed = DelayedProduce(self._broker, response, request.timeout_ms, listener)
            self._wait(rest.delayed, waiting, request.acks)
        elif waiting is not None:
            self._sync_unanswered(waiting)
        return self._suspend(context, request, rest, rest.work) if is_first else GO_ON

    def _sync_unanswered(self, waiting: Iterable[tuple[Partition, int, bool, Any]]) -> None:
        """acks=0: nobody waits for the flush that `flush.messages` asks for."""
        for partition, _, must_sync, _ in waiting:
            if must_sync:
                self._broker.sync_partition(partition, _not_waited_for)

    def _suspend(
        self,
        context: Context,
        request: ProduceRequest,
        rest: ProduceRest,
        first: Callable[[Callable[[], Any]], Awaitable[Any]],
    ) -> Suspend:
        """The connection waits for `first`, and then for as many turns as the rest of its request takes."""
        asker = context.for_later()

        def go_on() -> Any:
            result = self.handle(asker, request, False, rest)
            self._broker.run_woken()
            return result

        async def off_loop() -> Any:
            result = await first(go_on)
            while result is GO_ON:
                result = await rest.work(go_on)
            return result

        return Suspend(off_loop)

    def _wait(
        self,
        delayed: DelayedProduce,
        waiting: Iterable[tuple[Partition, int, bool, PartitionProduceResponse]],
        acks: int,
    ) -> None:
        for partition, last_offset, must_sync, answer in waiting:
            if must_sync:
                delayed.wait_for_sync(partition, answer)
            if acks == ACKS_ALL and partition.log.high_watermark <= last_offset:
                if partition.is_leader:
                    delayed.wait_for_replicas(partition, last_offset, answer)
                else:
                    delayed.fail_for_leadership(partition, answer)

    def _refuse(
        self, topic: TopicProduceData, by_id: bool, partition: Partition | None, index: int, acks: int
    ) -> PartitionProduceResponse:
        """Why nothing was tried, in Kafka's order: acks, topic, leadership."""
        if not -1 <= acks <= 1:
            return _error_answer(index, ErrorCode.INVALID_REQUIRED_ACKS, None)
        name = topic.name
        if by_id:
            image = self._broker.image.topics_by_id.get(topic.topic_id)
            if image is None:
                return _error_answer(index, ErrorCode.UNKNOWN_TOPIC_ID, None)
            name = image.name
        if partition is None:
            return _error_answer(index, self._broker.missing_partition_error(name, index), None)
        if partition.is_leader:
            # What coordinators keep is theirs alone to write.
            return _error_answer(index, ErrorCode.INVALID_TOPIC_EXCEPTION, None)
        answer = _error_answer(index, ErrorCode.NOT_LEADER_OR_FOLLOWER, None)
        _name_leader(answer, partition)
        return answer


def _name_leader(answer: PartitionProduceResponse, partition: Partition) -> None:
    if partition.image is not None:
        answer.current_leader = LeaderIdAndEpoch(partition.image.leader, partition.image.leader_epoch)


def _add_leader_endpoints(broker: Broker, listener: str, response: ProduceResponse) -> None:
    leaders = (
        answer.current_leader.leader_id
        for topic in response.responses
        for answer in topic.partition_responses
    )
    response.node_endpoints = leader_endpoints(broker.image, listener, leaders, NodeEndpoint)


def _refused_batch(
    data: PartitionProduceData, partition: Partition, error: KafkaError
) -> PartitionProduceResponse:
    """As in Kafka, what is refused after its framing was found good tells where the log starts."""
    answer = _error_answer(data.index, error.code, error.message)
    if isinstance(error, RecordsRefused):
        answer.record_errors = [BatchIndexAndErrorMessage(*refused) for refused in error.record_errors]
    if error.code in _WITHOUT_LOG_START:
        return answer
    try:
        parse_produced(data.records or b"", TOPIC_IDS_SINCE)
    except KafkaError:
        return answer
    answer.log_start_offset = partition.log.log_start_offset
    return answer


def _error_answer(index: int, code: ErrorCode, message: str | None) -> PartitionProduceResponse:
    return PartitionProduceResponse(index, code, -1, -1, -1, _NO_ERRORS, message or None, _NO_LEADER)


__all__ = ["DelayedProduce", "ProduceHandler"]
