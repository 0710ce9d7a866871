"""Check of unclean recovery: brokers report the true ends of their logs, and the best report wins (KIP-966). PURE.

1. A heartbeat reports where the log of a replica without a leader ends, and the epoch of its last record. The bytes of
   the segments end there, and the last batch has this epoch.
2. When a controller elects a leader of a partition with empty ISR and ELR, the leader's report is the best. Another
   report counts if the controller has answered it, and if the broker still has the same registration and may lead. The
   better report has the higher epoch, or the higher end with the same epoch. The winner has sent a report, too.

3. Now and then an election is rehearsed when a report is answered (`sim.checks.derived.rehearsed_elections`).

A replica is left out if all its records were deleted, since only batches have the epoch. A node sends itself no messages,
so a winner on the controller's own node is left out, too. Rule 2 needs nodes that all know these reports.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import attrs

from odradek.metadata_quorum.features import REPLICA_LOG_INFO
from odradek.wire.batches.batch_header import HEADER
from odradek.wire.messages import metadata_records as wire
from odradek.wire.messages.broker_heartbeat import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    PartitionLogInfo,
)
from odradek.wire.structure import Message
from odradek.wire.topic_partition import TopicIdPartition
from sim.checks.answers.heard_heartbeats import HeardHeartbeats, Reign
from sim.checks.derived.rehearsed_elections import rehearse_election
from sim.checks.folds.metadata_fold import BrokerFold, MetadataFold, PartitionFold
from sim.checks.stored_logs import StoredLogs
from sim.checks.watched import Processes, partition_name
from sim.checks.wiretap import Exchange
from sim.history import SafetyViolation

__all__ = ["LogReports"]

NOBODY = -1
REHEARSED = 0.5
"""The probability that an election is rehearsed when a heartbeat with reports is answered."""


@attrs.frozen
class Report:
    """A broker's report about one replica, and the virtual time at which it was sent."""

    broker_epoch: int
    leader_epoch: int
    last_epoch: int
    end_offset: int
    sent_at: float

    @property
    def rank(self) -> tuple[int, int]:
        """Return what orders reports: the higher one wins."""
        return self.last_epoch, self.end_offset


_Reports = dict[TopicIdPartition, dict[tuple[str, int], Report]]
"""For each partition, the last report by (controller's machine, broker id)."""


