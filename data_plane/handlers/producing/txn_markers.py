"""Handler of WriteTxnMarkers: end transactions in partitions that this broker leads, as a coordinator
requests (KIP-98). A request on a connection that its sender has replaced is not handled (`MarkerSenders`).

Operators send such requests, too, to abort a hanging transaction (KIP-664).
"""

from __future__ import annotations

from odradek.data_plane.handlers.desk import Desk
from odradek.data_plane.line_budget import LINES_MAX, LineBudget
from odradek.data_plane.transactions.marker_senders import MarkerSenders
from odradek.data_plane.transactions.marker_writer import MarkerWriter
from odradek.serving.contract import CLOSE, Context, Result
from odradek.serving.steps import in_slices
from odradek.wire.messages.write_txn_markers import WritableTxnMarker, WriteTxnMarkersRequest

BROKERS = "broker-"
"""The prefix of brokers' client ids. It only decides whether a request is logged."""


class WriteTxnMarkersHandler:
    """Handler of WriteTxnMarkers (API 27). An error of one partition does not affect the others."""

    def __init__(self, desk: Desk, writer: MarkerWriter) -> None:
        self._desk = desk
        self._writer = writer
        self._senders = MarkerSenders()
        self._budget = LineBudget(desk.clock)

    def handle(self, context: Context, request: WriteTxnMarkersRequest) -> Result:
        if self._senders.has_replaced(context):
            return CLOSE
        self._senders.note(context)
        if not (context.client_id or "").startswith(BROKERS):
            for marker in request.markers[:LINES_MAX]:
                self._log_marker(context, marker)
        sender = context.for_later()
        work = self._writer.write_all(request, is_late=lambda: self._senders.has_replaced(sender))
        return in_slices(self._desk.long_work, work)

    def _log_marker(self, context: Context, marker: WritableTxnMarker) -> None:
        """Log that a client that is not a broker ends a transaction. An operator needs the client's address."""
        held_back = self._budget.take()
        if held_back is not None:
            self._desk.log.info(
                "transactions.marker_asked",
                client=context.client_address,
                client_id=context.client_id,
                producer_id=marker.producer_id,
                producer_epoch=marker.producer_epoch,
                coordinator_epoch=marker.coordinator_epoch,
                is_commit=marker.transaction_result,
                partitions=sum(len(topic.partition_indexes) for topic in marker.topics),
                held_back=held_back,
            )
