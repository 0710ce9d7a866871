"""The six roles of a replica, the transitions between them, and the progress of other replicas that a leader
knows. Each role is a class, whose fields are needed only in this role. PURE.

`TRANSITIONS` lists which role may follow which, and in which epoch. `check_transition` checks every change of role
against it. Only a voter becomes Prospective, Candidate or Leader; an observer is Unattached or a Follower. Every
role has an epoch. A replica must not forget its epoch, vote and leader (`QuorumState`); all else may be lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final, TypeAlias

import attrs

from odradek.metadata_quorum.ports import OffsetAndEpoch
from odradek.metadata_quorum.raft.messages import Fetch
from odradek.metadata_quorum.raft.voters import ReplicaKey
from odradek.wire.structure import ZERO_UUID

__all__ = [
    "TRANSITIONS",
    "Candidate",
    "EpochRule",
    "Follower",
    "Leader",
    "Progress",
    "Prospective",
    "Resigned",
    "Role",
    "Unattached",
    "check_transition",
]


@attrs.define
class Unattached:
    """A replica that does not follow a leader in its epoch, although it may know the leader's id."""

    epoch: int
    voted: ReplicaKey | None
    leader_id: int | None
    election_deadline: float


@attrs.define
class Prospective:
    """A replica that asks whether the voters would elect it. It begins a new epoch only after a majority has
    agreed, because a new epoch disturbs other replicas (KIP-996).
    """

    epoch: int
    voted: ReplicaKey | None
    leader_id: int | None
    election_deadline: float
    granted: list[int]
    rejected: list[int] = attrs.field(factory=list)
    backing_off: bool = False


@attrs.define
class Candidate:
    """A replica that has voted for itself in a new epoch, and asks all other voters for their votes."""

    epoch: int
    voted: ReplicaKey
    election_deadline: float
    granted: list[int]
    rejected: list[int] = attrs.field(factory=list)
    backing_off: bool = False


@attrs.define
class Follower:
    """A replica that fetches from the leader.

    `has_fetched` is True if the leader has answered a Fetch, and the connection has not broken since. `snapshot` is
    the snapshot that this replica loads from the leader instead of fetching; None while it fetches.
    """

    epoch: int
    voted: ReplicaKey | None
    leader_id: int
    fetch_deadline: float
    has_fetched: bool = False
    snapshot: OffsetAndEpoch | None = None


@attrs.define
class Progress:
    """The progress of another replica as the leader knows it.

    `offset` is the end of the records that the replica has promised to be on its disk. `last_fetch` is the
    time of its last fetch.
    """

    key: ReplicaKey
    offset: int = -1
    high_watermark_sent: int = -1
    last_fetch: float = float("-inf")
    last_caught_up: float = float("-inf")
    """The last time at which the replica had caught up. It has caught up when it has all records that were in
    the leader's log at its previous fetch.
    """

    end_offset_at_last_fetch: int = -1


@attrs.define
class Leader:
    """The replica that appends to the log in its epoch.

    `epoch_start` is the offset of the epoch's first record.
    """

    epoch: int
    voted: ReplicaKey | None
    epoch_start: int
    granted: tuple[int, ...]
    began: float
    begin_epoch_deadline: float
    progress: dict[ReplicaKey, Progress] = attrs.field(factory=dict)
    announced_at: dict[int, float] = attrs.field(factory=dict)
    """For each node, the last time at which BeginEpoch was sent to it."""

    parked: dict[int, tuple[Fetch, float]] = attrs.field(factory=dict)
    """Fetches that wait for new records, by request id, each with its deadline."""

    unsynced_since: float | None = None
    """The time since which some appended records have been unsynced; None if all records are synced."""

    def progress_of(self, voter: ReplicaKey) -> Progress | None:
        """Return the progress of this voter; None if it has not fetched.

        A replica with the same node id but another directory (a copy, or an empty disk) must not count as
        this voter. If the voter's directory id is known, Fetches with another directory id, or without one,
        are ignored. If it is unknown, the last replica that fetched with the voter's node id counts as the
        voter.
        """
        if voter.directory_id != ZERO_UUID:
            return self.progress.get(voter)
        found = [each for key, each in self.progress.items() if key.node_id == voter.node_id]
        return max(found, key=lambda each: (each.last_fetch, each.key), default=None)


