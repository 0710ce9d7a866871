"""The state machine of a producer's transactions: calls, failures, and the consequences of error codes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.client.errors import (
    ClientError,
    IllegalTransactionCall,
    ProducerFencedError,
    RequestTimedOut,
    TransactionAbortableError,
    TransactionFatalError,
)
from odradek.client.producer.transaction_errors import Verdict, produce_is_fatal, verdict, worst
from odradek.client.producer.transaction_state import Step, TransactionMachine, TransactionState
from odradek.wire.api import ApiKey
from odradek.wire.errors import ErrorCode, KafkaError

S = TransactionState
CALLS = (Step.INITIALIZE, Step.BEGIN, Step.PREPARE, Step.COMMIT, Step.ABORT)
WAY_TO: dict[TransactionState, list[Step]] = {
    S.UNINITIALIZED: [],
    S.INITIALIZING: [Step.INITIALIZE],
    S.READY: [Step.INITIALIZE, Step.INITIALIZED],
    S.IN_TRANSACTION: [Step.INITIALIZE, Step.INITIALIZED, Step.BEGIN],
    S.PREPARED: [Step.INITIALIZE, Step.INITIALIZED, Step.BEGIN, Step.PREPARE],
    S.COMMITTING: [Step.INITIALIZE, Step.INITIALIZED, Step.BEGIN, Step.COMMIT],
    S.ABORTING: [Step.INITIALIZE, Step.INITIALIZED, Step.BEGIN, Step.ABORT],
}
ALLOWED: dict[TransactionState, set[Step]] = {
    S.UNINITIALIZED: {Step.INITIALIZE},
    S.INITIALIZING: {Step.INITIALIZE},
    S.READY: {Step.BEGIN},
    S.IN_TRANSACTION: {Step.PREPARE, Step.COMMIT, Step.ABORT},
    S.PREPARED: {Step.PREPARE, Step.COMMIT, Step.ABORT},
    S.COMMITTING: {Step.COMMIT},
    S.ABORTING: {Step.ABORT},
    S.ABORTABLE_ERROR: {Step.ABORT},
    S.FATAL_ERROR: set(),
}
LOST = RequestTimedOut("not delivered")
FENCED = KafkaError(ErrorCode.PRODUCER_FENCED)


def machine_in(state: TransactionState) -> TransactionMachine:
    """Make a machine in this state."""
    machine = TransactionMachine()
    if state is S.ABORTABLE_ERROR:
        machine = machine_in(S.IN_TRANSACTION)
        machine.fail(LOST)
    elif state is S.FATAL_ERROR:
        machine.fail_for_good(FENCED)
    else:
        for step in WAY_TO[state]:
            machine.make(step)
    assert machine.state is state
    return machine


@pytest.mark.parametrize("state", S, ids=lambda state: state.name)
@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.value)
def test_each_state_allows_its_calls_and_no_others(state: TransactionState, call: Step) -> None:
    """A call that the table does not allow in a state raises. The state remains as it was."""
    machine = machine_in(state)
    if call in ALLOWED[state]:
        machine.make(call)
        return
    wanted = {S.ABORTABLE_ERROR: TransactionAbortableError, S.FATAL_ERROR: ProducerFencedError}
    with pytest.raises(wanted.get(state, IllegalTransactionCall)):
        machine.make(call)
    assert machine.state is state


@pytest.mark.parametrize("state", S, ids=lambda state: state.name)
def test_records_are_sent_within_a_sound_transaction_only(state: TransactionState) -> None:
    """Only IN_TRANSACTION allows records. In any other state `check` raises, and its error says why."""
    machine = machine_in(state)
    if state is S.IN_TRANSACTION:
        machine.check("send")
        return
    with pytest.raises((IllegalTransactionCall, ClientError)) as caught:
        machine.check("send")
    if isinstance(caught.value, IllegalTransactionCall):
        assert str(caught.value) == f"send was refused: {state.value}"


@pytest.mark.parametrize("state", S, ids=lambda state: state.name)
def test_a_failure_leaves_nothing_but_to_abort_where_something_may_fail(state: TransactionState) -> None:
    """A failure makes an open transaction abortable.

    In any other state, for example while the transaction is being aborted, the failure changes nothing.
    """
    machine = machine_in(state)
    machine.fail(LOST)
    fails = state in (S.IN_TRANSACTION, S.PREPARED, S.COMMITTING, S.ABORTABLE_ERROR)
    assert machine.state is (S.ABORTABLE_ERROR if fails else state)


def test_the_first_failure_is_the_cause() -> None:
    """The first of several failures is reported as the cause, since later ones follow from it."""
    machine = machine_in(S.IN_TRANSACTION)
    machine.fail(LOST)
    machine.fail(KafkaError(ErrorCode.MESSAGE_TOO_LARGE))
    with pytest.raises(TransactionAbortableError, match="not delivered") as caught:
        machine.make(Step.COMMIT)
    assert caught.value.__cause__ is LOST


def test_each_caller_gets_an_exception_of_its_own() -> None:
    """Each caller gets a new exception object, since one object raised twice would mix two tracebacks."""
    machine = machine_in(S.ABORTABLE_ERROR)
    raised = []
    for _ in range(2):
        with pytest.raises(TransactionAbortableError) as caught:
            machine.raise_error()
        raised.append(caught.value)
    assert raised[0] is not raised[1]
    assert str(raised[0]) == str(raised[1])


@pytest.mark.parametrize("state", S, ids=lambda state: state.name)
@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (ErrorCode.PRODUCER_FENCED, ProducerFencedError),
        (ErrorCode.INVALID_PRODUCER_EPOCH, ProducerFencedError),
        (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, TransactionFatalError),
    ],
)
def test_a_fatal_error_ends_every_state(
    state: TransactionState, code: ErrorCode, kind: type[TransactionFatalError]
) -> None:
    """After a fatal error every call raises. A fenced producer has its own exception class."""
    machine = machine_in(state)
    machine.fail_for_good(KafkaError(code))
    machine.fail(LOST)
    machine.fail_for_good(LOST)
    for call in CALLS:
        with pytest.raises(ProducerFencedError if state is S.FATAL_ERROR else kind) as caught:
            machine.make(call)
        assert state is S.FATAL_ERROR or type(caught.value) is kind


def test_the_end_forgets_what_the_transaction_left() -> None:
    """When a transaction ends, its error and all of its flags are reset."""
    machine = machine_in(S.ABORTABLE_ERROR)
    machine.started = machine.perhaps_started = machine.ended = True
    machine.bump_needed = machine.id_is_lost = True
    machine.make(Step.ABORT)
    machine.raise_error()
    machine.make(Step.END)
    assert machine.error is None
    left = (machine.started, machine.perhaps_started, machine.ended, machine.bump_needed, machine.id_is_lost)
    assert not any(left)
    machine.make(Step.BEGIN)


def test_impossible_news_are_a_bug() -> None:
    """A transaction is reported as ended although no end was requested. This is a bug (AssertionError)."""
    with pytest.raises(AssertionError):
        machine_in(S.READY).make(Step.END)


@given(
    st.lists(
        st.sampled_from(
            [
                *Step,
                lambda machine: machine.fail(LOST),
                lambda machine: machine.fail_for_good(FENCED),
            ]
        ),
        max_size=30,
    )
)
def test_a_commit_is_never_told_after_a_failure(
    steps: list[Step | Callable[[TransactionMachine], None]],
) -> None:
    """COMMITTING leads to READY only if nothing has failed since the transaction began."""
    machine = TransactionMachine()
    failed = False
    for step in steps:
        before = machine.state
        if not isinstance(step, Step):
            step(machine)
            failed = failed or before in (S.IN_TRANSACTION, S.PREPARED, S.COMMITTING)
            continue
        try:
            machine.make(step)
        except (AssertionError, IllegalTransactionCall, ClientError):
            assert machine.state is before
            continue
        if step is Step.BEGIN:
            failed = False
        if step is Step.END and before is S.COMMITTING:
            assert not failed
        assert machine.keeps_records <= (machine.error is None)


@pytest.mark.parametrize(
    ("key", "code", "expected"),
    [
        (ApiKey.INIT_PRODUCER_ID, ErrorCode.CONCURRENT_TRANSACTIONS, Verdict.RETRY),
        (ApiKey.INIT_PRODUCER_ID, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, Verdict.RETRY),
        (ApiKey.INIT_PRODUCER_ID, ErrorCode.NOT_COORDINATOR, Verdict.FIND_AGAIN),
        (ApiKey.INIT_PRODUCER_ID, ErrorCode.PRODUCER_FENCED, Verdict.FATAL),
        (ApiKey.INIT_PRODUCER_ID, ErrorCode.INVALID_TRANSACTION_TIMEOUT, Verdict.FATAL),
        (ApiKey.ADD_PARTITIONS_TO_TXN, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, Verdict.RETRY),
        (ApiKey.ADD_PARTITIONS_TO_TXN, ErrorCode.TOPIC_AUTHORIZATION_FAILED, Verdict.ABORT),
        (ApiKey.ADD_PARTITIONS_TO_TXN, ErrorCode.INVALID_TXN_STATE, Verdict.FATAL),
        (ApiKey.ADD_PARTITIONS_TO_TXN, ErrorCode.INVALID_PRODUCER_ID_MAPPING, Verdict.ABORT),
        (ApiKey.ADD_PARTITIONS_TO_TXN, ErrorCode.INVALID_PRODUCER_EPOCH, Verdict.FATAL),
        (ApiKey.ADD_OFFSETS_TO_TXN, ErrorCode.GROUP_AUTHORIZATION_FAILED, Verdict.ABORT),
        (ApiKey.ADD_OFFSETS_TO_TXN, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, Verdict.FATAL),
        (ApiKey.TXN_OFFSET_COMMIT, ErrorCode.ILLEGAL_GENERATION, Verdict.ABORT),
        (ApiKey.TXN_OFFSET_COMMIT, ErrorCode.UNKNOWN_MEMBER_ID, Verdict.ABORT),
        (ApiKey.TXN_OFFSET_COMMIT, ErrorCode.FENCED_INSTANCE_ID, Verdict.ABORT),
        (ApiKey.TXN_OFFSET_COMMIT, ErrorCode.INVALID_PRODUCER_EPOCH, Verdict.FATAL),
        (ApiKey.TXN_OFFSET_COMMIT, ErrorCode.REQUEST_TIMED_OUT, Verdict.FIND_AGAIN),
        (ApiKey.END_TXN, ErrorCode.TRANSACTION_ABORTABLE, Verdict.ABORT),
        (ApiKey.END_TXN, ErrorCode.INVALID_TXN_STATE, Verdict.FATAL),
        (ApiKey.END_TXN, ErrorCode.NONE, Verdict.DONE),
    ],
)
def test_a_code_means_what_it_means_to_kafkas_client(key: ApiKey, code: ErrorCode, expected: Verdict) -> None:
    """Each error code has the consequence that Kafka's TransactionManager draws, for each request."""
    assert verdict(key, code) is expected


def test_of_several_codes_the_worst_counts() -> None:
    """A response has several codes. OPERATION_NOT_ATTEMPTED counts less than the code that caused it."""
    codes = [ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.NONE, ErrorCode.TOPIC_AUTHORIZATION_FAILED]
    expected = (Verdict.ABORT, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    assert worst(ApiKey.ADD_PARTITIONS_TO_TXN, codes) == expected


def test_an_old_epoch_in_produce_is_abortable() -> None:
    """In a Produce response, only PRODUCER_FENCED is fatal (KIP-588).

    After INVALID_PRODUCER_EPOCH the producer may abort. The answer to the abort shows whether it is fenced.
    """
    assert produce_is_fatal(ErrorCode.PRODUCER_FENCED)
    assert not produce_is_fatal(ErrorCode.INVALID_PRODUCER_EPOCH)
    assert not produce_is_fatal(ErrorCode.MESSAGE_TOO_LARGE)
