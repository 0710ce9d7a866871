"""The interface that the memberships of both group protocols share, and the choice between the protocols
(`group.protocol=auto`). PURE.

`GroupMembership` uses the classic protocol, `ConsumerMembership` the new one (KIP-848). A consumer has one membership
at a time. With `group.protocol=auto`, `KindChooser` chooses the protocol before each join of a consumer that is
outside of the group. A member keeps its protocol.

The choice
----------
* The new protocol needs the feature `group.version` at 1 or more, and a coordinator that serves
  ConsumerGroupHeartbeat.
* A group that has members of the classic protocol is joined by the classic protocol. Otherwise the first upgraded
  consumer of a rolling restart would convert the group for all its members. So a group of consumers with `auto`
  changes to the new protocol after all its members have left. It also changes when a consumer with
  `group.protocol=consumer` joins; the other members follow at their next start.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING

import attrs

from odradek.client.consumer.group_calls import Coordinator, Member
from odradek.client.consumer.subscription import Subscription
from odradek.client.core.notes import ERROR, INFO
from odradek.client.core.operation import Operation, Signal
from odradek.wire.errors import KafkaError

if TYPE_CHECKING:
    from odradek.client.core.client_core import ClientCore
    from odradek.client.core.client_keys import ConsumerSettings

__all__ = ["AUTO", "CLASSIC", "CONSUMER", "GROUP_FEATURE", "KindChooser", "MemberContext", "Membership"]

AUTO, CLASSIC, CONSUMER = "auto", "classic", "consumer"
"""The values of `group.protocol`: choose automatically, the classic protocol, the new protocol."""
GROUP_FEATURE = "group.version"
_NO_MEMBERS = ("Empty", "Dead")


@attrs.frozen
class MemberContext:
    """The parts of a consumer that its group membership uses.

    `changed` is notified when polls may have something to do. `failed(error)` receives errors that the application
    must know. `ask_metadata` requests fresh metadata. If `chooser` is set, it chooses the protocol
    (`group.protocol=auto`).
    """

    core: ClientCore
    settings: ConsumerSettings
    subscription: Subscription
    coordinator: Coordinator
    changed: Signal
    failed: Callable[[Exception], None]
    ask_metadata: Callable[[], None]
    chooser: KindChooser | None


class Membership(ABC):
    """A consumer's membership in its group: the interface that both protocols share."""

    protocol: str
    if TYPE_CHECKING:

        @property
        def state(self) -> Enum:
            """The state of this member, as the protocol in use defines it."""

        @property
        def generation(self) -> int:
            """The generation (classic protocol) or the member epoch (new protocol); -1 outside of the group."""

        @property
        def member_id(self) -> str:
            """The member id of this consumer; empty before it has one."""

    def __init__(self, context: MemberContext) -> None:
        self._core = context.core
        self._settings = context.settings
        self._subscription = context.subscription
        self._coordinator = context.coordinator
        self._changed = context.changed
        self._failed = context.failed
        self._ask_metadata = context.ask_metadata
        self._chooser = context.chooser
        self._turned = self._core.signal()
        self._is_chosen = False
        """True if `KindChooser` has just chosen this protocol, so that the next join does not call it again."""
        self.known_as = Member(group_instance_id=self._settings.group_instance_id)
        """The member id and generation of the last join, kept after the membership has ended. Commits for records that
        this member has read still name this member. So the coordinator refuses the commits if other members have the
        partitions by now.
        """
        self.fenced: KafkaError | None = None
        """The error that excludes this consumer from the group for good; None while it may join."""
        self.last_poll = self._core.now
        self.rebalances = 0
        self.is_leader = False
        self.group_topics: tuple[str, ...] = ()
        """The topics of all members, if this consumer leads a classic group. The leader watches their partitions."""

    def take_over(self, former: Membership) -> None:
        """Replace the consumer's former membership, which used the other protocol and has no partitions. Join
        the group with this membership.
        """
        self.known_as = former.known_as
        self.rebalances = former.rebalances
        self._is_chosen = True
        self.polled()
        self.last_poll = former.last_poll

    # Called by the application's polls

    @property
    def member(self) -> Member:
        """The identity that a commit request contains: member id, generation (or member epoch) and instance
        id.
        """
        return Member(self.member_id, self.generation, self._settings.group_instance_id)

    @property
    @abstractmethod
    def is_member(self) -> bool:
        """True if the consumer is a member, so that it may commit as a member and must send heartbeats."""

    @property
    @abstractmethod
    def has_lost(self) -> bool:
        """True if the partitions were lost instead of revoked, and the listener has not been called for this
        loss yet.
        """

    @property
    @abstractmethod
    def needs_application(self) -> bool:
        """True if the application must act (give up or adopt partitions) before polls may return records."""

    @property
    @abstractmethod
    def may_commit_automatically(self) -> bool:
        """True if an automatic commit may start now."""

    @property
    @abstractmethod
    def awaits_join(self) -> bool:
        """True while a join is under way and commits must wait, because the answer contains the generation
        that they must name.
        """

    @property
    @abstractmethod
    def awaits_assignment(self) -> bool:
        """True while the coordinator accepts no commits, because this member waits for its assignment."""

    @abstractmethod
    def goes_on_from(self, former: Member) -> bool:
        """True if this consumer was the member `former`, has been in every generation since then, and may still have
        the partitions of that time.
        """

    @abstractmethod
    def polled(self) -> None:
        """Record the time of this poll. Join the group if the consumer has a subscription and is not a
        member.
        """

    @abstractmethod
    def subscription_changed(self, reason: str) -> None:
        """Report a changed subscription to the group."""

    @abstractmethod
    def enforce_rebalance(self, reason: str) -> None:
        """Request a rebalance of the group, if the protocol lets members do so."""

    @abstractmethod
    def topics_updated(self) -> None:
        """React to fresh metadata, in which the assigned topics may have changed, or may have names that were
        unknown before.
        """

    @abstractmethod
    def refused(self, error: KafkaError) -> None:
        """Handle the coordinator's refusal of a commit. The refusal may mean that the membership has ended."""

    @abstractmethod
    def renew_epoch(self) -> None:
        """Get the current member epoch soon, because the coordinator has refused the epoch in a request."""

    @abstractmethod
    def reader(self) -> Member:
        """Return the member to name in requests for committed offsets."""

    @abstractmethod
    def reader_refused(self, who: Member, error: KafkaError) -> None:
        """Handle the refusal of a request for committed offsets that named the member `who`."""

    # In the background

    @abstractmethod
    def run(self) -> Operation[None]:
        """Run the membership until the operation is stopped. Return when the consumer must use the other protocol
        instead.
        """

    @abstractmethod
    def leave(self, reason: str, *, timeout: float) -> Operation[None]:
        """Leave the group; errors are ignored."""

    def _other_kind(self) -> Operation[bool]:
        """Return True if the consumer, which is about to join, must use the other protocol. Raises the errors of
        `KindChooser.choose`.
        """
        if self._chooser is None or self._is_chosen:
            self._is_chosen = False
            return False
        chosen = yield from self._chooser.choose()
        return chosen != self.protocol

    def _note_lasting(self, error: KafkaError) -> None:
        self.fenced = error
        self._core.notes.add(ERROR, f"this consumer has left its group for good: {error}")


