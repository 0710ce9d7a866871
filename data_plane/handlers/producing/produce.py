"""Produce: validate, append, and answer when the acks that were asked for are there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from itertools import islice

from odradek.data_plane.broker import Broker
from odradek.data_plane.handlers.producing.delayed_produce import (
    ACKS_ALL,
    Appended,
    DelayedProduce,
    add_leader_endpoints,
    name_leader,
)
from odradek.data_plane.handlers.producing.produce_rest import GO_ON, PARTITIONS_PER_TURN, ProduceRest, Turn
from odradek.data_plane.handlers.producing.producer_refusals import PRODUCER_ERRORS, ProducerRefusals
from odradek.data_plane.handlers.producing.recompression_on_append import Batch, are_quick, find_batches
from odradek.data_plane.handlers.producing.transactional_batches import (
    NotVerified,
    Transaction,
    TransactionalBatches,
)
from odradek.data_plane.log.batch_work import BatchWork, OffLoop
from odradek.data_plane.log.record_rules import RecordsRefused
from odradek.data_plane.replication.partition import Partition
from odradek.env.ports import DiskError
from odradek.metadata_quorum.topic_names import INTERNAL_TOPICS
from odradek.serving.contract import CLOSE, Context, Result, Suspend
from odradek.serving.shared_parts import shared
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.produce import (
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
from odradek.wire.record_batch import parse_produced
from odradek.wire.schema.versions import PRODUCE_LEADER_HINTS, PRODUCE_TOPIC_IDS, PRODUCE_ZSTD

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
_NO_ERRORS: list[BatchIndexAndErrorMessage] = shared([])
_NO_LEADER = shared(LeaderIdAndEpoch())
_NO_ENDPOINTS: list[NodeEndpoint] = shared([])


class ProduceHandler:
    """API 0. An error of one partition leaves all others alone."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._refusals = ProducerRefusals(broker.clock, broker.log)

    def handle(self, context: Context, request: ProduceRequest) -> Result:
        """Append each batch, once it is verified and has its topic's codec."""
        transaction = None
        if request.transactional_id is not None:
            transaction = TransactionalBatches(self._broker, request, context.api_version)
            steps = transaction.collect(context.api_version >= PRODUCE_TOPIC_IDS)
            for _ in islice(steps, PARTITIONS_PER_TURN):
                continue
            if transaction.must_ask or transaction.is_unfinished:
                return self._verify(context, request, transaction, steps)
            code = transaction.error
            if code:
                return self._refuse_all(request, code)
        if self._broker.recompressed_topics:
            batches = find_batches(self._broker, context, request)
            if batches:
                later = self._recompress(context, request, batches, transaction)
                if later is not None:
                    return later
        result = self._append(context, request, None, transaction)
        assert result is not GO_ON, "the first turn suspends its connection"
        return result

    def _append(
        self, context: Context, request: ProduceRequest, rest: ProduceRest | None, transaction: Transaction
    ) -> Turn:
        """Append, or go on with the `rest`. `GO_ON` asks for another turn for it."""
        broker, acks = self._broker, request.acks
        connection = context.note_append()
        by_id, now_ms = context.api_version >= PRODUCE_TOPIC_IDS, broker.clock.wall_ms()
        waiting: list[Appended] | None = None
        responses: list[TopicProduceResponse] = [] if rest is None else rest.responses
        begun, failed = (None, False) if rest is None else (rest.answers, rest.failed)
        work: BatchWork = broker.loop_work
        left, are_acks_valid = PARTITIONS_PER_TURN, -1 <= acks <= 1
        for topic in request.topic_data if rest is None else request.topic_data[len(responses) :]:
            hosted = broker.topics_by_id.get(topic.topic_id) if by_id else broker.topics.get(topic.name)
            is_reserved = hosted is not None and hosted.name in INTERNAL_TOPICS
            answers, begun = begun or [], None
            for data in topic.partition_data[len(answers) :] if answers else topic.partition_data:
                if (left := left - 1) < 0:
                    state = (responses, answers, waiting, failed, transaction)
                    return self._go_on_later(context, request, rest, state)
                partition = None if hosted is None else hosted.partitions.get(data.index)
                if (
                    partition is None
                    or not (partition.is_leader and are_acks_valid)
                    or is_reserved
                    or (acks == ACKS_ALL and not partition.has_min_isr)
                ):
                    answers.append(self._refuse(topic, by_id, partition, data.index, acks, is_reserved))
                    failed = True
                    continue
                try:
                    if data.records is None or context.api_version < PRODUCE_ZSTD:
                        parse_produced(data.records or b"", context.api_version)
                    if rest is not None:
                        work = rest.work_at(len(responses), len(answers))
                    guard = transaction and transaction.guard_at(len(responses), len(answers))
                    result = partition.append_as_leader(data.records, now_ms, work, guard)  # type: ignore[arg-type]  # a view, as decoded
                except OffLoop:
                    state = (responses, answers, waiting, failed, transaction)
                    return self._go_on_later(context, request, rest, state)
                except Exception as error:  # noqa: BLE001 - a bug in one append is no other partition's
                    answers.append(self._not_appended(context, data, partition, error))
                    failed = True
                    continue
                log = partition.log
                if broker.on_produced is not None:
                    broker.on_produced(connection, context.number, log, result)
                offset, at_ms = result.base_offset, result.log_append_time_ms
                answer = PartitionProduceResponse(
                    data.index, 0, offset, at_ms, log.log_start_offset, _NO_ERRORS, None, _NO_LEADER
                )
                answers.append(answer)
                waits = log.high_watermark <= result.last_offset if acks < 0 else acks and partition.flushes
                if waits:
                    waiting = waiting or []
                    waiting.append((partition, result.last_offset, answer))
            responses.append(TopicProduceResponse(topic.name, topic.topic_id, answers))
        if waiting is None and rest is None and not failed and acks:
            return ProduceResponse(responses, 0, _NO_ENDPOINTS)
        return self._answer(context, request, rest, (responses, waiting, failed))

    def _answer(
        self,
        context: Context,
        request: ProduceRequest,
        rest: ProduceRest | None,
        done: tuple[list[TopicProduceResponse], list[Appended] | None, bool],
    ) -> Result:
        """Answer after the last append, or wait first for replicas and flushes."""
        responses, waiting, failed = done
        acks = request.acks
        if acks == 0:
            return CLOSE if failed else None
        listener = context.listener if context.api_version >= PRODUCE_LEADER_HINTS else None
        delayed = None if rest is None else rest.delayed
        response = (
            ProduceResponse(responses, 0, _NO_ENDPOINTS) if delayed is None else delayed.produce_response
        )
        if listener is not None and (failed or delayed is not None):
            add_leader_endpoints(self._broker, listener, response)
        if delayed is None:
            if waiting is None:
                return response
            delayed = DelayedProduce(self._broker, response, request.timeout_ms, listener)
        delayed.wait_for(waiting or (), acks)
        delayed.check()
        return delayed

    def _verify(
        self,
        context: Context,
        request: ProduceRequest,
        transaction: TransactionalBatches,
        steps: Iterator[None],
    ) -> Suspend:
        """Suspend the connection until the coordinator of the transaction has answered, then append the batches."""
        by_id = context.api_version >= PRODUCE_TOPIC_IDS
        asker = context.for_later()
        rest = ProduceRest(self._broker, request, by_id, (0, 0))

        async def first(go_on: Callable[[], Turn]) -> Turn:
            await rest.verify(transaction, steps)
            code = transaction.error
            if code:
                return self._refuse_all(request, code)
            if self._broker.recompressed_topics:
                await rest.recompress(find_batches(self._broker, asker, request))
            return go_on()

        return self._suspend(context, request, rest, transaction, first)

    def _refuse_all(self, request: ProduceRequest, code: ErrorCode) -> Result:
        """Answer the same error for each partition of the request."""
        if request.acks == 0:
            return CLOSE
        responses = [
            TopicProduceResponse(
                topic.name,
                topic.topic_id,
                [_error_answer(data.index, code, None) for data in topic.partition_data],
            )
            for topic in request.topic_data
        ]
        return ProduceResponse(responses, 0, _NO_ENDPOINTS)

    def _recompress(
        self,
        context: Context,
        request: ProduceRequest,
        batches: list[Batch],
        transaction: Transaction,
    ) -> Suspend | None:
        """Give batches their topics' codec: small ones at once. With a large one the connection waits for a worker."""
        if are_quick(batches):
            for batch in batches:
                batch.recompress()
            return None
        by_id = context.api_version >= PRODUCE_TOPIC_IDS
        rest = ProduceRest(self._broker, request, by_id, (0, 0))

        async def first(go_on: Callable[[], Turn]) -> Turn:
            await rest.recompress(batches)
            return go_on()

        return self._suspend(context, request, rest, transaction, first)

    def _go_on_later(
        self,
        context: Context,
        request: ProduceRequest,
        rest: ProduceRest | None,
        state: tuple[
            list[TopicProduceResponse],
            list[PartitionProduceResponse],
            list[Appended] | None,
            bool,
            Transaction,
        ],
    ) -> Turn:
        """End this turn of the request; `state` are the variables of `_append`.

        Appended records are watched from now on: a leadership that is lost and won again in between must be noticed.
        """
        responses, answers, waiting, failed, transaction = state
        is_first = rest is None
        if rest is None:
            by_id = context.api_version >= PRODUCE_TOPIC_IDS
            rest = ProduceRest(self._broker, request, by_id, (len(responses), len(answers)))
        rest.keep(responses, answers, failed)
        if waiting is not None:
            if rest.delayed is None:
                listener = context.listener if context.api_version >= PRODUCE_LEADER_HINTS else None
                response = ProduceResponse(responses, 0, _NO_ENDPOINTS)
                rest.delayed = DelayedProduce(self._broker, response, request.timeout_ms, listener)
            rest.delayed.wait_for(waiting, request.acks)
        return self._suspend(context, request, rest, transaction, rest.work) if is_first else GO_ON

    def _suspend(
        self,
        context: Context,
        request: ProduceRequest,
        rest: ProduceRest,
        transaction: Transaction,
        first: Callable[[Callable[[], Turn]], Awaitable[Turn]],
    ) -> Suspend:
        """Suspend the connection for `first`, and then for as many turns as the rest of its request takes."""
        asker = context.for_later()

        def go_on() -> Turn:
            result = self._append(asker, request, rest, transaction)
            self._broker.run_woken()
            return result

        async def off_loop() -> Result:
            result = await first(go_on)
            while result is GO_ON:
                result = await rest.work(go_on)
            return result

        return Suspend(off_loop)

    def _not_appended(
        self,
        context: Context,
        data: PartitionProduceData,
        partition: Partition,
        error: Exception,
    ) -> PartitionProduceResponse:
        """Answer for a batch that was refused, or not written, or whose append met a bug: no matter of other partitions."""
        log = partition.log
        if isinstance(error, DiskError):
            self._broker.disk_errors.tell(
                "produce.disk_error", topic=log.topic, partition=log.partition, error=str(error)
            )
            return _error_answer(
                data.index, ErrorCode.KAFKA_STORAGE_ERROR, "Disk error when trying to write to the log"
            )
        if not isinstance(error, KafkaError):
            self._broker.log.exception(
                "produce.bug", topic=log.topic, partition=log.partition, takes_no_more=log.home.is_broken
            )
            return _error_answer(data.index, ErrorCode.UNKNOWN_SERVER_ERROR, "The append has met a bug")
        if isinstance(error, NotVerified):
            return _error_answer(data.index, error.code, error.message)
        if error.code in PRODUCER_ERRORS and data.records is not None:
            self._refusals.tell(context, log, data.records, error)
        # A batch may keep its error, whose frames hold all of the request: a circle until the next collection.
        error.__traceback__ = None
        return _refused_batch(data, partition, error)

    def _refuse(
        self,
        topic: TopicProduceData,
        by_id: bool,
        partition: Partition | None,
        index: int,
        acks: int,
        is_reserved: bool,
    ) -> PartitionProduceResponse:
        """Choose the error for a partition to which nothing may be appended.

        In Kafka's order: acks, topic, leadership, replicas in sync.
        """
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
        if not partition.is_leader:
            answer = _error_answer(index, ErrorCode.NOT_LEADER_OR_FOLLOWER, None)
            name_leader(answer, partition)
            return answer
        # Only coordinators may write to their topics.
        code = ErrorCode.INVALID_TOPIC_EXCEPTION if is_reserved else ErrorCode.NOT_ENOUGH_REPLICAS
        return _error_answer(index, code, None)


def _refused_batch(
    data: PartitionProduceData, partition: Partition, error: KafkaError
) -> PartitionProduceResponse:
    """Answer for a refused batch.

    As in Kafka, the answer has the log start offset if the batch's framing was found good.
    """
    answer = _error_answer(data.index, error.code, error.message)
    if isinstance(error, RecordsRefused):
        answer.record_errors = [BatchIndexAndErrorMessage(*refused) for refused in error.record_errors]
    if error.code in _WITHOUT_LOG_START:
        return answer
    try:
        parse_produced(data.records or b"", PRODUCE_ZSTD)
    except KafkaError:
        return answer
    answer.log_start_offset = partition.log.log_start_offset
    return answer


def _error_answer(index: int, code: ErrorCode, message: str | None) -> PartitionProduceResponse:
    return PartitionProduceResponse(index, code, -1, -1, -1, _NO_ERRORS, message or None, _NO_LEADER)
