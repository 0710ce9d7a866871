"""One member by the new protocol (KIP-848): its states, what its heartbeats report, and what an answer or an
error means. PURE.

Theory of operation
-------------------
The coordinator assigns partitions. The member learns its target assignment from the answers to its
heartbeats. It gives up the partitions that the target lacks, adopts the new ones, and reports the partitions
that it then has. The driver (`ConsumerMembership`) sends the heartbeats. When the reported partitions agree
with the target, the coordinator increases the member epoch.

| state | meaning | turn |
| --- | --- | --- |
| UNSUBSCRIBED | outside of the group: before a subscription, and after leaving | - |
| JOINING | a heartbeat with epoch 0 is due or under way | driver |
| RECONCILING | the application has yet to adopt the target; heartbeats go on | application, once the topics' names are known |
| ACKNOWLEDGING | the application has adopted a target; the next heartbeat reports it at once | driver |
| STABLE | heartbeats | driver |
| FENCED | the coordinator has another epoch for the member, or does not know it: its partitions are lost | application |
| FAILED | the coordinator refused the member for a reason that the application must know | application |
| STALE | the application has not polled for too long, so the member has left | application |
| LEAVING | a heartbeat with a leave epoch (-1 or -2) is under way | driver |

After FENCED, FAILED and STALE the application's listener is first called for the lost partitions. Then the member
joins again, under its old id, with epoch 0.

Rules
-----
* A heartbeat has the fields that changed since the last one. After an error or a missing answer, the next heartbeat
  has all fields.
* A heartbeat with all fields also reports the partitions of a target that is not adopted yet, and those that the
  application is adopting. It may have them before the coordinator reads the heartbeat.
* Partitions count as owned until the application has given them up. A target that arrives meanwhile is adopted
  afterwards.
* The coordinator may withdraw a target before it is adopted, so that the target is what the application has. The
  application adopts it nevertheless, because it may be busy with the earlier one. Then the member reports its
  partitions again: the coordinator waits for a report without the withdrawn ones.
* The driver ignores the answer to a heartbeat of an earlier `incarnation`.
* A target contains topic ids. The topics' names come from metadata, perhaps later than the target.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING

import attrs

from odradek.wire.errors import ErrorCode
from odradek.wire.topic_partition import TopicPartition

if TYPE_CHECKING:
    from odradek.wire.messages.consumer_group_heartbeat import (
        ConsumerGroupHeartbeatRequest,
        ConsumerGroupHeartbeatResponse,
        TopicPartitions,
    )

__all__ = ["Interest", "MemberMachine", "MemberState", "Verdict", "judged"]

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
LEAVE_STATIC_EPOCH = -2
"""The member epoch with which a static member leaves. The coordinator keeps the member's partitions until the
member returns.
"""


class MemberState(Enum):
    """The state of a member in a group of the new protocol. `_TRANSITIONS` lists the allowed changes."""

    UNSUBSCRIBED = "unsubscribed"
    JOINING = "joining"
    RECONCILING = "reconciling"
    ACKNOWLEDGING = "acknowledging"
    STABLE = "stable"
    FENCED = "fenced"
    FAILED = "failed"
    STALE = "stale"
    LEAVING = "leaving"


_S = MemberState
_LOST = (_S.FENCED, _S.FAILED, _S.STALE)
_BEATING = (_S.JOINING, _S.RECONCILING, _S.ACKNOWLEDGING, _S.STABLE)
_TRANSITIONS = frozenset(
    {
        (_S.UNSUBSCRIBED, _S.JOINING),
        *((state, _S.JOINING) for state in _LOST),
        *((state, _S.RECONCILING) for state in (_S.JOINING, _S.ACKNOWLEDGING, _S.STABLE)),
        (_S.RECONCILING, _S.ACKNOWLEDGING),
        (_S.ACKNOWLEDGING, _S.STABLE),
        *((state, lost) for state in _BEATING for lost in _LOST),
        *((state, _S.LEAVING) for state in _BEATING),
        *((state, _S.UNSUBSCRIBED) for state in MemberState),
    }
)


class Verdict(Enum):
    """The meaning of an error in the answer to a heartbeat."""

    RETRY = "the same heartbeat may succeed later"
    FENCED = "the coordinator has given the partitions to other members"
    REPORT = "the application must see the error; the membership continues"
    FAILED = "the application must see the error; the membership has ended"
    REPLACED = "another client has taken the place of this static member for good"


_VERDICTS = {
    ErrorCode.FENCED_MEMBER_EPOCH: Verdict.FENCED,
    ErrorCode.UNKNOWN_MEMBER_ID: Verdict.FENCED,
    ErrorCode.FENCED_INSTANCE_ID: Verdict.REPLACED,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: Verdict.REPORT,
}


def judged(code: ErrorCode) -> Verdict:
    """Return the verdict on an answer to a heartbeat, by its error code."""
    return _VERDICTS.get(code, Verdict.RETRY if code.retriable else Verdict.FAILED)


@attrs.frozen
class Interest:
    """The topics of a member's subscription: names, or a pattern that the coordinator matches."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None