class KindChooser:
    """Chooses the protocol for a group, with `group.protocol=auto`."""

    def __init__(self, core: ClientCore, settings: ConsumerSettings, coordinator: Coordinator) -> None:
        self._core = core
        self._settings = settings
        self._coordinator = coordinator
        self._said = ""
        self._refused = ""

    def refused(self, why: str) -> None:
        """Record that the coordinator refused a join by the new protocol. From now on the classic protocol is chosen."""
        self._refused = why

    def choose(self) -> Operation[str]:
        """Choose the protocol for the next join: "classic" or "consumer". Raises `KafkaError`, `ClientError`."""
        kind, why = yield from self._choice()
        text = f"group {self._coordinator.group_id}: this consumer uses the {kind} protocol, since {why}"
        if text != self._said:
            self._said = text
            self._core.notes.add(INFO, text)
        return kind

    def _choice(self) -> Operation[tuple[str, str]]:
        if self._refused:
            return CLASSIC, self._refused
        deadline = self._core.now + self._settings.default_api_timeout_ms / 1000
        # When a connection to the coordinator opens, its first answer also contains the cluster's features.
        yield from self._coordinator.find(deadline=deadline)
        if self._core.cluster.features.get(GROUP_FEATURE, 0) < 1:
            return CLASSIC, f"the cluster's feature {GROUP_FEATURE} is not 1"
        state = yield from self._coordinator.classic_state(deadline=deadline)
        if state not in _NO_MEMBERS:
            return CLASSIC, f"the group has members of the classic protocol (its state is {state})"
        return CONSUMER, "the cluster serves it"
