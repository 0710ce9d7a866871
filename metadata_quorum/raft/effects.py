"""The effects that the core requests. The driver performs them in order, each before the next.

A `SaveState` must be durable before the next effect begins. So the node never forgets a vote or epoch that it
has sent. (Raft, figure 2: "updated on stable storage before responding to RPCs".)
"""

from __future__ import annotations

from typing import TypeAlias

import attrs

from odradek.metadata_quorum.ports import OffsetAndEpoch, QuorumState
from odradek.metadata_quorum.raft.log_state import Batch
from odradek.metadata_quorum.raft.messages import Request, Response

__all__ = [
    "Answer",
    "AppendFetched",
    "Effect",
    "HighWatermarkAdvanced",
    "LoadSnapshot",
    "LostLeadership",
    "SaveState",
    "Send",
    "TookLeadership",
    "Truncate",
]


@attrs.frozen
class SaveState:
    state: QuorumState


@attrs.frozen
class Send:
    """Send a request to a node. The driver reports the outcome by `receive_response` or `request_failed`."""

    node_id: int
    request: Request


@attrs.frozen
class Answer:
    """Answer a request. If `read_offset` is set, the driver adds batches of the log from this offset on."""

    request_id: int
    response: Response
    read_offset: int | None = None


@attrs.frozen
class Truncate:
    """Truncate the log to this end offset, durably: the removed records must not come back."""

    end_offset: int


@attrs.frozen
class AppendFetched:
    """Append the leader's batches to the log, sync it, and report by `flushed`."""

    batches: tuple[Batch, ...]


@attrs.frozen
class LoadSnapshot:
    """Fetch a snapshot from the leader, replace the log by it, and report by `snapshot_installed`."""

    leader_id: int
    snapshot: OffsetAndEpoch


@attrs.frozen
class HighWatermarkAdvanced:
    high_watermark: int


@attrs.frozen
class TookLeadership:
    """A notice that this replica has become the leader.

    The driver appends a LeaderChange record (`append`) as the first record of this epoch. After that,
    decisions may be appended.
    """

    epoch: int
    granted: tuple[int, ...]


@attrs.frozen
class LostLeadership:
    epoch: int


Effect: TypeAlias = (
    SaveState
    | Send
    | Answer
    | Truncate
    | AppendFetched
    | LoadSnapshot
    | HighWatermarkAdvanced
    | TookLeadership
    | LostLeadership
)
