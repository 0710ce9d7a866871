"""A voter is a node with a certain disk (KIP-853).

A replica with its node id but another disk, or none, is a stranger.
"""

from __future__ import annotations

import random

import attrs
import pytest

from odradek.metadata_quorum.ports import OffsetAndEpoch
from odradek.metadata_quorum.raft.core import RaftCore
from odradek.metadata_quorum.raft.core_state import RaftConfig
from odradek.metadata_quorum.raft.effects import Answer, Send
from odradek.metadata_quorum.raft.log_state import Batch, LogState
from odradek.metadata_quorum.raft.messages import BeginEpoch, EpochAnswer, Fetch, Vote, VoteAnswer
from odradek.metadata_quorum.raft.roles import Leader
from odradek.metadata_quorum.raft.voters import ReplicaKey, Voter, VoterSet
from odradek.wire.errors import ErrorCode


def key(node_id: int) -> ReplicaKey:
    return ReplicaKey(node_id, bytes([node_id]) * 16)


VOTERS = VoterSet.of(Voter(key(node_id)) for node_id in (1, 2, 3))
STRANGERS = [ReplicaKey(2), ReplicaKey(2, b"another disk...."), ReplicaKey(4, bytes([2]) * 16)]


@attrs.define
class Replica:
    """A core whose effects are collected."""

    core: RaftCore
    now: float = 0.0

    @classmethod
    def of(cls, me: ReplicaKey, voters: VoterSet = VOTERS) -> Replica:
        log = LogState(voter_history=[(-1, voters)])
        return cls(RaftCore(me, log, None, RaftConfig(), random.Random(1), 0.0))

    @classmethod
    def leader(cls, voters: VoterSet = VOTERS) -> Replica:
        """Make a leader, elected by the others, that has synced its first two records."""
        replica = cls.of(key(1), voters)
        replica.tick(5.0)
        while not isinstance(replica.core.role, Leader):
            asked = [each for each in replica.core.effects() if isinstance(each, Send)]
            assert asked
            for each in asked:
                assert isinstance(each.request, Vote)
                granted = VoteAnswer(replica.core.epoch, None, True)
                replica.core.receive_response(each.node_id, each.request, granted, replica.now)
        for offset in range(2):
            replica.core.append(Batch(offset, offset, replica.core.epoch), replica.now)
        replica.core.flushed(2, replica.now)
        return replica

    def tick(self, now: float) -> None:
        self.now = now
        self.core.tick(now)

    def fetch(self, who: ReplicaKey) -> None:
        self.core.receive_request(1, Fetch(self.core.epoch, who, 2, self.core.epoch, 0, 0), self.now)

    def answer(self) -> VoteAnswer | EpochAnswer:
        """Return the answer to the last request."""
        (response,) = [each.response for each in self.core.effects() if isinstance(each, Answer)]
        assert isinstance(response, VoteAnswer | EpochAnswer)
        return response


@pytest.mark.parametrize("stranger", STRANGERS)
def test_a_promise_is_the_voters_own(stranger: ReplicaKey) -> None:
    """A fetch counts for a commit only if its node id and directory id are a voter's.

    Kafka's ReplicaState.matchesKey does the same.
    """
    leader = Replica.leader()
    leader.fetch(stranger)
    assert leader.core.high_watermark == 0
    leader.fetch(key(2))
    assert leader.core.high_watermark == 2


def test_voters_without_directories_are_their_nodes() -> None:
    """Static voters have only node ids, so any replica with this node id counts."""
    leader = Replica.leader(VoterSet.of_ids([1, 2, 3]))
    leader.fetch(key(2))
    assert leader.core.high_watermark == 2


@pytest.mark.parametrize("stranger", STRANGERS)
def test_a_leader_that_only_strangers_fetch_from_resigns(stranger: ReplicaKey) -> None:
    """Only strangers fetch from a leader. It resigns, since check quorum counts voters (thesis, 6.2)."""
    leader = Replica.leader()
    for _ in range(20):
        leader.tick(leader.now + 0.5)
        leader.fetch(stranger)
    assert not isinstance(leader.core.role, Leader)


@pytest.mark.parametrize("me", STRANGERS)
def test_only_the_voter_that_is_meant_votes_and_hears_of_an_epoch(me: ReplicaKey) -> None:
    """A vote or BeginQuorumEpoch names a voter's directory.

    A replica with another directory, or none, answers INVALID_VOTER_KEY.
    """
    asked = Replica.of(me)
    for pre_vote in (True, False):
        asked.core.receive_request(1, Vote(1, key(1), key(2), OffsetAndEpoch(9, 1), pre_vote), 0.0)
        answer = asked.answer()
        assert isinstance(answer, VoteAnswer)
        assert (answer.granted, answer.error) == (False, ErrorCode.INVALID_VOTER_KEY)
    asked.core.receive_request(1, BeginEpoch(1, key(1), key(2)), 0.0)
    assert asked.answer().error == ErrorCode.INVALID_VOTER_KEY
    assert not asked.core.is_voter
    assert not asked.core.may_stand
