"""ConsumerGroupHeartbeat (KIP-848): members join, move towards their target, leave, are fenced; limits of size
and memory; the downgrade. PURE.

Theory of operation
-------------------
A member sends no other requests than heartbeats. A heartbeat reports what has changed at the member since the
last heartbeat. The answer reports what has changed in the member's assignment. One decision takes four steps,
each of which may write records:

1. The coordinator finds or creates the member, and updates its profile.
2. If the set of topics that the group reads has changed, or one of these topics has changed, the group's epoch
   rises.
3. If the group's epoch is ahead of the target's epoch, a new target is computed. At least
   `group.consumer.assignment.interval.ms` must have passed since the last target was computed.
4. The member goes one step towards its target (`reconciliation`).

A heartbeat without changes costs a few look-ups. Between its heartbeats, a member changes only by being
fenced: when its session ends, or when it revokes partitions too slowly.

A static member (KIP-345) may leave for a while. It gets the epoch -2, and keeps its place until its session
ends. The next member with this instance id gets its target and its partitions.

Every check is in Kafka's order, since clients see which error comes first. The error messages are Kafka's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import attrs

from odradek.data_plane.coordination.asking import Ask, Deadlines
from odradek.data_plane.groups.classic_group import GroupPhase
from odradek.data_plane.groups.consumers.consumer_group import (
    JOINING_EPOCH,
    LEAVING_EPOCH,
    STATIC_LEAVING_EPOCH,
    WEIGHT_OF_PATTERN,
    ConsumerGroup,
    Epochs,
    Member,
    MemberState,
    Profile,
    weight_of_member,
    weight_of_topics,
)
from odradek.data_plane.groups.consumers.consumer_records import (
    current_record,
    epoch_record,
    group_tombstones,
    member_record,
    member_tombstones,
    pattern_record,
    pattern_tombstone,
    topics_tombstone,
    upgraded_records,
)
from odradek.data_plane.groups.consumers.finding_members import (
    dynamic_member,
    known_member,
    known_static_member,
    static_member,
)
from odradek.data_plane.groups.consumers.group_change import GroupChange
from odradek.data_plane.groups.consumers.group_times import (
    assignment_interval_ms,
    heartbeat_interval_ms,
    session_timeout_ms,
)
from odradek.data_plane.groups.consumers.member_timers import MemberTimers
from odradek.data_plane.groups.consumers.migration import downgraded as downgrade
from odradek.data_plane.groups.consumers.migration import may_downgrade
from odradek.data_plane.groups.consumers.migration import upgraded as upgrade
from odradek.data_plane.groups.consumers.patterns import (
    FindTopics,
    Patterns,
    PatternStatus,
    TopicsFound,
    check_new_pattern,
)
from odradek.data_plane.groups.consumers.reconciliation import OwnedPartitions, reconcile
from odradek.data_plane.groups.consumers.target_assignment import may_compute, target_records, topic_ids
from odradek.data_plane.groups.consumers.target_runs import TargetPart, TargetRun, TargetRuns, is_small
from odradek.data_plane.groups.consumers.topic_hashes import HashTopics, TopicHashes
from odradek.data_plane.groups.group_settings import GroupSettings
from odradek.data_plane.groups.membership import Membership
from odradek.data_plane.groups.records import group_metadata_record, group_metadata_tombstone
from odradek.data_plane.groups.turn import Turn
from odradek.metadata_quorum.image.metadata_image import MetadataImage
from odradek.named_states import reached
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from odradek.wire.uuid_text import uuid_to_text

__all__ = ["ConsumerMembership", "heartbeat_refused"]

WorkerWork: TypeAlias = FindTopics | TargetRun
"""Work for a worker thread. Its `requests()` returns requests in the order in which the coordinator must
decide them.
"""
MARKS_MAX = 10_000
"""The most pairs of a group and a changed topic that are compared for one change of the metadata. If there
are more pairs, all groups count as affected, without a comparison.
"""


def heartbeat_refused(error: KafkaError) -> ConsumerGroupHeartbeatResponse:
    """Build the response to a refused heartbeat, with the error's code and message."""
    return ConsumerGroupHeartbeatResponse(error_code=error.code, error_message=error.message)


