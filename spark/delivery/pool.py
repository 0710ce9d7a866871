"""Operations on the pool of a query's transactional ids, which are called slots: find free slots and open
transactions, and end single transactions. PURE.

The operations send admin requests (KIP-664) to the transaction coordinators. An EndTxn request names a transaction by
producer id and epoch (KIP-98). Since KIP-890 the epoch grows with each transaction. So EndTxn ends exactly the named
transaction, or nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from odradek.client.admin.admin_transactions import TIMELESS_MS, describe_transactions, list_transactions
from odradek.client.core.operation import Operation, Wait
from odradek.client.core.requests import refresh_metadata
from odradek.client.core.scatter import to_transaction_coordinators
from odradek.client.errors import UnsupportedByBroker, broker_error, error_code, is_retriable
from odradek.spark.delivery.two_phase import Prepared
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.schema.versions import END_TXN_EPOCHS_GROW, INIT_PRODUCER_ID_TWO_PHASE

if TYPE_CHECKING:
    from odradek.client.admin.admin_transactions import TransactionDescription, TransactionListing
    from odradek.client.core.client_core import ClientCore

__all__ = [
    "PREFIX",
    "driver_id",
    "end_held",
    "end_transactions",
    "free_slots",
    "has_committed",
    "once_driver_id",
    "open_slots",
    "open_tasks",
    "prepared_slots",
    "query_of",
    "slot_id",
    "transactional_id",
]

PREFIX = "odradek-spark-2pc-"
_ONCE = "odradek-spark-"
_OPEN = "Ongoing"
_BEGUN = "Empty"
_COMMITTED = ("PrepareCommit", "CompleteCommit")
_SLOTS_LOOKED_AT = 16
_SLOTS_MAX = 1024
_EPOCHS_GROW_LEVEL = 2
"""The level of `transaction.version` from which EndTxn gives a new epoch (KIP-890)."""
_ID = re.compile(rf"{PREFIX}(.*)-(\d+)-(\d+)", re.DOTALL)
_AT_A_TIME = 64
_ENDED_BEFORE = frozenset(
    {
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
    }
)
_FENCED = (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)


def transactional_id(query: str, task: int) -> str:
    """Return the transactional id of a task of delivery=exactly-once. The next producer with this id fences all
    earlier attempts.
    """
    return f"{_ONCE}{query}-{task}"


def slot_id(query: str, task: int, slot: int) -> str:
    """Return the transactional id for a slot of a task's pool."""
    return f"{PREFIX}{query}-{task}-{slot}"


def once_driver_id(query: str) -> str:
    """Return the transactional id with which drivers of delivery=exactly-once write a query's completions."""
    return f"{_ONCE}{query}-driver"


def driver_id(query: str) -> str:
    """Return the transactional id with which drivers write a query's decisions."""
    return f"{PREFIX}{query}-driver"


def query_of(transactional_id: str) -> str | None:
    """Return the query to which a transactional id of the pool belongs; None for any other id."""
    match = _ID.fullmatch(transactional_id)
    return None if match is None else match[1]


def free_slots(core: ClientCore, query: str, task: int, first: int, timeout: float) -> Operation[list[int]]:
    """Find slots (transactional ids) of a task without an open transaction. Return the numbers of one or more
    slots, in order from `first` on.

    Raises `KafkaError`, `ClientError`.
    """
    while True:
        numbers = range(first, first + _SLOTS_LOOKED_AT)
        names = [slot_id(query, task, number) for number in numbers]
        described = yield from describe_transactions(core, names, timeout=timeout)
        free = [number for number, each in zip(numbers, described, strict=True) if not _is_open(each)]
        if free:
            return free
        first += _SLOTS_LOOKED_AT
        if first >= _SLOTS_MAX:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE,
                f"task {task} of {query} has {_SLOTS_MAX} open transactions, and no more are allowed: "
                "end them by `odradek spark two-phase`",
            )


def _is_open(each: TransactionDescription) -> bool:
    """True if a transaction is open. Raises the error of a coordinator that does not answer."""
    if each.error is None:
        return each.state not in ("Empty", "CompleteCommit", "CompleteAbort", "Dead")
    if _is_unknown(each):
        return False
    raise each.error


