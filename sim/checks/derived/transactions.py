"""Transactions as partitions and coordinators know them, against the bytes of their logs. PURE.

1. The last stable offset of a replica lies at or below the first record of each open transaction, and never falls
   while the replica lives. It is no lower than transactions and the high watermark demand. A replica may start with a
   marker above its high watermark, and lose it again. It serves no client before it has agreed with a leader.
2. A log knows its open transactions, the coordinator epochs of the last markers, and its aborted transactions. The
   coordinator epochs of a producer's markers never fall.
3. The state of a coordinator is the replay of its partition of `__transaction_state`.
4. The producer id of a transactional id stays, and its epoch never falls, over changes of coordinators.

A look scans one log by chance, and replays one coordinator's. `still_open` names a partition that has not come to
rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

import attrs

from odradek.data_plane.coordination.decision_log import Latest
from odradek.data_plane.log.partition_log import PartitionLog
from odradek.data_plane.log.parts.producer_recovery import note_batch
from odradek.data_plane.log.parts.producer_state import ProducerState
from odradek.data_plane.transactions.coordinator import TransactionShard
from odradek.data_plane.transactions.state import EPOCH_MAX, Transaction, TransactionsState, state_of
from odradek.wire.batches.batch_header import BatchHeader
from odradek.wire.batches.records import records
from odradek.wire.batches.transaction_markers import parse_marker
from sim.checks.invariants import NeverFalls
from sim.checks.stored_logs import stored_batches
from sim.checks.watched import Hosted, Processes, partition_name
from sim.history import SafetyViolation
from sim.machine.disk_files import SimFile
from sim.machine.members import Member

__all__ = ["TransactionStates", "still_open"]

SCAN = 0.1
"""The probability that a look scans one log, and that it replays one coordinator's."""
DECOMPRESSED_BYTES_MAX = 1 << 20
_NONE = -1


@attrs.define
class _Scanned:
    """The state of transactions by the batches of a log."""

    state: ProducerState
    markers: dict[int, int] = attrs.Factory(dict)
    """The offset of the marker of each ended transaction by its first offset."""
    aborted: dict[int, list[tuple[int, int, int]]] = attrs.Factory(dict)
    """Producer id, first and last offset of aborted transactions, by the base offset of the marker's segment."""
    epochs: dict[int, int] = attrs.Factory(dict)
    """The coordinator epoch of each producer's last marker."""
    fallen: tuple[int, int, int, int] | None = None
    """Producer id, offset, and coordinator epoch of a marker, and at last the newer epoch of a marker before it."""
    is_whole: bool = True
    """False where compaction or deletion have removed batches."""

    @classmethod
    def of(cls, log: PartitionLog) -> _Scanned | None:
        """Scan a log; None where a disk has damaged the batches."""
        found = cls(ProducerState())
        next_offset = 0
        for segment in log.segments:
            assert isinstance(segment.file, SimFile)
            content = segment.file.content
            end = 0
            for position, header in stored_batches(content):
                end = position + header.size
                found.is_whole &= header.base_offset == next_offset
                next_offset = header.next_offset
                if header.producer_id >= 0:
                    found._note(segment.base_offset, header, content, position)
            if end != len(content):
                return None
        return found

    def _note(self, segment: int, header: BatchHeader, content: bytearray, position: int) -> None:
        batch = bytes(content[position : position + header.size]) if header.is_control else None
        marker = None if batch is None else parse_marker(batch)
        if marker is not None:
            newest = self.epochs.get(header.producer_id, _NONE)
            if marker.coordinator_epoch < newest:
                self.fallen = (header.producer_id, header.base_offset, marker.coordinator_epoch, newest)
            self.epochs[header.producer_id] = marker.coordinator_epoch
        ended = note_batch(self.state, header, header.base_offset, header.max_timestamp, batch)
        if ended is not None:
            self.markers[ended.first_offset] = ended.last_offset
            if ended.is_aborted:
                entry = (ended.producer_id, ended.first_offset, ended.last_offset)
                self.aborted.setdefault(segment, []).append(entry)


@attrs.define
class _Known:
    """The newest identity of a transactional id, and its source."""

    leader_epoch: int
    producer_id: int
    producer_epoch: int