class ConsumerMembership:
    """The members of one coordinator's consumer groups, with the decisions on their heartbeats."""

    def __init__(
        self,
        settings: GroupSettings,
        deadlines: Deadlines,
        image: Callable[[], MetadataImage],
        hashes: TopicHashes,
        classic: Membership,
    ) -> None:
        self._settings = settings
        self._newest_image = image
        self.hashes = hashes
        self._classic = classic
        self.timers = MemberTimers(deadlines, self._fence_by_timer)
        self._patterns = Patterns(settings.consumer_regex_refresh_interval_ms)
        self._targets = TargetRuns()
        self._checked: set[str] = set()
        """Groups whose epoch already reflects all changes of their topics. For any other group, the next
        heartbeat compares the hash of the topics. This set is soft state.
        """

    @property
    def image(self) -> MetadataImage:
        """The newest metadata image: its topics, and the configuration of groups."""
        return self._newest_image()

    def settings_changed(self, settings: GroupSettings) -> None:
        """Apply a change of the broker's configuration."""
        self._settings = settings

    def restore(self, turn: Turn) -> None:
        """Prepare the soft state of a new coordinator. The timers for sessions and for revoking partitions
        start now.
        """
        self._patterns.topics_created(self.image.offset)
        for group_id in sorted(turn.state.consumers):
            self.begin_anew(turn, group_id)

    def begin_anew(self, turn: Turn, group_id: str) -> None:
        """Reset the soft state of one group. Its members' sessions start again, the running computation of its
        target is cancelled, and the hash of its topics will be compared again.
        """
        self._checked.discard(group_id)
        self._targets.cancel(group_id)
        group = turn.state.consumers.get(group_id)
        if group is None:
            return
        timeout_ms = session_timeout_ms(self._settings, self.image, group_id)
        for member_id in sorted(group.members):
            self.timers.renew_session(turn, group_id, member_id, timeout_ms)
            self._watch_revocation(turn, group_id, group.members[member_id])

    def topics_changed(self, groups: Sequence[ConsumerGroup], topics: Sequence[str]) -> None:
        """Mark the groups that read one of these topics. Then the next heartbeat of each such group compares
        the hash of the group's topics.
        """
        if len(groups) * len(topics) > MARKS_MAX:
            self._checked.clear()
            return
        for group in groups:
            if any(group.is_subscribed_to(topic) for topic in topics):
                self._checked.discard(group.group_id)

    def unhashed(
        self, group: ConsumerGroup | None, request: ConsumerGroupHeartbeatRequest
    ) -> HashTopics | None:
        """Find large topics of a group that a worker should hash before this heartbeat is decided; None if
        there are none.

        `group` is the group that the request names. It is None if this group does not exist yet.
        """
        names = request.subscribed_topic_names
        if names is None and request.group_id in self._checked:
            return None
        topics = [*(names or ()), *(() if group is None else group.subscribed_topics())]
        return self.hashes.unhashed(dict.fromkeys(topics), self.image)

    @property
    def member_count(self) -> int:
        return len(self.timers)

    # -- heartbeats -----------------------------------------------------------------------------------------------

    def heartbeat(self, turn: Turn, ask: Ask) -> None:
        request: ConsumerGroupHeartbeatRequest = ask.request
        try:
            if request.member_epoch in (LEAVING_EPOCH, STATIC_LEAVING_EPOCH):
                response = self._leave(turn, request)
            else:
                response = self._beat(turn, ask, request)
        except KafkaError as error:
            response = heartbeat_refused(error)
        turn.answer(ask.reply, response)

    def _beat(
        self, turn: Turn, ask: Ask, request: ConsumerGroupHeartbeatRequest
    ) -> ConsumerGroupHeartbeatResponse:
        joins = request.member_epoch == JOINING_EPOCH
        change = self._find(turn, request.group_id, joins)
        self.check_room(change.group, request.member_id)
        member_id = request.member_id or uuid_to_text(turn.new_uuid())
        if request.instance_id is None:
            before = dynamic_member(change.group, member_id, joins, request)
        else:
            before = static_member(change, member_id, request.instance_id, joins, request)
        profile = _profile(before.profile, ask, request)
        self.check_memory(turn, change.group, before, profile)
        member = self.advance(turn, change, before, profile, request.topic_partitions, ask=ask)
        self.decided(turn, change)
        if change.classic is not None:
            self._take_over_classic(turn, change)
        timeout_ms = session_timeout_ms(self._settings, self.image, request.group_id)
        self.timers.renew_session(turn, request.group_id, member_id, timeout_ms)
        response = ConsumerGroupHeartbeatResponse(
            0,
            ErrorCode.NONE,
            None,
            member_id,
            member.epoch,
            heartbeat_interval_ms(self._settings, self.image, request.group_id),
        )
        if joins or _is_full(request) or member.assigned != before.assigned:
            response.assignment = _assignment(member.assigned)
        return response

    def _find(self, turn: Turn, group_id: str, may_create: bool) -> GroupChange:
        """Find the group.

        If `may_create` is set, create the group if needed, even in place of a classic group of that name.
        Raises GROUP_ID_NOT_FOUND.
        """
        group = turn.state.consumers.get(group_id)
        if group is not None:
            return GroupChange(group)
        classic = self._classic.find(turn, group_id)
        if not may_create:
            fault = f"Consumer group {group_id} not found."
            if classic is not None:
                fault = f"Group {group_id} is not a consumer group."
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, fault)
        change = GroupChange(ConsumerGroup(group_id))
        if classic is None:
            return change
        change.classic = classic
        change.add([group_metadata_tombstone(group_id)])
        if classic.phase is not GroupPhase.EMPTY:
            upgraded, members = upgrade(classic, self._settings, self.image, turn.wall_ms)
            reached("consumer_groups.group_upgraded")
            topics = sorted({name for each in members for name in each.profile.topics})
            topics_hash = self.hashes.of_group(topics, self.image)
            change.add(upgraded_records(upgraded, members, topics_hash))
        return change

    def _take_over_classic(self, turn: Turn, change: GroupChange) -> None:
        """Continue the sessions of the members that came with an upgraded classic group, and remove the
        classic group.
        """
        group_id = change.group.group_id
        ends_ms = self._classic.hand_over(turn, group_id)
        for member_id in sorted(change.group.members):
            if change.group.members[member_id].profile.classic is not None:
                self.timers.resume_session(group_id, member_id, ends_ms[member_id])

    def check_room(self, group: ConsumerGroup, member_id: str) -> None:
        """Raise GROUP_MAX_SIZE_REACHED if the group is full and this member is new."""
        size_max = self._settings.consumer_group_size_max
        if len(group.members) >= size_max and member_id not in group.members:
            reached("consumer_groups.full_group_refused")
            text = f"The consumer group has reached its maximum capacity of {size_max} members."
            raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, text)

    def check_memory(self, turn: Turn, group: ConsumerGroup, before: Member, profile: Profile) -> None:
        """Refuse a new member, or a member's new profile, if it needs more memory than this partition has
        left for members.

        Raises GROUP_MAX_SIZE_REACHED. A member that needs no more memory than before is always accepted.
        """
        if profile is before.profile and before.member_id in group.members:
            return
        weight = weight_of_member(before.member_id, profile)
        weight += WEIGHT_OF_PATTERN * (bool(profile.pattern) and profile.pattern not in group.pattern_counts)
        if before.member_id in group.members:
            weight -= weight_of_member(before.member_id, before.profile)
        weight_max = self._settings.consumer_members_per_partition_max
        if weight > 0 and turn.state.consumer_weight + weight > weight_max:
            reached("consumer_groups.full_partition_refused")
            text = (
                f"The consumer groups of this coordinator have reached its maximum of {weight_max} members."
            )
            raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, text)

    def advance(
        self,
        turn: Turn,
        change: GroupChange,
        before: Member,
        profile: Profile,
        owned: OwnedPartitions,
        *,
        ask: Ask | None = None,
        may_assign: bool = True,
    ) -> Member:
        """Take the last three of the four steps of a heartbeat. The caller has taken the first step, which
        finds or creates the member. Returns the member after these steps.

        `ask` is the member's request. The rights of its client limit the topics that a pattern may match. If
        `may_assign` is false, no target is computed, because the group is about to become a classic group.
        """
        image = self.image
        member, has_new_topics = self._update_profile(turn, change, before, profile, ask)
        group = change.group
        if group.target_epoch < group.epoch:
            if not may_assign:
                return member
            interval_ms = assignment_interval_ms(self._settings, image, group.group_id)
            if may_compute(group, interval_ms, turn.wall_ms):
                self._compute_target(turn, change)
        if member.epoch == JOINING_EPOCH or not self._targets.is_writing(group.group_id):
            member = self._reconcile(turn, change, member, has_new_topics, owned)
        self._checked.add(group.group_id)
        return member

    def decided(self, turn: Turn, change: GroupChange) -> None:
        """Add the records of a successful decision to the turn. If the decision needs a target that a worker
        must compute, request it.
        """
        turn.records += change.records
        if change.wants_target:
            self._targets.begin(change.group, self._settings.consumer_assignors, self.image)

    def _compute_target(self, turn: Turn, change: GroupChange) -> None:
        """Compute the target of a small group now. For a large group, request that a worker computes the
        target.
        """
        group = change.group
        if not is_small(group, self.image):
            change.wants_target = True
            return
        # Cancel a run that began when the group was still large. Its target would be out of date.
        self._targets.cancel(group.group_id)
        offered = self._settings.consumer_assignors
        change.add(target_records(group, offered, self.image, turn.wall_ms))

    def _update_profile(
        self,
        turn: Turn,
        change: GroupChange,
        before: Member,
        profile: Profile,
        ask: Ask | None,
    ) -> tuple[Member, bool]:
        """Store the member's new profile. Raise the group's epoch if the topics that the group reads have
        changed.

        Returns the member, and True if its own subscription has changed.
        """
        known = before.profile
        member = before
        if profile is not known and profile != known:
            member = attrs.evolve(before, profile=profile)
            change.add([member_record(change.group.group_id, member)])
        if profile.pattern != known.pattern:
            check_new_pattern(change.group, profile.pattern, None if ask is None else ask.check_pattern)
        may_see = None if ask is None else ask.may_see
        status = self._patterns.update(
            change, known.pattern, profile.pattern, self.image, may_see, turn.wall_ms
        )
        names_others = profile.topics != known.topics
        # While a new pattern's topics are unknown, the epoch stays. It rises when the worker has found them.
        self._raise_epoch(change, names_others or status is PatternStatus.RESOLVED)
        return member, names_others or status is not PatternStatus.UNCHANGED

    def _raise_epoch(self, change: GroupChange, is_needed: bool, anew: bool = False) -> None:
        """Raise the group's epoch if `is_needed`, or if the hash of its topics has changed since the last
        rise. The hash is compared only if the group's topics are unchecked since their last change, or if
        `anew` is true.
        """
        group = change.group
        group_id = group.group_id
        if not is_needed and not anew and group_id in self._checked:
            return
        topics_hash = self.hashes.of_group(group.subscribed_topics(), self.image)
        if is_needed or topics_hash != group.metadata_hash:
            change.add([epoch_record(group_id, group.epoch + 1, topics_hash)])
        if group.has_topic_record:
            change.add([topics_tombstone(group_id)])

    def _reconcile(
        self,
        turn: Turn,
        change: GroupChange,
        member: Member,
        has_new_topics: bool,
        owned: OwnedPartitions,
    ) -> Member:
        """Move the member one step towards its target. Returns the member after the step."""
        group = change.group
        if not has_new_topics and member.is_reconciled_to(group.target_epoch):
            return member
        owners = group.owners
        after = reconcile(
            member,
            group.target_epoch,
            group.target_of(member.member_id),
            topic_ids(group, member.profile, self.image),
            has_new_topics=has_new_topics,
            is_free=lambda topic_id, partition: (topic_id, partition) not in owners,
            owned=owned,
        )
        if after != member:
            change.add([current_record(group.group_id, after)])
            self._watch_revocation(turn, group.group_id, after)
        return after

    def _watch_revocation(self, turn: Turn, group_id: str, member: Member) -> None:
        if member.profile.classic is None and member.state is MemberState.UNREVOKED_PARTITIONS:
            timeout_ms = member.profile.rebalance_timeout_ms
            self.timers.watch_revocation(turn, group_id, member.member_id, member.epoch, timeout_ms)
        else:
            self.timers.end_revocation(group_id, member.member_id)

    # -- work for worker threads -----------------------------------------------------------------------------------------

    def take_wanted(self) -> Sequence[WorkerWork]:
        """Return the work for worker threads that decisions have requested since the last call. When a piece
        of work has ended, the caller passes it to `work_ended`.
        """
        return [*self._patterns.take_wanted(), *self._targets.take_wanted()]

    def work_ended(self, work: WorkerWork) -> None:
        """Release a piece of work, after all its requests were decided or refused, or after it failed."""
        if isinstance(work, FindTopics):
            self._patterns.ended(work.group_id)
        else:
            self._targets.ended(work)

    def take_target_part(self, turn: Turn, ask: Ask) -> None:
        """Write one part of a target, which a worker has computed, to the log."""
        part: TargetPart = ask.request
        group = turn.state.consumers.get(part.run.group_id)
        turn.records += self._targets.take_part(group, part, turn.wall_ms)

    def topics_created(self, offset: int) -> None:
        """Record that the metadata at this offset has new topics, so that the topics of patterns are searched
        again.
        """
        self._patterns.topics_created(offset)

    def take_found_topics(self, turn: Turn, ask: Ask) -> None:
        """Write to the log which topics a worker has found for a group's patterns. Raise the group's epoch if
        these topics have changed.

        If a pattern's topics would take more memory than this partition has for members, the pattern matches
        no topic.
        """
        request: TopicsFound = ask.request
        self._patterns.ended(request.group_id)
        group = turn.state.consumers.get(request.group_id)
        if group is None:
            return
        change = GroupChange(group)
        has_others = False
        weight = turn.state.consumer_weight
        for pattern in sorted(request.found):
            if pattern not in group.pattern_counts:
                continue
            known, found = group.resolved.get(pattern), request.found[pattern]
            weight += weight_of_topics(found) - (0 if known is None else weight_of_topics(known))
            if weight > self._settings.consumer_members_per_partition_max:
                reached("consumer_groups.found_topics_dropped")
                weight -= weight_of_topics(found)
                found = attrs.evolve(found, topics=frozenset())
            has_others = has_others or found.topics != (frozenset() if known is None else known.topics)
            change.add([pattern_record(group.group_id, pattern, found)])
        if change.records:
            self._raise_epoch(change, has_others, anew=True)
            self._checked.add(group.group_id)
        turn.records += change.records

    # -- leaving --------------------------------------------------------------------------------------------------

    def _leave(self, turn: Turn, request: ConsumerGroupHeartbeatRequest) -> ConsumerGroupHeartbeatResponse:
        group = turn.state.consumers.get(request.group_id)
        if group is None:
            is_there = turn.state.has_group(request.group_id)
            fault = "is not a consumer group" if is_there else "not found"
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {request.group_id} {fault}.")
        member_id, epoch = request.member_id, request.member_epoch
        if request.instance_id is None:
            member = known_member(group, member_id)
        else:
            member = known_static_member(group, member_id, request.instance_id)
        if request.instance_id is not None and epoch == STATIC_LEAVING_EPOCH:
            reached("consumer_groups.static_member_left_for_a_while")
            left = attrs.evolve(
                member, epoch=STATIC_LEAVING_EPOCH, assigned=_since_zero(member.assigned), revoking={}
            )
            turn.records.append(current_record(group.group_id, left))
        else:
            self.fence(turn, group, [member.member_id])
        return ConsumerGroupHeartbeatResponse(member_id=member_id, member_epoch=epoch)

    def fence(self, turn: Turn, group: ConsumerGroup, member_ids: Sequence[str]) -> None:
        """Remove these members.

        The group's epoch rises, so that their partitions are assigned again. If only members of the classic
        protocol remain, the group becomes classic.
        """
        if not member_ids:
            return
        change = GroupChange(group)
        becomes_classic = may_downgrade(group, member_ids, self._settings)
        for member_id in member_ids:
            change.add(member_tombstones(group.group_id, member_id))
            self.timers.forget(group.group_id, member_id)
        if becomes_classic:
            turn.records += change.records
            return self.downgrade(turn, change.group, rebalances=True)
        patterns = dict.fromkeys(group.members[each].profile.pattern for each in member_ids)
        change.add(
            pattern_tombstone(group.group_id, each)
            for each in sorted(patterns)
            if each in group.resolved and each not in change.group.pattern_counts
        )
        topics_hash = self.hashes.of_group(change.group.subscribed_topics(), self.image)
        change.add([epoch_record(group.group_id, group.epoch + 1, topics_hash)])
        turn.records += change.records

    def downgrade(self, turn: Turn, group: ConsumerGroup, *, rebalances: bool) -> None:
        """Turn a consumer group into a classic group; all its members speak the classic protocol."""
        reached("consumer_groups.group_downgraded")
        classic = downgrade(group, self.image, turn.wall_ms)
        turn.records += [*group_tombstones(group), group_metadata_record(group.group_id, classic.stored())]
        ends_ms = {each: self.timers.session_ends_ms(group.group_id, each) for each in group.members}
        for member_id in group.members:
            self.timers.forget(group.group_id, member_id)
        self._checked.discard(group.group_id)
        self._targets.cancel(group.group_id)
        self._classic.take_over(turn, classic, ends_ms, rebalances=rebalances)

    def joined_as_classic(self, turn: Turn, group_id: str, member: Member) -> None:
        """Start the session of a member that has joined by the classic protocol, and the time limit for its
        SyncGroup.
        """
        assert member.profile.classic is not None, "a member of the consumer protocol has joined by JoinGroup"
        timeout_ms = member.profile.classic.session_timeout_ms
        self.timers.renew_session(turn, group_id, member.member_id, timeout_ms)
        self.timers.end_join(group_id, member.member_id)
        self.timers.watch_sync(turn, group_id, member)

    def _fence_by_timer(self, turn: Turn, group_id: str, member_id: str) -> None:
        group = turn.state.consumers.get(group_id)
        if group is not None and member_id in group.members:
            self.fence(turn, group, [member_id])

    def delete(self, turn: Turn, group: ConsumerGroup) -> None:
        """Write the tombstones of a group without members, and forget its soft state."""
        assert not group.members, "a group with members was deleted"
        turn.records += group_tombstones(group)
        self._checked.discard(group.group_id)
        self._targets.cancel(group.group_id)


