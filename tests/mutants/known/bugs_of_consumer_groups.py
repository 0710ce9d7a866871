"""Mutants of groups of the consumer protocol (KIP-848): hand-over, epochs, sessions, targets, migration."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

CONSUMERS = "odradek.data_plane.groups.consumers."

MUTANTS_OF_CONSUMER_GROUPS: tuple[Mutant, ...] = (
    Mutant(
        "partition-handed-over-while-it-is-owned",
        "A member gets the partitions of its target at once: the old owner still reads them, and records are handled twice.",
        CONSUMERS + "reconciliation:_towards",
        """
        - if each not in kept and (each in given_up or goal.is_free(topic_id, each))
        + if each not in kept
        """,
    ),
    Mutant(
        "partition-to-give-up-is-free",
        "A partition counts as free as soon as its owner is asked to give it up: two members read it.",
        CONSUMERS + "consumer_group:_owned",
        """
        - for epochs in (member.assigned, member.revoking)
        + for epochs in (member.assigned,)
        """,
    ),
    Mutant(
        "silence-gives-partitions-up",
        "A heartbeat that leaves its partitions out counts as if it had none: they go to others while they are read.",
        CONSUMERS + "reconciliation:_has_any",
        """
        - if owned is None:
        -     return True
        + if owned is None:
        +     return False
        """,
    ),
    Mutant(
        "commit-of-an-earlier-stay-is-taken",
        "KIP-1251: a partition went away and came back; a late commit of the first stay overwrites newer offsets.",
        CONSUMERS + "consumer_offsets:_epoch_refusal",
        """
        - if since is None or epoch < since:
        + if since is None:
        """,
    ),
    Mutant(
        "fenced-members-commit-is-taken",
        "A member that has lost its partitions commits with an old epoch: the next owner's offsets go back.",
        CONSUMERS + "consumer_offsets:_epoch_refusal",
        """
        - if since is None or epoch < since:
        + if since is not None and epoch < since:
        """,
    ),
    Mutant(
        "loaded-sessions-never-end",
        "A new coordinator begins no sessions: members that died meanwhile keep their partitions for ever.",
        CONSUMERS + "consumer_membership:ConsumerMembership.begin_anew",
        """
        - self.timers.renew_session(turn, group_id, member_id, timeout_ms)
        """,
    ),
    Mutant(
        "fenced-members-partitions-stay-where-they-were",
        "A member is removed, and the group's epoch stays. So its partitions stay in its target, and nobody reads them.",
        CONSUMERS + "consumer_membership:ConsumerMembership.fence",
        """
        - change.add([epoch_record(group.group_id, group.epoch + 1, topics_hash)])
        + change.add([epoch_record(group.group_id, group.epoch, topics_hash)])
        """,
    ),
    Mutant(
        "target-of-an-ended-run-is-written",
        "A worker's target counts although its group has got another one meanwhile: the group's target goes back.",
        CONSUMERS + "target_runs:TargetRuns.take_part",
        """
        - if group is None or self._running.get(run.group_id) is not run:
        + if group is None:
        """,
    ),
    Mutant(
        "successor-is-left-without-a-target",
        "A static member returns while its target is computed: what was meant for it goes to nobody.",
        CONSUMERS + "target_runs:_for_present",
        """
        - if successor is None or successor.member_id in run.group.members:
        + if True:
        """,
        "consumers",
        1200,
        "a static member must return while its target is computed; then one schedule in some 400 shows it",
    ),
    Mutant(
        "instance-taken-without-its-release",
        "A second client takes the instance id of a static member that lives: both read the same partitions.",
        CONSUMERS + "finding_members:static_member",
        """
        - if existing.profile.classic is None and existing.epoch != STATIC_LEAVING_EPOCH:
        + if False:
        """,
    ),
    Mutant(
        "upgraded-members-own-nothing",
        "A group is upgraded, and what its classic members have counts as free: the first new member gets it at once.",
        CONSUMERS + "migration:_assigned_in",
        """
        - if not assignment:
        + if True:
        """,
    ),
    Mutant(
        "migration-takes-the-offsets-along",
        "The tombstone of a group's old kind deletes its offsets: after a migration all is read again, or never.",
        "odradek.data_plane.groups.state:GroupsState.replay",
        """
        - if not left:
        -     changed[group] = None
        + changed[group] = None
        """,
    ),
    Mutant(
        "topic-that-grew-is-not-noticed",
        "A topic that members read gets partitions, and the group's epoch stays: nobody reads the new ones.",
        CONSUMERS + "consumer_membership:ConsumerMembership.topics_changed",
        """
        - self._checked.discard(group.group_id)
        + pass
        """,
    ),
    Mutant(
        "new-topics-match-no-pattern",
        "Patterns are resolved once: topics that are made later are read by nobody, though a member's pattern matches them.",
        CONSUMERS + "patterns:Patterns._is_due",
        """
        - is_new or len(group.pattern_counts) != len(group.resolved) or last.version < self._newest_topics or (wall_ms > last.timestamp_ms + self._refresh_interval_ms)
        + is_new or len(group.pattern_counts) != len(group.resolved)
        """,
        "consumers",
        300,
        "a topic must be created after the last search and before the schedule heals; one in some 150 does it",
    ),
)
