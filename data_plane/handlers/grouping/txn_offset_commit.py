"""Handler of TxnOffsetCommit: offsets that take effect when a transaction commits (KIP-98, KIP-447).

Before the first offsets of a transaction, this broker asks the transaction's coordinator whether the
partition of `__consumer_offsets` belongs to the transaction. From version 5 on, this broker also adds the
partition, as the client does not add it (KIP-890).
"""

from __future__ import annotations

import attrs

from odradek.data_plane.coordination.records import RecordProducer
from odradek.data_plane.groups.coordinator import GroupCoordinator, Shard
from odradek.data_plane.groups.offsets import CommitOffsets, PartitionCommit
from odradek.data_plane.groups.offsets_topic import OFFSETS_TOPIC
from odradek.data_plane.handlers.grouping.group_offsets import commit_of
from odradek.data_plane.handlers.grouping.named_partitions import sorted_out
from odradek.data_plane.handlers.verification import VerifyingDesk, verified
from odradek.data_plane.log.parts.verification import ONGOING, VerificationGuard, name_of
from odradek.env.ports import DiskError
from odradek.serving.contract import Context, Result
from odradek.serving.steps import Steps, Work
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
    """The offsets of a request, and the response that is being built."""

    commits: list[PartitionCommit]
    accepted: list[TxnOffsetCommitResponsePartition]
    """The result for each item of `commits`; the coordinator's code is written into it."""
    response: TxnOffsetCommitResponse

    def refuse(self, code: ErrorCode) -> TxnOffsetCommitResponse:
        """Set this error for all partitions that were not refused before, and return the response."""
        for partition in self.accepted:
            partition.error_code = code
        return self.response


class TxnOffsetCommitHandler:
    """Handler of TxnOffsetCommit (API 28)."""

    def __init__(self, desk: VerifyingDesk, groups: GroupCoordinator) -> None:
        self._desk = desk
        self._groups = groups

    def handle(self, context: Context, request: TxnOffsetCommitRequest) -> Result:
        return self._desk.steps.begin(self._answer(context.api_version, request), is_long=True)

    def _answer(self, version: int, request: TxnOffsetCommitRequest) -> Steps[TxnOffsetCommitResponse]:
        offsets = yield from self._sorted_out(version, request)
        if not request.group_id:
            return offsets.refuse(ErrorCode.INVALID_GROUP_ID)
        if not offsets.commits:
            return offsets.response
        shard = self._shard(request.group_id)
        if shard is None:
            return offsets.refuse(ErrorCode.NOT_COORDINATOR)
        if shard.is_loading:
            return offsets.refuse(_code_at_version(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, version))
        guard = self._guard(shard, version, request)
        if isinstance(guard, ErrorCode):
            return offsets.refuse(guard)
        if guard is not ONGOING:
            guard = yield from self._verify(version, request, guard, shard)
            if isinstance(guard, ErrorCode):
                return offsets.refuse(guard)
        commit = CommitOffsets(
            request.group_id,
            request.member_id,
            request.group_instance_id,
            request.generation_id,
            -1,
            tuple(offsets.commits),
            producer=RecordProducer(request.producer_id, request.producer_epoch, guard),
        )
        (codes,) = yield from self._groups.ask_all(version, [(request.group_id, commit)])
        for partition, code in zip(offsets.accepted, codes, strict=True):
            partition.error_code = _code_at_version(code, version)
        return offsets.response

    def _shard(self, group_id: str) -> Shard | None:
        index = self._groups.partition_for(group_id)
        return None if index is None else self._groups.shards.get(index)

    def _guard(
        self, shard: Shard, version: int, request: TxnOffsetCommitRequest
    ) -> VerificationGuard | ErrorCode:
        """Return the verification guard for a commit, or an error code.

        `ONGOING` means that the coordinator need not be asked.
        """
        log = shard.partition.log
        name = name_of(request.transactional_id)
        adds = version >= TXN_OFFSET_COMMIT_ADDS_GROUP
        now_ms = int(self._desk.clock.monotonic() * 1000)
        try:
            log.load_producers()
            checks_name = log.config.verifies_transactions
            guard = log.producers.verify(
                request.producer_id, name, request.producer_epoch, -1, adds, now_ms, checks_name
            )
        except DiskError as error:
            log.home.failed(error)
            return ErrorCode.NOT_COORDINATOR
        except KafkaError as error:
            return error.code
        return guard if adds or log.config.verifies_transactions else ONGOING

    def _verify(
        self, version: int, request: TxnOffsetCommitRequest, guard: VerificationGuard, shard: Shard
    ) -> Steps[VerificationGuard | ErrorCode]:
        """Ask the transaction's coordinator about the partition.

        Returns the newest guard, or an error code for all offsets.
        """
        partition = (OFFSETS_TOPIC, shard.partition.log.partition)
        newest: VerificationGuard | ErrorCode = guard

        def renew_guards() -> bool:
            nonlocal newest
            before, newest = newest, self._guard(shard, version, request)
            return not isinstance(newest, ErrorCode) and newest is not before and newest is not ONGOING

        codes = yield from verified(
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
        return _refusal(code, version) if code else newest

    def _sorted_out(self, version: int, request: TxnOffsetCommitRequest) -> Work[_Offsets]:
        """Look up the partitions of the request, and build a response with a result for each of them."""
        shape = anatomy_of(request, version)
        named = yield from sorted_out(self._desk.image, shape, request, commit_of)
        answered = []
        for topic in named.topics:
            topic.refused.partitions += topic.accepted.partitions
            # As in Kafka, an unknown topic is in the answer even without partitions; a known topic without
            # partitions is not.
            if topic.refused.partitions or not topic.is_known:
                answered.append(topic.refused)
            yield 1
        return _Offsets(named.kept, named.accepted, TxnOffsetCommitResponse(0, answered))


def _refusal(code: ErrorCode, version: int) -> ErrorCode:
    """Translate the error of the transaction's coordinator into an error for the producer, as in Kafka."""
    if code is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code is ErrorCode.TRANSACTION_ABORTABLE and version < TXN_OFFSET_COMMIT_ABORTABLE:
        return ErrorCode.INVALID_TXN_STATE
    if code is ErrorCode.NETWORK_EXCEPTION:
        # After this error an older client retries without looking up the coordinator again.
        return _code_at_version(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, version)
    return _code_at_version(code, version)


def _code_at_version(code: ErrorCode, version: int) -> ErrorCode:
    if code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and version < TXN_OFFSET_COMMIT_LOADING:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return code
