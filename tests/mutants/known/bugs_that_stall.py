"""Mutants that stop something from serving and break no other guarantee. The limits on outages find them."""

from __future__ import annotations

from tests.mutants.mutant import CAMPAIGN, Mutant

MUTANTS_THAT_STALL: tuple[Mutant, ...] = (
    Mutant(
        "vote-asked-for-only-once",
        "Raft, 5.2: a candidate without a majority starts another election after a timeout; here it waits for ever.",
        "odradek.metadata_quorum.raft.election:on_time",
        """
          if role.election_deadline > core.now:
              return
        - if core.may_stand:
        + if isinstance(role, Candidate):
        +     role.election_deadline = float('inf')
        + elif core.may_stand:
        """,
        CAMPAIGN,
        40,
    ),
    Mutant(
        "coordinator-that-loads-for-ever",
        "A coordinator that takes over from another one reads the log, and never begins to answer.",
        "odradek.data_plane.coordination.shard:Shard.load",
        """
        - if self._stopped:
        + if self._stopped or (self.size_of(state) and self.leader_epoch > 1):
        """,
        CAMPAIGN,
        40,
    ),
    Mutant(
        "sync-of-a-later-generation-unanswered",
        "A group's members wait for their assignment for ever, once the group has rebalanced a few times.",
        "odradek.data_plane.groups.membership:Membership.sync",
        """
          group = self.find(turn, request.group_id) if request.group_id else None
        + if group and group.generation > 3:
        +     return
        """,
        CAMPAIGN,
        40,
    ),
)
