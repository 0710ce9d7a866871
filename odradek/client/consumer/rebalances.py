"""The part of a rebalance that runs inside the application's polls: it commits, revokes and adds partitions,
and requests calls of the listener. PURE.

The operation `turn` performs the steps for which the membership waits. It returns a `RebalanceEvent` if the
listener must be called. The shell calls the listener and then calls `notified`, and the rebalance goes on.
"""

from __future__ import annotations

from collections.abc import Callable

from odradek.client.consumer.commits import Commits
from odradek.client.consumer.consumer_membership import ConsumerMembership
from odradek.client.consumer.consumer_types import RebalanceEvent, RebalanceKind
from odradek.client.consumer.group_membership import GroupMembership, MembershipState
from odradek.client.consumer.membership import Membership
from odradek.client.consumer.subscription import Subscription
from odradek.client.core.notes import INFO, WARNING, Notes
from odradek.client.core.operation import Operation
from odradek.named_states import reached
from odradek.wire.topic_partition import TopicPartition

__all__ = ["Rebalances"]

_NAMED_MAX = 20
"""The maximum number of partitions that one log line lists."""


class Rebalances:
    """The rebalances of one consumer. `stir` is called to wake the background operations, which may have new work."""

    def __init__(
        self, subscription: Subscription, commits: Commits, notes: Notes, stir: Callable[[], None]
    ) -> None:
        self._subscription = subscription
        self._commits = commits
        self._notes = notes
        self._stir = stir
        self._event: RebalanceEvent | None = None
        self._on_notified: Callable[[], None] | None = None
        self._gave_up = False

    def turn(self, membership: Membership) -> Operation[RebalanceEvent | None]:
        """Perform the steps for which the membership waits. Return an event if the listener must be called.
        If another client has replaced this static member, raise the error of the membership.
        """
        if self._event is not None:
            return self._event
        if membership.fenced is not None:
            if self._subscription.partitions:
                owned = list(self._subscription.partitions)
                return self._begin(RebalanceKind.LOST, owned, lambda: self._subscription.assign([]))
            raise membership.fenced.with_traceback(None)
        membership.polled()
        while True:
            state = membership.state
            event = yield from self._step(membership)
            # The state may have changed during a commit in this step. The signal of the change went to the commit, and
            # will not wake the poll. So take another step here.
            if event is not None or membership.state is state or not membership.needs_application:
                return event

    def _step(self, membership: Membership) -> Operation[RebalanceEvent | None]:
        event = None
        if isinstance(membership, ConsumerMembership):
            event = yield from self._reconcile(membership)
        elif isinstance(membership, GroupMembership):
            if membership.state is MembershipState.PREPARING:
                event = yield from self._prepare(membership)
            elif membership.state is MembershipState.ADOPTING:
                event = yield from self._adopt(membership)
        return event

    # The classic protocol

    def _prepare(self, membership: GroupMembership) -> Operation[RebalanceEvent | None]:
        """Prepare a join: commit, and revoke partitions. Eager members revoke all partitions. Cooperative
        members revoke the partitions of topics to which they no longer subscribe.
        """
        owned = list(self._subscription.partitions)
        if membership.lost:
            return self._begin(RebalanceKind.LOST, owned, lambda: self._give_up_all(membership))
        yield from self._commits.commit_before_rebalance(owned)
        if membership.state is not MembershipState.PREPARING or membership.lost:
            reached("client.rebalance_moved_on")
            return None  # the state changed during the commit, and the next step handles the change
        if not membership.cooperative:
            return self._begin(RebalanceKind.REVOKED, owned, lambda: self._give_up_all(membership))
        kept = [key for key in owned if key.topic in self._subscription.topics]
        gone = [key for key in owned if key.topic not in self._subscription.topics]

        def give_up() -> None:
            self._subscription.assign(kept)
            if membership.state is MembershipState.PREPARING:
                membership.prepared()

        return self._begin(RebalanceKind.REVOKED, gone, give_up)

    def _give_up_all(self, membership: GroupMembership) -> None:
        self._subscription.assign([])
        if membership.state is MembershipState.PREPARING:
            membership.prepared()

    def _adopt(self, membership: GroupMembership) -> Operation[RebalanceEvent | None]:
        """Adopt a join's assignment: add new partitions, after a cooperative member has revoked old ones."""
        owned = self._subscription.partitions
        given = dict.fromkeys(membership.assignment)
        gone = [key for key in owned if key not in given]
        if gone and membership.cooperative:
            yield from self._commits.commit_before_rebalance(gone)
            if membership.state is not MembershipState.ADOPTING:
                return None
            kept = [key for key in owned if key in given]

            def give_up() -> None:
                self._subscription.assign(kept)
                self._gave_up = True

            return self._begin(RebalanceKind.REVOKED, gone, give_up)
        new = [key for key in given if key not in owned]
        self._subscription.assign(given)
        self._stir()

        def adopted() -> None:
            gave_up, self._gave_up = self._gave_up, False
            if membership.state is MembershipState.ADOPTING:
                membership.adopted()
                if gave_up:
                    membership.want_rejoin("this member gave up partitions for other members")

        return self._begin(RebalanceKind.ASSIGNED, new, adopted, always=True)

    # The new protocol

    def _reconcile(self, membership: ConsumerMembership) -> Operation[RebalanceEvent | None]:
        """Adopt the target assignment: revoke the partitions that it lacks, then add new ones, then acknowledge it."""
        if not membership.needs_application:
            return None
        owned = self._subscription.partitions
        if membership.has_lost:

            def forget() -> None:
                self._subscription.assign([])
                membership.lost_handled()

            return self._begin(RebalanceKind.LOST, list(owned), forget)
        stay = membership.incarnation
        target, former = membership.target(), membership.owned()
        # A topic that was deleted and created again has a new id. Its old partitions are revoked, and the new
        # ones are added.
        kept = [key for key in owned if key in target and former.get(key, target[key]) == target[key]]
        gone = [key for key in owned if key not in set(kept)]
        if gone:
            yield from self._commits.commit_before_rebalance(gone)
            if membership.incarnation != stay:
                reached("client.reconciliation_moved_on")
                return None
            return self._begin(RebalanceKind.REVOKED, gone, lambda: self._subscription.assign(kept))
        new = [key for key in target if key not in owned]
        membership.adopting(target)
        self._subscription.assign(target)
        self._stir()
        return self._begin(RebalanceKind.ASSIGNED, new, lambda: membership.adopted(target, stay), always=True)

    # Calls of the listener

    def _begin(
        self,
        kind: RebalanceKind,
        keys: list[TopicPartition],
        then: Callable[[], None],
        *,
        always: bool = False,
    ) -> RebalanceEvent | None:
        """Return an event for which the shell must call the listener; `then` is called after the listener has
        returned. If there are no partitions and `always` is false, call `then` at once and return None.
        """
        if not keys and not always:
            then()
            return None
        if keys:
            named = ", ".join(map(str, keys[:_NAMED_MAX])) + (", ..." if len(keys) > _NAMED_MAX else "")
            level = WARNING if kind is RebalanceKind.LOST else INFO
            self._notes.add(level, f"partitions {kind.value}: {named}")
        self._event = RebalanceEvent(kind, keys)
        self._on_notified = then
        return self._event

    def notified(self, event: RebalanceEvent) -> None:
        """Called when the rebalance listener has handled this event or has raised an exception."""
        if event is self._event:
            then, self._event, self._on_notified = self._on_notified, None, None
            if then is not None:
                then()
            self._stir()

    def give_up_all(self, membership: Membership) -> RebalanceEvent | None:
        """Return the last event before a consumer leaves its group, in which all its partitions are revoked
        or lost. Return None if the consumer has no partitions.
        """
        kind = RebalanceKind.LOST if membership.has_lost else RebalanceKind.REVOKED
        self._event = None
        return self._begin(kind, list(self._subscription.partitions), lambda: None)

    def forget(self) -> None:
        """Forget the event whose listener call is pending, because the consumer leaves its group."""
        self._event = None