def _profile(before: Profile, ask: Ask, request: ConsumerGroupHeartbeatRequest) -> Profile:
    """Build the member's new profile from the old one and the request.

    Returns the same object if the request changes nothing.
    """
    names, timeout_ms = request.subscribed_topic_names, request.rebalance_timeout_ms
    if (
        names is None
        and request.subscribed_topic_regex is None
        and timeout_ms == -1
        and request.rack_id is None
        and request.server_assignor is None
        and request.instance_id in (None, before.instance_id)
        and before.classic is None
        and before.client_id == ask.client_id
        and before.client_host == ask.client_host
    ):
        return before
    return Profile(
        before.instance_id if request.instance_id is None else request.instance_id,
        before.rack_id if request.rack_id is None else request.rack_id,
        ask.client_id,
        ask.client_host,
        before.topics if names is None else tuple(sorted(dict.fromkeys(names))),
        before.pattern if request.subscribed_topic_regex is None else request.subscribed_topic_regex,
        before.rebalance_timeout_ms if timeout_ms == -1 else timeout_ms,
        before.assignor if request.server_assignor is None else request.server_assignor,
        None,
    )


def _is_full(request: ConsumerGroupHeartbeatRequest) -> bool:
    """True if the request names all fields of the member.

    A member sends such a request when it joins, or when an earlier answer did not reach it.
    """
    return (
        request.rebalance_timeout_ms != -1
        and (request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None)
        and request.topic_partitions is not None
    )


def _assignment(assigned: Epochs) -> Assignment:
    return Assignment(
        [TopicPartitions(topic_id, sorted(assigned[topic_id])) for topic_id in sorted(assigned)]
    )


def _since_zero(assigned: Epochs) -> Epochs:
    """Return these partitions with assignment epoch 0, for a static member that returns. Then commits by this
    member are accepted for these partitions, whatever its epoch is.
    """
    return {topic_id: dict.fromkeys(partitions, 0) for topic_id, partitions in assigned.items()}
