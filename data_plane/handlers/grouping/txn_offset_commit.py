"""TxnOffsetCommit: offsets that count when a transaction commits (KIP-98, KIP-447).

Before the first offsets of a transaction, its coordinator is asked whether `__consumer_offsets` is a part of it. Since
version 5 the question also adds the partition: the client does not add it itself (KIP-890).
"""

from __future__ import annotations

import attrs

from odradek.data_plane.coordination.asking import Ask
from odradek.data_plane.coordination.records import RecordProducer
from odradek.data_plane.groups.coordinator import GroupCoordinator, Shard
from odradek.data_plane.groups.offsets import CommitOffsets, PartitionCommit
from odradek.data_plane.groups.offsets_topic import OFFSETS_TOPIC
from odradek.data_plane.handlers.grouping.group_offsets import commit_of
from odradek.data_plane.handlers.grouping.named_partitions import sorted_out
from odradek.data_plane.handlers.verification import VerifyingDesk, verified
from odradek.data_plane.handlers.waiting import response_of
from odradek.data_plane.log.parts.verification import ONGOING, VerificationGuard, name_of
from odradek.env.ports import DiskError
from odradek.serving.contract import Context, Delayed, Result, Suspend
from odradek.serving.slices import Work, in_slices
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
)
from odradek.wire.schema.anatomy import anatomy_of
from odradek.wire.schema.versions import (
    TXN_OFFSET_COMMIT_ABORTABLE,
    TXN_OFFSET_COMMIT_ADDS_GROUP,
    TXN_OFFSET_COMMIT_LOADING,
)


@attrs.frozen
class _Offsets:
    """The contents of a request, and the response in the making."""

    commits: list[PartitionCommit]
    accepted: list[TxnOffsetCommitResponsePartition]
    """One for each of `commits`, for the coordinator's code."""
    response: TxnOffsetCommitResponse

    def refuse(self, code: ErrorCode) -> TxnOffsetCommitResponse:
        """Return the response with one error for all that was not refused before."""
        for partition in self.accepted:
            partition.error_code = code
        return self.response


class _Committing(Delayed):
    """A commit that waits for the group's coordinator."""

    __slots__ = ("_offsets", "_version")

    def __init__(self, offsets: _Offsets, version: int) -> None:
        super().__init__()
        self._offsets = offsets
        self._version = version

    def complete(self, response: list[ErrorCode]) -> None:
        for partition, code in zip(self._offsets.accepted, response, strict=True):
            partition.error_code = _told(code, self._version)
        super().complete(self._offsets.response)


