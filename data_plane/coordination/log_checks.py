"""Checks that a coordinator makes before it decides, to find out whether the log would refuse the batch. If
the log refused a batch after the decision, the coordinator would have to reload its state.
"""

from __future__ import annotations

from odradek.data_plane.coordination.records import RecordProducer, TransactionEnd
from odradek.data_plane.log.partition_log import PartitionLog
from odradek.named_states import reached
from odradek.wire.errors import ErrorCode, KafkaError


def check_producer(log: PartitionLog, producer: RecordProducer) -> None:
    """Check the batch of a transaction by the log's rules (`odradek.data_plane.log.transaction_rules`).

    Raises:
        KafkaError: INVALID_TXN_STATE (the transaction is neither open here nor verified), INVALID_PRODUCER_EPOCH
        DiskError
    """
    producers = log.load_producers()
    if (
        log.config.verifies_transactions
        and not producers.has_ongoing(producer.producer_id, producer.epoch)
        and not log.producers.is_valid(producer.producer_id, producer.guard)
    ):
        reached("coordination.offsets_outside_transaction_refused")
        raise KafkaError(
            ErrorCode.INVALID_TXN_STATE, "the offsets do not belong to an open transaction of this producer"
        )
    producers.check_epoch(producer.producer_id, producer.epoch)


def check_end(log: PartitionLog, end: TransactionEnd) -> None:
    """Check the marker that ends a transaction, as the log would check it.

    Raises:
        KafkaError: INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED
        DiskError
    """
    log.load_producers().check_marker(
        end.producer_id, end.producer_epoch, end.coordinator_epoch, end.transaction_version
    )
