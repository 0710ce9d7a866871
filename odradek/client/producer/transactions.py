"""A producer's transactions: the operations of its transactional calls, and the conditions for sending batches. PURE.

Theory of operation
-------------------
`TransactionMachine` decides which call may come next. `Transactions` sends requests to the transaction coordinator
and to the groups' coordinators. The calls are operations (`initialize`, `send_offsets`, `end`), of which one runs at
a time. The sender calls `admits` before it sends a partition's batches, and reports records that failed.

There are two protocols. The level of the finalized feature `transaction.version` decides which one is used:

| | 0 and 1 (KIP-98, KIP-360) | 2 (KIP-890) |
| --- | --- | --- |
| a partition joins | by AddPartitionsToTxn, before its first batch | by its first batch (Produce from 12 on) |
| a group's offsets join | by AddOffsetsToTxn | by TxnOffsetCommit 5 |
| a new epoch comes | by InitProducerId, after an abort that lost records | by EndTxn 5, after each transaction |

Rules
-----
* Sequence numbers start again from 0 under each new epoch, which the sender reads from `current`.
* EndTxn is sent when all records have their outcomes, because a batch that arrived after the marker would
  belong to no transaction.
* A commit is sent only if all records are written. After a record that failed, the transaction can only
  abort.
* If a transaction of the first protocol has ended in an epoch, the second protocol does not use this epoch.
  EndTxn is answered before the markers are written, so offsets that join a transaction without a request
  might be counted to the previous transaction.
* A call that timed out must be made again, since the coordinator may or may not have performed it. Offsets
  are the exception: if a call for offsets timed out, the transaction can only be aborted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from odradek.client.consumer.consumer_types import ConsumerGroupMetadata, OffsetAndMetadata
from odradek.client.core.client_keys import ProducerSettings
from odradek.client.core.coordinator_finder import CoordinatorFinder, CoordinatorKind
from odradek.client.core.operation import Operation, Signal, Task, Wait
from odradek.client.errors import (
    ClientError,
    IllegalTransactionCall,
    RequestTimedOut,
    TransactionAborted,
    TransactionError,
    broker_error,
    error_code,
    is_retriable,
)
from odradek.client.producer.accumulator import Accumulator, Lane
from odradek.client.producer.producer_upkeep import Identity
from odradek.client.producer.transaction_errors import Verdict, produce_is_fatal, worst
from odradek.client.producer.transaction_state import Step, TransactionMachine, TransactionState
from odradek.named_states import reached
from odradek.wire.api import ApiKey, api_versions
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from odradek.wire.schema.versions import (
    ADD_PARTITIONS_TO_TXN_BATCHED,
    END_TXN_EPOCHS_GROW,
    INIT_PRODUCER_ID_PRODUCER,
    INIT_PRODUCER_ID_TWO_PHASE,
    PRODUCE_ADDS_PARTITIONS,
    TXN_OFFSET_COMMIT_ADDS_GROUP,
)
from odradek.wire.topic_partition import TopicPartition

if TYPE_CHECKING:
    from odradek.client.core.client_core import ClientCore

__all__ = ["Transactions"]

_NEVER = float("inf")
_FEATURE = "transaction.version"
_IMPLICIT_LEVEL = 2
"""The level of `transaction.version` from which partitions and offsets join without a request, and EndTxn returns a
new epoch.
"""
_CONCURRENT_SECONDS = 0.02
"""The seconds of the first wait for the markers of the previous transaction. Brokers mostly write these
markers within milliseconds.
"""
_VERSIONS_MAX_EXPLICIT = {
    ApiKey.END_TXN: END_TXN_EPOCHS_GROW - 1,
    ApiKey.TXN_OFFSET_COMMIT: TXN_OFFSET_COMMIT_ADDS_GROUP - 1,
    ApiKey.ADD_PARTITIONS_TO_TXN: ADD_PARTITIONS_TO_TXN_BATCHED - 1,
}
_PRODUCE_VERSION_MAX = api_versions(ApiKey.PRODUCE)[1]
_NOBODY = Identity(-1, -1)
_NO_TIMEOUT_MS = (1 << 31) - 1
_COORDINATORS_MAX = 256
_PRODUCER_ID_LOST = frozenset({ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.INVALID_PRODUCER_ID_MAPPING})


class Transactions:
    """The transactions of one producer.

    `news` is called when the sender must make another step. The sender notifies `settled` after each step.
    """

    needed = True

    def __init__(
        self, core: ClientCore, settings: ProducerSettings, accumulator: Accumulator, news: Callable[[], None]
    ) -> None:
        assert settings.transactional_id is not None
        self.transactional_id = settings.transactional_id
        self.machine = TransactionMachine()
        self.current: Identity | None = None
        """The producer id and epoch; None before they are known."""
        self.settled: Signal = core.signal()
        self.counts: Counter[str] = Counter()
        self._core = core
        self._settings = settings
        self._accumulator = accumulator
        self._news = news
        self._coordinators: dict[str, CoordinatorFinder] = {}
        """The coordinators of the transactional ids that this producer has had."""
        self._coordinator = self._coordinator_of(self.transactional_id)
        self._groups: dict[str, CoordinatorFinder] = {}
        self.level_max = _IMPLICIT_LEVEL
        """The highest level of `transaction.version` to use. Below 2, the client behaves like clients without
        KIP-890.
        """
        self._is_implicit = False
        self._epoch_is_explicit = False
        """True once a transaction of the first protocol has ended under the current epoch."""
        self._joined: dict[Lane, None] = {}
        self._joining: dict[Lane, None] = {}
        self._joined_groups: dict[str, None] = {}
        self._join: Task[None] | None = None
        self._prepared = ""
        self._call = ""
        """The name of the running transactional call; empty if there is none."""

    # Called by the sender

    @property
    def missing(self) -> bool:
        """True while there is no producer id."""
        return self.current is None

    def keep(self) -> float:
        """Return an infinite time, because only `initialize` requests a producer id."""
        return _NEVER

    @property
    def produce_version_max(self) -> int:
        """The highest version of Produce that may be sent. From version 12 on, a Produce request itself adds
        its partitions to the transaction.
        """
        return _PRODUCE_VERSION_MAX if self._is_implicit else PRODUCE_ADDS_PARTITIONS - 1

    def admits(self, lane: Lane) -> bool:
        """True if batches of this partition may be sent now. If not, start to add the partition to the transaction."""
        if self._is_implicit:
            self.machine.started = True
            return True
        if lane in self._joined:
            return True
        if self.machine.keeps_records and lane not in self._joining:
            self._joining[lane] = None
            if self._join is None:
                self._join = Task(self._add_partitions())
                self._join.on_done = self._join_ended
                self._core.adopt(self._join, self._core.now)
        return False

    def discarded_because(self) -> Exception | None:
        """Return the error for records that must no longer be sent; None while they may be sent."""
        machine = self.machine
        if machine.keeps_records:
            return None
        return machine.error or TransactionAborted(
            "the transaction was aborted before the record was written"
        )

    def record_failed(self, error: Exception, *, numbered: bool) -> None:
        """Record that a record was not written, so the transaction has failed. `numbered` is true if the
        record's batch had a sequence number.
        """
        self.machine.bump_needed |= numbered
        if isinstance(error, KafkaError) and produce_is_fatal(error.code):
            self.machine.fail_for_good(error)
        else:
            self.machine.fail(error)

    # The calls

    @contextmanager
    def _alone(self, call: str) -> Iterator[None]:
        if self._call:
            raise IllegalTransactionCall(f"{call} was refused: {self._call} has not ended yet")
        self._call = call
        try:
            yield
        finally:
            self._call = ""

    def initialize(self, timeout: float) -> Operation[None]:
        """Fetch a producer id. If an earlier producer with this transactional id has an open transaction, the
        coordinator aborts it.
        """
        with self._alone(Step.INITIALIZE.value):
            self.machine.make(Step.INITIALIZE)
            yield from self._take_identity(_NOBODY, self._core.now + timeout)
            self.machine.make(Step.INITIALIZED)

    def resume(self, timeout: float) -> Operation[str | None]:
        """Fetch a producer id without aborting a prepared transaction (KIP-939). Return the prepared transaction's
        state as text, or None if there is none.
        """
        with self._alone("resume"):
            self._check_two_phase("resume")
            self.machine.make(Step.INITIALIZE)
            deadline = self._core.now + timeout
            response = yield from self._take_identity(_NOBODY, deadline, keep_prepared=True)
            if response.ongoing_txn_producer_id < 0:
                self.machine.make(Step.INITIALIZED)
                return None
            self.machine.make(Step.FOUND_PREPARED)
            self.machine.started = True
            self._is_implicit = True
            found = Identity(response.ongoing_txn_producer_id, response.ongoing_txn_producer_epoch)
            self._prepared = _as_text(found)
            return self._prepared

    def prepare(self, timeout: float) -> Operation[str]:
        """Wait until all records are written, and prepare the transaction: another system decides whether it
        commits (KIP-939). Return the prepared state as text.
        """
        self._check_two_phase(Step.PREPARE.value)
        return (yield from self.leave_open(timeout))

    def leave_open(self, timeout: float) -> Operation[str]:
        """Wait until all records are written. After that only the program that knows the returned text ends the
        transaction, before its timeout.
        """
        with self._alone(Step.PREPARE.value):
            is_first = self.machine.state is TransactionState.IN_TRANSACTION
            self.machine.make(Step.PREPARE)
            if is_first:
                assert self.current is not None
                self._prepared = _as_text(self.current)
            yield from self._flush(self._core.now + timeout)
            self.machine.raise_error()
            return self._prepared

    def _check_two_phase(self, call: str) -> None:
        if not self._settings.transaction_two_phase_commit_enable:
            raise IllegalTransactionCall(f"{call} needs transaction.two.phase.commit.enable=true")

    def begin(self) -> None:
        """Open a transaction. The coordinator learns of it with the first partition or offset."""
        with self._alone(Step.BEGIN.value):
            self.machine.make(Step.BEGIN)
            self._is_implicit = self._may_be_implicit() and not self._epoch_is_explicit

    def _may_be_implicit(self) -> bool:
        return min(self._core.cluster.features.get(_FEATURE, 0), self.level_max) >= _IMPLICIT_LEVEL

    def send_offsets(
        self,
        commits: Mapping[TopicPartition, OffsetAndMetadata],
        group: ConsumerGroupMetadata,
        timeout: float,
    ) -> Operation[None]:
        """Commit a group's offsets as part of the transaction (KIP-447)."""
        call = "send_offsets_to_transaction"
        with self._alone(call):
            self.machine.check(call)
            if not commits:
                return
            done = False
            try:
                yield from self._send_offsets(commits, group, self._core.now + timeout)
                done = True
            except RequestTimedOut as error:
                reached("client.offsets_not_sent_in_time")
                self.machine.fail(error)
                self.machine.raise_error()
                raise
            finally:
                if not done:
                    self.machine.fail(RequestTimedOut(f"{call} was cancelled"))

    def end(self, *, commit: bool, timeout: float) -> Operation[None]:
        """Wait until every record is written or has failed, then commit or abort the transaction."""
        step = Step.COMMIT if commit else Step.ABORT
        with self._alone(step.value):
            self.machine.make(step)
            deadline = self._core.now + timeout
            yield from self._flush(deadline)
            self.machine.raise_error()
            if not self.machine.ended:
                yield from self._send_outcome(commit, deadline)
                self.machine.ended = True
                if not self._is_implicit:
                    self._epoch_is_explicit = True
                    self.machine.bump_needed |= self._may_be_implicit()
            if self.machine.bump_needed:
                assert self.current is not None
                yield from self._take_identity(self.current, deadline)
            self._joined.clear()
            self._joined_groups.clear()
            self.machine.make(Step.END)
            self.counts["transactions committed" if commit else "transactions aborted"] += 1

    def change_id(self, transactional_id: str) -> None:
        """Become a new producer with another transactional id, before `initialize`. A transaction that was left to
        another program stays as it is. Raises `IllegalTransactionCall` while this producer has an open transaction.
        """
        if self._call or self.machine.may_abort or self._accumulator.incomplete or self._join is not None:
            raise IllegalTransactionCall("the transactional id cannot change while a transaction is open")
        self.transactional_id = transactional_id
        self.machine = TransactionMachine()
        self.current = None
        self._coordinator = self._coordinator_of(transactional_id)
        self._is_implicit = self._epoch_is_explicit = False
        self._joined.clear()
        self._joined_groups.clear()
        self._prepared = ""

    def _coordinator_of(self, transactional_id: str) -> CoordinatorFinder:
        found = self._coordinators.pop(transactional_id, None)
        if found is None:
            found = CoordinatorFinder(self._core, CoordinatorKind.TRANSACTION, transactional_id)
        while len(self._coordinators) >= _COORDINATORS_MAX:
            del self._coordinators[next(iter(self._coordinators))]
        self._coordinators[transactional_id] = found
        return found

    # Parts of the calls

    def _take_identity(
        self, known: Identity, deadline: float, *, keep_prepared: bool = False
    ) -> Operation[InitProducerIdResponse]:
        """Fetch a new epoch for the producer id `known`, or a new producer id if there is none (KIP-360)."""
        two_phase = self._settings.transaction_two_phase_commit_enable
        message = InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=_NO_TIMEOUT_MS if two_phase else self._settings.transaction_timeout_ms,
            producer_id=known.producer_id,
            producer_epoch=known.producer_epoch,
            enable2_pc=two_phase,
            keep_prepared_txn=keep_prepared,
        )
        response = yield from self._ask(ApiKey.INIT_PRODUCER_ID, message, _own_code, deadline=deadline)
        self.current = Identity(response.producer_id, response.producer_epoch)
        self._epoch_is_explicit = False
        self.counts["epochs bumped"] += known.producer_id >= 0
        found: InitProducerIdResponse = response
        return found

    def _flush(self, deadline: float) -> Operation[None]:
        """Wait until every record is written or has failed, and no request is adding a partition."""
        accumulator = self._accumulator
        accumulator.close_all()
        accumulator.flushing += 1
        self._news()
        try:
            while accumulator.active or self._join is not None:
                if self._core.now >= deadline:
                    raise RequestTimedOut("records of the transaction are still being sent: call again")
                yield Wait(until=deadline, signals=(self.settled,))
        finally:
            accumulator.flushing -= 1

    def _send_outcome(self, commit: bool, deadline: float) -> Operation[None]:
        from odradek.wire.messages.end_txn import EndTxnRequest

        machine, current = self.machine, self.current
        if machine.id_is_lost or not (machine.started or machine.perhaps_started):
            return
        assert current is not None
        message = EndTxnRequest(self.transactional_id, current.producer_id, current.producer_epoch, commit)
        # The transaction may never have started, so the coordinator may not know it.
        harmless = ErrorCode.NONE if commit or machine.started else ErrorCode.INVALID_TXN_STATE
        try:
            response = yield from self._ask(
                ApiKey.END_TXN, message, _own_code, deadline=deadline, harmless=harmless
            )
        except TransactionError:
            if not commit and self.machine.id_is_lost:
                reached("client.aborted_by_another")
                return
            raise
        if response.producer_id >= 0:
            self.current = Identity(response.producer_id, response.producer_epoch)
            machine.bump_needed = False

    def _send_offsets(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        group: ConsumerGroupMetadata,
        deadline: float,
    ) -> Operation[None]:
        from odradek.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
        from odradek.wire.messages.txn_offset_commit import (
            TxnOffsetCommitRequest,
            TxnOffsetCommitRequestPartition,
            TxnOffsetCommitRequestTopic,
        )

        current = self.current
        assert current is not None
        if self._is_implicit:
            self.machine.started = True
        elif group.group_id not in self._joined_groups:
            self.machine.perhaps_started = True
            add = AddOffsetsToTxnRequest(
                self.transactional_id, current.producer_id, current.producer_epoch, group.group_id
            )
            yield from self._ask(ApiKey.ADD_OFFSETS_TO_TXN, add, _own_code, deadline=deadline)
            self.machine.started = True
            self._joined_groups[group.group_id] = None
        topics: dict[str, TxnOffsetCommitRequestTopic] = {}
        for key, (offset, epoch, metadata) in offsets.items():
            topic = topics.setdefault(key.topic, TxnOffsetCommitRequestTopic(name=key.topic))
            topic.partitions.append(TxnOffsetCommitRequestPartition(key.partition, offset, epoch, metadata))
        message = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group.group_id,
            producer_id=current.producer_id,
            producer_epoch=current.producer_epoch,
            generation_id=group.generation_id,
            member_id=group.member_id,
            group_instance_id=group.group_instance_id,
            topics=list(topics.values()),
        )
        coordinator = self._groups.get(group.group_id)
        if coordinator is None:
            coordinator = CoordinatorFinder(self._core, CoordinatorKind.GROUP, group.group_id)
            self._groups[group.group_id] = coordinator
        yield from self._ask(
            ApiKey.TXN_OFFSET_COMMIT,
            message,
            _offset_codes,
            deadline=deadline,
            coordinator=coordinator,
        )

    # AddPartitionsToTxn

    def _add_partitions(self) -> Operation[None]:
        """Add the waiting partitions to the transaction, and further partitions until none waits.

        The request is repeated until it is answered. Otherwise it would be unknown whether there is a
        transaction to abort.
        """
        from odradek.wire.messages.add_partitions_to_txn import (
            AddPartitionsToTxnRequest,
            AddPartitionsToTxnTopic,
        )

        while self._joining:
            lanes, self._joining = self._joining, {}
            current = self.current
            assert current is not None
            topics: dict[str, AddPartitionsToTxnTopic] = {}
            for lane in lanes:
                topic = topics.setdefault(lane.topic, AddPartitionsToTxnTopic(name=lane.topic))
                topic.partitions.append(lane.partition)
            message = AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=self.transactional_id,
                v3_and_below_producer_id=current.producer_id,
                v3_and_below_producer_epoch=current.producer_epoch,
                v3_and_below_topics=list(topics.values()),
            )
            while True:
                deadline = self._core.now + self._settings.request_timeout_ms / 1000
                try:
                    yield from self._ask(
                        ApiKey.ADD_PARTITIONS_TO_TXN, message, _partition_codes, deadline=deadline
                    )
                    break
                except RequestTimedOut:
                    self.counts["partitions added late"] += 1
            self.machine.started = True
            self._joined.update(lanes)
            self._news()

    def _join_ended(self) -> None:
        task, self._join = self._join, None
        self._joining = {}
        self._news()
        self.settled.notify()
        if task is not None:
            try:
                task.result()
            except ClientError:
                return  # `_ask` has stored the error in the machine

    # Requests

    def _ask(
        self,
        key: ApiKey,
        message: Any,
        codes: Callable[[Any], Iterable[ErrorCode]],
        *,
        deadline: float,
        coordinator: CoordinatorFinder | None = None,
        harmless: ErrorCode = ErrorCode.NONE,
    ) -> Operation[Any]:
        """Send a transactional request. The reaction to each error code (`transaction_errors.py`) decides
        whether the request is repeated. Raises `TransactionError` and `RequestTimedOut`.

        The code `harmless` counts as success.
        """
        coordinator = coordinator or self._coordinator
        version_max = None if self._is_implicit else _VERSIONS_MAX_EXPLICIT.get(key)
        version_min = 0
        if isinstance(message, InitProducerIdRequest) and message.enable2_pc:
            version_min = INIT_PRODUCER_ID_TWO_PHASE
        elif isinstance(message, InitProducerIdRequest) and message.producer_id >= 0:
            version_min = INIT_PRODUCER_ID_PRODUCER
        core = self._core
        attempt = 0
        while True:
            try:
                response = yield from coordinator.request(
                    message, deadline=deadline, version_min=version_min, version_max=version_max
                )
            except KafkaError as error:  # This error comes from the search for the coordinator.
                if is_retriable(error):
                    raise RequestTimedOut(
                        f"{error} (retried until the timeout): call the same method again"
                    ) from error
                self._fail(error, fatal=error.code is not ErrorCode.GROUP_AUTHORIZATION_FAILED)
            except ClientError as error:
                if is_retriable(error):
                    raise RequestTimedOut(f"{error}: call again") from error
                self._fail(error, fatal=True)
            decided, code = worst(key, codes(response))
            if decided is Verdict.DONE or code is harmless:
                return response
            self.counts[f"{key.name}: {code.name}"] += 1
            failure = broker_error(code, None, coordinator.subject)
            if decided >= Verdict.ABORT:
                self._note_lost_id(code)
                self._fail(failure, fatal=decided is Verdict.FATAL)
            if decided is Verdict.FIND_AGAIN:
                coordinator.lost()
            delay = core.backoff(attempt)
            if code is ErrorCode.CONCURRENT_TRANSACTIONS:
                delay = min(delay, _CONCURRENT_SECONDS * 2.0 ** min(attempt, 20))
            if core.now + delay >= deadline:
                raise RequestTimedOut(
                    f"{failure} (retried until the timeout): call the same method again"
                ) from failure
            attempt += 1
            yield Wait(until=core.now + delay)

    def _note_lost_id(self, code: ErrorCode) -> None:
        if code in _PRODUCER_ID_LOST:
            self.machine.bump_needed = True
            self.machine.id_is_lost |= code is ErrorCode.INVALID_PRODUCER_ID_MAPPING

    def _fail(self, cause: KafkaError | ClientError, *, fatal: bool) -> NoReturn:
        machine = self.machine
        if fatal:
            machine.fail_for_good(cause)
        else:
            machine.fail(cause)
        self._news()
        machine.raise_error()
        raise TransactionError(f"the transaction cannot be ended: {cause}") from cause

    def statistics(self) -> dict[str, int]:
        """Return counters by name since the start: transactions by outcome, refusals by request and code."""
        return dict(self.counts)


def _as_text(identity: Identity) -> str:
    """Format the producer id and epoch of a prepared transaction as Kafka's PreparedTxnState does."""
    return f"{identity.producer_id}:{identity.producer_epoch}"


def _own_code(response: Any) -> Iterable[ErrorCode]:
    return (error_code(response.error_code),)


def _partition_codes(response: Any) -> Iterable[ErrorCode]:
    return [
        error_code(each.partition_error_code)
        for topic in response.results_by_topic_v3_and_below
        for each in topic.results_by_partition
    ]


def _offset_codes(response: Any) -> Iterable[ErrorCode]:
    return [error_code(each.error_code) for topic in response.topics for each in topic.partitions]
