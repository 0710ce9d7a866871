"""Conditions for a change of voters (KIP-853): one change at a time, and only after the leader has committed
a record of its own epoch. PURE.

The leader appends a VotersRecord, and the new set is in force from then on (thesis, 4.1). If two sets differ
by one voter, each majority of one set overlaps with each majority of the other. But this protects the log
only if the older set is committed. So `refusal` checks that it is committed.
"""

from __future__ import annotations

from odradek.metadata_quorum.raft.core_state import CoreState
from odradek.metadata_quorum.raft.roles import Leader
from odradek.metadata_quorum.raft.voters import ReplicaKey, Voter
from odradek.wire.errors import ErrorCode

CAUGHT_UP_SECONDS = 3600.0
"""A replica can be added as a voter only if it had caught up with the log within this time, in seconds (Kafka's
limit).
"""


def refusal(core: CoreState) -> ErrorCode:
    """Return the error for any change of voters now, or NONE if a change is allowed.

    The condition is from the correction (2015) to section 4.1 of the thesis. It says: "a leader must not
    append a new configuration entry until it has committed an entry from its current term".
    """
    if not isinstance(core.role, Leader):
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    if not core.has_committed_in_epoch or core.log.voters_offset >= core.high_watermark:
        return ErrorCode.REQUEST_TIMED_OUT
    return ErrorCode.NONE


def refusal_to_add(core: CoreState, voter: Voter) -> ErrorCode:
    """Return the error for adding `voter`, or NONE if it may be added.

    There is an error if no change is allowed now, if `voter` already is a voter, or if its log is too far
    behind.
    """
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
    """Return the error for removing `voter`, or NONE if it may be removed.

    A replica may be removed only if it is a voter, and not the only voter.
    """
    code = refusal(core)
    if code is not ErrorCode.NONE:
        return code
    known = core.voters.get(voter.node_id)
    if known is None or not known.key.matches(voter):
        return ErrorCode.VOTER_NOT_FOUND
    return ErrorCode.INVALID_REQUEST if len(core.voters.voters) == 1 else ErrorCode.NONE
