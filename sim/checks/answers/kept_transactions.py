"""Check of transaction coordinators: each state that an answer reports is in the coordinator's log. PURE.

The log must have a record of that state below the high watermark, and all in-sync replicas must have the record.

| API of the answer | state that the record must have |
| --- | --- |
| InitProducerId | the producer id and epoch of the answer |
| AddPartitionsToTxn, AddOffsetsToTxn | the transaction is open, and has the partitions of the request |
| EndTxn | the transaction has the outcome of the request |

A request may repeat an earlier request. So an older record is enough if the coordinator already had it when the
request was sent. Requests that only verify a partition change nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from odradek.data_plane.groups.offsets_topic import OFFSETS_TOPIC
from odradek.data_plane.transactions.coordinator import TransactionShard
from odradek.data_plane.transactions.state import Transaction, TransactionStatus
from odradek.node.node import Node
from odradek.wire.api_keys import ApiKey
from odradek.wire.batches.batch_errors import CorruptBatch
from odradek.wire.errors import KafkaError, ProtocolError
from odradek.wire.messages.add_offsets_to_txn import AddOffsetsToTxnResponse
from odradek.wire.messages.add_partitions_to_txn import AddPartitionsToTxnResponse
from odradek.wire.messages.coordinator_records import TransactionLogValue
from odradek.wire.messages.end_txn import EndTxnResponse
from odradek.wire.messages.init_producer_id import InitProducerIdResponse
from odradek.wire.topic_partition import TopicIdPartition
from sim.checks.answers.held_records import HeldRecords
from sim.checks.answers.log_tail import Tail, transaction_states
from sim.checks.watched import Processes, partition_name
from sim.checks.wiretap import Exchange
from sim.history import SafetyViolation

__all__ = ["TRANSACTION_APIS", "KeptTransactions"]

TRANSACTION_APIS = (
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.ADD_OFFSETS_TO_TXN,
    ApiKey.END_TXN,
)
_UNREADABLE = (KafkaError, ProtocolError, CorruptBatch)
_COMMITTED = (TransactionStatus.PREPARE_COMMIT, TransactionStatus.COMPLETE_COMMIT)
_ABORTED = (TransactionStatus.PREPARE_ABORT, TransactionStatus.COMPLETE_ABORT)
BATCHES_SINCE = 4
"""The version from which AddPartitionsToTxn may have several transactions."""


@attrs.frozen
class _Asked:
    """The state of a coordinator when it received a request with a transactional id."""

    shard: TransactionShard
    tail: Tail
    known: Transaction | None


class KeptTransactions:
    """The check of InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn and EndTxn."""

    def __init__(self, processes: Processes, held: HeldRecords) -> None:
        self._processes = processes
        self._held = held
        self.seen = 0

    def asked(self, exchange: Exchange) -> bool:
        """Record the coordinators' log ends and their present transactions. Returns False if no coordinator was found."""
        found = self._processes.at(exchange.conn.peer)
        if found is None or found[1].broker is None:
            return False
        memo: dict[str, _Asked] = {}
        for transactional_id in _ids(exchange):
            asked = _ask(found[1], transactional_id)
            if asked is not None:
                memo[transactional_id] = asked
        exchange.memo = found, memo
        return bool(memo)

    def answered(self, exchange: Exchange, answer: object) -> None:
        """Check the change that the answer acknowledges. Raises `SafetyViolation`."""
        found, memo = exchange.memo
        if self._processes.at(exchange.conn.peer) != found:
            return
        node: Node = found[1]
        for transactional_id, wanted in _promised(exchange, answer, node):
            asked = memo.get(transactional_id)
            if asked is None or not asked.shard.partition.is_leader:
                continue
            try:
                written = _written(asked.tail, transactional_id)
            except _UNREADABLE:
                continue
            if written is not None:
                where = f"transaction {transactional_id}: {found[0].name}"
                self._check(where, asked, wanted, written)

    def _check(
        self, where: str, asked: _Asked, wanted: _Wanted, written: list[tuple[int, TransactionLogValue]]
    ) -> None:
        if asked.known is not None and wanted.was_known(asked.known):
            return  # A later record may have this state too, for another request; the answer need not wait for that record.
        at = next((offset for offset, value in written if wanted.is_kept_by(value)), None)
        if at is None:
            raise SafetyViolation(f"{where} has answered {wanted.told}, and its log has no such record")
        log = asked.tail.log
        if log.high_watermark <= at:
            raise SafetyViolation(
                f"{where} has answered {wanted.told}, whose record is at {at} of {partition_name(asked.shard.partition)}, and "
                f"the high watermark is {log.high_watermark}"
            )
        self.seen += 1
        told = f"{where} answers {wanted.told}, in {partition_name(asked.shard.partition)} below"
        self._held.check(TopicIdPartition(log.topic_id, log.partition), at + 1, told)


