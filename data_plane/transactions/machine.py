"""The state machine of transactional ids: decisions on InitProducerId, added partitions, EndTxn, timeouts,
expiry. PURE. There is one for each partition of `__transaction_state`.

The decision table (KIP-98, KIP-360, KIP-890; the order of checks is Kafka's)
----------------------------------------------------------------------------
Each row is a state of the transactional id. Each column is a request with the right producer id and epoch.
`abort first` means: the epoch grows, the open transaction is aborted, and after that the request continues.

    state             InitProducerId     AddPartitionsToTxn    EndTxn commit            EndTxn abort
    ----------------  -----------------  --------------------  -----------------------  -----------------------------
    (unknown)         Empty, epoch 0     INVALID_PRODUCER_ID_  INVALID_PRODUCER_ID_     INVALID_PRODUCER_ID_MAPPING
                                         MAPPING               MAPPING
    Empty             Empty, epoch + 1   Ongoing               INVALID_TXN_STATE        v1 INVALID_TXN_STATE,
                                                                                        v2 PrepareAbort
    Ongoing           abort first        Ongoing               PrepareCommit            PrepareAbort
    PrepareCommit,    waits              waits                 CONCURRENT_TRANSACTIONS  CONCURRENT_TRANSACTIONS
    PrepareAbort
    CompleteCommit    Empty, epoch + 1   Ongoing               v1 NONE, v2 NONE if it   v1 INVALID_TXN_STATE,
                                                               is a retry, otherwise    v2 PrepareAbort unless it is
                                                               INVALID_TXN_STATE        a retry: INVALID_TXN_STATE
    CompleteAbort     Empty, epoch + 1   Ongoing               INVALID_TXN_STATE        v1 NONE, v2 NONE if it is a
                                                                                        retry, otherwise PrepareAbort

`waits` means: the request is held until the markers are written, but for `HELD_MS_MAX` at most. (Kafka
answers CONCURRENT_TRANSACTIONS at once.) Markers mostly take a few milliseconds, but a client pauses longer
before it repeats a request.

A wrong producer gets an error. This is INVALID_PRODUCER_ID_MAPPING for another producer id, and PRODUCER_FENCED
for another epoch. (InitProducerId gets PRODUCER_FENCED in both cases.) While markers are being written, wrong
producers get CONCURRENT_TRANSACTIONS instead, and repeat the request. Only a verification, and an EndTxn before
client version 2, still get the proper error then.

Since client version 2 the epoch grows with every end of a transaction. So an EndTxn with the epoch before the
newest one is a retry. It gets the answer of the first request.

If an admin client has written a marker, a partition may know a higher epoch of a producer id than the
coordinator. When that producer's transaction has ended, the id's epochs count as used up (`EPOCH_MAX - 1`). So
its producer is fenced, and the next producer gets a new id.

The last epoch, `EPOCH_MAX`, belongs to no producer. If a fencing needs this epoch, the transaction completes
under a new producer id, as in Kafka. A client that sends this epoch must have guessed it. The log of an
earlier release may have transactions in this epoch, which are aborted like all others.

A transaction's state is one record, with all its partitions. As in Kafka, a batch beyond the topic's
`max.message.bytes` or `segment.bytes` is refused with UNKNOWN_SERVER_ERROR. The size is checked when a
transaction grows, for the largest record that the transaction may ever need. The end of a transaction is never
refused, because the log accepts its record even if the limits have been lowered meanwhile.

A producer whose transaction the coordinator has aborted sends InitProducerId with its own id and epoch to
continue (KIP-360). This producer gets the epoch of that abort. A new producer gets the next epoch, which
fences the old producer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import attrs

from odradek.data_plane.coordination.asking import Answers, Ask, Deadlines, Reply, TimePasses, refused
from odradek.data_plane.coordination.records import CoordinatorRecord, TransactionEnd
from odradek.data_plane.transactions.counts import TransactionCounts
from odradek.data_plane.transactions.endings import (
    after_end,
    completed,
    decided,
    expected_producer,
    fenced,
    may_end,
    needs_next_id,
    outcome_of,
)
from odradek.data_plane.transactions.open_ages import OpenAges
from odradek.data_plane.transactions.requests import (
    AbortTimedOut,
    AddPartitions,
    DescribeTransaction,
    EndTransaction,
    ExpireIds,
    InitProducer,
    ListTransactions,
    MarkersWritten,
    Producer,
    Verified,
    VerifyPartitions,
)
from odradek.data_plane.transactions.state import (
    EPOCH_MAX,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_TIME,
    TIMELESS,
    Transaction,
    TransactionRecord,
    TransactionsState,
    TransactionStatus,
    record_bytes_max,
    record_of,
    tombstone_of,
    weight_of,
)
from odradek.data_plane.transactions.transactions_topic import TransactionSettings
from odradek.metadata_quorum.features import EPOCHS_GROW_LEVEL
from odradek.metadata_quorum.state_machine import Decision, DecisionContext
from odradek.named_states import reached
from odradek.wire.errors import ErrorCode

APPEND_BYTES_MAX = 1_048_588
"""Kafka's default of `max.message.bytes`, in bytes."""
HELD_MS_MAX = 500
HELD_MAX = 16
"""The most requests of one transactional id that may wait for its markers."""
CHECKED_MAX = 1_000
"""The most transactional ids that one decision aborts or forgets. Another decision handles the rest."""
CHECKED_BYTES_MAX = 1 << 20
"""The limit of one decision that aborts transactions, in bytes of records. The first record may exceed it."""

