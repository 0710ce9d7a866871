"""Check of AllocateProducerIds: no id is in two blocks that any controller has answered to any broker (KIP-730). PURE.

A repeated request gets a new block, so each answer has ids of its own.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from odradek.wire.messages.allocate_producer_ids import AllocateProducerIdsResponse
from sim.checks.wiretap import Exchange
from sim.history import SafetyViolation

__all__ = ["HandedBlocks"]


class HandedBlocks:
    """The check of answers to AllocateProducerIds."""

    def __init__(self) -> None:
        self._blocks: list[tuple[int, int, str]] = []
        """The (first id, id after the last, receiver) of each block, sorted."""
        self.seen = 0

    def asked(self, exchange: Exchange) -> bool:
        """Return True: each answer is checked."""
        return True

    def answered(self, exchange: Exchange, answer: AllocateProducerIdsResponse) -> None:
        """Compare the block with its neighbours. Raises `SafetyViolation`."""
        if answer.error_code:
            return
        first, end = answer.producer_id_start, answer.producer_id_start + answer.producer_id_len
        self.seen += 1
        block = (first, end, f"broker {exchange.request.broker_id}")
        place = bisect_left(self._blocks, block)
        for low, high, receiver in self._blocks[max(0, place - 1) : place + 1]:
            if low < end and first < high:
                raise SafetyViolation(
                    f"producer ids: {block[2]} gets {first} to {end - 1}, and {receiver} has {low} to {high - 1}"
                )
        insort(self._blocks, block)
