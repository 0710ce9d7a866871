"""Changes of role: the table of `raft/roles.py`, the diagram of it, and changes that a replica refuses."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from odradek.metadata_quorum.ports import OffsetAndEpoch
from odradek.metadata_quorum.raft.effects import Send
from odradek.metadata_quorum.raft.log_state import Batch
from odradek.metadata_quorum.raft.messages import Fetch
from odradek.metadata_quorum.raft.roles import (
    TRANSITIONS,
    Candidate,
    EpochRule,
    Follower,
    Leader,
    Prospective,
    Resigned,
    Role,
    Unattached,
    check_transition,
)
from odradek.metadata_quorum.raft.voters import Voter, VoterSet
from tests.quorum.voters.test_voter_keys import Replica, key

PAGE = Path(__file__).resolve().parents[3] / "docs/internals/quorum.md"
ARROW = re.compile(r"^(\w+) +-> (\w+) {2,}(\S+(?: \S+)*) {2,}?(\S.*)$", re.MULTILINE)
ROLES = (Unattached, Prospective, Candidate, Follower, Leader, Resigned)
RISES = {EpochRule.SAME: {0}, EpochRule.NEXT: {1}, EpochRule.LATER: {1, 2}, EpochRule.ANY: {0, 1, 2}}


def role_of(kind: type[Role], epoch: int) -> Role:
    """Make a role of this kind, in which the replica has voted for itself."""
    me = key(1)
    if kind is Unattached:
        return Unattached(epoch, me, None, 1.0)
    if kind is Prospective:
        return Prospective(epoch, me, None, 1.0, [1])
    if kind is Candidate:
        return Candidate(epoch, me, 1.0, [1])
    if kind is Follower:
        return Follower(epoch, me, 2, 1.0)
    if kind is Leader:
        return Leader(epoch, me, 0, (1, 2), 0.0, 1.0)
    return Resigned(epoch, me, 1.0)


def test_the_picture_has_the_arrows_of_the_table() -> None:
    """The diagram in docs/internals/quorum.md has exactly the legal changes of role, with their epochs and reasons."""
    drawn = ARROW.findall(PAGE.read_text())
    table = [
        (before.__name__, after.__name__, rule.value, why)
        for (before, after), (rule, why) in TRANSITIONS.items()
    ]
    assert sorted(drawn) == sorted(table)


@pytest.mark.parametrize("before", ROLES)
@pytest.mark.parametrize("after", ROLES)
def test_a_change_of_role_is_in_the_table_or_a_bug(before: type[Role], after: type[Role]) -> None:
    """A change of role that the table lacks is a bug.

    A replica leads only as a candidate, becomes a candidate only in a new epoch, and leads no epoch twice.
    """
    rule, _ = TRANSITIONS.get((before, after), (None, ""))
    for rise in (-1, 0, 1, 2):
        allowed = rule is not None and rise in RISES[rule]
        if allowed:
            check_transition(role_of(before, 5), role_of(after, 5 + rise))
        else:
            with pytest.raises(AssertionError):
                check_transition(role_of(before, 5), role_of(after, 5 + rise))


def test_a_core_holds_the_table_at_each_change() -> None:
    """A leader is to become a follower in its own epoch. This is a bug, which ends the node."""
    leader = Replica.leader()
    with pytest.raises(AssertionError, match="Leader of epoch 1 cannot become a Follower of epoch 1"):
        leader.core.enter(Follower(1, key(1), 2, 9.0))
    assert isinstance(leader.core.role, Leader)


def test_a_vote_is_for_one() -> None:
    """A replica votes for at most one candidate in an epoch (Raft 5.2). In the next epoch it is free again."""
    voted = Unattached(5, key(2), None, 1.0)
    with pytest.raises(AssertionError, match="voted for"):
        check_transition(voted, Follower(5, key(3), 3, 1.0))
    with pytest.raises(AssertionError, match="voted for"):
        check_transition(voted, Follower(5, None, 3, 1.0))
    check_transition(voted, Follower(6, None, 3, 1.0))


def test_an_epoch_has_one_leader() -> None:
    """A follower that has had an answer from its leader follows no other leader in that epoch.

    Before such an answer it may change to another leader.
    """
    heard, answered = Follower(5, None, 2, 1.0), Follower(5, None, 2, 1.0, has_fetched=True)
    other = Follower(5, None, 3, 1.0)
    check_transition(heard, other)
    check_transition(answered, Follower(6, None, 3, 1.0))
    with pytest.raises(AssertionError, match="two leaders"):
        check_transition(answered, other)


def test_an_older_snapshot_leaves_the_wait_for_the_newest_alone() -> None:
    """A replica loads a snapshot from the leader of an epoch when an older one, from the leader before, is installed.

    It waits on for the newest, and fetches nothing beside it.
    """
    replica = Replica.of(key(1))
    newest = OffsetAndEpoch(9, 4)
    role = Follower(6, None, 2, 99.0, has_fetched=True, snapshot=newest)
    replica.core.enter(role)
    replica.core.effects()
    replica.core.snapshot_installed(OffsetAndEpoch(5, 4), replica.core.voters, 1.0)
    assert role.snapshot == newest
    assert not [each for each in replica.core.effects() if isinstance(each, Send)]
    replica.core.snapshot_installed(newest, replica.core.voters, 2.0)
    (sent,) = [each for each in replica.core.effects() if isinstance(each, Send)]
    assert isinstance(sent.request, Fetch)
    assert sent.request.offset == newest.offset


def test_a_leader_commits_nothing_that_it_lacks() -> None:
    """A leader's state claims more synced records than its log has.

    The leader stops, and commits none of the missing records.
    """
    leader = Replica.of(key(1), VoterSet.of([Voter(key(1))]))
    leader.core.append(Batch(0, 2, leader.core.epoch), leader.now)
    leader.core.flushed(3, leader.now)
    assert leader.core.high_watermark == 3
    leader.core.log.flushed_offset = 10
    with pytest.raises(AssertionError, match="10 counts as committed, but the log ends at offset 3"):
        leader.core.flushed(3, leader.now)
    assert leader.core.high_watermark == 3


@pytest.mark.parametrize("asks", ["for records", "for a snapshot"])
def test_a_voter_that_loads_a_snapshot_keeps_its_leader(asks: str) -> None:
    """Thesis 6.2: a leader resigns if no majority of the voters asks it for anything. A voter whose log does not match
    yet asks, too: first for records, then for the chunks of a snapshot."""
    leader = Replica.leader()
    began = leader.now
    while leader.now < began + 10.0:
        leader.tick(leader.now + 0.5)
        if asks == "for records":
            leader.core.receive_request(1, Fetch(leader.core.epoch, key(2), 9, leader.core.epoch), leader.now)
        else:
            leader.core.snapshot_served(key(2), leader.now)
        assert isinstance(leader.core.role, Leader)
    assert leader.core.high_watermark == 0, "such a voter has promised nothing"
    for _ in range(20):
        leader.core.snapshot_served(key(9), leader.now)
        leader.tick(leader.now + 0.5)
    assert not isinstance(leader.core.role, Leader), "a replica that is no voter counts as nobody"