def _is_unknown(each: TransactionDescription) -> bool:
    """True if the transactional id does not exist: it was never used, or has expired."""
    return isinstance(each.error, KafkaError) and each.error.code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


def prepared_slots(core: ClientCore, query: str, timeout: float) -> Operation[tuple[Prepared, ...]]:
    """List those slots of a query that have an open transaction. Raises as `free_slots` does."""
    try:
        return (yield from open_slots(core, query, timeout, states=(_OPEN,)))
    except UnsupportedByBroker:
        # These brokers do not support two-phase commit, so no transaction can be prepared.
        return ()


def open_slots(
    core: ClientCore, query: str, timeout: float, *, states: Sequence[str] = (_OPEN, _BEGUN)
) -> Operation[tuple[Prepared, ...]]:
    """List those slots of a query that have an open transaction, or a producer that may open one. Raises as
    `free_slots` does.
    """
    pattern = f"{re.escape(PREFIX + query)}-[0-9]+-[0-9]+"
    listed = yield from _listed(core, states, pattern, timeout)
    names = [each.transactional_id for each in listed]
    described = (yield from describe_transactions(core, names, timeout=timeout)) if names else []
    found = []
    for each in described:
        match = _ID.fullmatch(each.transactional_id)
        if match is None or (each.error is None and each.state not in states):
            continue
        if _is_open(each) or each.error is None:
            found.append(Prepared(int(match[2]), int(match[3]), each.producer_id, each.producer_epoch))
    return tuple(sorted(found))


def has_committed(core: ClientCore, query: str, timeout: float) -> Operation[bool]:
    """True if the last transaction of any task of the query was committed, in either mode.

    The coordinators know this without the decisions topic, until the next producer with the same transactional id.
    It is false for brokers that cannot list by pattern (KIP-1152). Raises as `free_slots` does.
    """
    name = re.escape(query)
    pattern = f"{_ONCE}{name}-[0-9]+|{PREFIX}{name}-[0-9]+-[0-9]+"
    try:
        found = yield from _listed(core, _COMMITTED, pattern, timeout)
    except UnsupportedByBroker:
        return False
    return bool(found)


def open_tasks(core: ClientCore, query: str, timeout: float) -> Operation[tuple[int, ...]]:
    """List the tasks of delivery=exactly-once that have an open transaction. Raises as `free_slots` does."""
    start = f"{_ONCE}{query}-"
    try:
        found = yield from _listed(core, (_OPEN,), f"{re.escape(start)}[0-9]+", timeout)
    except UnsupportedByBroker:
        return ()
    return tuple(sorted(int(each.transactional_id.removeprefix(start)) for each in found))


def _listed(
    core: ClientCore, states: Sequence[str], pattern: str, timeout: float
) -> Operation[list[TransactionListing]]:
    """List the transactions in these states whose ids match the pattern. Ask again while a coordinator moves."""
    deadline = core.now + timeout
    attempt = 0
    while True:
        try:
            return (
                yield from list_transactions(
                    core, states=states, transactional_id_pattern=pattern, timeout=deadline - core.now
                )
            )
        except KafkaError as error:
            # A broker has left, and other coordinators have its transactions now. So ask all coordinators again.
            wake_at = core.now + core.backoff(attempt)
            if error.code is not ErrorCode.BROKER_NOT_AVAILABLE or wake_at >= deadline:
                raise
        attempt += 1
        yield Wait(until=wake_at)


def _pause(core: ClientCore, attempt: int, deadline: float, failure: Exception) -> Operation[None]:
    """Wait before the next attempt, and fetch the metadata anew. Raise `failure` if no time is left."""
    wake_at = core.now + core.backoff(attempt)
    if wake_at >= deadline:
        raise failure
    yield Wait(until=wake_at)
    yield from refresh_metadata(core, (), timeout=deadline - core.now)


