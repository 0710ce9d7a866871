"""The changes of one consumer group during a decision: the records so far, and the group as it is after them.

PURE.
"""

from __future__ import annotations

from collections.abc import Iterable

from odradek.data_plane.coordination.records import CoordinatorRecord
from odradek.data_plane.groups.classic_group import ClassicGroup
from odradek.data_plane.groups.consumers.consumer_group import ConsumerGroup, ConsumerKey, replayed

__all__ = ["GroupChange"]


class GroupChange:
    """The records that a decision makes about one group. They are written only if the whole decision succeeds."""

    __slots__ = ("classic", "group", "records", "wants_target")

    def __init__(self, group: ConsumerGroup) -> None:
        self.group = group
        """The group as it is after `records`."""
        self.records: list[CoordinatorRecord] = []
        self.classic: ClassicGroup | None = None
        """The classic group that this group replaces; None if there is none."""
        self.wants_target = False
        """True if a worker has to compute the group's target."""

    def add(self, records: Iterable[CoordinatorRecord]) -> None:
        """Add records, and apply them to `group`."""
        added = list(records)
        self.records += added
        of_group = [(each.key, each.value) for each in added if isinstance(each.key, ConsumerKey)]
        group_id = self.group.group_id
        self.group = replayed(group_id, self.group, of_group) or ConsumerGroup(group_id)
