"""The state that the parts of the core share: changes of role and epoch, the saved state, requests under way,
the node to ask. PURE.

Elections and replication act on this state, and do not depend on the reports that call them (`core.py`). Each
change of role goes through `enter`. Only `enter` emits `SaveState`, and it does so before any message about
the new role.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import attrs

from odradek.metadata_quorum.config.typed_settings import milliseconds_as_seconds, setting
from odradek.metadata_quorum.ports import QuorumState
from odradek.metadata_quorum.raft.effects import (
    Answer,
    Effect,
    HighWatermarkAdvanced,
    LostLeadership,
    SaveState,
    Send,
)
from odradek.metadata_quorum.raft.log_state import LogState
from odradek.metadata_quorum.raft.messages import FetchAnswer, Request
from odradek.metadata_quorum.raft.roles import (
    Candidate,
    Follower,
    Leader,
    Prospective,
    Resigned,
    Role,
    Unattached,
    check_transition,
)
from odradek.metadata_quorum.raft.voters import ReplicaKey, VoterSet
from odradek.named_states import reached
from odradek.wire.errors import ErrorCode

__all__ = ["CoreState", "RaftConfig"]

NOBODY = -1
FIRST_WAIT = 0.1
"""The shortest wait for an election after the start of a replica, as a share of the election timeout. The
wait is random, and at most twice as long.
"""


@attrs.frozen
class RaftConfig:
    """Settings of a replica of the quorum, from its node's configuration."""

    election_timeout_seconds: float = setting(
        "controller.quorum.election.timeout.ms", milliseconds_as_seconds
    )
    election_backoff_seconds_max: float = setting(
        "controller.quorum.election.backoff.max.ms", milliseconds_as_seconds
    )
    fetch_timeout_seconds: float = setting("controller.quorum.fetch.timeout.ms", milliseconds_as_seconds)
    retry_backoff_seconds: float = setting("controller.quorum.retry.backoff.ms", milliseconds_as_seconds)
    fetch_wait_seconds_max: float = 0.5
    """The longest time, in seconds, for which the leader may delay the answer to a fetch that finds no new
    records (a constant in Kafka).
    """
    request_timeout_seconds: float = setting("controller.quorum.request.timeout.ms", milliseconds_as_seconds)
    fetch_bytes_max: int = setting("controller.quorum.fetch.max.bytes")


