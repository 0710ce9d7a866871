"""One consumer group in the middle of a decision: its records so far, and the group after them. PURE."""

from __future__ import annotations

from collections.abc import Iterable

from odradek.data_plane.coordination.records import CoordinatorRecord
from odradek.data_plane.groups.classic_group import ClassicGroup
from odradek.data_plane.groups.consumers.consumer_group import ConsumerGroup, ConsumerKey, replayed

__all__ = ["GroupChange"]


class GroupChange:
    """The records that a decision makes about one group. They count only when the decision succeeds."""

    __slots__ = ("classic", "group", "records", "wants_target")

    def __init__(self, group: ConsumerGroup) -> None:
        self.group = group
        """The group after `records`."""
        self.records: list[CoordinatorRecord] = []
        self.classic: ClassicGroup | None = None
        """The classic group that this one replaces."""
        self.wants_target = False
        """True if a worker has to compute the group's target."""

    def add(self, records: Iterable[CoordinatorRecord]) -> None:
        """Add records, and change the group by them."""
        added = list(records)
        self.records += added
        of_group = [(each.key, each.value) for each in added if isinstance(each.key, ConsumerKey)]
        group_id = self.group.group_id
        self.group = replayed(group_id, self.group, of_group) or ConsumerGroup(group_id)
