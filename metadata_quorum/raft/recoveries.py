"""Detection of a recovered log, by a replica that was absent from the recovery. It leaves its own log
unchanged. PURE.

`odradek quorum recover` begins a new log from a copy. Its epoch is `RECOVERY_EPOCHS_MIN` above all epochs in
the copies and on the nodes. No quorum holds so many elections while a replica is absent: at one per second
they take eleven days. So an answer whose epoch is that far ahead comes from a recovered quorum. A replica
with a log of its own then stops. Its log may have records that the recovered log lacks, and only an operator
may set it aside.

A request with such an epoch stops no replica, because any program may send one. It is refused
(`EPOCHS_AHEAD_MAX` in `core.py`). An answer may be forged, too, by a process that has taken a voter's
address. A replica still acts on it, even if its own quorum works. For all voters of the old log may have
returned together, and must not continue. But the node ends with a status after which it is started again. So
it runs again as soon as the voter has its address back.
"""

from __future__ import annotations

from odradek.metadata_quorum.ports import MetadataLogCorrupt
from odradek.metadata_quorum.raft.log_state import LogState

__all__ = ["RECOVERY_EPOCHS_MIN", "LogLeftBehind", "check_answer", "parted"]

RECOVERY_EPOCHS_MIN = 1_000_000
"""The smallest number of epochs by which a recovery raises the epoch."""
_WAY_OUT = "if this node's log may be the right one, keep it; otherwise run `odradek quorum begin-anew CONFIG --execute`, which sets the log aside, and the node then fetches the quorum's log"


class LogLeftBehind(MetadataLogCorrupt):
    """Raised if the quorum's log does not continue this replica's log. Either it was recovered without this
    replica, or voters have lost committed records.
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
