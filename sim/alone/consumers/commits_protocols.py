"""The two group protocols of the plain model in `commits_group.py`: joins and assignments of the classic protocol,
heartbeats of the new one (KIP-848). PURE.

Classic: another member leads the group. A cooperative client keeps the partitions that it lists in its JoinGroup. A
partition that an assignment lacks is given to another member in a later generation, after the client has given it up.

New: a partition is free when the client reports, knowing that it has to revoke the partition, that it does not own it.
The member epoch then rises.
"""

from __future__ import annotations

from random import Random

from odradek.client.consumer.assignors import decode_subscription, encode_assignment
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from odradek.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from odradek.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse
from odradek.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from odradek.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from odradek.wire.topic_partition import TopicPartition
from sim.alone.consumers.commits_group import KEYS, TOPIC, TOPIC_ID, PlainGroup
from sim.alone.consumers.loose_core import Sent

__all__ = ["ClassicGroup", "NewGroup"]

BEAT_MS = 300
_STABLE, _PREPARING, _COMPLETING = "stable", "preparing", "completing"


class ClassicGroup(PlainGroup):
    """The model of a group with the classic protocol."""

    def __init__(self, random: Random, trouble_chance: float, assignor: str) -> None:
        super().__init__(random, trouble_chance)
        self._assignor = assignor
        self._phase = _STABLE
        self._generation = 1
        self._member_generation = -1
        self._ids = 0
        self._join: Sent | None = None
        self._sync: Sent | None = None
        self._share: list[TopicPartition] = []
        self._handlers |= {
            JoinGroupRequest: self._take_join,
            SyncGroupRequest: self._take_sync,
            HeartbeatRequest: self._take_beat,
            LeaveGroupRequest: self._take_leave,
        }
        for key in KEYS:
            self.grant(key, self.theirs)

    def _take_join(self, sent: Sent) -> None:
        request: JoinGroupRequest = sent.call.request
        if request.member_id and request.member_id != self.member:
            sent.answer = JoinGroupResponse(error_code=int(ErrorCode.UNKNOWN_MEMBER_ID))
            return
        if not request.member_id:
            self.release(self.ours)
            self._ids += 1
            self.member = f"m{self._ids}"
            self._member_generation = -1
        claimed = decode_subscription("", None, request.protocols[0].metadata).owned
        self.release([key for key in self.ours if key not in claimed])
        self._phase = _PREPARING
        self._join, self._sync = sent, None

    def _take_sync(self, sent: Sent) -> None:
        request: SyncGroupRequest = sent.call.request
        code = self._known(request.member_id, request.generation_id)
        if code is ErrorCode.NONE and self._phase is _PREPARING:
            code = ErrorCode.REBALANCE_IN_PROGRESS
        if code is not ErrorCode.NONE:
            sent.answer = SyncGroupResponse(error_code=int(code))
            return
        self._sync = sent
        if self._phase is _STABLE:
            self._answer_sync()

    def _answer_sync(self) -> None:
        if self._sync is not None:
            self._sync.answer = SyncGroupResponse(assignment=encode_assignment(self._share))
            self._sync.ownerships = {key: self.ownership[key] for key in self._share}
            self._sync = None

    def _take_beat(self, sent: Sent) -> None:
        request: HeartbeatRequest = sent.call.request
        code = self._known(request.member_id, request.generation_id)
        if code is ErrorCode.NONE and self._phase is _PREPARING:
            code = ErrorCode.REBALANCE_IN_PROGRESS
        sent.answer = HeartbeatResponse(error_code=int(code))

    def _take_leave(self, sent: Sent) -> None:
        request: LeaveGroupRequest = sent.call.request
        if request.members[0].member_id == self.member:
            self.throw_out()
        sent.answer = LeaveGroupResponse()

    def _known(self, member_id: str, generation: int) -> ErrorCode:
        if not member_id or member_id != self.member:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE if generation == self._member_generation else ErrorCode.ILLEGAL_GENERATION

    def _verdict(self, member_id: str, generation: int) -> ErrorCode:
        code = self._known(member_id, generation)
        if code is ErrorCode.NONE and self._phase is _COMPLETING:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return code

    def throw_out(self) -> None:
        """Remove the client's member. The others rebalance."""
        super().throw_out()
        self._join = self._sync = None
        self.rebalance()

    def rebalance(self) -> None:
        """Begin a rebalance, because another member joins or leaves."""
        self._phase = _PREPARING
        self._sync = None

    def advance(self) -> None:
        """Begin the next generation with the members that have joined, or assign the partitions in it."""
        if self._phase is _PREPARING:
            self._begin_generation()
        elif self._phase is _COMPLETING:
            self._assign()

    def _begin_generation(self) -> None:
        if self._join is None and self.member:
            super().throw_out()
        self._generation += 1
        self._phase = _COMPLETING
        if self._join is not None:
            self._member_generation = self._generation
            self._join.answer = JoinGroupResponse(
                generation_id=self._generation,
                protocol_name=self._assignor,
                leader="other",
                member_id=self.member,
            )
            self._join = None

    def _assign(self) -> None:
        self.theirs = {key: None for key in self.theirs if self.random.random() < 0.6}
        self._share = [key for key in self.ours if self.random.random() < 0.7]
        for key in KEYS:
            if key not in self.ours and key not in self.theirs:
                if self.member and self.random.random() < 0.6:
                    self.grant(key, self.ours)
                    self._share.append(key)
                else:
                    self.grant(key, self.theirs)
        self._phase = _STABLE
        self._answer_sync()

    @property
    def awaits_client(self) -> bool:
        """True if the next generation would begin without the client, which is a member."""
        return self._phase is _PREPARING and bool(self.member) and self._join is None

    def is_settled(self) -> bool:
        """True if no rebalance is under way, and the client is a member."""
        return self._phase is _STABLE and bool(self.member) and sorted(self._share) == sorted(self.ours)