class CoreState:
    """The state of one replica.

    `stored` is the state that was saved last (`SaveState`). `bootstrap` lists nodes that can be asked for the
    leader.
    """

    def __init__(
        self,
        me: ReplicaKey,
        log: LogState,
        stored: QuorumState | None,
        config: RaftConfig,
        rng: random.Random,
        now: float,
        bootstrap: Sequence[int] = (),
    ) -> None:
        self.me = me
        self.log = log
        self.config = config
        self.rng = rng
        self.now = now
        self.high_watermark = log.start_offset if log.snapshot is None else log.snapshot.offset
        self._bootstrap = tuple(node_id for node_id in bootstrap if node_id != me.node_id)
        self._asked = 0
        self._effects: list[Effect] = []
        self._under_way: dict[tuple[int, type[Request]], Request] = {}
        self._retry_at: dict[int, float] = {}
        self._saved = stored
        self.abstains = False
        """True while this replica takes no part in the quorum, because another process may be running with
        its directory (`RaftCore.abstain`).
        """
        self.resigned_late_at = float("-inf")
        """The last time at which this replica resigned because its disk was slow, in monotonic seconds."""
        self.heard_leader: tuple[int, float] | None = None
        """The last leader that has answered a fetch of this replica, and when (monotonic seconds)."""
        self.role: Role = self._first_role(stored)

    def _first_role(self, stored: QuorumState | None) -> Role:
        state = stored or QuorumState()
        # At the start, this replica asks all nodes for the leader. Any node that knows the leader answers at
        # once, so a short timeout is enough.
        deadline = self.now + self.config.election_timeout_seconds * (
            FIRST_WAIT + FIRST_WAIT * self.rng.random()
        )
        if self.log.last_epoch > state.leader_epoch:
            reached("raft.log_ahead_of_saved_state")
            return Unattached(self.log.last_epoch, None, None, deadline)
        voted = None if state.voted_id < 0 else ReplicaKey(state.voted_id, state.voted_directory_id)
        if state.leader_id == self.me.node_id:
            # This replica led this epoch before its restart, and a crash may have lost records that it had
            # appended. So it must not lead the same epoch again. As in Kafka, it notifies its followers.
            # Otherwise they would wait for answers to fetches that this process never received.
            reached("raft.resigned_after_restart")
            others = [voter.key.node_id for voter in self.log.voters.voters if not voter.key.matches(self.me)]
            return Resigned(state.leader_epoch, voted, deadline, to_notify=others)
        leader_id = None if state.leader_id < 0 else state.leader_id
        if leader_id is not None and self.log.voters.get(leader_id) is not None:
            reached("raft.saved_leader_asked_first")
            # The leader of this epoch is known, and probably still leads. So ask this leader at once instead
            # of waiting for an election.
            return Follower(
                state.leader_epoch, voted, leader_id, self.now + self.config.fetch_timeout_seconds
            )
        return Unattached(state.leader_epoch, voted, leader_id, deadline)

    # -- queries of the other parts ---------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        return self.role.epoch

    @property
    def leader_id(self) -> int | None:
        """The leader of the present epoch, if this replica knows it; otherwise None."""
        match self.role:
            case Leader():
                return self.me.node_id
            case Unattached() | Prospective() | Follower():
                return self.role.leader_id
            case _:
                return None

    @property
    def voters(self) -> VoterSet:
        return self.log.voters

    @property
    def is_voter(self) -> bool:
        return self.log.voters.has(self.me)

    @property
    def may_stand(self) -> bool:
        """True if this replica may become a candidate. It must not abstain. It must be a voter, or an
        uncommitted voter set must have removed it.

        A server outside the newest set "should still start new elections, as it might still be needed until"
        that set is committed (thesis, 4.2.2). Such a server may be the only one whose log is long enough.
        """
        history = self.log.voter_history
        if self.abstains:
            return False
        if self.is_voter:
            return True
        return (
            len(history) > 1 and self.log.voters_offset >= self.high_watermark and history[-2][1].has(self.me)
        )

    @property
    def has_committed_in_epoch(self) -> bool:
        """True if this replica leads and a record of its own epoch is committed.

        From then on the leader knows which records are committed.
        """
        return isinstance(self.role, Leader) and self.high_watermark > self.role.epoch_start

    def effects(self) -> list[Effect]:
        """Return the effects that the driver must perform, in the order in which it must perform them. Each
        effect is returned once.
        """
        effects, self._effects = self._effects, []
        return effects

    # -- time and transitions -----------------------------------------------------------------------------------

    def _at(self, now: float) -> None:
        self.now = max(self.now, now)

    def random_election_deadline(self) -> float:
        return self.now + self.config.election_timeout_seconds * (1 + self.rng.random())

    def emit(self, effect: Effect) -> None:
        self._effects.append(effect)

    def enter(self, role: Role) -> None:
        """Change the role. The effect that saves the state precedes all other effects of the new role."""
        before = self.role
        check_transition(before, role)
        self.role = role
        self._save()
        self._under_way.clear()
        if isinstance(before, Leader):
            self._refuse_parked(before)
            self.emit(LostLeadership(before.epoch))

    def _refuse_parked(self, leader: Leader) -> None:
        """Refuse the parked fetches, because this replica no longer leads.

        The senders of these fetches must find the next leader.
        """
        for request_id in leader.parked:
            answer = FetchAnswer(self.epoch, self.leader_id, error=ErrorCode.NOT_LEADER_OR_FOLLOWER)
            self.emit(Answer(request_id, answer))
        leader.parked = {}

    def _save(self) -> None:
        """Emit a `SaveState` if the state that a restart needs has changed.

        A resigned leader is saved as the leader of its epoch.
        """
        role = self.role
        leader_id = self.me.node_id if isinstance(role, Resigned) else self.leader_id
        voted = role.voted
        state = QuorumState(
            NOBODY if leader_id is None else leader_id,
            role.epoch,
            NOBODY if voted is None else voted.node_id,
            bytes(16) if voted is None else voted.directory_id,
        )
        if state != self._saved:
            self._saved = state
            self.emit(SaveState(state))

    def learn(self, epoch: int, leader_id: int | None, source: int) -> None:
        """Act on a message of `source` that names an epoch, and perhaps the leader of this epoch.

        A replica that has lost its leader follows this leader again only after a message from the leader
        itself. Other replicas may still name a dead leader. Without this rule, replicas could make each other
        follow the dead leader again and again.
        """
        role = self.role
        if epoch < role.epoch or leader_id == self.me.node_id:
            return
        if epoch > role.epoch:
            if leader_id is None:
                self.enter(Unattached(epoch, None, None, self._kept_election_deadline()))
            else:
                self.follow(epoch, leader_id, None)
        elif leader_id is not None:
            match role:
                case Unattached(leader_id=known) | Prospective(leader_id=known):
                    if known != leader_id or source == leader_id:
                        self.follow(epoch, leader_id, role.voted)
                case Candidate():
                    self.follow(epoch, leader_id, role.voted)
                case Follower(leader_id=known, has_fetched=False) if known != leader_id:
                    reached("raft.leader_by_hearsay_replaced")
                    # Some other node had named the known leader. But this message comes from the leader of
                    # the epoch itself, so follow its sender.
                    self.follow(epoch, leader_id, role.voted)
                case _:
                    return

    def _kept_election_deadline(self) -> float:
        """Return the present election deadline.

        A higher epoch alone does not extend the deadline, because the candidate of that epoch may be unable
        to win.
        """
        if isinstance(self.role, Unattached | Prospective | Candidate):
            return self.role.election_deadline
        return self.random_election_deadline()

    def follow(self, epoch: int, leader_id: int, voted: ReplicaKey | None) -> None:
        self._retry_at.pop(leader_id, None)
        self.enter(Follower(epoch, voted, leader_id, self.now + self.config.fetch_timeout_seconds))

    def advance_high_watermark(self, offset: int) -> None:
        """Advance the high watermark to `offset`. All records below `offset` are in this log. The high
        watermark never goes back.
        """
        if offset > self.log.end_offset:
            raise AssertionError(
                f"offset {offset} counts as committed, but the log ends at offset {self.log.end_offset}"
            )
        if offset > self.high_watermark:
            self.high_watermark = offset
            self.emit(HighWatermarkAdvanced(offset))

    # -- requests to other nodes --------------------------------------------------------------------------------

    def _is_over(self, node_id: int, request: Request) -> bool:
        """Remove a request from the requests under way. Returns True if it was under way."""
        if self._under_way.get((node_id, type(request))) is not request:
            return False
        del self._under_way[node_id, type(request)]
        return True

    def can_ask(self, node_id: int, kind: type[Request]) -> bool:
        return (node_id, kind) not in self._under_way and self._retry_at.get(node_id, 0.0) <= self.now

    def ask(self, node_id: int, request: Request) -> None:
        self._under_way[node_id, type(request)] = request
        self._retry_at.pop(node_id, None)
        self.emit(Send(node_id, request))

    def is_asking(self, kind: type[Request]) -> bool:
        return any(each is kind for _, each in self._under_way)

    def someone_to_ask(self) -> int | None:
        """Return the next node to ask for the leader: voters and bootstrap nodes in turn. Returns None if all
        of them are in a pause after a failure.
        """
        candidates = [node_id for node_id in self.voters.node_ids if node_id != self.me.node_id]
        candidates += [node_id for node_id in self._bootstrap if node_id not in candidates]
        for _ in candidates:
            node_id = candidates[self._asked % len(candidates)]
            self._asked += 1
            if self._retry_at.get(node_id, 0.0) <= self.now:
                return node_id
        return None