@attrs.frozen
class _Wanted:
    """The transaction state that an answer reports. Empty fields are not checked."""

    told: str
    producer_id: int
    producer_epoch: int = -1
    statuses: tuple[TransactionStatus, ...] = ()
    partitions: frozenset[tuple[str, int]] = frozenset()

    def is_kept_by(self, value: TransactionLogValue) -> bool:
        """True if this log record has the reported state."""
        ids = (value.producer_id, value.previous_producer_id, value.next_producer_id)
        epochs = (value.producer_epoch, value.next_producer_epoch)
        there = {
            (topic.topic, index)
            for topic in value.transaction_partitions or ()
            for index in topic.partition_ids
        }
        return (
            self.producer_id in ids
            and (self.producer_epoch < 0 or self.producer_epoch in epochs)
            and (not self.statuses or value.transaction_status in self.statuses)
            and self.partitions <= there
        )

    def was_known(self, known: Transaction) -> bool:
        """True if the coordinator already had the reported state."""
        ids = (known.producer_id, known.previous_producer_id, known.next_producer_id)
        epochs = (known.producer_epoch, known.next_producer_epoch)
        return (
            self.producer_id in ids
            and (self.producer_epoch < 0 or self.producer_epoch in epochs)
            and (not self.statuses or known.status in self.statuses)
            and self.partitions <= known.partitions
        )


def _ids(exchange: Exchange) -> Iterator[str]:
    request = exchange.request
    if exchange.api != ApiKey.ADD_PARTITIONS_TO_TXN:
        if request.transactional_id is not None:
            yield request.transactional_id
    elif exchange.version < BATCHES_SINCE:
        yield request.v3_and_below_transactional_id
    else:
        for each in request.transactions:
            if not each.verify_only:
                yield each.transactional_id


def _ask(node: Node, transactional_id: str) -> _Asked | None:
    assert node.broker is not None
    transactions = node.broker.transactions
    index = transactions.partition_for(transactional_id)
    shard = None if index is None else transactions.shards.get(index)
    runtime = None if shard is None else shard._runtime
    if shard is None or runtime is None or shard.is_stopped:
        return None
    tail = Tail.of(shard.partition.log)
    # This state may be uncommitted. That does no harm, since its records lie before the recorded end of the log.
    return None if tail is None else _Asked(shard, tail, runtime.state.transactions.get(transactional_id))


def _promised(exchange: Exchange, answer: object, node: Node) -> Iterator[tuple[str, _Wanted]]:
    """Yield (transactional id, reported state) for each part of the answer in which success is reported."""
    request = exchange.request
    if isinstance(answer, InitProducerIdResponse):
        if not answer.error_code:
            told = f"producer {answer.producer_id} of epoch {answer.producer_epoch}"
            yield request.transactional_id, _Wanted(told, answer.producer_id, answer.producer_epoch)
    elif isinstance(answer, EndTxnResponse):
        if not answer.error_code:
            statuses = _COMMITTED if request.committed else _ABORTED
            told = f"the {'commit' if request.committed else 'abort'} of producer {request.producer_id}"
            yield request.transactional_id, _Wanted(told, request.producer_id, statuses=statuses)
    elif isinstance(answer, AddOffsetsToTxnResponse):
        assert node.broker is not None
        index = node.broker.groups.partition_for(request.group_id)
        if not answer.error_code and index is not None:
            yield request.transactional_id, _opened(request.producer_id, {(OFFSETS_TOPIC, index)})
    elif isinstance(answer, AddPartitionsToTxnResponse):
        yield from _added(exchange, answer)


def _added(exchange: Exchange, answer: AddPartitionsToTxnResponse) -> Iterator[tuple[str, _Wanted]]:
    request = exchange.request
    if exchange.version < BATCHES_SINCE:
        added = {
            (topic.name, part.partition_index)
            for topic in answer.results_by_topic_v3_and_below
            for part in topic.results_by_partition
            if not part.partition_error_code
        }
        if added:
            yield (
                request.v3_and_below_transactional_id,
                _opened(request.v3_and_below_producer_id, added),
            )
        return
    producers = {
        each.transactional_id: each.producer_id for each in request.transactions if not each.verify_only
    }
    for result in answer.results_by_transaction if not answer.error_code else ():
        added = {
            (topic.name, part.partition_index)
            for topic in result.topic_results
            for part in topic.results_by_partition
            if not part.partition_error_code
        }
        if added and result.transactional_id in producers:
            yield result.transactional_id, _opened(producers[result.transactional_id], added)


def _opened(producer_id: int, partitions: set[tuple[str, int]]) -> _Wanted:
    told = f"{len(partitions)} partitions in the transaction of producer {producer_id}"
    statuses = (TransactionStatus.ONGOING,)
    return _Wanted(told, producer_id, statuses=statuses, partitions=frozenset(partitions))


def _written(tail: Tail, transactional_id: str) -> list[tuple[int, TransactionLogValue]] | None:
    """Read the states of a transactional id that were appended since the request; None if the log was truncated or
    cleaned since.
    """
    batches = tail.appended()
    if batches is None:
        return None
    return [(offset, value) for offset, _, value in transaction_states(batches, transactional_id)]
