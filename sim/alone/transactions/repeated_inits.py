"""Check of InitProducerId with a producer's own id and epoch (KIP-360): repeating the request does no harm. PURE.

A producer that lost an answer sends the same request again, and is not fenced by its first request. However often it
asks, it gets the epoch behind its own.

Two events may fence it. Another producer has begun with the transactional id, or a late copy of the producer's first
request has arrived. Or the coordinator has changed: the log does not have the former epoch of a producer, which a
repeated request names.
"""

from __future__ import annotations

from odradek.data_plane.transactions.requests import InitProducer
from sim.history import SafetyViolation

__all__ = ["RepeatedInits"]

WAITS_MS_MAX = 1_000
"""A coordinator decides on a request at the latest this long after its arrival."""
NEW_PRODUCER = -1


class RepeatedInits:
    """The arrivals of InitProducerId from new producers."""

    def __init__(self) -> None:
        self._begun: dict[str, list[int]] = {}
        """The time in ms of each arrival, by transactional id."""
        self.seen = 0

    def arrived(self, request: object, now_ms: int) -> None:
        """Note a request that arrives at a coordinator."""
        if isinstance(request, InitProducer) and request.producer_epoch == NEW_PRODUCER:
            self._begun.setdefault(request.transactional_id, []).append(now_ms)

    def answered(self, request: InitProducer, epoch: int | None, since_ms: int) -> None:
        """Check the answer to a producer that has asked with its own epoch, while the coordinator stayed the same.
        `epoch` is None if the producer was fenced. `since_ms` is the time when the producer began. Raises
        `SafetyViolation`.
        """
        begun = self._begun[request.transactional_id]
        # One of the arrivals is the producer's own.
        if sum(each >= since_ms - WAITS_MS_MAX for each in begun) > 1:
            return
        self.seen += 1
        if epoch != request.producer_epoch + 1:
            given = "is fenced" if epoch is None else f"gets epoch {epoch}"
            raise SafetyViolation(
                f"the only producer of {request.transactional_id} asks in epoch {request.producer_epoch} for its next one, "
                f"and {given}"
            )
