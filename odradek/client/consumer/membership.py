"""The common part of the memberships by both group protocols, and the choice between the protocols. PURE.

`GroupMembership` speaks the classic protocol, `ConsumerMembership` that of KIP-848. A consumer has one of them at a time. With
`group.protocol=auto` the other one takes over where `KindChooser` says so. It is asked before each join of a consumer that
is outside of the group. A member keeps its protocol.

The choice
----------
* The new protocol needs the feature `group.version` at 1 or more, and a coordinator that serves ConsumerGroupHeartbeat.
* A group that has members of the classic protocol is joined by the classic protocol. Otherwise the first new consumer of a
  rolling restart would convert the group for all of them. So a group of consumers with `auto` changes when all its
  members have left. It also changes when a consumer with `group.protocol=consumer` joins it; the others follow at their next
  start.
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
"""The values of `group.protocol`: two protocols, and the choice between them."""
GROUP_FEATURE = "group.version"
_NO_MEMBERS = ("Empty", "Dead")


@attrs.frozen
class MemberContext:
    """The parts of a consumer that its membership works with.

    `changed` is notified for the application's side. `failed(error)` gets errors that the application must know.
    `ask_metadata` has metadata fetched soon. With a `chooser`, the membership of the other protocol may take over.
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
    """A consumer's membership in its group."""

    protocol: str
    if TYPE_CHECKING:

        @property
        def state(self) -> Enum:
            """The state of this member, by the states of its protocol."""

        @property
        def generation(self) -> int:
            """The generation, or the member epoch; -1 outside of the group."""

        @property
        def member_id(self) -> str:
            """The id of this member; empty before it has one."""

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
        """True until the next join if the protocol was just chosen."""
        self.known_as = Member(group_instance_id=self._settings.group_instance_id)
        """This member as of its last join. It outlives the membership. Records that were read as this member are
        committed as this member, so the coordinator refuses offsets of partitions that other members have by now.
        """
        self.fenced: KafkaError | None = None
        """The refusal after which this consumer can be no member any more."""
        self.last_poll = self._core.now
        self.rebalances = 0
        self.is_leader = False
        self.group_topics: tuple[str, ...] = ()
        """The topics of all members, on the leader of a classic group: it watches their partitions."""

    def take_over(self, former: Membership) -> None:
        """Join in the place of a consumer's former membership, which has no partitions."""
        self.known_as = former.known_as
        self.rebalances = former.rebalances
        self._is_chosen = True
        self.polled()
        self.last_poll = former.last_poll

    # The application's side

    @property
    def member(self) -> Member:
        """The member id, generation or epoch, and instance id that a commit carries."""
        return Member(self.member_id, self.generation, self._settings.group_instance_id)

    @property
    @abstractmethod
    def is_member(self) -> bool:
        """True if the consumer may commit as a member, and must send heartbeats."""

    @property
    @abstractmethod
    def has_lost(self) -> bool:
        """True if the partitions were lost, not given up, and the listener has yet to be called."""

    @property
    @abstractmethod
    def needs_application(self) -> bool:
        """True if the application has to act before it may have records."""

    @property
    @abstractmethod
    def may_commit_automatically(self) -> bool:
        """True if an automatic commit may begin now."""

    @property
    @abstractmethod
    def awaits_join(self) -> bool:
        """True while the answer to a join will say under which generation commits are taken."""

    @property
    @abstractmethod
    def awaits_assignment(self) -> bool:
        """True while the coordinator takes no commit: this member waits for the assignment of its generation."""

    @abstractmethod
    def goes_on_from(self, former: Member) -> bool:
        """True if this is that member still, and it kept partitions in each generation since."""

    @abstractmethod
    def polled(self) -> None:
        """Note that the application is alive; a consumer that has subscribed, and is no member, joins."""

    @abstractmethod
    def subscription_changed(self, reason: str) -> None:
        """Bring a changed subscription to the group."""

    @abstractmethod
    def enforce_rebalance(self, reason: str) -> None:
        """Make the group assign its partitions again, where members can do that."""

    @abstractmethod
    def topics_updated(self) -> None:
        """Look at fresh metadata."""

    @abstractmethod
    def refused(self, error: KafkaError) -> None:
        """React to the refusal of a commit, which may mean that the membership has ended."""

    @abstractmethod
    def renew_epoch(self) -> None:
        """Learn the present epoch soon, because the coordinator has another one."""

    @abstractmethod
    def reader(self) -> Member:
        """Return the member in whose name commits are fetched."""

    @abstractmethod
    def reader_refused(self, who: Member, error: KafkaError) -> None:
        """React when the coordinator refuses to return commits to a member."""

    # In the background

    @abstractmethod
    def run(self) -> Operation[None]:
        """Run the membership until the operation is ended. Return when the membership of the other protocol has
        to take over.
        """

    @abstractmethod
    def leave(self, reason: str, *, timeout: float) -> Operation[None]:
        """Leave the group; errors are ignored."""

    def _other_kind(self) -> Operation[bool]:
        """Return True if a consumer that is about to join has to use the other protocol. Raises errors."""
        if self._chooser is None or self._is_chosen:
            self._is_chosen = False
            return False
        chosen = yield from self._chooser.choose()
        return chosen != self.protocol

    def _note_lasting(self, error: KafkaError) -> None:
        self.fenced = error
        self._core.notes.add(ERROR, f"this consumer has left its group for good: {error}")


class KindChooser:
    """The choice of the protocol with `group.protocol=auto`."""

    def __init__(self, core: ClientCore, settings: ConsumerSettings, coordinator: Coordinator) -> None:
        self._core = core
        self._settings = settings
        self._coordinator = coordinator
        self._said = ""
        self._refused = ""

    def refused(self, why: str) -> None:
        """Note that the coordinator does not let this consumer join by the new protocol."""
        self._refused = why

    def choose(self) -> Operation[str]:
        """Choose the protocol for a join. Raises `KafkaError`, `ClientError`."""
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
        # A connection to a broker brings the features, too.
        yield from self._coordinator.find(deadline=deadline)
        if self._core.cluster.features.get(GROUP_FEATURE, 0) < 1:
            return CLASSIC, f"the cluster's feature {GROUP_FEATURE} is not 1"
        state = yield from self._coordinator.classic_state(deadline=deadline)
        if state not in _NO_MEMBERS:
            return CLASSIC, f"the group has members of the classic protocol (its state is {state})"
        return CONSUMER, "the cluster serves it"
