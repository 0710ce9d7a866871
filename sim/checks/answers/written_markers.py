"""Check of WriteTxnMarkers: each marker agrees with its coordinator's decision, and is in its partition's log. PURE.

1. A coordinator requests only markers for decided transactions. The decision has the marker's producer, epoch,
   outcome and partitions. The decision is in its log, below the high watermark, and all in-sync replicas have it.
2. An acknowledged marker was appended after the request, and all in-sync replicas have it.

Markers to partitions on the coordinator's own broker use no connection. So rule 1 checks a decision only if it has
partitions on other brokers, too. `__consumer_offsets` is left out of rule 2, since group coordinators need not write
a marker twice.
"""

from __future__ import annotations

import attrs

from odradek.data_plane.groups.offsets_topic import OFFSETS_TOPIC
from odradek.data_plane.log.partition_log import PartitionLog
from odradek.data_plane.transactions.state import TransactionStatus
from odradek.wire.api_keys import ApiKey
from odradek.wire.batches.batch_errors import CorruptBatch
from odradek.wire.batches.transaction_markers import parse_marker
from odradek.wire.errors import KafkaError, ProtocolError
from odradek.wire.messages.coordinator_records import TransactionLogValue
from odradek.wire.messages.write_txn_markers import WritableTxnMarker, WriteTxnMarkersResponse
from odradek.wire.topic_partition import TopicIdPartition
from sim.checks.answers.held_records import HeldRecords
from sim.checks.answers.log_tail import Tail, transaction_states
from sim.checks.watched import Processes
from sim.checks.wiretap import Exchange
from sim.history import SafetyViolation
from sim.machine.disk_files import SimFile

__all__ = ["WrittenMarkers"]

_UNREADABLE = (KafkaError, ProtocolError, CorruptBatch)
_ENDINGS = {TransactionStatus.PREPARE_COMMIT: True, TransactionStatus.PREPARE_ABORT: False}


@attrs.frozen
class _Decision:
    offset: int
    producer_epoch: int
    is_commit: bool
    partitions: frozenset[tuple[str, int]]


@attrs.define
class _Read:
    """The decisions in a coordinator's log, by producer id. `tail` is the position up to which the log was read."""

    tail: Tail | None
    decisions: dict[int, list[_Decision]] = attrs.Factory(dict)


