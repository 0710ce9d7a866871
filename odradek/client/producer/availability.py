"""Finds the brokers that do not answer, so that a producer can avoid the partitions that these brokers lead
(KIP-794). PURE.

A broker becomes silent when its pipeline is full, or when a request to it fails. It stays silent until it answers. It
is blocked if it stays silent for `partitioner.availability.timeout.ms` while batches wait for it.
"""

from __future__ import annotations

from collections.abc import Container

__all__ = ["Availability"]


class Availability:
    """The silent brokers, each with the time at which it became silent. `timeout` is in seconds; 0 disables
    the detection.
    """

    def __init__(self, timeout: float) -> None:
        self.is_on = timeout > 0
        self._timeout = timeout
        self._silent_since: dict[int, float] = {}

    def silent(self, node: int, now: float) -> None:
        """Mark a broker as silent, because its pipeline is full or a request to it failed."""
        if self.is_on:
            self._silent_since.setdefault(node, now)

    def answered(self, node: int) -> None:
        """Mark a broker as no longer silent, because it has answered."""
        self._silent_since.pop(node, None)

    def blocked(self, wanted: Container[int | None], now: float) -> frozenset[int]:
        """Return the brokers of `wanted` that have been silent for the timeout or longer. `wanted` has the brokers for
        which batches wait. For all other brokers, forget the time at which they became silent.
        """
        self._silent_since = {node: since for node, since in self._silent_since.items() if node in wanted}
        return frozenset(node for node, since in self._silent_since.items() if since <= now - self._timeout)
