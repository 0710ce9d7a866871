"""One member of a group by the new protocol (KIP-848): its states, and the contents of its heartbeats. PURE.

Theory of operation
-------------------
The coordinator assigns partitions. The member learns its target assignment from the answers to its heartbeats. It gives up
the partitions that the target lacks, takes up the new ones, and reports those that it then has. A member epoch stands for
all that the coordinator and the member agree on.

| state | meaning | turn |
| --- | --- | --- |
| UNSUBSCRIBED | outside of the group: before a subscription, and after leaving | - |
| JOINING | a heartbeat with epoch 0 is due or under way | driver |
| RECONCILING | the target differs from the adopted partitions; heartbeats go on | application, once topics are known |
| ACKNOWLEDGING | the application has adopted a target; the next heartbeat reports it at once | driver |
| STABLE | heartbeats | driver |
| FENCED | the coordinator has another epoch, or does not know the member: its partitions are lost | application |
| FAILED | the coordinator refused the member for a reason that the application must hear | application |
| STALE | the application has not polled for too long, so the member has left | application |
| LEAVING | a heartbeat with the epoch of a leave is under way | driver |

After FENCED, FAILED and STALE the application first hears that its partitions are lost. Then the member joins again,
under its old id, with epoch 0.

Rules
-----
* A heartbeat has the fields that changed since the last one. After an error, or an answer that did not come, the next
  heartbeat has them all.
* Partitions count as owned until the application has given them up. A target that comes meanwhile waits.
* An answer of an earlier `incarnation` says nothing about the present one: the driver drops it.
* Topics are named by their ids. The names come from metadata, perhaps later than the target.
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
"""The leave of a static member: its partitions wait for its return."""


class MemberState(Enum):
    """The state of a member in a group of the new protocol; `_TRANSITIONS` has the legal changes."""

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
        (_S.RECONCILING, _S.STABLE),
        (_S.ACKNOWLEDGING, _S.STABLE),
        *((state, lost) for state in _BEATING for lost in _LOST),
        *((state, _S.LEAVING) for state in _BEATING),
        *((state, _S.UNSUBSCRIBED) for state in MemberState),
    }
)


class Verdict(Enum):
    """The meaning of a refused heartbeat."""

    RETRY = "the same heartbeat may succeed later"
    FENCED = "the coordinator has given the partitions to other members"
    REPORT = "the application must hear of it, and the member goes on"
    FAILED = "the application must hear of it, and the membership has ended"
    REPLACED = "another client has taken the place of this static member for good"


_VERDICTS = {
    ErrorCode.FENCED_MEMBER_EPOCH: Verdict.FENCED,
    ErrorCode.UNKNOWN_MEMBER_ID: Verdict.FENCED,
    ErrorCode.FENCED_INSTANCE_ID: Verdict.REPLACED,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: Verdict.REPORT,
}


def judged(code: ErrorCode) -> Verdict:
    """Judge the error code of an answer to a heartbeat."""
    return _VERDICTS.get(code, Verdict.RETRY if code.retriable else Verdict.FAILED)


@attrs.frozen
class Interest:
    """The topics that a member wants: names, or a pattern that the coordinator matches."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None


@attrs.define
class _Sent:
    """The fields that the coordinator has of this member, as far as its last answers show; None for an unknown one."""

    rebalance_timeout_ms: int | None = None
    interest: Interest | None = None
    assignor: str | None = None
    owned: dict[TopicPartition, bytes] | None = None


