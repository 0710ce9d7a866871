"""Handler of Produce: checks `min.insync.replicas` for acks=all, validates and appends the batches, and
answers when they are acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from odradek.data_plane.handlers.producing.batches_left import PARTITIONS_PER_TURN, BatchesLeft, Begun
from odradek.data_plane.handlers.producing.delayed_produce import (
    ACKS_ALL,
    DelayedProduce,
    add_leader_endpoints,
    name_leader,
)
from odradek.data_plane.handlers.producing.producer_refusals import PRODUCER_ERRORS, ProducerRefusals
from odradek.data_plane.handlers.producing.producing_desk import ProducingDesk
from odradek.data_plane.handlers.producing.recompression_on_append import are_quick, find_batches
from odradek.data_plane.handlers.producing.transactional_batches import (
    NotVerified,
    Transaction,
    TransactionalBatches,
)
from odradek.data_plane.log.batch_work import BatchWork, OffLoop
from odradek.data_plane.log.record_rules import RecordsRefused
from odradek.data_plane.replication.partition import Partition
from odradek.data_plane.replication.served_partitions import ServedPartitions
from odradek.env.ports import DiskError
from odradek.metadata_quorum.topic_names import INTERNAL_TOPICS
from odradek.named_states import reached
from odradek.serving.contract import CLOSE, Context, Result
from odradek.serving.shared_parts import shared
from odradek.serving.steps import TURN, Steps
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
    """Handler of Produce (API 0). An error of one partition does not affect the others."""

    def __init__(self, desk: ProducingDesk, partitions: ServedPartitions) -> None:
        self._desk = desk
        self._partitions = partitions
        self._begin = desk.steps.begin
        self._refusals = ProducerRefusals(desk.clock, desk.log)

    def handle(self, context: Context, request: ProduceRequest) -> Result:
        """Append all batches.

        First verify transactional batches, and recompress batches whose codec is not their topic's codec.
        """
        partitions, transaction = self._partitions, None
        if request.transactional_id is not None:
            transaction = TransactionalBatches(self._desk, partitions, request, context.api_version)
            looks = transaction.collect(context.api_version >= PRODUCE_TOPIC_IDS, PARTITIONS_PER_TURN)
            for look in looks:
                return self._begin(self._prepare(context, request, transaction, chain((look,), looks)))
            if transaction.error:
                return self._refuse_all(request, transaction.error)
            if transaction.must_ask:
                return self._begin(self._prepare(context, request, transaction))
        if partitions.recompressed:
            batches = find_batches(partitions, context, request)
            if not are_quick(batches):
                return self._begin(self._prepare(context, request, transaction))
            for batch in batches:
                batch.recompress()
        return self._append(context, request, transaction, None)

    def _prepare(
        self,
        context: Context,
        request: ProduceRequest,
        transaction: Transaction,
        looks: Iterable[None] = (),
    ) -> Steps[Result]:
        """Verify transactional batches with their coordinator, recompress batches with their topics' codecs,
        then append all. `looks` collects the batches to verify; each step of this iterator takes one turn.
        """
        context, left = context.for_later(), self._left(context, request)
        for _ in looks:
            yield TURN
        if transaction is not None:
            if transaction.error:
                return self._refuse_all(request, transaction.error)
            if transaction.must_ask:
                yield from transaction.verify()
        if self._partitions.recompressed:
            yield from left.recompress(find_batches(self._partitions, context, request))
        result = self._append(context, request, transaction, left)
        return (yield from self._append_rest(context, request, transaction, left, result))

    def _left(
        self, context: Context, request: ProduceRequest, topic_at: int = 0, partition_at: int = 0
    ) -> BatchesLeft:
        """Copy the batches from this place on, because the receive buffer is reused while the request waits."""
        by_id = context.api_version >= PRODUCE_TOPIC_IDS
        return BatchesLeft(self._desk, self._partitions, request, by_id, topic_at, partition_at)

    def _append(
        self, context: Context, request: ProduceRequest, transaction: Transaction, left: BatchesLeft | None
    ) -> Result:
        """Append batches until all are done or the request must wait. `left` is None before the first wait."""
        desk, partitions, acks = self._desk, self._partitions, request.acks
        connection, now_ms = context.note_append(), desk.clock.wall_ms()
        by_id, are_acks_valid = context.api_version >= PRODUCE_TOPIC_IDS, -1 <= acks <= 1
        begun: Begun = ([], [], None, False) if left is None else left.take_begun()
        responses, answers, delayed, failed = begun
        work: BatchWork = desk.loop_work
        appends = PARTITIONS_PER_TURN
        for topic in request.topic_data[len(responses) :] if responses else request.topic_data:
            hosted = partitions.by_id.get(topic.topic_id) if by_id else partitions.by_name.get(topic.name)
            for data in topic.partition_data[len(answers) :] if answers else topic.partition_data:
                if not appends:
                    begun = (responses, answers, delayed, failed)
                    return self._halt(context, request, transaction, left, begun)
                appends -= 1
                partition = None if hosted is None else hosted.partitions.get(data.index)
                if (
                    partition is None
                    or not (partition.is_leader and are_acks_valid)
                    or partition.is_internal
                    or (acks == ACKS_ALL and not partition.has_min_isr)
                ):
                    answers.append(self._refuse(topic, by_id, partition, data.index, acks))
                    failed = True
                    continue
                try:
                    if data.records is None or context.api_version < PRODUCE_ZSTD:
                        parse_produced(data.records or b"", context.api_version)
                    if left is not None:
                        work = left.work_at(len(responses), len(answers))
                    guard = transaction and transaction.guard_at(len(responses), len(answers))
                    result = partition.append_as_leader(data.records, now_ms, work, guard)  # type: ignore[arg-type]  # decoding made it a memoryview
                except OffLoop:
                    begun = (responses, answers, delayed, failed)
                    return self._halt(context, request, transaction, left, begun)
                except Exception as error:  # noqa: BLE001 - a bug in one append must not fail the others
                    answers.append(self._not_appended(context, data, partition, error))
                    failed = True
                    continue
                log = partition.log
                if desk.on_produced is not None:
                    desk.on_produced(connection, context.number, log, result)
                offset, at_ms = result.base_offset, result.log_append_time_ms
                answer = PartitionProduceResponse(
                    data.index, 0, offset, at_ms, log.log_start_offset, _NO_ERRORS, None, _NO_LEADER
                )
                answers.append(answer)
                if log.high_watermark <= result.last_offset if acks < 0 else acks and partition.flushes:
                    if delayed is None:
                        delayed = self._delayed(context, request, responses)
                    # Wait from now on. Then the batch fails even if this broker loses and regains the lead.
                    delayed.wait_for(partition, result.last_offset, answer, acks)
            responses.append(TopicProduceResponse(topic.name, topic.topic_id, answers))
            answers = []
        if delayed is None and not failed and acks:
            return ProduceResponse(responses, 0, _NO_ENDPOINTS)
        return self._answer(context, request, responses, delayed, failed)

    def _halt(
        self,
        context: Context,
        request: ProduceRequest,
        transaction: Transaction,
        left: BatchesLeft | None,
        begun: Begun,
    ) -> Result:
        """Stop appending until a later turn.

        In the first turn, suspend the request and return the suspended result. In later turns, save the state
        for `_append_rest`, and return None.
        """
        if left is not None:
            left.begun = begun
            return None
        responses, answers, _, _ = begun
        left = self._left(context, request, len(responses), len(answers))
        left.begun = begun
        return self._begin(self._append_rest(context.for_later(), request, transaction, left))

    def _append_rest(
        self,
        context: Context,
        request: ProduceRequest,
        transaction: Transaction,
        left: BatchesLeft,
        result: Result = None,
    ) -> Steps[Result]:
        """Continue to append after each wait, until all batches are done. Returns the final result."""
        while left.begun is not None:
            responses, answers, _, _ = left.begun
            yield from left.ready(len(responses), len(answers))
            result = self._append(context, request, transaction, left)
        return result

    def _delayed(
        self, context: Context, request: ProduceRequest, responses: list[TopicProduceResponse]
    ) -> DelayedProduce:
        """Make the delayed answer, to wait for replicas or for flushes."""
        listener = context.listener if context.api_version >= PRODUCE_LEADER_HINTS else None
        response = ProduceResponse(responses, 0, _NO_ENDPOINTS)
        return DelayedProduce(self._desk, self._partitions, response, request.timeout_ms, listener)

    def _answer(
        self,
        context: Context,
        request: ProduceRequest,
        responses: list[TopicProduceResponse],
        delayed: DelayedProduce | None,
        failed: bool,
    ) -> Result:
        """Return the result after the last append: the response, the delayed answer, or with acks=0 no
        answer.
        """
        if request.acks == 0:
            return CLOSE if failed else None
        if delayed is not None:
            delayed.names_leaders |= failed
            delayed.check()
            return delayed
        response = ProduceResponse(responses, 0, _NO_ENDPOINTS)
        if context.api_version >= PRODUCE_LEADER_HINTS:
            add_leader_endpoints(self._desk, context.listener, response)
        return response

    def _refuse_all(self, request: ProduceRequest, code: ErrorCode) -> Result:
        """Build a response with the same error for each partition of the request."""
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

    def _not_appended(
        self,
        context: Context,
        data: PartitionProduceData,
        partition: Partition,
        error: Exception,
    ) -> PartitionProduceResponse:
        """Build the answer for a batch that was refused or could not be written, or whose append failed because
        of a bug.
        """
        log = partition.log
        if isinstance(error, DiskError):
            self._desk.disk_errors.note(
                "produce.disk_error", topic=log.topic, partition=log.partition, error=str(error)
            )
            return _error_answer(
                data.index, ErrorCode.KAFKA_STORAGE_ERROR, "Disk error when trying to write to the log"
            )
        if not isinstance(error, KafkaError):
            reached("produce.append_met_a_bug")
            self._desk.log.exception(
                "produce.bug", topic=log.topic, partition=log.partition, takes_no_more=log.home.is_broken
            )
            return _error_answer(
                data.index,
                ErrorCode.UNKNOWN_SERVER_ERROR,
                "The broker could not append the records because of a bug. See the traceback in the broker's log.",
            )
        if isinstance(error, NotVerified):
            return _error_answer(data.index, error.code, error.message)
        if error.code in PRODUCER_ERRORS and data.records is not None:
            self._refusals.note(context, log, data.records, error)
        # The error may be stored with the batch. Its traceback refers to the whole request, which would then
        # stay in memory until the next garbage collection. So remove the traceback.
        error.__traceback__ = None
        return _refused_batch(data, partition, error)

    def _refuse(
        self,
        topic: TopicProduceData,
        by_id: bool,
        partition: Partition | None,
        index: int,
        acks: int,
    ) -> PartitionProduceResponse:
        """Build the error answer for a partition to which this request may not append.

        The order of checks is Kafka's: acks, topic, leadership, in-sync replicas.
        """
        if not -1 <= acks <= 1:
            return _error_answer(index, ErrorCode.INVALID_REQUIRED_ACKS, None)
        name = topic.name
        if by_id:
            image = self._desk.image.topics_by_id.get(topic.topic_id)
            if image is None:
                return _error_answer(index, ErrorCode.UNKNOWN_TOPIC_ID, None)
            name = image.name
        if partition is None:
            return _error_answer(index, self._partitions.missing_error(name, index), None)
        if not partition.is_leader:
            answer = _error_answer(index, ErrorCode.NOT_LEADER_OR_FOLLOWER, None)
            name_leader(answer, partition)
            return answer
        # Only coordinators may append to internal topics.
        code = ErrorCode.INVALID_TOPIC_EXCEPTION if name in INTERNAL_TOPICS else ErrorCode.NOT_ENOUGH_REPLICAS
        return _error_answer(index, code, None)


def _refused_batch(
    data: PartitionProduceData, partition: Partition, error: KafkaError
) -> PartitionProduceResponse:
    """Build the answer for a batch that the log refused.

    As in Kafka, the answer contains the log start offset if the batch's header is valid.
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
