"""The messages between replicas in the core's form. `replica/wire_messages.py` translates them to Kafka's
RPCs.

Each request is answered exactly once. `epoch` is always the epoch of the sender.
"""

from __future__ import annotations

from typing import TypeAlias

import attrs

from odradek.metadata_quorum.ports import OffsetAndEpoch
from odradek.metadata_quorum.raft.log_state import Batch
from odradek.metadata_quorum.raft.voters import ReplicaKey
from odradek.wire.errors import ErrorCode

__all__ = [
    "BeginEpoch",
    "EndEpoch",
    "EpochAnswer",
    "Fetch",
    "FetchAnswer",
    "Request",
    "Response",
    "Vote",
    "VoteAnswer",
]


@attrs.frozen
class Vote:
    """A request for a vote (Raft, 5.2), or the question whether a vote would be granted (pre-vote, thesis
    9.6, KIP-996).

    A candidate has raised its epoch before it sends this message. A prospective replica has not. `log_end` is
    the end of the sender's log.
    """

    epoch: int
    sender: ReplicaKey
    voter: ReplicaKey
    log_end: OffsetAndEpoch
    pre_vote: bool


@attrs.frozen
class VoteAnswer:
    epoch: int
    leader_id: int | None
    granted: bool
    error: ErrorCode = ErrorCode.NONE


@attrs.frozen
class BeginEpoch:
    """A leader's notice that it leads this epoch. The notice is for voters that do not fetch from this leader
    yet.
    """

    epoch: int
    leader: ReplicaKey
    voter: ReplicaKey


@attrs.frozen
class EndEpoch:
    """A leader's notice that it resigns.

    `successors` are the voters that should take over, the one with the longest log first.
    """

    epoch: int
    leader_id: int
    successors: tuple[ReplicaKey, ...]


@attrs.frozen
class EpochAnswer:
    """The answer to BeginEpoch and EndEpoch."""

    epoch: int
    leader_id: int | None
    error: ErrorCode = ErrorCode.NONE


@attrs.frozen
class Fetch:
    """A follower's request for the records after the end of its log.

    `offset` is the end of its *synced* records. With it the follower promises that these records are on its
    disk.
    """

    epoch: int
    replica: ReplicaKey
    offset: int
    last_epoch: int
    wait_ms_max: int = 0
    high_watermark: int | None = None
    """The high watermark that the follower knows (KIP-1166). From this value the leader sees whether the
    follower has received an earlier answer.
    """


@attrs.frozen
class FetchAnswer:
    """The answer to a Fetch: batches from the requested offset on, or the offset where the logs diverge, or
    the snapshot to load first.
    """

    epoch: int
    leader_id: int | None
    high_watermark: int = -1
    batches: tuple[Batch, ...] = ()
    diverging: OffsetAndEpoch | None = None
    snapshot: OffsetAndEpoch | None = None
    error: ErrorCode = ErrorCode.NONE


Request: TypeAlias = Vote | BeginEpoch | EndEpoch | Fetch
Response: TypeAlias = VoteAnswer | EpochAnswer | FetchAnswer
