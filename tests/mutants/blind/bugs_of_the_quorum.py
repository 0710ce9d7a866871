"""Mutants of the metadata quorum: votes, logs, voters, snapshots and images."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

RAFT = "odradek.metadata_quorum.raft."
REPLICA = "odradek.metadata_quorum.replica."

BUGS_OF_THE_QUORUM: tuple[Mutant, ...] = (
    Mutant(
        "vote-forgotten-at-restart",
        "A voter that restarts reads its epoch and not its vote, so it may vote twice: an epoch has two leaders.",
        RAFT + "core_state:CoreState._first_role",
        """
        - voted = None if state.voted_id < 0 else ReplicaKey(state.voted_id, state.voted_directory_id)
        + voted = None
        """,
    ),
    Mutant(
        "longer-log-wins",
        "Votes compare lengths before epochs: a candidate with a long old log wins, and committed metadata is cut away.",
        RAFT + "election:on_vote",
        """
        - (request.log_end.epoch, request.log_end.offset) >= (mine.epoch, mine.offset)
        + (request.log_end.offset, request.log_end.epoch) >= (mine.offset, mine.epoch)
        """,
    ),
    Mutant(
        "epoch-of-a-cut-record-kept",
        "Off by one: a log that was cut keeps the epoch of its first cut record, and wins votes with it.",
        RAFT + "log_state:LogState.truncate",
        """
        - while self.epochs and self.epochs[-1][1] >= end_offset:
        + while self.epochs and self.epochs[-1][1] > end_offset:
        """,
    ),
    Mutant(
        "snapshot-names-voters-to-come",
        "A snapshot names voters of a record above it, which may never be committed: majorities of two sets do not meet.",
        REPLICA + "quorum_snapshots:QuorumSnapshots.control_records_below",
        """
        - [voters for at, voters in self._driver.core.log.voter_history if at < offset]
        + [voters for _, voters in self._driver.core.log.voter_history]
        """,
    ),
    Mutant(
        "voters-changed-before-the-first-commit",
        "A new leader changes the voters before a record of its epoch is committed (Ongaro's correction of 2015).",
        RAFT + "membership:refusal",
        """
        - not core.has_committed_in_epoch or core.log.voters_offset >= core.high_watermark
        + core.log.voters_offset >= core.high_watermark
        """,
    ),
    Mutant(
        "image-of-uncommitted-records",
        "Only the first byte that is read must be committed: images show decisions that a new leader takes back.",
        REPLICA + "quorum_leader:QuorumLeader.read_committed",
        """
        - return self.read(offset, bytes_max, upper_bound=self.high_watermark)
        + return self.read(offset, bytes_max)
        """,
    ),
    Mutant(
        "image-awaited-one-record-short",
        "Off by one: an answer waits for the record before its own, so a client does not see its own change.",
        REPLICA + "publisher:MetadataPublisher.image_reaches",
        """
        - while self.image.offset < offset:
        + while self.image.offset + 1 < offset:
        """,
    ),
    Mutant(
        "tail-dropped-before-its-write",
        "The order of two effects: what the late disk owes leaves the memory before the file has it, and nobody can read it.",
        REPLICA + "quorum_leader:QuorumLeader._sync",
        """
        - await driver.patiently(partial(append_batches, driver.log, batches))
        - self._tail.drop(batches)
        + self._tail.drop(batches)
        + await driver.patiently(partial(append_batches, driver.log, batches))
        """,
    ),
    Mutant(
        "longer-follower-not-cut",
        "A follower with more records of the leader's last epoch is not cut: its extra records stay among committed ones.",
        RAFT + "replication:_mismatch",
        """
        - if agreed.epoch != request.last_epoch or agreed.offset < request.offset:
        + if agreed.epoch != request.last_epoch:
        """,
    ),
    Mutant(
        "config-that-a-snapshot-took-back",
        "A node that loads a snapshot does not hear of configurations that are gone: its logs keep the old retention.",
        REPLICA + "publisher:difference",
        """
        - [*before.configs, *after.configs, *before.unreadable_configs, *after.unreadable_configs]
        + [*after.configs, *after.unreadable_configs]
        """,
    ),
    Mutant(
        "acls-that-a-snapshot-took-back",
        "A node that loads a snapshot does not hear of rules that are gone: a right that was withdrawn stays in force there.",
        REPLICA + "publisher:_changed_keys",
        """
        - dict.fromkeys([*before, *after])
        + dict.fromkeys(after)
        """,
    ),
)
