"""Check of transactions: the state of partitions and coordinators must agree with the bytes of their logs. PURE.

1. The last stable offset of a replica lies at or below the first record of each open transaction, and never falls
   while the replica lives. It is as high as the open transactions and the high watermark allow. There is one
   exception. A replica may start with a marker above its high watermark, and lose that marker again. That is
   harmless, since the replica serves no client before it has synchronised with a leader.
2. A log's producer state has the log's open transactions, the coordinator epochs of the last markers, and the aborted
   transactions. The coordinator epochs of a producer's markers never decrease.
3. The state of a coordinator equals a replay of its partition of `__transaction_state`, whose records obey the laws of
   `sim.checks.folds.transaction_laws`.
4. A transactional id keeps its producer id, and its epoch never decreases, even if the coordinator changes.

A call of `look` scans one random log, and replays the log of one random coordinator, each with probability `SCAN`.
`still_open` finds a partition in which a transaction is open at the end of the run.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from random import Random

import attrs

from odradek.data_plane.log.partition_log import PartitionLog
from odradek.data_plane.log.parts.producer_state import ProducerState
from odradek.data_plane.log.segments.aborted_index import NONE_ABORTED
from odradek.data_plane.transactions.coordinator import TransactionShard
from odradek.data_plane.transactions.state import Transaction
from odradek.wire.messages.coordinator_records import TransactionLogValue
from sim.checks.derived.log_reader import LogReader
from sim.checks.folds.coordinator_folds import TransactionsFold
from sim.checks.folds.producer_fold import ProducersFold
from sim.checks.folds.transaction_laws import judge_transaction
from sim.checks.invariants import NeverFalls
from sim.checks.stored_logs import stored_batches
from sim.checks.watched import Hosted, Processes, moved_of, partition_name
from sim.history import SafetyViolation
from sim.machine.disk_files import SimFile
from sim.machine.members import Member

__all__ = ["TransactionStates", "still_open"]

SCAN = 0.1
"""The probability that a call of `look` scans one random log. The replay of one random coordinator's log has the same
probability.
"""
EPOCH_MAX = (1 << 15) - 1
ONGOING = 1
_FIELDS = 4
"""How many numbers the producer state keeps for each batch of a producer. The last offset is the second of them."""


@attrs.define
class _Scanned:
    """The state of transactions, computed from the batches of a log."""

    fold: ProducersFold = attrs.Factory(ProducersFold)
    aborted: dict[int, list[tuple[int, int, int, int]]] = attrs.Factory(dict)
    """The aborted transactions whose markers are in a segment, by the segment's base offset. Each transaction has the
    fields of an entry in the transaction index.
    """
    is_whole: bool = True
    """False if compaction or deletion has removed batches. The cleaner leaves an empty batch where it has removed all
    records of a producer's last batch, for example a marker.
    """

    @classmethod
    def of(cls, log: PartitionLog) -> _Scanned | None:
        """Scan a log; None if a disk has damaged its batches."""
        found = cls()
        next_offset = 0
        for segment in log.segments:
            assert isinstance(segment.file, SimFile)
            content = segment.file.content
            end = 0
            for position, header in stored_batches(content):
                end = position + header.size
                found.is_whole &= header.base_offset == next_offset and header.record_count > 0
                next_offset = header.next_offset
                batch = bytes(content[position:end]) if header.is_control else None
                ended = found.fold.take(header, batch)
                if ended is not None and ended.is_aborted:
                    found.aborted.setdefault(segment.base_offset, []).append(ended[:4])
            if end != len(content):
                return None
        return found


@attrs.define
class _Known:
    """The newest producer id and epoch of a transactional id. The coordinator that had them led `partition` of
    `__transaction_state` in `leader_epoch`.
    """

    partition: int
    leader_epoch: int
    producer_id: int
    producer_epoch: int


@attrs.define
class _Followed:
    """A coordinator's log, and the model of all records read so far."""

    reader: LogReader
    fold: TransactionsFold = attrs.Factory(lambda: TransactionsFold(judge_transaction))