def end_held(
    core: ClientCore, query: str, held: Sequence[Prepared], *, commit: bool, timeout: float
) -> Operation[list[Prepared]]:
    """Commit or abort transactions that tasks of delivery=exactly-once hold open. Return those that had ended before,
    perhaps by an earlier request without an answer.

    The producer id and epoch of an attempt name its only transaction, so nothing else is ended. Raises `KafkaError`,
    `ClientError`.
    """
    from odradek.wire.messages.end_txn import EndTxnRequest

    deadline = core.now + timeout
    level = core.cluster.features.get("transaction.version", 0)
    version_max = None if level >= _EPOCHS_GROW_LEVEL else END_TXN_EPOCHS_GROW - 1
    pending = {transactional_id(query, each.task): each for each in held}
    ended: list[Prepared] = []
    attempt = 0
    while pending:
        routed = yield from to_transaction_coordinators(core, list(pending), deadline)
        for error in routed.missing.values():
            raise error
        failure: Exception = next(
            iter(routed.errors.values()), KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, query)
        )
        calls = []
        for node, of_node in routed.by_node.items():
            for name in of_node:
                each = pending[name]
                request = EndTxnRequest(name, each.producer_id, each.producer_epoch, commit)
                calls.append(
                    (name, core.call(request, node=node, deadline=deadline, version_max=version_max))
                )
        if calls:
            yield Wait([call for _, call in calls])
        for name, call in calls:
            refused: Exception | None = call.error
            if call.error is None:
                code = error_code(call.response.error_code)
                if code is ErrorCode.NONE:
                    del pending[name]
                    continue
                if code in _ENDED_BEFORE:
                    ended.append(pending.pop(name))
                    continue
                refused = broker_error(code, None, f"transactional id {name}")
            assert refused is not None
            if not is_retriable(refused):
                raise refused
            failure = refused
        if not pending:
            break
        yield from _pause(core, attempt, deadline, failure)
        attempt += 1
    return ended


def end_transactions(
    core: ClientCore,
    query: str,
    wanted: Sequence[Prepared],
    *,
    commit: bool,
    timeout: float,
    all_open: bool = False,
) -> Operation[None]:
    """Commit or abort these transactions. Retry after failures of coordinators and connections.

    Transactions that have already ended are ignored. Later transactions with the same transactional id are
    not touched. With `all_open`, the caller knows that all transactions are still open. Raises `ClientError`,
    and `KafkaError`, e.g. INVALID_TXN_STATE if a transaction that must be committed was aborted.
    """
    deadline = core.now + timeout
    for begin in range(0, len(wanted), _AT_A_TIME):
        pending = list(wanted[begin : begin + _AT_A_TIME])
        # The transactions that are certainly still open before the next attempt. A request without an answer may have
        # ended its transaction, and another attempt may use the slot now. So a transaction is removed after its first
        # request.
        certain = set(pending) if all_open else set[Prepared]()
        attempt = 0
        while pending:
            pending, failure = yield from _end_once(core, query, pending, commit, certain, deadline)
            if not pending:
                break
            yield from _pause(core, attempt, deadline, failure)
            attempt += 1


def _end_once(
    core: ClientCore,
    query: str,
    wanted: list[Prepared],
    commit: bool,
    certain: set[Prepared],
    deadline: float,
) -> Operation[tuple[list[Prepared], Exception]]:
    """Try to end each transaction once. Return the transactions that must be tried again, and the error of
    one of them.

    All transactions for which a request was sent are removed from `certain`, because they may have ended.
    """
    from odradek.wire.messages.end_txn import EndTxnRequest

    names = {slot_id(query, each.task, each.slot): each for each in wanted}
    routed = yield from to_transaction_coordinators(core, list(names), deadline)
    for error in routed.missing.values():
        raise error
    failure: Exception = next(iter(routed.errors.values()), KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, query))
    again = [names[name] for name in routed.errors]
    calls = []
    for node, of_node in routed.by_node.items():
        for name in of_node:
            each = names[name]
            request = EndTxnRequest(name, each.producer_id, each.producer_epoch, commit)
            call = core.call(request, node=node, deadline=deadline, version_min=END_TXN_EPOCHS_GROW)
            calls.append((call, each))
    if calls:
        yield Wait([call for call, _ in calls])
    refused = []
    for call, each in calls:
        if call.error is not None:
            if not is_retriable(call.error):
                raise call.error
            failure = call.error
            again.append(each)
            continue
        code = error_code(call.response.error_code)
        if code is ErrorCode.NONE:
            continue
        error = broker_error(code, None, f"transactional id {slot_id(query, each.task, each.slot)}")
        if code in _ENDED_BEFORE:
            refused.append((each, code))
        elif is_retriable(error):
            failure = error
            again.append(each)
        else:
            raise error
    for each, code in refused:
        was_open = each in certain
        if (yield from _is_still_open(core, query, each, code, commit, was_open, deadline)):
            failure = broker_error(code, None, f"transactional id {slot_id(query, each.task, each.slot)}")
            again.append(each)
    certain.difference_update(each for _, each in calls)
    return again, failure


