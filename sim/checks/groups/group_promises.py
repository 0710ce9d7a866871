"""Check of a classic consumer group. It records everything that the group's members receive, and raises an error for an
impossible event. PURE.

1. In one generation a partition has one owner at most. A member that gives up a partition within a generation counts
   as its owner in that generation.
2. An owner receives every record once and in order, from the position where its ownership begins to the position
   where it ends. No other member receives any of these records.
3. An owner begins at an offset that may be the group's committed offset at that moment. It begins at 0 if the group
   may have no committed offset.
4. An owner commits nothing beyond the records that it received, or that a client has asked to delete.
5. Once a member has an assignment of a generation, no commit of an older generation is accepted.

An empty group without commits is deleted, as in Kafka, and its generations start again. So a generation number may
occur twice before the first commit is acknowledged. When it occurs again, the former owners are dead, or have been
silent for a session timeout. The time of a deletion is not observed. A paused member learns its generation late, so its
own report does not show when the group existed. Two facts limit the time. A member belonged to the group when it
requested its assignment, and its generation existed at the latest when the answer arrived. The first commit existed at
the latest when its answer arrived. A deletion counts as possible at any time that agrees with these facts.

An owner that seeks continues at its new position. Records that a client has asked to delete may be missing.

The time at which a commit takes effect is not observed either. A commit that was sent once and answered took effect
before its answer. Any other commit may take effect until its generation ends, since the bytes of the request may be
late. So rule 3 considers all commits that may be the latest one. `jepsen_tests.checkers.lost_commit` does the same, but
only checks whether an owner begins too low.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf

import attrs

from jepsen_tests.history import Commit
from odradek.wire.topic_partition import TopicPartition
from sim.checks.groups.handed_records import HandedRecords, Ownership
from sim.history import SafetyViolation, Told

__all__ = ["GroupPromises", "OpenCommit"]


@attrs.define(eq=False)
class _Known:
    """A generation as one member knows it: the member's process, the time when it requested its assignment, and the
    time when it last had this assignment.
    """

    member: str
    asked: float
    heard: float


@attrs.define(eq=False)
class OpenCommit:
    """A commit that was sent. `late` is True if a member had received an assignment of a later generation before the
    commit was sent.
    """

    operation: Commit
    generation: int
    late: bool
    may_be_anew: bool = False
    """True if a later generation was known, but the group may have been deleted and created again since."""


@attrs.define(eq=False)
class GroupPromises(HandedRecords):
    """The record of one classic group. A `member` is one process. The `owner` is the same process or, for a static
    member, the static member that the process represents.
    """

    session_seconds: float = 10.0
    """The shortest session timeout of a member, in seconds."""
    generation: int = -1
    """The latest generation of which a member has received an assignment."""
    rebalances: int = 0
    begun_anew: int = 0
    """How many times the group's generations have started again, because the group was deleted."""
    refused_late: int = 0
    _owners: dict[tuple[int, TopicPartition], str] = attrs.Factory(dict)
    _known: dict[tuple[str, int], _Known] = attrs.Factory(dict)
    """The generation as its owner knows it, by (owner, generation). There is an entry for each assignment that an owner
    has received.
    """
    _committed_at: float = inf
    """The time at which the first commit was acknowledged. From then on the group cannot be deleted."""
    _left: set[str] = attrs.Factory(set)
    """Members that are dead, or have asked to leave."""
    _commits: list[OpenCommit] = attrs.Factory(list)

    # Owners

    def owns(
        self,
        member: str,
        generation: int,
        keys: Iterable[TopicPartition],
        now: float,
        *,
        owner: str | None = None,
        asked: float | None = None,
    ) -> None:
        """Record that a member owns these partitions in this generation, or owned them earlier in the generation.
        Raises `SafetyViolation` if they have another owner in the generation.

        `asked` is the time when the member first requested its assignment: by then it was a member of this
        generation.
        """
        owner = member if owner is None else owner
        if generation > self.generation:
            self.generation = generation
            self.rebalances += 1
            for commit in self._commits:
                if commit.operation.over is None and commit.generation < generation:
                    commit.operation.over = now
        mine = self._known.get((owner, generation))
        if mine is None or mine.member != member:
            self._left.discard(member)
            asked = now if asked is None else asked
            mine = _Known(member, asked if mine is None else mine.asked, now)
            self._known[owner, generation] = mine
        mine.heard = now
        for key in keys:
            other = self._owners.setdefault((generation, key), owner)
            if other == owner:
                continue
            theirs = self._known[other, generation]
            if self._may_end_before(theirs, now):
                self._begin_anew(generation, (owner, generation), mine)
                self._owners[generation, key] = owner
            elif mine.asked + self.session_seconds > min(theirs.heard, self._committed_at):
                # The opposite order is impossible, too: when this member's session could end at the earliest, the other
                # member already had its assignment, or the first commit existed.
                raise SafetyViolation(
                    f"{self.group}: {key} belongs to {other} and to {owner} in generation {generation}"
                )

    def _may_end_before(self, known: _Known, until: float) -> bool:
        """True if the group may have been deleted before `until`, with this member already gone."""
        stays = 0.0 if known.member in self._left else self.session_seconds
        return known.asked + stays <= min(until, self._committed_at)

    def _may_begin_anew(self, generation: int, now: float) -> bool:
        """True if the group may have been deleted by now, with all members of later generations gone."""
        return all(
            self._may_end_before(known, now)
            for (_, number), known in self._known.items()
            if number > generation
        )

    def _begin_anew(
        self, generation: int, place: tuple[str, int] | None = None, known: _Known | None = None
    ) -> None:
        self._owners.clear()
        self._known.clear()
        if place is not None and known is not None:
            self._known[place] = known
        self.generation = generation
        self.begun_anew += 1

    def leaves(self, member: str) -> None:
        """Record that a member asks to leave the group. From now on it may be removed at any time."""
        self._left.add(member)

    def gone(self, member: str) -> None:
        """Record that a member's process has died."""
        self._left.add(member)
        super().gone(member)

    def held_by(self, member: str) -> set[TopicPartition]:
        """Return the partitions that a member considers its own."""
        return {key for name, key in self._held if name == member}

    def seeks(self, member: str, key: TopicPartition, offset: int) -> None:
        """Record that a member has sought to this offset."""
        held = self._held[member, key]
        held.end_offset = max(held.end_offset, held.next_offset or 0)
        held.next_offset = offset

    # Records

    def _check_begin(self, member: str, told: Told, held: Ownership, now: float) -> None:
        key = told.partition
        possible = self._possible(key, held.since)
        if told.offset not in possible and key not in self.history.deleted_below:
            raise SafetyViolation(
                f"{self.group}: {member} begins {key} at {told.offset} at {now:.6f} s, which it has had since"
                f" {held.since:.6f} s; the group's commit is one of {sorted(possible)}"
            )

    def _possible(self, key: TopicPartition, at: float) -> set[int]:
        """Compute all offsets that the group may have committed, for a member that fetches them at time `at` or later."""
        commits = [each.operation for each in self._commits if str(key) in each.operation.offsets]
        certain = [
            each
            for each in commits
            if each.outcome == "ok" and each.completed is not None and each.completed < at
        ]
        latest_start = max((each.invoked for each in certain), default=-1.0)
        found = {
            each.offsets[str(key)]
            for each in commits
            if each.outcome != "fail"
            and (each.effective_until is None or each.effective_until >= latest_start)
        }
        return found if certain else found | {0}

    # Commits

    def commits(
        self, member: str, generation: int, offsets: Mapping[TopicPartition, int], now: float
    ) -> OpenCommit:
        """Record a commit that a member is about to send. Raises `SafetyViolation` if it goes beyond the member's
        records.
        """
        is_old = generation < self.generation
        may_be_anew = is_old and self._may_begin_anew(generation, now)
        late = is_old and not may_be_anew
        if not is_old:
            for key, offset in offsets.items():
                held = self._held.get((member, key))
                if held is None or held.next_offset is None:
                    continue
                end_offset = max(held.next_offset, held.end_offset)
                if offset > max(end_offset, self.history.deleted_below.get(key, 0)):
                    raise SafetyViolation(
                        f"{self.group}: {member} commits {offset} of {key}, and was handed up to {end_offset}"
                    )
        commit = OpenCommit(
            self.history.commit(member, self.group, offsets, now), generation, late, may_be_anew
        )
        if late:
            commit.operation.outcome = "fail"
        else:
            self._commits.append(commit)
        return commit

    def committed(self, commit: OpenCommit, now: float, *, times: int = 1) -> None:
        """Check an acknowledged commit that was sent `times` times. Raises `SafetyViolation`."""
        if commit.late:
            raise SafetyViolation(
                f"{self.group}: a commit of generation {commit.generation} was taken at {now:.6f} s, asked for at"
                f" {commit.operation.invoked:.6f} s, after generation {self.generation} had begun"
            )
        if commit.may_be_anew and commit.generation < self.generation:
            self._begin_anew(commit.generation)
        self._committed_at = min(self._committed_at, now)
        commit.operation.completed, commit.operation.outcome = now, "ok"
        commit.operation.repeated = times > 1

    def refused(self, commit: OpenCommit, now: float, error: str, *, certain: bool) -> None:
        """Record a failed commit. `certain` is True if the commit was sent once, and its answer says that it was
        rejected.
        """
        commit.operation.completed, commit.operation.error = now, error
        self.refused_late += commit.late
        if certain:
            commit.operation.outcome = "fail"

    # At the end

    def check_commits(self, found: Mapping[TopicPartition, int | None], now: float) -> None:
        """Check the group's committed offsets after all members have left. Raises `SafetyViolation`."""
        for key, offset in found.items():
            possible = self._possible(key, now)
            if offset not in possible and not (offset is None and 0 in possible):
                raise SafetyViolation(
                    f"{self.group}: {offset} of {key} is committed; it can only be one of {sorted(possible)}"
                )
