"""The rules by which a log accepts transactional batches and markers, and the search for aborted
transactions.

The order of the checks is Kafka's (`UnifiedLog.analyzeAndValidateProducerState`, `ProducerAppendInfo`).
"""

from __future__ import annotations

from odradek.data_plane.log.log_config import LogConfig
from odradek.data_plane.log.log_types import Origin
from odradek.data_plane.log.parts.lazy_producers import LazyProducers
from odradek.data_plane.log.parts.producer_entry import Duplicate
from odradek.data_plane.log.parts.producer_recovery import aborted_in
from odradek.data_plane.log.parts.producer_state import ProducerState
from odradek.data_plane.log.parts.segment_list import SegmentList
from odradek.data_plane.log.parts.verification import VerificationGuard
from odradek.data_plane.log.segments.aborted_index import AbortedTransaction
from odradek.named_states import reached
from odradek.wire.batches.batch_header import BatchHeader
from odradek.wire.batches.transaction_markers import parse_marker
from odradek.wire.errors import ErrorCode, KafkaError


def check_transaction(
    lazy: LazyProducers,
    producers: ProducerState,
    config: LogConfig,
    batch: memoryview,
    header: BatchHeader,
    origin: Origin,
    guard: VerificationGuard | None,
    transaction_version: int,
) -> Duplicate | None:
    """Check a transactional batch or a marker. Returns the earlier batch that it repeats, or None if it is
    new.

    Raises the errors of `ProducerState.check` and `check_marker`, and two further `KafkaError`.
    INVALID_TXN_STATE: the transaction is not open in this log, and `guard` is void or missing.
    OUT_OF_ORDER_SEQUENCE_NUMBER: the batch repeats an earlier batch that does not belong to an open
    transaction.
    """
    producer_id, epoch, sequence = header.producer_id, header.producer_epoch, header.base_sequence
    if header.is_control:
        marker = parse_marker(batch)
        if marker is not None:
            producers.check_marker(producer_id, epoch, marker.coordinator_epoch, transaction_version)
        return None
    is_open = producers.has_ongoing(producer_id, epoch)
    if origin is Origin.CLIENT:
        duplicate = producers.find_duplicate(producer_id, epoch, sequence, header.last_offset_delta)
        if duplicate is not None:
            if config.verifies_transactions and not is_open:
                reached("log.stolen_sequence_refused")
                # Another client has written the earlier batch in this producer's name. So refuse this batch.
                # As a duplicate it would be acknowledged, but be in no transaction.
                raise KafkaError(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"Sequence {sequence} of producer {producer_id} was used outside of a transaction",
                )
            return duplicate
    valid = None if is_open or not lazy.is_valid(producer_id, guard) else guard
    if config.verifies_transactions and not is_open and valid is None:
        reached("log.append_outside_transaction_refused")
        raise KafkaError(ErrorCode.INVALID_TXN_STATE, "Record was not part of an ongoing transaction")
    producers.check_epoch(producer_id, epoch)
    if origin is not Origin.CLIENT:
        return None
    if valid is not None:
        _check_first_sequence(producers, valid, producer_id, sequence)
    return producers.check(producer_id, epoch, sequence, header.last_offset_delta, True)


def _check_first_sequence(
    producers: ProducerState, guard: VerificationGuard, producer_id: int, sequence: int
) -> None:
    """Check that a transaction begins with the lowest sequence number among the batches that waited for its
    verification.

    Raises `KafkaError` OUT_OF_ORDER_SEQUENCE_NUMBER.
    """
    if guard.supports_epoch_bump and sequence and producers.is_unsequenced(producer_id):
        raise KafkaError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"Invalid sequence number for producer {producer_id}: {sequence} (incoming seq. number). "
            f"Expected sequence 0 for transactions v2 idempotent producer with no existing state.",
        )
    if sequence > guard.lowest_sequence:
        raise KafkaError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"Out of order sequence number for producer {producer_id}: {sequence} (incoming seq. number), "
            f"{guard.lowest_sequence} (earliest seen sequence)",
        )


def aborted_transactions(
    segments: SegmentList, index_interval_bytes: int, offset: int, end_offset: int
) -> list[AbortedTransaction]:
    """List the aborted transactions in a range of offsets; see `PartitionLog.aborted_transactions`."""
    found: list[AbortedTransaction] = []
    listed = segments.segments
    for at in range(max(0, segments.index_of(offset)), len(listed)):
        aborted = listed[at].aborted
        if aborted is None:
            continue
        index = aborted.index
        if index is None:
            index = aborted_in(aborted, segments.home.directory, listed, listed[at], index_interval_bytes)
        if index.collect(offset, end_offset, found):
            break
    return found