class WrittenMarkers:
    """The check of WriteTxnMarkers."""

    def __init__(self, processes: Processes, held: HeldRecords) -> None:
        self._processes = processes
        self._held = held
        self._logs: dict[PartitionLog, _Read] = {}
        self.decisions_seen = self.markers_seen = 0

    def asked(self, exchange: Exchange) -> bool:
        """Check the decision behind each requested marker, and record the ends of the partitions' logs. Raises
        `SafetyViolation`.
        """
        assert exchange.api == ApiKey.WRITE_TXN_MARKERS
        sender = self._processes.at(exchange.conn)
        if sender is not None and sender[1].broker is not None:
            shards = sender[1].broker.transactions.shards
            logs = [shard.partition.log for _, shard in sorted(shards.items())]
            if all(not shard.is_loading for shard in shards.values()):
                for marker in exchange.request.markers:
                    self._check_decision(sender[0].name, logs, marker)
        found = self._processes.at(exchange.conn.peer)
        broker = None if found is None else found[1].broker
        if broker is None:
            return False
        tails = {}
        for marker in exchange.request.markers:
            for topic in marker.topics:
                for index in topic.partition_indexes:
                    partition = broker.hosted.partition(topic.name, index)
                    if partition is not None and topic.name != OFFSETS_TOPIC:
                        tails[topic.name, index] = Tail.of(partition.log)
        exchange.memo = found, tails
        return True

    def _check_decision(self, who: str, logs: list[PartitionLog], marker: WritableTxnMarker) -> None:
        known: list[tuple[PartitionLog, _Decision]] = []
        for log in logs:
            try:
                decisions = self._decisions(log)
            except _UNREADABLE:
                return
            if decisions is None:
                return
            known += [(log, each) for each in decisions.get(marker.producer_id, ())]
        if not known:
            return  # The request was delayed on its connection, and another coordinator leads by now.
        wanted = {(topic.name, index) for topic in marker.topics for index in topic.partition_indexes}
        told = (
            f"markers: {who} asks for {'commit' if marker.transaction_result else 'abort'} of producer "
            f"{marker.producer_id} in epoch {marker.producer_epoch} in {sorted(wanted)}"
        )
        fits = [
            (log, each)
            for log, each in known
            if each.producer_epoch == marker.producer_epoch
            and each.is_commit == marker.transaction_result
            and wanted <= each.partitions
        ]
        if not fits:
            raise SafetyViolation(f"{told}, and its log has decided {[each for _, each in known][-1]}")
        log, decision = fits[-1]
        if log.high_watermark <= decision.offset:
            raise SafetyViolation(
                f"{told}, which it has decided at {decision.offset}, and the high watermark is {log.high_watermark}"
            )
        self.decisions_seen += 1
        key = TopicIdPartition(log.topic_id, log.partition)
        self._held.check(key, decision.offset + 1, f"{told}, decided below")

    def _decisions(self, log: PartitionLog) -> dict[int, list[_Decision]] | None:
        """Read the decisions of a log, by producer id; None if the log is unreadable. If possible, continue where the
        last call stopped.
        """
        if log.offline or log.is_closed:
            return None
        read = self._logs.get(log)
        batches = None if read is None or read.tail is None else read.tail.appended()
        if read is None or batches is None:
            self._logs = {each: read for each, read in self._logs.items() if not each.is_closed}
            first = log.segments[0].file
            assert isinstance(first, SimFile)
            read = self._logs[log] = _Read(None)
            batches = Tail(log, log.durability.truncations, first, 0).appended()
            if batches is None:
                return None
        for offset, _, value in transaction_states(batches):
            _note(read.decisions, offset, value)
        read.tail = Tail.of(log)
        return read.decisions

    def answered(self, exchange: Exchange, answer: object) -> None:
        """Check that each acknowledged marker was appended to its partition's log. Raises `SafetyViolation`."""
        assert isinstance(answer, WriteTxnMarkersResponse)
        found, tails = exchange.memo
        if self._processes.at(exchange.conn.peer) != found:
            return
        asked = {
            (marker.producer_id, topic.name, index): marker
            for marker in exchange.request.markers
            for topic in marker.topics
            for index in topic.partition_indexes
        }
        for producer in answer.markers:
            for topic in producer.topics:
                for part in topic.partitions:
                    tail = tails.get((topic.name, part.partition_index))
                    marker = asked.get((producer.producer_id, topic.name, part.partition_index))
                    if tail is not None and marker is not None and not part.error_code:
                        self._check_marker(found[0].name, tail, marker)

    def _check_marker(self, who: str, tail: Tail, marker: WritableTxnMarker) -> None:
        batches = tail.appended()
        log = tail.log
        if batches is None:
            return
        told = (
            f"markers: {who} has answered {'commit' if marker.transaction_result else 'abort'} of producer "
            f"{marker.producer_id} in epoch {marker.producer_epoch} in {log.topic}-{log.partition}"
        )
        for header, batch in batches:
            is_of = (header.producer_id, header.producer_epoch) == (marker.producer_id, marker.producer_epoch)
            found = parse_marker(batch) if header.is_control and is_of else None
            if found is not None and found.is_abort != marker.transaction_result:
                self.markers_seen += 1
                key = TopicIdPartition(log.topic_id, log.partition)
                self._held.check(key, header.next_offset, f"{told} below")
                return
        raise SafetyViolation(f"{told}, and the log has no such marker")


def _note(decisions: dict[int, list[_Decision]], offset: int, value: TransactionLogValue) -> None:
    is_commit = _ENDINGS.get(TransactionStatus(value.transaction_status))
    if is_commit is not None:
        partitions = frozenset(
            (topic.topic, index)
            for topic in value.transaction_partitions or ()
            for index in topic.partition_ids
        )
        decisions.setdefault(value.producer_id, []).append(
            _Decision(offset, value.producer_epoch, is_commit, partitions)
        )