Changed = tuple[Transaction, ...]
"""The transactions that a decision has ended, so that their markers must be written."""


class Turn:
    """A decision while it is being made. Each of its records is applied to `state` at once."""

    __slots__ = ("answers", "now_ms", "records", "state", "wall_ms")

    def __init__(self, state: TransactionsState, now_ms: int, wall_ms: int) -> None:
        self.state = state
        self.now_ms = now_ms
        self.wall_ms = wall_ms
        self.records: list[CoordinatorRecord | TransactionEnd] = []
        self.answers: Answers = []

    def write(self, record: CoordinatorRecord) -> None:
        self.records.append(record)
        self.state = self.state.replay((record,))

    def answer(self, reply: Reply | None, response: Any) -> None:
        """Add an answer: `response` is sent to `reply` once all records of this turn are committed.

        If `reply` is None, do nothing.
        """
        if reply is not None:
            self.answers.append((reply, response))


_WRONG_PRODUCER = (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_ID_MAPPING)


def _code_of(response: Any) -> Any:
    return response.code if isinstance(response, (Producer, Verified)) else response


def _refused_like(response: Any, code: ErrorCode) -> Any:
    """Build a response of the same type as `response`, but with the error `code`."""
    return type(response)(code) if isinstance(response, (Producer, Verified)) else code


def refusal(ask: Ask, code: ErrorCode) -> Any:
    """Build the response that refuses `ask` with the error `code`."""
    request = ask.request
    if isinstance(request, (InitProducer, EndTransaction)):
        return Producer(code)
    if isinstance(request, VerifyPartitions):
        return Verified(code)
    return code