class TransactionStates:
    """The check of transactions on all living brokers."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._random = Random(f"{processes.world.seed}/transactions")
        self.stable = NeverFalls("last stable offset")
        self._ids: dict[str, _Known] = {}
        self._begun: dict[TransactionShard, int] = {}
        """For each coordinator, the end offset of its log when it was first seen."""
        self._folds: dict[PartitionLog, _Followed] = {}
        self.scans = self.replays = 0

    def look(self, hosted: Sequence[Hosted]) -> None:
        """Check the last stable offsets of all partitions and the producer ids of all coordinators. Sometimes check
        one log and one coordinator completely. Raises `SafetyViolation`.
        """
        for each in moved_of(hosted):
            self._look_at_stable(each)
        shards = list(self._shards())
        moved = {each.partition.log for each in moved_of(hosted)}
        for member, shard in shards:
            if shard.partition.log in moved:
                self._look_at_ids(member, shard)
        if self._random.random() < SCAN:
            candidates = [each for each in hosted if _has_transactions(each.partition.log)]
            if candidates:
                self._scan(self._random.choice(candidates))
        if shards and self._random.random() < SCAN:
            self._replay(*self._random.choice(shards))

    def look_at_all(self, hosted: Sequence[Hosted]) -> None:
        """Check all logs and all coordinators completely. Raises `SafetyViolation`."""
        for each in hosted:
            self._scan(each)
        for member, shard in self._shards():
            self._replay(member, shard)

    def _shards(self) -> Iterator[tuple[Member, TransactionShard]]:
        for member, node in self._processes.living():
            if node.broker is not None:
                for _, shard in sorted(node.broker.transactions.shards.items()):
                    if not shard.is_loading and not shard.is_stopped:
                        yield member, shard

    # --- partitions

    def _look_at_stable(self, each: Hosted) -> None:
        log = each.partition.log
        if _is_readable(log) and each.partition.knows_high_watermark:
            self.stable.see(
                (each.member.name, each.key),
                log,
                log.last_stable_offset,
                f"of {partition_name(each.partition)} on {each.member.name}",
            )

    def _scan(self, each: Hosted) -> None:
        log = each.partition.log
        if not _is_readable(log) or log.producers.state is None:
            return
        scanned = _Scanned.of(log)
        if scanned is None or not scanned.is_whole or log.log_start_offset:
            return
        self.scans += 1
        where = f"{partition_name(each.partition)} on {each.member.name}"
        fold = scanned.fold
        if fold.fallen is not None:
            raise SafetyViolation(
                f"coordinator epoch: {where} has a marker of epoch {fold.fallen.epoch} for producer {fold.fallen.producer_id} "
                f"at {fold.fallen.offset}, behind one of epoch {fold.fallen.newest_epoch}"
            )
        high_watermark, stable = log.high_watermark, log.last_stable_offset
        first_open = min(fold.open(), default=high_watermark)
        if stable > min(first_open, high_watermark):
            raise SafetyViolation(
                f"last stable offset: {where} says {stable}, and a transaction is open from {first_open} on, high "
                f"watermark {high_watermark}"
            )
        least = min([high_watermark, *fold.undecided(high_watermark)])
        if stable < least:
            raise SafetyViolation(
                f"last stable offset: {where} says {stable}, and all is decided below {least}"
            )
        self._check_producers(where, log.producers.state, fold, may_forget=self._may_forget(each))
        for segment in log.segments:
            index = NONE_ABORTED if segment.aborted is None else segment.aborted.index
            if index is not None:
                known = [tuple(each) for each in index]
                there = scanned.aborted.get(segment.base_offset, [])
                if known != there:
                    raise SafetyViolation(
                        f"aborted transactions: {where}, segment {segment.base_offset} has {there}, and its index {known}"
                    )

    def _may_forget(self, each: Hosted) -> bool:
        """True if the run has lasted as long as a broker remembers a silent producer."""
        assert each.node.broker is not None
        expiration_ms = min(found.context.producer_id_expiration_ms for found in each.node.broker.log_dirs)
        return self._processes.world.now * 1000 >= expiration_ms

    @staticmethod
    def _check_producers(where: str, known: ProducerState, fold: ProducersFold, *, may_forget: bool) -> None:
        """Compare the open transactions and the coordinator epochs of all producers.

        A producer that was forgotten and then wrote again has no coordinator epoch. It has no batch from before its
        last marker, either.
        """
        if dict(known.ongoing) != fold.open():
            raise SafetyViolation(
                f"open transactions: {where} knows {dict(known.ongoing)}, and its log has {fold.open()}"
            )
        for producer_id, entry in fold.producers.items():
            other = known.entries.get(producer_id)
            if other is None:
                continue
            begun_anew = other.coordinator_epoch < 0 and all(
                end > entry.marker_offset for end in other.batches[1::_FIELDS]
            )
            if other.coordinator_epoch != entry.coordinator_epoch and not (may_forget and begun_anew):
                raise SafetyViolation(
                    f"coordinator epoch: {where} knows {other.coordinator_epoch} of producer {producer_id}, and its last "
                    f"marker has {entry.coordinator_epoch}"
                )
            if other.current_txn_first_offset != entry.open_from:
                raise SafetyViolation(
                    f"open transactions: {where} has one of producer {producer_id} from {other.current_txn_first_offset} "
                    f"on, and its log from {entry.open_from}"
                )

    # --- coordinators

    def _look_at_ids(self, member: Member, shard: TransactionShard) -> None:
        """Compare the committed producer ids and epochs with those seen earlier."""
        log = shard.partition.log
        begun = self._begun.setdefault(shard, log.log_end_offset)
        state = shard.state
        if state is None or log.high_watermark < begun or log.offline:
            return  # The state that the coordinator has loaded may not be committed yet.
        for transactional_id in state.transactions:
            transaction: Transaction = state.transactions[transactional_id]
            known = self._ids.get(transactional_id)
            if known is None or known.leader_epoch <= shard.leader_epoch:
                self._check_identity(member, transaction, known)
                self._ids[transactional_id] = _Known(
                    log.partition, shard.leader_epoch, transaction.producer_id, transaction.producer_epoch
                )
        node = member.node
        assert node is not None
        assert node.broker is not None
        if self._processes.world.now * 1000 >= node.broker.transactions.settings.id_expiration_ms:
            self._forget_expired(log.partition, shard.leader_epoch, state.transactions)

    def _forget_expired(self, partition: int, leader_epoch: int, known: Container[str]) -> None:
        """Forget the ids that a coordinator has removed, because nobody used them for
        `transactional.id.expiration.ms`. Such an id gets a new producer id.
        """
        for transactional_id, last in list(self._ids.items()):
            is_judged_here = last.partition == partition and last.leader_epoch <= leader_epoch
            if is_judged_here and transactional_id not in known:
                del self._ids[transactional_id]

    @staticmethod
    def _check_identity(member: Member, transaction: Transaction, known: _Known | None) -> None:
        if known is None:
            return
        told = f"{transaction.transactional_id} on {member.name}"
        if transaction.producer_id != known.producer_id and known.producer_epoch < EPOCH_MAX - 1:
            raise SafetyViolation(
                f"transactional id: {told} has producer id {transaction.producer_id}, it had {known.producer_id} at epoch "
                f"{known.producer_epoch}"
            )
        if transaction.producer_id == known.producer_id and transaction.producer_epoch < known.producer_epoch:
            raise SafetyViolation(
                f"transactional id: {told} has epoch {transaction.producer_epoch} of producer {known.producer_id}, it had "
                f"{known.producer_epoch}"
            )

    def _replay(self, member: Member, shard: TransactionShard) -> None:
        log = shard.partition.log
        runtime = shard._runtime
        if runtime is None or log.offline or log.is_closed or not shard.partition.is_leader:
            return
        fold = self._folded(log)
        if fold is None:
            return
        self.replays += 1
        state = runtime.state
        for transactional_id in sorted({*fold.values, *state.transactions}):
            known: Transaction | None = state.transactions.get(transactional_id)
            there = fold.values.get(transactional_id)
            if known is None or there is None or _fields_of(known) != _fields_in(there):
                raise SafetyViolation(
                    f"coordinator: {member.name} has {known} in {partition_name(shard.partition)}, and its log tells of {there}"
                )
        is_open = {
            transactional_id: value.transaction_start_timestamp_ms
            for transactional_id, value in fold.values.items()
            if value.transaction_status == ONGOING
        }
        if dict(state.open) != is_open:
            raise SafetyViolation(
                f"coordinator: {member.name} has {dict(state.open)} open in {partition_name(shard.partition)}, and its log {is_open}"
            )

    def _folded(self, log: PartitionLog) -> TransactionsFold | None:
        """Continue the model of a coordinator's log to its end; None if a disk has damaged the log."""
        followed = self._folds.get(log)
        if followed is None or not followed.reader.is_valid:
            self._folds = {each: found for each, found in self._folds.items() if not each.is_closed}
            followed = self._folds[log] = _Followed(LogReader(log))
        for header, batch in followed.reader.go_on():
            followed.fold.take(header, batch)
        return followed.fold if followed.reader.is_at_end else None


