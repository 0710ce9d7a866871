"""The state of a producer's transaction: it decides which calls and events may come next, and sends no
requests. PURE.

| state | meaning | calls that are allowed |
| --- | --- | --- |
| UNINITIALIZED | there is no producer id yet | init_transactions |
| INITIALIZING | InitProducerId was sent, perhaps without an answer | init_transactions again |
| READY | no transaction is open | begin_transaction |
| IN_TRANSACTION | a transaction is open | sends, offsets, prepare, commit_transaction, abort_transaction |
| PREPARED | all records are written, or will be; another system decides (KIP-939) | prepare again, commit_transaction, abort_transaction |
| COMMITTING | EndTxn was sent, perhaps without an answer | commit_transaction again |
| ABORTING | EndTxn was sent, perhaps without an answer | abort_transaction again |
| ABORTABLE_ERROR | a record or an offset was lost, so the transaction must not commit | abort_transaction |
| FATAL_ERROR | the producer is fenced, or the coordinator refuses it | close |

A call that times out leaves the state as it is, because the coordinator may or may not have performed it. The
application repeats the call.
"""

from __future__ import annotations

from enum import Enum

from odradek.client.errors import (
    IllegalTransactionCall,
    ProducerFencedError,
    TransactionAbortableError,
    TransactionFatalError,
)
from odradek.named_states import reached
from odradek.wire.errors import ErrorCode, KafkaError

__all__ = ["Step", "TransactionMachine", "TransactionState"]


class TransactionState(Enum):
    """The states of the table above. If a call is refused in a state, the error's text contains the value of this
    state.
    """

    UNINITIALIZED = "init_transactions was not called"
    INITIALIZING = "init_transactions has not succeeded yet"
    READY = "no transaction is open"
    IN_TRANSACTION = "a transaction is open"
    PREPARED = "the transaction is prepared: commit or abort it"
    COMMITTING = "the transaction is being committed: only commit_transaction may be called again"
    ABORTING = "the transaction is being aborted: only abort_transaction may be called again"
    ABORTABLE_ERROR = "the transaction can only be aborted"
    FATAL_ERROR = "the producer can only be closed"


class Step(Enum):
    """The calls and events that change the state. The value of a call is the name of its method."""

    INITIALIZE = "init_transactions"
    INITIALIZED = "a producer id came"
    FOUND_PREPARED = "a producer id came, and a prepared transaction with it"
    BEGIN = "begin_transaction"
    PREPARE = "prepare"
    COMMIT = "commit_transaction"
    ABORT = "abort_transaction"
    END = "the coordinator knows the outcome"


_S = TransactionState
_TRANSITIONS: dict[tuple[TransactionState, Step], TransactionState] = {
    (_S.UNINITIALIZED, Step.INITIALIZE): _S.INITIALIZING,
    (_S.INITIALIZING, Step.INITIALIZE): _S.INITIALIZING,
    (_S.INITIALIZING, Step.INITIALIZED): _S.READY,
    (_S.INITIALIZING, Step.FOUND_PREPARED): _S.PREPARED,
    (_S.READY, Step.BEGIN): _S.IN_TRANSACTION,
    (_S.IN_TRANSACTION, Step.PREPARE): _S.PREPARED,
    (_S.IN_TRANSACTION, Step.COMMIT): _S.COMMITTING,
    (_S.IN_TRANSACTION, Step.ABORT): _S.ABORTING,
    (_S.PREPARED, Step.PREPARE): _S.PREPARED,
    (_S.PREPARED, Step.COMMIT): _S.COMMITTING,
    (_S.PREPARED, Step.ABORT): _S.ABORTING,
    (_S.COMMITTING, Step.COMMIT): _S.COMMITTING,
    (_S.COMMITTING, Step.END): _S.READY,
    (_S.ABORTING, Step.ABORT): _S.ABORTING,
    (_S.ABORTING, Step.END): _S.READY,
    (_S.ABORTABLE_ERROR, Step.ABORT): _S.ABORTING,
}
_NEWS = frozenset({Step.INITIALIZED, Step.FOUND_PREPARED, Step.END})
"""The steps that are events instead of calls. An event in the wrong state is a bug."""
_MAY_FAIL = frozenset({_S.IN_TRANSACTION, _S.PREPARED, _S.COMMITTING})
"""The states in which a failure leads to ABORTABLE_ERROR. During an abort, a failure changes nothing."""
_FENCED = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH})


