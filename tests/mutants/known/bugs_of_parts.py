"""Mutants of the parts that the simulator runs alone: the quorum's driver, group coordinators, a partition's files."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

REPLICA = "odradek.metadata_quorum.replica."
GROUPS = "odradek.data_plane.groups."
COORDINATION = "odradek.data_plane.coordination."

MUTANTS_OF_PARTS: tuple[Mutant, ...] = (
    Mutant(
        "promise-before-its-sync",
        "KIP-595: a follower fetches on when its batches are written, and its disk has them not yet.",
        REPLICA + "raft_quorum:RaftQuorum._append_fetched",
        """
        - end_offset = await self.patiently(self.log.flush)
        + end_offset = self.log.log_end_offset
        """,
        "quorum",
        300,
    ),
    Mutant(
        "group-commit-counted-before-its-sync",
        "KIP-595: the leader's driver reports a batch as synced when it has been written.",
        REPLICA + "quorum_leader:QuorumLeader._sync",
        """
        - end_offset = await driver.patiently(driver.log.flush)
        + end_offset = driver.log.log_end_offset
        """,
        "quorum",
        300,
    ),
    Mutant(
        "vote-kept-in-the-page-cache",
        "Raft, figure 2: the vote is written before it is given; a file that nobody syncs is gone with the power.",
        REPLICA + "quorum_state:FileQuorumStateStore.save",
        """
        - self._directory.write_atomic(FILE_NAME, json.dumps(document, separators=(',', ':')).encode())
        + file = self._directory.open(FILE_NAME, create=True)
        + file.truncate(0)
        + file.append(json.dumps(document, separators=(',', ':')).encode())
        + file.close()
        """,
        "quorum",
        300,
    ),
    Mutant(
        "voters-of-a-cut-record-in-force",
        "Thesis 4.1: a server that cuts its log returns to the configuration before it.",
        "odradek.metadata_quorum.raft.log_state:LogState.truncate",
        """
        - while len(self.voter_history) > 1 and self.voter_history[-1][0] >= end_offset:
        -     self.voter_history.pop()
        """,
        "quorum",
        2000,
    ),
    Mutant(
        "older-log-under-an-installed-snapshot",
        "KIP-630: a leader's snapshot replaces the whole log; here its files stay.",
        REPLICA + "quorum_snapshots:QuorumSnapshots._install",
        """
        - await driver.patiently(lambda: driver.log.install(stored.end_offset))
        """,
        "quorum",
        1000,
    ),
    Mutant(
        "snapshot-with-newer-voters",
        "KIP-853: a snapshot has the voters at its end; here it has the newest ones, which may be taken back.",
        REPLICA + "quorum_snapshots:QuorumSnapshots.control_records_below",
        """
        - voter_history if at < offset]
        + voter_history if at < offset or at >= offset]
        """,
        "quorum",
        2000,
    ),
    Mutant(
        "decisions-outlive-the-lead",
        "What waited to be written when the lead was lost is written in the next epoch that the node leads.",
        REPLICA + "quorum_leader:QuorumLeader.lost",
        """
        - self._waiting.clear()
        """,
        "quorum",
        500,
    ),
    Mutant(
        "answered-before-committed",
        "Raft 5.3: a leader answers when the entry is committed; here as soon as what stood before it is.",
        "odradek.metadata_quorum.state_machine:ReplicatedStateMachine.submit",
        """
        - deferred = Deferred(request, response, self._end_offset)
        + deferred = Deferred(request, response, base_offset)
        """,
        "quorum",
        300,
    ),
    Mutant(
        "uncommitted-image-after-the-lead",
        "A controller that resigns keeps what it had decided, and goes on from there as a follower.",
        "odradek.metadata_quorum.service:MetadataService._resign",
        """
        - self._publisher.take_over(machine.committed_state, machine.committed_end)
        + self._publisher.take_over(machine.state, machine.committed_end)
        """,
        "quorum",
        1000,
    ),
    Mutant(
        "commit-answered-before-its-high-watermark",
        "A coordinator takes what it has appended for committed.",
        COORDINATION + "decision_log:CoordinatorLog.high_watermark",
        """
        - return self._partition.log.high_watermark
        + return self._partition.log.log_end_offset
        """,
        "groups",
        100,
    ),
    Mutant(
        "coordinator-reads-the-newest-segment-alone",
        "A coordinator that takes over loads the active segment of its partition, and forgets the older ones.",
        COORDINATION + "decision_log:read_latest",
        """
        - offset, end_offset = (log.log_start_offset, log.log_end_offset)
        + offset, end_offset = (log.segments[-1].base_offset, log.log_end_offset)
        """,
        "groups",
        100,
    ),
    Mutant(
        "coordinator-reads-to-its-high-watermark",
        "A new leader's high watermark is late: what lies behind it is committed, or will be, and is not loaded.",
        COORDINATION + "decision_log:read_latest",
        """
        - offset, end_offset = (log.log_start_offset, log.log_end_offset)
        + offset, end_offset = (log.log_start_offset, log.high_watermark)
        """,
        "groups",
        200,
    ),
    Mutant(
        "commit-of-an-old-generation",
        "A member that missed a rebalance commits, over what the new owner has committed.",
        GROUPS + "offsets:OffsetStore._may_commit",
        """
        - if generation != group.generation:
        + if generation > group.generation:
        """,
        "groups",
        300,
    ),
    Mutant(
        "tombstones-forgotten-on-load",
        "Offsets that had expired or were deleted come back with the next coordinator.",
        COORDINATION + "decision_log:_take_batch",
        """
        - if record.key is not None:
        + if record.key is not None and record.value is not None:
              values[record.key] = record.value
        """,
        "groups",
        500,
    ),
    Mutant(
        "coordinator-over-a-change-of-epoch",
        "A broker that leads again after another one did goes on with the groups that it had before.",
        GROUPS + "coordinator:GroupCoordinator.follow_leadership",
        """
        - if partition is not shard.partition or partition.leader_epoch != shard.leader_epoch:
        + if partition is not shard.partition:
        """,
        "groups",
        300,
    ),
    Mutant(
        "generation-not-counted",
        "The generation fences the members of the one before; here a rebalance keeps its number.",
        GROUPS + "membership:Membership._complete_join",
        """
        - group.generation = group.generation % INT32_MAX + 1
        + group.generation += not group.generation
        """,
        "groups",
        100,
    ),
    Mutant(
        "fenced-instance-goes-on",
        "KIP-345: the older one of two members with one instance id is fenced, and must not commit.",
        GROUPS + "classic_group:ClassicGroup.validate_member",
        """
        - if existing != member_id:
        -     return ErrorCode.FENCED_INSTANCE_ID
        + return ErrorCode.NONE
        """,
        "groups",
        500,
    ),
    Mutant(
        "first-value-of-a-key-loaded",
        "A log that is not compacted yet has many values of a key; the last one counts.",
        COORDINATION + "decision_log:_take_batch",
        """
        - values[record.key] = record.value
        + values.setdefault(record.key, record.value)
        """,
        "groups",
        100,
    ),
    Mutant(
        "index-names-the-next-batch",
        "An index entry that is written after its batch was counted points behind it, so a read from there skips records.",
        "odradek.data_plane.log.segments.segment:Segment.note_batch",
        """
        - index.append(last_offset - base_offset, position)
        + index.append(last_offset - base_offset, end)
        """,
        "replication",
        100,
    ),
    Mutant(
        "producer-snapshots-behind-a-cut",
        "A log that is cut keeps the snapshots of its producers behind the cut; the next start goes on from one.",
        "odradek.data_plane.log.truncation:Truncation._cut_files",
        """
        - remove_snapshots_above(directory, offset, names)
        """,
        "replication",
        1000,
    ),
)
