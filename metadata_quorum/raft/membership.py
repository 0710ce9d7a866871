"""When voters may change: one at a time, and not before the leader knows what is committed (KIP-853). PURE.

The leader appends a VotersRecord, and the new set counts from then on (thesis, 4.1). Two sets that differ by one
voter have overlapping majorities only if the older one is settled, which is what `refusal` makes sure of.
"""

from __future__ import annotations

from metadata_quorum.raft.core_state import CoreState
from metadata_quorum.raft.roles import Leader
from metadata_quorum.raft.voters import ReplicaKey, Voter
from wire.errors import ErrorCode

CAUGHT_UP_SECONDS = 3600.0
"""How long ago a new voter must have held the whole log at the latest (Kafka's limit)."""


def refusal(core: CoreState) -> ErrorCode:
    """Why no voter may be added, removed or updated now; NONE if one may.

    This is the 2015 correction to the thesis, section 4.1. It says: "a leader must not append a new configuration
    entry until it has committed an entry from its current term".
    """
    if not isinstance(core.role, Leader):
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    if not core.has_committed_in_epoch or core.log.voters_offset >= core.high_watermark:
        return ErrorCode.REQUEST_TIMED_OUT
    return ErrorCode.NONE


def refusal_to_add(core: CoreState, voter: Voter) -> ErrorCode:
    """Whether `voter` may join: not twice, and only with (nearly) the whole log."""
    code = refusal(core)
    if code is not ErrorCode.NONE:
        return code
    if core.voters.get(voter.key.node_id) is not None:
        return ErrorCode.DUPLICATE_VOTER
    assert isinstance(core.role, Leader)
    progress = core.role.progress.get(voter.key)
    if progress is None:
        return ErrorCode.REQUEST_TIMED_OUT
    caught_up = progress.last_caught_up >= core.now - CAUGHT_UP_SECONDS
    return ErrorCode.NONE if caught_up else ErrorCode.REQUEST_TIMED_OUT


def refusal_to_remove(core: CoreState, voter: ReplicaKey) -> ErrorCode:
    """Whether `voter` may go: it must be one, and not the last."""
    code = refusal(core)
    if code is not ErrorCode.NONE:
        return code
    known = core.voters.get(voter.node_id)
    if known is None or not known.key.matches(voter):
        return ErrorCode.VOTER_NOT_FOUND
    return ErrorCode.INVALID_REQUEST if len(core.voters.voters) == 1 else ErrorCode.NONE
