"""Log lines for operators about batches that were refused for their producer's sequence or epoch. PURE.

Such a refusal has one of four causes. A client has a bug, a second writer has the same producer id, or records were
lost here. Or it is harmless: the first batch of a transaction got a retriable error, and this one was under way
behind it. Only both sides' numbers and the client's address show which. Lines are bounded
(`odradek.data_plane.line_budget`), because a client may go on sending.
"""

from __future__ import annotations

from odradek.data_plane.line_budget import LineBudget
from odradek.data_plane.log.partition_log import PartitionLog
from odradek.env.ports import Buffer, Clock, Log
from odradek.serving.contract import Context
from odradek.wire.batches.batch_header import parse_header
from odradek.wire.errors import ErrorCode, KafkaError

PRODUCER_ERRORS = frozenset((ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.INVALID_PRODUCER_EPOCH))


class ProducerRefusals:
    """The log lines about refused batches, for all connections of a broker."""

    def __init__(self, clock: Clock, log: Log) -> None:
        self._budget = LineBudget(clock)
        self._log = log

    def note(self, context: Context, log: PartitionLog, batch: Buffer, error: KafkaError) -> None:
        """Log a `batch` that `log` refused with one of `PRODUCER_ERRORS`, so its header was found good."""
        held_back = self._budget.take()
        if held_back is None:
            return
        header = parse_header(batch, 0)
        known = log.load_producers().entries.get(header.producer_id)
        self._log.warning(
            "produce.sequence_refused",
            error=error.code.name,
            topic=log.topic,
            partition=log.partition,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
            records=header.last_offset_delta + 1,
            known_epoch=-1 if known is None else known.epoch,
            known_sequence=-1 if known is None else known.last_sequence,
            known_offset=-1 if known is None else known.last_offset,
            log_end_offset=log.log_end_offset,
            client=context.client_address,
            request=context.number,
            client_id=context.client_id,
            held_back=held_back,
        )
