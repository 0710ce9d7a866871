"""The six roles of a replica, one value each: what it remembers only while it has that role. PURE.

    Unattached ---election timeout---> Prospective ---pre-votes---> Candidate ---votes---> Leader
        ^  \\                            |     ^                        |                     |
        |   leader found                 |     | fetch timeout          | backoff             | resigns
        |     \\--------> Follower <------/-----/                        v                     v
        |                    |                                   (Prospective)           Resigned
        +--- a higher epoch, from every role ---------------------------------------------/

Only a voter goes to the right; an observer is Unattached or a Follower. Every role has an epoch; the epoch, the
vote and the leader are what a replica must not forget (`QuorumState`), all else may be lost.
"""

from __future__ import annotations

from typing import TypeAlias

import attrs

from metadata_quorum.raft.messages import Fetch
from metadata_quorum.raft.voters import ReplicaKey
from wire.structure import ZERO_UUID

__all__ = ["Candidate", "Follower", "Leader", "Progress", "Prospective", "Resigned", "Role", "Unattached"]


@attrs.define
class Unattached:
    """No leader is known, or only its name."""

    epoch: int
    voted: ReplicaKey | None
    leader_id: int | None
    election_deadline: float


@attrs.define
class Prospective:
    """Asks whether it would be elected before it disturbs anybody with a new epoch (KIP-996)."""

    epoch: int
    voted: ReplicaKey | None
    leader_id: int | None
    election_deadline: float
    granted: list[int]
    rejected: list[int] = attrs.field(factory=list)
    backing_off: bool = False


@attrs.define
class Candidate:
    """Has voted for itself and asks the others."""

    epoch: int
    voted: ReplicaKey
    election_deadline: float
    granted: list[int]
    rejected: list[int] = attrs.field(factory=list)
    backing_off: bool = False


@attrs.define
class Follower:
    """Fetches from the leader. `has_fetched`: the leader has answered since this role began or broke."""

    epoch: int
    voted: ReplicaKey | None
    leader_id: int
    fetch_deadline: float
    has_fetched: bool = False
    loading_snapshot: bool = False


@attrs.define
class Progress:
    """What a leader knows of another replica, and its promise."""

    key: ReplicaKey
    offset: int = -1
    high_watermark_told: int = -1
    last_fetch: float = float("-inf")
    last_caught_up: float = float("-inf")
    """When it was last seen to hold all that the log held at its fetch before."""

    end_offset_at_last_fetch: int = -1


@attrs.define
class Leader:
    """Decides what the log holds in its epoch. `epoch_start` is the offset of its first record."""

    epoch: int
    voted: ReplicaKey | None
    epoch_start: int
    granted: tuple[int, ...]
    began: float
    begin_epoch_deadline: float
    progress: dict[ReplicaKey, Progress] = attrs.field(factory=dict)
    told: dict[int, float] = attrs.field(factory=dict)
    """When BeginEpoch was last sent to a node."""

    parked: dict[int, tuple[Fetch, float]] = attrs.field(factory=dict)
    """Fetches that wait for records, by request id, with their deadlines."""

    def progress_of(self, voter: ReplicaKey) -> Progress | None:
        """The progress of this voter. Another replica with its node id (a copy, a wiped disk) must not stand in for it.

        A voter that has a directory id is matched by that id alone: a Fetch that names none promises nothing for it. Where
        nobody has said which directory votes, it is the replica that fetched last under that node id.
        """
        if voter.directory_id != ZERO_UUID:
            return self.progress.get(voter)
        found = [each for key, each in self.progress.items() if key.node_id == voter.node_id]
        return max(found, key=lambda each: (each.last_fetch, each.key), default=None)


@attrs.define
class Resigned:
    """Was the leader of this epoch and will not be again; waits until somebody else begins the next."""

    epoch: int
    voted: ReplicaKey | None
    election_deadline: float
    successors: tuple[ReplicaKey, ...] = ()
    to_tell: list[int] = attrs.field(factory=list)


Role: TypeAlias = Unattached | Prospective | Candidate | Follower | Leader | Resigned
