"""Handlers of InitProducerId and EndTxn, which start a producer and end its transactions."""

from __future__ import annotations

from odradek.data_plane.handlers.desk import Desk
from odradek.data_plane.handlers.transacting.fencing import fenced_code
from odradek.data_plane.transactions.coordinator import TransactionCoordinator
from odradek.data_plane.transactions.requests import EndTransaction, InitProducer
from odradek.data_plane.transactions.state import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from odradek.metadata_quorum.features import EPOCHS_GROW_LEVEL
from odradek.serving.contract import Context, Result
from odradek.serving.steps import Steps, asked
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from odradek.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from odradek.wire.schema.versions import END_TXN_EPOCHS_GROW, END_TXN_FENCED, INIT_PRODUCER_ID_FENCED


class InitProducerIdHandler:
    """Handler of InitProducerId (API 22). Idempotent producers have no transactional id; their producer ids come
    from blocks that the controller allocates (KIP-730).
    """

    def __init__(self, desk: Desk, transactions: TransactionCoordinator) -> None:
        self._desk = desk
        self._transactions = transactions
        self._ids = transactions.producer_ids

    def handle(self, context: Context, request: InitProducerIdRequest) -> Result:
        if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_PRODUCER_EPOCH):
            return _refused(ErrorCode.INVALID_REQUEST)
        if request.transactional_id is not None:
            code = self._refused_settings(request)
            if code:
                return _refused(code)
        return self._desk.steps.begin(self._answer(context.api_version, request))

    def _refused_settings(self, request: InitProducerIdRequest) -> ErrorCode:
        settings = self._transactions.settings
        if not request.transactional_id:
            return ErrorCode.INVALID_REQUEST
        if request.enable2_pc and not settings.two_phase_commit:
            return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        if request.keep_prepared_txn and not settings.two_phase_commit:
            return ErrorCode.UNSUPPORTED_VERSION
        if not request.enable2_pc and not 0 < request.transaction_timeout_ms <= settings.timeout_ms_max:
            return ErrorCode.INVALID_TRANSACTION_TIMEOUT
        return ErrorCode.NONE

    def _answer(self, version: int, request: InitProducerIdRequest) -> Steps[InitProducerIdResponse]:
        if self._ids.is_empty and (code := (yield asked(self._ids.fill))):
            return _refused(code)
        if request.transactional_id is None:
            producer_id = self._ids.take()
            if producer_id is None:
                return _refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            return InitProducerIdResponse(0, ErrorCode.NONE, producer_id, 0)
        init = InitProducer(
            request.transactional_id,
            request.transaction_timeout_ms,
            request.producer_id,
            request.producer_epoch,
            request.enable2_pc,
            request.keep_prepared_txn,
        )
        producer = yield from self._transactions.ask(init.transactional_id, init)
        return InitProducerIdResponse(
            0,
            fenced_code(producer.code, version, INIT_PRODUCER_ID_FENCED),
            producer.producer_id,
            producer.producer_epoch,
            producer.ongoing_producer_id,
            producer.ongoing_producer_epoch,
        )


class EndTxnHandler:
    """Handler of EndTxn (API 26).

    It answers when the outcome is committed; markers are written after that.
    """

    def __init__(self, desk: Desk, transactions: TransactionCoordinator) -> None:
        self._desk = desk
        self._transactions = transactions
        self._ids = transactions.producer_ids

    def handle(self, context: Context, request: EndTxnRequest) -> Result:
        return self._desk.steps.begin(self._answer(context.api_version, request))

    def _answer(self, version: int, request: EndTxnRequest) -> Steps[EndTxnResponse]:
        if not request.transactional_id:
            return EndTxnResponse(0, ErrorCode.INVALID_REQUEST)
        if self._ids.is_empty:
            # Fetch a block of producer ids in advance, so that the next transaction finds one.
            self._desk.tasks.start_soon(self._ids.fill)
        end = EndTransaction(
            request.transactional_id,
            request.producer_id,
            request.producer_epoch,
            request.committed,
            EPOCHS_GROW_LEVEL if version >= END_TXN_EPOCHS_GROW else 0,
        )
        producer = yield from self._transactions.ask(end.transactional_id, end)
        code = fenced_code(producer.code, version, END_TXN_FENCED)
        if code or version < END_TXN_EPOCHS_GROW:
            return EndTxnResponse(0, code)
        return EndTxnResponse(0, code, producer.producer_id, producer.producer_epoch)


def _refused(code: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(0, code, NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
