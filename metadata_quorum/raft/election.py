"""Leader election: votes, pre-votes, notices of epochs; when a leader resigns (no quorum, slow disk), when a
replica abstains. PURE.

The other modules of the core call these functions (see `core.py`). The rules are those of the Raft paper,
sections 5.2 and 5.4.1. Pre-votes come from the thesis (9.6) and KIP-996, the notices from KIP-595.
"""

from __future__ import annotations

from odradek.metadata_quorum.raft.core_state import CoreState
from odradek.metadata_quorum.raft.effects import Answer, TookLeadership
from odradek.metadata_quorum.raft.messages import BeginEpoch, EndEpoch, EpochAnswer, Vote, VoteAnswer
from odradek.metadata_quorum.raft.roles import (
    Candidate,
    Follower,
    Leader,
    Progress,
    Prospective,
    Resigned,
    Unattached,
)
from odradek.metadata_quorum.raft.voters import ReplicaKey
from odradek.named_states import reached
from odradek.wire.errors import ErrorCode

CHECK_QUORUM_FETCH_TIMEOUTS = 1.5
BEGIN_EPOCH_PER_FETCH_TIMEOUT = 2
LATE_SYNC_RESIGNATION_SECONDS = 60.0
"""The shortest time, in seconds, between two resignations because of a slow disk. Otherwise voters with slow
disks would replace each other all the time.
"""
BROKEN_CONNECTION_JITTER = 0.1
"""The period over which followers spread their pre-votes after the connection to their leader broke. It is a
share of the election timeout.
"""


# -- deadlines --------------------------------------------------------------------------------------------


def deadline(core: CoreState) -> float:
    """Return the time at which the present role must next act because of an election, in monotonic seconds;
    infinity for never.
    """
    role = core.role
    match role:
        case Follower():
            return role.fetch_deadline
        case Leader():
            return min(
                role.begin_epoch_deadline,
                _check_quorum_deadline(core, role),
                _late_sync_deadline(core, role),
            )
        case Unattached():
            return role.election_deadline if core.may_stand else float("inf")
        case _:
            return role.election_deadline


def on_time(core: CoreState) -> None:
    """Act on the deadlines of the present role that have passed."""
    role = core.role
    match role:
        case Leader():
            if _check_quorum_deadline(core, role) <= core.now:
                reached("raft.resigned_without_majority")
                resign(core)
            elif _late_sync_deadline(core, role) <= core.now:
                reached("raft.resigned_with_late_disk")
                core.resigned_late_at = core.now
                resign(core)
            elif role.begin_epoch_deadline <= core.now:
                role.begin_epoch_deadline = core.now + _begin_epoch_period(core)
        case Follower():
            if role.fetch_deadline <= core.now:
                if core.may_stand:
                    ask_for_pre_votes(core)
                else:
                    reached("raft.observer_lost_its_leader")
                    core.enter(Unattached(role.epoch, role.voted, None, core.random_election_deadline()))
        case _:
            if role.election_deadline > core.now:
                return
            if core.may_stand:
                ask_for_pre_votes(core)
            elif isinstance(role, Resigned | Prospective | Candidate):
                core.enter(Unattached(role.epoch, role.voted, None, core.random_election_deadline()))


def _begin_epoch_period(core: CoreState) -> float:
    return core.config.fetch_timeout_seconds / BEGIN_EPOCH_PER_FETCH_TIMEOUT


def _check_quorum_deadline(core: CoreState, role: Leader) -> float:
    """Return the time at which a leader must resign, unless further fetches postpone it. A majority of the
    voters must have fetched recently (thesis 6.2).
    """
    times = []
    for voter in core.voters.voters:
        if voter.key.matches(core.me):
            times.append(core.now)
            continue
        progress = role.progress_of(voter.key)
        seen = role.began if progress is None else progress.last_fetch
        times.append(max(seen, role.began))
    period = CHECK_QUORUM_FETCH_TIMEOUTS * core.config.fetch_timeout_seconds
    times.sort(reverse=True)
    return times[core.voters.majority - 1] + period


