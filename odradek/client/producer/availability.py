"""Brokers that do not answer: a producer avoids their partitions (KIP-794). PURE.

A broker is silent from the moment when its pipeline is full, or a request to it fails, until it answers. It is
blocked if it stays silent for `partitioner.availability.timeout.ms` while batches wait for it.
"""

from __future__ import annotations

from collections.abc import Container

__all__ = ["Availability"]


class Availability:
    """The silent brokers, each with the time since which it is silent. `timeout` in seconds; 0 switches this off."""

    def __init__(self, timeout: float) -> None:
        self.is_on = timeout > 0
        self._timeout = timeout
        self._silent_since: dict[int, float] = {}

    def silent(self, node: int, now: float) -> None:
        """Note that a broker accepts nothing at the moment."""
        if self.is_on:
            self._silent_since.setdefault(node, now)

    def answered(self, node: int) -> None:
        """Note that a broker has answered."""
        self._silent_since.pop(node, None)

    def blocked(self, wanted: Container[int | None], now: float) -> frozenset[int]:
        """Return the brokers that have been silent for too long. Forget brokers that are missing in `wanted`,
        because no batch waits for them.
        """
        self._silent_since = {node: since for node, since in self._silent_since.items() if node in wanted}
        return frozenset(node for node, since in self._silent_since.items() if since <= now - self._timeout)
