"""A replica meets a quorum whose log was recovered in the meantime.

An answer stops the replica, but a request never does.
"""

from __future__ import annotations

from random import Random

import pytest

from odradek.metadata_quorum.ports import OffsetAndEpoch, QuorumState
from odradek.metadata_quorum.raft.core import RaftCore
from odradek.metadata_quorum.raft.core_state import RaftConfig
from odradek.metadata_quorum.raft.effects import Answer, Send, Truncate
from odradek.metadata_quorum.raft.log_state import Batch, LogState
from odradek.metadata_quorum.raft.messages import (
    BeginEpoch,
    EpochAnswer,
    Fetch,
    FetchAnswer,
    Vote,
    VoteAnswer,
)
from odradek.metadata_quorum.raft.recoveries import RECOVERY_EPOCHS_MIN, LogLeftBehind
from odradek.metadata_quorum.raft.roles import Leader
from odradek.metadata_quorum.raft.voters import ReplicaKey, Voter, VoterSet
from odradek.wire.errors import ErrorCode

KEYS = tuple(ReplicaKey(each, b"directory %06d" % each) for each in (1, 2, 3))
CONFIG = RaftConfig(1.0, 1.0, 2.0, 0.02, request_timeout_seconds=2.0, fetch_bytes_max=1 << 20)
EPOCH = 5


def replica(*, end_offset: int = 10) -> RaftCore:
    """Make voter 1 of three, in epoch 5, with a log of `end_offset` records and without a leader."""
    voters = VoterSet.of(Voter(each) for each in KEYS)
    log = LogState(voter_history=[(-1, voters)])
    if end_offset:
        log.append(Batch(0, end_offset - 1, EPOCH))
    log.flushed_offset = end_offset
    return RaftCore(KEYS[0], log, QuorumState(leader_epoch=EPOCH), CONFIG, Random(1), 0.0)


def asked(core: RaftCore, kind: type) -> tuple[int, Fetch | Vote]:
    """Let time pass until the replica sends a request of this kind. Return the receiver and the request."""
    for at in range(1, 100):
        for effect in core.effects():
            if isinstance(effect, Send) and isinstance(effect.request, kind):
                assert isinstance(effect.request, Fetch | Vote)
                return effect.node_id, effect.request
        core.tick(at * 0.1)
    raise AssertionError(f"the replica has sent no {kind.__name__} in 10 s")


@pytest.mark.parametrize("kind", [Fetch, Vote])
@pytest.mark.parametrize("ahead", [RECOVERY_EPOCHS_MIN, RECOVERY_EPOCHS_MIN + 7])
def test_an_answer_of_a_recovered_quorum_stops_a_replica_with_a_log(kind: type, ahead: int) -> None:
    """An answer shows an epoch so high that the log was recovered.

    A replica with a log stops, and the error names its log and the command.
    """
    core = replica()
    node_id, request = asked(core, kind)
    epoch = EPOCH + ahead
    answer = (
        FetchAnswer(epoch, 3, error=ErrorCode.FENCED_LEADER_EPOCH)
        if isinstance(request, Fetch)
        else VoteAnswer(epoch, None, False, ErrorCode.FENCED_LEADER_EPOCH)
    )
    with pytest.raises(LogLeftBehind, match=r"log up to offset 10 of epoch 5: if this.*begin-anew"):
        core.receive_response(node_id, request, answer, 20.0)
    assert core.log.end_offset == 10


def test_an_old_leader_stops_as_well() -> None:
    """Old voters elect a leader among themselves.

    This leader stops when a node of the recovered quorum answers its BeginQuorumEpoch.
    """
    core = replica()
    for at in range(1, 100):
        for effect in core.effects():
            if not isinstance(effect, Send):
                continue
            if isinstance(effect.request, Vote):
                granted = VoteAnswer(core.epoch, None, True)
                core.receive_response(effect.node_id, effect.request, granted, at * 0.1)
            elif isinstance(effect.request, BeginEpoch):
                far = EpochAnswer(core.epoch + RECOVERY_EPOCHS_MIN, 3, ErrorCode.FENCED_LEADER_EPOCH)
                assert isinstance(core.role, Leader)
                with pytest.raises(LogLeftBehind):
                    core.receive_response(effect.node_id, effect.request, far, at * 0.1)
                return
        core.tick(at * 0.1)
    raise AssertionError("the replica has not become a leader in 10 s")


def test_a_replica_without_a_log_follows_a_recovered_quorum() -> None:
    """A replica with an empty log follows a recovered quorum, since it can lose nothing.

    A replica with a log also follows if the gap between the epochs is too small for a recovery.
    """
    core = replica(end_offset=0)
    node_id, request = asked(core, Fetch)
    core.receive_response(node_id, request, FetchAnswer(EPOCH + 2_000_000, 3), 20.0)
    assert (core.epoch, core.leader_id) == (EPOCH + 2_000_000, 3)
    core = replica()
    node_id, request = asked(core, Fetch)
    core.receive_response(node_id, request, FetchAnswer(EPOCH + RECOVERY_EPOCHS_MIN - 1, 3), 20.0)
    assert core.leader_id == 3


@pytest.mark.parametrize("end_offset", [0, 10])
def test_no_request_stops_a_replica_or_raises_its_epoch_so_far(end_offset: int) -> None:
    """A request with an epoch that only a recovery reaches is refused, since anybody may send it.

    The replica's epoch stays.
    """
    core = replica(end_offset=end_offset)
    far = EPOCH + RECOVERY_EPOCHS_MIN
    for number, request in enumerate(
        (
            BeginEpoch(far, KEYS[2], KEYS[0]),
            Vote(far, KEYS[2], KEYS[0], OffsetAndEpoch(99, far), False),
        )
    ):
        core.receive_request(number, request, 0.0)
        (answer,) = (each for each in core.effects() if isinstance(each, Answer))
        assert answer.response.error is ErrorCode.INVALID_REQUEST
    assert core.epoch == EPOCH


def test_a_leader_that_lacks_committed_records_cuts_nothing() -> None:
    """A leader's log diverges below the high watermark, so it lacks committed records.

    The replica stops, and truncates nothing.
    """
    core = replica()
    node_id, request = asked(core, Fetch)
    core.receive_response(node_id, request, FetchAnswer(EPOCH + 1, 3), 20.0)
    core.advance_high_watermark(8)
    node_id, request = asked(core, Fetch)
    lacking = FetchAnswer(EPOCH + 1, 3, diverging=OffsetAndEpoch(4, EPOCH))
    with pytest.raises(LogLeftBehind, match=r"lacks committed records.*offset 4;.*committed up to 8"):
        core.receive_response(node_id, request, lacking, 21.0)
    assert core.log.end_offset == 10
    assert not [each for each in core.effects() if isinstance(each, Truncate)]