def _late_sync_deadline(core: CoreState, role: Leader) -> float:
    """Return the time at which a leader resigns because its disk is slow to sync; infinity for never.

    It resigns only if a majority of the voters has synced more records than this leader. Otherwise the other
    disks are slow, too, and another leader would not be better.
    """
    if role.unsynced_since is None:
        return float("inf")
    others = [voter.key for voter in core.voters.voters if not voter.key.matches(core.me)]
    ahead = 0
    for key in others:
        progress = role.progress_of(key)
        ahead += progress is not None and progress.offset > core.log.flushed_offset
    if ahead < core.voters.majority:
        return float("inf")
    return max(
        role.unsynced_since + core.config.fetch_timeout_seconds,
        core.resigned_late_at + LATE_SYNC_RESIGNATION_SECONDS,
    )


# -- candidacy --------------------------------------------------------------------------------------------


def ask_for_pre_votes(core: CoreState) -> None:
    """Become Prospective, and ask the voters whether they would vote for this replica."""
    role = core.role
    leader_id = role.leader_id if isinstance(role, Unattached | Prospective | Follower) else None
    core.enter(
        Prospective(
            role.epoch, role.voted, leader_id, core.random_election_deadline(), granted=[core.me.node_id]
        )
    )
    _count_votes(core)


def stand(core: CoreState) -> None:
    """Become Candidate: begin a new epoch, and vote for this replica."""
    core.enter(Candidate(core.epoch + 1, core.me, core.random_election_deadline(), granted=[core.me.node_id]))
    _count_votes(core)


def _count_votes(core: CoreState) -> None:
    role = core.role
    assert isinstance(role, Candidate | Prospective)
    voters, majority = core.voters, core.voters.majority
    granted = [node_id for node_id in role.granted if voters.get(node_id) is not None]
    rejected = [node_id for node_id in role.rejected if voters.get(node_id) is not None]
    if len(granted) >= majority:
        if isinstance(role, Prospective):
            stand(core)
        else:
            _lead(core, tuple(granted))
    elif len(rejected) > len(voters.voters) - majority and not role.backing_off:
        _back_off(core)


def _back_off(core: CoreState) -> None:
    """Pause after a majority has refused, so that another replica can win. A Prospective replica that knows
    the leader of its epoch follows this leader again.
    """
    role = core.role
    assert isinstance(role, Candidate | Prospective)
    if isinstance(role, Prospective) and role.leader_id is not None:
        reached("raft.went_back_to_its_leader")
        core.follow(role.epoch, role.leader_id, role.voted)
        return
    reached("raft.backed_off_after_refusals")
    role.backing_off = True
    role.election_deadline = core.now + core.config.election_backoff_seconds_max * core.rng.random()


def _lead(core: CoreState, granted: tuple[int, ...]) -> None:
    core.enter(
        Leader(
            core.epoch,
            core.me,
            epoch_start=core.log.end_offset,
            granted=granted,
            began=core.now,
            begin_epoch_deadline=core.now + _begin_epoch_period(core),
        )
    )
    core.emit(TookLeadership(core.epoch, granted))


def ask(core: CoreState) -> None:
    """Send those requests of the present role that are not under way yet."""
    role = core.role
    match role:
        case Prospective(backing_off=False) | Candidate(backing_off=False):
            heard = [*role.granted, *role.rejected]
            for voter in core.voters.voters:
                if voter.key.node_id not in heard and core.can_ask(voter.key.node_id, Vote):
                    pre_vote = isinstance(role, Prospective)
                    core.ask(voter.key.node_id, Vote(role.epoch, core.me, voter.key, core.log.end, pre_vote))
        case Leader():
            _announce_epoch(core, role)
        case Resigned():
            for node_id in role.to_notify:
                if core.can_ask(node_id, EndEpoch):
                    core.ask(node_id, EndEpoch(role.epoch, core.me.node_id, role.successors))
        case _:
            return