class LogReports:
    """The check of reports in heartbeats. `judge` is called with each committed record and the state before it."""

    def __init__(self, processes: Processes, heartbeats: HeardHeartbeats) -> None:
        self._processes = processes
        self._heartbeats = heartbeats
        self._stored = StoredLogs(is_durable=False)
        self._sent: _Reports = {}
        self._heard: _Reports = {}
        self._random = Random(f"{processes.world.seed}/log reports")
        self.reports_seen = self.elections_seen = self.rehearsals_seen = 0

    # --- heartbeats

    def asked(self, exchange: Exchange) -> bool:
        """Compare the reports with the sender's logs. Returns False if there are none. Raises `SafetyViolation`."""
        request: BrokerHeartbeatRequest = exchange.request
        if not request.topic_partition_log_info_list:
            return False
        now = self._processes.world.now
        reports: dict[TopicIdPartition, Report] = {}
        for topic in request.topic_partition_log_info_list:
            for info in topic.partition_log_info:
                if info.error_code:
                    continue
                key = TopicIdPartition(topic.topic_id, info.partition)
                reports[key] = Report(
                    request.broker_epoch,
                    info.current_leader_epoch,
                    info.last_written_leader_epoch,
                    info.log_end_offset,
                    now,
                )
                self._compare(exchange, key, info)
        exchange.memo = reports
        place = (exchange.conn.peer_name, request.broker_id)
        for key, report in reports.items():
            self._sent.setdefault(key, {})[place] = report
        return True

    def answered(self, exchange: Exchange, answer: BrokerHeartbeatResponse) -> None:
        """Record that a controller has these reports. Rehearse some elections. Raises `SafetyViolation`."""
        if answer.error_code:
            return
        reports: dict[TopicIdPartition, Report] = exchange.memo
        place = (exchange.conn.peer_name, exchange.request.broker_id)
        for key, report in reports.items():
            self._heard.setdefault(key, {})[place] = report
        found = self._processes.at(exchange.conn.peer)
        metadata = None if found is None else found[1].metadata
        if reports and metadata is not None and self._random.random() < REHEARSED:
            key = self._random.choice(list(reports))
            self.rehearsals_seen += rehearse_election(metadata.committed_image, key, self._random)

    def _compare(self, exchange: Exchange, key: TopicIdPartition, info: PartitionLogInfo) -> None:
        found = self._processes.at(exchange.conn)
        broker = None if found is None else found[1].broker
        partition = None if broker is None else broker.hosted.partition(key.topic_id, key.partition)
        if found is None or partition is None or partition.log.offline or partition.log.is_closed:
            return
        image = partition.image
        if image is None or image.leader != NOBODY or partition.leader_epoch != info.current_leader_epoch:
            return  # The report has waited in the connection, and a leader was elected since.
        disk = self._processes.world.machine(found[0].name).disk
        for _, inode in reversed(self._stored.segments(disk, partition.log.directory.path)):
            walk = self._stored.walk(inode)
            if walk.next_offset < 0:
                continue
            epoch = HEADER.unpack_from(walk.last_header)[2]
            self.reports_seen += 1
            written = info.last_written_leader_epoch
            is_deleted = partition.log.log_start_offset == info.log_end_offset
            # Of deleted records the log knows only that none is of a later epoch.
            is_true = epoch <= written if is_deleted else epoch == written
            if not is_true or walk.next_offset != info.log_end_offset:
                raise SafetyViolation(
                    f"log report: {found[0].name} says that {partition_name(partition)} ends at {info.log_end_offset} in epoch "
                    f"{info.last_written_leader_epoch}, and its bytes end at {walk.next_offset} in epoch {epoch}"
                )
            return

    # --- elections

    def judge(self, state: MetadataFold, record: Message) -> None:
        """Check a committed election by reports. Raises `SafetyViolation`."""
        if not isinstance(record, wire.PartitionChangeRecord) or record.leader < 0:
            return
        key = TopicIdPartition(record.topic_id, record.partition_id)
        heard = self._heard.get(key)
        topic = state.topics.get(record.topic_id)
        before = None if topic is None else topic.partitions.get(record.partition_id)
        if heard is None or before is None or record.directories is not None:
            return
        is_waiting = before.leader == NOBODY and not before.isr and not before.elr
        reign = self._heartbeats.reign(state.epoch, record.leader)
        if not is_waiting or reign is None or not _all_report(state, before):
            return
        self.elections_seen += 1
        sent = self._sent[key].get((reign.member.name, record.leader))
        winner = state.brokers.get(record.leader)
        counts = sent is not None and winner is not None and sent.broker_epoch == winner.epoch
        for broker_id, report in self._able(state, before, heard, reign):
            if sent is None or not counts or sent.rank < report.rank:
                raise SafetyViolation(
                    f"log report: {reign.member.name} elects {record.leader} for {key.partition} of {key.topic_id.hex()} by "
                    f"{sent} in its epoch {None if winner is None else winner.epoch}, and broker {broker_id} has {report}"
                )

    def _able(
        self,
        state: MetadataFold,
        partition: PartitionFold,
        heard: dict[tuple[str, int], Report],
        reign: Reign,
    ) -> Iterator[tuple[int, Report]]:
        """Yield the brokers that may lead, and whose reports this controller has."""
        for (name, broker_id), report in heard.items():
            broker = state.brokers.get(broker_id)
            if (
                name == reign.member.name
                and report.sent_at >= reign.since
                and report.leader_epoch == partition.leader_epoch
                and broker is not None
                and broker.epoch == report.broker_epoch
                and broker_id in partition.replicas
                and _may_lead(broker, partition.directories[partition.replicas.index(broker_id)])
            ):
                yield broker_id, report


def _may_lead(broker: BrokerFold, directory: bytes) -> bool:
    return not broker.fenced and not broker.in_controlled_shutdown and directory in broker.log_dirs


def _all_report(state: MetadataFold, partition: PartitionFold) -> bool:
    """True if all controllers and the registered brokers of this partition know these reports."""
    brokers = [state.brokers[each].features for each in partition.replicas if each in state.brokers]
    controllers = [each.features for each in state.controllers.values()]
    return bool(controllers) and all(
        any(name == REPLICA_LOG_INFO and high >= 1 for name, _, high in features)
        for features in (*brokers, *controllers)
    )
