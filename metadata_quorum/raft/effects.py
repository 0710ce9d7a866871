"""Effects that the core requests. The driver performs them in order, each before the next.

A `SaveState` is durable before the next effect begins. So the node never forgets a vote or an epoch that it has
sent (Raft, figure 2: "updated on stable storage before responding to RPCs").
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
    """Send a request to a replica's node, and report the outcome with `receive_response` or `request_failed`."""

    node_id: int
    request: Request


@attrs.frozen
class Answer:
    """Answer a request; with `read_offset`, add batches of the log from there on."""

    request_id: int
    response: Response
    read_offset: int | None = None


@attrs.frozen
class Truncate:
    """Cut the log to this end offset, durably: the removed records must not come back."""

    end_offset: int


@attrs.frozen
class AppendFetched:
    """Write the leader's batches, sync, and report with `flushed`."""

    batches: tuple[Batch, ...]


@attrs.frozen
class LoadSnapshot:
    """Fetch a snapshot from the leader, put it in place of the log, and report with `snapshot_installed`."""

    leader_id: int
    snapshot: OffsetAndEpoch


@attrs.frozen
class HighWatermarkAdvanced:
    high_watermark: int


@attrs.frozen
class TookLeadership:
    """Append a LeaderChange record (`append`) as the first of this epoch; then decisions may follow."""

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
