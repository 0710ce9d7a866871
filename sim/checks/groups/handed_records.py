"""Record of what the members of a group receive, partition by partition; shared by the checks of both group protocols.
PURE.

An owner receives every record once and in order, from the position where its ownership begins to the position where
it ends. No other member receives any of these records. Records that a client has asked to delete may be missing. The
protocols differ in the offsets at which an owner may begin, which `_check_begin` checks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

import attrs

from odradek.wire.topic_partition import TopicPartition
from sim.history import History, SafetyViolation, Told

__all__ = ["HandedRecords", "Ownership"]


@attrs.define(eq=False)
class Ownership:
    """The ownership of a partition by a member. `next_offset` is None until the member has begun to read."""

    since: float
    next_offset: int | None = None
    end_offset: int = 0
    """The highest position that the member had before it sought back. A commit of that position may still be queued."""


@attrs.define(eq=False)
class HandedRecords(ABC):
    """The record of one group. A `member` is one client process."""

    group: str
    history: History
    seen: set[tuple[TopicPartition, int]] = attrs.field(factory=set, init=False)
    """Records that any member received."""
    progress: dict[TopicPartition, int] = attrs.field(factory=dict, init=False)
    """For each partition, the highest position that any owner has reached."""
    _held: dict[tuple[str, TopicPartition], Ownership] = attrs.field(factory=dict, init=False)

    def begins(
        self, member: str, keys: Iterable[TopicPartition], now: float, *, will_seek: bool = False
    ) -> None:
        """Record that a member now owns these partitions."""
        given = list(keys)
        for key in given:
            self._held[member, key] = Ownership(now)
        if not will_seek:
            self.history.own(member, self.group, given, now)

    def ends(self, member: str, keys: Iterable[TopicPartition]) -> None:
        """Record that a member no longer owns these partitions."""
        for key in keys:
            self._held.pop((member, key), None)

    def gone(self, member: str) -> None:
        """Record that a member's process has died: it owns nothing any more."""
        for held in [held for held in self._held if held[0] == member]:
            del self._held[held]

    def has_begun(self, member: str, key: TopicPartition) -> bool:
        """True if a member owns a partition and has a position in it."""
        held = self._held.get((member, key))
        return held is not None and held.next_offset is not None

    def handed(self, member: str, records: Sequence[Told], now: float) -> None:
        """Check the records that one poll of a member has returned. Raises `SafetyViolation`."""
        for told in records:
            key, offset = told.partition, told.offset
            held = self._held.get((member, key))
            if held is None:
                raise SafetyViolation(
                    f"{self.group}: {member} is handed {offset} of {key}, which it does not own"
                )
            trimmed = key in self.history.deleted_below
            if held.next_offset is None:
                self._check_begin(member, told, held, now)
            elif offset != held.next_offset and not (trimmed and offset > held.next_offset):
                raise SafetyViolation(
                    f"{self.group}: {member} is handed {offset} of {key} behind {held.next_offset - 1}"
                )
            held.next_offset = offset + 1
            self.seen.add((key, offset))
            self.progress[key] = max(self.progress.get(key, 0), offset + 1)

    @abstractmethod
    def _check_begin(self, member: str, told: Told, held: Ownership, now: float) -> None:
        """Check the first record that an owner receives. Raises `SafetyViolation`."""

    def check(self) -> None:
        """Check that each acknowledged record reached some member, unless it was deleted. Raises `SafetyViolation`."""
        for told in self.history.acknowledged:
            if told.offset < self.history.deleted_below.get(told.partition, 0):
                continue
            if (told.partition, told.offset) not in self.seen:
                raise SafetyViolation(
                    f"{self.group}: nobody was handed {told.value[:40]!r} at {told.partition} {told.offset}"
                )