@attrs.define
class _Sent:
    """The values of heartbeat fields that the coordinator has got from earlier heartbeats. A value None means
    that the next heartbeat must contain the field.
    """

    rebalance_timeout_ms: int | None = None
    interest: Interest | None = None
    assignor: str | None = None
    owned: dict[TopicPartition, bytes] | None = None


class MemberMachine:
    """The state of one group member. `new_id` makes a member id at the first join; later joins keep this id."""

    def __init__(
        self,
        group_id: str,
        new_id: Callable[[], str],
        *,
        rebalance_timeout_ms: int,
        instance_id: str | None = None,
        rack_id: str | None = None,
        assignor: str | None = None,
    ) -> None:
        self._group_id = group_id
        self._new_id = new_id
        self._rebalance_timeout_ms = rebalance_timeout_ms
        self._instance_id = instance_id
        self._rack_id = rack_id
        self._assignor = assignor
        self.state = _S.UNSUBSCRIBED
        self.member_id = ""
        self.epoch = -1
        """The member epoch; -1 outside of the group."""
        self.unbroken_since = -1
        """The member epoch with which the current stay in the group began."""
        self.incarnation = 0
        self.owned: dict[TopicPartition, bytes] | None = None
        """The partitions that the application has adopted, each with its topic id; None before the first target."""
        self.target: dict[bytes, tuple[int, ...]] = {}
        """The partitions that the coordinator has assigned: their numbers by topic id."""
        self._coming: dict[TopicPartition, bytes] = {}
        """The partitions that the application is adopting, each with its topic id."""
        self._had_pattern = False
        self._sent = _Sent()

    def _become(self, state: MemberState) -> None:
        if state is self.state:
            return
        if (self.state, state) not in _TRANSITIONS:
            raise AssertionError(
                f"a group member cannot go from the state {self.state.value} to {state.value}"
            )
        self.state = state

    # Joining and leaving

    @property
    def is_member(self) -> bool:
        """True if the consumer is a member of the group, according to the coordinator's last answers."""
        return self.epoch > 0

    @property
    def has_lost(self) -> bool:
        """True if the partitions are lost, and the application's listener has not been called for this loss
        yet.
        """
        return self.state in _LOST

    @property
    def beats(self) -> bool:
        """True if the member sends heartbeats in this state."""
        return self.state in _BEATING

    def join(self) -> None:
        """Start to join the group, for the first time or again. The next heartbeat has epoch 0 and all fields."""
        self.member_id = self.member_id or self._new_id()
        self._end(_S.JOINING)

    def lose(self, state: MemberState) -> None:
        """End the membership, with the new state FENCED, FAILED or STALE."""
        if state not in _LOST:
            raise AssertionError(f"partitions are not lost in the state {state.value}")
        self._end(state)

    def unsubscribe(self) -> None:
        """End the membership, with the new state UNSUBSCRIBED."""
        self._end(_S.UNSUBSCRIBED)

    def _end(self, state: MemberState) -> None:
        self._become(state)
        self.incarnation += 1
        self.epoch = -1
        self.owned = None
        self.target = {}
        self._coming = {}
        self._sent = _Sent()

    def leave(self) -> ConsumerGroupHeartbeatRequest | None:
        """Start to leave. Return the heartbeat that leaves the group; None if the consumer is not a member."""
        if self.state not in _BEATING:
            self._end(_S.UNSUBSCRIBED)
            return None
        self._end(_S.LEAVING)
        return self._last_heartbeat()

    def go_stale(self) -> ConsumerGroupHeartbeatRequest:
        """Enter the state STALE, because the application does not poll. Return the heartbeat that leaves the group."""
        self.lose(_S.STALE)
        return self._last_heartbeat()

    def _last_heartbeat(self) -> ConsumerGroupHeartbeatRequest:
        from odradek.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest

        return ConsumerGroupHeartbeatRequest(
            group_id=self._group_id,
            member_id=self.member_id,
            member_epoch=LEAVE_EPOCH if self._instance_id is None else LEAVE_STATIC_EPOCH,
            instance_id=self._instance_id,
        )

    # Heartbeats

    def is_urgent(self, interest: Interest) -> bool:
        """True if the next heartbeat contains a change, so that it must be sent at once."""
        if self.state in (_S.JOINING, _S.ACKNOWLEDGING):
            return True
        return self.state in _BEATING and self._sent.interest != interest

    def heartbeat(self, interest: Interest) -> ConsumerGroupHeartbeatRequest:
        """Make the next heartbeat. If the heartbeat acknowledges a target, change the state at once, as if
        the heartbeat had arrived.
        """
        from odradek.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest

        if self.state not in _BEATING:
            raise AssertionError(f"no heartbeat is due in the state {self.state.value}")
        sent = self._sent
        is_full = self.state is _S.JOINING or sent.rebalance_timeout_ms is None
        request = ConsumerGroupHeartbeatRequest(
            group_id=self._group_id,
            member_id=self.member_id,
            member_epoch=JOIN_EPOCH if self.state is _S.JOINING else self.epoch,
            instance_id=self._instance_id,
        )
        if is_full:
            request.rack_id = self._rack_id
            request.rebalance_timeout_ms = sent.rebalance_timeout_ms = self._rebalance_timeout_ms
        if is_full or sent.interest != interest:
            self._had_pattern |= interest.pattern is not None
            request.subscribed_topic_names = list(interest.topics)
            if self._had_pattern:
                # Send an empty pattern to remove an earlier pattern.
                request.subscribed_topic_regex = interest.pattern or ""
            sent.interest = interest
        if is_full and self._assignor is not None:
            request.server_assignor = sent.assignor = self._assignor
        owned = self.owned or {}
        if is_full and self.state is _S.RECONCILING:
            request.topic_partitions = self._owned_or_coming()
            sent.owned = None
        elif is_full or (self.owned is not None and sent.owned != owned and self.state is not _S.RECONCILING):
            request.topic_partitions = _by_topic_id(owned)
            sent.owned = dict(owned)
        if self.state is _S.ACKNOWLEDGING:
            self._become(_S.STABLE if self._is_target_owned() else _S.RECONCILING)
        return request

    def _owned_or_coming(self) -> list[TopicPartitions]:
        """List the partitions that the application has or may adopt while the heartbeat is under way.

        If the heartbeat did not report the partitions to adopt, the coordinator could give them to other members.
        """
        from odradek.wire.messages.consumer_group_heartbeat import TopicPartitions

        found: dict[bytes, set[int]] = {}
        for partitions in (self.owned or {}, self._coming):
            for key, topic_id in partitions.items():
                found.setdefault(topic_id, set()).add(key.partition)
        for topic_id, indexes in self.target.items():
            found.setdefault(topic_id, set()).update(indexes)
        return [TopicPartitions(topic_id, sorted(indexes)) for topic_id, indexes in sorted(found.items())]

    def answered(self, response: ConsumerGroupHeartbeatResponse) -> None:
        """Process the successful answer to a heartbeat of this incarnation. The answer has the member epoch, and
        perhaps a new target.
        """
        if self.state not in _BEATING:
            raise AssertionError(f"no answer is expected in the state {self.state.value}")
        self.member_id = response.member_id or self.member_id
        if self.epoch <= 0:
            self.unbroken_since = response.member_epoch
        self.epoch = response.member_epoch
        if response.assignment is not None:
            self.target = {
                bytes(topic.topic_id): tuple(topic.partitions)
                for topic in response.assignment.topic_partitions
                if topic.partitions
            }
        if self.state is _S.ACKNOWLEDGING:
            return  # the next heartbeat must report the adopted target before the member is STABLE
        if not self._is_target_owned():
            self._become(_S.RECONCILING)
        elif response.assignment is not None:
            # The coordinator repeats a target that the member has adopted, or withdraws a target before its adoption.
            # Perhaps the report of the owned partitions was lost or came too early, so report them again.
            self._sent.owned = None

    def unanswered(self) -> None:
        """Put all fields into the next heartbeat, because the last one was refused or got no answer."""
        self._sent = _Sent()

    def _is_target_owned(self) -> bool:
        if self.owned is None:
            return False
        owned = {(topic_id, key.partition) for key, topic_id in self.owned.items()}
        return owned == {(topic_id, index) for topic_id, indexes in self.target.items() for index in indexes}

    # The application's side

    def resolved(self, names: Mapping[bytes, str]) -> dict[TopicPartition, bytes]:
        """Return those partitions of the target whose topics have a name in `names`, each with its topic id."""
        return {
            TopicPartition(names[topic_id], index): topic_id
            for topic_id, indexes in self.target.items()
            if topic_id in names
            for index in indexes
        }

    def unknown_ids(self, names: Mapping[bytes, str]) -> list[bytes]:
        """List the topic ids of the target whose names are not in `names`."""
        return [topic_id for topic_id in self.target if topic_id not in names]

    def needs_application(self, names: Mapping[bytes, str]) -> bool:
        """True if the application must act, because its partitions are lost or because it has a new target to
        adopt.
        """
        if self.state is not _S.RECONCILING:
            return self.state in _LOST
        resolved = self.resolved(names)
        if resolved == self.owned:
            return self._is_target_owned()
        return bool(resolved or self.owned or not self.target)

    def adopting(self, partitions: Mapping[TopicPartition, bytes]) -> None:
        """Record that the application gets these partitions now. `adopted` or the end of the membership follows."""
        self._coming = dict(partitions)

    def adopted(self, partitions: Mapping[TopicPartition, bytes], incarnation: int) -> None:
        """Record that the application has adopted these partitions. The next heartbeat reports them. A target of an
        earlier incarnation is ignored.
        """
        if incarnation != self.incarnation or self.state is not _S.RECONCILING:
            return
        self._coming = {}
        self.owned = dict(partitions)
        self._become(_S.ACKNOWLEDGING)


def _by_topic_id(owned: Mapping[TopicPartition, bytes]) -> list[TopicPartitions]:
    from odradek.wire.messages.consumer_group_heartbeat import TopicPartitions

    topics: dict[bytes, list[int]] = {}
    for key, topic_id in owned.items():
        topics.setdefault(topic_id, []).append(key.partition)
    return [TopicPartitions(topic_id, sorted(indexes)) for topic_id, indexes in sorted(topics.items())]
