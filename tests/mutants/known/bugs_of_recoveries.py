"""Mutants of the quorum's recovery: the choice of a copy, the new log, the awaited brokers and the refused ones."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_AIMED = "a campaign recovers a lost quorum for one seed in eight, and few of these recoveries show it"
_SEEDS = 8

MUTANTS_OF_RECOVERIES: tuple[Mutant, ...] = (
    Mutant(
        "smallest-copy-counts",
        "The greatest copy has all that is committed, if any has. With the smallest, topics and rights are lost.",
        "odradek.metadata_quorum.recovery.copies:greatest",
        """
        - return max(copies, key=lambda each: (*each.rank, -1 if each.node_id is None else 0, -(each.node_id or 0)))
        + return min(copies, key=lambda each: (*each.rank, -1 if each.node_id is None else 0, -(each.node_id or 0)))
        """,
        "recovery",
        30,
        _AIMED,
    ),
    Mutant(
        "offsets-given-again",
        "Epochs of brokers are offsets: a broker of before would be taken for one of now.",
        "odradek.metadata_quorum.recovery.plan:_greatest_offset",
        """
        - return max([0, *(each.end.offset for each in copies), *brokers])
        + return 0
        """,
        "recovery",
        _SEEDS,
        _AIMED,
    ),
    Mutant(
        "numbers-of-a-second-rebuild",
        "A log that was rebuilt without a copy is lost as well: the next one begins with the same epochs.",
        "odradek.metadata_quorum.recovery.choice:_recoveries_before",
        """
        - return min(max(greatest_epoch, 0) // LEADER_EPOCHS_AHEAD, REBUILT_STEPS_MAX)
        + return 0
        """,
        "recovery",
        40,
        _AIMED,
    ),
    Mutant(
        "leader-epochs-of-disks-ignored",
        "A copy may miss elections: a new leader of the same epoch as an old one, and followers keep other records.",
        "odradek.metadata_quorum.recovery.recovered_image:_partition",
        """
        - leader_epoch = max([cluster.leader_epochs_from, 0 if before is None else before.leader_epoch, *(each.leader_epoch for each in held.values())])
        + leader_epoch = 0 if before is None else before.leader_epoch
        """,
        "recovery",
        _SEEDS,
        _AIMED,
    ),
    Mutant(
        "unwritten-partitions-begin-below-a-recovery",
        "Disks do not show the leader epoch of an empty partition. A second recovery would give out the same ones.",
        "odradek.metadata_quorum.recovery.recovered_image:leader_epochs_from",
        """
        - return max([0, *known]) // LEADER_EPOCHS_AHEAD * LEADER_EPOCHS_AHEAD
        + return 0
        """,
        "recovery",
        40,
        _AIMED,
    ),
    Mutant(
        "replicas-only-where-the-copy-places-them",
        "A reassignment has ended after the copy: its new replicas would become strays, with all records.",
        "odradek.metadata_quorum.recovery.recovered_image:_partition",
        """
        - staying = tuple(dict.fromkeys([*placed, *held])) or usual
        + staying = placed or usual
        """,
        "recovery",
        30,
        _AIMED,
    ),
    Mutant(
        "absent-nodes-not-waited-for",
        "An absent node may have the only replica with all acknowledged records.",
        "odradek.metadata_quorum.recovery.recovered_image:_partition",
        """
        - waited_for = {*held, *unknown}
        + waited_for = {*held}
        """,
        "recovery",
        30,
        _AIMED,
    ),
    Mutant(
        "unread-topics-set-aside",
        "A topic that only an absent node has is unknown to the recovered metadata, and its log becomes a stray.",
        "odradek.node.directories:Directories.check_unread_topics",
        """
        - if not unknown:
        + if True:
        """,
        "recovery",
        200,
        _AIMED,
    ),
    Mutant(
        "longest-log-of-those-who-came-first",
        "The first brokers that are back elect among themselves, and the longest log is cut when it comes.",
        "odradek.metadata_quorum.controller.unclean_recovery:Recovery.elect",
        """
        - held_back = any((each in without_limit and each not in able for each in last_known))
        + held_back = False
        """,
        "recovery",
        40,
        _AIMED,
    ),
    Mutant(
        "old-voters-are-followed",
        "Old voters come back together, and elect a leader beside the recovered quorum.",
        "odradek.metadata_quorum.raft.recoveries:check_answer",
        """
        - if has_log and epoch - own_epoch >= RECOVERY_EPOCHS_MIN:
        + if has_log and epoch < own_epoch:
        """,
        "recovery",
        30,
        _AIMED,
    ),
    Mutant(
        "old-log-removed",
        "The old metadata log is all that is left, if the wrong copy was chosen.",
        "odradek.operations.recovery.applying:_apply",
        """
        - root.rename(METADATA_LOG_DIRECTORY, set_aside_name(plan.end.epoch))
        + root.remove_tree(METADATA_LOG_DIRECTORY)
        """,
        "recovery",
        _SEEDS,
        _AIMED,
    ),
    Mutant(
        "old-epoch-in-the-new-quorum-state",
        "A voter would vote in epochs in which it has voted before.",
        "odradek.operations.recovery.applying:_apply",
        """
        - FileQuorumStateStore(draft).save(QuorumState(leader_epoch=plan.end.epoch))
        + FileQuorumStateStore(draft).save(QuorumState(leader_epoch=mine.copy_end.epoch))
        """,
        "recovery",
        _SEEDS,
        _AIMED,
    ),
    Mutant(
        "unknown-topics-lose-records-by-time",
        "A topic that only directories know has lost its configuration: a default could delete what was to be kept.",
        "odradek.metadata_quorum.recovery.recovered_image:_topic",
        """
        - if known is None:
        + if known is not None and not known.partitions:
        """,
        "recovery",
        30,
        _AIMED,
    ),
    Mutant(
        "in-sync-replicas-of-the-copy-believed",
        "A stale copy names replicas that have left the ISR since: such a one would lead without the last records.",
        "odradek.metadata_quorum.recovery.recovered_image:_partition",
        """
        - isr=[]
        + isr=[] if before is None else list(before.isr)
        """,
        "recovery",
        _SEEDS,
        _AIMED,
    ),
)