class MemberMachine:
    """One member. `new_id` makes its id when it joins for the first time; it keeps that id."""

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
        """The first epoch of this stay in the group."""
        self.incarnation = 0
        self.owned: dict[TopicPartition, bytes] | None = None
        """The partitions that the application has adopted, with the ids of their topics; None before the first target."""
        self.target: dict[bytes, tuple[int, ...]] = {}
        """The partitions that the coordinator has assigned, by topic id."""
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

    # Coming and going

    @property
    def is_member(self) -> bool:
        """True if the coordinator has this member, as far as it knows."""
        return self.epoch > 0

    @property
    def has_lost(self) -> bool:
        """True if the partitions are lost, and the application has yet to hear of it."""
        return self.state in _LOST

    @property
    def beats(self) -> bool:
        """True if heartbeats are due in this state."""
        return self.state in _BEATING

    def join(self) -> None:
        """Join the group, for the first time or again: the next heartbeat has epoch 0 and all fields."""
        self.member_id = self.member_id or self._new_id()
        self._end(_S.JOINING)

    def lose(self, state: MemberState) -> None:
        """End the membership: FENCED, FAILED or STALE."""
        if state not in _LOST:
            raise AssertionError(f"partitions are not lost in the state {state.value}")
        self._end(state)

    def unsubscribe(self) -> None:
        """Be outside of the group."""
        self._end(_S.UNSUBSCRIBED)

    def _end(self, state: MemberState) -> None:
        self._become(state)
        self.incarnation += 1
        self.epoch = -1
        self.owned = None
        self.target = {}
        self._sent = _Sent()

    def leave(self) -> ConsumerGroupHeartbeatRequest | None:
        """Begin to leave. Return the last heartbeat; None if the coordinator cannot have this member."""
        if self.state not in _BEATING:
            self._end(_S.UNSUBSCRIBED)
            return None
        self._end(_S.LEAVING)
        return self._last_heartbeat()

    def go_stale(self) -> ConsumerGroupHeartbeatRequest:
        """Leave because the application does not poll. Return the last heartbeat."""
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
        """True if the next heartbeat has news, so that it does not wait for its interval."""
        if self.state in (_S.JOINING, _S.ACKNOWLEDGING):
            return True
        return self.state in _BEATING and self._sent.interest != interest

    def heartbeat(self, interest: Interest) -> ConsumerGroupHeartbeatRequest:
        """Make the next heartbeat. An acknowledgement counts as sent from then on."""
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
                # An empty pattern takes back an earlier one.
                request.subscribed_topic_regex = interest.pattern or ""
            sent.interest = interest
        if is_full and self._assignor is not None:
            request.server_assignor = sent.assignor = self._assignor
        owned = self.owned or {}
        if is_full or (self.owned is not None and sent.owned != owned):
            request.topic_partitions = _by_topic_id(owned)
            sent.owned = dict(owned)
        if self.state is _S.ACKNOWLEDGING:
            self._become(_S.STABLE if self._is_target_owned() else _S.RECONCILING)
        return request

    def answered(self, response: ConsumerGroupHeartbeatResponse) -> None:
        """Take in the answer to a heartbeat of this incarnation that was not refused."""
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
            return  # the heartbeat that is due reports the adopted target; then comes the next
        if not self._is_target_owned():
            self._become(_S.RECONCILING)
        elif self.state is not _S.STABLE:
            self._become(_S.STABLE)
        elif response.assignment is not None:
            # The coordinator repeats a target that the member has: perhaps it has not learned of that yet.
            self._sent.owned = None

    def unanswered(self) -> None:
        """Note that the fate of a heartbeat is unknown, or that it was refused: the next one has all fields."""
        self._sent = _Sent()

    def _is_target_owned(self) -> bool:
        if self.owned is None:
            return False
        owned = {(topic_id, key.partition) for key, topic_id in self.owned.items()}
        return owned == {(topic_id, index) for topic_id, indexes in self.target.items() for index in indexes}

    # The application's side

    def resolved(self, names: Mapping[bytes, str]) -> dict[TopicPartition, bytes]:
        """Return the target's partitions whose topics have a known name, with the ids of these topics."""
        return {
            TopicPartition(names[topic_id], index): topic_id
            for topic_id, indexes in self.target.items()
            if topic_id in names
            for index in indexes
        }

    def unknown_ids(self, names: Mapping[bytes, str]) -> list[bytes]:
        """List the topic ids of the target that have no known name."""
        return [topic_id for topic_id in self.target if topic_id not in names]

    def needs_application(self, names: Mapping[bytes, str]) -> bool:
        """True if the application has to act: it lost its partitions, or has to adopt others."""
        if self.state is not _S.RECONCILING:
            return self.state in _LOST
        resolved = self.resolved(names)
        return resolved != self.owned and bool(resolved or self.owned or not self.target)

    def adopted(self, partitions: Mapping[TopicPartition, bytes], incarnation: int) -> None:
        """Note that the application has adopted a target, which the next heartbeat acknowledges."""
        if incarnation != self.incarnation or self.state is not _S.RECONCILING:
            return
        self.owned = dict(partitions)
        self._become(_S.ACKNOWLEDGING)


def _by_topic_id(owned: Mapping[TopicPartition, bytes]) -> list[TopicPartitions]:
    from odradek.wire.messages.consumer_group_heartbeat import TopicPartitions

    topics: dict[bytes, list[int]] = {}
    for key, topic_id in owned.items():
        topics.setdefault(topic_id, []).append(key.partition)
    return [TopicPartitions(topic_id, sorted(indexes)) for topic_id, indexes in sorted(topics.items())]