class TxnOffsetCommitHandler:
    """API 28."""

    def __init__(self, desk: VerifyingDesk, groups: GroupCoordinator) -> None:
        self._desk = desk
        self._groups = groups

    def handle(self, context: Context, request: TxnOffsetCommitRequest) -> Result:
        return in_slices(self._desk.long_work, self._answer(context.api_version, request))

    def _answer(self, version: int, request: TxnOffsetCommitRequest) -> Work[Result]:
        offsets = yield from self._sorted_out(version, request)
        if not request.group_id:
            return offsets.refuse(ErrorCode.INVALID_GROUP_ID)
        if not offsets.commits:
            return offsets.response
        shard = self._shard(request.group_id)
        if shard is None:
            return offsets.refuse(ErrorCode.NOT_COORDINATOR)
        if shard.is_loading:
            return offsets.refuse(_told(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, version))
        guard = self._guard(shard, version, request)
        if isinstance(guard, ErrorCode):
            return offsets.refuse(guard)
        if guard is ONGOING:
            delayed = self._commit(version, request, offsets, ONGOING)
            return delayed if delayed.response is None else delayed.response
        return Suspend(lambda: self._verify(version, request, offsets, guard, shard))

    def _shard(self, group_id: str) -> Shard | None:
        index = self._groups.partition_for(group_id)
        return None if index is None else self._groups.shards.get(index)

    def _guard(
        self, shard: Shard, version: int, request: TxnOffsetCommitRequest
    ) -> VerificationGuard | ErrorCode:
        """`ONGOING` where the coordinator needs not be asked."""
        log = shard.partition.log
        name = name_of(request.transactional_id)
        adds = version >= TXN_OFFSET_COMMIT_ADDS_GROUP
        now_ms = int(self._desk.clock.monotonic() * 1000)
        try:
            guard = log.begin_verification(
                request.producer_id, name, request.producer_epoch, -1, adds, now_ms
            )
        except DiskError as error:
            log.home.failed(error)
            return ErrorCode.NOT_COORDINATOR
        except KafkaError as error:
            return error.code
        return guard if adds or log.config.verifies_transactions else ONGOING

    async def _verify(
        self,
        version: int,
        request: TxnOffsetCommitRequest,
        offsets: _Offsets,
        guard: VerificationGuard,
        shard: Shard,
    ) -> TxnOffsetCommitResponse:
        partition = (OFFSETS_TOPIC, shard.partition.log.partition)
        newest: VerificationGuard | ErrorCode = guard

        def renew_guards() -> bool:
            nonlocal newest
            before, newest = newest, self._guard(shard, version, request)
            return not isinstance(newest, ErrorCode) and newest is not before and newest is not ONGOING

        codes = await verified(
            self._desk,
            request.transactional_id,
            request.producer_id,
            request.producer_epoch,
            [partition],
            adds=version >= TXN_OFFSET_COMMIT_ADDS_GROUP,
            renew_guards=renew_guards,
        )
        code = codes[partition]
        if code is ErrorCode.INVALID_PRODUCER_ID_MAPPING:
            shard.partition.log.producers.refuse_verification(
                request.producer_id, name_of(request.transactional_id)
            )
        if code:
            return offsets.refuse(_refusal(code, version))
        if isinstance(newest, ErrorCode):
            return offsets.refuse(newest)
        delayed = self._commit(version, request, offsets, newest)
        response: TxnOffsetCommitResponse = await response_of(delayed, self._desk)
        return response

    def _commit(
        self,
        version: int,
        request: TxnOffsetCommitRequest,
        offsets: _Offsets,
        guard: VerificationGuard,
    ) -> _Committing:
        delayed = _Committing(offsets, version)
        commit = CommitOffsets(
            request.group_id,
            request.member_id,
            request.group_instance_id,
            request.generation_id,
            -1,
            tuple(offsets.commits),
            producer=RecordProducer(request.producer_id, request.producer_epoch, guard),
        )
        self._groups.submit(request.group_id, Ask(commit, version, delayed, self._desk.clock.wall_ms()))
        return delayed

    def _sorted_out(self, version: int, request: TxnOffsetCommitRequest) -> Work[_Offsets]:
        """Look up the offsets that may be committed, and make an answer for each partition that is named."""
        shape = anatomy_of(request, version)
        named = yield from sorted_out(self._desk.image, shape, request, commit_of)
        answered = []
        for topic in named.topics:
            topic.refused.partitions += topic.accepted.partitions
            # As in Kafka: a topic that nobody knows is answered even without partitions, others are not.
            if topic.refused.partitions or not topic.is_known:
                answered.append(topic.refused)
            yield 1
        return _Offsets(named.kept, named.accepted, TxnOffsetCommitResponse(0, answered))


def _refusal(code: ErrorCode, version: int) -> ErrorCode:
    """The producer's error for that of a transaction's coordinator, as Kafka has it."""
    if code is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code is ErrorCode.TRANSACTION_ABORTABLE and version < TXN_OFFSET_COMMIT_ABORTABLE:
        return ErrorCode.INVALID_TXN_STATE
    if code is ErrorCode.NETWORK_EXCEPTION:
        # Older clients ask again after this one, without a search for another coordinator.
        return _told(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, version)
    return _told(code, version)


def _told(code: ErrorCode, version: int) -> ErrorCode:
    if code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and version < TXN_OFFSET_COMMIT_LOADING:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return code
