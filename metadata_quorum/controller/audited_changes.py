"""Entries of the audit log about records of the metadata log: the client that requested them, and their
offsets. PURE.
"""

from __future__ import annotations

from typing import Any

from odradek.metadata_quorum.envelope import NODE_ITSELF, Sender
from odradek.security.audit.auditor import Auditor
from odradek.wire.api import api_name
from odradek.wire.structure import Message

__all__ = ["audit_change"]


def audit_change(
    auditor: Auditor,
    sender: Sender,
    request: Any,
    epoch: int,
    offsets: tuple[int, int],
    *,
    is_committed: bool,
) -> None:
    """Write the records that `request` has produced to the audit log. `offsets` are the first and the last
    offset.

    A request of this node to itself is named by its class, e.g. `FenceExpiredBrokers`.
    """
    is_own = sender is NODE_ITSELF
    key = request.API_KEY if isinstance(request, Message) else None
    auditor.changed(
        None if is_own else sender.principal,
        None if is_own else sender.client_address,
        None if is_own else sender.client_id,
        type(request).__name__ if key is None else api_name(key),
        epoch=epoch,
        first_offset=offsets[0],
        last_offset=offsets[1],
        is_committed=is_committed,
    )
