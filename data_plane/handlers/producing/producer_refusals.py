"""Log lines for operators about batches that were refused for their producer's sequence or epoch. PURE.

A refusal has one of four causes. The client has a bug, a second writer uses the same producer id, or this log
has lost records. The fourth cause is harmless: the first batch of a transaction got a retriable error, after
the client had already sent the present batch. To find the cause, an operator needs the numbers of both sides
and the client's address. The number of lines is limited (`odradek.data_plane.line_budget`), because a client
may send refused batches all the time.
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
    """The writer of log lines about refused batches, for all connections of a broker."""

    def __init__(self, clock: Clock, log: Log) -> None:
        self._budget = LineBudget(clock)
        self._log = log

    def note(self, context: Context, log: PartitionLog, batch: Buffer, error: KafkaError) -> None:
        """Log that `log` refused this batch with one of `PRODUCER_ERRORS`. The batch has a valid header."""
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
