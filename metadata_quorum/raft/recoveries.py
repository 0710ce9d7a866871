"""The detection of a recovered quorum by a replica that was absent from the recovery. The replica then stops,
and leaves its own log unchanged. PURE.

`odradek quorum recover` begins a new log from a copy. The new log's epoch is at least `RECOVERY_EPOCHS_MIN`
above all epochs in the copies and on the nodes. A quorum cannot hold so many elections while a replica is
absent: at one election per second, they would take eleven days. So if the epoch in an answer is that far
ahead, the answer comes from a recovered quorum. A replica with a log of its own then stops. Its log may have
records that the recovered log lacks, and only an operator may set this log aside.

Only answers count, because any program may send a request with such an epoch. The request is refused
(`EPOCHS_AHEAD_MAX` in `core.py`).

A replica stops even if its own quorum works. All voters of the old log may have returned together, and they
must not continue beside the recovered quorum.

A process that has taken a voter's address can forge such an answer. So the node ends with an exit status
after which it is started again. It runs normally as soon as the voter has its address back.
"""

from __future__ import annotations

from odradek.metadata_quorum.ports import MetadataLogCorrupt
from odradek.metadata_quorum.raft.log_state import LogState

__all__ = ["RECOVERY_EPOCHS_MIN", "LogLeftBehind", "check_answer", "parted"]

RECOVERY_EPOCHS_MIN = 1_000_000
"""The smallest number of epochs by which a recovery raises the epoch."""
_WAY_OUT = "if this node's log may be the right one, keep it; otherwise run `odradek quorum begin-anew CONFIG --execute`, which sets the log aside, and the node then fetches the quorum's log"


class LogLeftBehind(MetadataLogCorrupt):
    """Raised if the quorum's log does not continue this replica's log. Either the quorum's log was recovered
    in the absence of this replica, or voters have lost committed records.
    """


def check_answer(log: LogState, own_epoch: int, epoch: int, node_id: int) -> None:
    """Check the epoch in an answer.

    Raises `LogLeftBehind` if this replica has a log, and the answer comes from a quorum that was recovered
    without it.
    """
    has_log = log.end_offset > 0 or log.snapshot is not None
    if has_log and epoch - own_epoch >= RECOVERY_EPOCHS_MIN:
        raise LogLeftBehind(
            f"the metadata log was recovered without this node: node {node_id} is in epoch {epoch}, and this node has a "
            f"log up to offset {log.end_offset} of epoch {log.last_epoch}: {_WAY_OUT}"
        )


def parted(log: LogState, epoch: int, end_offset: int, high_watermark: int) -> LogLeftBehind:
    """Make the error for a leader whose log lacks records that are committed in this replica's log."""
    return LogLeftBehind(
        f"the leader of epoch {epoch} lacks committed records: its metadata log diverges from this node's at offset "
        f"{end_offset}; this node has a log up to offset {log.end_offset} of epoch {log.last_epoch}, committed up to "
        f"{high_watermark}: {_WAY_OUT}"
    )
