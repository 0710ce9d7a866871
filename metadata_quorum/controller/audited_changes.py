"""Entries of the audit log about changes of the metadata. An entry has the client that requested a change,
and the offsets of the change's records in the metadata log. PURE.
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
    """Write an entry to the audit log about the records that `request` has produced. `offsets` are those of
    the first and the last record.

    If this node has sent the request to itself, the entry names the request's class, e.g.
    `FenceExpiredBrokers`.
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
