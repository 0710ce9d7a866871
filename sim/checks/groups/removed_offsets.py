"""Knowledge of the committed offsets that a coordinator may remove at any time: a client has asked for it, or the topic is
gone. PURE.

Requests count from the moment when they are sent, and for the rest of the run. `sim.checks.folds.group_laws` says when all
other offsets may be removed.
"""

from __future__ import annotations

from odradek.wire.api_keys import ApiKey
from sim.checks.wiretap import Exchange

__all__ = ["RemovedOffsets"]


class RemovedOffsets:
    """The requests to delete groups or offsets, and the deleted topics."""

    def __init__(self) -> None:
        self._groups: set[str] = set()
        self._offsets: set[tuple[str, str, int]] = set()
        """Offsets that a client has asked to delete, as (group id, topic name, partition number)."""
        self.topics: set[str] = set()
        """The names of topics that were deleted at some time."""

    def asked(self, exchange: Exchange) -> bool:
        """Record which offsets a DeleteGroups or OffsetDelete names. Returns False, since only requests count."""
        request = exchange.request
        if exchange.api == ApiKey.DELETE_GROUPS:
            self._groups.update(request.groups_names)
        else:
            self._offsets.update(
                (request.group_id, topic.name, each.partition_index)
                for topic in request.topics
                for each in topic.partitions
            )
        return False

    def answered(self, exchange: Exchange, answer: object) -> None:
        """Do nothing: only requests count."""

    def may_go(self, place: tuple[str, str, int]) -> bool:
        """True if a client has asked to delete this offset or its group, or if the topic was deleted at some time."""
        group_id, topic, _ = place
        return topic in self.topics or group_id in self._groups or place in self._offsets