class TransactionStates:
    """The check of the transactions of all living brokers."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._random = Random(f"{processes.world.seed}/transactions")
        self.stable = NeverFalls("last stable offset")
        self._ids: dict[str, _Known] = {}
        self._begun: dict[TransactionShard, int] = {}
        """Where the log of a coordinator ended when it was seen first."""
        self.scans = self.replays = 0

    def look(self, hosted: Sequence[Hosted]) -> None:
        """Check the transactions of all logs and coordinators. Raises `SafetyViolation`."""
        for each in hosted:
            self._look_at_stable(each)
        shards = list(self._shards())
        for member, shard in shards:
            self._look_at_ids(member, shard)
        if self._random.random() < SCAN:
            candidates = [each for each in hosted if _has_transactions(each.partition.log)]
            if candidates:
                self._scan(self._random.choice(candidates))
        if shards and self._random.random() < SCAN:
            self._replay(*self._random.choice(shards))

    def look_at_all(self, hosted: Sequence[Hosted]) -> None:
        """Scan all logs and replay all coordinators."""
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
        if scanned.fallen is not None:
            producer_id, offset, epoch, newest = scanned.fallen
            raise SafetyViolation(
                f"coordinator epoch: {where} has a marker of epoch {epoch} for producer {producer_id} at {offset}, behind "
                f"one of epoch {newest}"
            )
        high_watermark, stable = log.high_watermark, log.last_stable_offset
        first_open = min(scanned.state.ongoing, default=high_watermark)
        if stable > min(first_open, high_watermark):
            raise SafetyViolation(
                f"last stable offset: {where} says {stable}, and a transaction is open from {first_open} on, high "
                f"watermark {high_watermark}"
            )
        undecided = (first for first, marker in scanned.markers.items() if marker >= high_watermark)
        least = min([first_open, high_watermark, *undecided])
        if stable < least:
            raise SafetyViolation(
                f"last stable offset: {where} says {stable}, and all is decided below {least}"
            )
        self._check_producers(where, log.producers.state, scanned.state)
        for segment in log.segments:
            if segment.aborted is not None:
                known = [(each.producer_id, each.first_offset, each.last_offset) for each in segment.aborted]
                there = scanned.aborted.get(segment.base_offset, [])
                if known != there:
                    raise SafetyViolation(
                        f"aborted transactions: {where}, segment {segment.base_offset} has {there}, and its index {known}"
                    )

    @staticmethod
    def _check_producers(where: str, known: ProducerState, scanned: ProducerState) -> None:
        if dict(known.ongoing) != dict(scanned.ongoing):
            raise SafetyViolation(
                f"open transactions: {where} knows {dict(known.ongoing)}, and its log has {dict(scanned.ongoing)}"
            )
        for producer_id, entry in scanned.entries.items():
            other = known.entries.get(producer_id)
            if other is not None and other.coordinator_epoch != entry.coordinator_epoch:
                raise SafetyViolation(
                    f"coordinator epoch: {where} knows {other.coordinator_epoch} of producer {producer_id}, and its last "
                    f"marker has {entry.coordinator_epoch}"
                )

    # --- coordinators

    def _look_at_ids(self, member: Member, shard: TransactionShard) -> None:
        """Compare the committed identities with earlier ones."""
        log = shard.partition.log
        begun = self._begun.setdefault(shard, log.log_end_offset)
        state = shard.state
        if state is None or log.high_watermark < begun or log.offline:
            return  # what it has loaded may not be committed yet
        for transactional_id in state.transactions:
            transaction: Transaction = state.transactions[transactional_id]
            known = self._ids.get(transactional_id)
            if known is None or known.leader_epoch <= shard.leader_epoch:
                self._check_identity(member, transaction, known)
                self._ids[transactional_id] = _Known(
                    shard.leader_epoch, transaction.producer_id, transaction.producer_epoch
                )

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
        latest = Latest()
        for segment in log.segments:
            assert isinstance(segment.file, SimFile)
            content = segment.file.content
            end = 0
            for position, header in stored_batches(content):
                end = position + header.size
                if header.is_control:
                    continue
                for record in records(content, position, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX):
                    if record.key is not None:
                        latest.values[record.key] = record.value
            if end != len(content):
                return
        self.replays += 1
        _check_equal(member, shard, _plain(state_of(latest, [])), _plain(runtime.state))


def _check_equal(
    member: Member, shard: TransactionShard, stored: dict[str, Transaction], known: dict[str, Transaction]
) -> None:
    for transactional_id in sorted({*stored, *known}):
        if stored.get(transactional_id) != known.get(transactional_id):
            raise SafetyViolation(
                f"coordinator: {member.name} has {known.get(transactional_id)} in {partition_name(shard.partition)}, and its "
                f"log tells of {stored.get(transactional_id)}"
            )


def _plain(state: TransactionsState) -> dict[str, Transaction]:
    """Return the transactions without the fields that are not in the log."""
    return {
        transactional_id: attrs.evolve(state.transactions[transactional_id], last_producer_epoch=_NONE)
        for transactional_id in state.transactions
    }


def _is_readable(log: PartitionLog) -> bool:
    """True if its transactions are known without a read from its disk."""
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
    """Find a partition whose last stable offset is below its high watermark, in words; None if all have come to
    rest.

    Prepared transactions without a timeout may stay open: coordinators know their partitions.
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
