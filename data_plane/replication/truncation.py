"""The offset at which a follower truncates its log when it diverges from the leader's log (KIP-101, KIP-279,
KIP-595). PURE.

A fetch names the epoch of the follower's last record. The leader searches its own log for the largest epoch
that is not above the named epoch. It answers with this epoch and the epoch's end offset. The two logs agree
at least up to the smaller of the ends that this epoch has in them. If the follower lacks the leader's epoch,
it truncates its log to the end of its own next smaller epoch, and fetches again.

A log is never truncated by the high watermark, which arrives late at followers. A follower that becomes
leader may have a high watermark below acknowledged records (KIP-101's example of a lost record).
"""

from __future__ import annotations

from odradek.data_plane.log.parts.leader_epochs import LeaderEpochs


def truncation_offset(
    epochs: LeaderEpochs, log_end_offset: int, leader_epoch: int, leader_end_offset: int
) -> int:
    """Return the offset at which to truncate. `leader_epoch` and `leader_end_offset` are the diverging epoch
    and its end in the leader's answer.

    The result may be the log's end. Then only epochs without records are removed.
    """
    epoch, end_offset = epochs.end_offset_for(leader_epoch, log_end_offset)
    if epoch < 0:
        # All epochs of this log are later than the leader's epoch, or the log has no epoch. So only the
        # leader's end counts.
        return min(leader_end_offset, log_end_offset)
    if epoch != leader_epoch:
        return min(end_offset, log_end_offset)
    return min(end_offset, leader_end_offset, log_end_offset)