def _is_still_open(
    core: ClientCore,
    query: str,
    wanted: Prepared,
    code: ErrorCode,
    commit: bool,
    was_open: bool,
    deadline: float,
) -> Operation[bool]:
    """True if the transaction is open and must be ended by another request.

    If another producer has resumed the transaction by mistake, it is taken over and ended here. Raises `KafkaError`
    if a transaction that must be committed was aborted.
    """
    name = slot_id(query, wanted.task, wanted.slot)
    (found,) = yield from describe_transactions(core, [name], timeout=deadline - core.now)
    if found.error is not None and not _is_unknown(found):
        raise found.error
    is_same_producer = found.producer_id == wanted.producer_id
    if found.state == _OPEN and is_same_producer and found.producer_epoch == wanted.producer_epoch:
        if code in _FENCED:
            yield from _resume_and_end(core, name, wanted, commit, deadline)
        return True
    # A higher epoch means that the slot was used again. Until this decision is complete, no later transaction
    # of the slot can be committed. So if the later state is a commit, it is the commit of the wanted
    # transaction.
    is_later = not is_same_producer or found.producer_epoch > wanted.producer_epoch
    is_committed = is_later and found.state in ("PrepareCommit", "CompleteCommit")
    is_aborted = (
        is_same_producer
        and found.producer_epoch == wanted.producer_epoch + 1
        and found.state in ("PrepareAbort", "CompleteAbort")
    )
    # If the transaction was certainly open and is not committed, another program has aborted it. If it was
    # not certainly open, it may have been committed. If then an operator or a later attempt has fenced the
    # slot, its state no longer shows the commit.
    if commit and (is_aborted or (was_open and not is_committed)):
        raise KafkaError(
            ErrorCode.INVALID_TXN_STATE,
            f"the sink decided to commit the transaction of transactional id {name}, but another "
            f"program aborted it: rows of task {wanted.task} of {query} are lost",
        )
    return False


def _resume_and_end(
    core: ClientCore, name: str, wanted: Prepared, commit: bool, deadline: float
) -> Operation[None]:
    """Take over a transaction that another producer has resumed by mistake (KIP-939), and end it."""
    from odradek.wire.messages.end_txn import EndTxnRequest
    from odradek.wire.messages.init_producer_id import InitProducerIdRequest

    routed = yield from to_transaction_coordinators(core, [name], deadline)
    [node] = routed.by_node or [None]
    resume = InitProducerIdRequest(name, TIMELESS_MS, enable2_pc=True, keep_prepared_txn=True)
    call = core.call(resume, node=node, deadline=deadline, version_min=INIT_PRODUCER_ID_TWO_PHASE)
    yield Wait([call])
    if call.error is not None or error_code(call.response.error_code) is not ErrorCode.NONE:
        return
    answer = call.response
    ongoing = answer.ongoing_txn_producer_id, answer.ongoing_txn_producer_epoch
    if ongoing != (wanted.producer_id, wanted.producer_epoch):
        return
    end = EndTxnRequest(name, answer.producer_id, answer.producer_epoch, commit)
    yield Wait([core.call(end, node=node, deadline=deadline, version_min=END_TXN_EPOCHS_GROW)])
