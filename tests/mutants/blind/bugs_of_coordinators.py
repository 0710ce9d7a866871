"""Mutants of the coordinators of groups and of transactions."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

TRANSACTIONS = "odradek.data_plane.transactions."
GROUPS = "odradek.data_plane.groups."
COORDINATION = "odradek.data_plane.coordination."

BUGS_OF_COORDINATORS: tuple[Mutant, ...] = (
    Mutant(
        "timeout-begins-anew-with-each-partition",
        "Each partition that is added begins the transaction's time anew: a producer that hangs blocks readers for longer.",
        TRANSACTIONS + "machine:TransactionMachine._add",
        """
        - start_ms=transaction.start_ms if is_open else turn.wall_ms
        + start_ms=turn.wall_ms
        """,
    ),
    Mutant(
        "open-transactional-id-expires",
        "A transactional id expires while its transaction is open: no marker is ever written, and readers wait for ever.",
        TRANSACTIONS + "machine:TransactionMachine._expire",
        """
        - each.last_update_ms <= before_ms and (each.status is TransactionStatus.EMPTY or each.status.is_complete)
        + each.last_update_ms <= before_ms
        """,
    ),
    Mutant(
        "open-at-a-failover-never-times-out",
        "A new coordinator loads open transactions, and forgets that they are open: time never aborts them.",
        TRANSACTIONS + "state:state_of",
        """
        - is_open[key.transactional_id] = transaction.start_ms
        + pass
        """,
    ),
    Mutant(
        "timed-out-producer-not-fenced",
        "A transaction that has timed out is aborted with its producer's epoch unchanged: the producer writes on into it.",
        TRANSACTIONS + "endings:fenced",
        """
        - producer_epoch=_grown(transaction.producer_epoch)
        + producer_epoch=transaction.producer_epoch
        """,
    ),
    Mutant(
        "markers-acknowledged-at-the-timeout",
        "Markers that replicas do not have are answered as written when time runs out: a failover loses them for good.",
        TRANSACTIONS + "marker_writer:DelayedMarkers._time_out",
        """
        - for key in self.pending:
        -     self.note(key, ErrorCode.REQUEST_TIMED_OUT)
        """,
    ),
    Mutant(
        "repeated-init-is-fenced",
        "InitProducerId is not idempotent: a producer whose answer was lost is fenced by its own first request.",
        TRANSACTIONS + "machine:TransactionMachine._begun",
        """
        - if request.producer_epoch == transaction.last_producer_epoch:
        -     return transaction
        """,
    ),
    Mutant(
        "markers-acknowledged-with-the-first",
        "The first marker that replicas have acknowledges all markers of its request: a failover loses the rest for good.",
        TRANSACTIONS + "marker_writer:DelayedMarkers.settle",
        """
        - waiting.pop(0)
        - if not waiting:
        -     del self.pending[key]
        + self.pending.clear()
        """,
    ),
    Mutant(
        "offsets-of-a-living-group-expire",
        "KAFKA-4682: a group that consumes loses the offsets of partitions that were idle for longer than the retention.",
        GROUPS + "offsets:OffsetStore._is_expired",
        """
        - group.subscribed_topics is None or group.phase is not GroupPhase.STABLE or (topic in group.subscribed_topics)
        + group.subscribed_topics is None
        """,
    ),
    Mutant(
        "offsets-expire-by-their-commit",
        "KIP-211: offsets of an empty group expire by the age of the commit, not since the group is empty.",
        GROUPS + "offsets:OffsetStore._is_expired",
        """
        - since_ms = group.state_timestamp_ms
        + since_ms = value.commit_timestamp
        """,
    ),
    Mutant(
        "older-offset-of-a-transaction-wins-on-load",
        "A transaction's end overtakes a later commit when the log is read, unlike when it was written: offsets go back.",
        COORDINATION + "decision_log:Latest.end",
        """
        - is_commit and record.offset > self._offsets.get(record.key, -1)
        + is_commit
        """,
    ),
    Mutant(
        "restored-members-never-expire",
        "Members that a new coordinator has loaded have no session: who died meanwhile keeps its partitions for ever.",
        GROUPS + "membership:Membership._restore_members",
        """
        - for member in group.members.values():
        -     self._sessions.renew(turn, group, member)
        """,
    ),
    Mutant(
        "assignment-stored-before-it-is-taken",
        "The order of two effects: the group is stored with the assignments before these. After a failover, members get those.",
        GROUPS + "membership:Membership._take_assignment",
        """
        - for member in group.members.values():
        -     member.assignment = given.get(member.member_id, b'')
          group.transition_to(STABLE, turn.wall_ms)
          turn.records.append(group_metadata_record(group.group_id, group.stored()))
        + for member in group.members.values():
        +     member.assignment = given.get(member.member_id, b'')
        """,
    ),
    Mutant(
        "topics-deleted-while-loading-forgotten",
        "A topic that is deleted while its group's coordinator loads keeps its offsets: a topic of that name begins at them.",
        GROUPS + "coordinator:Shard.forget_topics",
        """
        - self._deleted_topics.update(dict.fromkeys(sorted(topics)))
        + pass
        """,
    ),
    Mutant(
        "one-fetch-confirms-a-read",
        "One fetch of a follower confirms that a coordinator leads, though it may have been sent before: offsets are outdated.",
        COORDINATION + "read_barrier:ReadBarrier._note",
        """
        - if first is not None and first[0] is replica.cursor:
        + if first is None or first[0] is replica.cursor:
        """,
    ),
    Mutant(
        "member-that-left-is-still-awaited",
        "A member that leaves while it joins is awaited on: the rebalance ends when its time is up, and nobody consumes.",
        GROUPS + "classic_group:ClassicGroup.remove",
        """
        - self.awaiting_join -= member.join_reply is not None
        """,
    ),
)