class NewGroup(PlainGroup):
    """The model of a group with the new protocol (KIP-848)."""

    def __init__(self, random: Random, trouble_chance: float) -> None:
        super().__init__(random, trouble_chance)
        self._group_epoch = 1
        self._epoch = -1
        self._former_epoch = -1
        self._target: dict[TopicPartition, None] = {}
        self._revoking: dict[TopicPartition, None] = {}
        self._revoking_since: Sent | None = None
        """The request whose answer makes the client revoke them."""
        self._assigned: list[TopicPartition] | None = None
        """The assignment in the last answer."""
        self._handlers[ConsumerGroupHeartbeatRequest] = self._take_beat
        for key in KEYS:
            self.grant(key, self.theirs)

    def _take_beat(self, sent: Sent) -> None:
        request: ConsumerGroupHeartbeatRequest = sent.call.request
        code = ErrorCode.NONE
        if request.member_epoch == 0:
            self._admit(request.member_id)
        elif request.member_id != self.member:
            code = ErrorCode.UNKNOWN_MEMBER_ID
        elif request.member_epoch < 0:
            self.throw_out()
        elif request.member_epoch not in (self._epoch, self._former_epoch):
            code = ErrorCode.FENCED_MEMBER_EPOCH
        if code is not ErrorCode.NONE or request.member_epoch < 0:
            sent.answer = ConsumerGroupHeartbeatResponse(error_code=int(code), member_epoch=-1)
            return
        self._reconcile(request, sent)
        assigned = [key for key in self.ours if key not in self._revoking]
        answer = ConsumerGroupHeartbeatResponse(
            member_id=self.member, member_epoch=self._epoch, heartbeat_interval_ms=BEAT_MS
        )
        if assigned != self._assigned or request.topic_partitions is not None or request.member_epoch == 0:
            self._assigned = assigned
            answer.assignment = Assignment([TopicPartitions(TOPIC_ID, [key.partition for key in assigned])])
            sent.ownerships = {key: self.ownership[key] for key in assigned}
        sent.answer = answer

    def _admit(self, member_id: str) -> None:
        self.release(self.ours)
        self._revoking = {}
        self.member = member_id
        self.rebalance()
        self._epoch, self._former_epoch = self._group_epoch, -1

    def _reconcile(self, request: ConsumerGroupHeartbeatRequest, sent: Sent) -> None:
        """Release the partitions that the client has revoked, and move on towards the target."""
        if self._revoking and self._revoking_since is not None and self._revoking_since.delivered is None:
            self._revoking_since = sent  # the earlier answer was lost
        if self._revoking and request.topic_partitions is not None:
            owned = [
                TopicPartition(TOPIC, index)
                for topic in request.topic_partitions
                for index in topic.partitions
            ]
            if self._knows_revocation(sent) and not any(key in self._revoking for key in owned):
                self.release(self._revoking)
                self._revoking = {}
                self._advance_epoch(self._epoch + 1)
        if not self._revoking:
            self._revoking = {key: None for key in self.ours if key not in self._target}
            if self._revoking:
                self._revoking_since = sent
            elif self._epoch < self._group_epoch:
                self._advance_epoch(self._group_epoch)
        if not self._revoking:
            for key in self._target:
                if key not in self.ours and key not in self.theirs:
                    self.grant(key, self.ours)

    def _knows_revocation(self, sent: Sent) -> bool:
        """True if the client had got the answer with the revocation, or a later answer, when it sent this request."""
        since = self._revoking_since
        return since is not None and since.delivered is not None and sent.seen >= since.delivered

    def _advance_epoch(self, epoch: int) -> None:
        self._former_epoch, self._epoch = self._epoch, epoch

    def _verdict(self, member_id: str, generation: int) -> ErrorCode:
        if not member_id or member_id != self.member:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE if generation == self._epoch else ErrorCode.STALE_MEMBER_EPOCH

    def throw_out(self) -> None:
        """Remove the client's member. Its partitions are free at once."""
        super().throw_out()
        self._revoking = {}
        self.rebalance()

    def rebalance(self) -> None:
        """Compute another target assignment."""
        self._group_epoch += 1
        self._target = {key: None for key in KEYS if self.member and self.random.random() < 0.6}

    def advance(self) -> None:
        """Let the other members give up the client's partitions, and get the free ones."""
        for key in KEYS:
            if key in self._target:
                self.theirs.pop(key, None)
            elif key not in self.ours and key not in self.theirs:
                self.grant(key, self.theirs)

    def is_settled(self) -> bool:
        """True if the client is a member and has its target."""
        return bool(self.member) and not self._revoking and sorted(self._target) == sorted(self.ours)
