"""One replica of the metadata quorum, Kafka's pull-based Raft without IO: events come in (requests, answers,
time), effects come out. PURE.

Theory of operation
-------------------
The driver reports each event with its time (`receive_request`, `receive_response`, `request_failed`,
`append`, `flushed`, `snapshot_installed`, `tick`). Afterwards it performs the `effects`, in order. The core
knows offsets and epochs of the log (`LogState`), but not its bytes.

Followers fetch records: a follower asks for the records after the end of its log. With the offset in its
Fetch, the follower promises that all earlier records are on its disk. So a follower syncs each batch before
its next Fetch. The leader counts its own log only up to its synced offset. The high watermark is the largest
offset that a majority of voters has promised. It advances only if a record of the leader's own epoch is below
it (Raft, 5.4.2).

Parts: `roles.py` defines the roles of a replica, `election.py` elects leaders. `replication.py` sends the log
to the other replicas. `membership.py` decides whether voters may change. All these modules act on one
`CoreState` (`core_state.py`): role, time, saved state, requests under way. The module `core_state.py` imports
none of them. This module receives the driver's reports.

Rules
-----
* Each change of role goes through `enter`. Only `enter` emits `SaveState`, and it does so before any message
  about the new role.
* An answer from an earlier epoch, or to a request that is no longer under way, is dropped.
* At most one request of each kind is under way to a node. A failed request is repeated after a pause, as long
  as the role needs it.

Three things are deliberately absent: bytes, addresses and leases. (Instead of a lease, the high watermark
releases reads, see `state_machine.py`.)
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from odradek.metadata_quorum.ports import OffsetAndEpoch, QuorumState
from odradek.metadata_quorum.raft import election, replication
from odradek.metadata_quorum.raft.core_state import CoreState, RaftConfig
from odradek.metadata_quorum.raft.effects import Answer
from odradek.metadata_quorum.raft.log_state import Batch, LogState
from odradek.metadata_quorum.raft.messages import (
    BeginEpoch,
    EndEpoch,
    EpochAnswer,
    Fetch,
    FetchAnswer,
    Request,
    Response,
    Vote,
    VoteAnswer,
)
from odradek.metadata_quorum.raft.recoveries import RECOVERY_EPOCHS_MIN, check_answer
from odradek.metadata_quorum.raft.roles import Follower, Leader
from odradek.metadata_quorum.raft.voters import ReplicaKey, VoterSet
from odradek.named_states import reached
from odradek.wire.errors import ErrorCode

__all__ = ["RaftCore"]

EPOCHS_AHEAD_MAX = RECOVERY_EPOCHS_MIN - 1
"""The most epochs by which a request may be ahead of this replica. A request that is further ahead is
refused, unless it is a Fetch.

