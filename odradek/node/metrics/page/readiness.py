"""The answer to `/ready`: whether this node serves its roles, as far as it knows. PURE.

A node that has lost the quorum stays ready. All brokers would become unready together then, although clients can still
write and read.
"""

from __future__ import annotations

from odradek.node.broker_lifecycle import BrokerLifecycle
from odradek.node.metrics.controller_metrics import Metadata

__all__ = ["LAG_RECORDS_MAX", "unready_reason"]

LAG_RECORDS_MAX = 100
"""The most committed metadata records that a ready node has still to apply: a moment's worth of changes."""


def unready_reason(metadata: Metadata, lifecycle: BrokerLifecycle | None, *, is_starting: bool) -> str | None:
    """Return why the node is not ready, or None if it is. A node that is only a controller has no lifecycle."""
    if is_starting:
        return "the node is starting"
    if metadata.lag_records > LAG_RECORDS_MAX:
        return f"{metadata.lag_records} committed metadata records are not applied yet"
    if lifecycle is None:
        return None
    registration = lifecycle.registration
    if registration is None or registration.fenced or registration.epoch != lifecycle.broker_epoch:
        return "the broker is fenced"
    if registration.in_controlled_shutdown:
        return "the broker is stopping"
    return None