class TransactionMachine:
    """The state machine of the transactional ids of one partition.

    A broker makes a new one each time it becomes leader of the partition.
    """

    def __init__(
        self,
        settings: TransactionSettings,
        take_producer_id: Callable[[], int | None],
        record_version: Callable[[], int],
        counts: TransactionCounts,
        append_bytes_max: Callable[[], int] = lambda: APPEND_BYTES_MAX,
    ) -> None:
        """`take_producer_id` returns a new producer id, or None if none is available now.

        `record_version` returns the version of new records, which depends on the cluster's
        `transaction.version`. `counts` is shared by all shards. `append_bytes_max` returns the size of the
        largest batch that the topic accepts.
        """
        self._settings = settings
        self._take_producer_id = take_producer_id
        self._record_version = record_version
        self.deadlines = Deadlines()
        self._held: dict[str, list[Ask]] = {}
        """Requests that wait until markers are written, by transactional id."""
        self._counts = counts
        self._append_bytes_max = append_bytes_max
        self._aborted_max = CHECKED_MAX
        self._ages = OpenAges()
        self._unwritable: dict[str, Transaction] = {}
        """Open transactions whose abort record could not be written, each in the state that it had at the
        attempt. A transaction is tried again only after its state has changed.
        """
        self._deciders: dict[type, Callable[[Turn, Ask], None]] = {
            InitProducer: self._init,
            AddPartitions: self._add,
            VerifyPartitions: self._verify,
            EndTransaction: self._end,
            MarkersWritten: self._markers_written,
            AbortTimedOut: self._abort_timed_out,
            ExpireIds: self._expire,
            DescribeTransaction: self._describe,
            ListTransactions: self._list,
            TimePasses: lambda turn, ask: None,
        }

    def take_over(self, state: TransactionsState, now_ms: int) -> None:
        """Prepare the machine for a state that was read from the log.

        The ages of its open transactions count from now on.
        """
        self._ages.look(state, now_ms)

    # -- called by the runtime --------------------------------------------------------------------------------

    def decide(self, state: TransactionsState, request: Ask, context: DecisionContext) -> Decision:
        turn = Turn(state, context.now_ms, request.wall_ms)
        while (action := self.deadlines.pop_due(turn.now_ms)) is not None:
            action(turn)
        self._deciders[type(request.request)](turn, request)
        self._counts.refused += sum(_code_of(response) in _WRONG_PRODUCER for _, response in turn.answers)
        return Decision(turn.records, turn.answers)

    def replay(
        self,
        state: TransactionsState,
        base_offset: int,
        epoch: int,
        records: Sequence[CoordinatorRecord | TransactionEnd],
    ) -> tuple[TransactionsState, Changed]:
        after = state.replay(records)
        ids = dict.fromkeys(getattr(record, "transactional_id", "") for record in records)
        newest = (after.transactions.get(transactional_id) for transactional_id in ids)
        return after, tuple(each for each in newest if each is not None and each.status.is_ending)

    def refuse(self, request: Ask, code: ErrorCode) -> Answers:
        """Build the answer that refuses a request.

        The runtime's code NOT_CONTROLLER becomes NOT_COORDINATOR.
        """
        return refused(request, code, refusal)

    def withdraw(
        self, state: TransactionsState, request: Ask, decision: Decision, context: DecisionContext
    ) -> Answers:
        """Withdraw a decision whose records could not be written.

        Returns an error for each request that the decision answered or held.
        """
        code = ErrorCode.UNKNOWN_SERVER_ERROR
        answers: Answers = [(reply, _refused_like(response, code)) for reply, response in decision.response]
        if isinstance(request.request, AbortTimedOut):
            reached("transactions.timeouts_not_written")
            self._narrow_aborts(state, decision.records)
            return [(reply, True) for reply, _ in answers]
        if request.reply is not None and self._forget_held(request):
            answers.append((request.reply, refusal(request, code)))
        return answers

    def _write(self, turn: Turn, transaction: Transaction) -> None:
        turn.write(record_of(transaction, self._record_version()))

    # -- InitProducerId -------------------------------------------------------------------------------------------

    def _init(self, turn: Turn, ask: Ask) -> None:
        request: InitProducer = ask.request
        transaction: Transaction | None = turn.state.transactions.get(request.transactional_id)
        timeout_ms = TIMELESS if request.two_phase else request.timeout_ms
        if transaction is None:
            if turn.state.weight >= self._settings.ids_per_partition_max:
                reached("transactions.new_id_refused")
                self._counts.refused_ids += 1
                return turn.answer(ask.reply, Producer(ErrorCode.COORDINATOR_NOT_AVAILABLE))
            if record_bytes_max(Transaction(request.transactional_id, 0, 0, 0)) > self._append_bytes_max():
                return turn.answer(ask.reply, Producer(ErrorCode.UNKNOWN_SERVER_ERROR))
            producer_id = self._take_producer_id()
            if producer_id is None:
                return turn.answer(ask.reply, Producer(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
            transaction = Transaction(request.transactional_id, producer_id, NO_PRODUCER_EPOCH, timeout_ms)
        is_known = _is_known(transaction, request)
        if transaction.status.is_ending:
            reached("transactions.begin_held_for_markers")
            return self._busy(turn, ask, holds=is_known)
        if not is_known:
            reached("transactions.fenced_producer_refused")
            return turn.answer(ask.reply, Producer(ErrorCode.PRODUCER_FENCED))
        if transaction.status is TransactionStatus.ONGOING:
            if request.keep_prepared:
                reached("transactions.prepared_resumed")
                return self._resume(turn, ask, transaction)
            reached("transactions.open_transaction_fenced")
            self._fence(turn, transaction)
            return self._hold(turn, ask)
        begun = self._begun(transaction, request)
        if isinstance(begun, ErrorCode):
            return turn.answer(ask.reply, Producer(begun))
        begun = attrs.evolve(
            begun,
            timeout_ms=timeout_ms,
            status=TransactionStatus.EMPTY,
            partitions=frozenset(),
            start_ms=NO_TIME,
            last_update_ms=turn.wall_ms,
            next_producer_id=NO_PRODUCER_ID,
            next_producer_epoch=NO_PRODUCER_EPOCH,
        )
        self._write(turn, begun)
        turn.answer(ask.reply, Producer(ErrorCode.NONE, begun.producer_id, begun.producer_epoch))

    def _begun(self, transaction: Transaction, request: InitProducer) -> Transaction | ErrorCode:
        """Return the transaction with the producer id and epoch for a producer that begins, or continues
        after an error. Returns an error code if the producer is fenced, or no producer id is available.
        """
        epoch = transaction.producer_epoch
        is_new_producer = request.producer_epoch == NO_PRODUCER_EPOCH
        goes_on = request.producer_epoch == epoch or (
            # The coordinator has aborted the producer's transaction with the last epoch, which no producer
            # may use. So the producer continues with its own epoch, the one before.
            epoch == EPOCH_MAX and request.producer_epoch == transaction.last_producer_epoch
        )
        if transaction.is_epoch_exhausted and (is_new_producer or goes_on):
            producer_id = self._take_producer_id()
            if producer_id is None:
                return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            return attrs.evolve(
                transaction,
                producer_id=producer_id,
                producer_epoch=0,
                last_producer_epoch=request.producer_epoch,
                previous_producer_id=transaction.producer_id,
            )
        if is_new_producer:
            return attrs.evolve(transaction, producer_epoch=epoch + 1, last_producer_epoch=NO_PRODUCER_EPOCH)
        if epoch in (NO_PRODUCER_EPOCH, request.producer_epoch):
            return attrs.evolve(transaction, producer_epoch=epoch + 1, last_producer_epoch=epoch)
        if request.producer_epoch == transaction.last_producer_epoch:
            reached("transactions.begin_repeated")
            # This is a retry, because the answer to the first request was lost.
            return transaction
        return ErrorCode.PRODUCER_FENCED

    def _resume(self, turn: Turn, ask: Ask, transaction: Transaction) -> None:
        """Give a prepared transaction to the producer that will end it (KIP-939).

        This producer gets a new epoch, which fences the former producer. The transaction keeps its own epoch
        until it ends.
        """
        producer_id, epoch = expected_producer(transaction)
        if epoch >= EPOCH_MAX - 2:
            # At the end of the transaction the epoch grows by one. It must not reach the last epoch then, so
            # take a new producer id now.
            fresh = self._take_producer_id()
            if fresh is None:
                return turn.answer(ask.reply, Producer(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
            producer_id, epoch = fresh, -1
        resumed = attrs.evolve(
            transaction,
            next_producer_id=producer_id,
            next_producer_epoch=epoch + 1,
            last_update_ms=turn.wall_ms,
        )
        self._write(turn, resumed)
        turn.answer(
            ask.reply,
            Producer(
                ErrorCode.NONE,
                producer_id,
                epoch + 1,
                transaction.producer_id,
                transaction.producer_epoch,
            ),
        )

    # -- partitions -----------------------------------------------------------------------------------------------

    def _add(self, turn: Turn, ask: Ask) -> None:
        request: AddPartitions = ask.request
        transaction, code = _find(turn.state, request)
        if transaction is not None and transaction.status.is_ending:
            reached("transactions.add_held_for_markers")
            return self._busy(turn, ask, holds=not code)
        if transaction is None or code:
            return turn.answer(ask.reply, code)
        is_open = transaction.status is TransactionStatus.ONGOING
        if not (is_open and request.partitions <= transaction.partitions):
            added = attrs.evolve(
                transaction,
                status=TransactionStatus.ONGOING,
                partitions=transaction.partitions | request.partitions,
                start_ms=transaction.start_ms if is_open else turn.wall_ms,
                last_update_ms=turn.wall_ms,
                client_version=request.client_version,
            )
            code = self._may_grow(turn.state, transaction, added)
            if code:
                reached("transactions.partitions_refused")
                self._counts.refused_partitions += 1
                return turn.answer(ask.reply, code)
            self._write(turn, added)
        turn.answer(ask.reply, ErrorCode.NONE)

    def _may_grow(self, state: TransactionsState, before: Transaction, after: Transaction) -> ErrorCode:
        """Check added partitions. Returns an error if the transaction becomes too large for one record, or
        the coordinator has no room for it.

        Only growth is refused. So an accepted transaction can always end, even when there is no room left.
        """
        if record_bytes_max(after) > self._append_bytes_max():
            return ErrorCode.UNKNOWN_SERVER_ERROR
        is_full = state.weight > self._settings.ids_per_partition_max
        if is_full and weight_of(after) > weight_of(before):
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return ErrorCode.NONE

    def _verify(self, turn: Turn, ask: Ask) -> None:
        request: VerifyPartitions = ask.request
        transaction, code = _find(turn.state, request)
        if transaction is None or code:
            return turn.answer(ask.reply, Verified(code))
        if transaction.status.is_ending:
            reached("transactions.verified_too_late")
            return turn.answer(ask.reply, Verified(ErrorCode.CONCURRENT_TRANSACTIONS))
        codes = {
            each: ErrorCode.NONE if each in transaction.partitions else ErrorCode.TRANSACTION_ABORTABLE
            for each in request.partitions
        }
        turn.answer(ask.reply, Verified(ErrorCode.NONE, codes))

    # -- the end of a transaction ---------------------------------------------------------------------------------

    def _end(self, turn: Turn, ask: Ask) -> None:
        request: EndTransaction = ask.request
        transaction: Transaction | None = turn.state.transactions.get(request.transactional_id)
        if transaction is None:
            return turn.answer(ask.reply, Producer(ErrorCode.INVALID_PRODUCER_ID_MAPPING))
        code = may_end(transaction, request)
        if code:
            return turn.answer(ask.reply, Producer(code))
        outcome = outcome_of(transaction, request)
        if outcome is ErrorCode.NONE:
            reached("transactions.end_repeated")
            return turn.answer(
                ask.reply, Producer(outcome, transaction.producer_id, transaction.producer_epoch)
            )
        if isinstance(outcome, ErrorCode):
            return turn.answer(ask.reply, Producer(outcome))
        next_id = NO_PRODUCER_ID
        grows = request.client_version >= EPOCHS_GROW_LEVEL
        if grows and needs_next_id(transaction):
            taken = self._take_producer_id()
            if taken is None:
                return turn.answer(ask.reply, Producer(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
            next_id = taken
        ending = decided(transaction, outcome, request.client_version, next_id, turn.wall_ms)
        self._write(turn, ending)
        turn.answer(ask.reply, Producer(ErrorCode.NONE, *after_end(ending)))

    def _markers_written(self, turn: Turn, ask: Ask) -> None:
        request: MarkersWritten = ask.request
        transaction: Transaction | None = turn.state.transactions.get(request.transactional_id)
        if (
            transaction is None
            or not transaction.status.is_ending
            or (transaction.producer_id, transaction.producer_epoch)
            != (request.producer_id, request.producer_epoch)
        ):
            reached("transactions.markers_of_other_end_dropped")
            return
        if transaction.status is TransactionStatus.PREPARE_COMMIT:
            self._counts.committed += 1
        else:
            self._counts.aborted += 1
        after = completed(transaction, turn.wall_ms)
        if request.is_spent and after.producer_id == transaction.producer_id:
            after = attrs.evolve(after, producer_epoch=EPOCH_MAX - 1)
        self._write(turn, after)
        for held in self._held.pop(request.transactional_id, ()):
            self._deciders[type(held.request)](turn, held)

    def _fence(self, turn: Turn, transaction: Transaction) -> None:
        """Abort the open transaction, with a higher epoch or a new producer id, so that its producer is
        fenced.
        """
        fresh = self._take_producer_id() if needs_next_id(transaction) else None
        self._write(turn, fenced(transaction, turn.wall_ms, NO_PRODUCER_ID if fresh is None else fresh))

    def _abort_timed_out(self, turn: Turn, ask: Ask) -> None:
        request: AbortTimedOut = ask.request
        ages, known = self._ages, turn.state.transactions
        ages.look(turn.state, turn.now_ms)
        late = [
            transactional_id
            for transactional_id in turn.state.open
            if ages.is_late(transaction := known[transactional_id], request.earliest_ms, turn.now_ms)
            and self._unwritable.get(transactional_id) != transaction
        ]
        size = done = 0
        for transactional_id in sorted(late)[: self._aborted_max]:
            transaction = turn.state.transactions[transactional_id]
            size += record_bytes_max(transaction)
            if done and size > CHECKED_BYTES_MAX:
                break
            done += 1
            reached("transactions.timed_out")
            self._counts.timed_out += 1
            self._fence(turn, transaction)
        if done == len(late):
            self._aborted_max = CHECKED_MAX
        turn.answer(ask.reply, done < len(late))

    def _narrow_aborts(
        self, state: TransactionsState, records: Sequence[CoordinatorRecord | TransactionEnd]
    ) -> None:
        """Prepare the next abort after a batch of aborts could not be written. The next batch aborts half as
        many. If a batch with a single id fails, that id is skipped from then on.
        """
        ids = [record.transactional_id for record in records if isinstance(record, TransactionRecord)]
        self._counts.timed_out -= len(ids)
        self._aborted_max = max(1, len(ids) // 2)
        if len(ids) == 1:
            self._unwritable[ids[0]] = state.transactions[ids[0]]

    def _expire(self, turn: Turn, ask: Ask) -> None:
        request: ExpireIds = ask.request
        before_ms = request.earliest_ms - self._settings.id_expiration_ms
        expired = [
            transactional_id
            for transactional_id, each in turn.state.transactions.items()
            if each.last_update_ms <= before_ms
            and (each.status is TransactionStatus.EMPTY or each.status.is_complete)
        ]
        for transactional_id in sorted(expired)[:CHECKED_MAX]:
            reached("transactions.id_expired")
            turn.write(tombstone_of(transactional_id))
        turn.answer(ask.reply, len(expired) > CHECKED_MAX)

    # -- requests that wait for markers ---------------------------------------------------------------------------

    def _busy(self, turn: Turn, ask: Ask, *, holds: bool) -> None:
        """Answer a request while the transaction's markers are being written.

        If `holds` is true, the right producer has sent the request, and the request may wait. Otherwise its
        answer is CONCURRENT_TRANSACTIONS.
        """
        if holds:
            self._hold(turn, ask)
        else:
            turn.answer(ask.reply, refusal(ask, ErrorCode.CONCURRENT_TRANSACTIONS))

    def _hold(self, turn: Turn, ask: Ask) -> None:
        """Hold the request until the markers are written.

        After `HELD_MS_MAX`, or at once if too many requests wait, the answer is CONCURRENT_TRANSACTIONS.
        """
        if ask.reply is None:
            return
        transactional_id = ask.request.transactional_id
        held = self._held.setdefault(transactional_id, [])
        if len(held) >= HELD_MAX:
            reached("transactions.too_many_held")
            turn.answer(ask.reply, refusal(ask, ErrorCode.CONCURRENT_TRANSACTIONS))
            return
        held.append(ask)
        self.deadlines.at(turn.now_ms + HELD_MS_MAX, partial(self._give_up, ask))

    def _give_up(self, ask: Ask, turn: Turn) -> None:
        if self._forget_held(ask):
            turn.answer(ask.reply, refusal(ask, ErrorCode.CONCURRENT_TRANSACTIONS))

    def _forget_held(self, ask: Ask) -> bool:
        """Remove the request from the held requests. Returns True if it was held."""
        transactional_id = getattr(ask.request, "transactional_id", "")
        held = self._held.get(transactional_id)
        if held is None or ask not in held:
            return False
        held.remove(ask)
        if not held:
            del self._held[transactional_id]
        return True

    # -- descriptions ---------------------------------------------------------------------------------------------

    def _describe(self, turn: Turn, ask: Ask) -> None:
        request: DescribeTransaction = ask.request
        transaction: Transaction | None = turn.state.transactions.get(request.transactional_id)
        turn.answer(ask.reply, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND if transaction is None else transaction)

    def _list(self, turn: Turn, ask: Ask) -> None:
        turn.answer(ask.reply, turn.state)

    def statistics(self) -> dict[str, int]:
        """Return figures for metrics: the number of held requests."""
        return {"held": sum(map(len, self._held.values()))}


def _is_known(transaction: Transaction, request: InitProducer) -> bool:
    """True if the producer in the request still owns the transactional id. Its epoch is checked later."""
    return (
        request.producer_epoch == NO_PRODUCER_EPOCH
        or transaction.producer_epoch == NO_PRODUCER_EPOCH
        or request.producer_id == transaction.producer_id
        or (
            request.producer_id == transaction.previous_producer_id
            and request.producer_epoch >= EPOCH_MAX - 1
        )
    )


def _find(
    state: TransactionsState, request: AddPartitions | VerifyPartitions
) -> tuple[Transaction | None, ErrorCode]:
    """Find the transaction of a request to add or verify partitions.

    Returns an error code other than NONE if the request may not use it.
    """
    if not request.transactional_id:
        return None, ErrorCode.INVALID_REQUEST
    transaction: Transaction | None = state.transactions.get(request.transactional_id)
    if transaction is None:
        return None, ErrorCode.INVALID_PRODUCER_ID_MAPPING
    producer_id, epoch = expected_producer(transaction)
    if request.producer_id != producer_id:
        return transaction, ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if request.producer_epoch != epoch or epoch == EPOCH_MAX:
        reached("transactions.zombie_refused")
        return transaction, ErrorCode.PRODUCER_FENCED
    if transaction.next_producer_epoch >= 0 and not transaction.status.is_ending:
        # A producer that has resumed a prepared transaction may only end it.
        reached("transactions.resumed_may_only_end")
        return transaction, ErrorCode.INVALID_TXN_STATE
    return transaction, ErrorCode.NONE