Otherwise one forged request could use up the epochs. An election takes a second, so no honest replica is so
far ahead. If this replica really is so far behind, it gets the epoch from the answers to its own requests
(`recoveries.py`).
"""


class RaftCore(CoreState):
    """One replica of the quorum, without IO: its state, and the methods by which its driver reports events."""

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
        super().__init__(me, log, stored, config, rng, now, bootstrap)
        if log.voters.is_only(me):
            election.stand(self)

    # -- events that the driver reports -----------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Act on all deadlines that have passed."""
        self._at(now)
        election.on_time(self)
        replication.on_time(self)
        self._ask()

    def receive_request(self, request_id: int, request: Request, now: float) -> None:
        """Handle a request from another replica. The answer is an effect, which is emitted now or after a
        later event.
        """
        self._at(now)
        if not isinstance(request, Fetch) and request.epoch > self.epoch + EPOCHS_AHEAD_MAX:
            reached("raft.epoch_far_ahead_refused")
            self._refuse(request_id, request)
            return
        match request:
            case Vote():
                election.on_vote(self, request_id, request)
            case BeginEpoch():
                election.on_begin_epoch(self, request_id, request)
            case EndEpoch():
                election.on_end_epoch(self, request_id, request)
            case Fetch():
                replication.on_fetch(self, request_id, request)
        self._ask()

    def _refuse(self, request_id: int, request: Vote | BeginEpoch | EndEpoch) -> None:
        invalid = ErrorCode.INVALID_REQUEST
        if isinstance(request, Vote):
            self.emit(Answer(request_id, VoteAnswer(self.epoch, self.leader_id, False, invalid)))
        else:
            self.emit(Answer(request_id, EpochAnswer(self.epoch, self.leader_id, invalid)))

    def receive_response(self, node_id: int, request: Request, response: Response, now: float) -> None:
        """Handle the answer of `node_id` to an earlier `Send`.

        Raises `LogLeftBehind` if the quorum has a recovered log, or has lost committed records.
        """
        self._at(now)
        if not self._is_over(node_id, request):
            reached("raft.late_answer_dropped")
            return
        if response.error is not response.error.NONE:
            self._retry_at[node_id] = now + self.config.retry_backoff_seconds
        check_answer(self.log, self.epoch, response.epoch, node_id)
        self.learn(response.epoch, response.leader_id, node_id)
        if request.epoch != self.epoch:
            reached("raft.answer_to_earlier_epoch_dropped")
        if request.epoch == self.epoch:
            match request, response:
                case Vote(), VoteAnswer():
                    election.on_vote_answer(self, node_id, request, response)
                case Fetch(), FetchAnswer():
                    replication.on_fetch_answer(self, node_id, response)
                case EndEpoch(), EpochAnswer():
                    election.on_end_epoch_answer(self, node_id)
                case _:
                    pass
        self._ask()

    def request_failed(self, node_id: int, request: Request, now: float, *, broken: bool) -> None:
        """Handle a request that failed without an answer.

        `broken` says that the connection ended. Then the node's process may have ended, too.
        """
        self._at(now)
        if not self._is_over(node_id, request):
            reached("raft.late_failure_dropped")
            return
        self._retry_at[node_id] = now + self.config.retry_backoff_seconds
        if broken:
            election.doubt_leader(self, node_id)
        self._ask()

    def append(self, batch: Batch, now: float) -> None:
        """Called when the driver has written a batch as leader of this epoch. The batch is not synced yet."""
        self._at(now)
        if not isinstance(self.role, Leader) or batch.epoch != self.role.epoch:
            raise AssertionError("only the leader of an epoch may append a batch of this epoch")
        self.log.append(batch)
        if self.role.unsynced_since is None:
            self.role.unsynced_since = self.now
        replication.answer_parked(self)

    def flushed(self, end_offset: int, now: float) -> None:
        """Called when the log is synced up to `end_offset`. Records below this offset may have been removed
        meanwhile.
        """
        self._at(now)
        self.log.flushed_offset = max(self.log.flushed_offset, min(end_offset, self.log.end_offset))
        if isinstance(self.role, Leader):
            # A sync has just ended, so the disk works. If records are still unsynced, the time limit for
            # their sync starts now.
            self.role.unsynced_since = None if self.log.flushed_offset == self.log.end_offset else self.now
            replication.count_promises(self)
        self._ask()

    def snapshot_installed(self, snapshot: OffsetAndEpoch, voters: VoterSet, now: float) -> None:
        """Called when the snapshot of a `LoadSnapshot` has replaced the log."""
        self._at(now)
        if snapshot.offset < self.high_watermark:
            raise AssertionError(
                f"the snapshot {snapshot} ends below offset {self.high_watermark}, up to which records "
                "are committed"
            )
        self.log.install(snapshot, voters)
        self.advance_high_watermark(snapshot.offset)
        if isinstance(self.role, Follower) and self.role.snapshot == snapshot:
            self.role.snapshot = None
        self._ask()

    def snapshot_progressed(self, now: float) -> None:
        """Called when a chunk of the snapshot has arrived, which shows that the leader is alive."""
        self._at(now)
        if isinstance(self.role, Follower):
            self.role.fetch_deadline = now + self.config.fetch_timeout_seconds
            self.heard_leader = self.role.leader_id, now

    def snapshot_served(self, replica: ReplicaKey, now: float) -> None:
        """Called when a chunk of a snapshot was sent to this replica. The request for the chunk shows that
        the replica is alive, although it sends no Fetch meanwhile.
        """
        self._at(now)
        if isinstance(self.role, Leader):
            replication.note_life(self, self.role, replica)

    def snapshot_failed(self, now: float) -> None:
        """Called when the snapshot could not be loaded. After a pause, this replica fetches again."""
        self._at(now)
        if isinstance(self.role, Follower):
            self.role.snapshot = None
            self._retry_at[self.role.leader_id] = now + self.config.retry_backoff_seconds
        self._ask()

    def abstain(self, abstains: bool, now: float) -> None:
        """Keep this replica out of votes, candidacies and fetches, or let it take part again.

        A replica abstains while another process may be running with a copy of its directory. Raft requires
        that a voter votes only once in an epoch, and keeps its promises. Two processes with the same
        directory cannot guarantee this.
        """
        self._at(now)
        if abstains == self.abstains:
            return
        self.abstains = abstains
        if abstains:
            reached("raft.abstained")
            election.abstain(self)
        else:
            reached("raft.took_part_again")
            election.take_part_again(self)
        self._ask()

    def resign(self, now: float) -> None:
        """Resign if this replica is the leader. This is for a clean stop. The other voters get a list of
        preferred successors.
        """
        self._at(now)
        if isinstance(self.role, Leader):
            election.resign(self)
        self._ask()

    # -- methods for the driver ---------------------------------------------------------------------------------

    def next_deadline(self) -> float:
        """Return the latest time at which `tick` must be called, in monotonic seconds."""
        deadlines = [election.deadline(self), replication.deadline(self)]
        deadlines += [at for at in self._retry_at.values() if at > self.now]
        return min(deadlines)

    def _ask(self) -> None:
        election.ask(self)
        replication.ask(self)