def _announce_epoch(core: CoreState, role: Leader) -> None:
    """Send BeginEpoch to the voters that have not fetched recently, because they may not know this leader."""
    silent_since = core.now - _begin_epoch_period(core)
    for voter in core.voters.voters:
        node_id = voter.key.node_id
        if voter.key.matches(core.me) or not core.can_ask(node_id, BeginEpoch):
            continue
        progress = role.progress_of(voter.key)
        fetched = float("-inf") if progress is None else progress.last_fetch
        if fetched <= silent_since and role.announced_at.get(node_id, float("-inf")) <= silent_since:
            role.announced_at[node_id] = core.now
            core.ask(node_id, BeginEpoch(role.epoch, core.me, voter.key))


# -- requests -------------------------------------------------------------------------------------------------


def on_vote(core: CoreState, request_id: int, request: Vote) -> None:
    """Answer a request for a vote or pre-vote.

    Raft 5.4.1: "the voter denies its vote if its own log is more up-to-date than that of the candidate".
    """
    if not request.voter.matches(core.me):
        reached("raft.request_for_other_voter_refused")
        _answer_vote(core, request_id, granted=False, error=ErrorCode.INVALID_VOTER_KEY)
        return
    if request.epoch < core.epoch:
        reached("raft.vote_of_earlier_epoch_refused")
        _answer_vote(core, request_id, granted=False, error=ErrorCode.FENCED_LEADER_EPOCH)
        return
    core.learn(request.epoch, None, request.sender.node_id)
    mine = core.log.end
    up_to_date = (request.log_end.epoch, request.log_end.offset) >= (mine.epoch, mine.offset)
    would = _would_vote(core) if request.pre_vote else _may_vote(core, request.sender)
    if would and not up_to_date:
        reached("raft.vote_refused_to_shorter_log")
    granted = up_to_date and would and not core.abstains
    role = core.role
    if granted and not request.pre_vote and role.voted is None:
        core.enter(Unattached(role.epoch, request.sender, None, core.random_election_deadline()))
    _answer_vote(core, request_id, granted=granted)


def _would_vote(core: CoreState) -> bool:
    """True if this replica grants a pre-vote.

    It refuses if it is the leader, or while its leader answers its requests (KIP-996).
    """
    match core.role:
        case Leader():
            return False
        case Follower(has_fetched=has_fetched):
            if has_fetched:
                reached("raft.pre_vote_refused_while_led")
            return not has_fetched
        case _:
            return True


def _may_vote(core: CoreState, candidate: ReplicaKey) -> bool:
    """True if this replica may vote for the candidate.

    A replica votes once per epoch, "first-come-first-served" (Raft, 5.2). If it knows the epoch's leader, it
    votes for no candidate.
    """
    role = core.role
    match role:
        case Unattached() | Prospective():
            if role.voted is not None:
                if role.voted != candidate:
                    reached("raft.second_vote_refused")
                return role.voted == candidate
            return role.leader_id is None
        case _:
            if isinstance(role, Resigned):
                reached("raft.vote_refused_after_resigning")
            return False


def _answer_vote(
    core: CoreState, request_id: int, *, granted: bool, error: ErrorCode = ErrorCode.NONE
) -> None:
    core.emit(Answer(request_id, VoteAnswer(core.epoch, core.leader_id, granted, error)))


def on_begin_epoch(core: CoreState, request_id: int, request: BeginEpoch) -> None:
    """Handle a leader's notice that its epoch has begun."""
    error = ErrorCode.NONE
    if not request.voter.matches(core.me):
        error = ErrorCode.INVALID_VOTER_KEY
    elif request.epoch < core.epoch:
        error = ErrorCode.FENCED_LEADER_EPOCH
    elif request.epoch == core.epoch and core.leader_id not in (None, request.leader.node_id):
        # An epoch has only one leader. This replica knows another leader of this epoch, so refuse the sender.
        reached("raft.second_leader_refused")
        error = ErrorCode.INVALID_REQUEST
    else:
        core.learn(request.epoch, request.leader.node_id, request.leader.node_id)
    core.emit(Answer(request_id, EpochAnswer(core.epoch, core.leader_id, error)))


