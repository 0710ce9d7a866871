"""Check of a consumer group with members of both protocols: it records everything that the members receive, and raises
an error for an impossible event. PURE.

1. An owner receives every record once and in order, from the position where its ownership begins to the position
   where it ends. No other member receives any of these records.
2. An owner begins at or above each offset whose commit was acknowledged before it became the owner. A commit that was
   repeated, or is still unanswered, may take effect late. From such a commit on, the partition's committed offset is
   unknown and not checked.
3. An owner commits nothing beyond the records that it received.
4. Once another member has begun to read a partition, commits of an earlier owner with its former epoch are rejected
   (KIP-1251).

Whether a partition has only one owner is checked in the coordinator's log instead, since a fenced member learns late
that it was fenced.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from odradek.wire.topic_partition import TopicPartition
from sim.checks.groups.handed_records import HandedRecords, Ownership
from sim.history import SafetyViolation, Told

__all__ = ["HerdCommit", "HerdPromises"]


@attrs.define(eq=False)
class HerdCommit:
    """A commit that was sent."""

    member: str
    offsets: Mapping[TopicPartition, int]
    is_late: bool = False
    """True if other members have begun to read all partitions of the commit since. Then the commit must be rejected."""


@attrs.define(eq=False)
class HerdPromises(HandedRecords):
    """The record of one group with members of both protocols."""

    hand_overs: int = 0
    refused_late: int = 0
    _begun: dict[TopicPartition, str] = attrs.Factory(dict)
    """For each partition, the member that has begun to read it most recently."""
    _certain: dict[TopicPartition, int] = attrs.Factory(dict)
    """For each partition, the highest offset whose commit was acknowledged."""
    _certain_at: dict[TopicPartition, list[tuple[float, int]]] = attrs.Factory(dict)
    _doubtful: set[TopicPartition] = attrs.Factory(set)

    # Owners

    def leaves(self, member: str) -> None:
        """Do nothing, since a member may leave at any time."""

    def has_begun_after(self, member: str, key: TopicPartition) -> bool:
        """True if another member has begun to read this partition since this member began to read it."""
        return self._begun.get(key, member) != member

    def _check_begin(self, member: str, told: Told, held: Ownership, now: float) -> None:
        key, offset = told.partition, told.offset
        least = max((at for when, at in self._certain_at.get(key, ()) if when < held.since), default=0)
        if offset < least and key not in self._doubtful:
            raise SafetyViolation(
                f"{self.group}: {member} begins {key} at {offset}, and {least} was committed before it had it"
            )
        most = max(self._certain.get(key, 0), self.progress.get(key, 0))
        if offset > most and key not in self.history.deleted_below:
            raise SafetyViolation(
                f"{self.group}: {member} begins {key} at {offset}, and nobody was behind {most}"
            )
        self.hand_overs += self._begun.get(key, member) != member
        self._begun[key] = member

    # Commits

    def commits(
        self, member: str, generation: int, offsets: Mapping[TopicPartition, int], now: float
    ) -> HerdCommit:
        """Record a commit that a member is about to send. Raises `SafetyViolation` if it goes beyond the member's
        records.
        """
        for key, offset in offsets.items():
            held = self._held.get((member, key))
            if held is None or held.next_offset is None:
                continue
            if offset > max(held.next_offset, self.history.deleted_below.get(key, 0)):
                raise SafetyViolation(
                    f"{self.group}: {member} commits {offset} of {key}, and was handed up to {held.next_offset}"
                )
        return HerdCommit(member, offsets)

    def commits_late(self, member: str, offsets: Mapping[TopicPartition, int]) -> HerdCommit:
        """Record a commit with the identity of an earlier owner, which must be rejected."""
        return HerdCommit(member, offsets, is_late=True)

    def committed(self, commit: HerdCommit, now: float, *, times: int = 1) -> None:
        """Check an acknowledged commit that was sent `times` times. Raises `SafetyViolation`."""
        if commit.is_late:
            raise SafetyViolation(
                f"{self.group}: a late commit of {commit.member} was taken: {dict(commit.offsets)}"
            )
        for key, offset in commit.offsets.items():
            if times > 1:
                self._doubtful.add(key)
            self._certain[key] = max(self._certain.get(key, 0), offset)
            self._certain_at.setdefault(key, []).append((now, offset))

    def refused(self, commit: HerdCommit, now: float, error: str, *, certain: bool) -> None:
        """Record a failed commit. `certain` is True if the commit was sent once, and its answer says that it was
        rejected.
        """
        self.refused_late += commit.is_late
        if not certain and not commit.is_late:
            self._doubtful.update(commit.offsets)

    # At the end

    def check_commits(self, found: Mapping[TopicPartition, int | None]) -> None:
        """Check the group's committed offsets after all members have left. Raises `SafetyViolation`."""
        for key, least in self._certain.items():
            offset = found.get(key)
            if key not in self._doubtful and (offset is None or offset < least):
                raise SafetyViolation(f"{self.group}: {least} of {key} was committed, {offset} is there")