class TransactionMachine:
    """The state of one producer's transactions, and the facts that are needed to end a transaction.

    In the states ABORTABLE_ERROR and FATAL_ERROR, refused calls raise `error`. Its `__cause__` is the error that led to
    the state.
    """

    def __init__(self) -> None:
        self.state = TransactionState.UNINITIALIZED
        self.error: TransactionAbortableError | TransactionFatalError | None = None
        self.started = False
        """True once the coordinator knows this transaction, so that EndTxn must be sent."""
        self.perhaps_started = False
        """True if a request that would start the transaction got no answer."""
        self.ended = False
        """True once the coordinator has accepted the commit or abort. A new epoch may still be needed."""
        self.bump_needed = False
        """True if a new epoch is needed, because records with sequence numbers may be missing from the log (KIP-360).
        """
        self.id_is_lost = False
        """True if the coordinator has forgotten the producer id, so that EndTxn is not sent."""

    def make(self, step: Step) -> None:
        """Change the state by a call or an event. Raises `IllegalTransactionCall`, or the error of the current state."""
        after = _TRANSITIONS.get((self.state, step))
        if after is None:
            self._refuse(step)
        if step is Step.END:
            self.started = self.perhaps_started = self.ended = False
            self.bump_needed = self.id_is_lost = False
            self.error = None
        assert after is not None
        self.state = after

    def _refuse(self, step: Step) -> None:
        if step in _NEWS:
            raise AssertionError(f"the event {step.name} is impossible in the state {self.state.name}")
        self.check(step.value)
        raise IllegalTransactionCall(f"{step.value} was refused: {self.state.value}")

    def check(self, call: str) -> None:
        """Check that a transaction is open and has not failed, for the method named `call`. Raises as `make` does."""
        if self.state is TransactionState.IN_TRANSACTION:
            return
        self.raise_error()
        raise IllegalTransactionCall(f"{call} was refused: {self.state.value}")

    def raise_error(self) -> None:
        """Raise the error of a failed transaction or producer; return if there is none."""
        if self.error is not None and self.state in (
            TransactionState.ABORTABLE_ERROR,
            TransactionState.FATAL_ERROR,
        ):
            # Each caller gets its own exception object, because a traceback must not be shared.
            raise type(self.error)(*self.error.args) from self.error.__cause__

    def fail(self, cause: Exception) -> None:
        """Change to ABORTABLE_ERROR, because of `cause`. A later failure does not replace the first cause."""
        if self.state in _MAY_FAIL:
            self.error = TransactionAbortableError(f"the transaction must be aborted: {cause}")
            self.error.__cause__ = cause
            self.state = TransactionState.ABORTABLE_ERROR

    def fail_for_good(self, cause: Exception) -> None:
        """Change to FATAL_ERROR, because of `cause`. A later failure does not replace the first cause."""
        if self.state is TransactionState.FATAL_ERROR:
            reached("client.second_fatal_error_passed_over")
            return
        fenced = isinstance(cause, KafkaError) and cause.code in _FENCED
        kind = ProducerFencedError if fenced else TransactionFatalError
        self.error = kind(f"the producer must be closed: {cause}")
        self.error.__cause__ = cause
        self.state = TransactionState.FATAL_ERROR

    @property
    def keeps_records(self) -> bool:
        """True while records that were sent may still become part of the transaction."""
        return self.state in _MAY_FAIL

    @property
    def is_open(self) -> bool:
        """True if a transaction is open: running, failed or prepared."""
        return self.may_abort or self.state is TransactionState.PREPARED

    @property
    def may_abort(self) -> bool:
        """True if a transaction is open and the producer itself may abort it. False for a transaction that is prepared,
        or is being committed or aborted.
        """
        return self.state in (TransactionState.IN_TRANSACTION, TransactionState.ABORTABLE_ERROR)
