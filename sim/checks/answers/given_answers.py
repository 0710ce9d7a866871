"""All checks of answers. This module registers each check for its APIs, and has the state that the checks share. PURE.

The checks start when `begin` is called. Runs that break the fault model on purpose do not call `begin`, since
guarantees may be broken there.
"""

from __future__ import annotations

from collections.abc import Sequence

from odradek.wire.api_keys import ApiKey
from odradek.wire.structure import Message
from sim.checks.answers.acknowledged_records import AcknowledgedRecords
from sim.checks.answers.deleted_records import DeletedRecords
from sim.checks.answers.eligible_replicas import EligibleReplicas
from sim.checks.answers.handed_blocks import HandedBlocks
from sim.checks.answers.heard_heartbeats import HeardHeartbeats
from sim.checks.answers.held_records import HeldRecords
from sim.checks.answers.kept_commits import KeptCommits
from sim.checks.answers.kept_transactions import TRANSACTION_APIS, KeptTransactions
from sim.checks.answers.log_reports import LogReports
from sim.checks.answers.newest_metadata import NewestMetadata
from sim.checks.answers.own_changes import OwnChanges
from sim.checks.answers.replica_bytes import ReplicaBytes
from sim.checks.answers.served_records import ServedRecords
from sim.checks.answers.written_markers import WrittenMarkers
from sim.checks.folds.metadata_fold import MetadataFold
from sim.checks.found_dead import FoundDead
from sim.checks.watched import Hosted, Processes
from sim.checks.wiretap import Wiretap
from sim.storm.fault_atlas import FaultAtlas

__all__ = ["GivenAnswers"]


class GivenAnswers:
    """All checks of answers, and the check of replicas that may become leader."""

    def __init__(self, processes: Processes, found: FoundDead) -> None:
        self._processes = processes
        self.newest = NewestMetadata(processes)
        self.replicas = ReplicaBytes(processes, self.newest)
        self.held = HeldRecords(processes, self.newest, self.replicas)
        self.acknowledged = AcknowledgedRecords(processes, self.held)
        self.deleted = DeletedRecords(processes, self.newest, self.replicas)
        self.eligible = EligibleReplicas(self.newest, self.replicas)
        self.commits = KeptCommits(processes, self.held)
        self.transactions = KeptTransactions(processes, self.held)
        self.markers = WrittenMarkers(processes, self.held)
        self.own_changes = OwnChanges(processes, self.newest)
        self.blocks = HandedBlocks()
        self.heartbeats = HeardHeartbeats(processes, found)
        self.reports = LogReports(processes, self.heartbeats)
        self._has_begun = self._judges_decisions = False

    def begin(self, tap: Wiretap, served: ServedRecords, atlas: FaultAtlas) -> None:
        """Start the checks. `atlas` has the replicas whose bytes the run has damaged."""
        self._has_begun = True
        self.replicas.atlas = atlas
        self.replicas.watch_losses()
        served.held = self.held
        tap.listen(ApiKey.PRODUCE, self.acknowledged)
        tap.listen(ApiKey.DELETE_RECORDS, self.deleted)
        tap.listen(ApiKey.OFFSET_COMMIT, self.commits)
        tap.listen(ApiKey.TXN_OFFSET_COMMIT, self.commits)
        for api in TRANSACTION_APIS:
            tap.listen(api, self.transactions)
        tap.listen(ApiKey.WRITE_TXN_MARKERS, self.markers)
        for api in (ApiKey.CREATE_TOPICS, ApiKey.CREATE_PARTITIONS, ApiKey.DELETE_TOPICS):
            tap.listen(api, self.own_changes)
        self.begin_decisions(tap)

    def begin_decisions(self, tap: Wiretap) -> None:
        """Start only the checks of controllers' decisions. Call this before a broker starts. Judge decisions only if the tap
        hears messages.
        """
        self._judges_decisions = self._processes.world.fabric.on_sent is not None
        tap.listen(ApiKey.ALLOCATE_PRODUCER_IDS, self.blocks)
        tap.listen(ApiKey.BROKER_HEARTBEAT, self.heartbeats)
        tap.listen(ApiKey.BROKER_HEARTBEAT, self.reports)

    def judge(self, state: MetadataFold, record: Message) -> None:
        """Check a decision of a controller: a committed record, and the state before it. Raises `SafetyViolation`."""
        if self._judges_decisions:
            self.heartbeats.judge(state, record)
            self.reports.judge(state, record)

    def look(self, hosted: Sequence[Hosted]) -> None:
        """Check the replicas that may become leader, in the partitions that have changed. Raises `SafetyViolation`."""
        if self._has_begun:
            self.eligible.look(hosted)
        self.heartbeats.look(hosted)

    def look_at_all(self, hosted: Sequence[Hosted]) -> None:
        """Check the replicas that may become leader, in all partitions. Raises `SafetyViolation`."""
        if self._has_begun:
            self.eligible.look_at_all(hosted)
        self.heartbeats.look_at_all(hosted)

    def statistics(self) -> dict[str, int]:
        return {
            "acknowledged": self.acknowledged.seen,
            "held": self.held.judged,
            "deleted": self.deleted.seen,
            "commits": self.commits.seen,
            "transactions": self.transactions.seen,
            "decisions": self.markers.decisions_seen,
            "markers": self.markers.markers_seen,
            "own changes": self.own_changes.seen,
            "eligible": self.eligible.eligible_seen,
            "last known": self.eligible.last_known_seen,
            "blocks": self.blocks.seen,
            "unfenced": self.heartbeats.unfenced_seen,
            "fenced": self.heartbeats.fenced_seen,
            "log reports": self.reports.reports_seen,
            "elections rehearsed": self.reports.rehearsals_seen,
            "elections by reports": self.reports.elections_seen,
            "offline directories": self.heartbeats.offline_seen,
        }