@attrs.define
class Resigned:
    """A replica that was the leader of this epoch and has resigned.

    The replica waits until another replica begins the next epoch.
    """

    epoch: int
    voted: ReplicaKey | None
    election_deadline: float
    successors: tuple[ReplicaKey, ...] = ()
    to_notify: list[int] = attrs.field(factory=list)


Role: TypeAlias = Unattached | Prospective | Candidate | Follower | Leader | Resigned


class EpochRule(Enum):
    """The rule for the epoch of a new role, compared with the epoch of the role before it."""

    SAME = "same epoch"
    NEXT = "next epoch"
    LATER = "later epoch"
    ANY = "same or later epoch"


TRANSITIONS: Final[Mapping[tuple[type[Role], type[Role]], tuple[EpochRule, str]]] = {
    (Unattached, Unattached): (EpochRule.ANY, "votes, hears of a later epoch, or the leader has resigned"),
    (Unattached, Prospective): (
        EpochRule.SAME,
        "election timeout, or the resigned leader listed it first",
    ),
    (Unattached, Follower): (EpochRule.ANY, "hears of a leader"),
    (Unattached, Candidate): (EpochRule.NEXT, "starts as the only voter"),
    (Prospective, Prospective): (EpochRule.SAME, "election timeout"),
    (Prospective, Unattached): (EpochRule.ANY, "votes, hears of a later epoch, or is no voter any more"),
    (Prospective, Follower): (EpochRule.ANY, "hears of a leader, or a majority refuses and it knows one"),
    (Prospective, Candidate): (EpochRule.NEXT, "a majority would vote for it"),
    (Candidate, Leader): (EpochRule.SAME, "a majority votes for it"),
    (Candidate, Prospective): (EpochRule.SAME, "election timeout"),
    (Candidate, Unattached): (EpochRule.ANY, "hears of a later epoch, or is no voter any more"),
    (Candidate, Follower): (EpochRule.ANY, "hears of a leader"),
    (Follower, Prospective): (EpochRule.SAME, "no answer for fetch.timeout, or the connection broke"),
    (Follower, Unattached): (
        EpochRule.ANY,
        "hears of a later epoch, the leader resigned, or an observer gets no answer",
    ),
    (Follower, Follower): (EpochRule.ANY, "hears of another leader before its own has answered"),
    (Leader, Resigned): (EpochRule.SAME, "no majority fetches, its disk is late, it is removed, or it stops"),
    (Leader, Unattached): (EpochRule.LATER, "hears of a later epoch"),
    (Leader, Follower): (EpochRule.LATER, "hears of a leader"),
    (Resigned, Prospective): (EpochRule.SAME, "election timeout"),
    (Resigned, Unattached): (EpochRule.ANY, "hears of a later epoch, or is no voter any more"),
    (Resigned, Follower): (EpochRule.LATER, "hears of a leader"),
    (Resigned, Candidate): (EpochRule.NEXT, "starts as the only voter"),
}
"""All allowed changes of role. The value has the rule for the new epoch, and the event that causes the
change.
"""


def check_transition(before: Role, after: Role) -> None:
    """Assert that Raft allows this change of role."""
    rule, _ = TRANSITIONS.get((type(before), type(after)), (None, ""))
    rise = after.epoch - before.epoch
    if rise < 0:
        raise AssertionError(f"the quorum's epoch fell from {before.epoch} to {after.epoch}")
    if rule is None or not _is_kept(rule, rise):
        raise AssertionError(
            f"a {type(before).__name__} of epoch {before.epoch} cannot become a {type(after).__name__} "
            f"of epoch {after.epoch}"
        )
    if rise:
        return
    if before.voted is not None and after.voted != before.voted:
        raise AssertionError(
            f"in epoch {before.epoch} this node has already voted for {before.voted}, so it must not vote for "
            f"{after.voted}"
        )
    match before, after:
        case Follower(has_fetched=True, leader_id=known), Follower(leader_id=other) if known != other:
            raise AssertionError(
                f"epoch {before.epoch} has two leaders: {known}, which has answered this node, and {other}"
            )
        case _:
            return


def _is_kept(rule: EpochRule, rise: int) -> bool:
    match rule:
        case EpochRule.SAME:
            return rise == 0
        case EpochRule.NEXT:
            return rise == 1
        case EpochRule.LATER:
            return rise > 0
        case EpochRule.ANY:
            return True