def _fields_of(transaction: Transaction) -> tuple[object, ...]:
    """Return those fields of a transaction that are also in its log record."""
    return (
        *(transaction.producer_id, transaction.previous_producer_id, transaction.next_producer_id),
        *(transaction.producer_epoch, transaction.next_producer_epoch, transaction.timeout_ms),
        *(int(transaction.status), sorted(transaction.partitions)),
        *(transaction.start_ms, transaction.last_update_ms, transaction.client_version),
    )


def _fields_in(value: TransactionLogValue) -> tuple[object, ...]:
    """Return the same fields as `_fields_of`, from a log record."""
    partitions = [
        (each.topic, partition)
        for each in value.transaction_partitions or ()
        for partition in each.partition_ids
    ]
    return (
        *(value.producer_id, value.previous_producer_id, value.next_producer_id),
        *(value.producer_epoch, value.next_producer_epoch, value.transaction_timeout_ms),
        *(value.transaction_status, sorted(partitions)),
        *(value.transaction_start_timestamp_ms, value.transaction_last_update_timestamp_ms),
        value.client_transaction_version,
    )


def _is_readable(log: PartitionLog) -> bool:
    """True if the log's producer state is known without a read from disk."""
    if log.offline or log.is_closed:
        return False
    return log.producers.state is not None or log.producers.is_settled


def _has_transactions(log: PartitionLog) -> bool:
    state = log.producers.state
    return state is not None and any(
        entry.coordinator_epoch >= 0 or entry.current_txn_first_offset >= 0
        for entry in state.entries.values()
    )


def still_open(processes: Processes) -> str | None:
    """Describe a partition whose last stable offset is below its high watermark; None if there is none.

    Partitions of prepared transactions without a timeout are left out, since these may stay open.
    """
    waits: set[tuple[str, int]] = set()
    for _, node in processes.living():
        if node.broker is not None:
            for shard in node.broker.transactions.shards.values():
                state = shard.state
                if state is None:
                    continue
                for transactional_id in state.open:
                    transaction: Transaction = state.transactions[transactional_id]
                    if transaction.is_timeless:
                        waits |= transaction.partitions
    for each in processes.hosted():
        log = each.partition.log
        if not each.partition.is_leader or (log.topic, log.partition) in waits or not _is_readable(log):
            continue
        if log.last_stable_offset < log.high_watermark:
            return (
                f"{partition_name(each.partition)} on {each.member.name} is stable up to {log.last_stable_offset}, and its "
                f"high watermark is {log.high_watermark}"
            )
    return None
