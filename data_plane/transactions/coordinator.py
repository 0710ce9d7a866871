"""The transaction coordinators of a broker: one shard for each led partition of `__transaction_state`, periodic
checks, transactions left by earlier coordinators. PORTED.

A new coordinator first completes the transactions that an earlier coordinator has decided to end. Once the
loaded log is committed, the new coordinator writes the markers of all transactions in PrepareCommit and
PrepareAbort again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any, ClassVar, NamedTuple

import attrs

from odradek.data_plane.coordination.asking import Ask, TimePasses
from odradek.data_plane.coordination.decision_log import Latest
from odradek.data_plane.coordination.shard import Shard
from odradek.data_plane.coordination.shards import Shards
from odradek.data_plane.replication.partition import Partition
from odradek.data_plane.transactions.counts import TransactionCounts
from odradek.data_plane.transactions.machine import Changed, TransactionMachine, refusal
from odradek.data_plane.transactions.markers import MarkerSender, WriteHere
from odradek.data_plane.transactions.peers import BrokerPeers, TransactionHost
from odradek.data_plane.transactions.producer_ids import ProducerIds
from odradek.data_plane.transactions.requests import (
    AbortTimedOut,
    DescribeTransaction,
    ExpireIds,
    ListTransactions,
    VerifyPartitions,
)
from odradek.data_plane.transactions.state import Transaction, TransactionsState, state_of
from odradek.data_plane.transactions.transactions_topic import TRANSACTIONS_TOPIC, TransactionSettings
from odradek.data_plane.transactions.verifier import CoordinatorVerifier
from odradek.metadata_quorum.features import TRANSACTION_VERSION
from odradek.metadata_quorum.state_machine import NotEncoded
from odradek.serving.contract import Receiver
from odradek.serving.timers import Timer
from odradek.wire.errors import ErrorCode

_READS = (VerifyPartitions, DescribeTransaction, ListTransactions)
IDS_PER_TURN = 2_000
"""The number of transactional ids that a new coordinator checks in one turn. This takes a few milliseconds.
"""
COMMIT_TIMEOUT_MS = 5_000
"""The longest time, in milliseconds, that a decision waits for replicas. Then its client gets a retriable
error.
"""


class OldestOpen(NamedTuple):
    """Two start times, in milliseconds since 1970: of the oldest open transaction with a timeout, and of the
    oldest one without (prepared, KIP-939). A time is None if there is no such transaction.
    """

    timed_ms: int | None
    prepared_ms: int | None


class TransactionShard(Shard[TransactionsState, Changed]):
    """The coordinator of the transactional ids of one partition of `__transaction_state`."""

    NAME: ClassVar[str] = "transactions"

    def __init__(
        self,
        broker: TransactionHost,
        partition: Partition,
        failed: Callable[[Any], None],
        machine: TransactionMachine,
        markers: MarkerSender,
        not_encoded: NotEncoded,
    ) -> None:
        super().__init__(
            broker,
            partition,
            failed,
            machine,
            not_encoded,
            compression_type=0,
            commit_timeout_ms=COMMIT_TIMEOUT_MS,
        )
        self.machine = machine
        self._markers = markers
        self._earlier: TransactionsState | None = None
        """The state as it was loaded, kept until all loaded records are committed."""
        self._loaded_end = 0

    @property
    def is_stopped(self) -> bool:
        return self._stopped

    def read_state(self, latest: Latest, skipped: list[str]) -> TransactionsState:
        return state_of(latest, skipped)

    def empty_state(self) -> TransactionsState:
        return TransactionsState()

    def take_over(self, state: TransactionsState) -> None:
        self.machine.take_over(state, self.now_ms())

    def began(self, state: TransactionsState) -> None:
        assert self._runtime is not None, "a coordinator's shard began before the coordinator was started"
        self._runtime.subscribe(self._committed)
        self._earlier, self._loaded_end = state, self._runtime.committed_end
        self._log.subscribe(self._begin_earlier)
        self._begin_earlier(self._log.high_watermark)

    def _begin_earlier(self, high_watermark: int) -> None:
        """Start to complete the transactions that earlier coordinators have decided to end, once all loaded
        records are committed.

        Records above the high watermark may be lost with this broker. The next coordinator could then decide
        differently, and the transaction would have both kinds of markers.
        """
        state = self._earlier
        if state is not None and high_watermark >= self._loaded_end:
            self._earlier = None
            self._complete_earlier(state, iter(state.transactions))

    def _complete_earlier(self, state: TransactionsState, ids: Iterator[str]) -> None:
        """Start the markers of transactions in PrepareCommit or PrepareAbort. Each turn checks `IDS_PER_TURN`
        ids.

        Requests between these turns do no harm, since such a transaction waits for its markers.
        """
        if self._stopped:
            return
        looked_at = 0
        for transactional_id in islice(ids, IDS_PER_TURN):
            looked_at += 1
            transaction = state.transactions[transactional_id]
            if transaction.status.is_ending:
                self._markers.begin(self, transaction)
        if looked_at == IDS_PER_TURN:
            self._broker.timers.next_turn(partial(self._complete_earlier, state, ids))

    def _committed(self, state: TransactionsState, changed: Changed) -> None:
        for transaction in changed:
            self._markers.begin(self, transaction)

    def has_completed(self, transaction: Transaction) -> bool:
        """True if the transaction is no longer in the state that `transaction` describes. The newest state of
        the shard decides, committed or not.
        """
        if self._runtime is None:
            return False
        known: Transaction | None = self._runtime.state.transactions.get(transaction.transactional_id)
        return known is None or (known.status, known.producer_id, known.producer_epoch) != (
            transaction.status,
            transaction.producer_id,
            transaction.producer_epoch,
        )

    def refusal(self, ask: Ask, code: ErrorCode) -> Any:
        return refusal(ask, code)

    def waits_for_log(self, request: Any) -> bool:
        return not isinstance(request, _READS)

    def needs_replicas(self, request: Any) -> bool:
        # Always accept due deadlines. A refused deadline would stay due, and its timer would fire again and
        # again.
        return not isinstance(request, (*_READS, TimePasses))

    def size_of(self, state: TransactionsState) -> int:
        return len(state.transactions)

    def stop(self) -> None:
        super().stop()
        self._markers.forget(self)

    def oldest_open(self) -> OldestOpen:
        """Return the start times of the oldest open transactions."""
        oldest: dict[bool, int] = {}
        if self._runtime is not None:
            state = self._runtime.state
            for transactional_id, start_ms in state.open.items():
                timeless = state.transactions[transactional_id].is_timeless
                oldest[timeless] = min(start_ms, oldest.get(timeless, start_ms))
        return OldestOpen(oldest.get(False), oldest.get(True))

    def statistics(self) -> dict[str, int]:
        open_count = 0 if self._runtime is None else len(self._runtime.state.open)
        return {**self.machine.statistics(), **super().statistics(), "open": open_count}


def _append_bytes_max(partition: Partition) -> int:
    config = partition.log.config
    return min(config.max_message_bytes, config.segment_bytes)


class TransactionCoordinator(Shards[TransactionShard]):
    """All transaction coordinator shards of a broker, with the senders of markers and of requests to other
    brokers.
    """

    def __init__(
        self,
        broker: TransactionHost,
        settings: TransactionSettings,
        producer_ids: ProducerIds,
        write_here: WriteHere | None = None,
        peers: BrokerPeers | None = None,
    ) -> None:
        """`write_here` writes markers to partitions that this broker leads.

        `peers` sends requests to other brokers. None means that the coordinator makes its own `BrokerPeers`.
        """
        super().__init__(broker, TRANSACTIONS_TOPIC)
        self._host = broker
        self.settings = settings
        self.producer_ids = producer_ids
        self.counts = TransactionCounts()
        self.peers = BrokerPeers(broker) if peers is None else peers
        self.markers = MarkerSender(broker, self.peers, write_here)
        self.verifier = CoordinatorVerifier(broker, self, self.peers)
        self._timeouts: Timer | None = None
        self._expiry: Timer | None = None

    def new_shard(self, partition: Partition, failed: Callable[[Any], None]) -> TransactionShard:
        if self._timeouts is None:
            self._set_timeouts()
            self._set_expiry()
        machine = TransactionMachine(
            self.settings,
            self.producer_ids.take,
            self._record_version,
            self.counts,
            partial(_append_bytes_max, partition),
        )
        return TransactionShard(self._host, partition, failed, machine, self.markers, self.not_encoded)

    def refusal(self, ask: Ask, code: ErrorCode) -> Any:
        return refusal(ask, code)

    def _record_version(self) -> int:
        """Return the version in which to write new records: 1 if the cluster's `transaction.version` is at
        least 1, otherwise 0.
        """
        return 1 if self._broker.newest.image.features.get(TRANSACTION_VERSION, 0) >= 1 else 0

    def _set_timeouts(self) -> None:
        at = self._broker.clock.monotonic() + self.settings.timeout_check_interval_ms / 1000
        self._timeouts = self._broker.timers.at(at, self._abort_timed_out)

    def _abort_timed_out(self) -> None:
        self._set_timeouts()
        self._submit_to_all(AbortTimedOut)

    def _set_expiry(self) -> None:
        at = self._broker.clock.monotonic() + self.settings.expiry_interval_ms / 1000
        self._expiry = self._broker.timers.at(at, self._expire)

    def _expire(self) -> None:
        self._set_expiry()
        self._submit_to_all(ExpireIds)

    def _submit_to_all(self, request: Callable[[int], Any]) -> None:
        for _, shard in sorted(self.shards.items()):
            self._check(shard, request)

    def _check(self, shard: TransactionShard, request: Callable[[int], Any]) -> None:
        """Submit a periodic check of a shard's transactions. If the check reports that transactions are left,
        submit it again in a later turn.
        """
        if shard.is_loading or shard.is_stopped:
            return

        def checked(some_are_left: bool | ErrorCode) -> None:
            # After an error, the next periodic check is soon enough. Otherwise, let other clients be served
            # before the next check.
            if some_are_left is True:
                self._broker.timers.next_turn(partial(self._check, shard, request))

        try:
            now = self._broker.agreed_clock.moment()
            shard.submit(Ask(request(now.earliest_ms), 0, Receiver(checked), now.latest_ms))
        except Exception:
            # A bug in one shard must not stop the checks of the other shards.
            self._broker.log.exception("transactions.check_failed", partition=shard.partition.log.partition)

    def stop(self) -> None:
        super().stop()
        self.peers.close()

    def statistics(self) -> dict[str, int]:
        return {**super().statistics(), **self.markers.statistics(), **attrs.asdict(self.counts)}