def on_end_epoch(core: CoreState, request_id: int, request: EndEpoch) -> None:
    """Handle a leader's notice that it resigns. The first successor in the notice becomes a candidate at
    once. All other voters wait first.
    """
    if request.epoch < core.epoch:
        reached("raft.resignation_of_earlier_epoch_refused")
        core.emit(Answer(request_id, EpochAnswer(core.epoch, core.leader_id, ErrorCode.FENCED_LEADER_EPOCH)))
        return
    core.learn(request.epoch, None, request.leader_id)
    role = core.role
    if isinstance(role, Unattached | Follower) and role.leader_id in (None, request.leader_id):
        places = [at for at, key in enumerate(request.successors) if key.matches(core.me)]
        if core.is_voter and not core.abstains and places and places[0] == 0:
            reached("raft.first_successor_stood")
            core.enter(Unattached(role.epoch, role.voted, request.leader_id, core.now))
            ask_for_pre_votes(core)
        else:
            share = 1 - 0.5 ** (places[0] if places else len(request.successors))
            wait = core.config.election_backoff_seconds_max * (share + (1 - share) * core.rng.random())
            core.enter(Unattached(role.epoch, role.voted, request.leader_id, core.now + wait))
    core.emit(Answer(request_id, EpochAnswer(core.epoch, core.leader_id)))


# -- answers --------------------------------------------------------------------------------------------------


def on_vote_answer(core: CoreState, node_id: int, request: Vote, answer: VoteAnswer) -> None:
    """Count the answer to a vote or pre-vote, if this replica is still waiting for it."""
    role = core.role
    if not isinstance(role, Prospective | Candidate) or isinstance(role, Prospective) != request.pre_vote:
        reached("raft.vote_came_too_late")
        return
    if answer.error not in (ErrorCode.NONE, ErrorCode.FENCED_LEADER_EPOCH):
        return
    voter = core.voters.get(node_id)
    if voter is None or voter.key != request.voter:
        reached("raft.vote_of_other_replica_dropped")
        # The answer counts only if the voter is still the replica that the request named. The same node may
        # now have another directory.
        return
    (role.granted if answer.granted else role.rejected).append(node_id)
    _count_votes(core)


def on_end_epoch_answer(core: CoreState, node_id: int) -> None:
    if isinstance(core.role, Resigned):
        core.role.to_notify = [each for each in core.role.to_notify if each != node_id]


def doubt_leader(core: CoreState, node_id: int) -> None:
    """Shorten the wait before this replica asks for pre-votes, because its leader's process may have ended. A
    sign of this is a broken connection to the leader. Voters that still get answers from the leader refuse
    the pre-vote.
    """
    role = core.role
    if isinstance(role, Follower) and role.leader_id == node_id and core.may_stand:
        reached("raft.connection_to_leader_broke")
        role.has_fetched = False
        jitter = BROKEN_CONNECTION_JITTER * core.config.election_timeout_seconds * core.rng.random()
        role.fetch_deadline = min(role.fetch_deadline, core.now + jitter)


def abstain(core: CoreState) -> None:
    """Give up a candidacy. A leader continues to lead, because it has already won its epoch."""
    role = core.role
    if isinstance(role, Prospective | Candidate):
        core.enter(Unattached(role.epoch, role.voted, None, core.random_election_deadline()))


def take_part_again(core: CoreState) -> None:
    """End a long wait for an election if this replica follows no leader. Its election deadline may be far
    away, because this replica did not take part for a time.
    """
    if isinstance(core.role, Unattached):
        core.role.election_deadline = min(core.role.election_deadline, core.random_election_deadline())


def resign(core: CoreState) -> None:
    """Resign as the leader. The epoch has no leader from now on.

    All other voters are notified. The notice lists them as successors, and the voters with the longest logs
    come first.
    """
    role = core.role
    assert isinstance(role, Leader)
    others = [voter.key for voter in core.voters.voters if not voter.key.matches(core.me)]
    nothing = Progress(core.me)
    successors = sorted(others, key=lambda key: (-(role.progress_of(key) or nothing).offset, key.node_id))
    core.enter(
        Resigned(
            role.epoch,
            role.voted,
            core.random_election_deadline(),
            successors=tuple(successors),
            to_notify=[key.node_id for key in others],
        )
    )
